"""What costs something to make, remembered by the identity of what it was made from."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from hub.groups import same_objects

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Memo(Generic[K, T]):
    """The outcome of one computation, by key; what a whole pass did not ask for is forgotten with it."""

    __slots__ = ("_asked", "_known")

    def __init__(self) -> None:
        self._known: dict[K, tuple[tuple[object, ...], T]] = {}
        self._asked: dict[K, tuple[tuple[object, ...], T]] = {}

    def get(self, key: K, inputs: tuple[object, ...]) -> T | None:
        """The outcome for the very same inputs; None where there is none."""
        known = self._known.get(key)
        if known is None or not same_objects(known[0], inputs):
            return None
        self._asked[key] = known
        return known[1]

    def last(self, key: K) -> T | None:
        """The outcome for whatever inputs there were last."""
        known = self._known.get(key)
        return known[1] if known is not None else None

    def put(self, key: K, inputs: tuple[object, ...], outcome: T) -> T:
        """Remember an outcome; returns it."""
        self._known[key] = self._asked[key] = (inputs, outcome)
        return outcome

    def __len__(self) -> int:
        """How many outcomes are known."""
        return len(self._known)

    def sweep(self) -> None:
        """End a pass."""
        self._known, self._asked = self._asked, {}
