"""A bounded cache of recently used values."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache that keeps at least the ``least`` entries used last, and never more than twice as many.

    The cache has two generations. When the young one is full it replaces the old one, whose entries are dropped unless
    they were used meanwhile. A look-up costs as much as in a dict, unlike in an LRU list, which every use reorders.
    """

    __slots__ = ("_least", "_old", "_young")

    def __init__(self, least: int) -> None:
        self._least = least
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value of a key, or None. Getting a value counts as a use."""
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: K, value: V) -> V:
        """Store a value and return it."""
        if len(self._young) >= self._least:
            self._old, self._young = self._young, {}
        self._young[key] = value
        return value

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._young.keys() | self._old.keys())
