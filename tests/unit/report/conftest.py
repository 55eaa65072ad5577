"""A hub on simulated clusters with its listener open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Hub, Options, assemble
from hub.report.server import Listen, listening
from tests.support.ports import free_port
from tests.support.waiting import until


@dataclass(frozen=True)
class Where:
    """An address to listen on."""

    host: str | None = "127.0.0.1"
    port: int = 0


@dataclass
class Watched:
    """A running hub with its simulated clusters and an HTTP session."""

    hub: Hub
    here: SimulatedCluster
    remote: SimulatedCluster
    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str, **more: Any) -> tuple[int, str, Mapping[str, str]]:
        """Send a GET, and return the status, text and headers of the answer."""
        async with self.session.get(self.url + path, allow_redirects=False, **more) as answer:
            return answer.status, await answer.text(), answer.headers

    async def json(self, path: str) -> Any:
        """The decoded JSON document of a path."""
        status, text, _ = await self.get(path)
        assert status == 200, text
        return json.loads(text)

    @property
    def place(self) -> tuple[str, int]:
        """The host and port that the hub listens on."""
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host, int(port)


async def nothing(reader: asyncio.StreamReader) -> bool:
    """Whether a connection ends without an answer."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@asynccontextmanager
async def watching(folder: Path, listen: Listen | None = None, **options: Any) -> AsyncIterator[Watched]:
    """A running hub with the cluster ``eu``, whose three nodes are published in the Service ``edge/payments``."""
    remote, here = SimulatedCluster("eu"), SimulatedCluster("hub")
    for number in (1, 2, 3):
        remote.nodes.add(make_node(f"n{number}", f"10.0.0.{number}"))
    here.put(make_service("edge", "payments", ports=[{"port": 443}]))
    async with AsyncExitStack() as stack:
        for simulated in (remote, here):
            await stack.enter_async_context(simulated)
        eu = {
            "name": "eu",
            "kubeconfig": {"path": str(remote.write_kubeconfig(folder / "eu"))},
            "allowedCIDRs": ["10.0.0.0/8"],
            "provider": {"name": "node-addresses"},
        }
        service = {"name": "payments", "namespace": "edge", "sources": [{"cluster": "eu"}], "ports": [{"port": 30443}]}
        registry = folder / "clusters.yaml"
        registry.write_text(json.dumps({"version": 1, "clusters": [eu], "services": [service]}))
        options.setdefault("leader_elect", False)
        given = Options(str(registry), str(here.write_kubeconfig(folder / "hub")), **options)
        hub = await stack.enter_async_context(assemble(given))
        [url] = await stack.enter_async_context(listening(listen or Listen(Where()), hub))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        stop = asyncio.Event()
        running = asyncio.create_task(hub.run(stop))
        try:
            await until(lambda: sum(len(slice_.endpoints) for slice_ in hub.local.slices.values()) == 3)
            yield Watched(hub, here, remote, url, session)
        finally:
            stop.set()
            await running


@pytest.fixture
def port() -> int:
    """An unused port."""
    return free_port()


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    """A leading hub with three published endpoints."""
    async with watching(tmp_path) as found:
        yield found
