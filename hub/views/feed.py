"""Follows the Services and EndpointSlices of one cluster; known objects stay while the cluster does not answer.

After a failure all watches end, and the feed waits for the cluster's connection again, since the identity of a remote
cluster must be checked first. Then complete lists replace the known objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from hub.errors import ClusterUnreachable, HubError
from hub.kube.client import Client
from hub.kube.reflector import Reflector, RelistSlots
from hub.kube.wire import SERVICES, SLICES
from hub.observe.remote.reading import SLICES_RULE
from hub.observe.remote.status import in_words
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock
from hub.runtime.supervise import until_one_ends
from hub.views.board import Content

log = logging.getLogger(__name__)

STALE_AFTER: Final = 10.0
"""Seconds without a current answer after which views are marked stale; longer than the renewal of a watch takes."""
CONNECT_PATIENCE: Final = 30.0
"""Seconds to wait for a connection before requesting it again: a reload may have replaced the RemoteCluster."""

Connection = Callable[[], Awaitable[Client]]


class OnStale(Protocol):
    """Called with whether a cluster's views are stale, whenever that may have changed."""

    def __call__(self, *, stale: bool) -> None: ...  # noqa: D102


class Feed:
    """One cluster.

    Args:
        connection: waits for a usable client of the cluster and returns it, or raises HubError.
        on_stale: called with whether the views are stale.
        slots: limits concurrent relists of all feeds.

    Attributes:
        error: why the cluster does not answer; "" while it does.
    """

    def __init__(
        self,
        cluster: str,
        connection: Connection,
        content: Content,
        clock: Clock,
        on_stale: OnStale,
        slots: RelistSlots,
    ) -> None:
        self.error = "not read yet"
        self._cluster = cluster
        self._connection = connection
        self._content = content
        self._clock = clock
        self._on_stale = on_stale
        self._slots = slots
        self._settled = asyncio.Event()
        self._backoff = Backoff(base=1.0)
        self._warned = ""
        self._stale_timer: asyncio.Task[None] | None = None

    async def settled(self) -> None:
        """Wait for the first complete answer or failure."""
        await self._settled.wait()

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            while True:
                try:
                    await self._once()
                except HubError as error:
                    self._failed(in_words(error, self._cluster, f"{SERVICES.rule}; {SLICES_RULE}"))
                await self._clock.sleep(self._backoff.next(self._clock.now()))
        finally:
            self._stop_stale_timer()

    async def _mark_stale_later(self) -> None:
        await self._clock.sleep(STALE_AFTER)
        self._on_stale(stale=True)

    def _stop_stale_timer(self) -> None:
        if self._stale_timer is not None:
            self._stale_timer.cancel()
            self._stale_timer = None

    async def _once(self) -> None:
        """Follow until a reflector fails, and raise its error."""
        client = await self._connected()
        results = _Results(self._answered, 2 * len(self._content.services))
        followed = [
            Reflector(
                f"{resource.name} of {self._cluster} for views",
                client,
                resource._replace(peek=None),  # peek is only for slices that this process writes
                store,
                results.observer((resource.name, namespace)),
                self._clock,
                namespace=namespace or None,
                slots=self._slots,
            )
            for resource, stores in ((SERVICES, self._content.services), (SLICES, self._content.slices))
            for namespace, store in stores.items()
        ]
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(reflector.run(), name=f"views of {self._cluster}") for reflector in followed
        ]
        failed: asyncio.Task[Any] = asyncio.create_task(results.failed.wait(), name=f"views of {self._cluster} failed")
        await until_one_ends((*tasks, failed))
        assert results.error is not None  # noqa: S101 - reflectors never end by themselves
        raise results.error

    async def _connected(self) -> Client:
        try:
            async with asyncio.timeout(CONNECT_PATIENCE):
                return await self._connection()
        except TimeoutError:
            raise ClusterUnreachable("there is no connection to it yet", kind="timeout") from None

    def _answered(self) -> None:
        """Services and slices are complete and current."""
        self._stop_stale_timer()
        if self.error and self._warned:
            log.info("views: cluster %s is followed again", self._cluster)
        self.error = self._warned = ""
        self._backoff.reset()
        self._settled.set()
        self._on_stale(stale=False)

    def _failed(self, message: str) -> None:
        self.error = message
        self._settled.set()
        if self._stale_timer is None:
            self._stale_timer = asyncio.create_task(
                self._mark_stale_later(), name=f"views of {self._cluster} become stale"
            )
        if message != self._warned:
            log.warning("views: cluster %s: %s; its views are kept", self._cluster, message)
            self._warned = message


class _Results:
    """Collects the results of a feed's reflectors: it is current when all have answered, and fails when one fails."""

    def __init__(self, on_answer: Callable[[], None], expected: int) -> None:
        self.expected = expected
        self.failed = asyncio.Event()
        self.error: HubError | None = None
        self.on_answer = on_answer
        self.answers: set[object] = set()

    def observer(self, what: object) -> _Observer:
        return _Observer(self, what)


class _Observer:
    def __init__(self, results: _Results, what: object) -> None:
        self._results = results
        self._what = what

    def listing(self) -> None:
        """A new list has begun; the known objects stay until it is complete."""
        self._results.answers.discard(self._what)

    def answered(self) -> None:
        """The reflector's objects are complete and current."""
        self._results.answers.add(self._what)
        if len(self._results.answers) == self._results.expected:
            self._results.on_answer()

    def failed(self, error: HubError) -> None:
        """A reflector failed; only the first failure is kept."""
        if self._results.error is None:
            self._results.error = error
        self._results.failed.set()
