"""A simulated cloud on loopback: a list of machines per data center, answered with a delay, or with 503 on demand."""

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
"""Range of the seconds that an answer takes; a real cloud takes ten times as long."""


class AnyCloud(Protocol):
    """The cloud as the demo's world uses it: machines by data center and name, and the configuration of its provider.

    Attributes:
        provider: Name of the provider type for this cloud.
        down: While True, every request is answered with 503.
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
    """Returns the fake IONOS API if the provider ``ionos`` is installed, otherwise the demo's own cloud."""
    return IonosCloud() if find_spec("hub_provider_ionos") is not None else Cloud(rng)


class Cloud:
    """The demo's own cloud. It serves inside ``async with``.

    Attributes:
        servers: Data center -> machine id -> machine.
        down: While True, every request is answered with 503.
        lists: The number of lists requested so far.
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
        """The address that it listens on."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def allow_api_hosts(self) -> frozenset[str]:
        """Empty: the provider ``demo`` contacts only loopback, and needs no allowed host."""
        return frozenset()

    def add(self, datacenter: str, name: str, address: str, zone: str) -> str:
        """Adds a machine and returns the provider ID of its node."""
        self.servers.setdefault(datacenter, {})[name] = Server(name, address, zone)
        return f"{SCHEME}:///{datacenter}/{name}"

    def remove(self, datacenter: str, name: str) -> None:
        """Removes a machine."""
        del self.servers[datacenter][name]

    def addresses(self, datacenter: str) -> dict[str, str]:
        """Returns the addresses of a data center's machines, by name."""
        return {name: server.address for name, server in self.servers[datacenter].items()}

    def config(self, datacenter: str) -> str:
        """Returns ``provider.config`` for a data center, in YAML."""
        return f'{{cloud: "{self.url}", datacenter: {datacenter}}}'

    def write_files(self, folder: Path) -> None:
        """Does nothing: the configuration refers to no files."""

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
        response.force_close()  # no connection outlives its answer, so none is open when the demo ends
        return response
