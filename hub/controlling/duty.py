"""The right to be a cluster's cloud controller: the Lease in that cluster that every cloud controller takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from hub.controller.rights import LEASES, NAMESPACE
from hub.controlling.rights import lacks
from hub.election.elector import Elector, LeaseRecord, Timing
from hub.election.lease import KubeLease
from hub.errors import AlreadyExists, Conflict, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise

LEASE, LEASE_OF_CLASS = LEASES
MANY: Final = Timing(duration=60, renew_deadline=40.0, retry=20.0, jitter=0.2)
"""Times of the Lease in each of many clusters: a third of a renewal per second for twenty clusters."""
AFTER_TAKEOVER: Final = 15.0
"""Seconds without a creation after a Lease was taken that its holder had not released: lists may lag behind."""


class RemoteLease:
    """One Lease in a cluster whose connection may change. Implements :class:`hub.election.elector.LeaseStore`.

    Attributes:
        error: why the last request failed; None if it did not.
    """

    def __init__(self, client: Callable[[], Awaitable[Client]], namespace: str, name: str) -> None:
        self.error: HubError | None = None
        self._client = client
        self._namespace = namespace
        self._name = name

    async def _request(self, make: Callable[[KubeLease], Awaitable[LeaseRecord]]) -> LeaseRecord:
        try:
            found = await make(KubeLease(await self._client(), self._namespace, self._name))
        except HubError as error:
            self.error = None if isinstance(error, NotFound | Conflict | AlreadyExists) else error
            raise
        self.error = None
        return found

    async def get(self) -> LeaseRecord:
        """See :class:`hub.election.elector.LeaseStore`."""
        return await self._request(lambda lease: lease.get())

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """See :class:`hub.election.elector.LeaseStore`."""
        return await self._request(lambda lease: lease.create(record))

    async def update(self, record: LeaseRecord) -> LeaseRecord:
        """See :class:`hub.election.elector.LeaseStore`."""
        return await self._request(lambda lease: lease.update(record))

    async def wait_until_free(self) -> None:
        """See :class:`hub.election.elector.LeaseStore`."""
        await KubeLease(await self._client(), self._namespace, self._name).wait_until_free()


class Duty:
    """Holds the Lease of one cluster while this process acts for it.

    Args:
        cluster: the cluster's name.
        client: returns the cluster's client.
        identity: the holder that is written; the same for all replicas of a hub if ``shared``.
        clock: where time comes from.
        on_change: called when the duty was taken or lost.
        name: of the Lease.
        namespace: of the Lease.
        timing: the times of the Lease.
        shared: whether all replicas of the hub use this identity.
        grants: see :class:`hub.controlling.site.Site`.

    Attributes:
        creates_after: see :class:`hub.controlling.site.Site`.
    """

    def __init__(
        self,
        cluster: str,
        client: Callable[[], Awaitable[Client]],
        identity: str,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        name: str = LEASE,
        namespace: str = NAMESPACE,
        timing: Timing = MANY,
        shared: bool = True,
        grants: Callable[[], str],
    ) -> None:
        self.name = f"{namespace}/{name}"
        self.creates_after = float("-inf")
        self._cluster = cluster
        self._identity = identity
        self._clock = clock
        self._on_change = on_change
        self._timing = timing
        self._store = RemoteLease(client, namespace, name)
        self._shared = shared
        self._grants = grants
        self._elector = self._new()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def _new(self) -> Elector:
        label = f"cluster {self._cluster}: "
        return Elector(self._store, self._identity, self._clock, self._timing, label=label, shared=self._shared)

    @property
    def held(self) -> bool:
        """Whether this process holds the Lease, as far as its tasks have noticed."""
        return self._elector.leading

    @property
    def holder(self) -> str:
        """Who holds the Lease, as last seen; "" = nobody."""
        return self._elector.holder

    @property
    def problem(self) -> str:
        """Why the Lease cannot be read or written; "" if it can."""
        error = self._store.error
        if isinstance(error, Forbidden):
            rule = f"«leases.coordination.k8s.io {self.name}: get, create, update, watch»"
            return lacks(rule, self._cluster, self._grants())
        return "" if error is None else str(error)

    def check(self) -> float:
        """Seconds that a write may take if it starts now.

        Raises:
            NotLeader: this process does not hold the Lease.
        """
        return self._elector.check()

    def act(self, *, wanted: bool) -> None:
        """Take part in the election from now on, or no more. The Lease is kept: another replica takes it over."""
        if self._closed:
            return  # the end of the election is a change, too
        if wanted and self._task is None:
            self._elector = self._new()
            name = f"lease of cluster {self._cluster}"
            work = supervise(name, lambda: self._elector.run(self._changed), self._clock)
            self._task = asyncio.create_task(work, name=name)
        elif not wanted and self._task is not None:
            self._elector.keep_lease()
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """End for good, and release the Lease."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _changed(self, leads: bool) -> None:
        if leads and self._elector.took_expired:
            self.creates_after = self._clock.now() + AFTER_TAKEOVER
        self._on_change()
