"""A repeated write waits; a write with another content never does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hub.decide.plan import Plan
from hub.model import ANNOTATION_LEASE, OwnerReference, Port, Slice
from hub.reconcile.repeats import CAP, QUIET, Repeats
from tests.support import build

ONE = build.slice("s-0", build.endpoints(1))
OTHER = build.slice("s-0", build.endpoints(2))


def delays(repeats: Repeats, value: Slice, rounds: int) -> list[float]:
    """Seconds that each of these repeated writes has to wait."""
    now, found = 1000.0, []
    for _ in range(rounds):
        held = repeats.allow(Plan(updates=(value,)), now)
        wait = 0.0 if held.wake_at is None else held.wake_at - now
        found.append(wait)
        now += wait
        assert repeats.allow(Plan(updates=(value,)), now).plan.writes == 1
        repeats.remember(value.name, value, now)
    return found


def test_a_first_write_waits_for_nothing() -> None:
    """A write that was never done before may be done at once, and the plan is returned unchanged."""
    plan = Plan(creates=(ONE,), unchanged=3)
    assert Repeats().allow(plan, 0.0).plan is plan


def test_repairs_wait_longer_and_longer() -> None:
    """The first write and its first repair are done at once; then delays double from 1 s to 60 s."""
    assert delays(Repeats(), ONE, 10) == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_write_with_new_content_never_waits() -> None:
    """A write with new content is done at once, even if the slice is contended."""
    repeats = Repeats()
    delays(repeats, ONE, 5)
    assert repeats.allow(Plan(updates=(OTHER,)), 1008.0).plan.updates == (OTHER,)


@pytest.mark.parametrize(
    "change",
    [
        {"ports": (Port("https", 30444),)},
        {"labels": {**ONE.labels, "more": "1"}},
        {"owners": (OwnerReference("v1", "Service", "payments", "another uid"),)},
        {"annotations": {ANNOTATION_LEASE: "hub/two"}},
    ],
)
def test_write_with_any_other_content_never_waits(change: dict[str, Any]) -> None:
    """A write is no repetition if its ports, labels, owners or annotations of the hub differ from the last one."""
    repeats = Repeats()
    delays(repeats, ONE, 5)
    changed = msgspec.structs.replace(ONE, **change)
    assert repeats.allow(Plan(updates=(changed,)), 1007.5) == (Plan(updates=(changed,)), None)
    assert repeats.remember("s-0", changed, 1007.5) is False


def test_foreign_annotation_does_not_change_the_content() -> None:
    """A slice with an added annotation of another tool still counts as the same content."""
    repeats = Repeats()
    delays(repeats, ONE, 5)
    annotated = msgspec.structs.replace(ONE, annotations={**ONE.annotations, "tool.example/x": "1"})
    assert repeats.allow(Plan(updates=(annotated,)), 1008.0).plan.writes == 0


def test_a_slice_made_again_is_a_repetition() -> None:
    """A create after updates with the same content is a repetition."""
    repeats = Repeats()
    delays(repeats, ONE, 3)
    assert repeats.allow(Plan(creates=(ONE,)), 1001.5).plan.creates == ()


def test_deleting_again_is_a_repetition() -> None:
    """Deletes of a slice that another client keeps creating wait for growing delays."""
    repeats = Repeats()
    repeats.remember("s-0", None, 0.0)
    repeats.remember("s-0", None, 1.0)
    assert repeats.allow(Plan(deletes=(ONE,)), 1.5).plan.deletes == ()
    assert repeats.allow(Plan(deletes=(ONE,)), 2.0).plan.deletes == (ONE,)


def test_contended_slice_does_not_delay_others() -> None:
    """Only the repeated write waits; the other slices of the plan are written."""
    repeats = Repeats()
    delays(repeats, ONE, 5)
    fine = build.slice("s-1", build.endpoints(1, 5))
    held = repeats.allow(Plan(updates=(ONE, fine)), 1007.5)
    assert (held.plan.updates, held.wake_at) == ((fine,), 1015.0)


def test_nothing_is_deleted_while_another_write_waits() -> None:
    """No slice is deleted while a refused one waits: the endpoints may be on their way from one to the other."""
    repeats = Repeats()
    plan = Plan(creates=(ONE,), deletes=(build.slice("s-1", build.endpoints(1)),))
    repeats.remember("s-0", ONE, 0.0, refused=True)
    assert repeats.allow(plan, 0.5) == (Plan(), 1.0)
    assert repeats.allow(plan, 1.0).plan is plan


def test_an_endpoint_stays_while_the_slice_with_its_new_ports_waits() -> None:
    """A slice keeps its endpoints while a slice with other ports waits that may be gaining them."""
    repeats = Repeats()
    repeats.remember("s-0", ONE, 0.0, refused=True)
    gives = msgspec.structs.replace(build.slice("s-1", build.endpoints(1, 5)), ports=(Port("https", 30444),))
    assert repeats.allow(Plan(updates=(ONE, gives)), 0.5).plan.updates == ()
    assert repeats.allow(Plan(updates=(ONE, gives)), 1.0).plan.updates == (ONE, gives)


def test_a_refusal_delays_the_very_first_repetition() -> None:
    """A refused write is repeated after 1 s, then 2 s: even its first repetition waits."""
    repeats = Repeats()
    repeats.remember("s-0", ONE, 0.0, refused=True)
    assert repeats.allow(Plan(creates=(ONE,)), 0.5).wake_at == 1.0
    repeats.remember("s-0", ONE, 1.0, refused=True)
    assert repeats.allow(Plan(creates=(ONE,)), 1.5).wake_at == 3.0


def test_contention_is_reported_from_the_second_repair_on() -> None:
    """Contention is reported after the second repair, not after the first."""
    repeats = Repeats()
    repeats.remember("s-0", ONE, 0.0)
    repeats.remember("s-0", ONE, 1.0)
    assert repeats.contended(1.0) == ()
    repeats.remember("s-0", ONE, 2.0)
    assert repeats.contended(2.0) == ("s-0",)


def test_a_quiet_time_ends_contention() -> None:
    """After a quiet time contention is no longer reported, and the next repair is done at once."""
    repeats = Repeats()
    delays(repeats, ONE, 4)
    later = 1003.0 + CAP + QUIET + 1
    assert repeats.contended(later) == ()
    repeats.remember("s-0", ONE, later)
    assert repeats.allow(Plan(updates=(ONE,)), later).wake_at is None


def test_a_repetition_is_recent_until_a_minute_after_its_delay() -> None:
    """A write repeats the last one until exactly 60 s after the end of the last delay, however long that was."""
    repeats = Repeats()
    moments = [0.0, QUIET, 2 * QUIET + 1.0, 3 * QUIET + 3.5, 4 * QUIET + 3.6]
    assert [repeats.remember("s-0", ONE, now) for now in moments] == [False, True, True, False, False]


def test_contention_lasts_until_a_minute_after_the_delay() -> None:
    """Slices repaired twice are contended, sorted by name, until 60 s after their delay; refused ones are not."""
    repeats = Repeats()
    for now in (0.0, 1.0, 2.0):
        for name in ("s-1", "s-0"):
            repeats.remember(name, ONE, now)
        repeats.remember("s-2", ONE, now, refused=True)
    assert repeats.contended(2.0 + 2.0 + QUIET) == ("s-0", "s-1")
    assert repeats.contended(2.0 + 2.0 + QUIET + 0.1) == ()


def test_recent_deletes_are_remembered() -> None:
    """A slice that another client keeps creating is still delayed after the deletes that lasted are forgotten."""
    repeats = Repeats()
    repeats.remember("s-0", None, 0.0)
    repeats.remember("s-0", None, 1.0)
    repeats.forget_deleted(1.5)
    assert repeats.allow(Plan(deletes=(ONE,)), 1.5) == (Plan(), 2.0)
