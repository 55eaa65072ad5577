"""Follows the EndpointProvider of one source and keeps its last snapshot.

Only a complete snapshot removes endpoints; an incomplete one (with rejected rows) adds and changes endpoints. If the
provider fails, ends or stalls, the status changes, but not the endpoints.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from hub.model import Snapshot, SnapshotEndpoint
from hub.observe.providers.calls import Calls
from hub.observe.providers.faults import ProviderCrashed, ProviderStalled
from hub.observe.providers.host import Prepared, ProviderHost
from hub.observe.providers.status import Health, ProviderStatus
from hub.plugin.answers import read_snapshot
from hub.plugin.spec import EndpointProviderType, ReadOnlyCluster, TerminalProviderError
from hub.registry.spec import ProviderRef
from hub.runtime.clock import Clock

FIRST_DEADLINE: Final = 30.0
"""Seconds from ``watch()`` to its first snapshot. Later ones have no deadline: there may be no change to report."""

PAUSE: Final = 0.002
SHARE: Final = 4.0
"""The next snapshot is accepted PAUSE seconds after the last one, or SHARE times its processing time if that is longer.
A stream that sends without pause then takes at most a fifth of a core; one that sends less often never waits."""


class EndpointWatch:
    """The snapshot of one EndpointProvider.

    Run :meth:`run` under :func:`hub.runtime.supervise.supervise`.

    Args:
        on_change: called synchronously after ``snapshot`` or ``status`` changed, and after each empty answer.

    Attributes:
        snapshot: the last snapshot; None before the first. While its ``complete`` is False, published endpoints must
            not be removed because of it.
        answers: complete answers so far; the guard uses it to count empty answers.
        version: grows with every change of ``snapshot``.
    """

    def __init__(
        self,
        cluster: str,
        ref: ProviderRef,
        host: ProviderHost,
        on_change: Callable[[], None],
        *,
        api: ReadOnlyCluster | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.cluster = cluster
        self.ref = ref
        self.snapshot: Snapshot | None = None
        self.answers = 0
        self.version = 0
        self._host = host
        self._clock: Clock = host.clock
        self._on_change = on_change
        self._api = api
        self._health = Health(f"cluster {cluster}, provider {ref.name}", self._clock, rng)
        self._calls = Calls(f"provider {ref.name} of {cluster}:")
        self._prepared: Prepared | None = None
        self._checked: dict[str, SnapshotEndpoint] = {}
        self._wake = asyncio.Event()
        self._first = asyncio.Event()

    @property
    def status(self) -> ProviderStatus:
        """The provider's state; while it is degraded, the snapshot is stale."""
        return self._health.status

    @property
    def scope(self) -> str:
        """The ``scope`` of the configuration, see :class:`ProviderType`; "" if it has none, or is not loaded yet."""
        return self._prepared.scope if self._prepared is not None else ""

    @property
    def failures(self) -> int:
        """Number of failures of the provider."""
        return self._health.failures

    def changed(self) -> None:
        """Handle the provider's ``ClusterContext.changed()``: after a terminal error, start the provider again soon."""
        self._health.unblock()
        self._wake.set()

    async def settled(self) -> None:
        """Wait for the first snapshot or the first failure."""
        await self._first.wait()

    async def run(self) -> None:
        """Follow the provider until cancelled, then close it."""
        while True:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - plugin code; the snapshot stays
                before = self._health.status
                self._host.calls_of(self.ref.name).failed(error)
                self._health.failed(error)
                self._first.set()
                if self._health.status != before:
                    self._on_change()
            await self._wait()

    async def _follow(self) -> None:
        self._health.begin_call(self._host.renewals(self.ref.name))
        prepared = self._prepared
        if prepared is None or prepared.loop.abandoned is not None:
            prepared = await self._host.prepare(self.ref, self.cluster, self.changed, self._api)
        if not isinstance(prepared.type, EndpointProviderType):
            raise TerminalProviderError(f"provider {self.ref.name!r} resolves nodes and brings no endpoints of its own")
        self._prepared = prepared
        manager = await self._host.manager(prepared)
        seen = asyncio.Event()
        loop = prepared.loop

        took = 0.0

        def take(snapshot: Snapshot) -> None:  # in the hub's loop
            nonlocal took
            begin = self._clock.now()
            self._accept(snapshot)
            seen.set()
            took = self._clock.now() - begin

        async def consume() -> None:  # in the provider's loop
            async with manager() as provider:
                stream = provider.watch()
                time, accepts_at = asyncio.get_running_loop().time, 0.0
                try:
                    async for snapshot in stream:
                        await asyncio.sleep(max(0.0, accepts_at - time()))
                        await loop.call_in_hub(take, read_snapshot(snapshot, self._checked))
                        accepts_at = time() + max(PAUSE, SHARE * took)
                finally:
                    close = getattr(stream, "aclose", None)
                    if close is not None:
                        await close()
            raise ProviderCrashed("watch() ended, but a watch never ends by itself")

        # The same task enters, consumes and exits: cancel scopes inside an async generator must not change tasks.
        running = self._calls.start(loop, "watch()", consume)
        first = asyncio.create_task(seen.wait(), name=f"first snapshot of {self.cluster}")
        try:
            waiting: set[asyncio.Future[Any]] = {running.ended, first}
            await asyncio.wait(waiting, timeout=FIRST_DEADLINE, return_when=asyncio.FIRST_COMPLETED)
            if not running.ended.done() and not seen.is_set():
                raise ProviderStalled(f"watch() gave no snapshot within {FIRST_DEADLINE:g} s")
            await asyncio.wait({running.ended})
        finally:
            first.cancel()
            if not running.ended.done():
                await self._calls.abandon(running)
        try:
            running.ended.result()
        finally:
            del running, waiting  # breaks a reference cycle, see Calls.call

    async def _wait(self) -> None:
        """Wait for the next attempt: until the backoff ends, a credential changes, or ``changed`` is called."""
        while (wait := self._health.blocked_until - self._clock.now()) > 0:
            self._wake.clear()
            await self._health.wait(wait, self._wake, partial(self._host.credentials_changed, self.ref.name))

    def _accept(self, offered: Snapshot) -> None:
        snapshot = merge(self.snapshot, offered)
        changed = snapshot != self.snapshot
        self._host.calls_of(self.ref.name).answered()
        self.answers += offered.complete
        self.version += changed
        self.snapshot = snapshot
        if changed:
            self._checked = {endpoint.name: endpoint for endpoint in snapshot.endpoints}
        self._first.set()
        # forget=False: the backoff must grow if the stream fails after every snapshot.
        if self._health.succeeded(forget=False) or changed or not snapshot.endpoints:
            self._on_change()


def merge(last: Snapshot | None, offered: Snapshot) -> Snapshot:
    """The snapshot to keep after ``offered``. Pure.

    An incomplete snapshot keeps the endpoints that it does not name, and is complete if ``last`` was. Endpoints are
    sorted by name.
    """
    endpoints = {endpoint.name: endpoint for endpoint in offered.endpoints}
    complete, ports = offered.complete, offered.ports
    if not offered.complete and last is not None:
        endpoints = {endpoint.name: endpoint for endpoint in last.endpoints} | endpoints
        complete = last.complete
        ports = last.ports if offered.ports is None else offered.ports
    return Snapshot(
        tuple(endpoints[name] for name in sorted(endpoints)), complete, ports, offered.problems, offered.copied
    )
