"""The facts that explanations are built from: which sources and targets, and what is known about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hub.decide.checks import Check, Watch
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.model import Found, TargetKey
from hub.observe.remote.fleet import SourceKey
from hub.registry.spec import ClusterSpec, NodePolicy
from hub.report.facts import copied, gather, inspected, probed, unknown_sources
from tests.support import build
from tests.unit.report.still import KEY, PROVIDER, StillHub, registry

OTHER = TargetKey("edge", "orders")


def seen(hub: StillHub, cluster: str | None = None) -> list[tuple[str, str, tuple[str, ...], str | None]]:
    """The sources of a hub: cluster, provider, Services, and why the source is unknown."""
    found = inspected(cast("Any", hub), cluster)
    return [(one.cluster, one.provider, one.services, one.unknown) for one in found]


def clusters(**parts: Any) -> dict[str, ClusterSpec]:
    """Clusters: with the provider if True, without one if False, or frozen."""
    return {
        name: ClusterSpec(name, PROVIDER if part else None, state="frozen" if part == "frozen" else "active")
        for name, part in parts.items()
    }


def test_sources_come_in_the_order_of_the_file() -> None:
    """A source lists the Services that use exactly it; clusters without a Service appear if they have nodes."""
    some = NodePolicy(control_plane=True)
    targets = {
        KEY: build.target("eu", "us"),
        OTHER: build.target(name="orders", sources=(build.source("eu", nodes=some), build.source("us"))),
    }
    found = registry(
        clusters=clusters(us=True, idle=True, bare=False, ice="frozen", eu=True),
        targets=targets,
        broken_clusters={"bad": "no kubeconfig"},
    )
    hub = StillHub(registry=found)
    hub.unknown(us="timeout")
    assert seen(hub) == [
        ("us", "node-addresses", (str(KEY), str(OTHER)), "timeout"),
        ("idle", "node-addresses", (), None),
        ("ice", "node-addresses", (), "state frozen: not contacted"),
        ("eu", "node-addresses", (str(KEY),), None),
        ("eu", "node-addresses", (str(OTHER),), None),
        ("bad", "", (), "no kubeconfig"),
    ]
    assert seen(hub, "bare") == [("bare", "", (), "no Service uses it with a provider")]
    assert seen(hub, "us") == seen(hub)[:1]
    assert seen(hub, "none") == []


def test_source_of_a_cluster_that_the_registry_dropped_is_unknown() -> None:
    """A target of another file may name a cluster that is not in the registry."""
    hub = StillHub(registry=registry("eu", targets={KEY: build.target("old")}))
    [found] = gather(cast("Any", hub), [], [KEY, OTHER]).sources
    assert (found.cluster, found.unknown) == ("old", "not in the registry")


def test_facts_about_some_targets_have_only_their_sources() -> None:
    """Nodes, answers and address policies are those of the sources; the hub cluster has no policy."""
    hub = StillHub(
        build.slice("a", [build.endpoint("10.0.0.1")]),
        registry=registry("local", "eu", "us", targets={KEY: build.target("local", "eu")}),
    )
    node, answer = build.node("n1"), Found(("10.0.0.1",))
    hub.fleet.clusters["eu"] = SimpleNamespace(nodes={"n1": node})
    hub.fleet.sources[SourceKey("eu", PROVIDER)] = SimpleNamespace(resolutions={"n1": answer})
    decision = Decision(KEY)
    found = gather(cast("Any", hub), [decision], [KEY])
    assert [(source.cluster, source.nodes, source.resolutions) for source in found.sources] == [
        ("local", {}, {}),
        ("eu", {"n1": node}, {"n1": answer}),
    ]
    [target] = found.targets
    assert (target.decision, target.sources, [slice_.name for slice_ in target.slices]) == (
        decision,
        ("local", "eu"),
        ["a"],
    )
    assert list(found.policies) == ["eu"]
    everything = gather(cast("Any", hub), [])
    assert (list(everything.policies), [source.cluster for source in everything.sources]) == (
        ["eu", "us"],
        ["local", "eu", "us"],
    )
    copy = copied(found)
    hub.fleet.clusters["eu"].nodes.clear()
    assert (copy.sources[1].nodes, copy.targets, copy.policies) == ({"n1": node}, found.targets, found.policies)


@pytest.mark.parametrize("writing", [True, False])
def test_verdicts_are_known_only_while_this_process_writes(*, writing: bool) -> None:
    """Verdicts have words and the reason of the last failure; a process that does not write has none."""
    check = Check("tcp", 80)
    reasons = {"10.0.0.2": "refused"}
    board = SimpleNamespace(
        verdicts=lambda: {check: {"10.0.0.1": True, "10.0.0.2": False}},
        reason=lambda _, address: reasons.get(address, ""),
    )
    addresses = {address: build.endpoint(address) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3")}
    watch = Watch("eu", "IPv4", check, addresses, {})
    hub = StillHub(board=board, writing=writing)
    words = {
        "10.0.0.1": ("healthy", ""),
        "10.0.0.2": ("unhealthy", "refused"),
        "10.0.0.3": ("not known yet", ""),
    }
    [target] = gather(cast("Any", hub), [build.decision(watches=[watch])], [KEY]).targets
    assert target.probed == ({GroupKey("eu", "IPv4"): words} if writing else {})
    assert probed(
        cast("Any", hub), Watch("eu", "IPv4", Check("http", 80), {"10.0.0.1": addresses["10.0.0.1"]}, {})
    ) == {"10.0.0.1": ("not known yet", "")}


def test_slices_of_another_replica_have_no_addresses_to_explain() -> None:
    """Thin slices are left out of the facts."""
    hub = StillHub(build.slice("a", [build.endpoint()]))
    hub.local.slices = SimpleNamespace(thin=lambda _: ["a"], of=lambda _: {"a": build.slice()})
    [target] = gather(cast("Any", hub), [Decision(TargetKey("edge", "none"))], []).targets
    assert (target.slices, target.sources) == ((), ())


def test_unknown_sources_are_lines() -> None:
    """Unknown clusters and broken Services are sorted lines; frozen clusters are left out."""
    hub = StillHub(registry=registry(clusters=clusters(eu=True, ice="frozen"), broken_targets={OTHER: "no port"}))
    results = [Decision(KEY, unknown={"us": "timeout", "ice": "frozen", "eu": "401"})]
    lines = ["cluster eu: 401", "cluster us: timeout"]
    assert unknown_sources(cast("Any", hub), results) == [*lines, "service edge/orders: no port"]
    assert unknown_sources(cast("Any", hub), results, [KEY]) == lines
    assert unknown_sources(cast("Any", hub), [], [OTHER]) == ["service edge/orders: no port"]
