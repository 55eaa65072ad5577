"""Views of a running hub with simulated API servers: followed clusters, failures, and calls of consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hub_testkit import SimulatedCluster, make_service, make_slice

from hub.errors import HubError
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.resolver import LookupPool
from hub.model import EndpointView
from hub.registry.spec import ViewsSpec
from hub.runtime.clock import SystemClock
from hub.views import feed as feeds
from hub.views.service import EndpointViews
from hub.views.shapes import Shape
from tests.support.waiting import until

ALL = "true"


@pytest.fixture
async def sims() -> AsyncIterator[dict[str, SimulatedCluster]]:
    """The clusters ``local`` and ``eu``, each with a Service."""
    made: dict[str, SimulatedCluster] = {}
    async with SimulatedCluster("local") as local, SimulatedCluster("eu") as eu:
        for number, sim in enumerate((local, eu)):
            sim.namespaces.add({"metadata": {"name": "edge"}})
            add(sim, "web", f"10.{number}.0.1")
            made[sim.name] = sim
        yield made


def add(sim: SimulatedCluster, name: str, *addresses: str) -> None:
    """Add a Service with a port and a slice."""
    service: dict[str, Any] = make_service("edge", name)
    service["spec"] = {"ports": [{"name": "https", "port": 443}]}
    sim.put(service)
    set_addresses(sim, name, *addresses)


def set_addresses(sim: SimulatedCluster, name: str, *addresses: str) -> None:
    """Set the addresses in the Service's slice."""
    body: dict[str, Any] = make_slice("edge", f"{name}-1", name, list(addresses))
    body["ports"] = [{"name": "https", "port": 8443, "protocol": "TCP"}]
    sim.put(body)


class Told:
    """Hooks that record their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def hub_endpoint_upserted(self, view: EndpointView) -> None:
        """Record an upsert."""
        self.calls.append(f"+{view.addresses[0]}")

    def hub_endpoint_deleted(self, view: EndpointView) -> None:
        """Record a deletion."""
        self.calls.append(f"-{view.addresses[0]}")

    def hub_endpoints_listed(self, cluster: str, views: tuple[EndpointView, ...]) -> None:
        """Record a complete list."""
        self.calls.append(f"={cluster}:{len(views)}")


@pytest.fixture
async def views(sims: dict[str, SimulatedCluster]) -> AsyncIterator[EndpointViews]:
    """Views of both clusters, with the consumers ``told`` and ``other``."""
    pool, clock = LookupPool(), SystemClock()
    clients: dict[str, Client] = {}
    for name, sim in sims.items():
        access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
        clients[name] = Client(Credentials(access, clock), pool)

    async def connect(name: str) -> Client:
        if name not in clients:
            raise HubError("there is no such cluster")
        return clients[name]

    consumers = {"told": Told(), "other": Told()}
    made = EndpointViews(connect, clock, consumers.__getitem__)
    made.consumers = consumers  # type: ignore[attr-defined]
    yield made
    await made.close()
    for client in clients.values():
        await client.close()
    pool.close()


def seen(views: EndpointViews) -> list[str]:
    """The addresses of all views; stale ones end in a star."""
    found = [view for owned in views.board.views.values() for view in owned.values()]
    return sorted(view.addresses[0] + "*" * view.stale for view in found)


async def test_a_registry_may_ask_for_more_and_for_less(
    views: EndpointViews, sims: dict[str, SimulatedCluster]
) -> None:
    """Clusters and selection may change; a cluster that stays is not listed again."""
    views.update(ViewsSpec(select=ALL))
    await views.settled(5)
    assert seen(views) == ["10.0.0.1"]
    views.update(ViewsSpec(("local", "eu"), select=ALL))
    await views.settled(5)
    assert seen(views) == ["10.0.0.1", "10.1.0.1"]
    views.update(ViewsSpec(("local", "eu"), select="cluster == 'eu'"))
    await until(lambda: seen(views) == ["10.1.0.1"])
    views.update(ViewsSpec(("eu",), select=ALL))
    await until(lambda: seen(views) == ["10.1.0.1"])
    views.update(None)
    await until(lambda: seen(views) == [])
    lists = {name: sim.requests[("list", "services")] for name, sim in sims.items()}
    assert lists == {"local": 1, "eu": 1}


async def test_the_hub_cluster_may_be_followed_in_some_namespaces_only(sims: dict[str, SimulatedCluster]) -> None:
    """Each namespace has its own list and watch, so that Roles suffice."""
    local, pool = sims["local"], LookupPool()
    for name in ("shop", "other"):
        local.namespaces.add({"metadata": {"name": name}})
        service: dict[str, Any] = make_service(name, "web")
        service["spec"] = {"ports": [{"name": "https", "port": 443}]}
        local.put(service)
        local.put({**make_slice(name, "web-1", "web", [f"10.9.0.{len(name)}"]), "ports": []})
    access = parse_kubeconfig(local.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
    async with Client(Credentials(access, SystemClock()), pool) as client:

        async def connect(name: str) -> Client:
            return client

        views = EndpointViews(connect, SystemClock(), namespaces=("edge", "shop"))
        views.update(ViewsSpec(select=ALL))
        await views.settled(5)
        assert seen(views) == ["10.0.0.1", "10.9.0.4"]
        set_addresses(local, "web", "10.0.0.2")
        await until(lambda: seen(views) == ["10.0.0.2", "10.9.0.4"])
        views.update(ViewsSpec(select="service.metadata.namespace == 'shop'"))
        await until(lambda: seen(views) == ["10.9.0.4"])
        await views.close()
    pool.close()
    assert local.requests["list", "services"] == local.requests["list", "endpointslices"] == 2


async def test_disconnected_reader_leaves_no_task(views: EndpointViews, sims: dict[str, SimulatedCluster]) -> None:
    """A reader that disconnects while it waits for a silent cluster leaves no task behind."""
    sims["eu"].hang()
    views.update(ViewsSpec(("eu",), select=ALL))
    await asyncio.sleep(0.1)
    before = len(asyncio.all_tasks())
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await views.settled(5)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before
    sims["eu"].heal()


async def test_failing_cluster_is_unknown_and_delays_no_other(views: EndpointViews) -> None:
    """A failing cluster is reported as unknown, and does not delay others."""
    views.update(ViewsSpec(("gone", "local"), select=ALL))
    await views.settled(5)
    assert seen(views) == ["10.0.0.1"]
    assert views.unknown == ["gone"]
    assert "no such cluster" in views.feeds["gone"].error
    assert views.feeds["local"].error == ""


async def test_views_of_a_failing_cluster_become_stale_and_recover(
    views: EndpointViews, sims: dict[str, SimulatedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing cluster's views become stale; the next complete lists replace them."""
    monkeypatch.setattr(feeds, "STALE_AFTER", 0.05)
    eu = sims["eu"]
    views.update(ViewsSpec(("local", "eu"), select=ALL))
    await views.settled(5)
    eu.forbid("*", "*")
    eu.cut_stream()
    await until(lambda: seen(views) == ["10.0.0.1", "10.1.0.1*"])
    assert "403: the account lacks the rule «services: get, list, watch" in views.feeds["eu"].error
    set_addresses(eu, "web", "10.1.0.2")
    set_addresses(sims["local"], "web", "10.0.0.2")
    await until(lambda: seen(views) == ["10.0.0.2", "10.1.0.1*"])
    eu.permit()
    await until(lambda: seen(views) == ["10.0.0.2", "10.1.0.2"])


async def test_a_watch_that_is_renewed_marks_nothing(views: EndpointViews, sims: dict[str, SimulatedCluster]) -> None:
    """A watch that reconnects in time does not mark views as stale."""
    views.update(ViewsSpec(select=ALL))
    await views.settled(5)
    channel = views.channel(Shape())
    before = channel.position
    sims["local"].cut_stream()
    set_addresses(sims["local"], "web", "10.0.0.1", "10.0.0.7")
    await until(lambda: seen(views) == ["10.0.0.1", "10.0.0.7"])
    assert channel.position == before + 1


async def test_only_the_leader_calls_consumers(views: EndpointViews, sims: dict[str, SimulatedCluster]) -> None:
    """Only the leader calls consumers, with all views after each change of leaders."""
    told: Told = views.consumers["told"]  # type: ignore[attr-defined]
    views.update(ViewsSpec(select=ALL, hooks=("told",)))
    await views.settled(5)
    assert told.calls == []
    views.set_leading(leading=True)
    await until(lambda: told.calls == ["+10.0.0.1", "=local:1"])
    views.set_leading(leading=False)
    set_addresses(sims["local"], "web", "10.0.0.2")
    await until(lambda: seen(views) == ["10.0.0.2"])
    views.set_leading(leading=True)
    await until(lambda: len(told.calls) == 4)
    views.update(ViewsSpec(select=ALL, hooks=("other",)))
    await until(lambda: views.consumers["other"].calls)  # type: ignore[attr-defined]
    set_addresses(sims["local"], "web", "10.0.0.3")
    await until(lambda: "-10.0.0.2" in views.consumers["other"].calls)  # type: ignore[attr-defined]

    assert told.calls == ["+10.0.0.1", "=local:1", "+10.0.0.2", "=local:1"]


async def test_a_consumer_that_is_not_installed_is_named(
    views: EndpointViews, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing consumer is logged, and others are called."""
    views.set_leading(leading=True)
    views.update(ViewsSpec(select=ALL, hooks=("missing", "told")))
    told: Told = views.consumers["told"]  # type: ignore[attr-defined]
    await until(lambda: "+10.0.0.1" in told.calls)
    await until(lambda: "consumer 'missing' cannot be loaded" in caplog.text)
    assert views.deliveries["missing"].problem.startswith("cannot be loaded: KeyError")
