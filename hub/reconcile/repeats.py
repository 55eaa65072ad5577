"""Delays repeated writes, so that the hub does not fight with another client over a slice. No clock, no I/O.

A slice that another client edited or deleted is repaired at once. If it has to be repaired again, the same write waits
1 s, then 2 s, 4 s, ... up to 60 s. A write that the API server refused waits from its first repetition. A write whose
content differs from the last one is not a repetition, and never waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from hub.decide.plan import OUR_ANNOTATIONS, Plan
from hub.decide.split import may_exchange
from hub.model import Slice

FIRST: Final = 1.0
CAP: Final = 60.0
"""Seconds that a repetition waits: the first one that waits at all, and the maximum."""
QUIET: Final = 60.0
"""Seconds after the end of its delay in which a slice needs no repetition before the delays start over."""


class AllowedPlan(NamedTuple):
    """A plan without the writes that must wait.

    Attributes:
        plan: the part that may be written now.
        wake_at: when the first write that waits may be done, by the clock of ``now``; None if no write waits.
    """

    plan: Plan
    wake_at: float | None


class _LastWrite(msgspec.Struct):
    """The last write of a slice.

    Attributes:
        value: the slice as it was sent; None = it was deleted.
        at: when it was written.
        times: how many equal writes came right before this one.
        refused: the API server refused it.
    """

    value: Slice | None
    at: float
    times: int = 0
    refused: bool = False

    @property
    def delay(self) -> float:
        """Seconds after ``at`` until the same write may be repeated; 0.0 for the first repair."""
        steps = self.times if self.refused else self.times - 1
        return min(CAP, FIRST * 2.0 ** min(steps, 10)) if steps >= 0 else 0.0

    def quiet(self, now: float) -> bool:
        """Whether the write has lasted for so long that the other client seems to have stopped undoing it."""
        return now > self.at + self.delay + QUIET


class Repeats:
    """The last write of each slice of one target."""

    def __init__(self) -> None:
        self._last: dict[str, _LastWrite] = {}

    def allow(self, plan: Plan, now: float) -> AllowedPlan:
        """Return the plan without repeated writes that must wait, and without deletes if any write waits."""
        wakes: list[float] = []
        held: list[Slice] = []

        def due(values: Iterable[Slice], *, deletes: bool = False) -> tuple[Slice, ...]:
            passed = []
            for slice_ in values:
                last = self._last.get(slice_.name)
                again = last is not None and _same(last.value, None if deletes else slice_)
                if last is None or not again or now >= last.at + last.delay:
                    passed.append(slice_)
                else:
                    wakes.append(last.at + last.delay)
                    held.append(slice_)
            return tuple(passed)

        creates, updates = due(plan.creates), due(plan.updates)
        # An address may move to a slice whose write waits. Until then, it must not be removed from its old slice.
        updates = tuple(update for update in updates if not any(may_exchange(update, other) for other in held))
        deletes = () if wakes else due(plan.deletes, deletes=True)
        allowed = Plan(creates, updates, deletes, plan.unchanged)
        return AllowedPlan(allowed, min(wakes, default=None)) if wakes else AllowedPlan(plan, None)

    def remember(self, name: str, value: Slice | None, now: float, *, refused: bool = False) -> bool:
        """Remember a write that was answered; return whether it repeats a recent write of the slice.

        Args:
            name: name of the slice.
            value: the slice as it was sent; None = it was deleted.
            now: seconds of a monotonic clock.
            refused: the API server refused the write.
        """
        last = self._last.get(name)
        repeated = last is not None and _same(last.value, value) and not last.quiet(now)
        self._last[name] = _LastWrite(value, now, last.times + 1 if last is not None and repeated else 0, refused)
        return repeated

    def contended(self, now: float) -> tuple[str, ...]:
        """Names of slices that another client keeps changing, sorted: repaired twice or more, and not quiet since."""
        return tuple(
            sorted(
                name
                for name, last in self._last.items()
                if last.times >= 2 and not last.refused and not last.quiet(now)
            )
        )

    def forget_deleted(self, now: float) -> None:
        """Forget deleted slices that have not come back for :data:`QUIET` seconds beyond their delay."""
        for name in [name for name, last in self._last.items() if last.value is None and last.quiet(now)]:
            del self._last[name]


def _same(one: Slice | None, other: Slice | None) -> bool:
    """Whether two writes are equal in everything that the hub decides; None = a delete.

    Annotations of other tools and the resourceVersion do not count.
    """
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
