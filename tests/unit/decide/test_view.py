"""Building a view from a cluster's nodes and the provider's answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.decide.addresses import AddressPolicy
from hub.decide.endpoints import EndpointSet
from hub.decide.view import KEPT_IN_GRACE, LISTED, NodeReport, ViewBuilder, ViewResult
from hub.model import (
    DRAINING,
    PUBLISHED,
    Absent,
    Finding,
    Found,
    Hints,
    NamedHint,
    Node,
    ObjectReference,
    Resolution,
    Unknown,
)
from hub.registry.spec import NodePolicy
from hub.runtime.clock import rfc3339
from tests.support import build

NOW = build.READY_SINCE_WALL + 1000.0
ALLOWED = build.networks("10.0.0.0/8", "fd00::/8")


def builder(policy: NodePolicy | None = None, max_endpoints: int = 5000) -> ViewBuilder:
    """A builder for cluster eu."""
    return ViewBuilder("eu", policy or NodePolicy(), AddressPolicy(ALLOWED), max_endpoints)


def world(*nodes: Node, **answers: Resolution) -> tuple[dict[str, Node], dict[str, Resolution]]:
    """Nodes by name; each resolves to its own InternalIPs unless ``answers`` says otherwise."""
    resolutions: dict[str, Resolution] = {
        node.name: Found(tuple(address.address for address in node.addresses)) for node in nodes if node.addresses
    }
    return {node.name: node for node in nodes}, {**resolutions, **answers}


def view_of(*nodes: Node, policy: NodePolicy | None = None, now: float = NOW, **answers: Resolution) -> ViewResult:
    """The result of a first build."""
    return builder(policy).build(*world(*nodes, **answers), now)


def addresses(result: ViewResult, family: str = "IPv4") -> list[str]:
    """Published addresses, in the view's order."""
    return list(result.view.endpoints[family])


def reasons(result: ViewResult) -> list[str]:
    """Reasons of the findings."""
    return [finding.reason for finding in result.findings]


def report(node: str, *more: Any, eligible: bool = True, **fields: Any) -> NodeReport:
    """A report of a node that may be published."""
    return NodeReport(node, eligible, *more, **fields)


def since(seconds: float) -> str:
    """The timestamp of that many whole seconds before NOW."""
    return rfc3339(NOW - seconds)


# --- what a node becomes ---------------------------------------------------------------------------


def test_endpoint_of_a_node() -> None:
    """An endpoint has zone, a reference to the Node and all conditions, but no nodeName or hostname."""
    (endpoint,) = view_of(build.node("n1", "10.0.0.1", zone="a")).view.endpoints["IPv4"].values()
    assert endpoint == build.endpoint("10.0.0.1", "n1", PUBLISHED, zone="a")
    assert endpoint.target_ref == ObjectReference(kind="Node", name="n1")
    assert (endpoint.node_name, endpoint.hostname, endpoint.hints) == (None, None, None)


def test_zone_of_the_resolution_wins() -> None:
    """The provider's zone takes precedence over the node's label."""
    result = view_of(build.node("n1", zone="a"), n1=Found(("10.0.0.1",), "b"))
    assert result.view.endpoints["IPv4"]["10.0.0.1"].zone == "b"


def test_a_mapped_zone_is_that_of_the_hub_with_a_hint() -> None:
    """A zone of the map becomes the hub's, with a hint for it, also if the provider states it; other zones stay."""
    nodes = [build.node(f"n{n}", f"10.0.0.{n}", zone=zone) for n, zone in enumerate("ab", 1)]
    result = view_of(*nodes, policy=NodePolicy(zones=(("a", "x"), ("c", "y"))), n3=Found(("10.0.0.3",), "c"))
    named = view_of(build.node("n3"), policy=NodePolicy(zones=(("c", "y"),)), n3=Found(("10.0.0.3",), "c"))
    assert result.view.endpoints["IPv4"] | named.view.endpoints["IPv4"] == {
        "10.0.0.1": build.endpoint("10.0.0.1", "n1", zone="x", hints=Hints((NamedHint("x"),))),
        "10.0.0.2": build.endpoint("10.0.0.2", "n2", zone="b"),
        "10.0.0.3": build.endpoint("10.0.0.3", "n3", zone="y", hints=Hints((NamedHint("y"),))),
    }


def test_missing_zone_is_none() -> None:
    """Without a zone the field is None, not ""."""
    assert view_of(build.node("n1", "10.0.0.1")).view.endpoints["IPv4"]["10.0.0.1"].zone is None


def test_one_address_per_family() -> None:
    """The first address of each family in the provider's order is published."""
    result = view_of(build.node("n1"), n1=Found(("10.0.0.2", "fd00::2", "10.0.0.1", "fd00::1")))
    assert [addresses(result), addresses(result, "IPv6")] == [["10.0.0.2"], ["fd00::2"]]


def test_next_address_where_the_first_is_refused() -> None:
    """The first address that the policy accepts is published."""
    result = view_of(build.node("n1"), n1=Found(("192.0.2.1", "127.0.0.1", "10.0.0.1")))
    assert addresses(result) == ["10.0.0.1"]
    assert result.rejected == (("n1", "192.0.2.1", "outside allowedCIDRs"), ("n1", "127.0.0.1", "loopback"))
    assert reasons(result) == ["InvalidAddressSkipped"]


def test_an_address_behind_the_published_one_is_not_looked_at() -> None:
    """Addresses after the published one are neither checked nor reported as rejected."""
    result = view_of(build.node("n1"), n1=Found(("10.0.0.1", "192.0.2.1", "fd00::1", "2001:db8::1")))
    assert [addresses(result), addresses(result, "IPv6")] == [["10.0.0.1"], ["fd00::1"]]
    assert (result.rejected, reasons(result)) == ((), [])


def test_addresses_are_normalised() -> None:
    """Addresses are published in normal form."""
    assert addresses(view_of(build.node("n1"), n1=Found(("FD00:0::0001",))), "IPv6") == ["fd00::1"]


def test_only_bad_addresses() -> None:
    """A node without an acceptable address is reported, but not unknown."""
    result = view_of(build.node("n1"), n1=Found(("127.0.0.1",)))
    assert (result.view.unknown_nodes, result.reports["n1"].reason) == (frozenset(), "address")


def test_excluded_address_takes_its_family_with_it() -> None:
    """If an address is in nodes.exclude, in any notation, no other address of its family is published."""
    policy = NodePolicy(exclude_addresses=frozenset({"10.0.0.1", "FD00::0001"}))
    result = view_of(build.node("n1"), policy=policy, n1=Found(("10.0.0.1", "10.0.0.2", "fd00::1")))
    assert [addresses(result), addresses(result, "IPv6")] == [[], []]


def test_cordoned_not_ready_is_draining() -> None:
    """A node that the policy publishes as draining has a draining endpoint."""
    result = view_of(build.node("n1", "10.0.0.1", unschedulable=True), policy=NodePolicy(cordoned="not-ready"))
    assert result.view.endpoints["IPv4"]["10.0.0.1"].conditions == DRAINING


@pytest.mark.parametrize(
    ("answer", "unknown", "reason"),
    [
        (Absent("no server"), frozenset(), "absent"),
        (Unknown("timeout"), frozenset({"n1"}), "unknown"),
        (Found(()), frozenset({"n1"}), "unknown"),
        (None, frozenset({"n1"}), "unknown"),
    ],
)
def test_answers_without_an_address(answer: Resolution | None, unknown: frozenset[str], reason: str) -> None:
    """Absent excludes a node; Unknown, no answer, and Found without an address make it unknown."""
    answers: dict[str, Any] = {"n1": answer} if answer is not None else {}
    result = view_of(build.node("n1"), **answers)
    assert (result.view.unknown_nodes, result.reports["n1"].reason) == (unknown, reason)


def test_unknown_nodes_are_found() -> None:
    """A finding names the nodes without a known address."""
    (finding,) = view_of(build.node("n2"), build.node("n1")).findings
    assert (finding.reason, finding.objects) == ("NodeUnresolved", ("n1", "n2"))


def test_ambiguous_nodes_have_their_own_finding() -> None:
    """Nodes with several candidates have their own finding with the provider's text."""
    why = Unknown("ambiguous: servers a and b match")
    answers = {"n1": why, "n2": why, "n3": Unknown("asked too often")}
    first, second = view_of(*map(build.node, answers), **answers).findings
    assert (first.reason, first.objects) == ("NodeAmbiguous", ("n1", "n2"))
    assert first.message == "eu: 2 nodes have several candidates, such as n1: ambiguous: servers a and b match"
    assert (second.reason, second.objects) == ("NodeUnresolved", ("n3",))
    [alone] = view_of(build.node("n1"), n1=why).findings
    assert alone.reason == "NodeAmbiguous"


def test_excluded_nodes_are_not_unknown() -> None:
    """An ineligible node without a known address does not count as unknown."""
    result = view_of(build.node("n1", deleting=True))
    assert (result.view.unknown_nodes, result.reports["n1"].eligible) == (frozenset(), False)


def test_node_names_include_ineligible_nodes() -> None:
    """All nodes of the list count as present, eligible or not."""
    result = view_of(build.node("n1", "10.0.0.1"), build.node("n2", deleting=True), build.node("n3"))
    assert result.view.gone_complete == {"n1", "n2", "n3"}


def test_order_is_by_address() -> None:
    """Endpoints are sorted by address, in whatever order and whenever their nodes come."""
    nodes, answers = world(build.node("a", "10.0.0.3"), build.node("b", "10.0.0.1"))
    made = builder()
    made.build(nodes, answers, NOW)
    late = build.node("c", "10.0.0.2")
    result = made.build({**nodes, "c": late}, {**answers, "c": Found(("10.0.0.2",))}, NOW)
    assert addresses(result) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_too_many_endpoints_are_not_believed() -> None:
    """More than maxEndpoints endpoints make the view unknown; exactly as many do not."""
    nodes, answers = world(*(build.node(f"n{i}", build.address(i)) for i in range(3)))
    too_many = builder(max_endpoints=2).build(nodes, answers, NOW).view
    assert too_many.unknown == "offers 3 endpoints, more than maxEndpoints (2)"
    assert too_many.endpoints == {}
    assert builder(max_endpoints=3).build(nodes, answers, NOW).view.unknown is None


# --- readiness ------------------------------------------------------------------------------------


def ready_nodes(count: int) -> list[Node]:
    """Ready nodes, enough that a single node that is not Ready is no disruption."""
    return [build.node(f"r{i}", build.address(1000 + i)) for i in range(count)]


@pytest.mark.parametrize(
    ("ready", "age", "published"),
    [
        ("False", 29, True),
        ("False", 30, False),
        ("Unknown", 29, True),
        ("Unknown", 31, False),
        ("True", 1000, True),
        ("False", -3600, True),
    ],
)
def test_not_ready_grace(ready: str, age: float, published: bool) -> None:
    """A node that is not Ready leaves after the grace period; a future timestamp counts from its time."""
    node = build.node("n1", "10.0.0.1", ready=ready, ready_since=since(age))
    result = view_of(node, *ready_nodes(2))
    assert ("10.0.0.1" in result.view.endpoints["IPv4"]) is published


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01", "2026-01-01T00:00:00", "9999999-01-01T00:00:00Z"])
def test_unreadable_since_keeps_the_node(text: str) -> None:
    """A node without a valid timestamp is kept, and no timer runs for it."""
    result = view_of(build.node("n1", "10.0.0.1", ready=False, ready_since=text), *ready_nodes(2), now=4e9)
    assert ("10.0.0.1" in result.view.endpoints["IPv4"], result.wake_at) == (True, None)


def test_wake_at_is_when_the_next_grace_ends() -> None:
    """wake_at is the earliest end of a running grace period."""
    nodes = [
        build.node("n1", "10.0.0.1", ready=False, ready_since=since(10)),
        build.node("n2", "10.0.0.2", ready=False, ready_since=since(20)),
        build.node("n3", "10.0.0.3", ready=False, ready_since=since(40)),
    ]
    assert view_of(*nodes, *ready_nodes(9)).wake_at == NOW + 10


def test_a_node_leaves_when_its_grace_ends() -> None:
    """With unchanged values, a node leaves exactly at wake_at, and no timer remains."""
    values = world(build.node("n1", "10.0.0.1", ready=False, ready_since=since(10)), *ready_nodes(2))
    made = builder()
    first = made.build(*values, NOW)
    assert first.wake_at is not None
    last = made.build(*values, first.wake_at)
    assert ("10.0.0.1" in addresses(first), "10.0.0.1" in addresses(last), last.wake_at) == (True, False, None)
    assert last.reports["n1"].reason == "not-ready"


def test_a_clock_set_back_gives_the_same_as_ever() -> None:
    """The view depends only on the given time, not on earlier times."""
    values = world(build.node("n1", "10.0.0.1", ready=False, ready_since=since(10)), *ready_nodes(2))
    made = builder()
    made.build(*values, NOW + 3600)
    assert made.build(*values, NOW).view == builder().build(*values, NOW).view


def not_ready(count: int) -> list[Node]:
    """Nodes that have not been Ready for a long time."""
    return [build.node(f"n{i}", build.address(i), ready=False, ready_since=since(1000)) for i in range(count)]


@pytest.mark.parametrize(
    ("bad", "good", "kept"), [(1, 1, False), (2, 1, True), (1, 0, True), (5, 5, False), (6, 5, True)]
)
def test_max_not_ready(bad: int, good: int, kept: bool) -> None:
    """While more than half of the nodes are not Ready, no node leaves for that reason."""
    result = view_of(*not_ready(bad), *ready_nodes(good))
    assert len(addresses(result)) == good + (bad if kept else 0)
    assert ("ClusterDisrupted" in reasons(result)) is kept


def test_max_not_ready_counts_eligible_nodes_only() -> None:
    """Control plane nodes do not count towards maxNotReady."""
    planes = [build.node(f"c{i}", labels={"node-role.kubernetes.io/control-plane": ""}, ready=False) for i in range(5)]
    assert "ClusterDisrupted" not in reasons(view_of(*planes, *not_ready(1), *ready_nodes(1)))


def test_disruption_keeps_nodes_in_grace_in_mind() -> None:
    """Nodes in their grace period count as not Ready for maxNotReady."""
    fresh = [build.node(f"f{i}", build.address(50 + i), ready=False, ready_since=since(1)) for i in range(2)]
    assert len(addresses(view_of(*not_ready(1), *fresh, *ready_nodes(2)))) == 5


def test_end_of_a_disruption() -> None:
    """When a disruption ends, nodes that are not Ready leave; when it begins again, they come back."""
    made = builder()
    bad, good = world(*not_ready(2), *ready_nodes(1)), world(*not_ready(2), *ready_nodes(2))
    counts = [len(addresses(made.build(*values, NOW))) for values in (bad, good, bad)]
    assert counts == [3, 2, 3]
    assert made.build(*bad, NOW).reports["n0"].eligible is True


def test_disruption_keeps_unknown_nodes_unknown() -> None:
    """A node that is kept during a disruption and has no known address keeps its published endpoint."""
    nodes = [build.node("n1", ready=False, ready_since=since(1000)), build.node("n2", "10.0.0.2", ready=False)]
    result = view_of(*nodes)
    assert result.view.unknown_nodes == {"n1"}


def test_unready_node_with_unknown_address_is_excluded() -> None:
    """Without a disruption, a node that is not Ready is excluded even if its address is not known."""
    result = view_of(build.node("n1", ready=False, ready_since=since(1000)), *ready_nodes(3))
    assert result.view.unknown_nodes == frozenset()


# --- two nodes, one address -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        ({"ready": False, "created": "2026-02"}, {"created": "2026-01"}, "b"),
        ({"created": "2026-02"}, {"created": "2026-01"}, "a"),
        ({"created": "2026-01"}, {"created": "2026-02"}, "b"),
        ({"created": "2026-01"}, {"created": "2026-01"}, "a"),
        ({"ready": False}, {"ready": "Unknown"}, "a"),
    ],
)
@pytest.mark.parametrize("swap", [False, True])
def test_conflicting_nodes(one: dict[str, Any], other: dict[str, Any], winner: str, swap: bool) -> None:
    """An address of several nodes goes to a Ready node first, then to the newest, then to the first by name."""
    nodes = [
        build.node("a", "10.0.0.1", **{"ready_since": since(1), **one}),
        build.node("b", "10.0.0.1", **{"ready_since": since(1), **other}),
    ]
    result = view_of(*(reversed(nodes) if swap else nodes))
    reference = result.view.endpoints["IPv4"]["10.0.0.1"].target_ref
    assert reference is not None
    assert reference.name == winner
    loser = {"a": "b", "b": "a"}[winner]
    assert (result.reports[winner].reason, result.reports[loser].reason) == ("", "conflict")
    assert "AddressConflict" in reasons(result)


def test_the_other_claimant_takes_over() -> None:
    """When the node that has a shared address goes, the other node gets it and the conflict ends."""
    nodes, answers = world(build.node("a", "10.0.0.1"), build.node("b", "10.0.0.1"))
    made = builder()
    made.build(nodes, answers, NOW)
    result = made.build({"b": nodes["b"]}, {"b": answers["b"]}, NOW)
    reference = result.view.endpoints["IPv4"]["10.0.0.1"].target_ref
    assert reference is not None
    assert (reference.name, result.findings, result.reports["b"].reason) == ("b", (), "")


# --- what is told ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "answer", "expected"),
    [
        ({}, Found(("10.0.0.1", "fd00::1")), report("n", addresses=("10.0.0.1", "fd00::1"))),
        (
            {},
            Found(("127.0.0.1", "10.0.0.1", "127.0.0.2")),
            report("n", addresses=("10.0.0.1",), rejected=(("127.0.0.1", "loopback"),)),
        ),
        (
            {},
            Found(("127.0.0.1",)),
            report("n", "address", "none of its addresses fits", (), (("127.0.0.1", "loopback"),)),
        ),
        (
            {},
            Found(("10.0.0.66",)),
            report("n", "address", "none of its addresses fits", (), (("10.0.0.66", "named in nodes.exclude"),)),
        ),
        (
            {},
            Found(("192.0.2.1",)),
            report(
                "n",
                "address",
                "none of its addresses fits: 192.0.2.1 is outside allowedCIDRs",
                (),
                (("192.0.2.1", "outside allowedCIDRs"),),
            ),
        ),
        ({}, Absent("no server"), report("n", "absent", "the provider has no address: no server")),
        ({}, Unknown("timeout"), report("n", "unknown", "address not known: timeout")),
        ({}, None, report("n", "unknown", "address not known: not resolved yet")),
        ({}, Found(()), report("n", "unknown", "address not known: found, but without an address")),
        ({"deleting": True}, Found(("10.0.0.1",)), report("n", "deleting", "being deleted", eligible=False)),
        (
            {"ready": False},
            Found(("10.0.0.1",)),
            report("n", "not-ready", "not Ready for longer than nodes.notReadyGrace", eligible=False),
        ),
        (
            {"ready": False, "ready_since": since(1)},
            Found(("10.0.0.1",)),
            report("n", "", KEPT_IN_GRACE, ("10.0.0.1",)),
        ),
    ],
)
def test_report_of_a_node(node: dict[str, Any], answer: Resolution | None, expected: NodeReport) -> None:
    """The report has eligibility, the reason why the node is not published, its addresses and the rejected ones."""
    answers: dict[str, Any] = {"n": answer} if answer is not None else {}
    policy = NodePolicy(exclude_addresses=frozenset({"10.0.0.66"}))
    result = view_of(build.node("n", **node), *ready_nodes(3), policy=policy, **answers)
    assert result.reports["n"] == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            Found(("10.0.0.1",)),
            report(
                "n",
                "",
                "not Ready, like too many nodes: its published endpoints stay, new ones are not added",
                ("10.0.0.1",),
            ),
        ),
        (Unknown("timeout"), report("n", "unknown", "address not known")),
    ],
)
def test_report_of_a_node_that_is_kept(answer: Resolution, expected: NodeReport) -> None:
    """The report says why a node is kept during a disruption, and no longer does afterwards."""
    node = build.node("n", ready=False)
    alone, among = world(node, n=answer), world(node, *ready_nodes(3), n=answer)
    made = builder()
    reports = [made.build(*values, NOW).reports["n"] for values in (alone, among, alone)]
    left = report("n", "not-ready", "not Ready for longer than nodes.notReadyGrace", eligible=False)
    assert reports == [expected, left, expected]


def test_report_of_a_conflict() -> None:
    """Each node's report lists its own addresses; the loser's report names the holder."""
    reports = view_of(build.node("a", "10.0.0.1"), build.node("b", "10.0.0.1")).reports
    assert reports == {
        "a": report("a", addresses=("10.0.0.1",)),
        "b": report("b", "conflict", "10.0.0.1 is published for node a"),
    }


def test_findings_in_words() -> None:
    """A finding names the cluster and its objects; text from a cluster is quoted."""
    result = view_of(
        build.node("a", "10.0.0.1"),
        build.node("b", "10.0.0.1"),
        build.node("c", "bad\ntext", "10.0.0.3", ready=False),
        build.node("d", "192.0.2.1", "10.0.0.4", ready=False),
        build.node("e", ready=False, ready_since=since(1)),
    )
    assert result.view.cluster == "eu"
    assert result.findings == (
        Finding("AddressConflict", "eu: nodes share 10.0.0.1", ("10.0.0.1",)),
        Finding("ClusterDisrupted", "eu: 3 of 5 nodes are not Ready; none is removed for that until fewer are"),
        Finding(
            "InvalidAddressSkipped",
            "eu: 2 addresses must not be published, such as 'bad\\ntext' of c: not an IP address",
            ("c", "d"),
        ),
        Finding("NodeUnresolved", "eu: address not known of e", ("e",)),
    )


@pytest.mark.parametrize(("count", "rest"), [(LISTED, ""), (LISTED + 3, " and 3 more")])
def test_finding_message_names_twenty_objects(count: int, rest: str) -> None:
    """A finding has all objects, and its message names twenty of them."""
    nodes = [f"n{number:02}" for number in range(count)]
    (finding,) = view_of(*map(build.node, nodes)).findings
    assert finding.message == f"eu: address not known of {', '.join(nodes[:LISTED])}{rest}"
    assert finding.objects == tuple(nodes)


def test_rejected_address_is_forgotten_with_its_node() -> None:
    """A rejected address is no longer reported when its node goes or gets a good address."""
    nodes, answers = world(build.node("a", "127.0.0.1"), build.node("b", "127.0.0.2"))
    made = builder()
    assert len(made.build(nodes, answers, NOW).rejected) == 2
    assert made.build({"b": nodes["b"]}, answers, NOW).rejected == (("b", "127.0.0.2", "loopback"),)
    assert made.build({"b": nodes["b"]}, {"b": Found(("10.0.0.2",))}, NOW).rejected == ()


def test_a_long_refused_text_is_cut() -> None:
    """A rejected text is cut to 64 characters in a finding."""
    (finding,) = view_of(build.node("n", "x" * 100)).findings
    assert f"such as {'x' * 64!r} of n" in finding.message


def test_kept_cordoned_node_is_published_as_draining() -> None:
    """A cordoned node that is kept by a disruption is published as draining."""
    policy = NodePolicy(cordoned="not-ready")
    result = view_of(build.node("n", "10.0.0.1", ready=False, unschedulable=True), policy=policy)
    assert result.view.endpoints["IPv4"]["10.0.0.1"].conditions == DRAINING


# --- identity ---------------------------------------------------------------------------------------


def test_unchanged_input_gives_the_same_view() -> None:
    """The same values give the same result object, and equal copies give the same view."""
    nodes, answers = world(*ready_nodes(3))
    made = builder()
    first = made.build(nodes, answers, NOW)
    assert made.build(dict(nodes), dict(answers), NOW + 1) is first
    copies = {name: msgspec.structs.replace(node) for name, node in nodes.items()}
    assert made.build(copies, answers, NOW).view is first.view


def test_a_mapping_may_change_in_place() -> None:
    """The builder keeps copies of its arguments, and earlier results do not change later."""
    nodes, answers = world(*ready_nodes(2))
    made = builder()
    first = made.build(nodes, answers, NOW)
    nodes["x"], answers["x"] = build.node("x"), Found(("10.0.0.1",))
    del nodes["r0"]
    second = made.build(nodes, answers, NOW)
    assert (len(addresses(first)), len(first.reports), set(second.reports)) == (2, 2, {"r1", "x"})
    assert addresses(second) == ["10.0.0.1", build.address(1001)]


def test_other_endpoints_stay_the_same_objects() -> None:
    """A change of one node leaves all other endpoint objects unchanged."""
    nodes, answers = world(*ready_nodes(3))
    made = builder()
    first = made.build(nodes, answers, NOW).view.endpoints["IPv4"]
    nodes["r1"] = msgspec.structs.replace(nodes["r1"], labels={"topology.kubernetes.io/zone": "z"})
    second = made.build(nodes, answers, NOW).view.endpoints["IPv4"]
    same = [first[address] is second[address] for address in first]
    assert same == [True, False, True]


def test_the_other_familys_mapping_stays() -> None:
    """A change in one family leaves the mapping of the other family the same object."""
    nodes, answers = world(build.node("a", "10.0.0.1"), build.node("b", "fd00::1"))
    made = builder()
    first = made.build(nodes, answers, NOW).view
    answers["b"] = Found(("fd00::2",))
    second = made.build(nodes, answers, NOW).view
    assert second.endpoints["IPv4"] is first.endpoints["IPv4"]
    assert second.endpoints["IPv6"] is not first.endpoints["IPv6"]


def test_a_node_that_offers_nothing_changes_names_only() -> None:
    """A new control plane node gives a new view with the same endpoints."""
    nodes, answers = world(*ready_nodes(2))
    made = builder()
    first = made.build(nodes, answers, NOW).view
    nodes["c"] = build.node("c", deleting=True)
    second = made.build(nodes, answers, NOW).view
    assert second is not first
    assert second.endpoints["IPv4"] is first.endpoints["IPv4"]


# --- whatever the history, the same view -------------------------------------------------------------

NAMES = st.sampled_from("abcd")
NODES = st.builds(
    lambda name, **more: build.node(name, **more),
    NAMES,
    ready=st.booleans(),
    ready_since=st.sampled_from([since(5), since(50), "", since(-20)]),
    created=st.sampled_from(["2026-01", "2026-02"]),
    unschedulable=st.booleans(),
    deleting=st.sampled_from([False, False, True]),
)
ANSWERS: st.SearchStrategy[Resolution] = st.one_of(
    st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "127.0.0.1"]), max_size=3).map(
        lambda texts: Found(tuple(texts))
    ),
    st.just(Absent("none")),
    st.just(Unknown("broken")),
)
STEPS = st.lists(
    st.tuples(
        st.dictionaries(NAMES, NODES), st.dictionaries(NAMES, ANSWERS), st.sampled_from([0.0, 10.0, 26.0, 100.0, -30.0])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.sampled_from(["keep", "not-ready", "drop"]))
def test_history_does_not_matter(
    steps: list[tuple[Mapping[str, Node], Mapping[str, Resolution], float]], max_not_ready: float, cordoned: Any
) -> None:
    """After any sequence of builds, the result equals that of a fresh builder."""
    policy = NodePolicy(max_not_ready=max_not_ready, cordoned=cordoned)
    made = builder(policy)
    for nodes, answers, ahead in steps:
        named = {name: msgspec.structs.replace(node, name=name) for name, node in nodes.items()}
        result = made.build(named, answers, NOW + ahead)
        fresh = builder(policy).build(named, answers, NOW + ahead)
        assert result == fresh
        assert [list(family) for family in result.view.endpoints.values()] == [
            sorted(family) for family in fresh.view.endpoints.values()
        ]


def test_view_lists_changed_addresses() -> None:
    """A new view lists the changed addresses per family; an unchanged family keeps its mapping."""
    made = builder()
    one, two = build.node("one", "10.0.0.1"), build.node("two", "10.0.0.2")
    first = made.build(*world(one, two), NOW).view.endpoints
    gone = made.build(*world(one), NOW).view.endpoints
    back = made.build(*world(one, build.node("three", "10.0.0.2")), NOW).view.endpoints
    assert [
        EndpointSet.of(after["IPv4"]).changed_since(before["IPv4"]) for before, after in ((first, gone), (gone, back))
    ] == [
        {"10.0.0.2"},
        {"10.0.0.2"},
    ]
    assert back["IPv6"] is first["IPv6"]


def test_address_claimed_by_all_nodes_is_handled_quickly() -> None:
    """An address that all nodes claim is handled fast enough not to block the event loop."""
    took = []
    for address in (None, "10.0.0.1"):
        under_test = builder()
        names = [f"n{number}" for number in range(20_000)]
        answers = {name: Found((address or build.address(number),)) for number, name in enumerate(names)}
        under_test.build({name: build.node(name) for name in names}, answers, NOW)
        changed = {name: build.node(name, zone="other") for name in names}
        began = time.perf_counter()
        result = under_test.build(changed, answers, NOW)
        took.append(time.perf_counter() - began)
    assert len(result.view.endpoints["IPv4"]) == 1
    assert took[1] < 5 * took[0]
