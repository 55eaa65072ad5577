"""Snapshots: their content and cost, and the explanations by address."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from hub.decide.addresses import AddressPolicy
from hub.decide.checks import Check, Watch
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.explain import Facts, SourceFacts, TargetFacts, explain_address, explain_service
from hub.decide.guard import Withheld
from hub.decide.history import Entry, Named
from hub.decide.view import ViewBuilder
from hub.model import DRAINING, FAILED, PUBLISHED, Finding, Found, TargetKey
from hub.registry.spec import NodePolicy
from hub.report.detail import service_detail, verdicts
from hub.report.reasons import prepare_why
from hub.report.state import Snapshots, counts, described, sources, unknown_of
from hub.report.values import Cluster, Source
from hub.report.values import Service as Shown
from tests.support import build
from tests.support.waiting import until
from tests.unit.report.conftest import Watched

KEY = TargetKey("edge", "payments")


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


def facts(nodes: int) -> Facts:
    """Facts of a Service with two sources, one of them unknown, whose nodes have all kinds of outcomes."""
    policy = AddressPolicy(build.networks("10.0.0.0/8"), build.networks("10.66.0.0/16"))
    found = []
    for cluster, unknown in (("eu", None), ("us", "timeout")):
        high = {"eu": 1, "us": 2}[cluster]
        all_nodes = {f"{cluster}{n}": build.node(f"{cluster}{n}", ready=n % 7 != 0) for n in range(nodes)}
        answers: Any = {name: Found((f"10.{high}.{n // 250}.{n % 250 // 2 + 1}",)) for n, name in enumerate(all_nodes)}
        result = ViewBuilder(cluster, NodePolicy(), policy, 10_000).build(
            all_nodes, answers, build.READY_SINCE_WALL + 1e6
        )
        found.append(SourceFacts(cluster, (str(KEY),), unknown, result, answers, all_nodes))
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
