"""Lists and API clients that the clusters and accounts of one hub share: a list per data center, a client per login."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

from cachetools import TLRUCache

from hub.plugin import HubContext
from hub_provider_ionos.account import Account, Usage
from hub_provider_ionos.api import PARALLEL, Api
from hub_provider_ionos.feed import Feed, User
from hub_provider_ionos.listing import FeedStats, Key, Listing

MAX_LISTS: Final = 1024
"""The most complete lists that are kept."""


class Cloud:
    """All lists of one hub, shared by its clusters.

    Args:
        hub: The hub's services.
        group: Runs the tasks that request the lists.
        rng: Varies the intervals; for tests.
    """

    def __init__(self, hub: HubContext, group: asyncio.TaskGroup, rng: random.Random | None = None) -> None:
        self._hub = hub
        self._group = group
        self._rng = rng or random.Random()
        self._apis: dict[Account, Api] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._feeds: dict[Key, Feed[Any]] = {}
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._changes: set[asyncio.Task[Any]] = set()
        self._lists: TLRUCache[Key, Listing[Any]] = TLRUCache(MAX_LISTS, ttu=_expires, timer=hub.clock.now)

    def stats(self) -> tuple[FeedStats, ...]:
        """Returns the counters of all lists in use."""
        return tuple(feed.stats() for feed in self._feeds.values())

    def usage(
        self, read: Callable[[Usage], int | None], combine: Callable[[list[int]], int] = sum
    ) -> Mapping[str, float]:
        """Returns a number by API address, combined over the API's accounts.

        Args:
            read: Reads the number; None leaves the account out.
            combine: Combines the numbers of several accounts.
        """
        found: dict[str, list[int]] = {}
        for account, api in self._apis.items():
            if (number := read(api.usage)) is not None:
                found.setdefault(account.url, []).append(number)
        return {url: combine(numbers) for url, numbers in found.items()}

    def counts(self, name: str) -> Mapping[str, float]:
        """Returns a counter of the lists, by data center or managed Kubernetes cluster, summed over accounts."""
        found: dict[str, float] = {}
        for key, feed in self._feeds.items():
            found[key.id] = found.get(key.id, 0) + feed.counted(name)
        return found

    def intervals(self) -> Mapping[str, float]:
        """Returns the seconds between the last attempt and the next, by data center or managed Kubernetes cluster.

        If several accounts list the same one, the longest interval counts.
        """
        found: dict[str, float] = {}
        for stats in self.stats():
            found[stats.id] = max(found.get(stats.id, 0.0), stats.interval)
        return found

    @asynccontextmanager
    async def feed(self, user: User, key: Key, refresh: float) -> AsyncGenerator[Callable[[], Feed[Any]], None]:
        """Yields a function that returns the list; its first call starts the requests.

        The last user that leaves ends the list, and with the account's last list its client.

        Args:
            user: Uses the list until the context ends, and is told of changes.
            key: The list.
            refresh: The user's interval in seconds; the shortest of all users counts.
        """
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = self._make(key)
        feed.join(user, refresh)

        def started() -> Feed[Any]:
            feed.start(self._group)
            return feed

        try:
            yield started
        finally:
            if feed.leave(user):
                del self._feeds[key]
                await feed.stop()
                api = self._apis.get(key.account)
                if api is not None and not any(other.account == key.account for other in self._feeds):
                    del self._apis[key.account]
                    api.close()

    def turn(self, account: Account, nic: str) -> asyncio.Lock:
        """Returns the lock that a change of a NIC holds, the same for all accounts of an API address.

        It is held from reading the NIC's addresses until the change was answered, since the API compares nothing.
        """
        return self._turns.setdefault((account.url, nic), asyncio.Lock())

    def keep(self, change: asyncio.Task[Any]) -> None:
        """Keeps a change whose caller may be cancelled, and the account closed, until it ends."""
        self._changes.add(change)
        change.add_done_callback(self._changed)

    def _changed(self, change: asyncio.Task[Any]) -> None:
        self._changes.discard(change)
        if not change.cancelled():
            change.exception()  # a cancelled caller does not look at it

    def api(self, account: Account) -> Api:
        """Returns the client of an account, while one of its lists is in use."""
        return self._apis[account]

    def _make(self, key: Key) -> Feed[Any]:
        account = key.account
        slots = self._slots.setdefault(account.url, asyncio.Semaphore(PARALLEL))
        api = self._apis.setdefault(account, Api(self._hub, account, slots))

        async def fetch() -> Any:
            return await (api.fleet(key.id) if key.kind == "datacenter" else api.pool_nodes(key.id))

        return Feed(key, api, fetch, self._lists, self._hub, self._rng)


@asynccontextmanager
async def open_cloud(hub: HubContext, /) -> AsyncGenerator[Cloud, None]:
    """Opens what all clusters of a hub share (``NodeProviderType.shared``), and declares the metrics."""
    async with asyncio.TaskGroup() as group:
        cloud = Cloud(hub, group)
        hub.measure("api_requests_total", lambda: cloud.usage(lambda usage: usage.requests))
        hub.measure("api_rate_limited_total", lambda: cloud.usage(lambda usage: usage.limited))
        hub.measure("api_rate_limit_remaining", lambda: cloud.usage(lambda usage: usage.remaining, min))
        hub.measure("lists_total", lambda: cloud.counts("lists"))
        hub.measure("list_failures_total", lambda: cloud.counts("failures"))
        hub.measure("early_lists_total", lambda: cloud.counts("early"))
        hub.measure("list_interval_seconds", cloud.intervals)
        yield cloud


def _expires(_key: Key, listing: Listing[Any], _now: float) -> float:
    return listing.expires
