"""The same write again waits: what keeps the hub from fighting over a slice.

A slice that somebody else edited or deleted is repaired at once; one that has to be repaired again and
again, or that the API server refuses again and again, is written 1 s later, then 2 s, at most 60 s. A
write with another content than the last one is no repetition and never waits. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from hub.decide.plan import OUR_ANNOTATIONS, Plan
from hub.decide.split import exchange
from hub.model import Slice

FIRST: Final = 1.0
CAP: Final = 60.0
"""Seconds between repetitions: the first after the immediate one, and the most."""
QUIET: Final = 60.0
"""Seconds beyond its delay after which a slice that needed no repetition counts as left alone."""


class Held(NamedTuple):
    """What of a plan may be written now.

    Attributes:
        plan: the part that may.
        wake_at: when the next part may; None = nothing is held.
    """

    plan: Plan
    wake_at: float | None


class _Last(msgspec.Struct):
    """The last thing done to a slice.

    Attributes:
        value: what was sent; None = it was deleted.
        at: when.
        times: how often in a row it had been done already.
        refused: the API server did not take it.
    """

    value: Slice | None
    at: float
    times: int = 0
    refused: bool = False

    @property
    def delay(self) -> float:
        """Seconds until the same may be done again: the first repair waits for nothing."""
        steps = self.times if self.refused else self.times - 1
        return min(CAP, FIRST * 2.0 ** min(steps, 10)) if steps >= 0 else 0.0

    def quiet(self, now: float) -> bool:
        """Whether whoever undid it seems to have stopped."""
        return now > self.at + self.delay + QUIET


class Repeats:
    """What was last done to each slice of one target."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def allow(self, plan: Plan, now: float) -> Held:
        """Leave out what was done before, did not last, and is not due again."""
        wakes: list[float] = []
        held: list[Slice] = []

        def due(values: Iterable[Slice], *, deletes: bool = False) -> tuple[Slice, ...]:
            passed = []
            for each in values:
                last = self._last.get(each.name)
                again = last is not None and _same(last.value, None if deletes else each)
                if last is None or not again or now >= last.at + last.delay:
                    passed.append(each)
                else:
                    wakes.append(last.at + last.delay)
                    held.append(each)
            return tuple(passed)

        creates, updates = due(plan.creates), due(plan.updates)
        # What goes may be on its way to what is not there yet: never away before that.
        updates = tuple(each for each in updates if not any(exchange(each, other) for other in held))
        deletes = () if wakes else due(plan.deletes, deletes=True)
        allowed = Plan(creates, updates, deletes, plan.unchanged)
        return Held(allowed, min(wakes, default=None)) if wakes else Held(plan, None)

    def done(self, name: str, value: Slice | None, now: float, *, refused: bool = False) -> bool:
        """A write was sent and answered; returns whether the same had been done before, in a row.

        Args:
            name: of the slice.
            value: what was sent; None = the slice was deleted.
            now: seconds that only move forward.
            refused: the API server said that it must not be so.
        """
        last = self._last.get(name)
        repeated = last is not None and _same(last.value, value) and not last.quiet(now)
        self._last[name] = _Last(value, now, last.times + 1 if last is not None and repeated else 0, refused)
        return repeated

    def contended(self, now: float) -> tuple[str, ...]:
        """Slices that somebody else keeps changing, sorted: repaired twice or more without a quiet time."""
        return tuple(
            sorted(n for n, each in self._last.items() if each.times >= 2 and not each.refused and not each.quiet(now))
        )

    def forget_deleted(self, now: float) -> None:
        """Drop what is remembered of slices that have been gone for long."""
        for name in [n for n, each in self._last.items() if each.value is None and each.quiet(now)]:
            del self._last[name]


def _same(one: Slice | None, other: Slice | None) -> bool:
    """Whether two writes ask for the same: all that is ours in a slice. None = it is gone."""
    if one is None or other is None:
        return one is other
    return (
        one.endpoints == other.endpoints
        and one.ports == other.ports
        and one.labels == other.labels
        and one.owners == other.owners
        and _ours(one) == _ours(other)
    )


def _ours(value: Slice) -> dict[str, str]:
    return {key: text for key, text in value.annotations.items() if key in OUR_ANNOTATIONS}
