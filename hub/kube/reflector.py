"""Lists and watches one resource for ever, with the semantics of client-go's reflector.

The store keeps its content through every failure: only a complete list replaces it, atomically. Failures are reported
to the ``observer``; retries have a growing, jittered delay. Source of the constants and rules: client-go v0.36
tools/cache/reflector.go, each confirmed on a real API server.
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
    KubeconfigError,
)
from hub.kube.client import Client, Stream, api_error
from hub.kube.wire import Event, Resource
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock
from hub.runtime.rounds import own_round

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE_SIZE = 500
"""Objects per page of a list. Limits the bytes in memory at once (6 MB for Nodes)."""
WATCH_SECONDS = (300, 600)
"""The server ends a watch after a random time in this range, so that the watches of a fleet do not end together."""
SHORT_WATCH = 1.0
"""A watch that ends within these seconds without an event counts as a failure, so that it is not retried in a hot
loop."""
LIST_PAGES = 1000
"""The largest number of pages of one list. With pages of 500, half a million objects: three times the largest
clusters."""
LARGE_PAGE = 4 << 20
"""Bytes above which a page is decoded in a thread. 500 Nodes have less; hostile input takes 0.4 s per MiB."""
LIST_TIMEOUT = 60.0
"""Seconds for one page of a list."""
STEADY_AFTER = 5.0
"""After a silence of more seconds than this, the next lines of a watch may be outdated (see
:attr:`Reflector.current_as_of`)."""
LONGEST_RETRY_AFTER = 300.0
"""The longest Retry-After that is respected, in seconds. kube-apiserver asks for 32 at most, but a proxy may ask for
anything."""


class Store(Protocol[T]):
    """Receives the objects of a reflector. The methods run in the event loop and must not block or raise."""

    def replace(self, objects: dict[Any, T], resource_version: str) -> None:
        """Replace the whole content by a complete list."""
        ...

    def upsert(self, key: Any, value: T, resource_version: str) -> None:
        """Add or replace one object."""
        ...

    def delete(self, key: Any, value: T, resource_version: str) -> None:
        """Remove one object; ``value`` is its last state."""
        ...


@runtime_checkable
class EchoStore(Store[T], Protocol[T]):
    """A store of objects that this process writes itself, so that most watch events are echoes of its own writes."""

    def shrink_page(self, page: dict[Any, T]) -> dict[Any, T]:
        """Reduce a page of a list to the objects and values that the store keeps, before ``replace`` gets all pages."""
        ...

    def knows(self, key: Any, resource_version: str) -> bool:
        """Whether the store already has this version of an object."""
        ...

    def defers(self, key: Any, again: Callable[[], None]) -> bool:
        """Whether an event must wait for the end of this process's write to the object; then ``again`` is called."""
        ...


class Observer(Protocol):
    """Is informed of a reflector's successes and failures."""

    def listing(self) -> None:
        """A list is needed. The store is outdated until ``answered``."""
        ...

    def answered(self) -> None:
        """The server gave a complete list, or a watch is open: the store is current."""
        ...

    def failed(self, error: HubError) -> None:
        """An attempt failed. The store is current as of the last ``answered``."""
        ...


class RelistSlots:
    """Limits the number of lists that are read at once, so that the start of a fleet does not exhaust the memory.

    A list that takes longer than ``patience`` seconds gives its slot back and continues without one, so that slow
    clusters do not delay others for long.
    """

    def __init__(self, slots: int = 16, patience: float = 0.5) -> None:
        self._semaphore = asyncio.Semaphore(slots)
        self._patience = patience

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it, for ``patience`` seconds at most."""
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
        name: the resource and the cluster, for logs.
        client: the client of the API server.
        resource: the resource to list and watch.
        store: receives the objects.
        observer: is informed of successes and failures.
        clock: the source of time.
        params: extra list and watch parameters, such as a labelSelector.
        namespace: the only namespace to watch; None = all (or a cluster-scoped resource).
        slots: limits the lists that the reflectors sharing it read at once; None = no sharing.
        rng: the source of jitter.
        page_size: objects per page of a list.

    Attributes:
        resource_version: the last resourceVersion received; "" = a list is needed.
        current_as_of: ``Clock.now()`` of the last moment at which the store was certainly current: when the last list
            was requested, or when the last watch line arrived after ``STEADY_AFTER`` seconds without a longer silence.
            Lines right after a silence may be a backlog that is still arriving. None before the first list.
        relists: the number of lists read.
        events: the number of events received, without bookmarks.
        skipped: the number of events that did not decode.
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
        self._list_requested = False
        self._unconfirmed = False
        self.resource_version = ""
        self.current_as_of: float | None = None
        self.relists = 0
        self.events = 0
        self.skipped = 0

    def list_again(self) -> None:
        """Request a new list; a running watch is ended for it."""
        self._list_requested = True
        if self._stream is not None:
            self._stream.end()

    async def run(self) -> None:
        """List and watch until cancelled; never ends by itself.

        After errors of the API server, its connection or its credentials, the reflector tries again with a delay.
        """
        silent = 0
        while True:
            try:
                if self._list_requested:
                    self._list_requested = False
                    await self._list()
                if not self.resource_version:
                    self._observer.listing()
                    await self._list()
                    silent = 0
                started = self._clock.now()
                before = (self.events, self.resource_version)
                heard = await self._watch()
                lasted = self._clock.now() - started
                silent = 0 if heard or self._list_requested else silent + (lasted >= SHORT_WATCH)
                if silent >= 2:  # the server answers a watch from a future resourceVersion with 200 and stays silent
                    log.info("%s: silent twice, listing again", self._name)
                    self.resource_version = ""
                still = self.events == before[0] or self.resource_version == before[1]
                if still and lasted < SHORT_WATCH and not self._list_requested:
                    raise BadAnswer(200, "", "the watch ended at once without anything new", what=self._path)
            except Expired as error:
                log.info("%s: %s; listing again", self._name, error)
                while_listing, self.resource_version = not self.resource_version, ""
                # Expired twice in a short time. During a list it is reported, so that the missing list has a reason.
                if self._recently_expired():
                    delay = self._failed(error) if while_listing else self._backoff.next(self._clock.now())
                    await self._clock.sleep(delay)
            except (ApiError, ClusterUnreachable, CertificateRejected, CredentialError, KubeconfigError) as error:
                await self._clock.sleep(self._failed(error))

    def _failed(self, error: HubError) -> float:
        """Report an error to the observer and return the seconds to wait."""
        self._unconfirmed = True
        self._observer.failed(error)
        delay = self._backoff.next(self._clock.now())
        if isinstance(error, ApiError):
            if error.status == 400:  # the server will never accept this resourceVersion: list again
                self.resource_version = ""
            if error.retry_after is not None:
                delay = max(delay, min(error.retry_after, LONGEST_RETRY_AFTER))
        log.debug("%s: %s; again in %.1f s", self._name, error, delay)
        return delay

    def _recently_expired(self) -> bool:
        """Record that the resourceVersion expired; True if it also did within the last 30 s."""
        now, last = self._clock.now(), self._expired_at
        self._expired_at = now
        return last is not None and now - last < 30.0

    async def _list(self) -> None:
        """Read all pages and replace the content of the store. Without a resourceVersion, the read is consistent."""
        objects: dict[Any, T] = {}
        params = {**self._params, "limit": str(self._page_size)}
        pages = 0
        await self._client.reach()  # before a slot is taken: an unreachable server must not hold one until a timeout
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
                objects.update(page if self._echoes is None else self._echoes.shrink_page(page))
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
        self.resource_version, self.current_as_of = version, asked
        self._store.replace(objects, version)
        self._answered()

    def _answered(self) -> None:
        """Report a success to the observer."""
        self._unconfirmed = False
        self._observer.answered()

    async def _watch(self) -> bool:
        """Watch until the stream ends or falls silent; True if it ended regularly after at least one line.

        Silence is not a failure by itself: the caller watches again from the same resourceVersion. A line that is not
        an event is skipped, but if it is the first line, the answer is not a watch and BadAnswer is raised. After a
        failure, a 200 alone does not count as a success, since a proxy's login page has that status too: the watch must
        deliver a line or stay open for ``SHORT_WATCH`` seconds.

        Raises:
            Expired: the resourceVersion is too old (also reported as an ERROR event after a 200).
            ApiError, ClusterUnreachable: as :meth:`Client.watch`.
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
            if last - before > STEADY_AFTER:
                steady_since = last
            elif last - steady_since > STEADY_AFTER:
                self.current_as_of = last
            try:
                self._handle(line)
            except BadAnswer:
                if not heard:
                    raise
                self.skipped += 1
                log.warning("%s: skipped a line of the watch that is not an event", self._name)
            heard = True
            self._confirm_watch()

        async with self._client.watch(self._path, params) as stream:
            self._stream = stream
            if self._list_requested:  # list_again() was called while the watch was being opened
                stream.end()
            if not self._unconfirmed:
                self._observer.answered()
            timer = asyncio.get_running_loop().call_later(SHORT_WATCH, self._confirm_watch)
            try:
                await stream.follow(take)
            except ClusterUnreachable as error:
                if error.kind != "timeout":
                    raise
                log.info("%s: watch silent, reconnecting", self._name)
                return False
            finally:
                timer.cancel()
                self._stream = None
        return heard

    def _confirm_watch(self) -> None:
        """Report a success if the watch followed a failure, since it has proven to be a watch."""
        if self._unconfirmed:
            self._answered()

    def _handle(self, line: bytes) -> None:
        """Process a line of the watch. Echoes of the store's own writes are skipped without decoding the object."""
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
        self._apply(self._resource.event(line))

    def _handle_late(self, line: bytes, key: Any, version: str) -> None:
        """Process an event that the store had deferred.

        The event is counted already, and the watch has advanced meanwhile, so its resourceVersion stays. Errors are
        logged: no caller handles them.
        """
        assert self._echoes is not None  # noqa: S101 - only an EchoStore defers
        if self._echoes.knows(key, version):
            return
        current = self.resource_version, self.events
        try:
            self._apply(self._resource.event(line))
        except HubError as error:
            self.skipped += 1
            log.warning("%s: skipped an event of the watch: %s", self._name, error)
        finally:
            self.resource_version, self.events = current

    def _apply(self, event: Event) -> None:
        """Apply an event to the store.

        Raises:
            Expired: a bookmark is older than the last resourceVersion.
            ApiError: the event is an ERROR event.
        """
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
    """Whether a resourceVersion is lower than another, as numbers of any length; False if either is not a number."""
    return one.isdecimal() and other.isdecimal() and (len(one), one) < (len(other), other)
