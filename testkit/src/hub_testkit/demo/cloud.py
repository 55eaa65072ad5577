"""A simulated cloud on loopback: one list of machines per data center, a little late, out of order on demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol, Self

import msgspec
from aiohttp import web

from hub_testkit.demo.ionos import IonosCloud
from hub_testkit.demo.provider import SCHEME, Server

LATENCY: Final = (0.005, 0.025)
"""Seconds an answer takes; a real one takes ten times as long."""


class AnyCloud(Protocol):
    """What the world needs of a cloud: machines by data center and name, and how the hub asks for them.

    Attributes:
        provider: name of the provider type that asks it.
        down: answers 503 while True.
    """

    provider: str
    down: bool

    @property
    def allow_api_hosts(self) -> frozenset[str]: ...  # noqa: D102 - as in Cloud

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def add(self, datacenter: str, name: str, address: str, zone: str) -> str: ...  # noqa: D102

    def remove(self, datacenter: str, name: str) -> None: ...  # noqa: D102

    def addresses(self, datacenter: str) -> dict[str, str]: ...  # noqa: D102

    def config(self, datacenter: str) -> str: ...  # noqa: D102

    def write_files(self, folder: Path) -> None: ...  # noqa: D102


def installed_cloud(rng: random.Random) -> AnyCloud:
    """The fake IONOS API where the provider ``ionos`` is installed, else the demo's own cloud."""
    return IonosCloud() if find_spec("hub_provider_ionos") is not None else Cloud(rng)


class Cloud:
    """Serves inside ``async with``.

    Attributes:
        servers: data center -> machine id -> machine.
        down: answers 503 while True.
        lists: lists asked for so far.
    """

    provider = "demo"

    def __init__(self, rng: random.Random) -> None:
        self.servers: dict[str, dict[str, Server]] = {}
        self.down = False
        self.lists = 0
        self._rng = rng
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def allow_api_hosts(self) -> frozenset[str]:
        """None: its provider asks nothing but loopback."""
        return frozenset()

    def add(self, datacenter: str, name: str, address: str, zone: str) -> str:
        """A new machine; its node's provider ID."""
        self.servers.setdefault(datacenter, {})[name] = Server(name, address, zone)
        return f"{SCHEME}:///{datacenter}/{name}"

    def remove(self, datacenter: str, name: str) -> None:
        """The machine is gone."""
        del self.servers[datacenter][name]

    def addresses(self, datacenter: str) -> dict[str, str]:
        """Address by name, of all machines of a data center."""
        return {name: each.address for name, each in self.servers[datacenter].items()}

    def config(self, datacenter: str) -> str:
        """``provider.config`` in YAML."""
        return f'{{cloud: "{self.url}", datacenter: {datacenter}}}'

    def write_files(self, folder: Path) -> None:
        """The configuration refers to none."""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/datacenters/{datacenter}/servers", self._list)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        self.lists += 1
        await asyncio.sleep(self._rng.uniform(*LATENCY))
        if self.down:
            return web.Response(status=503, text="maintenance")
        servers: Mapping[str, Server] | None = self.servers.get(request.match_info["datacenter"])
        if servers is None:
            return web.Response(status=404)
        response = web.Response(body=msgspec.json.encode(list(servers.values())), content_type="application/json")
        response.force_close()  # no connection outlives its answer: nothing is left behind at the end of a show
        return response
