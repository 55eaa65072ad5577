"""Counts endpoints by target, cluster, family and condition; only changed slices are counted again."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple, TypeVar

import msgspec

from hub.model import ObjectKey, Slice, TargetKey

K = TypeVar("K")


class Sums(msgspec.Struct):
    """Endpoints by condition, and the slices they are in."""

    ready: int = 0
    draining: int = 0
    failed: int = 0
    slices: int = 0


NOTHING: Final = Sums()


class _Counted(NamedTuple):
    slice: Slice
    target: TargetKey
    ready: int
    draining: int
    failed: int


class Published:
    """The sums over all slices that were entered and have not left.

    Attributes:
        targets: (target, family) -> sums; only keys with a slice.
        clusters: (source cluster, family) -> sums; only keys with a slice.
    """

    def __init__(self) -> None:
        self.targets: dict[tuple[TargetKey, str], Sums] = {}
        self.clusters: dict[tuple[str, str], Sums] = {}
        self._known: dict[ObjectKey, _Counted] = {}

    def add(self, key: ObjectKey, value: Slice) -> None:
        """Add or replace a slice; does nothing if it is the same object as before."""
        known = self._known.get(key)
        if known is not None:
            if known.slice is value:
                return
            self._sum(known, -1)
        counted = self._known[key] = _count(value)
        self._sum(counted, 1)

    def remove_missing(self, existing: Container[ObjectKey]) -> None:
        """Remove all slices whose keys are not in ``existing``."""
        for key in [key for key in self._known if key not in existing]:
            self._sum(self._known.pop(key), -1)

    def _sum(self, counted: _Counted, sign: int) -> None:
        family = counted.slice.address_type
        self._into(self.targets, (counted.target, family), counted, sign)
        self._into(self.clusters, (counted.slice.cluster, family), counted, sign)

    @staticmethod
    def _into(sums: dict[K, Sums], key: K, counted: _Counted, sign: int) -> None:
        found = sums.setdefault(key, Sums())
        found.ready += sign * counted.ready
        found.draining += sign * counted.draining
        found.failed += sign * counted.failed
        found.slices += sign
        if not found.slices:
            del sums[key]


def _count(value: Slice) -> _Counted:
    ready = draining = failed = 0
    for endpoint in value.endpoints:
        conditions = endpoint.conditions
        if conditions.ready is not False:
            ready += 1
        elif conditions.terminating or conditions.serving:
            draining += 1
        else:
            failed += 1
    return _Counted(value, value.target, ready, draining, failed)
