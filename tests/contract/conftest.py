"""The servers under test: a real kube-apiserver and the simulator."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest
from hub_testkit import SimulatedCluster

from tests.contract.client import Client, Server, connected
from tests.support.apiserver.server import ApiServer

SIDES = {"real": "real_server", "simulated": "simulated_server"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the fixture ``hub_cluster`` to tests on the real server, so that the session starts and repairs it."""
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and "server" in item.fixturenames
            and hasattr(item, "callspec")  # other tests have a fixture of that name too
            and item.callspec.params.get("server") == "real"
        ):
            item.fixturenames = [*item.fixturenames, "hub_cluster"]


@pytest.fixture(params=list(SIDES))
def server(request: pytest.FixtureRequest) -> Client:
    """A client of one of the servers."""
    client: Client = request.getfixturevalue(SIDES[request.param])
    return client


@pytest.fixture
async def real_server(hub_cluster: ApiServer) -> AsyncIterator[Client]:
    """A client of a real API server, on which "nobody" has no rights."""

    async def forget() -> None:
        await asyncio.to_thread(hub_cluster.forget_history)

    tls = ssl.create_default_context(cadata=hub_cluster.ca_pem)
    server = Server(hub_cluster.url, tls, hub_cluster.token("admin"), hub_cluster.token("nobody"), forget)
    async with connected(server) as client:
        yield client


@pytest.fixture
async def simulated_server() -> AsyncIterator[Client]:
    """A client of a simulated API server."""
    async with SimulatedCluster() as sim:

        async def forget() -> None:
            sim.compact()

        powerless = sim.add_token("nobody")
        sim.forbid(user="nobody")
        server = Server(sim.url, sim.client_tls(), sim.token, powerless, forget)
        async with connected(server) as client:
            yield client
