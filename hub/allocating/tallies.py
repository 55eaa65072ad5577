"""Counts what happens to allocations, for the metrics.

The passes see every call that failed and every step that is verified, so the counts are taken there. Counts of an
allocation end with it.
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
        steps: (allocation, "attach" or "detach", result) -> verified steps, and failed calls.
        moves: (cluster, cause) -> seconds from the cause until the target is verified to have the address.
    """

    def __init__(self) -> None:
        self.passes: dict[tuple[str, Result], int] = {}
        self.seconds: dict[str, Tally] = {}
        self.steps: dict[tuple[str, str, Result], int] = {}
        self.moves: dict[tuple[str, str], Tally] = {}
        self._seen: dict[str, Outcome] = {}
        """Address -> its last outcome that was looked at."""
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

    def failed(self, allocations: Sequence[Allocation], outcomes: Mapping[str, Outcome]) -> None:
        """Count attaches and detaches that failed since the last pass, as calls or as operations that ended ill.

        Only one step of an address runs at a time, so no outcome is missed. Several allocations may claim an address;
        the call belongs to the one that has the record.
        """
        for allocation in allocations:
            for address, entry in allocation.entries.items():
                outcome = outcomes.get(address)
                if entry.move is None or outcome is None or outcome is self._seen.get(address):
                    continue
                self._seen[address] = outcome
                step = outcome.step if outcome.step != "follow" else STEP_OF_PHASE.get(entry.move.phase, "")
                if outcome.error and step in ("attach", "detach"):
                    self._step(allocation.name, step, "error")

    def stored(self, allocation: Allocation, entries: Iterable[Entry], now: float) -> None:
        """Count attaches, detaches and moves that are verified.

        A call that succeeded does not count: a step may take several of them.

        Args:
            allocation: the allocation with its entries until now.
            entries: the entries that have replaced them.
            now: the time.
        """
        new = {entry.address: entry for entry in entries}
        for address, old in allocation.entries.items():
            entry, move = new.get(address, Entry(address)), old.move
            if move is None:
                continue
            step = STEP_OF_PHASE.get(move.phase)
            if step == "detach" and _detached(entry):
                self._step(allocation.name, step, "success")
            elif step == "attach" and _attached(entry, move.to):
                self._step(allocation.name, step, "success")
                known, since = self._began.pop(address, ("", now))
                if known == move.id and move.phase == "Attaching":
                    tally = self.moves.setdefault((allocation.cluster, move.cause), Tally(MOVE_SECONDS.buckets))
                    tally.note(max(0.0, now - since))

    def _step(self, allocation: str, step: str, result: Result) -> None:
        key = (allocation, step, result)
        self.steps[key] = self.steps.get(key, 0) + 1

    def recorded(self, entries: Iterable[Entry], memories: Memories, now: float) -> None:
        """Note new records: since when their causes have held, as far as the planner remembers it."""
        for entry in entries:
            move = entry.move
            if move is not None and self._began.get(entry.address, ("",))[0] != move.id:
                memory = memories.addresses.get(entry.address, Memory())
                since = memory.cause_since or memory.free or moment(move.started) or now
                self._began[entry.address] = (move.id, since)


def _detached(entry: Entry) -> bool:
    """Whether the entry that follows a record of a detach says that the address is free."""
    if entry.move is not None:
        return entry.move.phase in ("Attaching", "RollingBack", "Restoring")
    return entry.state in ("", "Pending")


def _attached(entry: Entry, to: str) -> bool:
    """Whether the entry that follows a record of an attach says that the node ``to`` has the address."""
    done = entry.move.phase == "Restoring" if entry.move is not None else entry.state in ("Attached", "Leaving")
    return done and entry.node == to
