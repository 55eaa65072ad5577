"""A reload keeps unchanged units, and a view keeps the last known good endpoints."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Self, cast

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service
from msgspec.structs import replace

from hub.decide.addresses import Accepted, Rejected
from hub.decide.ports import NOT_READ, PortReading
from hub.errors import ClusterUnreachable, KubeconfigError
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.reflector import STEADY_AFTER
from hub.kube.resolver import LookupPool
from hub.model import LOCAL, Node, TargetKey
from hub.observe.providers.catalog import Catalog
from hub.observe.providers.host import ProviderHost
from hub.observe.remote import access
from hub.observe.remote import cluster as remote_cluster
from hub.observe.remote.access import Connector
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.fleet import Fleet, ServiceKey, SourceKey
from hub.observe.remote.source import Source
from hub.observe.remote.status import State
from hub.registry.spec import (
    ClusterSpec,
    KubeconfigPath,
    NodePolicy,
    NodePortRef,
    PortSpec,
    ProviderRef,
    Registry,
    TargetSpec,
)
from hub.runtime.clock import SystemClock, rfc3339
from tests.support import build
from tests.support.clocks import AheadClock
from tests.support.waiting import until

PROVIDER = ProviderRef("node-addresses")
KEY = SourceKey("eu", PROVIDER)


class NoAccess(Connector):
    """A Connector whose kubeconfigs never arrive; the test plays the API servers."""

    async def access(self, spec: ClusterSpec) -> ClusterAccess:
        await asyncio.Event().wait()
        raise AssertionError


def cluster(name: str = "eu", path: str = "", **more: Any) -> ClusterSpec:
    """A cluster of a registry."""
    networks = more.pop("allowed_cidrs", build.networks("10.0.0.0/8"))
    return ClusterSpec(name, PROVIDER, KubeconfigPath(path or f"/{name}"), allowed_cidrs=networks, **more)


def registry(*clusters: ClusterSpec, **more: Any) -> Registry:
    """A registry that has only clusters."""
    targets: dict[TargetKey, TargetSpec] = {}
    return Registry("default", {spec.name: spec for spec in clusters}, targets, **more)


@pytest.fixture
def changed() -> list[str]:
    """The clusters that were reported as changed."""
    return []


@pytest.fixture
async def fleet(changed: list[str]) -> AsyncIterator[Fleet]:
    """A fleet without connections."""
    clock = SystemClock()
    host = ProviderHost(Catalog(), clock=clock, folder="/")
    made = Fleet(NoAccess(clock, cast("Any", None)), host, clock, changed.append)
    yield made
    await made.close()
    await host.close()


async def lists(fleet: Fleet, nodes: Iterable[Node]) -> Source:
    """Let cluster eu answer with these nodes, and wait until its provider has resolved them."""
    unit, source = fleet.clusters["eu"], fleet.sources[KEY]
    await source._loaded.wait()
    unit._store.replace({node.name: node for node in nodes}, "1")
    unit.answered()
    async with asyncio.timeout(10):
        await source.settled()
    return source


async def test_reload_keeps_unchanged_clusters(fleet: Fleet) -> None:
    """A reload keeps the objects of unchanged clusters and sources."""
    fleet.update(registry(cluster("eu"), cluster("us")))
    before = {**fleet.clusters, **fleet.sources}
    fleet.update(registry(cluster("eu"), cluster("us"), cluster("ap")))
    assert {key: unit for key, unit in {**fleet.clusters, **fleet.sources}.items() if key in before} == before
    assert len(fleet.clusters) == 3


async def test_changed_kubeconfig_replaces_the_cluster(fleet: Fleet) -> None:
    """A changed kubeconfig replaces the cluster and its sources; other clusters stay."""
    fleet.update(registry(cluster("eu"), cluster("us")))
    eu, us, source = fleet.clusters["eu"], fleet.clusters["us"], fleet.sources[KEY]
    fleet.update(registry(cluster("eu", "/other"), cluster("us")))
    assert fleet.clusters["eu"] is not eu
    assert fleet.sources[KEY] is not source
    assert fleet.clusters["us"] is us


async def test_changed_kubeconfig_restarts_only_the_clusters_own_services(fleet: Fleet) -> None:
    """A changed kubeconfig replaces what follows the cluster's Services; those of other clusters stay."""
    ref = NodePortRef(TargetKey("edge", "web"), "https")
    target = build.target("eu", "us", ports=(PortSpec(443, node_port=ref),))
    before = Registry("default", {name: cluster(name) for name in ("eu", "us")}, {target.key: target})
    fleet.update(before)
    services = dict(fleet.services)
    assert [key.cluster for key in services] == ["eu", "us"]
    fleet.update(replace(before, clusters={**before.clusters, "eu": cluster("eu", "/other")}))
    assert {key.cluster: fleet.services[key] is service for key, service in services.items()} == {
        "eu": False,
        "us": True,
    }


async def test_a_kubeconfig_that_is_added_reaches_the_sources(fleet: Fleet) -> None:
    """After a kubeconfig was added, the sources of the cluster work without a restart of the hub."""
    fleet.update(registry(replace(cluster("eu"), kubeconfig=None), cluster("us")))
    await fleet.sources[KEY].settled()
    assert fleet.sources[KEY].problem == "provider node-addresses resolves nodes: give the cluster a kubeconfig"
    us = fleet.sources[SourceKey("us", PROVIDER)]
    fleet.update(registry(cluster("eu"), cluster("us")))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    assert (source.problem, list(source.view(NodePolicy()).view.endpoints["IPv4"])) == ("", ["10.0.0.1"])
    assert fleet.sources[SourceKey("us", PROVIDER)] is us


async def test_a_frozen_cluster_is_not_contacted(fleet: Fleet) -> None:
    """The units of a frozen cluster are stopped."""
    fleet.update(registry(cluster("eu")))
    fleet.update(registry(cluster("eu", state="frozen")))
    assert (fleet.clusters, fleet.sources) == ({}, {})


async def test_connection_waits_without_a_busy_loop(fleet: Fleet) -> None:
    """``connection()`` keeps waiting, without a busy loop, if the identity is checked before there is a client."""
    fleet.update(registry(cluster("eu")))
    unit = fleet.clusters["eu"]
    waiting = asyncio.create_task(unit.connection())
    await asyncio.sleep(0)
    fleet.check_identities()
    assert not unit._connected.is_set()  # otherwise connection() would loop without ever waiting
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_most_clusters_unreachable_is_suspicious(fleet: Fleet, changed: list[str]) -> None:
    """Policies are suspended from two clusters and 30 % on; all clusters are reported when that changes."""
    fleet.update(registry(*(cluster(name) for name in "abcdef")))
    fleet.clusters["a"].failed(ClusterUnreachable("gone"))
    assert (fleet.suspended, changed[-1]) == (False, "a")
    changed.clear()
    fleet.clusters["b"].failed(ClusterUnreachable("gone"))
    assert (fleet.suspended, sorted(set(changed) & set("abcdef"))) == (True, list("abcdef"))
    changed.clear()
    fleet.clusters["b"].failed(KubeconfigError("broken"))
    assert (fleet.suspended, sorted(set(changed) & set("abcdef"))) == (False, list("abcdef"))


async def test_end_of_suspicion_reports_all_clusters(fleet: Fleet, changed: list[str]) -> None:
    """If a reload ends the suspension of policies, all clusters are reported as changed."""
    fleet.update(registry(*(cluster(name) for name in "abcdef")))
    for name in "ab":
        fleet.clusters[name].failed(ClusterUnreachable("gone"))
    assert fleet.suspended
    changed.clear()
    fleet.update(registry(*(cluster(name) for name in "abcdefg")))
    assert (fleet.suspended, set(changed) >= set("abcdef")) == (False, True)


async def test_unreachable_counts_from_the_end_of_the_last_watch(fleet: Fleet) -> None:
    """``unreachable_for`` counts from the end of the last watch, not from its beginning."""
    fleet.update(registry(cluster("eu")))
    await lists(fleet, [build.node("n1", "10.0.0.1")])
    unit = fleet.clusters["eu"]
    assert unit.status.state is State.READY
    unit.answered_at = 0.0  # the watch began when the machine did
    unit.failed(ClusterUnreachable("gone"))
    assert (unit.unreachable_for() or 0.0) < 5.0


async def test_an_unknown_view_holds_the_last_known_good(fleet: Fleet) -> None:
    """The view of an unknown source has the last known endpoints, and stays the same object."""
    fleet.update(registry(cluster("eu")))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    good = source.view(NodePolicy()).view
    assert (good.unknown, list(good.endpoints["IPv4"])) == (None, ["10.0.0.1"])
    fleet.clusters["eu"].failed(ClusterUnreachable("gone"))
    unknown = source.view(NodePolicy()).view
    assert unknown.unknown == "Unreachable: gone"
    assert unknown.endpoints is good.endpoints
    assert source.view(NodePolicy()).view is unknown


async def test_last_known_good_has_the_last_answer(fleet: Fleet) -> None:
    """The last known good view has the last answer, even if no pass has built a view of it."""
    fleet.update(registry(cluster("eu")))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    source.view(NodePolicy())
    await lists(fleet, [build.node("n2", "10.0.0.2")])
    fleet.clusters["eu"].failed(ClusterUnreachable("gone"))
    fleet.clusters["eu"]._store.replace({}, "2")  # a list of a cluster whose identity is not known
    view = source.view(NodePolicy()).view
    assert (view.unknown, list(view.endpoints["IPv4"])) == ("Unreachable: gone", ["10.0.0.2"])


class Told(SystemClock):
    """A clock that the test moves, and the reflector of a silent cluster."""

    def __init__(self) -> None:
        self.ahead = self.current_as_of = 0.0
        self.asked_at: list[float] = []

    def now(self) -> float:
        return self.ahead

    def wall(self) -> float:
        return 1_790_000_000 + self.ahead

    def list_again(self) -> None:
        self.asked_at.append(self.ahead)


async def test_grace_ends_when_the_cluster_confirms(changed: list[str]) -> None:
    """A silent cluster is listed again, ever less often; the node stays until its state was confirmed."""
    clock = Told()
    host = ProviderHost(Catalog(), clock=clock, folder="/")
    fleet = Fleet(NoAccess(clock, cast("Any", None)), host, clock, changed.append)
    try:
        fleet.update(registry(cluster("eu")))
        away = build.node("n1", "10.0.0.1", ready=False, ready_since=rfc3339(clock.wall()))
        source = await lists(fleet, [away, *(build.node(f"n{number}", f"10.0.0.{number}") for number in range(2, 9))])
        fleet.clusters["eu"]._reflector = cast("Any", clock)
        policy, hasty = NodePolicy(), NodePolicy(not_ready_grace=STEADY_AFTER)
        seen = []
        for _ in range(200):
            clock.ahead += 1
            seen.append(len(source.view(policy).view.endpoints["IPv4"]))
        assert set(seen) == {8}
        assert len(source.view(hasty).view.endpoints["IPv4"]) == 7  # such a short grace does not wait for the watch
        assert clock.asked_at == [30, 40, 60, 100, 160]
        clock.current_as_of = clock.now()
        clock.ahead += 1
        assert len(source.view(policy).view.endpoints["IPv4"]) == 7
    finally:
        await fleet.close()
        await host.close()


class Connected:
    """A fleet that reaches a simulated cluster eu through a kubeconfig on disk."""

    def __init__(self, folder: Path, on_change: Callable[[str], None]) -> None:
        self.clock, self.sim, self.path = AheadClock(), SimulatedCluster("eu"), folder / "eu"
        self._pool = LookupPool()
        self._host = ProviderHost(Catalog(), clock=self.clock, folder="/")
        self.fleet = Fleet(Connector(self.clock, self._pool, folders=(Path("/"),)), self._host, self.clock, on_change)

    async def __aenter__(self) -> Self:
        await self.sim.start()
        self.sim.write_kubeconfig(self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fleet.close()
        await self._host.close()
        self._pool.close()
        await self.sim.stop()

    def follow(self) -> RemoteCluster:
        """Start to follow the cluster."""
        self.fleet.update(registry(cluster("eu", str(self.path))))
        return self.fleet.clusters["eu"]


@pytest.fixture
async def connected(tmp_path: Path, changed: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connected]:
    """A connected fleet that checks the kubeconfig every 50 ms."""
    monkeypatch.setattr(remote_cluster, "ACCESS_CHECK", 0.05)
    async with Connected(tmp_path, changed.append) as made:
        yield made


@pytest.mark.parametrize("token", [None, "refused"])
async def test_new_credential_does_not_restart_the_grace(token: str | None, connected: Connected) -> None:
    """A node whose grace period has ended stays away while the cluster reconnects, even if that fails."""
    clock, sim = connected.clock, connected.sim
    sim.put(make_node("n1", "10.0.0.1", ready=False, since=rfc3339(clock.wall())))
    for number in range(2, 9):
        sim.put(make_node(f"n{number}", f"10.0.0.{number}"))
    unit, source = connected.follow(), connected.fleet.sources[KEY]

    def offered() -> int:
        return len(source.view(NodePolicy()).view.endpoints["IPv4"])

    await source.settled()
    assert offered() == 8
    clock.ahead = 60.0
    await until(lambda: offered() == 7)
    first, lists, seen = unit.client, unit.lists, set()
    sim.write_kubeconfig(connected.path, token or sim.add_token("hub"))

    def over() -> bool:
        seen.add(offered())
        return unit.client is not first and (unit.lists > lists or unit.status.state is State.DEGRADED)

    await until(over)
    assert (seen, offered()) == ({7}, 7)
    assert (unit.status.state is State.DEGRADED) == (token == "refused")


async def test_unusable_kubeconfig_is_logged_once(connected: Connected, caplog: pytest.LogCaptureFixture) -> None:
    """An unusable new kubeconfig is logged once, and is part of later errors; the previous one stays in use."""
    unit, path = connected.follow(), connected.path
    await unit.settled()
    path.write_text("clusters: [oops\n")
    await until(lambda: "keeps the previous" in caplog.text)
    await asyncio.sleep(0.2)
    [said] = [record.getMessage() for record in caplog.records if "keeps the previous" in record.getMessage()]
    assert said.startswith(f"cluster eu: keeps the previous kubeconfig: kubeconfig {path}:")
    assert unit.status.state is State.READY
    connected.sim.rotate_token()
    connected.sim.cut_stream()
    await until(lambda: unit.status.state is State.DEGRADED)
    refused = "401: the credential is not accepted; renew the kubeconfig's user"
    assert unit.status.error.startswith(f"{refused} (a newer kubeconfig is not in use: kubeconfig {path}:")
    connected.sim.write_kubeconfig(path)
    await until(lambda: unit.status.state is State.READY)


async def test_settled_does_not_wait_for_an_unreachable_cluster(connected: Connected) -> None:
    """``settled`` does not wait for a Service whose cluster is unreachable."""
    await connected.sim.stop()
    unit = connected.follow()
    connected.fleet._start_service(ServiceKey("eu", TargetKey("ingress", "envoy")))
    async with asyncio.timeout(20):
        await connected.fleet.settled(60)
    assert unit.status.state is State.UNREACHABLE


async def test_too_many_endpoints_are_not_believed(fleet: Fleet) -> None:
    """If there are more than maxEndpoints, the view is unknown and keeps the last endpoints."""
    fleet.update(registry(cluster("eu", max_endpoints=2)))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    source.view(NodePolicy())
    await lists(fleet, [build.node(f"n{number}", f"10.0.0.{number}") for number in range(1, 5)])
    view = source.view(NodePolicy()).view
    assert view.unknown is not None
    assert list(view.endpoints["IPv4"]) == ["10.0.0.1"]


async def test_narrower_address_policy_applies_to_known_views(fleet: Fleet) -> None:
    """A narrower address policy also applies to the last known good view of an unreachable cluster."""
    spec = cluster("eu")
    targets = {build.target().key: build.target()}
    fleet.update(replace(registry(spec), targets=targets))
    source = await lists(fleet, [build.node("n1", "10.0.0.1"), build.node("n2", "10.9.0.2")])
    assert list(source.view(NodePolicy()).view.endpoints["IPv4"]) == ["10.0.0.1", "10.9.0.2"]
    fleet.clusters["eu"].failed(ClusterUnreachable("gone"))
    source.view(NodePolicy())
    narrow = replace(spec, allowed_cidrs=build.networks("10.0.0.0/16"))
    fleet.update(replace(registry(narrow), targets=targets))
    assert fleet.sources[KEY] is source
    assert list(source.view(NodePolicy()).view.endpoints["IPv4"]) == ["10.0.0.1"]


async def test_views_of_unused_node_policies_are_forgotten(fleet: Fleet) -> None:
    """Views of node policies that the registry no longer uses are forgotten."""
    fleet.update(registry(cluster("eu")))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    for number in range(3):
        policy = NodePolicy(exclude_nodes=frozenset({f"x{number}"}))
        target = build.target(sources=(build.source(nodes=policy),))
        fleet.update(replace(registry(cluster("eu")), targets={target.key: target}))
        source.view(policy)
    assert fleet.sources[KEY] is source
    assert list(source._builders) == list(source._views) == list(source._built) == list(source._good) == [policy]


async def test_the_hub_clusters_own_networks_are_denied_to_remote_clusters(fleet: Fleet) -> None:
    """Own networks that become known later apply at once, and the report names the reason."""
    fleet.update(registry(cluster("eu")))
    source = await lists(fleet, [build.node("n1", "10.96.0.1")])
    assert list(source.view(NodePolicy()).view.endpoints["IPv4"]) == ["10.96.0.1"]
    own = [(network, "the hub cluster's API server") for network in build.networks("10.96.0.1/32")]
    fleet.update(registry(cluster("eu")), tuple(own))
    result = source.view(NodePolicy())
    assert not any(result.view.endpoints.values())
    assert "the hub cluster's API server" in str(result.reports["n1"])


async def test_the_hub_clusters_own_networks_are_not_denied_to_copies_within_it(fleet: Fleet) -> None:
    """Sources of the hub cluster may publish addresses of its own networks, but not deniedCIDRs."""
    own = tuple((network, "the hub cluster's API server") for network in build.networks("10.96.0.1/32"))
    for _ in range(2):
        fleet.update(registry(cluster(LOCAL), denied_cidrs=build.networks("10.97.0.0/16")), own)
        addresses = fleet.sources[SourceKey(LOCAL, PROVIDER)]._addresses
        assert isinstance(addresses.check("10.96.0.1"), Accepted)
        assert addresses.check("10.97.0.1") == Rejected("in a denied CIDR")


async def test_only_the_hub_clusters_services_are_read_with_its_client(changed: list[str]) -> None:
    """A Service of the hub cluster is read with the hub's own client; another cluster without access is not read."""
    clock, pool, ref = SystemClock(), LookupPool(), NodePortRef(TargetKey("edge", "web"), "https")
    host = ProviderHost(Catalog(), clock=clock, folder="/")
    target = build.target(LOCAL, "eu", ports=(PortSpec(443, node_port=ref),))
    clusters = {name: replace(cluster(name), kubeconfig=None) for name in (LOCAL, "eu")}
    service = make_service("edge", "web")
    service["spec"] = {"type": "NodePort", "ports": [{"name": "https", "port": 443, "nodePort": 30443}]}
    async with SimulatedCluster("hub") as sim:
        sim.put(service)
        access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy())
        async with Client(Credentials(access, clock), pool) as client:
            fleet = Fleet(NoAccess(clock, pool), host, clock, changed.append, client)
            fleet.update(Registry("default", clusters, {target.key: target}))
            await until(lambda: fleet.node_port(LOCAL, ref) == PortReading(30443))
            assert fleet.node_port("eu", ref) == NOT_READ
            await fleet.close()
    await host.close()
    pool.close()


async def test_a_new_node_wakes_its_targets_once_with_its_address(fleet: Fleet, changed: list[str]) -> None:
    """A new node wakes its targets only once: when the provider has resolved it."""
    fleet.update(registry(cluster("eu")))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    source.view(NodePolicy())
    changed.clear()
    fleet.clusters["eu"]._store.upsert("n2", build.node("n2", "10.0.0.2"), "2")
    assert changed == []
    await source.settled()
    assert (changed, [*source.view(NodePolicy()).view.endpoints["IPv4"]]) == (["eu"], ["10.0.0.1", "10.0.0.2"])


async def test_a_changed_or_deleted_node_wakes_its_targets_at_once(fleet: Fleet, changed: list[str]) -> None:
    """A changed or deleted node wakes at once; so does a new node while too many are not Ready."""
    fleet.update(registry(cluster("eu")))
    ready = [build.node(f"n{number}", f"10.0.0.{number}") for number in range(1, 4)]
    source = await lists(fleet, ready)
    source.view(NodePolicy())
    store = fleet.clusters["eu"]._store
    changed.clear()
    for number in (0, 1):
        store.upsert(ready[number].name, replace(ready[number], ready="False"), str(number))
    assert changed == ["eu"] * 2
    store.delete("n3", ready[2], "3")
    assert changed == ["eu"] * 3
    source.view(NodePolicy())
    store.upsert("n4", build.node("n4", "10.0.0.4"), "4")
    assert changed == ["eu"] * 4


async def test_a_new_node_wakes_its_targets_at_once_if_no_answer_is_near(fleet: Fleet, changed: list[str]) -> None:
    """While the provider fails, a new node wakes its targets at once."""
    fleet.update(registry(cluster("eu")))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    assert source._resolver is not None
    source._resolver._health.failed(ClusterUnreachable("no route"))
    changed.clear()
    fleet.clusters["eu"]._store.upsert("n2", build.node("n2", "10.0.0.2"), "2")
    assert changed == ["eu"]


async def test_clusters_with_the_same_uid_are_twins(fleet: Fleet, changed: list[str]) -> None:
    """Clusters with the same UID are twins until one leaves the registry; each change is reported."""
    fleet.update(registry(cluster("eu"), cluster("us"), cluster("ap")))
    for name, uid in (("us", "a"), ("ap", "b"), ("eu", "a")):
        fleet.clusters[name].uid = uid
        fleet.clusters[name]._store.replace({}, "1")
        fleet.clusters[name].answered()
    assert fleet.twins == {"eu": ("eu", "us"), "us": ("eu", "us")}
    assert {"eu", "us"} <= set(changed)
    changed.clear()
    fleet.update(registry(cluster("eu"), cluster("ap")))
    assert fleet.twins == {}
    assert "eu" in changed


async def test_kubeconfigs_on_a_hung_mount_affect_only_their_clusters(
    changed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung mount degrades only its clusters; asyncio's own threads stay free."""
    answers, stat = threading.Event(), os.stat

    def slow(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith("/hung/"):
            answers.wait(20)
        return stat(path, **more)

    monkeypatch.setattr(access, "READ_TIMEOUT", 0.3)
    monkeypatch.setattr(os, "stat", slow)
    clock, pool = SystemClock(), LookupPool()
    host = ProviderHost(Catalog(), clock=clock, folder="/")
    fleet = Fleet(Connector(clock, pool, folders=(tmp_path,)), host, clock, changed.append)
    hung = [f"c{number}" for number in range(min(32, (os.cpu_count() or 1) + 4))]  # as many as asyncio has threads
    try:
        async with SimulatedCluster("eu") as sim:
            sim.write_kubeconfig(tmp_path / "eu")
            good = cluster("eu", str(tmp_path / "eu"))
            fleet.update(registry(*(cluster(name, f"/hung/{name}") for name in hung), good))
            async with asyncio.timeout(15):
                await asyncio.gather(*(remote.settled() for remote in fleet.clusters.values()))
                assert await asyncio.to_thread(max, 1, 2) == 2  # used by metrics and the status page
            assert fleet.clusters["eu"].status.state is State.READY
            for name in hung:
                status = fleet.clusters[name].status
                said = f"kubeconfig /hung/{name}: does not answer within 0.3 s"
                assert (status.state, status.error) == (State.DEGRADED, said)
            await fleet.close()
    finally:
        answers.set()
        await fleet.close()
        await host.close()
        pool.close()


# -- when a source is known -------------------------------------------------------------------------------------------


async def test_source_problem_has_state_and_error(fleet: Fleet) -> None:
    """``problem`` is the state of the cluster and its error; "" once the source is known."""
    fleet.update(registry(cluster()))
    unit, source = fleet.clusters["eu"], fleet.sources[KEY]
    assert source.problem == "Pending"
    assert (source.failing_since, source.scope, source.answers, source.last_view(NodePolicy())) == (None, "", 0, None)
    await source._loaded.wait()
    unit.failed(ClusterUnreachable("https://eu: connection refused"))
    assert source.problem == "Unreachable: https://eu: connection refused"
    view = source.view(NodePolicy()).view
    assert (view.unknown, dict(view.endpoints)) == (source.problem, {})
    assert source.last_view(NodePolicy()) is None
    await lists(fleet, [build.node("n1", "10.0.0.1")])
    assert (source.problem, source.failing_since, source.answers) == ("", None, 1)


async def test_a_view_is_the_same_object_until_something_changes(fleet: Fleet) -> None:
    """A view stays the same object until something changes, whether the source is known or not."""
    fleet.update(registry(cluster()))
    source = await lists(fleet, [build.node("n1", "10.0.0.1")])
    first = source.view(NodePolicy())
    assert source.view(NodePolicy()) is first
    assert source.last_view(NodePolicy()) is first
    fleet.clusters["eu"].failed(ClusterUnreachable("gone"))
    without = source.view(NodePolicy())
    assert without.view.unknown == "Unreachable: gone"
    assert without.view.endpoints is first.view.endpoints
    assert source.view(NodePolicy()) is without
    assert source.last_view(NodePolicy()) is None
    fleet.clusters["eu"].failed(ClusterUnreachable("still gone"))
    assert source.view(NodePolicy()).view.unknown == "Unreachable: still gone"
    fleet.clusters["eu"].answered()
    assert source.view(NodePolicy()).view.unknown is None


async def test_a_provider_that_is_not_installed_is_the_problem(fleet: Fleet) -> None:
    """A missing provider is the problem of its source; ``settled`` does not wait for it."""
    missing = ProviderRef("no-such-provider")
    fleet.update(registry(replace(cluster(), provider=missing)))
    source = fleet.sources[SourceKey("eu", missing)]
    fleet.clusters["eu"].failed(ClusterUnreachable("gone"))
    async with asyncio.timeout(10):
        await source.settled()
    unit = fleet.clusters["eu"]
    unit._store.replace({}, "1")
    unit.answered()
    assert "no-such-provider" in source.problem
    assert source.failing_since is not None
    assert source.view(NodePolicy()).view.unknown == source.problem


async def test_a_provider_of_nodes_needs_a_kubeconfig(fleet: Fleet) -> None:
    """A provider that resolves nodes fails without a kubeconfig, which gives the Nodes."""
    fleet.update(registry(replace(cluster(), kubeconfig=None)))
    source = fleet.sources[KEY]
    async with asyncio.timeout(10):
        await source.settled()
    assert source.problem == "provider node-addresses resolves nodes: give the cluster a kubeconfig"
    assert source.view(NodePolicy()).view.unknown == source.problem


# -- a cluster's states -----------------------------------------------------------------------------------------------


async def test_states_follow_from_answers_and_failures(fleet: Fleet, changed: list[str]) -> None:
    """Lists, answers and failures change the state; the last error and the time of the change are kept."""
    fleet.update(registry(cluster()))
    unit = fleet.clusters["eu"]
    assert (unit.status.state, unit.synced, unit.lists) == (State.PENDING, False, 0)
    unit.answered()
    assert unit.status.state is State.PENDING, "there is no list yet"
    unit.listing()
    assert unit.status.state is State.SYNCING
    unit._store.replace({}, "1")
    unit.answered()
    assert (unit.status.state, unit.status.error, unit.synced, unit.lists) == (State.READY, "", True, 1)
    since, told = unit.status.since, len(changed)
    unit.failed(ClusterUnreachable("a"))
    unit.failed(ClusterUnreachable("b"))
    assert (unit.status.state, unit.status.error) == (State.UNREACHABLE, "b")
    assert unit.status.since >= since
    assert len(changed) > told
    unit.listing()
    assert unit.status.state is State.UNREACHABLE, "only an answer ends it"
    assert unit.unreachable_for() is not None
    unit.answered()
    assert (unit.status.state, unit.unreachable_for()) == (State.READY, None)


async def test_failure_is_a_warning_and_recovery_is_info(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged once as a warning with its reason, the recovery as information."""
    caplog.set_level("INFO")
    fleet.update(registry(cluster()))
    unit = fleet.clusters["eu"]
    unit.failed(ClusterUnreachable("gone"))
    unit.failed(ClusterUnreachable("gone"))
    unit._store.replace({}, "1")
    unit.answered()
    said = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "hub.observe.remote.cluster"
    ]
    assert said == [("WARNING", "cluster eu: Unreachable: gone"), ("INFO", "cluster eu: Ready")]


async def test_a_kubeconfig_that_leads_elsewhere_is_followed(connected: Connected) -> None:
    """A new server in the kubeconfig replaces the connection; a change of its text alone does not."""
    unit = connected.follow()
    await until(lambda: unit.status.state is State.READY)
    first = unit.client
    connected.path.write_text(connected.path.read_text() + "# the same\n")
    await asyncio.sleep(0.3)
    assert unit.client is first
    async with SimulatedCluster("other") as other:
        other.put(make_node("n9", "10.0.0.9"))
        other.write_kubeconfig(connected.path)
        await until(lambda: list(unit.nodes) == ["n9"] and unit.status.state is State.READY)
        assert unit.client is not first


async def test_a_kubeconfig_that_is_missing_is_waited_for(
    connected: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a kubeconfig file the cluster is Degraded and settled, and it connects once the file exists."""
    content = connected.path.read_text()
    connected.path.unlink()
    unit = connected.follow()
    async with asyncio.timeout(10):
        await unit.settled()
    assert (unit.status.state, unit.client) == (State.DEGRADED, None)
    assert str(connected.path) in unit.status.error
    connected.path.write_text(content)
    await until(lambda: unit.status.state is State.READY)
