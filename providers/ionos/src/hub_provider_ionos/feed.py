"""Lists that clusters share: one for each data center and account, however many clusters look at it.

One loop for each list asks the API, so that there is never more than one request for it under way: every
``refresh`` give or take 10 %, slower while the rate limit runs low, with backoff after a failure, and early where
somebody misses a node. A failed attempt is everybody's error until the next one; the last good list
is then no answer to anybody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar, cast

from cachetools import TLRUCache

from hub.plugin import ClusterContext, CredentialError, HubContext, TerminalProviderError, TransientProviderError
from hub_provider_ionos.api import Api
from hub_provider_ionos.listing import FeedStats, Key, Listing

T = TypeVar("T")

EARLY: Final = 10.0
"""Seconds between two lists that are asked for early, at least."""

JITTER: Final = 0.1
FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""Seconds until a failed list is asked for again: doubling from the first to the last, or to a longer ``refresh``."""

CREDENTIAL_CHECK: Final = 5.0
"""Seconds between two looks at a credential that was refused."""

MAX_AGE: Final = 4
"""Intervals after which a list is no answer any more: the loop has been asleep, as after a suspended machine."""


LOW: Final = 1
"""``Usage.stretch`` above which lists come slower."""


class Feed(Generic[T]):
    """One list, asked for by one task.

    Args:
        fetch: asks the API for all of it.
        lists: where complete lists of all feeds are kept.
    """

    def __init__(
        self,
        key: Key,
        api: Api,
        fetch: Callable[[], Awaitable[T]],
        lists: TLRUCache[Key, Listing[Any]],
        hub: HubContext,
        rng: random.Random,
    ) -> None:
        self.key = key
        self._api = api
        self._fetch = fetch
        self._lists = lists
        self._hub = hub
        self._rng = rng
        self._users: dict[ClusterContext, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._kick = asyncio.Event()
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._refused = ""
        """The credential of the last attempt, where that failed: other lists may have gone on to a newer one."""
        self._failed_in_a_row = 0
        self._slow = False
        self._next_at = 0.0
        self._interval = 0.0
        self._wanted = False
        """Somebody waits for an outcome."""
        self._early_at: float | None = None
        self._last_early = float("-inf")
        self._counts = {"lists": 0, "early": 0, "failures": 0}
        self._size = 0

    # --- who uses it -----------------------------------------------------------------------------------

    def join(self, cluster: ClusterContext, refresh: float) -> None:
        """A cluster uses it from now on; the shortest ``refresh`` counts. Asks nothing yet."""
        self._users[cluster] = refresh
        sooner = self._hub.clock.now() + refresh
        if self._error is None and not self._slow and sooner < self._next_at:
            self._next_at = sooner
            self._kick.set()

    def leave(self, cluster: ClusterContext) -> bool:
        """A cluster does not any more; True where nobody does."""
        self._users.pop(cluster, None)
        return not self._users

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to ask, if it has not begun."""
        if self._task is None:
            self._task = group.create_task(self._run(), name=f"ionos: list {self.key.kind} {self.key.id}")

    async def stop(self) -> None:
        """End the task and forget the list."""
        self._lists.pop(self.key, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    # --- what it says ----------------------------------------------------------------------------------

    async def current(self) -> Listing[T]:
        """The last complete list; waits for the first one, never for another.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: the last attempt failed.
        """
        if self._error is not None:
            if isinstance(self._error, TransientProviderError) or not await self._api.credential_changed(self._refused):
                raise self._repeated(self._error)
            return await self.again()
        listing = self._lists.get(self.key)
        return cast("Listing[T]", listing) if listing is not None else await self.again()

    async def again(self) -> Listing[T]:
        """The outcome of the attempt under way, or of one made now.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: it failed.
        """
        outcome = self._outcome
        self._wanted = True
        self._kick.set()
        await asyncio.shield(outcome)
        if self._error is not None:
            raise self._repeated(self._error)
        return self._lists[self.key]

    def missed(self) -> bool:
        """Somebody misses a node: an early list is due. True where it may be asked for now."""
        if self._error is not None or self._slow:
            return False
        if self._early_at is None:
            self._early_at = max(self._hub.clock.now(), self._last_early + EARLY)
            if self._early_at < self._next_at:
                self._kick.set()  # the loop looks again at what it waits for
        return self._early_at <= self._hub.clock.now()

    def stats(self) -> FeedStats:
        """The counters as they stand."""
        usage = self._api.usage
        return FeedStats(
            api=self.key.account.url,
            kind=self.key.kind,
            id=self.key.id,
            clusters=len(self._users),
            size=self._size,
            interval=self._interval,
            requests=usage.requests,
            limited=usage.limited,
            remaining=usage.remaining,
            error=str(self._error) if self._error is not None else "",
            **self._counts,
        )

    def counted(self, name: str) -> int:
        """One of the counters: ``lists``, ``early``, ``failures``."""
        return self._counts[name]

    # --- the loop --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._attempt()
            await self._pause()

    async def _attempt(self) -> None:
        now = self._hub.clock.now()
        if self._early_at is not None and self._early_at <= now < self._next_at:
            self._last_early = now
            self._counts["early"] += 1
        self._early_at = None
        try:
            value = await self._fetch()
        except (TransientProviderError, TerminalProviderError, CredentialError) as error:
            self._failed(error)
        except Exception as error:  # one list must not end the others
            self._hub.logger.exception("%s %s", self.key.kind, self.key.id)
            self._failed(TransientProviderError(f"{self.key.kind} {self.key.id}: {type(error).__name__}, a defect"))
        else:
            self._succeeded(value, now)
        self._wanted = False
        outcome, self._outcome = self._outcome, asyncio.get_running_loop().create_future()
        outcome.set_result(None)

    def _succeeded(self, value: T, started: float) -> None:
        before = self._lists.get(self.key)
        recovered = self._error is not None
        self._error, self._failed_in_a_row = None, 0
        self._counts["lists"] += 1
        self._plan(started, self._pace())
        expires = self._hub.clock.now() + MAX_AGE * max(self._interval, EARLY)
        self._lists[self.key] = Listing(value, self._counts["lists"], started, expires)
        self._size = _size(value)
        if recovered or before is None:
            self._hub.logger.info("%s %s: %d in the list", self.key.kind, self.key.id, self._size)
        if recovered or (before is not None and before.value != value):
            self._tell()

    def _failed(self, error: Exception) -> None:
        news = type(self._error) is not type(error)
        if news:
            self._hub.logger.warning("%s %s: %s", self.key.kind, self.key.id, error)
        self._error, self._refused = error, self._api.tried
        self._counts["failures"] += 1
        last = max(LAST_RETRY, self._refresh())
        wait = min(last, FIRST_RETRY * 2.0 ** min(self._failed_in_a_row, 16)) * self._rng.uniform(0.8, 1.0)
        self._failed_in_a_row += 1
        self._plan(self._hub.clock.now(), max(wait, getattr(error, "retry_after", None) or 0.0))
        if news:
            self._tell()

    def _pace(self) -> float:
        stretch = self._api.usage.stretch
        if (stretch > LOW) != self._slow:
            self._slow = stretch > LOW
            state = f"runs low ({self._api.usage.remaining} left): lists come slower" if self._slow else "is fine again"
            self._hub.logger.warning("%s %s: the rate limit %s", self.key.kind, self.key.id, state)
        return self._refresh() * stretch * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _refresh(self) -> float:
        return min(self._users.values(), default=LAST_RETRY)

    def _plan(self, start: float, seconds: float) -> None:
        self._interval = seconds
        self._next_at = start + seconds

    async def _pause(self) -> None:
        """Until the next attempt is due, or somebody waits for one."""
        while True:
            now = self._hub.clock.now()
            due = self._next_at if self._early_at is None else min(self._next_at, self._early_at)
            if self._wanted or due <= now:
                return
            if self._error is None or isinstance(self._error, TransientProviderError):
                await self._sleep(due - now)
            else:
                await self._sleep(min(due - now, CREDENTIAL_CHECK))
                if await self._api.credential_changed(self._refused):
                    return

    async def _sleep(self, seconds: float) -> None:
        """At most so long; less where something is to be looked at."""
        parts: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._kick.wait()),
            asyncio.ensure_future(self._hub.clock.sleep(seconds)),
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        self._kick.clear()

    def _repeated(self, error: Exception) -> Exception:
        """The error as a new one: each of its receivers adds a traceback of its own."""
        if isinstance(error, TransientProviderError):
            return TransientProviderError(str(error), retry_after=max(1.0, self._next_at - self._hub.clock.now()))
        return type(error)(str(error))

    def _tell(self) -> None:
        for cluster in tuple(self._users):
            cluster.changed()


def _size(value: object) -> int:
    return len(getattr(value, "servers", value))  # type: ignore[arg-type]
