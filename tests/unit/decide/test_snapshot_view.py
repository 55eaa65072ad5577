"""Building a view from the snapshot of an EndpointProvider."""

from __future__ import annotations

from typing import Any

import pytest

from hub.decide.addresses import AddressPolicy
from hub.decide.snapshot_view import SnapshotMemory, view_of_snapshot
from hub.decide.view import NodeReport, ViewResult
from hub.model import DRAINING, Finding, Hints, NamedHint, ObjectReference, Port, Snapshot, SnapshotEndpoint, SourceView
from tests.support import build

POLICY = AddressPolicy(build.networks("10.0.0.0/8", "fd00::/8"))
POD = ObjectReference(kind="Pod", name="web-1", namespace="a", uid="u")


def view_of(
    *endpoints: SnapshotEndpoint, previous: SourceView | None = None, max_endpoints: int = 100, **more: Any
) -> ViewResult:
    """The view of a complete snapshot of these endpoints."""
    flags = {key: more.pop(key) for key in ("same_cluster", "exclude_addresses", "zones", "memory") if key in more}
    return view_of_snapshot("dc", Snapshot(endpoints, **more), previous, POLICY, max_endpoints, **flags)


def test_conditions_and_zone_come_along() -> None:
    """An endpoint is published with its own conditions and zone."""
    made = view_of(SnapshotEndpoint("a", ("10.0.0.1",), ready=False, serving=True, terminating=True, zone="z"))
    endpoint = made.view.endpoints["IPv4"]["10.0.0.1"]
    assert endpoint == build.endpoint("10.0.0.1", None, DRAINING, zone="z")


def test_one_address_per_family() -> None:
    """The first acceptable address of each family is published; rejected ones are reported."""
    made = view_of(SnapshotEndpoint("a", ("127.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::1")))
    assert [list(family) for family in made.view.endpoints.values()] == [["10.0.0.1"], ["fd00::1"]]
    assert made.rejected == (("a", "127.0.0.1", "loopback"),)
    assert [finding.reason for finding in made.findings] == ["InvalidAddressSkipped"]


def test_across_clusters_only_node_references_travel() -> None:
    """From another cluster, nodeName, hints and references to Pods are dropped."""
    pod = SnapshotEndpoint("a", ("10.0.0.1",), node_name="n1", target_ref=POD, hints=Hints(for_zones=(NamedHint("z"),)))
    node = SnapshotEndpoint("b", ("10.0.0.2",), target_ref=ObjectReference(kind="Node", name="n2", uid="u"))
    made = view_of(pod, node).view.endpoints["IPv4"]
    assert made == {"10.0.0.1": build.endpoint("10.0.0.1"), "10.0.0.2": build.endpoint("10.0.0.2", "n2")}


def test_a_mapped_zone_is_that_of_the_hub_with_a_hint() -> None:
    """Records in a zone of the map are in the hub's zone, with a hint for it; a changed map counts at once."""
    records = [SnapshotEndpoint(name, (f"10.0.0.{n}",), zone=zone) for n, (name, zone) in enumerate(("ax", "bz"), 1)]
    memory, zones = SnapshotMemory(), []
    for hub_zone in "hg":
        made = view_of(*records, zones=(("x", hub_zone),), memory=memory).view.endpoints["IPv4"].values()
        zones.append([(endpoint.zone, endpoint.hints) for endpoint in made])
    assert zones == [[(hub_zone, Hints((NamedHint(hub_zone),))), ("z", None)] for hub_zone in "hg"]


def test_within_the_cluster_everything_is_copied() -> None:
    """A copy within one cluster keeps nodeName, hints and the reference."""
    hints = Hints(for_zones=(NamedHint("z"),))
    made = view_of(SnapshotEndpoint("a", ("10.0.0.1",), node_name="n1", target_ref=POD, hints=hints), same_cluster=True)
    endpoint = made.view.endpoints["IPv4"]["10.0.0.1"]
    assert (endpoint.node_name, endpoint.target_ref, endpoint.hints) == ("n1", POD, hints)


def test_hostnames_are_kept_outside_the_endpoints() -> None:
    """Hostnames are in the view but not in its endpoints, because the target decides about them."""
    made = view_of(SnapshotEndpoint("a", ("10.0.0.1",), hostname="web-0")).view
    assert (made.hostnames, made.endpoints["IPv4"]["10.0.0.1"].hostname) == ({"10.0.0.1": "web-0"}, None)


def test_one_address_in_two_records() -> None:
    """Of two records with one address, the ready one wins, then the first by name; the other is reported."""
    made = view_of(
        SnapshotEndpoint("a", ("10.0.0.1",), ready=False),
        SnapshotEndpoint("b", ("10.0.0.1",)),
        SnapshotEndpoint("c", ("10.0.0.1",)),
    )
    assert made.view.endpoints["IPv4"]["10.0.0.1"].conditions.ready is True
    assert [made.reports[name].reason for name in "abc"] == ["conflict", "", "conflict"]
    assert [finding.reason for finding in made.findings] == ["AddressConflict"]


def test_every_stated_address_is_known() -> None:
    """A rejected address also counts as stated, so its departure is filtered, not gone."""
    made = view_of(SnapshotEndpoint("a", ("127.0.0.1", "10.0.0.1")))
    assert made.view.addresses_complete == frozenset({"127.0.0.1", "10.0.0.1"})
    assert made.view.gone_complete == {"a"}


def test_excluded_addresses() -> None:
    """Addresses in nodes.exclude are not published."""
    made = view_of(SnapshotEndpoint("a", ("10.0.0.1",)), exclude_addresses=frozenset({"10.0.0.1"}))
    assert (made.view.endpoints["IPv4"], made.reports["a"].reason) == ({}, "address")


def test_incomplete_snapshots_say_so() -> None:
    """The view takes over from the snapshot that parts are missing, and its ports."""
    made = view_of(SnapshotEndpoint("a", ("10.0.0.1",)), complete=False, ports=(Port("a", 1),))
    assert (made.view.complete, made.view.ports) == (False, (Port("a", 1),))


def test_too_many_are_not_believed() -> None:
    """A snapshot with more than maxEndpoints endpoints makes the view unknown."""
    made = view_of(*(SnapshotEndpoint(str(i), (build.address(i),)) for i in range(3)), max_endpoints=2)
    assert (made.view.cluster, made.view.unknown) == ("dc", "offers 3 endpoints, more than maxEndpoints (2)")
    assert made.view.endpoints == {}


def test_snapshot_at_the_endpoint_limit_is_accepted() -> None:
    """A snapshot with exactly maxEndpoints endpoints is accepted."""
    assert view_of(SnapshotEndpoint("a", ("10.0.0.1", "fd00::1")), max_endpoints=2).view.unknown is None


def report(node: str, *more: Any, eligible: bool = True, **fields: Any) -> NodeReport:
    """A report of a record that may be published."""
    return NodeReport(node, eligible, *more, **fields)


def test_reports() -> None:
    """The report of each record lists its published addresses or says why there are none."""
    made = view_of(
        SnapshotEndpoint("a", ("10.0.0.1", "127.0.0.1")),
        SnapshotEndpoint("b", ("10.0.0.1",)),
        SnapshotEndpoint("c", ("10.0.0.3",)),
        SnapshotEndpoint("d", ("10.0.0.1", "fd00::4")),
        SnapshotEndpoint("e", ()),
        exclude_addresses=frozenset({"10.0.0.3"}),
    )
    nothing = "none of its addresses fits"
    assert made.reports == {
        "a": report("a", addresses=("10.0.0.1",), rejected=(("127.0.0.1", "loopback"),)),
        "b": report("b", "conflict", "published for a"),
        "c": report("c", "address", nothing, (), (("10.0.0.3", "named in nodes.exclude"),)),
        "d": report("d", addresses=("fd00::4",)),
        "e": report("e", "address", nothing),
    }


def test_report_names_allowed_cidrs() -> None:
    """The report of a record whose address is in no network of allowedCIDRs says so."""
    made = view_of(SnapshotEndpoint("a", ("192.0.2.1",)))
    assert made.reports["a"].message == "none of its addresses fits: 192.0.2.1 is outside allowedCIDRs"


def test_findings_in_words() -> None:
    """A finding names the source and one example; quoted text of a source is cut to 64 characters."""
    made = view_of(
        SnapshotEndpoint("a", ("10.0.0.1", "10.0.0.1")),
        SnapshotEndpoint("b", ("10.0.0.1", "y" * 100, "127.0.0.1")),
        SnapshotEndpoint("c", ("z\n",)),
    )
    assert made.findings == (
        Finding("AddressConflict", "dc: 1 addresses appear in more than one record", ("10.0.0.1",)),
        Finding(
            "InvalidAddressSkipped",
            "dc: 3 addresses must not be published, such as '127.0.0.1' of b: loopback",
            ("b", "c"),
        ),
    )
    (finding,) = view_of(SnapshotEndpoint("b", ("y" * 100,))).findings
    assert f"such as {'y' * 64!r} of b" in finding.message


def test_equal_is_the_same_object() -> None:
    """An equal snapshot gives the same view object; unchanged endpoints stay the same objects."""
    first = view_of(SnapshotEndpoint("a", ("10.0.0.1",)), SnapshotEndpoint("b", ("10.0.0.2",))).view
    same = view_of(SnapshotEndpoint("b", ("10.0.0.2",)), SnapshotEndpoint("a", ("10.0.0.1",)), previous=first).view
    other = view_of(SnapshotEndpoint("a", ("10.0.0.1",)), previous=first).view
    assert same is first
    assert (
        view_of(SnapshotEndpoint("a", ("10.0.0.1",)), SnapshotEndpoint("b", ("10.0.0.3",)), previous=first).view
        != first
    )
    assert other.endpoints["IPv4"]["10.0.0.1"] is first.endpoints["IPv4"]["10.0.0.1"]
    assert other.endpoints["IPv6"] is first.endpoints["IPv6"]


@pytest.mark.parametrize(
    "changed",
    [
        SnapshotEndpoint("b", ("10.0.0.1",)),
        SnapshotEndpoint("a", ("10.0.0.1",), ready=False),
        SnapshotEndpoint("a", ("10.0.0.1",), hostname="web-0"),
        SnapshotEndpoint("a", ("10.0.0.1", "127.0.0.1")),
    ],
)
def test_any_change_gives_a_new_view(changed: SnapshotEndpoint) -> None:
    """A changed name, condition, hostname or stated address gives a new view."""
    first = view_of(SnapshotEndpoint("a", ("10.0.0.1",))).view
    assert view_of(changed, previous=first).view == view_of(changed).view != first
