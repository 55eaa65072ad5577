"""What becomes of each address, and in which order moves begin."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hub.allocations.plan import plan
from hub.allocations.spec import Entry, stamp
from hub.allocations.view import CAUSES, Inspection, Machine, Memories, Memory, NodeKey, Plan, View
from hub.cloud.addresses import Gone
from hub.model import LABEL_CONTROL_PLANE, LOCAL, Taint
from hub.registry.spec import AllocationLimits
from tests.support.address_views import A1, A2, A3, A4, A5, NOW, allocation, at, entry, machine, planned, site, view

ALL = AllocationLimits(moves=1.0)


def states(found: Plan, name: str = "web") -> dict[str, tuple[str, str]]:
    """The state and the reason of each address of an allocation."""
    return {each.address: (each.state, each.reason) for each in found.statuses[name].addresses}


def moving(found: Plan) -> dict[str, str]:
    """The addresses whose moves begin, and the cause of each."""
    return {
        each.address: each.move.cause
        for status in found.statuses.values()
        for each in status.addresses
        if each.move is not None
    }


# --- order of service (law 10) -----------------------------------------------------------------------------

NODES = {
    "Gone": machine("gone"),
    "OutOfService": machine("down", ready="False", deleting=True),
    "NotReady": machine("failed", NOW - 900, ready="False"),
    "Drained": machine("cordoned", unschedulable=True),
    "Misplaced": machine("master", labels={LABEL_CONTROL_PLANE: ""}),
    "": machine("steady"),
}
REMOVED = Entry("198.18.2.9", "Attached", node="removed", instance="i-removed", since=stamp(NOW - 1000))


def every(concurrent: int, **more: object) -> View:
    """An address for each cause, all of which hold for long, with a spare node for each."""
    entries = [entry(f"198.18.2.{number}", found.node.name) for number, found in enumerate(reversed(NODES.values()))]
    spare = [machine(f"spare-{number}") for number in range(9)]
    found = view(
        site(*NODES.values(), *spare),
        allocation("web", *entries, REMOVED, "198.18.2.10"),
        limits=replace(ALL, concurrent=concurrent),
        **more,
    )
    return replace(found, inspections={**found.inspections, "i-gone": Inspection(Gone("404"), NOW)})


def served(concurrent: int) -> set[str]:
    """The causes of the moves that begin when so many may be under way."""
    found = every(concurrent)
    first = plan(found, NOW)
    causes = {
        address: replace(memory, cause_since=NOW - 500) if memory.cause else memory
        for address, memory in first.memory.addresses.items()
    }
    waited = replace(first.memory, addresses=causes)
    again = at(found, NOW + 5)
    second = plan(replace(again, memory=waited), NOW + 5)
    return set(moving(second).values())


def test_causes_are_served_in_their_order() -> None:
    """Law 10: with one more move at a time, one more cause is served, in the order of the laws."""
    order = ("Free", "Gone", "OutOfService", "NotReady", "Drained", "NodeRemoved", "Misplaced")
    assert [served(count) for count in range(1, 8)] == [set(order[:count]) for count in range(1, 8)]
    assert (*order, "Release") == CAUSES


def drained(**since: float) -> View:
    """Three addresses on cordoned nodes; ``since`` -> seconds since which the cause of each holds."""
    found = view(
        site(*(machine(f"n{number}", unschedulable=True) for number in (1, 2, 3)), machine("spare")),
        allocation("b", entry(A2, "n2"), entry(A3, "n3"), created="2026-01-02T00:00:00Z"),
        allocation("a", entry(A1, "n1"), created="2026-01-01T00:00:00Z"),
        limits=replace(ALL, concurrent=1),
    )
    claims = {A1: "a", A2: "b", A3: "b"}
    memories = {
        address: Memory(
            f"i-n{address[-1]}", NOW - 900, 0.0, "Drained", NOW - since.get(f"n{address[-1]}", 60.0), claim=uid
        )
        for address, uid in claims.items()
    }
    return replace(found, memory=Memories(memories))


def test_the_longest_waiting_address_comes_first_then_the_oldest_allocation_then_the_list() -> None:
    """Within one cause: the time, then the age of the allocation, then the place in reservedIPs."""
    assert moving(plan(drained(n3=61), NOW)) == {A3: "Drained"}
    assert moving(plan(drained(), NOW)) == {A1: "Drained"}
    assert moving(plan(drained(n2=61, n3=61), NOW)) == {A2: "Drained"}


def test_the_hubs_own_node_is_the_last_source() -> None:
    """Law 11: an address leaves the hub's node after the others, unless that node is like any other."""
    own = replace(drained(n1=500), own=NodeKey(LOCAL, "n1"))
    assert moving(plan(own, NOW)) == {A2: "Drained"}
    alone = replace(own, memory=Memories({A1: own.memory.addresses[A1]}))
    assert moving(plan(alone, NOW)) == {A1: "Drained"}
    assert moving(plan(replace(own, limits=replace(own.limits, own_node="allow")), NOW)) == {A1: "Drained"}


def test_five_addresses_and_three_nodes() -> None:
    """The first three of the list get the nodes; the others are Pending for lack of a node, and no error."""
    nodes = site(machine("n1"), machine("n2"), machine("n3"))
    found = planned(view(nodes, allocation("web", A1, A2, A3, A4, A5)), 20)
    assert moving(found) == {A1: "Free", A2: "Free", A3: "Free"}
    assert {address: state for address, state in states(found).items() if address in (A4, A5)} == {
        A4: ("Pending", "NoNode"),
        A5: ("Pending", "NoNode"),
    }
    assert found.findings == ()


def test_a_placed_address_is_not_displaced() -> None:
    """A younger claim that has a node keeps it, although an older one has none."""
    old, young = allocation("a", A1), allocation("b", entry(A2, "n1"))
    found = planned(view(site(machine("n1")), old, young), 20)
    assert moving(found) == {}
    assert (states(found, "a"), states(found, "b")) == ({A1: ("Pending", "NoNode")}, {A2: ("Attached", "")})


# --- many addresses that are free at once (law 9) ------------------------------------------------------------


def lost(count: int, total: int) -> View:
    """So many addresses, of which the first ones have just lost their nodes."""
    addresses = [f"198.18.3.{number}" for number in range(total)]
    entries = [
        entry(address, last_node=f"n{number}") if number < count else entry(address, f"n{number}")
        for number, address in enumerate(addresses)
    ]
    return view(site(*(machine(f"n{number}") for number in range(total))), allocation("web", *entries), limits=ALL)


@pytest.mark.parametrize(
    ("count", "total", "waits"), [(1, 1, False), (1, 3, False), (2, 4, False), (2, 3, True), (3, 4, True), (2, 2, True)]
)
def test_more_than_half_of_the_addresses_free_at_once_wait_one_interval(count: int, total: int, *, waits: bool) -> None:
    """At least two, and more than half: a source that is wrong says so again after the interval, or does not."""
    found = lost(count, total)
    early = planned(found, 3)
    assert len(moving(early)) == (0 if waits else count)
    if waits:
        assert states(early)["198.18.3.0"] == ("Pending", "Withheld")
    assert len(moving(planned(found, 3, 15))) == count


def test_addresses_that_never_had_a_node_do_not_wait() -> None:
    """The first start of an allocation is no accident."""
    found = view(site(machine("n1"), machine("n2")), allocation("web", A1, A2), limits=ALL)
    assert moving(planned(found, 3)) == {A1: "Free", A2: "Free"}
    one_lost = view(
        site(machine("n1"), machine("n2"), machine("n3")),
        allocation("web", entry(A1, last_node="n1"), A2, A3, entry(A4, "n4")),
        limits=ALL,
    )
    assert A1 in moving(planned(one_lost, 3))


# --- two addresses on one node -----------------------------------------------------------------------------


def test_a_second_address_on_a_node_is_misplaced() -> None:
    """The younger claim leaves after 60 s and ``dwell``; the older one stays."""
    old, young = allocation("a", entry(A2, "n1")), allocation("b", entry(A1, "n1"))
    found = view(site(machine("n1"), machine("n2")), young, old)
    early = planned(found, 30)
    assert states(early, "a") == {A2: ("Attached", "")}
    assert states(early, "b") == {A1: ("Leaving", "Dwell")}
    assert early.verdicts[A1].message == f"the node also has {A2}, whose claim is older"
    assert moving(planned(found, 20, 40, 61)) == {A1: "Misplaced"}


def test_a_second_address_of_one_allocation_is_misplaced_too() -> None:
    """Within one allocation, the place in the list decides."""
    found = planned(view(site(machine("n1"), machine("n2")), allocation("web", entry(A1, "n1"), entry(A2, "n1"))), 30)
    assert states(found) == {A1: ("Attached", ""), A2: ("Leaving", "Dwell")}


def test_a_second_address_without_a_candidate_stays() -> None:
    """Nothing is detached without a node to go to."""
    found = planned(view(site(machine("n1")), allocation("web", entry(A1, "n1"), entry(A2, "n1"))), 20, 40, 61)
    assert states(found)[A2] == ("Leaving", "NoCandidate")
    assert moving(found) == {}


# --- evidence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node",
    [
        machine("n1"),
        machine("n1", taints=(Taint("node.kubernetes.io/out-of-service", "NoExecute"),)),
        machine("n1", deleting=True),
    ],
    ids=["ready", "taint", "deleting"],
)
def test_a_node_that_is_ready_keeps_its_address(node: Machine) -> None:
    """Law 2: a taint or a deletion is a cause only on a node that is not Ready."""
    found = planned(view(site(node, machine("n2")), allocation("web", entry(A1, "n1"))), 20, 40, 61)
    assert (states(found), moving(found)) == ({A1: ("Attached", "")}, {})
