"""Which Services are served, what they want, and which nodes their balancers have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from hub.cloud.balancers import BalancerNode, BalancerPort, Marker
from hub.controller.services import (
    FINALIZER,
    HOLD,
    OWN_FINALIZER,
    WINDOW,
    BalancedService,
    Guard,
    Names,
    balanced,
    follow_at,
    names,
    role,
    wanted,
)
from hub.model import Node, NodeAddress, Taint
from hub.registry.spec import CloudBalancersSpec
from tests.support.balancing import ANNOTATIONS, PREFIX, PROVIDER_ID

SERVICE = BalancedService("edge", "web", "uid-1", "7", ports=(BalancerPort(80, 30080),))
NAMED = Names("web.edge.eu", (), Marker("c1", "uid-1"))
NODE = Node("n1", ready="False", provider_id="toy://n1", unschedulable=True)
EXCLUDE = "node.kubernetes.io/exclude-from-external-load-balancers"


@pytest.mark.parametrize(
    ("change", "spec", "expected"),
    [
        ({}, {}, "ensure"),
        ({"finalizers": (FINALIZER,)}, {}, "ensure"),
        ({"class_": "hub"}, {"class_": "hub"}, "ensure"),
        ({"class_": "other"}, {}, "foreign"),
        ({}, {"class_": "hub"}, "foreign"),
        ({"class_": "other", "deleting": True, "finalizers": (FINALIZER,)}, {}, "foreign"),
        ({"deleting": True, "finalizers": (FINALIZER, "other")}, {}, "delete"),
        ({"kind": "ClusterIP", "finalizers": (FINALIZER,)}, {}, "delete"),
        ({"kind": "ClusterIP"}, {}, "none"),
        ({"deleting": True, "finalizers": ("other",)}, {}, "none"),
        ({"class_": "hub", "deleting": True, "finalizers": (OWN_FINALIZER,)}, {"class_": "hub"}, "delete"),
        ({"class_": "hub", "deleting": True, "finalizers": (FINALIZER,)}, {"class_": "hub"}, "none"),
        ({"kind": "ClusterIP", "finalizers": (OWN_FINALIZER,)}, {"class_": "hub"}, "delete"),
        ({"kind": "ClusterIP", "finalizers": (FINALIZER,)}, {"class_": "hub"}, "none"),
        ({"kind": "ClusterIP", "finalizers": (OWN_FINALIZER,)}, {}, "none"),
        ({}, {"namespaces": ("shop",)}, "none"),
        ({"kind": "ClusterIP", "finalizers": (FINALIZER,)}, {"namespaces": ("shop",)}, "none"),
        ({}, {"namespaces": ("edge",)}, "ensure"),
    ],
)
def test_a_service_has_a_role(change: dict[str, Any], spec: dict[str, Any], expected: str) -> None:
    """Type, class, deletion, finalizer and namespace decide (4.1)."""
    assert role(replace(SERVICE, **change), CloudBalancersSpec(**spec)) == expected


def test_names_end_with_the_clusters_name() -> None:
    """All objects are called service.namespace.clusterName; former clusterNames give former names."""
    found = names(SERVICE, "eu", ("old",), "c1")
    assert found == Names("web.edge.eu", ("web.edge.old",), Marker("c1", "uid-1"))


def want(**change: Any) -> Any:
    """What a Service wants."""
    nodes = (BalancerNode("n2", "toy://n2"), BalancerNode("n1", "toy://n1"))
    return wanted(replace(SERVICE, **change), NAMED, nodes, ANNOTATIONS, PREFIX)


def test_a_service_wants_its_ports_and_settings_on_sorted_nodes() -> None:
    """Everything that a plugin plans with is there, in a fixed order."""
    found = want(annotations={PREFIX + "policy": "first"}, address="192.0.2.1", local=True, health_port=31000)
    balancer = found.balancer
    assert [node.name for node in balancer.nodes] == ["n1", "n2"]
    assert (balancer.name, balancer.ports, balancer.settings) == (NAMED.name, SERVICE.ports, {"policy": "first"})
    assert (balancer.address, balancer.local, balancer.health_port) == ("192.0.2.1", True, 31000)
    assert (balancer.nodes_only, found.refused) == (False, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"annotations": {PREFIX + "interval": "x"}}, "AnnotationInvalid"),
        ({"ports": ()}, "NoPorts"),
        ({"ports": (BalancerPort(80, 30080), BalancerPort(443))}, "NodePortMissing"),
    ],
)
def test_a_mistake_lets_only_the_nodes_follow(change: dict[str, Any], reason: str) -> None:
    """What exists stays, nothing is created, and the nodes of an existing balancer go on changing (rows 1, 12)."""
    found = want(**change)
    assert found.refused is not None
    assert (found.refused[0], found.balancer.nodes_only) == (reason, True)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("pool=edge", ["n1", "n2"]),
        ("pool=edge,tier=", ["n2"]),
        ("example.com/pool=a", ["n3"]),
        ("pool=ed", []),
        ("pool", []),
        ("pool in (edge)", []),
    ],
)
def test_labels_choose_the_nodes(text: str, taken: list[str]) -> None:
    """Only Nodes with all labels take the traffic; with a mistake, or without such a Node, the last ones stay."""
    labels = {"n1": {"pool": "edge"}, "n2": {"pool": "edge", "tier": ""}, "n3": {"example.com/pool": "a"}}
    there = balanced(
        [replace(NODE, name=name, labels=found) for name, found in labels.items()], PROVIDER_ID, ANNOTATIONS
    )
    found = wanted(replace(SERVICE, annotations={PREFIX + "on": text}), NAMED, there.values(), ANNOTATIONS, PREFIX)
    assert [node.name for node in found.balancer.nodes] == taken
    mistake = "pool" in text and "=" not in text
    assert (found.refused is not None) == mistake
    said = ["UnAvailableLoadBalancer"] if not taken and not mistake else []
    assert [finding.reason for finding in found.findings] == said


def test_without_such_an_annotation_labels_do_not_count() -> None:
    """A Node whose labels change is the same to a cloud that asks for none."""
    (found,) = balanced([replace(NODE, labels={"pool": "edge"})], PROVIDER_ID).values()
    assert found.labels == ()


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ({}, True),
        ({"labels": {EXCLUDE: "false"}}, True),
        ({"labels": {EXCLUDE: "true"}}, False),
        ({"labels": {EXCLUDE: ""}}, False),
        ({"labels": {EXCLUDE: "no"}}, False),
        ({"deleting": True}, False),
        ({"taints": (Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule", "1"),)}, False),
        ({"taints": (Taint("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule"),)}, True),
        ({"provider_id": ""}, False),
        ({"provider_id": "aws:///zone/i-1"}, False),
        ({"provider_id": "toy://n1/../x"}, False),
    ],
)
def test_a_node_takes_traffic(change: dict[str, Any], takes: bool) -> None:
    """Not ready, cordoned and shut-down nodes stay; the cloud's checks decide about them (4.2, row 47)."""
    assert ("n1" in balanced([replace(NODE, **change)], PROVIDER_ID)) == takes


# --- the guard -------------------------------------------------------------------------------------------


def nodes(*numbers: int) -> dict[str, BalancerNode]:
    """Nodes by name."""
    return {f"n{number}": BalancerNode(f"n{number}", f"toy://n{number}") for number in numbers}


def use(guard: Guard, now: float, *numbers: int, approved: str = "") -> list[int]:
    """The nodes that are used when these are there."""
    found = guard.accept(nodes(*numbers), now, lambda digest: digest == approved)
    return [int(name[1:]) for name in sorted(found)]


@pytest.mark.parametrize(
    ("there", "first", "expected"),
    [
        pytest.param(range(5), 95.0, 101.0, id="settles-first"),
        pytest.param(range(5), 90.0, 101.0, id="grows-and-may-wait"),
        pytest.param(range(5), 70.5, 100.5, id="grows-for-too-long"),
        pytest.param(range(15), 90.0, 101.0, id="almost-four-times"),
        pytest.param(range(16), 90.0, 100.0, id="four-times"),
        pytest.param(range(1, 9), 90.0, 100.0, id="one-left-and-five-joined"),
        pytest.param(range(1, 6), 90.0, 100.0, id="one-left"),
    ],
)
def test_growing_clusters_are_followed_in_fewer_rounds(there: Iterable[int], first: float, expected: float) -> None:
    """Balancers, here with four nodes, wait longer only while nodes join that are not yet four times as many."""
    before = nodes(*range(4))
    assert follow_at((first, 99.0), (2.0, 10.0), 100.0, before, nodes(*there)) == expected


def test_an_address_that_changes_is_no_growth() -> None:
    """A node whose address changes is followed after the usual time, also if another one joins."""
    moved = {**nodes(0, 1, 2), "n1": BalancerNode("n1", "toy://n1", (NodeAddress("InternalIP", "10.0.0.9"),))}
    assert follow_at((90.0, 99.0), (2.0, 10.0), 100.0, nodes(0, 1), moved) == 100.0


def test_the_first_nodes_are_followed_at_once() -> None:
    """A balancer without nodes does not wait for more of them."""
    assert follow_at((90.0, 99.0), (2.0, 10.0), 100.0, {}, nodes(1)) == 100.0


def test_a_few_nodes_leave_at_once() -> None:
    """Half of the nodes may go, and a single one always."""
    guard = Guard("eu")
    assert use(guard, 0, 1, 2, 3, 4) == [1, 2, 3, 4]
    assert use(guard, 1, 1, 2) == [1, 2]
    assert guard.finding() is None


def test_a_mass_removal_waits_while_new_nodes_join() -> None:
    """More than half stays for five minutes; nodes that are new are used meanwhile."""
    guard = Guard("eu")
    use(guard, 0, 1, 2, 3)
    assert use(guard, 10, 3, 4) == [1, 2, 3, 4]
    assert guard.held == ("n1", "n2")
    finding = guard.finding()
    assert finding is not None
    assert finding.reason == "NodeRemovalWithheld"
    assert use(guard, 9 + HOLD, 3, 4) == [1, 2, 3, 4]
    assert use(guard, 10 + HOLD, 3, 4) == [3, 4]
    assert guard.finding() is None


def test_a_mass_removal_that_grows_waits_again() -> None:
    """The time counts for what is held, so that a larger removal has five minutes of its own."""
    guard = Guard("eu")
    use(guard, 0, 1, 2, 3, 4, 5)
    assert use(guard, 0, 4, 5) == [1, 2, 3, 4, 5]
    assert use(guard, HOLD - 1, 5) == [1, 2, 3, 4, 5]
    assert use(guard, HOLD + 1, 5) == [1, 2, 3, 4, 5]
    assert use(guard, 2 * HOLD, 5) == [5]


def test_an_approval_releases_a_mass_removal() -> None:
    """The hash in the finding lets exactly this removal happen."""
    guard = Guard("eu")
    use(guard, 0, 1, 2, 3)
    use(guard, 1, 3)
    assert guard.digest in str(guard.finding())
    assert use(guard, 2, 3, approved=guard.digest) == [3]


def test_a_removal_in_small_parts_is_held_too() -> None:
    """Nodes that left within ten minutes count; afterwards they do not."""
    guard = Guard("eu")
    use(guard, 0, 1, 2, 3, 4)
    assert use(guard, 1, 2, 3, 4) == [2, 3, 4]
    assert use(guard, 2, 3, 4) == [3, 4]
    assert use(guard, 3, 4) == [3, 4]
    later = Guard("eu")
    use(later, 0, 1, 2, 3, 4)
    use(later, 1, 3, 4)
    assert use(later, 2 + WINDOW, 4) == [4]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_set_never_becomes_empty(count: int) -> None:
    """With no node left, however long and approved or not, the last ones stay (rows 29, 44)."""
    guard = Guard("eu")
    numbers = range(1, count + 1)
    use(guard, 0, *numbers)
    for now in (1, 2 * HOLD, 3 * HOLD):
        assert use(guard, now, approved=guard.digest) == [*numbers]
    finding = guard.finding()
    assert finding is not None
    assert finding.reason == "UnAvailableLoadBalancer"
    assert use(guard, 4 * HOLD, *numbers) == [*numbers]
    assert guard.finding() is None


def test_nodes_that_return_end_the_holding() -> None:
    """A relist that was wrong changes nothing."""
    guard = Guard("eu")
    use(guard, 0, 1, 2, 3)
    use(guard, 1, 3)
    assert use(guard, 2, 1, 2, 3) == [1, 2, 3]
    assert guard.held == ()
