"""A timer wheel: thousands of deadlines without a task or a timer for each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

TICK: Final = 0.02
"""Seconds of one slot. The shortest interval of a check has five slots; 50 wake-ups a second cost 0.1 % of a core."""


class Wheel(Generic[T]):
    """Items by the slot in which they are due. An item cannot be removed: callers ignore outdated ones."""

    def __init__(self) -> None:
        self._slots: dict[int, list[T]] = {}
        self._done: int | None = None
        """The last slot that was handed out."""

    def put(self, item: T, at: float) -> None:
        """Hand ``item`` out at ``at``, or up to a tick later."""
        slot = math.ceil(at / TICK)
        if self._done is not None and slot <= self._done:
            slot = self._done + 1
        content = self._slots.get(slot)
        if content is None:
            self._slots[slot] = [item]
        else:
            content.append(item)

    def due(self, now: float) -> Iterable[T]:
        """Remove and return the items that are due, earliest first."""
        last = math.floor(now / TICK)
        if self._done is None or last - self._done > len(self._slots):
            slots: Iterable[int] = sorted(slot for slot in self._slots if slot <= last)
        else:
            slots = range(self._done + 1, last + 1)
        self._done = last if self._done is None else max(last, self._done)
        found: list[T] = []
        for slot in slots:
            found.extend(self._slots.pop(slot, ()))
        return found

    def __len__(self) -> int:
        """The number of items that are not handed out yet."""
        return sum(map(len, self._slots.values()))
