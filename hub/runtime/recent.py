"""A bounded memory of what was used lately."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """What was used lately, by key: at least the last ``least`` entries, never more than twice as many.

    Two generations: when the young one is full it becomes the old one, and what nobody has used since is forgotten
    with that. A look-up costs the same as in a dict, unlike that in a list ordered by use.
    """

    __slots__ = ("_least", "_old", "_young")

    def __init__(self, least: int) -> None:
        self._least = least
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value, which counts as a use."""
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: K, value: V) -> V:
        """Remember a value; returns it."""
        if len(self._young) >= self._least:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

    def __len__(self) -> int:
        """How many entries are remembered."""
        return len(self._young.keys() | self._old.keys())
