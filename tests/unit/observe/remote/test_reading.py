"""What providers read of a cluster, and ports read from its Services, against a simulated API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hub_testkit import SimulatedCluster, make_service, make_slice

from hub.decide.ports import PortReading
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.resolver import LookupPool
from hub.model import TargetKey
from hub.observe.remote.ports import RemoteService
from hub.observe.remote.reading import ClusterReader
from hub.plugin.spec import TransientProviderError
from hub.runtime.clock import SystemClock
from tests.support.clocks import HastyClock
from tests.support.waiting import until

KEY = TargetKey("edge", "web")


@pytest.fixture
async def sim() -> AsyncIterator[SimulatedCluster]:
    """A cluster with the namespace ``edge``."""
    async with SimulatedCluster("eu") as made:
        made.namespaces.add({"metadata": {"name": "edge"}})
        yield made


@pytest.fixture
async def reader(sim: SimulatedCluster) -> AsyncIterator[ClusterReader]:
    """Read access to the simulated cluster."""
    pool = LookupPool()
    access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
    async with Client(Credentials(access, SystemClock()), pool) as client:

        async def connected() -> Client:
            return client

        yield ClusterReader("eu", connected, SystemClock())
    pool.close()


def node_port(number: int, name: str = "https", **spec: Any) -> dict[str, Any]:
    """A Service with one node port."""
    port = {"name": name, "port": 443, "nodePort": number}
    made: dict[str, Any] = make_service("edge", "web")
    made["spec"] = {"type": "NodePort", "ports": [port], **spec}
    return made


async def test_slices_of_one_service_only(sim: SimulatedCluster, reader: ClusterReader) -> None:
    """The slices of one Service are returned now and after each change, without those of other Services."""
    sim.put(make_slice("edge", "web-b", "web", ["10.0.0.2"]))
    sim.put(make_slice("edge", "web-a", "web", ["10.0.0.1"]))
    sim.put(make_slice("edge", "other", "other", ["10.0.0.9"]))
    sim.put(make_slice("default", "web", "web", ["10.0.0.8"]))
    stream = reader.slices("edge", "web")
    assert [slice_.name for slice_ in await anext(stream)] == ["web-a", "web-b"]
    sim.slices.delete("web-a", namespace="edge")
    assert [slice_.name for slice_ in await anext(stream)] == ["web-b"]
    await stream.aclose()


async def test_watch_ends_with_its_reader(sim: SimulatedCluster, reader: ClusterReader) -> None:
    """The watch ends when the reader closes its iterator."""
    stream = reader.slices("edge", "web")
    assert await anext(stream) == ()
    await until(lambda: sim.streams("endpointslices") == 1)
    await stream.aclose()
    await until(lambda: sim.streams("endpointslices") == 0)


async def test_a_failure_is_the_readers_to_know(sim: SimulatedCluster, reader: ClusterReader) -> None:
    """A failure is raised, with the missing RBAC rule or the Retry-After."""
    sim.forbid("list", "endpointslices")
    with pytest.raises(TransientProviderError, match=r"endpointslices\.discovery\.k8s\.io: get, list, watch.* eu"):
        await anext(reader.slices("edge", "web"))
    sim.permit()
    sim.fail_next(status=503, verb="list", retry_after=7)
    with pytest.raises(TransientProviderError) as caught:
        await anext(reader.slices("edge", "web"))
    assert caught.value.retry_after == 7


async def test_an_expired_watch_is_no_failure(sim: SimulatedCluster, reader: ClusterReader) -> None:
    """After an expired watch, the reader gets the result of a new list."""
    stream = reader.slices("edge", "web")
    assert await anext(stream) == ()
    await until(lambda: sim.streams("endpointslices") == 1)
    sim.put(make_slice("edge", "web-a", "web", ["10.0.0.1"]))
    assert len(await anext(stream)) == 1
    sim.cut_stream("endpointslices", how="expire")
    assert [slice_.name for slice_ in await anext(stream)] == ["web-a"]
    await stream.aclose()


async def test_state_is_none_while_the_service_is_missing(sim: SimulatedCluster, reader: ClusterReader) -> None:
    """The state is None while the Service does not exist."""
    stream = reader.services("edge", "web")
    assert await anext(stream) is None
    sim.put(make_service("edge", "other"))
    sim.put(make_service("edge", "web"))
    found = await anext(stream)
    assert found is not None
    assert found.name == "web"
    sim.services.delete("web", namespace="edge")
    assert await anext(stream) is None
    await stream.aclose()


# --- ports -------------------------------------------------------------------------------------------------


@pytest.fixture
async def remote(reader: ClusterReader) -> AsyncIterator[RemoteService]:
    """The Service ``edge/web``, followed."""
    made = RemoteService("eu", KEY, reader, SystemClock(), lambda: None)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_port_is_found_by_name_or_number(sim: SimulatedCluster, remote: RemoteService) -> None:
    """A port is found by name or number, and changes of its nodePort are followed."""
    assert remote.node_port("https").problem == "it has not been read yet"
    sim.put(node_port(30500))
    await until(lambda: remote.node_port("https").number == 30500)
    assert remote.node_port(443).number == 30500
    assert remote.node_port("http").problem == "the Service has no such port; its ports: https"
    sim.put(node_port(30501))
    await until(lambda: remote.node_port("https").number == 30501)


async def test_a_service_that_is_gone_has_no_port(sim: SimulatedCluster, remote: RemoteService) -> None:
    """The ports of a deleted Service are unknown."""
    sim.put(node_port(30500))
    await until(lambda: remote.node_port("https").number == 30500)
    sim.services.delete("web", namespace="edge")
    await until(lambda: remote.node_port("https").problem == "it does not exist in cluster eu")


async def test_an_api_that_fails_keeps_the_port(sim: SimulatedCluster, remote: RemoteService) -> None:
    """The last known port stays while the API fails."""
    sim.put(node_port(30500))
    await until(lambda: remote.node_port("https").number == 30500)
    sim.refuse(503)
    sim.cut_stream("services")
    await until(lambda: "503" in remote.problem)
    assert remote.node_port("https").number == 30500


async def test_a_service_that_may_not_be_read_names_the_command(sim: SimulatedCluster, remote: RemoteService) -> None:
    """If the account may not read the Service, the problem names the command that allows it."""
    sim.forbid("list", "services")
    await until(lambda: "403" in remote.problem)
    assert remote.problem.endswith("; to allow it: hub cluster add eu --allow-services edge")


async def test_lists_without_watches_are_read_ever_less_often(sim: SimulatedCluster, reader: ClusterReader) -> None:
    """If lists succeed but every watch fails, the pause between lists grows."""
    sim.services.add(node_port(30443))
    sim.refuse(403, verb="watch", resource="services")
    clock = HastyClock()
    unit = RemoteService("eu", KEY, reader, clock, lambda: None)
    task = asyncio.create_task(unit.run())
    await until(lambda: len(clock.slept) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.slept[2] >= 4  # at most 2 if a list reset the backoff


async def test_service_without_node_ports_names_its_type(sim: SimulatedCluster, remote: RemoteService) -> None:
    """The problem of a Service without nodePorts names its type."""
    sim.put(make_service("edge", "web"))
    await remote.settled()
    await until(lambda: remote.service is not None)
    (port,) = remote.service.ports if remote.service is not None else ()
    assert "ClusterIP" in remote.node_port(port.port).problem


async def test_a_health_check_node_port(sim: SimulatedCluster, remote: RemoteService) -> None:
    """The healthCheckNodePort is followed, and the last one stays after the Service is deleted."""
    sim.put(node_port(30500))
    await until(lambda: remote.service is not None)
    assert "externalTrafficPolicy" in remote.health_check_node_port().problem
    sim.put(node_port(30500, externalTrafficPolicy="Local", type="LoadBalancer", healthCheckNodePort=31000))
    await until(lambda: remote.health_check_node_port().number == 31000)
    sim.services.delete("web", namespace="edge")
    await until(lambda: remote.service is None)
    assert remote.health_check_node_port() == PortReading(31000, "it does not exist in cluster eu")
