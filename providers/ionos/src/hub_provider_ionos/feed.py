"""Lists that clusters share: one per data center and account, however many clusters use it.

Each list has one loop that requests it, so there is never more than one request for it at a time: every ``refresh``
give or take 10 %, more slowly while the rate limit runs low, with backoff after a failure, and early if a cluster
misses a node. After a failed attempt every cluster gets its error until the next attempt, and not the last good list.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from cachetools import TLRUCache

from hub.plugin import CredentialError, HubContext, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import QuotaExceeded
from hub_provider_ionos.api import Api
from hub_provider_ionos.listing import FeedStats, Key, Listing

T = TypeVar("T")

EARLY: Final = 10.0
"""The least number of seconds between two early lists."""

JITTER: Final = 0.1
"""The fraction by which intervals vary, so that lists are not all requested at the same time."""

FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""Seconds until a failed list is retried: doubling from the first to the last, or to ``refresh`` if that is longer."""

CREDENTIAL_CHECK: Final = 5.0
"""Seconds between two checks whether a refused credential has changed."""

MAX_AGE: Final = 4
"""The number of intervals after which a list expires. A running loop lists every interval, so a list gets that old only
when the loop could not run, for example because the machine was suspended."""


LOW: Final = 1
"""The rate limit runs low while ``Usage.stretch`` is above this: lists come more slowly, and none come early."""


class User(Protocol):
    """A cluster, or an account of addresses, that uses a list: its context."""

    def changed(self) -> None:
        """Is called when the list changes."""
        ...


class Feed(Generic[T]):
    """One list, requested by one task.

    Args:
        key: What is listed, and for which account.
        api: The account's client.
        fetch: Requests the whole list.
        lists: Keeps the complete lists of all feeds.
        hub: The hub's services.
        rng: Varies the intervals.
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
        self._users: dict[User, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._kick = asyncio.Event()
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._refused = ""
        """The credential of the last failed attempt. ``Api.last_secret`` may be newer, from another list's request."""
        self._failed_in_a_row = 0
        self._attempted = float("-inf")
        """When the last finished attempt started."""
        self._slow = False
        self._next_at = 0.0
        self._interval = 0.0
        self._wanted = False
        """A caller waits for the outcome of an attempt."""
        self._early_at: float | None = None
        self._last_early = float("-inf")
        self._counts = {"lists": 0, "early": 0, "failures": 0}
        self._size = 0

    # --- clusters and accounts that use it -------------------------------------------------------------

    def join(self, user: User, refresh: float) -> None:
        """Adds a user of the list. The shortest ``refresh`` of all users counts. Sends no request."""
        self._users[user] = refresh
        sooner = self._hub.clock.now() + refresh
        if self._error is None and not self._slow and sooner < self._next_at:
            self._next_at = sooner
            self._kick.set()

    def leave(self, user: User) -> bool:
        """Removes a user. True if the list has no user any more."""
        self._users.pop(user, None)
        return not self._users

    def start(self, group: asyncio.TaskGroup) -> None:
        """Starts the task that requests the list, if it does not run yet."""
        if self._task is None:
            self._task = group.create_task(self._run(), name=f"ionos: list {self.key.kind} {self.key.id}")

    async def stop(self) -> None:
        """Ends the task and forgets the list."""
        self._lists.pop(self.key, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    # --- answers ---------------------------------------------------------------------------------------

    async def current(self) -> Listing[T]:
        """Returns the last complete list. Waits for an attempt only if there is no list, or for a changed credential.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: The last attempt failed.
        """
        if self._error is not None:
            if isinstance(self._error, TransientProviderError) or not await self._api.credential_changed(self._refused):
                raise self._repeated(self._error)
            return await self.next_list()
        listing = self._lists.get(self.key)
        return cast("Listing[T]", listing) if listing is not None else await self.next_list()

    async def next_list(self) -> Listing[T]:
        """Waits for the attempt in progress, or for one made now, and returns its list.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: The attempt failed.
        """
        outcome = self._outcome
        self._wanted = True
        self._kick.set()
        await asyncio.shield(outcome)
        if self._error is not None:
            raise self._repeated(self._error)
        return self._lists[self.key]

    async def since(self, moment: float) -> Listing[T]:
        """Returns the last list if it was requested at ``moment`` or later, otherwise waits for one made now.

        Args:
            moment: A time of the hub's clock; minus infinity = the last list, unless the last attempt failed.

        Raises:
            QuotaExceeded, TransientProviderError, TerminalProviderError, CredentialError: The attempt failed.
        """
        while True:
            listing = self._lists.get(self.key) if self._error is None else None
            if listing is not None and listing.started >= moment:
                return cast("Listing[T]", listing)
            self._wanted = True
            self._kick.set()
            await asyncio.shield(self._outcome)
            if self._error is not None and self._attempted >= moment:
                if isinstance(self._error, QuotaExceeded):
                    raise QuotaExceeded(str(self._error), retry_after=self._error.retry_after)
                raise self._repeated(self._error)

    def request_early(self) -> bool:
        """Plans an early list, because a cluster misses a node. True if the list may be requested now."""
        if self._error is not None or self._slow:
            return False
        if self._early_at is None:
            self._early_at = max(self._hub.clock.now(), self._last_early + EARLY)
            if self._early_at < self._next_at:
                self._kick.set()  # the loop computes again how long to wait
        return self._early_at <= self._hub.clock.now()

    def stats(self) -> FeedStats:
        """Returns the counters."""
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
        """Returns one of the counters ``lists``, ``early`` and ``failures``."""
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
        self._attempted = now
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
        self._error, self._refused = error, self._api.last_secret
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
        """Returns when the next attempt is due, a caller waits for one, or a refused credential has changed."""
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
        """Sleeps for ``seconds``, or until ``_kick`` is set."""
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
        """Returns a copy of the error for one caller: raising the same object repeatedly would pile up tracebacks."""
        if isinstance(error, TransientProviderError):
            return TransientProviderError(str(error), retry_after=max(1.0, self._next_at - self._hub.clock.now()))
        return type(error)(str(error))

    def _tell(self) -> None:
        for user in tuple(self._users):
            user.changed()


def _size(value: object) -> int:
    return len(getattr(value, "servers", value))  # type: ignore[arg-type]
