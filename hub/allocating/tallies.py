"""Counts what happens to allocations, for the metrics.

The planner's passes see every call that ended and every record, so the counts are taken there. Counts of an allocation
end with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from hub.allocating.metrics_catalog import MOVE_SECONDS, RECONCILE_SECONDS
from hub.allocations.spec import Allocation, Entry, moment
from hub.allocations.view import Memories, Memory, Outcome
from hub.runtime.clock import Clock
from hub.runtime.tally import Tally

Result = Literal["success", "error"]
STEP_OF_PHASE: Final = {
    "Detaching": "detach",
    "Releasing": "detach",
    "Attaching": "attach",
    "RollingBack": "attach",
}
"""Phase of a record -> the step whose operation is followed in it."""


class Tallies:
    """Counts since the start of this process.

    Attributes:
        passes: (allocation, result) -> passes over it.
        seconds: allocation -> durations of these passes.
        steps: (allocation, "attach" or "detach", result) -> steps that ended.
        moves: (cluster, cause) -> seconds from the cause until the target is verified to have the address.
    """

    def __init__(self) -> None:
        self.passes: dict[tuple[str, Result], int] = {}
        self.seconds: dict[str, Tally] = {}
        self.steps: dict[tuple[str, str, Result], int] = {}
        self.moves: dict[tuple[str, str], Tally] = {}
        self._seen: dict[str, Outcome] = {}
        """Address -> its last outcome that is counted."""
        self._began: dict[str, tuple[str, float]] = {}
        """Address -> the id of its record, and when the cause of the move began."""

    def forget(self, allocation: str) -> None:
        """End the counts of an allocation that is gone."""
        self.passes = {key: count for key, count in self.passes.items() if key[0] != allocation}
        self.steps = {key: count for key, count in self.steps.items() if key[0] != allocation}
        self.seconds.pop(allocation, None)

    @contextmanager
    def passing(self, allocations: Iterable[Allocation], clock: Clock, failing: Mapping[str, bool]) -> Iterator[None]:
        """Time a pass over these allocations.

        Args:
            allocations: the allocations.
            clock: where time comes from.
            failing: allocation -> whether a person must act; read at the end of the pass.
        """
        started, done = clock.now(), False
        try:
            yield
            done = True
        finally:
            seconds = clock.now() - started
            for allocation in allocations:
                name = allocation.name
                key: tuple[str, Result] = (name, "success" if done and not failing.get(name) else "error")
                self.passes[key] = self.passes.get(key, 0) + 1
                self.seconds.setdefault(name, Tally(RECONCILE_SECONDS.buckets)).note(seconds)

    def ended(self, allocations: Sequence[Allocation], outcomes: Mapping[str, Outcome]) -> None:
        """Count attaches and detaches that ended since the last pass.

        An accepted operation counts when it ends. Only one step of an address runs at a time, so no outcome is missed.
        """
        for allocation in allocations:
            for address, entry in allocation.entries.items():
                outcome = outcomes.get(address)
                if outcome is None or outcome is self._seen.get(address):
                    continue
                self._seen[address] = outcome
                step = outcome.step
                if step == "follow":
                    step = STEP_OF_PHASE.get(entry.move.phase, "") if entry.move is not None else ""
                if step in ("attach", "detach") and not outcome.operation:
                    key: tuple[str, str, Result] = (allocation.name, step, "error" if outcome.error else "success")
                    self.steps[key] = self.steps.get(key, 0) + 1

    def recorded(self, entries: Iterable[Entry], memories: Memories, now: float) -> None:
        """Note new records: since when their causes have held, as far as the planner remembers it."""
        for entry in entries:
            move = entry.move
            if move is not None and self._began.get(entry.address, ("",))[0] != move.id:
                memory = memories.addresses.get(entry.address, Memory())
                since = memory.cause_since or memory.free or moment(move.started) or now
                self._began[entry.address] = (move.id, since)

    def moved(self, cluster: str, before: Entry | None, entry: Entry, now: float) -> None:
        """Note a move that is verified; ``before`` is the stored entry that ``entry`` replaces."""
        move = before.move if before is not None else None
        if move is None or move.phase != "Attaching" or entry.state != "Attached" or entry.node != move.to:
            return
        known, since = self._began.pop(entry.address, ("", now))
        if known == move.id:
            self.moves.setdefault((cluster, move.cause), Tally(MOVE_SECONDS.buckets)).note(max(0.0, now - since))
