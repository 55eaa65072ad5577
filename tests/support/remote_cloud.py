"""The simulated cloud behind HTTP on loopback, and the plugin ``remote-cloud`` with which hub processes use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

import aiohttp
import msgspec
from aiohttp import web
from hub_testkit.addresses.cloud import Answer, SimulatedCloud
from hub_testkit.addresses.simulated import SimulatedConfig, SimulatedProvider

from hub.plugin import ProviderType, hookimpl
from hub.plugin.addresses import AccountContext, AddressType

NAME = "remote-cloud"


class CloudServer:
    """Serves a cloud; an async context manager. A call is a POST of its arguments as JSON."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self.port = 0
        self._cloud = cloud
        app = web.Application()
        app.router.add_post("/{action}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        answer = await self._cloud.call(cast("Any", request.match_info["action"]), **await request.json())
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


class RemoteCloud:
    """What :class:`SimulatedProvider` needs of a cloud, over HTTP."""

    account = "main"

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def call(self, action: str, **arguments: Any) -> Answer:
        """As :meth:`SimulatedCloud.call`."""
        try:
            async with self._http.post(f"{self._url}/{action}", json=arguments) as answer:
                return msgspec.json.decode(await answer.read(), type=Answer)
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from error


@asynccontextmanager
async def _open(
    account: AccountContext, config: SimulatedConfig, _shared: None
) -> AsyncGenerator[SimulatedProvider, None]:
    remote = RemoteCloud(account.hub.http, config.cloud)
    yield SimulatedProvider(account, config, cast("SimulatedCloud", remote))


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """The provider type."""
    yield ProviderType(NAME, addresses=AddressType(open=_open, config=SimulatedConfig, poll_floor=1.0))


def install(folder: Path) -> None:
    """Make processes that import from ``folder`` find the plugin."""
    info = folder / "hub_remote_cloud-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hub-remote-cloud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hub.providers]\n{NAME} = {__name__}\n")
