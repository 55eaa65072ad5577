"""The cloud controller of all clusters that have ``cloud:`` in the registry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from hub.controlling.account import OpenAccount
from hub.controlling.cluster import ControlledCluster, Rights
from hub.controlling.site import Reporter
from hub.kube.client import Client
from hub.model import Node
from hub.observe.providers.host import ProviderHost
from hub.observe.remote.fleet import Fleet
from hub.registry.spec import CloudSpec, ClusterSpec, ProviderRef
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise

ReporterOf = Callable[
    [str, Callable[[], Awaitable[Client]], Callable[[], bool]],
    tuple[Reporter, Callable[[], Coroutine[Any, Any, None]]],
]
"""(cluster, its client, whether this process acts for it) -> its reporter, and what the reporter runs."""


class _Kept(NamedTuple):
    """What of a section must be the same, so that the cluster need not start again."""

    provider: ProviderRef
    manage: bool
    nodes: bool
    balancers: str | None


class Controlling:
    """The cloud controller of a hub.

    Args:
        fleet: the remote clusters.
        host: opens plugins.
        clock: where time comes from.
        rights: what this process may do.
        reporter_of: makes the reporter of a cluster.

    Attributes:
        clusters: by name.
        accounts: by plugin and configuration.
    """

    def __init__(self, fleet: Fleet, host: ProviderHost, clock: Clock, rights: Rights, reporter_of: ReporterOf) -> None:
        self.clusters: dict[str, ControlledCluster] = {}
        self.accounts: dict[ProviderRef, OpenAccount] = {}
        self._fleet = fleet
        self._host = host
        self._clock = clock
        self._rights = rights
        self._reporter_of = reporter_of
        self._reporting: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def update(self, clusters: Mapping[str, ClusterSpec]) -> None:
        """Be the cloud controller of exactly the clusters with ``cloud``; hands off all others."""
        wanted = {name: spec.cloud for name, spec in clusters.items() if spec.cloud is not None}
        for name, cluster in list(self.clusters.items()):
            spec = wanted.get(name)
            if spec is None or _kept(spec) != _kept(cluster.spec):
                self._end(name)
            elif spec != cluster.spec:
                cluster.update(spec)
        for name, spec in wanted.items():
            if name not in self.clusters:
                self._begin(name, spec)
        for ref in [ref for ref, account in self.accounts.items() if not account.clusters]:
            self._later(self.accounts.pop(ref).close())

    def _begin(self, name: str, spec: CloudSpec) -> None:
        account = self.accounts.get(spec.provider)
        if account is None:
            ref = spec.provider
            account = self.accounts[ref] = OpenAccount(ref, self._host, lambda: self._account_changed(ref))
        account.clusters.add(name)

        async def client() -> Client:
            return await cluster.client()

        reporter, report = self._reporter_of(name, client, lambda: cluster.halted is None)
        cluster = ControlledCluster(name, spec, account, self._fleet, self._clock, self._rights, reporter)
        self.clusters[name] = cluster
        what = f"Events of {name}"
        self._reporting[name] = asyncio.create_task(supervise(what, report, self._clock), name=what)
        cluster.start()

    def _end(self, name: str) -> None:
        cluster = self.clusters.pop(name)
        cluster.account.forget(name)
        self._reporting.pop(name).cancel()
        self._later(cluster.close())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _account_changed(self, ref: ProviderRef) -> None:
        for cluster in self.clusters.values():
            if cluster.spec.provider == ref:
                cluster.state_changed()

    def cluster_changed(self, name: str) -> None:
        """The state of a remote cluster has changed."""
        if (cluster := self.clusters.get(name)) is not None:
            cluster.state_changed()

    def nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        """Nodes of a remote cluster have changed."""
        if (cluster := self.clusters.get(name)) is not None:
            cluster.nodes_changed(changed, gone)

    def wake(self) -> None:
        """Rights or approvals have changed."""
        for cluster in self.clusters.values():
            cluster.state_changed()

    async def settled_once(self, seconds: float) -> None:
        """Wait until every cluster has been decided about, at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not all(cluster.settled for cluster in self.clusters.values()):  # noqa: ASYNC110 - states
                    await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Write nothing more, release the Leases, and close the clouds."""
        for name in list(self.clusters):
            self._end(name)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.gather(*(account.close() for account in self.accounts.values()), return_exceptions=True)


def _kept(spec: CloudSpec) -> _Kept:
    balancers = spec.balancers.class_ if spec.balancers is not None else None
    return _Kept(spec.provider, spec.manage, spec.nodes is not None, balancers)
