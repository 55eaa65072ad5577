"""All remote clusters and sources of one registry, each a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from hub.aio.clock import Clock
from hub.aio.supervise import supervise
from hub.kube.reflector import RelistSlots
from hub.model import Node
from hub.plugin.spec import ReadOnlyCluster
from hub.registry.spec import ClusterSpec, ProviderRef, Registry
from hub.remote.access import Connector
from hub.remote.cluster import RemoteCluster
from hub.remote.source import Source
from hub.remote.status import State
from hub.resolution.host import ProviderHost

log = logging.getLogger(__name__)

SUSPECT_SHARE = 0.3
SUSPECT_COUNT = 2
"""While more than this share of the clusters, and at least so many, are unreachable, the hub is the suspect:
``unreachable`` policies are suspended."""


class SourceKey(NamedTuple):
    """What sources are shared by."""

    cluster: str
    provider: ProviderRef


class Fleet:
    """Starts, keeps and stops the units of a registry's clusters; a reload touches only what changed.

    Args:
        on_change: called with a cluster's name when its views may have changed.
        api: read access to a cluster's Services and slices, by cluster name, for providers.
    """

    def __init__(
        self,
        connector: Connector,
        host: ProviderHost,
        clock: Clock,
        on_change: Callable[[str], None],
        api: Callable[[str], ReadOnlyCluster | None] = lambda _: None,
    ) -> None:
        self.clusters: dict[str, RemoteCluster] = {}
        self.sources: dict[SourceKey, Source] = {}
        self._connector = connector
        self._host = host
        self._clock = clock
        self._on_change = on_change
        self._api = api
        self._slots = RelistSlots()
        self._tasks: dict[str | SourceKey, asyncio.Task[None]] = {}
        self._specs: Mapping[str, ClusterSpec] = {}
        self._denied: tuple[object, ...] = ()

    def update(self, registry: Registry, denied: tuple[object, ...]) -> None:
        """Follow exactly what this registry asks for.

        Args:
            denied: networks never published (the registry's and the hub cluster's own).
        """
        wanted_sources: dict[SourceKey, ClusterSpec] = {}
        specs = {name: spec for name, spec in registry.clusters.items() if spec.state != "frozen"}
        for name, spec in specs.items():
            if spec.provider is not None:
                wanted_sources[SourceKey(name, spec.provider)] = spec
        for target in registry.targets.values():
            for source in target.sources:
                if source.cluster in specs and source.provider.name:
                    wanted_sources[SourceKey(source.cluster, source.provider)] = specs[source.cluster]
        same_denied = denied == self._denied
        for key in list(self.sources):
            if wanted_sources.get(key) != self.sources[key].spec or not same_denied:
                self._stop(key)
                del self.sources[key]
        for name in list(self.clusters):
            new = specs.get(name)
            if new is None or new.kubeconfig != self.clusters[name].spec.kubeconfig:
                self._stop(name)
                del self.clusters[name]
        self._specs, self._denied = specs, denied
        for name, spec in specs.items():
            if spec.kubeconfig is not None and name not in self.clusters:
                self._start_cluster(spec)
        for key, spec in wanted_sources.items():
            if key not in self.sources:
                self._start_source(key, spec)

    def _start_cluster(self, spec: ClusterSpec) -> None:
        name = spec.name
        cluster = RemoteCluster(
            spec,
            self._connector,
            self._clock,
            self._slots,
            lambda changed, gone: self._nodes_changed(name, changed, gone),
            lambda: self._on_change(name),
        )
        self.clusters[name] = cluster
        self._start(name, f"cluster {name}", cluster.run)

    def _start_source(self, key: SourceKey, spec: ClusterSpec) -> None:
        source = Source(
            spec,
            key.provider,
            self.clusters.get(key.cluster),
            self._host,
            self._clock,
            self._denied,
            lambda: self._on_change(key.cluster),
            self._api(key.cluster),
        )
        self.sources[key] = source
        self._start(key, f"provider {key.provider.name} of {key.cluster}", source.run)

    def _start(self, key: str | SourceKey, name: str, work: Callable[[], object]) -> None:
        self._tasks[key] = asyncio.create_task(supervise(name, work, self._clock), name=name)  # type: ignore[arg-type]

    def _stop(self, key: str | SourceKey) -> None:
        self._tasks.pop(key).cancel()

    def _nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        for key, source in self.sources.items():
            if key.cluster == name:
                source.nodes_changed(changed, gone)
        self._on_change(name)

    def suspended(self) -> bool:
        """Whether so many clusters are unreachable that the hub itself is the suspect."""
        unreachable = sum(each.status.state is State.UNREACHABLE for each in self.clusters.values())
        return unreachable >= SUSPECT_COUNT and unreachable > SUSPECT_SHARE * len(self.clusters)

    async def settled(self, seconds: float) -> None:
        """Wait until every source made its first statement or failed, at most ``seconds``."""
        units: list[RemoteCluster | Source] = [*self.clusters.values(), *self.sources.values()]
        waits = [asyncio.create_task(each.settled()) for each in units]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        """Stop everything."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
