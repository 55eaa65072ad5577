"""The conditions of an allocation: why it is not Ready, in which order of reasons."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hub.allocations.plan import plan
from hub.allocations.scene import Situation
from hub.allocations.spec import Allocation, Bad, Condition, Entry, Move, Status
from hub.allocations.status import status
from hub.allocations.view import Memory
from tests.support.address_views import A1, A2, A3, NOW, allocation, entry, machine, site, view


def situation(address: str, state: str, reason: str = "", message: str = "", move: Move | None = None) -> Situation:
    """An address in a state."""
    found = Situation(allocation("web", address), address, Entry(address), Memory())
    found.set(state, reason, message)
    found.move = move
    return found


MOVING = situation(A1, "Attaching", "Free", move=Move("m1", "Free", "Attaching", to="n1"))
WITHHELD = situation(A1, "Leaving", "Withheld", "the budget of moves is used up")
CONFLICT = situation(A1, "Conflict", "Claimed", "allocation old has the older claim")
ELSEWHERE = situation(A1, "Elsewhere", "Stranger", "a load balancer has it")
UNKNOWN = situation(A1, "Unknown", "NoAnswer", "the cloud has given no complete answer")
INVALID = situation(A1, "Invalid", "NotAllowed", "it is not in the addresses of account main")
WAITS = situation(A1, "Pending", "NoNode", "no node can take it")
FROZEN = ("CloudFailed", "401: the credential is not valid")


def conditions(
    *situations: Situation,
    least: int | None = None,
    stalled: tuple[str, str] | None = None,
    bad: tuple[Bad, ...] = (),
    **more: object,
) -> dict[str, Condition]:
    """The conditions of an allocation with these addresses; all must be attached, or so many."""
    addresses = tuple(found.address for found in situations)
    needed = len(addresses) + len(bad) if least is None else least
    value = Allocation("web", "u1", ("", "u1"), addresses, bad, min_attached=needed, **more)  # type: ignore[arg-type]
    found = status(value, situations, "main", stalled, "me", NOW)
    return {condition.type: condition for condition in found.conditions}


def ready(*situations: Situation, **more: object) -> tuple[str, str]:
    """Status and reason of Ready."""
    found = conditions(*situations, **more)["Ready"]  # type: ignore[arg-type]
    return found.status, found.reason


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (MOVING, ("False", "Moving")),
        (CONFLICT, ("False", "Conflict")),
        (ELSEWHERE, ("False", "Conflict")),
        (UNKNOWN, ("Unknown", "Unknown")),
        (INVALID, ("False", "Invalid")),
        (WAITS, ("False", "WaitingForNodes")),
    ],
    ids=lambda found: found.state if isinstance(found, Situation) else "",
)
def test_ready_says_why_an_address_is_missing(found: Situation, expected: tuple[str, str]) -> None:
    """Each state has its reason, and the message has the address and its own message."""
    assert ready(found) == expected
    message = conditions(found)["Ready"].message
    assert message.startswith("0 of 1 addresses attached; ")
    assert (found.message or found.reason) in message


def test_ready_says_that_moves_are_withheld() -> None:
    """A withheld address is still attached, so the reason is needed only where another one is missing."""
    assert ready(WITHHELD) == ("True", "Attached")
    assert ready(WITHHELD, situation(A2, "Pending")) == ("False", "Withheld")


def test_ready_says_that_the_cloud_failed() -> None:
    """What stalls the allocation is the reason, if no address has a better one."""
    found = conditions(situation(A1, "Pending"), stalled=FROZEN)["Ready"]
    assert (found.status, found.reason) == ("False", "CloudFailed")
    assert found.message == "0 of 1 addresses attached; 401: the credential is not valid"


def test_reasons_of_ready_have_an_order() -> None:
    """What the hub is doing comes first, then what needs a person, then what is waited for."""
    order = [MOVING, WITHHELD, CONFLICT, UNKNOWN, INVALID, situation(A1, "Pending")]
    reasons = ["Moving", "Withheld", "Conflict", "Unknown", "Invalid", "CloudFailed"]
    missing = situation(A3, "Pending")
    for place, reason in enumerate(reasons):
        _, found = ready(*reversed(order[place:]), missing, missing, least=9, stalled=FROZEN)
        assert found == reason


def test_ready_is_unknown_only_if_unknown_addresses_could_be_enough() -> None:
    """One address that is certainly missing makes Ready False, whatever the unknown one is."""
    assert ready(UNKNOWN, WAITS) == ("False", "Unknown")
    assert ready(UNKNOWN, WAITS, least=1) == ("Unknown", "Unknown")


def test_enough_attached_addresses_are_ready() -> None:
    """With minAttached, spare addresses may wait, move or be invalid."""
    attached = situation(A2, "Attached")
    for spare in (MOVING, CONFLICT, UNKNOWN, INVALID, WAITS):
        assert ready(attached, spare, least=1) == ("True", "Attached")
    assert ready(WAITS, least=0) == ("True", "Attached")


def test_a_bad_entry_does_not_count_against_minattached() -> None:
    """With enough addresses attached, Ready is True, and the status still says that the entry is Invalid."""
    bad = (Bad("34.1.2", "is not an IPv4 address such as 34.123.45.67"),)
    attached = situation(A2, "Attached")
    assert ready(attached, bad=bad, least=1) == ("True", "Attached")
    assert ready(attached, bad=bad) == ("False", "Invalid")
    found = plan(view(site(machine("n1")), allocation("web", entry(A1, "n1"), bad=bad)), NOW).statuses["web"]
    assert [(each.address, each.state) for each in found.addresses] == [(A1, "Attached"), ("34.1.2", "Invalid")]


def test_condition_conflict_names_each_address_and_claim() -> None:
    """Only addresses that another allocation has are in Conflict; a stranger's is not."""
    other = situation(A2, "Conflict", "Claimed", "allocation older has the older claim")
    found = conditions(CONFLICT, other, ELSEWHERE)["Conflict"]
    assert (found.status, found.reason) == ("True", "Claimed")
    assert found.message == (f"{A1}: allocation old has the older claim; {A2}: allocation older has the older claim")
    assert conditions(ELSEWHERE)["Conflict"].status == "False"


def test_conflict_of_two_allocations_is_with_the_older_one() -> None:
    """The older allocation has the address; the other one says so and does nothing."""
    old = allocation("old", entry(A1, "n1"), created="2026-01-01T00:00:00Z")
    young = allocation("young", A1, created="2026-01-02T00:00:00Z")
    found = plan(view(site(machine("n1"), machine("n2")), young, old), NOW)
    states = {name: (each.addresses[0].state, each.addresses[0].reason) for name, each in found.statuses.items()}
    assert states == {"old": ("Attached", ""), "young": ("Conflict", "Claimed")}
    assert {condition.type: condition.status for condition in found.statuses["young"].conditions} == {
        "Ready": "False",
        "Reconciling": "False",
        "Stalled": "False",
        "Conflict": "True",
    }


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    """Only a change of True, False and Unknown is a transition; another reason is none."""
    value = allocation("web", A1)
    first = status(value, [WAITS], "main", None, "me", NOW)
    stored = replace(value, status=first)
    later = status(stored, [INVALID], "main", None, "me", NOW + 60)
    assert later.conditions[0].reason == "Invalid"
    assert later.conditions[0].last_transition_time == first.conditions[0].last_transition_time
    attached = status(stored, [situation(A1, "Attached")], "main", None, "me", NOW + 60)
    assert attached.conditions[0].last_transition_time > first.conditions[0].last_transition_time
    assert isinstance(attached, Status)


def test_notes_about_the_spec_are_in_the_message() -> None:
    """What has no effect, or is written twice, is said once, also while the allocation is Ready."""
    found = conditions(situation(A1, "Attached"), strategy=True, twice=(A1,))["Ready"]
    assert found.message == (f"1 of 1 addresses attached; spec.strategy has no effect; written more than once: {A1}")
