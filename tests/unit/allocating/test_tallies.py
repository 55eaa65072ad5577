"""Counts of allocations: what counts as a step, a pass and a move, and when counts end."""

from __future__ import annotations

from typing import Any

import pytest

from hub.allocating.tallies import Tallies
from hub.allocations.spec import Allocation, Entry, Move, Status, stamp
from hub.allocations.view import Memories, Memory, Outcome
from tests.support.clocks import ManualClock

ADDRESS, NOW = "34.1.2.3", 1.8e9


def allocation(*entries: Entry, name: str = "web") -> Allocation:
    """An allocation with these stored entries."""
    return Allocation(name, f"uid-{name}", ("", name), (ADDRESS,), status=Status(addresses=entries))


def entry(phase: str = "", **more: Any) -> Entry:
    """An entry of the address, with a record in this phase."""
    move = Move("m1", "Drained", phase, "n1", "n2", started=stamp(NOW)) if phase else None
    return Entry(ADDRESS, move=move, **more)


def outcome(step: str, **more: Any) -> Outcome:
    """A call that ended."""
    return Outcome(step, "token", NOW, NOW, **more)


@pytest.mark.parametrize(
    ("ended", "phase", "step"),
    [
        (outcome("attach", error="transient"), "Attaching", "attach"),
        (outcome("follow", error="conflict"), "Detaching", "detach"),
        (outcome("follow", error="conflict"), "Releasing", "detach"),
        (outcome("follow", error="timeout"), "Attaching", "attach"),
        (outcome("follow", error="timeout"), "RollingBack", "attach"),
        (outcome("follow", error="timeout"), "Restoring", ""),
        (outcome("follow", error="timeout"), "", ""),
        (outcome("restore", error="transient"), "Restoring", ""),
        (outcome("attach"), "Attaching", ""),
        (outcome("attach", operation="operation-1"), "Attaching", ""),
    ],
)
def test_failed_calls_count_once(ended: Outcome, phase: str, step: str) -> None:
    """A failed call is an error, and so is an operation that ends ill; a restore is neither attach nor detach."""
    tallies = Tallies()
    for _ in range(2):
        tallies.failed([allocation(entry(phase))], {ADDRESS: ended})
    assert tallies.steps == ({("web", step, "error"): 1} if step else {})


def test_failed_call_counts_for_the_allocation_that_has_the_record() -> None:
    """Another allocation that claims the same address and comes first in the pass counts nothing."""
    tallies = Tallies()
    rival = allocation(entry(state="Conflict"), name="api")
    tallies.failed([rival, allocation(entry("Attaching"))], {ADDRESS: outcome("attach", error="transient")})
    assert tallies.steps == {("web", "attach", "error"): 1}


def test_equal_outcomes_of_two_calls_count_twice() -> None:
    """Two failed calls at the same time of a coarse clock are two errors."""
    tallies = Tallies()
    for _ in range(2):
        tallies.failed([allocation(entry("Attaching"))], {ADDRESS: outcome("attach", error="quota")})
    assert tallies.steps == {("web", "attach", "error"): 2}


AT_TARGET = entry(state="Attached", node="n2")


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        (entry("Detaching"), entry("Attaching"), "detach"),
        (entry("Detaching"), entry("RollingBack"), "detach"),
        (entry("Detaching"), entry(state="Pending"), "detach"),
        (entry("Detaching"), entry("Detaching"), ""),
        (entry("Detaching"), entry(state="Attached", node="n1"), ""),
        (entry("Detaching"), entry(state="Elsewhere"), ""),
        (entry("Releasing"), entry("Restoring"), "detach"),
        (entry("Releasing"), None, "detach"),
        (entry("Attaching"), AT_TARGET, "attach"),
        (entry("Attaching"), entry("Restoring", state="Attaching", node="n2"), "attach"),
        (entry("Attaching"), entry(state="Leaving", node="n2"), "attach"),
        (entry("RollingBack"), AT_TARGET, "attach"),
        (entry("Attaching"), entry("Attaching"), ""),
        (entry("Attaching"), entry(state="Attached", node="n3"), ""),
        (entry("Attaching"), entry(state="Unknown", node="n2"), ""),
        (entry("Restoring", node="n2"), AT_TARGET, ""),
        (entry(state="Pending"), AT_TARGET, ""),
    ],
)
def test_steps_count_when_they_are_verified(before: Entry, after: Entry | None, step: str) -> None:
    """A detach counts when the address is free, an attach when its target has it; what others did does not count."""
    tallies = Tallies()
    tallies.stored(allocation(before), [after] if after is not None else [], NOW)
    assert tallies.steps == ({("web", step, "success"): 1} if step else {})


def test_pass_is_an_error_if_it_fails_or_a_person_must_act() -> None:
    """A pass counts for each of its allocations, with its duration."""
    tallies, clock, failing = Tallies(), ManualClock(), {"web": False}
    both = allocation(name="api"), allocation()
    with tallies.passing(both, clock, failing):
        clock.advance(0.2)
        failing["web"] = True
    with pytest.raises(ValueError, match="refused"), tallies.passing(both[:1], clock, {}):
        raise ValueError("refused")
    assert tallies.passes == {("api", "success"): 1, ("web", "error"): 1, ("api", "error"): 1}
    assert tallies.seconds["web"].counts[:3] == [0, 1, 0]
    assert tallies.seconds["web"].sum == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("memory", "seconds"), [(Memory(cause_since=NOW - 7), 7.0), (Memory(free=NOW - 2), 2.0), (Memory(), 0.0)]
)
def test_move_lasts_from_its_cause_to_the_verified_target(memory: Memory, seconds: float) -> None:
    """A move begins with its cause, or with the free address, and otherwise with its record."""
    tallies = Tallies()
    tallies.recorded([entry("Detaching")], Memories({ADDRESS: memory}), NOW)
    tallies.recorded([entry("Attaching")], Memories(), NOW + 5)
    tallies.stored(allocation(entry("Attaching")), [AT_TARGET], NOW + 10)
    tally = tallies.moves["local", "Drained"]
    assert sum(tally.counts) == 1
    assert tally.sum == pytest.approx(seconds + 10)


def test_rollback_is_no_move() -> None:
    """An address that went back to its node has moved nowhere."""
    tallies = Tallies()
    tallies.recorded([entry("Detaching")], Memories(), NOW)
    tallies.stored(allocation(entry("RollingBack")), [AT_TARGET], NOW + 10)
    assert tallies.moves == {}


def test_counts_end_with_their_allocation() -> None:
    """An allocation of the same name begins at 0; the others keep their counts."""
    tallies, both = Tallies(), (allocation(entry("Attaching")), allocation(name="api"))
    with tallies.passing(both, ManualClock(), {}):
        tallies.failed(both, {ADDRESS: outcome("attach", error="quota")})
    assert tallies.steps == {("web", "attach", "error"): 1}
    tallies.forget("web")
    assert (tallies.passes, tallies.steps, list(tallies.seconds)) == ({("api", "success"): 1}, {}, ["api"])
