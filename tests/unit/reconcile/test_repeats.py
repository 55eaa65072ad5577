"""The same write again waits, another one never does."""

from __future__ import annotations

import msgspec

from hub.decide.plan import Plan
from hub.model import Port, Slice
from hub.reconcile.repeats import CAP, QUIET, Repeats
from tests.support import build

ONE = build.slice("s-0", build.endpoints(1))
OTHER = build.slice("s-0", build.endpoints(2))


def delays(repeats: Repeats, value: Slice, rounds: int) -> list[float]:
    """How long each of these repairs in a row has to wait."""
    now, found = 1000.0, []
    for _ in range(rounds):
        held = repeats.allow(Plan(updates=(value,)), now)
        wait = 0.0 if held.wake_at is None else held.wake_at - now
        found.append(wait)
        now += wait
        assert repeats.allow(Plan(updates=(value,)), now).plan.writes == 1
        repeats.done(value.name, value, now)
    return found


def test_a_first_write_waits_for_nothing() -> None:
    """What was never done before may be done, and the plan is handed on as it is."""
    plan = Plan(creates=(ONE,), unchanged=3)
    assert Repeats().allow(plan, 0.0).plan is plan


def test_repairs_wait_longer_and_longer() -> None:
    """The write, its first repair at once, then 1 s doubling to 60 s."""
    assert delays(Repeats(), ONE, 10) == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_another_content_never_waits() -> None:
    """A change of what is wanted goes through at once, however contended the slice is."""
    repeats = Repeats()
    delays(repeats, ONE, 5)
    assert repeats.allow(Plan(updates=(OTHER,)), 1008.0).plan.updates == (OTHER,)


def test_what_others_annotate_makes_no_difference() -> None:
    """Somebody who adds an annotation with each edit does not evade the delay."""
    repeats = Repeats()
    delays(repeats, ONE, 5)
    annotated = msgspec.structs.replace(ONE, annotations={**ONE.annotations, "tool.example/x": "1"})
    assert repeats.allow(Plan(updates=(annotated,)), 1008.0).plan.writes == 0


def test_a_slice_made_again_is_a_repetition() -> None:
    """Create, update: what counts is the content."""
    repeats = Repeats()
    delays(repeats, ONE, 3)
    assert repeats.allow(Plan(creates=(ONE,)), 1001.5).plan.creates == ()


def test_deleting_again_is_a_repetition() -> None:
    """A slice that somebody keeps bringing back is deleted with growing delays."""
    repeats = Repeats()
    repeats.done("s-0", None, 0.0)
    repeats.done("s-0", None, 1.0)
    assert repeats.allow(Plan(deletes=(ONE,)), 1.5).plan.deletes == ()
    assert repeats.allow(Plan(deletes=(ONE,)), 2.0).plan.deletes == (ONE,)


def test_one_contended_slice_holds_up_no_other() -> None:
    """Only the repetition is left out."""
    repeats = Repeats()
    delays(repeats, ONE, 5)
    fine = build.slice("s-1", build.endpoints(1, 5))
    held = repeats.allow(Plan(updates=(ONE, fine)), 1007.5)
    assert (held.plan.updates, held.wake_at) == ((fine,), 1015.0)


def test_nothing_is_deleted_while_another_write_waits() -> None:
    """What the API server refuses may be where the endpoints of the slice that goes are to be."""
    repeats = Repeats()
    plan = Plan(creates=(ONE,), deletes=(build.slice("s-1", build.endpoints(1)),))
    repeats.done("s-0", ONE, 0.0, refused=True)
    assert repeats.allow(plan, 0.5) == (Plan(), 1.0)
    assert repeats.allow(plan, 1.0).plan is plan


def test_an_endpoint_stays_while_the_slice_with_its_new_ports_waits() -> None:
    """Slices of one source with other ports may exchange endpoints."""
    repeats = Repeats()
    repeats.done("s-0", ONE, 0.0, refused=True)
    gives = msgspec.structs.replace(build.slice("s-1", build.endpoints(1, 5)), ports=(Port("https", 30444),))
    assert repeats.allow(Plan(updates=(ONE, gives)), 0.5).plan.updates == ()
    assert repeats.allow(Plan(updates=(ONE, gives)), 1.0).plan.updates == (ONE, gives)


def test_a_refusal_delays_the_very_first_repetition() -> None:
    """What the API server would not take is tried again after 1, 2, 4 s."""
    repeats = Repeats()
    repeats.done("s-0", ONE, 0.0, refused=True)
    assert repeats.allow(Plan(creates=(ONE,)), 0.5).wake_at == 1.0
    repeats.done("s-0", ONE, 1.0, refused=True)
    assert repeats.allow(Plan(creates=(ONE,)), 1.5).wake_at == 3.0


def test_contention_is_reported_from_the_second_repair_on() -> None:
    """Once may be a slip; twice is somebody else's opinion."""
    repeats = Repeats()
    repeats.done("s-0", ONE, 0.0)
    repeats.done("s-0", ONE, 1.0)
    assert repeats.contended(1.0) == ()
    repeats.done("s-0", ONE, 2.0)
    assert repeats.contended(2.0) == ("s-0",)


def test_a_quiet_time_ends_contention() -> None:
    """Whoever stopped is forgotten: no report, and the next repair is at once."""
    repeats = Repeats()
    delays(repeats, ONE, 4)
    later = 1003.0 + CAP + QUIET + 1
    assert repeats.contended(later) == ()
    repeats.done("s-0", ONE, later)
    assert repeats.allow(Plan(updates=(ONE,)), later).wake_at is None
