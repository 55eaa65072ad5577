"""What is published, indexed for comparison with what is wanted.

Observed slices come as whole values; what does not change between two passes is not looked at twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from hub.model import Endpoint, GroupKey, PublishedSlice, Slice


@dataclass(frozen=True, slots=True)
class Difference:
    """From what is published to what is wanted.

    Attributes:
        removed: address -> as published.
        changed: address -> (published, wanted).
        added: sorted.
    """

    removed: Mapping[str, Endpoint]
    changed: Mapping[str, tuple[Endpoint, Endpoint]]
    added: tuple[str, ...]


class Published:
    """The slices of one group, lowest-numbered first.

    Attributes:
        slices: prepared for comparison.
        duplicates: an address appears twice among them.
    """

    __slots__ = ("_compared", "_endpoints", "duplicates", "slices")

    def __init__(self, slices: tuple[PublishedSlice, ...] = ()) -> None:
        self.slices = slices
        total = sum(len(each.addresses) for each in slices)
        self.duplicates = any(each.duplicates for each in slices) or (
            len(slices) > 1 and len({address for each in slices for address in each.addresses}) < total
        )
        self._endpoints: dict[str, Endpoint] | None = None
        self._compared: tuple[Mapping[str, Endpoint], Difference] | None = None

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Everything in them by address, in their order; the first of duplicates."""
        if self._endpoints is None:
            merged: dict[str, Endpoint] = {}
            for each in self.slices:
                fresh = dict(zip(each.addresses, each.endpoints, strict=True))
                merged.update(fresh | merged if self.duplicates else fresh)
            self._endpoints = merged
        return self._endpoints

    def difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Compare with what is wanted; the last comparison is remembered by the mapping's identity."""
        if self._compared is None or self._compared[0] is not wanted:
            self._compared = (wanted, self._difference(wanted))
        return self._compared[1]

    def _difference(self, wanted: Mapping[str, Endpoint]) -> Difference:
        """Slice by slice: one whose endpoints are all wanted as they are costs 3 µs per hundred."""
        removed: dict[str, Endpoint] = {}
        changed: dict[str, tuple[Endpoint, Endpoint]] = {}
        present = 0
        for each in self.slices:
            if each.holds(wanted):
                present += len(each.addresses)
                continue
            for address, before in zip(each.addresses, each.endpoints, strict=True):
                after = wanted.get(address)
                if after is None:
                    removed[address] = before
                    continue
                present += 1
                if after is not before and after != before:
                    changed[address] = (before, after)
        added: tuple[str, ...] = ()
        if present != len(wanted) or self.duplicates:
            added = tuple(sorted(set(wanted).difference(*(each.addresses for each in self.slices))))
        return Difference(removed, changed, added)

    def __bool__(self) -> bool:
        """Whether any endpoint is published."""
        return any(each.addresses for each in self.slices)


class Index:
    """Groups the observed slices of one target; remembers what it prepared, by the slices' identity."""

    __slots__ = ("_entries", "_groups", "_observed", "_renames")

    def __init__(self) -> None:
        self._entries: dict[str, PublishedSlice] = {}
        self._groups: dict[GroupKey, Published] = {}
        self._observed: tuple[Slice, ...] = ()
        self._renames: Mapping[str, str] = {}

    def groups(self, observed: Sequence[Slice], renames: Mapping[str, str]) -> Mapping[GroupKey, Published]:
        """The published groups.

        Args:
            observed: slices of ours, any order; one that is being deleted is as good as gone.
            renames: a cluster's former name -> today's.
        """
        if same_objects(observed, self._observed) and renames == self._renames:
            return self._groups
        self._observed, self._renames = tuple(observed), renames
        entries: dict[str, PublishedSlice] = {}
        grouped: dict[GroupKey, list[PublishedSlice]] = {}
        for each in sorted(observed, key=_number):
            if each.deleting:
                continue
            entry = self._entries.get(each.name)
            if entry is None or entry.slice is not each:
                entry = prepare(each)
            entries[each.name] = entry
            key = GroupKey(renames.get(each.cluster, each.cluster), each.address_type)
            grouped.setdefault(key, []).append(entry)
        self._entries = entries
        self._groups = {key: self._group(key, tuple(members)) for key, members in grouped.items()}
        return self._groups

    def _group(self, key: GroupKey, members: tuple[PublishedSlice, ...]) -> Published:
        old = self._groups.get(key)
        return old if old is not None and same_objects(old.slices, members) else Published(members)


def prepare(observed: Slice) -> PublishedSlice:
    """One slice, ready for comparison."""
    addresses = tuple(each.addresses[0] if each.addresses else "" for each in observed.endpoints)
    return PublishedSlice(
        observed,
        addresses,
        observed.endpoints,
        draining=sum(1 for each in observed.endpoints if each.conditions.terminating),
        duplicates=len(set(addresses)) < len(addresses),
    )


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether two sequences are of the very same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def _number(observed: Slice) -> tuple[int, str]:
    digits = observed.name.rpartition("-")[2]
    return (int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 1 << 31, observed.name)
