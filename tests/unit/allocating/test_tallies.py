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
    ("ended", "phase", "counted"),
    [
        (outcome("attach"), "Attaching", ("attach", "success")),
        (outcome("attach", error="transient"), "Attaching", ("attach", "error")),
        (outcome("attach", operation="operation-1"), "Attaching", None),
        (outcome("follow"), "Attaching", ("attach", "success")),
        (outcome("follow"), "RollingBack", ("attach", "success")),
        (outcome("follow", error="conflict"), "Detaching", ("detach", "error")),
        (outcome("follow"), "Releasing", ("detach", "success")),
        (outcome("follow"), "Restoring", None),
        (outcome("follow"), "", None),
        (outcome("detach"), "Detaching", ("detach", "success")),
        (outcome("restore", error="transient"), "Restoring", None),
    ],
)
def test_steps_count_when_they_end(ended: Outcome, phase: str, counted: tuple[str, str] | None) -> None:
    """A call counts once, an accepted operation with its end, and a restore not at all."""
    tallies = Tallies()
    for _ in range(2):
        tallies.ended([allocation(entry(phase))], {ADDRESS: ended})
    assert tallies.steps == ({("web", *counted): 1} if counted else {})


def test_equal_outcomes_of_two_calls_count_twice() -> None:
    """Two failed calls at the same time of a coarse clock are two errors."""
    tallies = Tallies()
    for _ in range(2):
        tallies.ended([allocation(entry("Attaching"))], {ADDRESS: outcome("attach", error="quota")})
    assert tallies.steps == {("web", "attach", "error"): 2}


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
    """A move begins with its cause, or with the free address, and otherwise with its record; it counts once."""
    tallies = Tallies()
    tallies.recorded([entry("Detaching")], Memories({ADDRESS: memory}), NOW)
    tallies.recorded([entry("Attaching")], Memories(), NOW + 5)
    done = entry(state="Attached", node="n2")
    for _ in range(2):
        tallies.moved("eu", entry("Attaching"), done, NOW + 10)
    tally = tallies.moves["eu", "Drained"]
    assert (sum(tally.counts), tally.sum) == (1, pytest.approx(seconds + 10))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, entry(state="Attached", node="n2")),
        (entry(state="Pending"), entry(state="Attached", node="n2")),
        (entry("RollingBack"), entry(state="Attached", node="n2")),
        (entry("Attaching"), entry(state="Attached", node="n3")),
        (entry("Attaching"), entry(state="Unknown", node="n2")),
    ],
)
def test_other_changes_are_no_moves(before: Entry | None, after: Entry) -> None:
    """An adopted address, a rollback, and an address that another node got, are not counted as moves."""
    tallies = Tallies()
    tallies.recorded([entry("Attaching")], Memories(), NOW)
    tallies.moved("eu", before, after, NOW + 10)
    assert tallies.moves == {}


def test_counts_end_with_their_allocation() -> None:
    """An allocation of the same name begins at 0; the others keep their counts."""
    tallies, both = Tallies(), (allocation(entry("Attaching")), allocation(name="api"))
    with tallies.passing(both, ManualClock(), {}):
        tallies.ended(both, {ADDRESS: outcome("attach")})
    tallies.forget("web")
    assert (tallies.passes, tallies.steps, list(tallies.seconds)) == ({("api", "success"): 1}, {}, ["api"])
