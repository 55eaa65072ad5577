"""All remote clusters and sources of one registry, each a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hub.aio.clock import Clock
from hub.aio.supervise import supervise
from hub.kube.reflector import RelistSlots
from hub.model import LOCAL, Node
from hub.plugin.spec import ReadOnlyCluster
from hub.registry.spec import ClusterSpec, Network, ProviderRef, Registry
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

    Attributes:
        suspended: so many clusters are unreachable that the hub itself is the suspect.
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
        self.suspended = False
        self._connector = connector
        self._host = host
        self._clock = clock
        self._on_change = on_change
        self._api = api
        self._slots = RelistSlots()
        self._tasks: dict[str | SourceKey, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Stopped by a reload, still cleaning up."""

    def update(self, registry: Registry, service_cidrs: tuple[Network, ...] = ()) -> None:
        """Follow exactly what this registry asks for; what is asked for already goes on undisturbed.

        Args:
            registry: what is wanted.
            service_cidrs: the hub cluster's own, which no remote cluster's addresses may lie in.
        """
        specs = {name: spec for name, spec in registry.clusters.items() if spec.state != "frozen"}
        wanted = _wanted(registry, specs)
        for name in [name for name, old in self.clusters.items() if not _same_access(old.spec, specs.get(name))]:
            self._stop(name)
            del self.clusters[name]
            self._drop_sources([key for key in self.sources if key.cluster == name])
        self._drop_sources(self.sources.keys() - wanted.keys())
        for name, spec in specs.items():
            if spec.kubeconfig is not None and name not in self.clusters:
                self._start_cluster(spec)
        for key, spec in wanted.items():
            denied = registry.denied_cidrs if key.cluster == LOCAL else (*registry.denied_cidrs, *service_cidrs)
            if key in self.sources:
                self.sources[key].update(spec, denied)
            else:
                self._start_source(key, spec, denied)
        self._note_suspicion()

    def _drop_sources(self, keys: Iterable[SourceKey]) -> None:
        for key in keys:
            self._stop(key)
            del self.sources[key]

    def _start_cluster(self, spec: ClusterSpec) -> None:
        name = spec.name
        cluster = RemoteCluster(
            spec,
            self._connector,
            self._clock,
            self._slots,
            lambda changed, gone: self._nodes_changed(name, changed, gone),
            lambda: self._state_changed(name),
        )
        self.clusters[name] = cluster
        self._start(name, f"cluster {name}", cluster.run)

    def _start_source(self, key: SourceKey, spec: ClusterSpec, denied: tuple[Network, ...]) -> None:
        source = Source(
            spec,
            key.provider,
            self.clusters.get(key.cluster),
            self._host,
            self._clock,
            denied,
            lambda: self._on_change(key.cluster),
            self._api(key.cluster),
        )
        self.sources[key] = source
        self._start(key, f"provider {key.provider.name} of {key.cluster}", source.run)

    def _start(self, key: str | SourceKey, name: str, work: Callable[[], object]) -> None:
        self._tasks[key] = asyncio.create_task(supervise(name, work, self._clock), name=name)  # type: ignore[arg-type]

    def _stop(self, key: str | SourceKey) -> None:
        task = self._tasks.pop(key)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        for key, source in self.sources.items():
            if key.cluster == name:
                source.nodes_changed(changed, gone)
        self._on_change(name)

    def _state_changed(self, name: str) -> None:
        """A cluster's state changed, and with it perhaps whom to suspect."""
        if self._note_suspicion():
            for each in self.clusters:  # the policies of all that are unreachable apply again, or no more
                self._on_change(each)
        else:
            self._on_change(name)

    def _note_suspicion(self) -> bool:
        unreachable = sum(each.status.state is State.UNREACHABLE for each in self.clusters.values())
        suspended = unreachable >= SUSPECT_COUNT and unreachable > SUSPECT_SHARE * len(self.clusters)
        if suspended == self.suspended:
            return False
        self.suspended = suspended
        if suspended:
            log.warning(
                "%d of %d clusters are unreachable: the hub is the suspect, unreachable policies are suspended",
                unreachable,
                len(self.clusters),
            )
        return True

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
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)


def _same_access(old: ClusterSpec, new: ClusterSpec | None) -> bool:
    return new is not None and new.kubeconfig == old.kubeconfig


def _wanted(registry: Registry, specs: Mapping[str, ClusterSpec]) -> dict[SourceKey, ClusterSpec]:
    """Every source of the registry: each cluster's own provider, and those that targets ask for."""
    wanted: dict[SourceKey, ClusterSpec] = {}
    for name, spec in specs.items():
        if spec.provider is not None:
            wanted[SourceKey(name, spec.provider)] = spec
    for target in registry.targets.values():
        for each in target.sources:
            if each.cluster in specs and each.provider.name:
                wanted[SourceKey(each.cluster, each.provider)] = specs[each.cluster]
    return wanted
