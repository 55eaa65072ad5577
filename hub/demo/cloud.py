"""A simulated cloud on loopback: one list of machines per data center, a little late, out of order on demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final, Self

import msgspec
from aiohttp import web

from hub.demo.provider import Server

LATENCY: Final = (0.005, 0.025)
"""Seconds an answer takes; a real one takes ten times as long."""


class Cloud:
    """Serves inside ``async with``.

    Attributes:
        servers: data center -> machine id -> machine.
        down: answers 503 while True.
        lists: lists asked for so far.
    """

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
