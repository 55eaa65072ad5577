"""Which node an address goes to, and why the others do not get it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hub.allocations.eligible import LABEL_REGION
from hub.allocations.plan import plan
from hub.allocations.view import Account, Answer, Inspection, Machine, Memories, NodeKey, View
from hub.cloud.addresses import Free, Gone, Held, Present
from hub.model import LABEL_CONTROL_PLANE, LABEL_ZONE, LOCAL, Taint
from hub.registry.spec import AllocationLimits
from tests.support.address_views import (
    A1,
    A2,
    A3,
    LABELLED,
    NETWORK,
    NOW,
    allocation,
    entry,
    machine,
    planned,
    site,
    view,
)


def chosen(found: View, address: str = A1) -> str:
    """The node that an address goes to, after a second answer has confirmed that it is free."""
    return planned(found, 20).verdicts[address].to


def why_not(found: View, address: str = A1) -> dict[str, str]:
    """The nodes that cannot take an address, and why."""
    return dict(planned(found, 20).verdicts[address].why_not)


def zone(name: str, where: str, since: float = NOW - 900) -> Machine:
    """A node in a zone."""
    return machine(name, since, labels={LABEL_ZONE: where})


def test_an_address_goes_back_to_the_node_that_it_came_from() -> None:
    """The last node comes first, before zones and time."""
    nodes = site(zone("n1", "a", NOW - 9000), zone("n2", "a"), zone("n3", "b", NOW - 100))
    spread = allocation("web", entry(A1, last_node="n3"), entry(A2, "n9"))
    assert chosen(view(nodes, spread)) == "n3"
    assert chosen(view(nodes, allocation("web", A1))) == "n1"


def test_the_zone_with_the_fewest_addresses_of_the_allocation_comes_next() -> None:
    """Addresses of other allocations do not count, and a move that is under way does."""
    nodes = site(zone("n1", "a"), zone("n2", "a"), zone("n3", "b", NOW - 100), zone("n4", "b"))
    mine = allocation("web", A1, entry(A2, "n2"))
    other = allocation("other", entry(A3, "n4"), created="2026-01-01T00:00:00Z")
    assert chosen(view(nodes, mine, other)) == "n3"
    assert planned(view(nodes, allocation("web", A1, A2)), 20).verdicts[A2].to in ("n3", "n4")


def test_the_node_that_is_ready_for_the_longest_time_comes_next_then_the_first_name() -> None:
    """Among equal zones, time decides; among equal times, the name."""
    assert chosen(view(site(machine("n1", NOW - 100), machine("n2", NOW - 200)), allocation("web", A1))) == "n2"
    assert chosen(view(site(machine("n2"), machine("n1")), allocation("web", A1))) == "n1"


def owned(own_node: str, *nodes: str, cuts: Sequence[str] = (), **more: Any) -> View:
    """Nodes of which the hub runs on n1."""
    return view(
        site(*(machine(name) for name in nodes)),
        allocation("web", entry(A1, last_node="n1")),
        own=NodeKey(LOCAL, "n1"),
        limits=AllocationLimits(own_node=own_node),  # type: ignore[arg-type]
        account=Account("main", "gcp", (LOCAL,), (NETWORK,), cuts=frozenset(cuts)),
        **more,
    )


@pytest.mark.parametrize(
    ("own_node", "cuts", "both", "alone"),
    [
        ("last", (), "n2", "n1"),
        ("allow", (), "n1", "n1"),
        ("never", (), "n2", ""),
        ("last", ("target",), "n2", ""),
        ("last", ("source",), "n2", "n1"),
        ("allow", ("target",), "n1", "n1"),
    ],
)
def test_the_hubs_own_node_is_the_last_target(own_node: str, cuts: tuple[str, ...], both: str, alone: str) -> None:
    """Law 11: even before the last node; not at all with never, or where the move would cut the hub off."""
    assert chosen(owned(own_node, "n1", "n2", cuts=cuts)) == both
    found = owned(own_node, "n1", cuts=cuts)
    assert chosen(found) == alone
    assert why_not(found).get("n1") == (None if alone else "the hub runs there (limits ownNode)")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"ready": "False"}, "it is not Ready"),
        ({"ready": "Unknown"}, "it is not Ready"),
        ({"deleting": True}, "it is being deleted"),
        ({"unschedulable": True}, "it is cordoned"),
        ({"taints": (Taint("karpenter.sh/disrupted", "NoSchedule"),)}, "it has the taint karpenter.sh/disrupted"),
        ({"labels": {LABEL_CONTROL_PLANE: ""}}, "it is a control plane node; a nodeSelector may name it"),
        ({"labels": LABELLED}, "it has the label ip.ready, and may have an address that is not known"),
        ({"labels": {LABEL_REGION: "us"}}, "its region us is not cloud.region"),
        ({"since": NOW + 11}, "it is Ready for less than 10 s"),
    ],
)
def test_a_node_that_cannot_take_the_address_says_why(node: dict[str, Any], why: str) -> None:
    """What Kubernetes says of the node, in the words of ``hub why``."""
    found = view(site(machine("n1", **node)), allocation("web", A1, region="eu"))
    assert (chosen(found), why_not(found)) == ("", {"n1": why})


def test_nodes_with_other_addresses_cannot_take_one() -> None:
    """An address of the same account, one of another account, and a failed attempt a short time ago."""
    nodes = site(machine("n1"), machine("n2"), machine("n3"), machine("n4"))
    base = view(nodes, allocation("web", A1, entry(A2, "n2")))
    found = replace(
        base, foreign_labels=frozenset({NodeKey(LOCAL, "n1")}), memory=Memories(avoid={NodeKey(LOCAL, "n3"): NOW + 600})
    )
    reasons = planned_with(found)
    assert reasons == {
        "n1": "it has an address",
        "n2": "it has an address",
        "n3": "it could not take an address a short time ago",
    }


def planned_with(found: View) -> dict[str, str]:
    """The nodes that cannot take the first address, where the memory of the view counts from the beginning."""
    first = plan(found, NOW)
    answers = {address: Answer(answer.state, NOW + 20) for address, answer in found.answers.items()}
    return dict(plan(replace(found, answers=answers, memory=first.memory), NOW + 20).verdicts[A1].why_not)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (Present(running=False), "its instance is not running"),
        (Present(running=True, room=False, why="nic0 is on a private LAN"), "nic0 is on a private LAN"),
        (Present(running=True, region="us"), "its instance is in region us, the address in eu"),
        (Gone("404"), "404"),
    ],
)
def test_an_instance_that_cannot_take_the_address_says_why(state: Present | Gone, why: str) -> None:
    """What the cloud says of the instance; the next node is taken."""
    base = view(site(machine("n1"), machine("n2", NOW - 100)), allocation("web", A1))
    found = replace(
        base,
        answers={A1: Answer(Free("eu"), NOW)},
        inspections={**base.inspections, "i-n1": Inspection(state, NOW)},
    )
    assert (chosen(found), why_not(found)) == ("n2", {"n1": why})


def test_a_held_address_has_the_region_that_the_cloud_says() -> None:
    """The region of an address that is to be moved decides as well."""
    drained = site(machine("n1", unschedulable=True), machine("n2"))
    base = view(drained, allocation("web", entry(A1, "n1")))
    far = {**base.inspections, "i-n2": Inspection(Present(running=True, region="us"), NOW)}
    found = replace(base, answers={A1: Answer(Held("i-n1", region="eu"), NOW)}, inspections=far)
    assert why_not(found)["n2"] == "its instance is in region us, the address in eu"
