"""Collecting metrics from the state: sums follow every change, and several sources of a cluster are merged."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.guard import Withheld
from hub.decide.view import NodeReport, ViewResult
from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.secret import Secret
from hub.model import (
    DRAINING,
    FAILED,
    LABEL_SERVICE_NAME,
    LABEL_SOURCE_CLUSTER,
    PUBLISHED,
    Conditions,
    Endpoint,
    Finding,
    ObjectKey,
    Slice,
    SourceView,
    TargetKey,
)
from hub.observe.remote.fleet import SourceKey
from hub.observe.remote.status import ClusterStatus, State
from hub.registry.spec import NodePolicy, ProviderRef, Registry, RegistryHeld, SourceSpec, TargetSpec
from hub.report import collect
from hub.report.collect import Collector, Durations, Row
from hub.report.collect_slices import Published, Sums
from hub.report.metrics_catalog import (
    CLUSTER_NODES,
    CLUSTER_SUCCESS,
    CONDITIONS,
    ENDPOINTS,
    FINDINGS,
    PREFIX,
    SOURCE_FAILING,
    SOURCE_SUCCESS,
    UNKNOWN_SOURCES,
)
from tests.support import build
from tests.support.clocks import ManualClock
from tests.unit.report.still import StillHub, registry

NOW, WALL = 500.0, 1.8e9
WORDS = {PUBLISHED: "ready", Conditions(): "ready", DRAINING: "draining", FAILED: "failed"}


# --- slices --------------------------------------------------------------------------------------------

slices = st.builds(
    lambda number, target, cluster, family, conditions: Slice(
        "edge",
        f"s{number}",
        family,
        tuple(Endpoint((f"10.0.0.{index}",), condition) for index, condition in enumerate(conditions)),
        labels={LABEL_SERVICE_NAME: target, LABEL_SOURCE_CLUSTER: cluster},
    ),
    st.integers(0, 4),
    st.sampled_from(["payments", "orders"]),
    st.sampled_from(["eu", "us"]),
    st.sampled_from(["IPv4", "IPv6"]),
    st.lists(st.sampled_from(list(WORDS)), max_size=4),
)


@settings(deadline=None)
@given(st.lists(st.lists(slices, max_size=5), max_size=5))
def test_sums_are_those_of_the_slices_there_are(rounds: list[list[Slice]]) -> None:
    """After any additions, changes and removals, the sums equal a complete count of the present slices."""
    published = Published()
    for values in rounds:
        there = {ObjectKey(value.namespace, value.name): value for value in values}
        for key, value in there.items():
            published.add(key, value)
        published.remove_missing(there)

        anew: dict[Any, Counter[str]] = {}
        for value in there.values():
            for name in ((value.target, value.address_type), (value.cluster, value.address_type)):
                counted = anew.setdefault(name, Counter())
                counted["slices"] += 1
                counted.update(WORDS[endpoint.conditions] for endpoint in value.endpoints)
        expected = {
            name: Sums(counted["ready"], counted["draining"], counted["failed"], counted["slices"])
            for name, counted in anew.items()
        }
        assert {**published.targets, **published.clusters} == expected


def test_a_target_without_slices_has_endpoint_counts_of_zero() -> None:
    """Every family of the Service has its series; if the Service does not exist, IPv4 has."""
    made = collector({}, {EU: (ALL,)})
    services: dict[TargetKey, Any] = {}
    made._hub.local = SimpleNamespace(slices={}, services=services)

    def counts() -> dict[tuple[str, ...], Any]:
        return rows(made, "_endpoints", ENDPOINTS)

    assert set(counts().items()) == {(("edge/payments", "IPv4", state), 0) for state in CONDITIONS}
    services[TargetKey("edge", "payments")] = build.service(families=("IPv6", "IPv4"))
    assert set(counts().items()) == {
        (("edge/payments", family, state), 0) for family in ("IPv6", "IPv4") for state in CONDITIONS
    }


# --- clusters and sources ------------------------------------------------------------------------------


class Source:
    """A source with given views."""

    def __init__(
        self, views: dict[NodePolicy, ViewResult], failing_since: float | None = None, scope: str = ""
    ) -> None:
        self.views = views
        self.failing_since = failing_since
        self.scope = scope

    def last_view(self, policy: NodePolicy) -> ViewResult | None:
        return self.views.get(policy)


def view(**reasons: str) -> ViewResult:
    """A view with these nodes and their reasons."""
    reports = {name: NodeReport(name, eligible=not reason, reason=reason) for name, reason in reasons.items()}
    return ViewResult(SourceView("eu", None, {}), reports)


def cluster(state: State = State.READY, answered_at: float | None = 400.0) -> Any:
    """A remote cluster in a given state."""
    status = ClusterStatus(state, WALL - 60)
    return SimpleNamespace(status=status, answered_at=answered_at, started_at=100.0, client=None)


def collector(
    sources: dict[SourceKey, Source], policies: dict[SourceKey, tuple[NodePolicy, ...]], **clusters: Any
) -> Any:
    """A collector of a hub that has only these sources, node policies and clusters."""
    specs = tuple(
        SourceSpec(key.cluster, key.provider, nodes=policy) for key, used in policies.items() for policy in used
    )
    targets = {TargetKey("edge", "payments"): TargetSpec(TargetKey("edge", "payments"), specs)}
    hub = SimpleNamespace(
        registry=Registry("default", {}, targets),
        fleet=SimpleNamespace(sources=sources, clusters=clusters, suspended=False),
        clock=SimpleNamespace(now=lambda: NOW, wall=lambda: WALL),
        client=SimpleNamespace(access=None),
        renewal=SimpleNamespace(counts={}),
        writing=True,
    )
    return Collector(cast("Any", hub))


def rows(made: Any, part: str, metric: Any) -> dict[tuple[str, ...], Any]:
    """The rows of one metric that one part of the collector adds."""
    made._rows = {}
    getattr(made, part)()
    found: list[Row] = made._rows.get(metric, [])
    return dict(found)


ALL, SOME = NodePolicy(), NodePolicy(control_plane=True)
EU = SourceKey("eu", ProviderRef("acme"))


def test_a_node_that_any_target_publishes_is_published() -> None:
    """With two node policies for one cluster each node counts once; views of unused policies do not count."""
    sources = {EU: Source({ALL: view(a="", b="taint"), SOME: view(a="taint", b="taint", c="unknown")})}
    both = collector(sources, {EU: (ALL, SOME)}, eu=cluster())
    assert rows(both, "_clusters", CLUSTER_NODES) == {
        ("eu", "published"): 1,
        ("eu", "taint"): 1,
        ("eu", "unknown"): 1,
    }
    one = collector(sources, {EU: (SOME,)}, eu=cluster())
    assert rows(one, "_clusters", CLUSTER_NODES) == {("eu", "published"): 0, ("eu", "taint"): 2, ("eu", "unknown"): 1}


def test_nodes_are_counted_again_when_the_view_changes() -> None:
    """A new view is counted again; a source without a view has no count."""
    source = Source({ALL: view(a="", b="taint")})
    made = collector({EU: source}, {EU: (ALL,)}, eu=cluster())
    assert rows(made, "_clusters", CLUSTER_NODES)["eu", "published"] == 1
    source.views[ALL] = view(a="", b="")
    assert rows(made, "_clusters", CLUSTER_NODES) == {("eu", "published"): 2}
    source.views.clear()
    assert rows(made, "_clusters", CLUSTER_NODES) == {}


def test_only_the_leader_reports_passes() -> None:
    """Results of its own passes may be outdated, so only the leader reports them."""
    made = collector({EU: Source({ALL: view(a="unknown")})}, {EU: (ALL,)}, eu=cluster())
    findings = (Finding("PanicMode", "x"), Finding("PanicMode", "y"))
    last = Decision(TargetKey("edge", "payments"), findings=findings, unknown={"us": "away"})
    made._hub.reconciler = SimpleNamespace(last=lambda _: last)
    assert rows(made, "_clusters", CLUSTER_NODES)["eu", "unknown"] == 1
    assert rows(made, "_targets", FINDINGS) == {("edge/payments", "PanicMode"): 2}
    assert rows(made, "_targets", UNKNOWN_SOURCES) == {("edge/payments",): 1}
    made._hub.writing = False
    assert rows(made, "_clusters", CLUSTER_NODES) == {}
    assert rows(made, "_targets", FINDINGS) == {}


def test_last_success_is_the_last_complete_answer() -> None:
    """A Ready cluster is current; a cluster that never answered counts from its start."""
    made = collector({}, {}, eu=cluster(), us=cluster(State.UNREACHABLE), de=cluster(State.DEGRADED, answered_at=None))
    assert rows(made, "_clusters", CLUSTER_SUCCESS) == {
        ("eu",): WALL,
        ("us",): WALL - 100,
        ("de",): WALL - 400,
    }


def test_sources_with_the_same_labels_report_the_worst() -> None:
    """Two configurations of one provider for one cluster are merged into one series."""
    other = SourceKey("eu", ProviderRef("acme", '{"lan":2}'))
    sources = {EU: Source({}, scope="dc-1"), other: Source({}, failing_since=WALL - 30, scope="dc-1")}
    made = collector(sources, {})
    assert rows(made, "_sources", SOURCE_FAILING) == {("eu", "acme", "dc-1"): True}
    assert rows(made, "_sources", SOURCE_SUCCESS) == {("eu", "acme", "dc-1"): WALL - 30}


def metrics(hub: StillHub) -> dict[str, dict[tuple[str, ...], Any]]:
    """All metrics of a hub with at least one series, by name without the prefix."""
    return {
        metric.name.removeprefix(PREFIX): dict(found)
        for metric, found in Collector(cast("Any", hub)).collect()
        if found
    }


def working() -> StillHub:
    """A hub whose every part has something to count."""
    tally = SimpleNamespace(bounds=(1.0,), counts=[1, 0], sum=0.5)
    held = {GroupKey("eu", "IPv4"): Withheld("RemovalWithheld", "a", ("10.0.0.1", "10.0.0.2"), 7.0, "x")}
    held[GroupKey("us", "IPv4")] = Withheld("RemovalWithheld", "b", ("10.1.0.1",), 5.0, "y")
    key, broken = TargetKey("edge", "payments"), TargetKey("edge", "orders")
    loops = Loops(2, 3)
    credentials = Credentials(
        ClusterAccess("https://192.0.2.1", Token(Secret("opaque")), "a test"), cast("Any", ManualClock())
    )
    hub = StillHub(
        build.slice("a", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2", None, FAILED)]),
        build.slice("old", [build.endpoint("10.9.0.1")], service="dropped"),
        registry=registry("local", "eu", broken_clusters={"us": "x"}, broken_targets={broken: "y"}),
        reloads={"accepted": 3, "rejected": 1},
        rejected="line 1",
        reloaded_at=9.0,
        host=SimpleNamespace(
            loops=loops,
            stats={"acme": SimpleNamespace(outcomes={"answered": 4}, seconds=tally)},
            measures=lambda: [("acme", "requests_total", "dc", 8.0), ("acme", "left", "dc", 2.0)],
        ),
        client=SimpleNamespace(access=credentials),
        renewal=SimpleNamespace(counts={("eu", "failed"): 2, ("gone", "failed"): 1}),
        writer=SimpleNamespace(writes={"create": 1}, failures={"update": 2}),
        passes=SimpleNamespace(outcomes={"done": 5}, durations=tally),
        queue=Queue([1, 2]),
    )
    hub.leading.count, hub.leading.shards = 2, SimpleNamespace(remaining=lambda: 12.0)
    hub.fleet.clusters, hub.fleet.suspended = {"eu": cluster()}, False
    hub.board.probes, hub.board.suspected = {"passed": 6}, True
    hub.board.verdict_counts = lambda: {("eu", "healthy"): 1}
    hub.decided(build.decision(withheld=held, unknown={"us": "away"}), Decision(broken))
    hub.reconciler.suppressed = {"unchanged": 3}
    hub.reconciler.latency = SimpleNamespace(seconds=tally, oldest=lambda now: now - 990.0)
    hub.reconciler.last_withheld = lambda: RegistryHeld("h", ("service a/b",), 7, 9, "hub approve")
    assert key in hub.registry.targets
    return hub


class Loops(list[Any]):
    """The event loops of providers, with the given numbers of tasks."""

    def __init__(self, *tasks: int) -> None:
        super().__init__(SimpleNamespace(tasks=number) for number in tasks)
        self.hub_stalls = SimpleNamespace(count=1, seconds=0.5)
        self.stalls = {"acme": SimpleNamespace(count=2, seconds=1.5)}

    def suspension(self, provider: str) -> str | None:
        """Why a provider is suspended."""
        return "it blocked" if provider == "acme" else None

    def abandoned_threads(self, provider: str) -> int:
        """Number of threads that still block."""
        return len(provider)


class Queue(list[int]):
    """A queue with three delayed targets."""

    delayed = 3


async def test_every_part_of_the_hub_is_counted() -> None:
    """The numbers of the process, the registry, the guard, the probes and the work are those of the hub."""
    found = metrics(working())
    durations = Durations((1.0,), (1, 0), 0.5)
    payments, orders = ("edge/payments",), ("edge/orders",)
    expected = {
        "leader": {("0",): True, ("1",): False},
        "lease_remaining_seconds": {(): 12.0},
        "hub_cluster_synced": {(): True},
        "registry_generation": {(): 3},
        "registry_reloads_total": {("accepted",): 3, ("rejected",): 1},
        "registry_rejected": {(): True},
        "registry_broken_entries": {(): 2},
        "registry_clusters": {(): 1},
        "registry_targets": {(): 1},
        "credential_renewals_total": {("eu", "failed"): 2},
        "provider_calls_total": {("acme", "answered"): 4},
        "provider_call_duration_seconds": {("acme",): durations},
        "provider_suspended": {("acme",): True},
        "provider_blocked_threads": {("acme",): 4},
        "provider_left": {("acme", "dc"): 2.0},
        "provider_requests_total": {("acme", "dc"): 8.0},
        "slices": {payments: 1},
        "orphaned_slices": {(): 1},
        "guard_withheld_since_timestamp_seconds": {payments: 5.0},
        "unknown_sources": {payments: 1, orders: 0},
        "probes_total": {("passed",): 6},
        "prober_suspected": {(): True},
        "writes_total": {("create",): 1},
        "write_failures_total": {("update",): 2},
        "writes_suppressed_total": {("unchanged",): 3},
        "change_to_publish_seconds": {(): durations},
        "reconciles_total": {("done",): 5},
        "queue_depth": {(): 2},
        "queue_delayed": {(): 3},
        "queue_oldest_seconds": {(): 10.0},
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["tasks"] == {(): len(asyncio.all_tasks()) + 5}
    assert found["guard_withheld_endpoints"]["edge/payments", "RemovalWithheld"] == 3
    assert sum(found["guard_withheld_endpoints"].values()) == 3
    assert found["endpoints"] == {
        ("edge/payments", "IPv4", "ready"): 1,
        ("edge/payments", "IPv4", "draining"): 0,
        ("edge/payments", "IPv4", "failed"): 1,
        ("edge/dropped", "IPv4", "ready"): 1,
        ("edge/dropped", "IPv4", "draining"): 0,
        ("edge/dropped", "IPv4", "failed"): 0,
    }
    assert {labels: number for labels, number in found["probed_addresses"].items() if number} == {("eu", "healthy"): 1}
    assert len(found["probed_addresses"]) == 3
    assert {state for (_, state), is_so in found["cluster_state"].items() if is_so} == {"Ready"}


async def test_withheld_removal_from_the_registry_is_reported_by_the_writer() -> None:
    """Without a withheld removal, or on a standby, no endpoints are withheld."""
    hub = working()

    def withheld() -> Any:
        return metrics(hub)["registry_withheld_endpoints"][()]

    assert withheld() == 7
    hub.reconciler.last_withheld = lambda: None
    assert withheld() == 0
    hub.reconciler.last_withheld, hub.writing = (lambda: RegistryHeld("h", (), 7, 9, "")), False
    assert withheld() == 0
    assert "guard_withheld_endpoints" not in metrics(hub)


# --- large fleets --------------------------------------------------------------------------------------


async def test_count_of_many_slices_lets_other_tasks_run_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between slices, the count takes one round of the event loop, so a scrape of a large fleet is not delayed."""
    monkeypatch.setattr(collect, "COUNT_SECONDS", -1.0)  # each slice counts as too long
    found = {ObjectKey("edge", name): Slice("edge", name, "IPv4") for name in ("s0", "s1", "s2")}
    host, local = SimpleNamespace(measure=lambda: asyncio.sleep(0)), SimpleNamespace(slices=found)
    made = Collector(cast("Any", SimpleNamespace(host=host, local=local)))
    preparing, rounds = asyncio.create_task(made.prepare()), 0
    while not preparing.done() and rounds < 100:
        await asyncio.sleep(0)
        rounds += 1
    assert preparing.done()
    assert rounds > len(found)
