"""Reads the zones of the hub cluster's Nodes, as long as a registry maps zones of remote clusters to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from hub.errors import HubError
from hub.kube.client import METADATA_LIST, Client
from hub.kube.wire import NODES, UNDECODABLE
from hub.model import LABEL_ZONE, LOCAL
from hub.observe.remote.status import in_words
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

PERIOD: Final = 60.0
"""Seconds between reads: a cluster seldom gets a new zone."""
TIMEOUT: Final = 10.0
"""Seconds for one page."""
PAGE_SIZE: Final = 500
RULE: Final = "nodes: list"


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta


class _ListMeta(msgspec.Struct, rename="camel"):
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Nodes(msgspec.Struct):
    metadata: _ListMeta
    items: tuple[_Node, ...] | None = None


_decode = msgspec.json.Decoder(_Nodes).decode


class HubZones:
    """The zones of the hub cluster.

    Args:
        client: of the hub cluster.
        clock: where time comes from.
        on_change: called when ``known`` changed.

    Attributes:
        known: the zones in which a Node is; None = not known. Kept if a read fails.
        problem: why the last read failed; "" if it did not.
        attempted: set after the first read, also if it failed.
    """

    def __init__(self, client: Client, clock: Clock, on_change: Callable[[], None]) -> None:
        self.known: frozenset[str] | None = None
        self.problem = ""
        self.attempted = asyncio.Event()
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._needed = asyncio.Event()

    def follow(self, *, needed: bool) -> None:
        """Read the zones from now on, or no longer."""
        if needed:
            self._needed.set()
        else:
            self._needed.clear()

    async def run(self) -> None:
        """Read the zones periodically while they are needed, until cancelled."""
        while True:
            await self._needed.wait()
            await self.read()
            await self._clock.sleep(PERIOD)

    async def read(self) -> None:
        """Read the zones once if they are needed."""
        if not self._needed.is_set():
            return
        try:
            found = await self._zones()
        except (HubError, *UNDECODABLE) as error:
            problem = in_words(error, LOCAL, RULE) if isinstance(error, HubError) else "the answer cannot be decoded"
            if problem != self.problem:
                log.warning("hub cluster: the zones of its Nodes cannot be read: %s", problem)
            self.problem = problem
        else:
            self.problem = ""
            if found != self.known:
                self.known = found
                self._on_change()
        self.attempted.set()

    async def _zones(self) -> frozenset[str]:
        zones: set[str] = set()
        params = {"limit": str(PAGE_SIZE)}
        while True:
            body = await self._client.request(
                "GET", NODES.path, params=params, timeout=TIMEOUT, content_type=METADATA_LIST
            )
            page = _decode(body)
            zones.update(zone for node in page.items or () if (zone := (node.metadata.labels or {}).get(LABEL_ZONE)))
            if not page.metadata.continue_:
                return frozenset(zones)
            params["continue"] = page.metadata.continue_
