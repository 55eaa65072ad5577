"""What a plan says of allocations that cannot be served: operations that never end, and more than the limits allow."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hub.allocations.plan import plan
from hub.allocations.scene import MOST_ALLOCATIONS, MOST_NODES
from hub.allocations.spec import Condition, Move, stamp
from hub.allocations.view import Follow, Machine, Outcome, Plan, View
from hub.cloud.addresses import AddressState, Changing, Free, Held
from hub.model import LOCAL, Node
from tests.support.address_views import A1, LABELLED, NOW, allocation, at, entry, machine, planned, site, view


def stalled(found: Plan, name: str = "web") -> Condition:
    """The condition Stalled of an allocation."""
    [condition] = [one for one in found.statuses[name].conditions if one.type == "Stalled"]
    return condition


# --- operations that do not end --------------------------------------------------------------------------


def waiting(phase: str, seconds: float, state: AddressState = Free(), operation: str = "op-1") -> View:  # noqa: B008
    """An address whose phase began so many seconds ago."""
    move = Move("m1", "Drained", phase, "n1", "n3", 1, operation=operation, started=stamp(NOW - seconds))
    found = allocation("web", entry(A1, state=phase, move=move, instance="i-n1"))
    base = view(site(machine("n1"), machine("n3")), found)
    return replace(base, answers={A1: replace(base.answers[A1], state=state)})


def test_an_operation_that_does_not_end_stalls_the_allocation_after_ten_minutes() -> None:
    """The condition names address, node, operation and what to do; the operation is followed on, nothing is written."""
    early = plan(waiting("Attaching", 590), NOW)
    assert (stalled(early).status, early.wake) == ("False", NOW + 10)
    late = plan(waiting("Attaching", 600), NOW)
    assert late.acts == (Follow(A1, "op-1"),)
    found = stalled(late)
    assert (found.status, found.reason) == ("True", "OperationStalled")
    assert found.message == (
        f"{A1}: attaching it to node n3 has not ended within 10 minutes (operation op-1); "
        "look at the address in the cloud. The hub goes on as soon as the cloud says where it is"
    )


@pytest.mark.parametrize(
    ("phase", "state", "words"),
    [
        ("Detaching", Held("i-n1"), "detaching it from node n1"),
        ("Releasing", Held("i-n1"), "detaching it from node n1"),
        ("RollingBack", Free(), "attaching it again to node n3"),
        ("Restoring", Held("i-n3"), "giving back what it replaced on node n1"),
        ("Attaching", Changing(), "attaching it to node n3"),
    ],
)
def test_every_phase_that_does_not_end_stalls_the_allocation(phase: str, state: AddressState, words: str) -> None:
    """Each phase says what it does with which node."""
    assert f"{A1}: {words} has not ended" in stalled(plan(waiting(phase, 700, state), NOW)).message


def test_an_operation_that_is_given_up_leaves_the_allocation_stalled() -> None:
    """After the hub has given it up, another attempt is described, recorded and called; Stalled stays all the time."""
    given_up = Outcome("follow", "op-1", NOW - 1, NOW - 601, "timeout", "the operation has not ended within 600 s")
    found = replace(waiting("Attaching", 605), outcomes={A1: given_up})
    for now in (NOW, NOW + 1, NOW + 2):
        last = plan(at(found, now), now)
        assert stalled(last).status == "True"
        [web] = found.allocations
        found = replace(found, allocations=(replace(web, status=last.statuses["web"]),))
    [stored] = found.allocations[0].status.addresses
    assert stored.move is not None
    assert stored.move.attempts == 2


def test_an_edited_time_of_a_record_stalls_nothing() -> None:
    """A record whose time is not one is not taken for an old one."""
    base = waiting("Attaching", 0)
    [web] = base.allocations
    [stored] = web.status.addresses
    assert stored.move is not None
    edited = replace(stored, move=replace(stored.move, started="yesterday"))
    status = replace(web.status, addresses=(edited,))
    assert stalled(plan(replace(base, allocations=(replace(web, status=status),)), NOW)).status == "False"


# --- limits ----------------------------------------------------------------------------------------------


def crowd() -> View:
    """One allocation more than the limit; the youngest has an address on n1, and all others ask for none."""
    others = [allocation(f"a{number}", created="2026-01-01T00:00:00Z") for number in range(MOST_ALLOCATIONS)]
    youngest = allocation("young", entry(A1, "n1"), created="2026-01-02T00:00:00Z")
    return view(site(machine("n1", ready="False", since=NOW - 900), machine("n2")), youngest, *others)


def test_the_oldest_thousand_allocations_are_served() -> None:
    """Each further one is Stalled by name; its address, its node and the node's labels stay as they are."""
    found = plan(crowd(), NOW)
    condition = stalled(found, "young")
    assert (condition.status, condition.reason) == ("True", "TooManyAllocations")
    assert condition.message.startswith("an account serves its 1000 oldest allocations")
    [stored] = found.statuses["young"].addresses
    assert (stored.state, stored.reason, stored.node, stored.move) == ("Unknown", "TooManyAllocations", "n1", None)
    assert sum(stalled(found, name).status == "True" for name in found.statuses) == 1
    fewer = replace(crowd(), allocations=crowd().allocations[:-1])
    assert stalled(plan(fewer, NOW), "young").status == "False"


@pytest.mark.parametrize("labels", [{}, LABELLED], ids=["off", "on"])
def test_labels_of_an_allocation_beyond_the_limit_stay(labels: dict[str, str]) -> None:
    """The hub neither puts the label on the node nor takes it off."""
    base = replace(crowd(), sites=site(machine("n1", labels=labels)))
    assert planned(base, 3, 6).acts == ()


def test_a_cluster_with_too_many_nodes_stalls_its_allocations() -> None:
    """The message names the limit; holder and label stay, as in a cluster that is not known."""
    machines = {f"n{number}": Machine(Node(f"n{number}", ready="True"), f"i-n{number}") for number in range(MOST_NODES)}
    base = view(site(machine("old", ready="False")), allocation("web", entry(A1, "old")))
    full = {LOCAL: replace(base.sites[LOCAL], machines={**machines, "old": base.sites[LOCAL].machines["old"]})}
    found = plan(replace(base, sites=full), NOW)
    condition = stalled(found)
    assert (condition.status, condition.reason) == ("True", "ClusterUnknown")
    assert condition.message == "cluster local has 20001 nodes; addresses move in clusters of up to 20000"
    assert found.acts == ()
    [stored] = found.statuses["web"].addresses
    assert (stored.state, stored.node) == ("Unknown", "old")
    full[LOCAL].machines.pop("n0")  # type: ignore[attr-defined]
    assert stalled(plan(replace(base, sites=full), NOW)).status == "False"
