"""What is remembered of a target's writes, and for how long."""

from __future__ import annotations

from hub.decide.plan import Plan
from hub.errors import Forbidden
from hub.model import Finding
from hub.reconcile.memory import NAMESPACE_FIRST, REFUSED_FOR, WriteMemory
from hub.reconcile.writer import Outcome
from tests.support import build

SLICE = build.slice("s-0", build.endpoints(1))
PLAN = Plan(creates=(SLICE,))


def reasons(memory: WriteMemory, now: float = 0.0) -> list[str]:
    """Reasons of the memory's findings."""
    return [each.reason for each in memory.findings(now)]


def test_a_refused_address_is_tried_again_later() -> None:
    """A refused address is left out and reported for ten minutes, then tried again."""
    memory = WriteMemory()
    news = memory.note(Outcome(refused_addresses={"10.0.0.1": "no"}), "u", 0.0)
    assert (memory.refused, reasons(memory), len(news)) == ({"10.0.0.1"}, ["InvalidAddressSkipped"], 1)
    assert memory.expire(10.0) == REFUSED_FOR - 10.0
    memory.expire(REFUSED_FOR)
    assert (memory.refused, reasons(memory)) == (frozenset(), [])


def test_foreign_name_is_logged_once() -> None:
    """A foreign slice's name is logged once, and stays taken."""
    memory = WriteMemory()
    assert len(memory.note(Outcome(foreign={"s-0"}), "u", 0.0)) == 1
    assert memory.note(Outcome(foreign={"s-0"}), "u", 1.0) == []
    assert (memory.foreign, reasons(memory)) == ({"s-0"}, ["ForeignSlice"])


def test_a_missing_namespace_is_waited_for() -> None:
    """Writes into a missing namespace wait for growing delays, and are logged once."""
    memory = WriteMemory()
    assert len(memory.note(Outcome(missing_namespace=True), "u", 0.0)) == 1
    held = memory.allow(PLAN, "u", 0.1)
    assert held.plan.writes == 0
    assert NAMESPACE_FIRST <= (held.wake_at or 0.0) <= NAMESPACE_FIRST * 1.2
    assert memory.allow(PLAN, "u", held.wake_at or 0.0).plan is PLAN, "a pass at the time it asked for waits again"
    assert memory.note(Outcome(missing_namespace=True), "u", 3.0) == []
    assert (memory.allow(PLAN, "u", 3.0).wake_at or 0.0) - 3.0 >= 2 * NAMESPACE_FIRST


def test_a_new_service_ends_the_wait_for_a_namespace() -> None:
    """A Service with another UID does not wait: its namespace exists."""
    memory = WriteMemory()
    memory.note(Outcome(missing_namespace=True), "old", 0.0)
    assert memory.allow(PLAN, "new", 0.1).plan is PLAN


def test_a_blocked_slice_is_a_problem_until_it_is_written() -> None:
    """A blocked slice is a problem, with the API server's message, until a write of it succeeds."""
    memory = WriteMemory()
    memory.note(Outcome(blocked=[(SLICE, "not here")]), "u", 0.0)
    assert (memory.problem, reasons(memory)) == ("slice s-0 is refused: not here", ["SliceRefused"])
    memory.note(Outcome(done=[("create", SLICE)]), "u", 5.0)
    assert (memory.problem, reasons(memory)) == ("", [])


def test_plan_without_writes_ends_a_blocked_slice() -> None:
    """A plan without writes ends the problem of a blocked slice."""
    memory = WriteMemory()
    memory.note(Outcome(blocked=[(SLICE, "not here")]), "u", 0.0)
    memory.settled()
    assert (memory.problem, reasons(memory)) == ("", [])


def test_a_failure_is_the_problem_in_the_servers_words() -> None:
    """The problem after a failure is the server's status and message."""
    memory = WriteMemory()
    memory.note(Outcome(failure=Forbidden(403, "Forbidden", "cannot create")), "u", 0.0)
    assert memory.problem == "403: cannot create"


def test_the_next_look_is_when_the_first_refusal_ends() -> None:
    """The next pass is due when the first refusal of an address ends; a foreign name alone causes no pass."""
    memory = WriteMemory()
    assert memory.expire(0.0) is None
    memory.note(Outcome(foreign={"s-0"}), "u", 0.0)
    assert memory.expire(1.0) is None
    memory.note(Outcome(refused_addresses={"10.0.0.1": "no"}), "u", 5.0)
    memory.note(Outcome(refused_addresses={"10.0.0.2": "never"}), "u", 10.0)
    assert memory.expire(15.0) == REFUSED_FOR - 10.0
    memory.expire(REFUSED_FOR)
    assert memory.foreign == frozenset()
    assert memory.refused == {"10.0.0.1", "10.0.0.2"}


def test_finding_names_the_first_refused_slice() -> None:
    """A finding has the first refused name with the API server's message, and all names as its objects."""
    memory = WriteMemory()
    memory.note(Outcome(refused_addresses={"10.0.0.2": "never", "10.0.0.1": "no"}), "u", 0.0)
    memory.note(Outcome(blocked=[(build.slice("s-1"), "later"), (SLICE, "not here")]), "u", 0.0)
    assert [(each.message, each.objects) for each in memory.findings(0.0)] == [
        ("the API server refuses 2 addresses, such as 10.0.0.1: no", ("10.0.0.1", "10.0.0.2")),
        ("the API server refuses 2 slices, such as s-0: not here", ("s-0", "s-1")),
    ]


def test_refusal_is_logged_once_per_message() -> None:
    """A refusal with the same message is not logged again."""
    memory = WriteMemory()
    said = [memory.note(Outcome(blocked=[(SLICE, why)]), "u", 0.0) for why in ("no", "no", "never")]
    assert said == [["slice s-0 is refused: no"], [], ["slice s-0 is refused: never"]]


def test_delete_ends_the_problem_of_a_blocked_slice() -> None:
    """A successful delete ends the problem of a blocked slice, as any other write does."""
    memory = WriteMemory()
    memory.note(Outcome(blocked=[(SLICE, "not here")]), "u", 0.0)
    memory.note(Outcome(done=[("delete", SLICE)]), "u", 1.0)
    assert memory.problem == ""
    memory.note(Outcome(done=[("delete", SLICE)]), "u", 2.0)
    assert memory.allow(Plan(deletes=(SLICE,)), "u", 2.5).plan.writes == 0, "it was deleted twice in a row"


def test_deletions_do_not_wait_for_a_namespace() -> None:
    """In a missing namespace creates and updates wait, deletes do not."""
    memory = WriteMemory()
    memory.note(Outcome(missing_namespace=True), "u", 0.0)
    assert memory.allow(Plan(deletes=(SLICE,)), "u", 0.1).plan.writes == 1
    assert memory.allow(Plan(updates=(SLICE,)), "u", 0.1).plan.writes == 0
    assert memory.allow(Plan(creates=(SLICE,), unchanged=3), "u", 0.1).plan.unchanged == 3


def test_a_failure_without_a_message_is_named_by_its_reason() -> None:
    """A failure without a message is described by its reason."""
    memory = WriteMemory()
    memory.note(Outcome(failure=Forbidden(403, "Forbidden", "")), "u", 0.0)
    assert memory.problem == "403: Forbidden"


def test_a_lost_answer_is_a_problem_until_the_next_one() -> None:
    """A write without an answer is a problem until a plan has no writes."""
    memory = WriteMemory()
    memory.unanswered("no answer")
    assert memory.problem == "no answer"
    memory.settled()
    assert memory.problem == ""


def test_findings_about_names_and_contended_slices() -> None:
    """Names of other controllers and contended slices are reported, each with all names as objects."""
    memory = WriteMemory()
    memory.note(Outcome(foreign={"s-2", "s-1"}), "u", 0.0)
    for now in (0.0, 1.0, 3.0):
        memory.note(Outcome(done=[("update", SLICE)]), "u", now)
    assert memory.findings(3.0) == [
        Finding("ForeignSlice", "names in use by slices of other controllers", ("s-1", "s-2")),
        Finding(
            "SliceContended",
            "another client keeps changing slices; the hub restores them after growing delays",
            ("s-0",),
        ),
    ]


def test_warnings_of_all_kinds_in_order() -> None:
    """An outcome warns about addresses, foreign names and slices, each sorted, and the problem names the slices."""
    memory = WriteMemory()
    other = build.slice("s-1", build.endpoints(1))
    outcome = Outcome(
        refused_addresses={"10.0.0.2": "never", "10.0.0.1": "no"},
        foreign={"s-9", "s-8"},
        blocked=[(other, "later"), (SLICE, "not here")],
    )
    assert memory.note(outcome, "u", 0.0) == [
        "the API server refuses 10.0.0.1: no; it is left out",
        "the API server refuses 10.0.0.2: never; it is left out",
        "slice s-8 is not ours; another name is used",
        "slice s-9 is not ours; another name is used",
        "slice s-1 is refused: later",
        "slice s-0 is refused: not here",
    ]
    assert memory.problem == "slice s-0 is refused: not here; slice s-1 is refused: later"
    assert memory.allow(PLAN, "u", 0.5).wake_at == 1.0, "a blocked slice waits before it is written again"


def test_blamed_slice_is_a_problem_from_its_second_refusal_on() -> None:
    """A slice with a refused address is a problem only if the same content is refused again."""
    memory = WriteMemory()
    outcome = Outcome(blamed=[(SLICE, "10.0.0.1: no")])
    assert (memory.note(outcome, "u", 0.0), memory.problem) == ([], "")
    assert memory.note(outcome, "u", 1.0) == ["slice s-0 is refused: 10.0.0.1: no"]
    assert memory.problem == "slice s-0 is refused: 10.0.0.1: no"
