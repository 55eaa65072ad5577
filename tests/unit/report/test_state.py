"""Snapshots: their content and cost, and the explanations by address."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from hub import __version__
from hub.decide.addresses import AddressPolicy
from hub.decide.checks import Check, Watch
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.explain import Facts, SourceFacts, TargetFacts, explain_address, explain_service
from hub.decide.guard import Withheld
from hub.decide.history import Entry, Named
from hub.decide.view import ViewBuilder
from hub.model import ANNOTATION_PAUSED, DRAINING, FAILED, PUBLISHED, Finding, Found, TargetKey
from hub.observe.remote.status import ClusterStatus, State
from hub.registry.spec import NodePolicy
from hub.report.detail import service_detail, verdicts
from hub.report.facts import known_targets
from hub.report.reasons import prepare_why
from hub.report.state import (
    Snapshots,
    assembled,
    cluster,
    counts,
    described,
    last_decision,
    observed,
    replica,
    sources,
    unknown_of,
)
from hub.report.values import Checked, Cluster, Noted, RegistryState, Replica, Source, Status
from hub.report.values import Service as Shown
from tests.support import build
from tests.support.waiting import until
from tests.unit.report.conftest import Watched
from tests.unit.report.still import KEY, StillHub, registry


def test_endpoints_are_counted_by_source_in_order() -> None:
    """Sources come in the registry's order, followed by clusters that are no longer sources."""
    slices = (
        build.slice("a", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2", None, DRAINING)]),
        build.slice("b", [build.endpoint("10.0.0.3")], cluster="old"),
    )
    assert list(sources(["us", "eu"], [counts(slice_) for slice_ in slices], {"us": "timeout"})) == [
        Source("us", 0, 0, "timeout"),
        Source("eu", 1, 2),
        Source("old", 1, 1),
    ]


def test_a_service_is_described_by_its_endpoints_conditions() -> None:
    """Ready, unhealthy and draining endpoints are counted separately."""
    conditions = (PUBLISHED, PUBLISHED, FAILED, DRAINING)
    endpoints = [build.endpoint(f"10.0.0.{number}", None, condition) for number, condition in enumerate(conditions)]
    found = described(Decision(KEY), [counts(build.slice("a", endpoints))], ["eu"], {}, changed=1_800_000_000.0)
    assert found == Shown(
        "edge/payments",
        ready=2,
        total=4,
        unhealthy=1,
        draining=1,
        changed="2027-01-15T08:00:00Z",
        sources=(Source("eu", 2, 4),),
    )


async def test_unchanged_state_is_the_same_object(watched: Watched) -> None:
    """Unchanged parts of a snapshot are the same objects, which makes comparing cheap."""
    snapshots = Snapshots(watched.hub)
    first = snapshots.take()
    assert snapshots.take().services[0] is first.services[0]
    watched.remote.nodes.delete("n3")
    await until(lambda: snapshots.take().services[0].total == 2)
    assert snapshots.take() != first


async def test_clusters_of_other_replicas_are_not_unknown(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """With shards, a cluster that only other replicas follow has no state here, and is not reported as unknown."""
    hub = watched.hub
    hub.fleet.update(replace(hub.registry, targets={}, clusters={}))
    assert dict(unknown_of(hub, Decision(KEY))) == {"eu": "not followed"}
    with monkeypatch.context() as patched:
        patched.setattr(hub, "leading", SimpleNamespace(count=2, writes=lambda _: False))
        assert dict(unknown_of(hub, Decision(KEY))) == {}
    assert Snapshots(hub).take().clusters == (Cluster("eu"),)


async def test_former_writer_does_not_report_old_errors(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that no longer writes does not report its old write errors."""
    watched.here.refuse(500, verb="update", resource="endpointslices")
    watched.remote.nodes.delete("n3")
    snapshots = Snapshots(watched.hub)
    await until(lambda: "500" in snapshots.take().services[0].problem)
    monkeypatch.setattr(watched.hub.leading, "writes", lambda _: False)
    assert snapshots.service(KEY).problem == ""


async def test_the_verdicts_of_probes_are_steps_of_an_explanation(watched: Watched) -> None:
    """An explanation contains the probe's verdict and the reason of a failure."""
    group = GroupKey("eu", "IPv4")
    published = (build.slice("s0", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2")]),)
    probed = {group: {"10.0.0.1": ("unhealthy", "connection refused"), "10.0.0.2": ("healthy", "")}}
    decision = build.decision(watches=[Watch(*group, Check("tcp", 80), {}, {})])
    target = TargetFacts(decision, ("eu",), published, probed)
    found = {
        address: [
            (step.outcome, step.why)
            for step in explain_address(address, Facts((), (target,)))
            if step.stage == "health"
        ]
        for address in ("10.0.0.1", "10.0.0.2")
    }
    assert found == {
        "10.0.0.1": [("unhealthy", "tcp :80 of 10.0.0.1: connection refused")],
        "10.0.0.2": [("healthy", "tcp :80 of 10.0.0.2")],
    }


@pytest.mark.parametrize("writing", [True, False])
def test_the_verdicts_on_a_node_are_those_of_all_its_checks(*, writing: bool) -> None:
    """A node has the verdicts of all checks of its own cluster, and none if this process does not probe."""
    tcp, http = (Check(mode, 80) for mode in ("tcp", "http"))
    known = {tcp: {"10.0.0.1": True, "10.0.0.2": True}, http: {"10.0.0.1": False}}
    endpoints = {address: build.endpoint(address) for address in ("10.0.0.1", "10.0.0.2")}
    watches = [Watch("eu", "IPv4", tcp, endpoints, {}), Watch("eu", "IPv4", http, endpoints, {})]
    watches.append(Watch("us", "IPv4", tcp, {"10.0.0.3": build.endpoint("10.0.0.3")}, {}))
    last = SimpleNamespace(desired=SimpleNamespace(watches=watches))
    hub = SimpleNamespace(
        writing=writing,
        writes=lambda _: writing,
        leading=SimpleNamespace(count=1),
        elector=SimpleNamespace(holder=""),
        registry=SimpleNamespace(broken_targets={}),
        reconciler=SimpleNamespace(last=lambda _: last),
        board=SimpleNamespace(verdicts=lambda: known, reason=lambda *_: "refused"),
    )
    source = SimpleNamespace(cluster="eu", services=(str(KEY),))
    found = verdicts(cast("Any", hub), cast("Any", source))
    both = {"10.0.0.1": {"healthy", "unhealthy"}, "10.0.0.2": {"healthy", "not known yet"}}
    assert found == (both if writing else {})


def followed(state: State = State.READY, error: str = "", nodes: int = 2, *, synced: bool = True) -> SimpleNamespace:
    """A remote cluster that this process follows."""
    status = ClusterStatus(state, 1_800_000_000.0, error)
    return SimpleNamespace(status=status, nodes=dict.fromkeys(range(nodes)), synced=synced)


@pytest.mark.parametrize(
    ("role", "leader", "parts"),
    [
        ("stopping", "hub-0", {"health": SimpleNamespace(stopping=True)}),
        ("leader", "hub-0", {"elector": SimpleNamespace(identity="hub-0", holder="")}),
        ("standby", "hub-1", {"writing": False, "leads": False}),
        ("starting", "", {"writing": False, "leads": False, "elector": SimpleNamespace(identity="hub-0", holder="")}),
    ],
)
def test_a_replica_has_a_role(role: str, leader: str, parts: dict[str, Any]) -> None:
    """A process that stops says so even while it leads; without a holder of the Lease, it starts."""
    hub = StillHub(**{"elector": SimpleNamespace(identity="hub-0", holder="hub-1"), "trouble": "403", **parts})
    assert replica(cast("Any", hub)) == Replica(
        __version__, "default", "hub-0", cast("Any", role), leader, error="403", shards=(0,)
    )


@pytest.mark.parametrize(
    ("remote", "problem", "expected"),
    [
        (None, None, Cluster("eu")),
        (None, "", Cluster("eu", state="Ready")),
        (None, "401", Cluster("eu", state="Degraded", error="401")),
        (followed(), None, Cluster("eu", "active", "Ready", "2027-01-15T08:00:00Z", 2)),
        (followed(), "401", Cluster("eu", "active", "Ready", "2027-01-15T08:00:00Z", 2, "401")),
        (
            followed(State.UNREACHABLE, "timeout", synced=False),
            "401",
            Cluster("eu", "active", "Unreachable", "2027-01-15T08:00:00Z", None, "timeout"),
        ),
    ],
)
def test_the_state_of_a_cluster_is_that_of_its_nodes_or_of_its_provider(
    remote: Any, problem: str | None, expected: Cluster
) -> None:
    """A cluster without followed Nodes has the state of its provider, or none if the provider is not called."""
    clusters = {"eu": remote} if remote is not None else {}
    hub = StillHub(fleet=SimpleNamespace(clusters=clusters, sources={}, problem=lambda _: problem))
    assert cluster(cast("Any", hub), "eu") == expected


def test_hub_cluster_is_listed_only_with_an_error() -> None:
    """Clusters come in the registry's order, with broken entries at the end; the hub cluster only if it fails."""
    broken = registry("local", "eu", broken_clusters={"us": "no kubeconfig"}, targets={})
    hub = StillHub(registry=broken, rejected="line 1", problems=("us: no kubeconfig",))
    assert assembled(cast("Any", hub), ()) == Status(
        Replica(__version__, "default", "hub-0", "leader", "hub-0", shards=(0,)),
        RegistryState(None, "line 1", ("us: no kubeconfig",)),
        (Cluster("eu"), Cluster("us", "broken", error="no kubeconfig")),
    )
    hub.fleet.problem = lambda name: "403" if name == "local" else None
    hub.rejected = None
    found = assembled(cast("Any", hub), (), "observer")
    assert found.clusters[0] == Cluster("local", state="Degraded", error="403")
    assert (found.hub.role, found.registry.rejected) == ("observer", "")


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ({}, "no decision yet"),
        ({"writing": False}, "standby: as published"),
        ({"writing": False, "elector": SimpleNamespace(holder="")}, "no decision yet"),
        ({"elector": SimpleNamespace(holder="")}, "no decision yet"),
        ({"registry": registry(broken_targets={KEY: "no port"}), "writing": False}, "frozen: no port"),
        ({"writes": lambda _: False}, "no decision yet"),
    ],
)
def test_a_service_without_a_decision_says_why(parts: dict[str, Any], status: str) -> None:
    """A process without a decision about a Service says whether it will make one."""
    assert last_decision(cast("Any", StillHub(**parts)), KEY) == Decision(KEY, status=status)


@pytest.mark.parametrize(("holder", "named"), [("hub-7", "hub-7"), ("", "no replica")])
def test_a_service_of_another_shard_names_its_writer(holder: str, named: str) -> None:
    """A decision of this process is used only while it writes the Service; else the holder of the shard is named."""
    hub = StillHub()
    hub.leading.count, hub.leading.shard, hub.leading.holder_of = 2, lambda _: 1, lambda _: holder
    hub.decided(Decision(KEY, status="paused"))
    assert last_decision(cast("Any", hub), KEY).status == "paused"
    hub.writes = lambda _: False
    assert last_decision(cast("Any", hub), KEY).status == f"{named} writes shard 1: as published"


def test_unknown_sources_are_those_of_the_decision_or_of_now() -> None:
    """Without a decision, each source is checked once, except those whose reason is known already."""
    hub = StillHub(registry=registry("eu", "us", "asia"))
    hub.unknown(eu="timeout", us="401")
    checked = cast("Any", hub)
    assert unknown_of(checked, build.decision(unknown={"old": "gone"})) == {"old": "gone"}
    assert hub.viewed == []
    assert unknown_of(checked, Decision(KEY, unknown={"eu": "since then"})) == {"eu": "since then", "us": "401"}
    assert hub.viewed == ["us", "asia"]
    hub.viewed.clear()
    cache: dict[Any, str | None] = {}
    for _ in range(2):
        assert unknown_of(checked, Decision(KEY), cache) == {"eu": "timeout", "us": "401"}
    assert hub.viewed == ["eu", "us", "asia"]
    assert unknown_of(checked, Decision(TargetKey("edge", "none"))) == {}
    hub.leading.count = 2
    assert unknown_of(checked, Decision(KEY)) == {"eu": "timeout", "us": "401"}
    hub.writes = lambda _: False
    assert unknown_of(checked, Decision(KEY, unknown={"a": "b"})) == {"a": "b"}


def test_whole_service_of_a_hub_that_observed_once() -> None:
    """``hub status`` without a running hub reports what is published, what is unknown, and the pause annotation."""
    slices = (
        build.slice("a", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2", None, FAILED)]),
        build.slice("b", [build.endpoint("10.0.0.3")], cluster="us"),
    )
    hub = StillHub(*slices, registry=registry("eu", "asia"))
    hub.unknown(asia="timeout")
    hub.local.services[KEY] = build.service(annotations={ANNOTATION_PAUSED: "true"})
    other = TargetKey("edge", "orders")
    found = observed(cast("Any", hub), [Decision(KEY, status="paused"), Decision(other)])
    assert found.hub.role == "observer"
    assert found.services == (
        Shown(
            "edge/payments",
            "paused",
            paused=True,
            ready=2,
            total=3,
            unhealthy=1,
            sources=(Source("eu", 1, 2), Source("asia", unknown="timeout"), Source("us", 1, 1)),
        ),
        Shown("edge/orders"),
    )
    hub.local.services[KEY] = build.service(annotations={ANNOTATION_PAUSED: "false"})
    assert not observed(cast("Any", hub), [Decision(KEY)]).services[0].paused


def test_snapshot_follows_every_part_of_a_service() -> None:
    """Each part of a Service's state changes its value; a part that does not change keeps the object."""
    hub = StillHub(build.slice("a", [build.endpoint("10.0.0.1")]), registry=registry("eu", notes={}))
    hub.unknown()
    snapshots = Snapshots(cast("Any", hub))
    value = Shown("edge/payments", "no decision yet", ready=1, total=1, sources=(Source("eu", 1, 1),))

    def seen() -> Shown:
        [found] = snapshots.take().services
        assert snapshots.take().services[0] is found
        assert snapshots.service(KEY) is found
        return found

    assert seen() == value
    hub.reconciler.written_at = lambda _: 1_800_000_000.0
    value = replace(value, changed="2027-01-15T08:00:00Z")
    assert seen() == value
    hub.reconciler.problem = lambda _: "409"
    assert seen() == replace(value, problem="409")
    hub.unknown(eu="timeout")
    value = replace(value, problem="409", sources=(Source("eu", 1, 1, "timeout"),))
    assert seen() == value
    hub.local.services[KEY] = build.service(annotations={ANNOTATION_PAUSED: "true"})
    assert seen() == replace(value, paused=True)
    del hub.local.services[KEY]
    assert seen() == value
    check = Check("tcp", 80)
    hub.decided(build.decision(watches=[Watch("eu", "IPv4", check, {}, {})], findings=(Finding("PanicMode", "x"),)))
    value = replace(
        value,
        status="",
        sources=(Source("eu", 1, 1),),
        findings=(Noted("PanicMode", "x"),),
        checks=(Checked("tcp :80", "probed"),),
    )
    assert seen() == value
    hub.writes = lambda _: False
    assert seen() == replace(
        value, status="no decision yet", problem="", findings=(), checks=(), sources=(Source("eu", 1, 1, "timeout"),)
    )
    hub.writes, hub.registry = (lambda _: True), registry("us")
    assert [source.cluster for source in seen().sources] == ["us", "eu"]
    hub.decided(Decision(KEY, status="gone"))
    assert snapshots.take().services == ()


def test_broken_and_noted_services_are_listed() -> None:
    """Services of the registry, broken entries, notes and Services with slices are listed once each, sorted."""
    keys = [TargetKey("edge", name) for name in ("a", "b", "c", "d")]
    hub = StillHub(
        build.slice("s", service="d"),
        registry=registry(
            targets={keys[2]: build.target(name="c")},
            broken_targets={keys[1]: "no port"},
            notes={keys[0]: Finding("CopyNotAllowed", "x"), keys[2]: Finding("CopyNotAllowed", "x")},
        ),
    )
    assert [service.name for service in Snapshots(cast("Any", hub)).take().services] == [str(key) for key in keys]
    assert known_targets(cast("Any", hub)) == set(keys)


def facts(nodes: int) -> Facts:
    """Facts of a Service with two sources, one of them unknown, whose nodes have all kinds of outcomes."""
    policy = AddressPolicy(build.networks("10.0.0.0/8"), build.networks("10.66.0.0/16"))
    found = []
    for name, unknown in (("eu", None), ("us", "timeout")):
        high = {"eu": 1, "us": 2}[name]
        all_nodes = {f"{name}{n}": build.node(f"{name}{n}", ready=n % 7 != 0) for n in range(nodes)}
        answers: Any = {node: Found((f"10.{high}.{n // 250}.{n % 250 // 2 + 1}",)) for n, node in enumerate(all_nodes)}
        result = ViewBuilder(name, NodePolicy(), policy, 10_000).build(all_nodes, answers, build.READY_SINCE_WALL + 1e6)
        found.append(SourceFacts(name, (str(KEY),), unknown, result, answers, all_nodes))
    published = tuple(
        build.slice(f"s{part}", [build.endpoint(f"10.1.0.{n}", f"eu{n}") for n in range(part * 50 + 1, part * 50 + 51)])
        for part in range(2)
    )
    withheld = Withheld("RemovalWithheld", "abc", ("10.1.0.3",), 0.0, "1 would go", "hub approve edge/payments abc")
    decision = build.decision(withheld={GroupKey("eu", "IPv4"): withheld}, unknown={"us": "timeout"})
    target = TargetFacts(decision, ("eu", "us"), published)
    return Facts(tuple(found), (target,), {"eu": policy})


def test_an_explanation_by_address_is_the_one_of_hub_why() -> None:
    """An explanation from the facts of one address equals the explanation from all facts."""
    everything = facts(300)
    detail = service_detail(Shown(str(KEY)), KEY, everything, 0, 1000)
    assert detail.number == len(detail.addresses) > 100
    for address in detail.addresses:
        whole = [
            (step.stage, step.where, step.outcome, step.why) for step in explain_address(address.address, everything)
        ]
        assert [(step.stage, step.where, step.outcome, step.why) for step in address.steps] == whole, address.address
    assert [step.why for step in detail.steps] == [step.why for step in explain_service(KEY, everything)]


def test_addresses_that_need_attention_come_first() -> None:
    """Addresses that need attention come first, across all parts of the list."""
    endpoints = [
        build.endpoint("10.0.0.1"),
        build.endpoint("10.0.0.2", None, FAILED),
        build.endpoint("10.0.0.3", None, DRAINING),
    ]
    target = TargetFacts(build.decision(), ("eu",), (build.slice("s0", endpoints),))
    detail = service_detail(Shown(str(KEY)), KEY, Facts((), (target,)), 0, 2)
    assert [(address.address, address.state) for address in detail.addresses] == [
        ("10.0.0.2", "unhealthy"),
        ("10.0.0.3", "draining"),
    ]
    rest = service_detail(Shown(str(KEY)), KEY, Facts((), (target,)), 2, 2)
    assert [address.address for address in rest.addresses] == ["10.0.0.1"]
    assert (rest.offset, rest.number) == (2, 3)


async def test_a_big_fleet_is_looked_at_in_a_blink(watched: Watched) -> None:
    """A second snapshot of 2,000 unchanged Services with 100 endpoints each takes a fraction of a second."""
    hub: Any = watched.hub
    endpoints = [build.endpoint(f"10.1.{n // 250}.{n % 250 + 1}") for n in range(100)]
    slices = {
        TargetKey("edge", f"s{n}"): {f"s{n}-0": build.slice(f"s{n}-0", endpoints, service=f"s{n}")} for n in range(2000)
    }
    passes = {key: Decision(key) for key in slices}
    store = SimpleNamespace(
        of=lambda key: slices.get(key, {}),
        targets=slices.keys,
        values=lambda: [slice_ for one in slices.values() for slice_ in one.values()],
    )
    big = cast("Any", Hub(hub, store, passes))
    snapshots = Snapshots(big)
    first = snapshots.take()
    started = time.perf_counter()
    again = snapshots.take()
    took = time.perf_counter() - started
    assert len(again.services) > 2000 - 1
    assert all(one is other for one, other in zip(first.services, again.services, strict=True))
    assert took < 0.5, f"{took:.3f} s"  # 0.03 s measured; a machine under load is no failure


class Hub:
    """A hub with given slices and passes."""

    def __init__(self, hub: Any, store: Any, passes: Any) -> None:
        self._hub = hub
        self.local = SimpleNamespace(slices=store, services=hub.local.services, synced=True, error="")
        self.reconciler = SimpleNamespace(
            last=passes.get,
            written_at=lambda _: None,
            problem=lambda _: "",
            withheld=lambda: None,
            view=hub.reconciler.view,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)


@pytest.mark.parametrize("reason", [None, "ApprovalUsed"])
async def test_an_address_that_is_gone_is_explained_by_the_history(watched: Watched, reason: str | None) -> None:
    """What the history says about an address that no slice has is shown, also while a finding names the address."""
    key, gone = TargetKey("edge", "payments"), "10.0.0.99"
    entry = Entry(1_800_000_000, "removed", "its node is gone", "eu", "IPv4", (Named(gone, "n9"),), 1)
    watched.hub.history.add(key, [entry])
    findings = (Finding(reason, "1 endpoints may go: approved", (gone,)),) if reason else ()
    why = prepare_why(watched.hub, gone, [Decision(key, findings=findings)])()
    assert (why.known, why.hint) == (True, "")
    history = [(step.outcome, step.why) for step in why.steps if step.stage == "history"]
    assert history == [
        ("removed", f"2027-01-15T08:00:00Z: {gone}, node n9 of eu: its node is gone"),
        ("gone", f"no cluster and no slice has the address {gone} now"),
    ]
    assert [step.outcome for step in why.steps if step.stage == "service"] == ([reason] if reason else [])
