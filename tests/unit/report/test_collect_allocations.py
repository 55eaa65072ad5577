"""The metrics of allocations from a small scene: two allocations, three nodes, two accounts."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hub import __version__
from hub.allocating import metrics_catalog as c
from hub.allocating.records import is_failing
from hub.allocating.tallies import Tallies
from hub.allocations.spec import LABEL_READY, Allocation, Condition, Entry, Move, Status
from hub.allocations.view import Outcome
from hub.model import LABEL_CONTROL_PLANE, LOCAL, Node
from hub.registry.spec import AccountSpec, AllocationsSpec, ProviderRef
from hub.report.collect import Collector, Durations
from hub.report.collect_allocations import collect
from hub.report.metrics import Metrics
from hub.runtime.tally import Tally
from tests.support import build
from tests.unit.report.still import StillHub, registry

A1, A2, A3 = "34.1.2.1", "34.1.2.2", "34.1.2.3"
ENV = {"CLUSTER_NAME": "prod", "POD_NAME": "hub-0", "CONTROLLER_VERSION": "1.1.0"}
READY = {LABEL_READY: "true"}
Series = dict[tuple[str, ...], Any]


def account(provider: str, *clusters: str, calls: Mapping[tuple[str, str], int] = {}, **durations: float) -> Any:
    """An account whose calls took these seconds."""
    tallies = {operation: Tally(c.LATENCIES) for operation in durations}
    for operation, seconds in durations.items():
        tallies[operation].note(seconds)
    spec = AccountSpec(provider, ProviderRef(provider), (IPv4Network("34.0.0.0/8"),), clusters or (LOCAL,))
    return SimpleNamespace(spec=spec, calls=dict(calls), durations=tallies)


class StillAllocations(SimpleNamespace):
    """Allocations that are not followed; the attributes are those of :class:`hub.allocating.run.Allocating`."""

    def __init__(self, **more: Any) -> None:
        nodes = {
            "n1": build.node("n1", labels=READY),
            "n2": build.node("n2"),
            "n3": build.node("n3", unschedulable=True),
            "master": build.node("master", labels={LABEL_CONTROL_PLANE: ""}),
        }
        super().__init__(
            leading=True,
            known=[Allocation("web", "1", ("", "1"), (A1, A2), min_attached=2)],
            records=SimpleNamespace(
                statuses={"web": Status(addresses=(Entry(A1, "Attached", node="n1"), Entry(A2, "Pending", "NoNode")))},
                failing={},
            ),
            tallies=Tallies(),
            nodes={LOCAL: nodes},
            accounts={},
        )
        vars(self).update(more)
        self.sites = SimpleNamespace(nodes=self._nodes)

    def _nodes(self, cluster: str) -> Mapping[str, Node]:
        return dict(self.nodes.get(cluster, {}))

    def status(self, *entries: Entry, name: str = "web") -> StillAllocations:
        """Set the status of an allocation."""
        self.records.statuses[name] = Status(addresses=entries)
        return self


def rows(allocating: Any, *, environ: Mapping[str, str] = ENV, hub: Any = None) -> dict[str, Series]:
    """Family without its prefix -> labels -> value."""
    collected = collect(hub or hub_with(allocating), cast("Any", allocating), environ)
    return {metric.name.removeprefix(c.PREFIX): dict(found) for metric, found in collected}


def hub_with(allocating: Any, **more: Any) -> Any:
    """A hub with these allocations, whose event loop has just run."""
    still = StillHub(allocating=allocating, registry=registry(allocations=AllocationsSpec({})))
    still.health = SimpleNamespace(beat=still.clock.now(), local_synced=True, stopping=False, **more)
    return still


# --- which series there are ------------------------------------------------------------------------------


def test_all_families_come_in_the_order_of_the_catalog() -> None:
    """Each has its name, type and labels, and every series has as many values as labels."""
    full = StillAllocations(accounts={"gcp": account("gcp", calls={("attach", "QuotaExceeded"): 1}, attach=1.0)})
    full.tallies.moves[LOCAL, "Gone"] = Tally(c.MOVE_SECONDS.buckets)
    full.tallies.seconds["web"] = Tally(c.RECONCILE_SECONDS.buckets)
    collected = collect(hub_with(full), cast("Any", full), ENV)
    assert [(m.name, m.kind, m.labels) for m, _ in collected] == [(f.name, f.kind, f.labels) for f in c.FAMILIES]
    for metric, found in collected:
        assert found, metric.name
        assert {len(row.labels) for row in found} == {len(metric.labels)}, metric.name


def test_only_the_leader_reports_more_than_itself() -> None:
    """Another replica has the four families of the controller, and says that it does not lead."""
    found = rows(StillAllocations(leading=False))
    assert {name for name, series in found.items() if series} == {
        "controller_is_leader",
        "controller_healthy",
        "controller_ready",
        "controller_info",
    }
    assert found["controller_is_leader"] == {("prod", "hub-0"): 0}


@pytest.mark.parametrize("allocations", [None, AllocationsSpec({})])
def test_hub_without_allocations_exports_none(allocations: AllocationsSpec | None) -> None:
    """There are no families before a registry has allocations, nor after it has them no more."""
    without = StillHub(allocating=StillAllocations() if allocations is None else None)
    without.registry = registry(allocations=allocations)
    assert Collector(without)._allocations() == []


def test_allocation_that_no_pass_has_looked_at_has_no_series() -> None:
    """Nothing is known of it yet, which is not 0."""
    scene = StillAllocations()
    scene.records.statuses.clear()
    found = rows(scene)
    assert found["crd_status"] == found["ip_attached"] == found["node_cordoned"] == {}


# --- this replica ----------------------------------------------------------------------------------------


def test_controller_series_name_this_replica() -> None:
    """The version is that of the environment, otherwise the hub's own; the cluster may be without a name."""
    assert rows(StillAllocations())["controller_info"] == {("prod", "1.1.0", "hub-0"): 1}
    [(cluster, version, pod)] = rows(StillAllocations(), environ={})["controller_info"]
    assert (cluster, version) == ("", __version__)
    assert pod


def test_health_is_that_of_the_probes() -> None:
    """A hub that stops is alive and not ready; one without a heartbeat is neither."""
    hub, key = hub_with(StillAllocations()), ("prod", "hub-0")

    def health() -> tuple[Any, Any]:
        found = rows(StillAllocations(), hub=hub)
        return found["controller_healthy"][key], found["controller_ready"][key]

    assert health() == (1, 1)
    hub.health.stopping = True
    assert health() == (1, 0)
    hub.health.beat -= 60
    assert health() == (0, 0)


# --- allocations -----------------------------------------------------------------------------------------


def test_attached_and_unattached_addresses_are_counted() -> None:
    """Every address has one series; one without a node has the node none and 0."""
    found, web = rows(StillAllocations()), ("prod", "web")
    assert found["ip_attached"] == {(*web, A1, "n1"): 1, (*web, A2, "none"): 0}
    counts = [found[f"{name}_ips_total"][web] for name in ("reserved", "attached", "unattached")]
    assert counts == [2, 1, 1]


@pytest.mark.parametrize(
    ("state", "attached"),
    [("Attached", 1), ("Leaving", 1), ("Unknown", 1), ("Detaching", 0), ("Elsewhere", 0), ("Attaching", 0)],
)
def test_address_counts_as_attached_while_nothing_says_otherwise(state: str, attached: int) -> None:
    """An address of which the cloud says nothing stays where it was; one that moves is on no node."""
    scene = StillAllocations().status(Entry(A1, state, node="n1"), Entry(A2, "Pending"))
    assert rows(scene)["attached_ips_total"]["prod", "web"] == attached


@pytest.mark.parametrize(("least", "deleting", "missing"), [(2, False, 1), (1, False, 0), (0, False, 0), (2, True, 0)])
def test_unattached_addresses_are_those_that_are_required(least: int, deleting: bool, missing: int) -> None:
    """Spare addresses are not missing, and a deleted allocation requires none."""
    known = [Allocation("web", "1", ("", "1"), (A1, A2), min_attached=least, deleting=deleting)]
    assert rows(StillAllocations(known=known))["unattached_ips_total"]["prod", "web"] == missing


def test_allocation_of_a_remote_cluster_has_its_name() -> None:
    """The label `cluster` is `spec.cluster`."""
    scene = StillAllocations(known=[Allocation("web", "1", ("", "1"), (A1,), cluster="eu")])
    scene.nodes = {"eu": {"n1": build.node("n1", labels=READY)}}
    found = rows(scene)
    assert found["crd_status"] == {("eu", "web"): 1}
    assert found["node_ip_ready"] == {("eu", "n1", "web"): 1}
    assert found["node_cordoned"] == {("eu", "n1"): 0}


def test_waiting_addresses_are_counted_by_reason() -> None:
    """Pending and leaving addresses have their reason, others their state; attached and released ones do not wait."""
    scene = StillAllocations().status(
        Entry(A1, "Attached", node="n1"),
        Entry(A2, "Pending", "NoNode"),
        Entry(A3, "Leaving", "Withheld", node="n2"),
        Entry("34.1.2.4", "Leaving", "Withheld", node="n3"),
        Entry("34.1.2.5", "Attaching", "Drained"),
        Entry("34.1.2.6", "Elsewhere", "Stranger"),
        Entry("34.1.2.7", "Released", "Retain"),
        Entry("junk", "Invalid", "NotAnAddress"),
    )
    found = rows(scene)
    reasons = {labels[2]: number for labels, number in found["waiting"].items()}
    assert reasons == {"NoNode": 1, "Withheld": 2, "Attaching": 1, "Elsewhere": 1, "Invalid": 1}
    assert found["withheld"] == {("prod", "web"): 2}
    assert set(reasons) <= {*c.WAITING_REASONS}


@pytest.mark.parametrize(
    ("entry", "error", "failing"),
    [
        (Entry(A1, "Attached", node="n1"), "", False),
        (Entry(A1, "Pending", "NoNode"), "", False),
        (Entry(A1, "Unknown", "NoAnswer"), "", False),
        (Entry(A1, "Invalid", "NotReserved"), "", True),
        (Entry(A1, "Conflict", "Claimed"), "", True),
        (Entry(A1, "Elsewhere", "Stranger"), "", True),
        (Entry(A1, "Pending", "Backoff"), "transient", False),
        (Entry(A1, "Pending", "Backoff"), "terminal", True),
        (Entry(A1, "Attached", node="n1"), "terminal", False),
    ],
)
def test_crd_status_is_0_if_a_person_must_act(entry: Entry, error: Any, failing: bool) -> None:
    """Too few nodes and an answer that is missing are no reason; a terminal error is one until the address is well."""
    outcomes = {A1: Outcome("attach", "token", 1.0, 1.0, error)}
    assert is_failing(Status(addresses=(entry,)), outcomes) is failing
    scene = StillAllocations()
    scene.records.failing["web"] = failing
    assert rows(scene)["crd_status"] == {("prod", "web"): not failing}


@pytest.mark.parametrize(("reason", "failing"), [("CloudFailed", True), ("ClusterUnknown", False), ("Paused", False)])
def test_crd_status_is_0_if_the_account_is_frozen(reason: str, failing: bool) -> None:
    """A stalled allocation is one for a person only if its account had a terminal error."""
    assert is_failing(Status(conditions=(Condition("Stalled", "True", reason),)), {}) is failing


def test_counts_begin_at_0() -> None:
    """An allocation has both results from its first pass on, so that rate() sees the first error."""
    scene = StillAllocations()
    scene.tallies.passes = {("web", "success"): 3}
    scene.tallies.steps = {("web", "attach", "error"): 2, ("web", "detach", "success"): 1}
    found, web = rows(scene), ("prod", "web")
    assert found["reconcile_total"] == {(*web, "success"): 3, (*web, "error"): 0}
    assert found["ip_attach_total"] == {(*web, "success"): 0, (*web, "error"): 2}
    assert found["ip_detach_total"] == {(*web, "success"): 1, (*web, "error"): 0}


# --- nodes -----------------------------------------------------------------------------------------------


def test_nodes_of_an_allocation_are_those_that_it_uses() -> None:
    """The node that has an address, the one that had it, and the next one are there; a node that is gone is not."""
    move = Move("m1", "Drained", "Attaching", "n3", "n2")
    scene = StillAllocations().status(
        Entry(A1, "Attached", node="n1", last_node="gone"), Entry(A2, "Attaching", last_node="n3", move=move)
    )
    assert rows(scene)["node_ip_ready"] == {
        ("prod", "n1", "web"): 1,
        ("prod", "n2", "web"): 0,
        ("prod", "n3", "web"): 0,
    }


def test_cordoned_nodes_are_those_that_allocations_select() -> None:
    """Without a selector all but control plane, with one those that fit, and always those that have an address."""
    scene = StillAllocations()
    assert rows(scene)["node_cordoned"] == {("prod", "n1"): 0, ("prod", "n2"): 0, ("prod", "n3"): 1}
    scene.known = [Allocation("web", "1", ("", "1"), (A1,), selector=(("pool", "edge"),))]
    scene.nodes[LOCAL]["n4"] = build.node("n4", labels={"pool": "edge"})
    assert rows(scene)["node_cordoned"] == {("prod", "n1"): 0, ("prod", "n4"): 0}


# --- clouds and moves --------------------------------------------------------------------------------------


def test_calls_of_accounts_are_added_up_by_provider() -> None:
    """Errors count for each cluster of the account and begin at 0; only accounts of gcp have the gcp families."""
    gcp = account("gcp", LOCAL, "eu", calls={("attach", ""): 4, ("attach", "ProviderStalled"): 1}, attach=0.2)
    more = account("gcp", calls={("attach", "Oops"): 2, ("attach", "ProviderStalled"): 1}, attach=2.0)
    aws = account("aws", calls={("describe", "QuotaExceeded"): 5}, describe=0.05)
    found = rows(StillAllocations(accounts={"a": gcp, "b": more, "c": aws}))
    assert {labels: number for labels, number in found["gcp_api_errors_total"].items() if number} == {
        ("prod", "attach", "Timeout"): 2,
        ("prod", "attach", "TransientProviderError"): 2,
        ("eu", "attach", "Timeout"): 1,
    }
    assert len(found["gcp_api_errors_total"]) == 2 * len(c.ERROR_TYPES)
    assert {labels: number for labels, number in found["cloud_api_errors_total"].items() if labels[1] == "aws"} == {
        ("prod", "aws", "describe", type_): 5 * (type_ == "QuotaExceeded") for type_ in c.ERROR_TYPES
    }
    assert found["cloud_api_calls_total"] == {("a", "attach"): 5, ("b", "attach"): 3, ("c", "describe"): 5}
    counts = {labels: (sum(value.counts), value.sum) for labels, value in found["cloud_api_duration_seconds"].items()}
    assert counts == {("gcp", "attach"): (2, pytest.approx(2.2)), ("aws", "describe"): (1, pytest.approx(0.05))}
    assert {labels: sum(value.counts) for labels, value in found["gcp_api_duration_seconds"].items()} == {
        ("prod", "attach"): 2,
        ("eu", "attach"): 1,
    }


def test_moves_into_clusters_that_are_gone_have_no_series() -> None:
    """The durations of moves end with the last account of their cluster."""
    scene = StillAllocations(accounts={"gcp": account("gcp")})
    for cluster in (LOCAL, "eu"):
        tally = scene.tallies.moves[cluster, "Gone"] = Tally(c.MOVE_SECONDS.buckets)
        tally.note(4.0)
    assert rows(scene)["move_duration_seconds"] == {
        ("prod", "Gone"): Durations(c.MOVE_SECONDS.buckets, (0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0), 4.0)
    }


# --- the text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_text_has_the_names_of_ip_address_controller(accept: str) -> None:
    """Three gauges end in _total, and the info is a series of value 1."""
    scene = StillAllocations()
    hub = hub_with(scene)
    collected = collect(hub, cast("Any", scene), ENV)
    _, body = Metrics(Collector(hub))._encode(collected, accept)
    lines = body.decode().splitlines()
    for line in (
        "# TYPE netipallocation_reserved_ips_total gauge",
        'netipallocation_reserved_ips_total{cluster="prod",crd_name="web"} 2.0',
        'netipallocation_controller_info{cluster="prod",pod_name="hub-0",version="1.1.0"} 1.0',
        'netipallocation_reconcile_total{cluster="prod",crd_name="web",status="error"} 0.0',
    ):
        assert line in lines
    if not accept:
        found = {family.name for family in text_string_to_metric_families(body.decode())}
        assert "netipallocation_controller_info" in found
