"""One list and one watch of one resource, for ever: client-go's reflector semantics on asyncio.

The store keeps its content through every failure: only a complete list replaces it, atomically. What
went wrong is told to the ``observer``; waiting is jittered and grows. Source of the constants and of
the rules: client-go v0.36 tools/cache/reflector.go, each seen again on a real API server.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from hub.errors import (
    ApiError,
    BadAnswer,
    CertificateRejected,
    ClusterUnreachable,
    CredentialError,
    Expired,
    HubError,
    UsageError,
)
from hub.kube.client import Client, Stream, api_error
from hub.kube.wire import Event, Resource
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock
from hub.runtime.rounds import own_round

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE_SIZE = 500
"""Objects per page of a list: limits what is in memory at once (6 MB for Nodes)."""
WATCH_SECONDS = (300, 600)
"""A watch asks the server to end it after a random time in this range, so that a fleet's do not end together."""
SHORT_WATCH = 1.0
"""A watch that ends sooner without a single event counts as a failure: the guard against hot loops."""
LIST_PAGES = 1000
"""Pages of one list, and with the page size its objects: half a million, three times the largest clusters."""
LARGE_PAGE = 4 << 20
"""Bytes of a page above which it is read in a thread: 500 Nodes have less, and hostile bytes cost 0.4 s per MiB."""
LIST_TIMEOUT = 60.0
"""Seconds for one page."""
STEADY = 5.0
"""Seconds: after a longer silence, a watch and the first events on it may be out of date."""
LONGEST_RETRY_AFTER = 300.0
"""Seconds; kube-apiserver asks for 32 at most, a proxy in maintenance for anything."""


class Store(Protocol[T]):
    """Where a reflector puts objects. Called on the loop; must not block or raise."""

    def replace(self, objects: dict[Any, T], resource_version: str) -> None:
        """A complete list: everything else is gone."""
        ...

    def upsert(self, key: Any, value: T, resource_version: str) -> None:
        """One object is new or changed."""
        ...

    def delete(self, key: Any, value: T, resource_version: str) -> None:
        """One object is gone; ``value`` is its last state."""
        ...


@runtime_checkable
class EchoStore(Store[T], Protocol[T]):
    """A store of objects that this process writes itself."""

    def lean(self, page: dict[Any, T]) -> dict[Any, T]:
        """Reduce a page of a list to what the store keeps; ``replace`` is called when all pages have arrived."""
        ...

    def knows(self, key: Any, resource_version: str) -> bool:
        """Whether this very state of an object is in the store already."""
        ...

    def defers(self, key: Any, again: Callable[[], None]) -> bool:
        """True where the store will call ``again`` once a write of its own to this object has ended."""
        ...


class Observer(Protocol):
    """Hears of the reflector's successes and failures."""

    def listing(self) -> None:
        """A (new) list is needed: until ``answered`` the store is old."""
        ...

    def answered(self) -> None:
        """The server gave a complete list, or a watch runs: the store is current."""
        ...

    def failed(self, error: HubError) -> None:
        """An attempt failed; the store is as old as the last ``answered``."""
        ...


class RelistSlots:
    """Bounds how many lists are read at once, so that a fleet that starts or returns does not fill the memory.

    Whoever holds a slot for ``patience`` seconds goes on without it: slow clusters in all slots delay nobody for long.
    """

    def __init__(self, slots: int = 16, patience: float = 0.5) -> None:
        self._semaphore = asyncio.Semaphore(slots)
        self._patience = patience

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Hold a slot, once there is one."""
        await self._semaphore.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._semaphore.release()

        timer = asyncio.get_running_loop().call_later(self._patience, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


class Reflector(Generic[T]):
    """Keeps a store in step with one resource of one API server.

    Args:
        name: what and which cluster, for logs.
        params: extra list and watch parameters, such as a labelSelector.
        namespace: watch one namespace only; None = all (or a cluster-scoped resource).

    Attributes:
        told_at: ``Clock.now()`` of the last moment that the store is known to show: that of the last list, or that
            of the last line of a watch without long silences. After a silence a backlog may be on its way, and what
            was true at its beginning need not be so at its end. None before the first list.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        resource: Resource[T],
        store: Store[T],
        observer: Observer,
        clock: Clock,
        *,
        params: Mapping[str, str] | None = None,
        namespace: str | None = None,
        slots: RelistSlots | None = None,
        rng: random.Random | None = None,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self._name = name
        self._client = client
        self._resource = resource
        self._store = store
        self._echoes = store if isinstance(store, EchoStore) else None
        self._observer = observer
        self._clock = clock
        self._params = dict(params or {})
        self._path = resource.path
        if namespace is not None:
            head, _, plural = resource.path.rpartition("/")
            self._path = f"{head}/namespaces/{namespace}/{plural}"
        self._slots = slots or RelistSlots()
        self._rng = rng or random.Random()
        self._page_size = page_size
        self._backoff = Backoff(rng=self._rng)
        self._expired_at: float | None = None
        self._stream: Stream | None = None
        self._asked = False
        self._doubted = False
        self.resource_version = ""
        self.told_at: float | None = None
        self.relists = 0
        self.events = 0
        self.skipped = 0

    def list_again(self) -> None:
        """Read a new list soon, although nothing is wrong with the watch."""
        self._asked = True
        if self._stream is not None:
            self._stream.end()

    async def run(self) -> None:
        """List and watch until cancelled; never ends by itself and swallows every HubError into the observer."""
        silent = 0
        while True:
            try:
                if self._asked:
                    self._asked = False
                    await self._list()
                if not self.resource_version:
                    self._observer.listing()
                    await self._list()
                    silent = 0
                started = self._clock.now()
                before = (self.events, self.resource_version)
                heard = await self._watch()
                lasted = self._clock.now() - started
                silent = 0 if heard or self._asked else silent + (lasted >= SHORT_WATCH)
                if silent >= 2:  # a watch at a version from the future answers 200 and stays silent
                    log.info("%s: silent twice, listing again", self._name)
                    self.resource_version = ""
                still = self.events == before[0] or self.resource_version == before[1]
                if still and lasted < SHORT_WATCH and not self._asked:
                    raise BadAnswer(200, "", "the watch ended at once without anything new", what=self._path)
            except Expired as error:
                log.info("%s: %s; listing again", self._name, error)
                while_listing, self.resource_version = not self.resource_version, ""
                if self._recently_expired():  # expired again: report it, or the list would be missing without a reason
                    delay = self._failed(error) if while_listing else self._backoff.next(self._clock.now())
                    await self._clock.sleep(delay)
            except (ApiError, ClusterUnreachable, CertificateRejected, CredentialError, UsageError) as error:
                await self._clock.sleep(self._failed(error))

    def _failed(self, error: HubError) -> float:
        """Tell the observer; returns the seconds to wait."""
        self._doubted = True
        self._observer.failed(error)
        delay = self._backoff.next(self._clock.now())
        if isinstance(error, ApiError):
            if error.status == 400:  # it does not take our resourceVersion, and never will
                self.resource_version = ""
            if error.retry_after is not None:
                delay = max(delay, min(error.retry_after, LONGEST_RETRY_AFTER))
        log.debug("%s: %s; again in %.1f s", self._name, error, delay)
        return delay

    def _recently_expired(self) -> bool:
        now, last = self._clock.now(), self._expired_at
        self._expired_at = now
        return last is not None and now - last < 30.0

    async def _list(self) -> None:
        """Read all pages (resourceVersion unset: quorum), then replace the store at once."""
        objects: dict[Any, T] = {}
        params = {**self._params, "limit": str(self._page_size)}
        pages = 0
        await self._client.reach()  # an unreachable server is waited for before a slot is taken
        async with self._slots.take():
            asked = self._clock.now()
            while True:
                body = await self._client.request("GET", self._path, params=params, timeout=LIST_TIMEOUT)
                if len(body) > LARGE_PAGE:
                    page, version, token = await asyncio.to_thread(self._resource.list_page, body)
                else:
                    await own_round()
                    page, version, token = self._resource.list_page(body)
                del body
                pages += 1
                objects.update(page if self._echoes is None else self._echoes.lean(page))
                if len(objects) > LIST_PAGES * self._page_size or (token and pages == LIST_PAGES):
                    what = f"a list without an end: more than {LIST_PAGES} pages of {self._page_size}"
                    raise BadAnswer(200, "", what, what=self._path)
                if not token:
                    break
                if token == params.get("continue"):
                    raise BadAnswer(200, "", "a list that goes on with the same page for ever", what=self._path)
                params["continue"] = token
                await asyncio.sleep(0)
        self.relists += 1
        self.resource_version, self.told_at = version, asked
        self._store.replace(objects, version)
        self._answered()

    def _answered(self) -> None:
        self._doubted = False
        self._observer.answered()

    async def _watch(self) -> bool:
        """Follow changes until the stream ends or falls silent; True if it ended after a line.

        Silence means to watch again from here and is no failure by itself. A line that is not an event is
        skipped, unless it is the first: then this is no watch. After a failure a 200 alone proves nothing,
        since a proxy's login page has one too: an event does, or a stream that stays open without a word.

        Raises:
            Expired: the resourceVersion is too old (also as an ERROR event inside a 200).
            ApiError, ClusterUnreachable: as the client's.
        """
        params = {
            **self._params,
            "watch": "true",
            "resourceVersion": self.resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._rng.randint(*WATCH_SECONDS)),
        }
        heard = False
        last = steady_since = self._clock.now()

        def take(line: bytes) -> None:
            nonlocal heard, last, steady_since
            before, last = last, self._clock.now()
            if last - before > STEADY:
                steady_since = last
            elif last - steady_since > STEADY:
                self.told_at = last
            try:
                self._handle(line)
            except BadAnswer:
                if not heard:
                    raise
                self.skipped += 1
                log.warning("%s: skipped a line of the watch that is not an event", self._name)
            heard = True
            self._stands()

        async with self._client.watch(self._path, params) as stream:
            self._stream = stream
            if self._asked:  # while it was being opened
                stream.end()
            if not self._doubted:
                self._observer.answered()
            stands = asyncio.get_running_loop().call_later(SHORT_WATCH, self._stands)
            try:
                await stream.follow(take)
            except ClusterUnreachable as error:
                if error.kind != "timeout":
                    raise
                log.info("%s: watch silent, reconnecting", self._name)
                return False
            finally:
                stands.cancel()
                self._stream = None
        return heard

    def _stands(self) -> None:
        """The watch that followed a failure is one."""
        if self._doubted:
            self._answered()

    def _handle(self, line: bytes) -> None:
        if self._echoes is not None and self._resource.peek is not None:
            key, version = self._resource.peek(line)
            if version and self._echoes.defers(key, lambda: self._handle_late(line, key, version)):
                self.resource_version = version
                self.events += 1
                return
            if version and self._echoes.knows(key, version):
                self.resource_version = version
                self.events += 1
                return
        self._enter(self._resource.event(line))

    def _handle_late(self, line: bytes, key: Any, version: str) -> None:
        """An event that the store had deferred: the watch has gone on since, and its reader is not the caller."""
        assert self._echoes is not None  # noqa: S101 - it deferred
        if self._echoes.knows(key, version):
            return
        went_on = self.resource_version
        try:
            self._enter(self._resource.event(line))
        except HubError as error:
            self.skipped += 1
            log.warning("%s: skipped an event of the watch: %s", self._name, error)
        finally:
            self.resource_version = went_on

    def _enter(self, event: Event) -> None:
        if event.type == "ERROR" and event.status is not None:
            raise api_error(event.status.code or 500, b"", f"watch {self._path}", phrase=event.status.message)
        if event.type == "BOOKMARK" and _older(event.resource_version, self.resource_version):
            what = f"the server is at {event.resource_version}, before {self.resource_version}: restored from a backup?"
            raise Expired(410, "Expired", what, what=self._path)
        if event.resource_version:
            self.resource_version = event.resource_version
        if event.type == "BOOKMARK":
            self._backoff.reset()
            return
        self.events += 1
        if event.object is None:
            self.skipped += 1
            log.warning("%s: skipped an event of type %s that does not decode", self._name, event.type[:32])
        elif event.type == "DELETED":
            self._store.delete(event.key, event.object, event.resource_version)
        else:
            self._store.upsert(event.key, event.object, event.resource_version)


def _older(one: str, other: str) -> bool:
    """Whether one resourceVersion is before another; False if either is not a number. Numbers may have any length."""
    return one.isdecimal() and other.isdecimal() and (len(one), one) < (len(other), other)
