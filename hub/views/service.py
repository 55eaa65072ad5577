"""The endpoint views of a running hub: follows the clusters of the registry, serves streams, calls consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from hub.kube.client import Client
from hub.kube.reflector import RelistSlots
from hub.model import LOCAL
from hub.registry.spec import ViewsSpec
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise
from hub.views import consumers
from hub.views.board import Board
from hub.views.channel import Channel
from hub.views.delivery import Delivery
from hub.views.feed import Feed
from hub.views.selector import Selector
from hub.views.shapes import Shape

log = logging.getLogger(__name__)

CONSUMER_CHECK_INTERVAL: Final = 5.0
"""Seconds between checks for consumers that hang."""

Connect = Callable[[str], Awaitable[Client]]
"""Waits for a usable client of a cluster and returns it, or raises HubError."""


class EndpointViews:
    """All views of one hub.

    Args:
        connect: returns the client of a cluster by name.
        load: returns the hooks of a consumer by name.
        namespaces: the only namespaces of the hub cluster that are followed; empty = all.
    """

    def __init__(
        self,
        connect: Connect,
        clock: Clock,
        load: Callable[[str], Any] = consumers.load,
        namespaces: Sequence[str] = (),
    ) -> None:
        self.board = Board(lambda _, __: False, {LOCAL: namespaces})
        self.feeds: dict[str, Feed] = {}
        self.deliveries: dict[str, Delivery] = {}
        self._last_deliveries: dict[str, Delivery] = {}
        """The last delivery to each consumer; after a change of leaders, its thread may still be in a call."""
        self._connect = connect
        self._clock = clock
        self._load = load
        self._spec: ViewsSpec | None = None
        self._leads = False
        self._channels: dict[Shape, Channel] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = RelistSlots()

    # --- what is followed ------------------------------------------------------------------------

    def update(self, spec: ViewsSpec | None) -> None:
        """Apply the ``views`` block of a registry; unchanged clusters and consumers continue undisturbed."""
        old, self._spec = self._spec, spec
        if spec == old:
            return
        wanted = spec.clusters if spec is not None else ()
        for name in self.feeds.keys() - set(wanted):
            self._tasks.pop(name).cancel()
            del self.feeds[name]
            self.board.forget(name)
        if spec is not None and (old is None or (old.annotation, old.select) != (spec.annotation, spec.select)):
            self.board.set_selector(Selector(spec).selects)
        for name in wanted:
            if name not in self.feeds:
                self._follow(name)
        self._follow_consumers()

    def _follow(self, name: str) -> None:
        def stale(*, stale: bool) -> None:
            self.board.mark_stale(name, stale=stale)

        async def connection() -> Client:
            return await self._connect(name)

        feed = Feed(name, connection, self.board.cluster(name), self._clock, stale, self._slots)
        self.feeds[name] = feed
        self._start(name, f"views of {name}", feed.run)

    def _start(self, key: str, name: str, work: Callable[[], Awaitable[object]]) -> None:
        self._tasks[key] = asyncio.create_task(supervise(name, work, self._clock), name=name)

    @property
    def unknown(self) -> list[str]:
        """Names of clusters without a complete answer."""
        return sorted(name for name in self.feeds if not self.board.cluster(name).complete)

    async def settled(self, seconds: float) -> None:
        """Wait until every cluster has answered or failed, at most ``seconds``, and the views are up to date."""
        waits = [asyncio.create_task(feed.settled()) for feed in self.feeds.values()]
        if waits:
            try:
                await asyncio.wait(waits, timeout=seconds)
            finally:  # the caller may be cancelled
                for task in waits:
                    task.cancel()
        while not self.board.idle:  # noqa: ASYNC110 - the board works in rounds of the loop
            await asyncio.sleep(0)

    # --- streams -----------------------------------------------------------------------------------

    @property
    def readers(self) -> int:
        """Number of readers of all streams."""
        return sum(channel.readers for channel in self._channels.values())

    def channel(self, shape: Shape) -> Channel:
        """The stream in one shape; kept up to date from the first call."""
        if shape not in self._channels:
            channel = self._channels[shape] = Channel(shape, self._clock, lambda: self.unknown)
            self.board.listen(channel.changed)
        return self._channels[shape]

    # --- consumers ---------------------------------------------------------------------------------

    def set_leading(self, *, leading: bool) -> None:
        """Note whether this replica leads: only the leader calls consumers."""
        if leading != self._leads:
            self._leads = leading
            self._follow_consumers()

    def _follow_consumers(self) -> None:
        wanted = self._spec.hooks if self._spec is not None and self._leads else ()
        for name in self.deliveries.keys() - set(wanted):
            delivery = self.deliveries.pop(name)
            self.board.unlisten(delivery.changed)
            delivery.close()
        for name in wanted:
            if name not in self.deliveries:
                delivery = Delivery(name, partial(self._load, name), after=self._last_deliveries.get(name))
                self.deliveries[name] = self._last_deliveries[name] = delivery
                self.board.listen(delivery.changed)
                delivery.start()
                self._start(f"hook {name}", f"views consumer {name}", partial(self._check_consumer, delivery))
        for key in [key for key in self._tasks if key.startswith("hook ") and key[5:] not in self.deliveries]:
            self._tasks.pop(key).cancel()

    async def _check_consumer(self, delivery: Delivery) -> None:
        """Announce complete clusters to a consumer, and log calls that hang."""
        announced: set[str] = set()
        while True:
            if self.board.idle:
                complete = {name for name in self.feeds if self.board.cluster(name).complete}
                delivery.complete(sorted(complete - announced))
                announced = complete
            delivery.log_hung_call()
            await self._clock.sleep(CONSUMER_CHECK_INTERVAL)

    async def close(self) -> None:
        """Stop everything; running calls of consumers continue."""
        self.set_leading(leading=False)
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
