"""What a target remembers of its writes, and for how long."""

from __future__ import annotations

from hub.apply.memory import AWAY_FIRST, REFUSED_FOR, WriteMemory
from hub.apply.writer import Outcome
from hub.errors import Forbidden
from hub.plan.plan import Plan
from tests.support import build

SLICE = build.slice("s-0", build.endpoints(1))
PLAN = Plan(creates=(SLICE,))


def reasons(memory: WriteMemory, now: float = 0.0) -> list[str]:
    """Reasons of its findings."""
    return [each.reason for each in memory.findings(now)]


def test_a_refused_address_is_tried_again_later() -> None:
    """It stays out and is reported for ten minutes, then counts as any other."""
    memory = WriteMemory()
    news = memory.note(Outcome(refused_addresses={"10.0.0.1": "no"}), "u", 0.0)
    assert (memory.refused, reasons(memory), len(news)) == ({"10.0.0.1"}, ["InvalidAddressSkipped"], 1)
    assert memory.expire(10.0) == REFUSED_FOR - 10.0
    memory.expire(REFUSED_FOR)
    assert (memory.refused, reasons(memory)) == (frozenset(), [])


def test_a_foreign_name_is_news_once() -> None:
    """The second time nobody is told, but it stays taken."""
    memory = WriteMemory()
    assert len(memory.note(Outcome(foreign={"s-0"}), "u", 0.0)) == 1
    assert memory.note(Outcome(foreign={"s-0"}), "u", 1.0) == []
    assert (memory.foreign, reasons(memory)) == ({"s-0"}, ["ForeignSlice"])


def test_a_missing_namespace_is_waited_for() -> None:
    """Attempts are held back, growing, and reported once."""
    memory = WriteMemory()
    assert len(memory.note(Outcome(missing_namespace=True), "u", 0.0)) == 1
    held = memory.allow(PLAN, "u", 0.1)
    assert held.plan.writes == 0
    assert AWAY_FIRST <= (held.wake_at or 0.0) <= AWAY_FIRST * 1.2
    assert memory.note(Outcome(missing_namespace=True), "u", 3.0) == []
    assert (memory.allow(PLAN, "u", 3.0).wake_at or 0.0) - 3.0 >= 2 * AWAY_FIRST


def test_a_new_service_ends_the_wait_for_a_namespace() -> None:
    """A Service with another UID lives in a namespace that exists."""
    memory = WriteMemory()
    memory.note(Outcome(missing_namespace=True), "old", 0.0)
    assert memory.allow(PLAN, "new", 0.1).plan is PLAN


def test_a_blocked_slice_is_a_problem_until_it_is_written() -> None:
    """The message is the API server's; a success ends it."""
    memory = WriteMemory()
    memory.note(Outcome(blocked=[(SLICE, "not here")]), "u", 0.0)
    assert (memory.problem, reasons(memory)) == ("slice s-0 is refused: not here", ["SliceRefused"])
    memory.note(Outcome(done=[("create", SLICE)]), "u", 5.0)
    assert (memory.problem, reasons(memory)) == ("", [])


def test_a_blocked_slice_that_is_no_longer_wanted_is_no_problem() -> None:
    """Nothing to write means nothing is wrong."""
    memory = WriteMemory()
    memory.note(Outcome(blocked=[(SLICE, "not here")]), "u", 0.0)
    memory.settled()
    assert (memory.problem, reasons(memory)) == ("", [])


def test_a_failure_is_the_problem_in_the_servers_words() -> None:
    """Status and message, nothing else."""
    memory = WriteMemory()
    memory.note(Outcome(failure=Forbidden(403, "Forbidden", "cannot create")), "u", 0.0)
    assert memory.problem == "403: cannot create"
