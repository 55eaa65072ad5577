"""All remote clusters and sources of one registry, each a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from hub.decide.addresses import OwnNetwork
from hub.decide.ports import NOT_READ, PortReading
from hub.kube.client import Client
from hub.kube.reflector import RelistSlots
from hub.model import LOCAL, Node, TargetKey
from hub.observe.providers.host import ProviderHost
from hub.observe.remote.access import Connector
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.ports import RemoteService
from hub.observe.remote.reading import ClusterReader
from hub.observe.remote.source import Source
from hub.observe.remote.status import State
from hub.registry.spec import (
    HEALTH_CHECK,
    ClusterSpec,
    Network,
    NodePolicy,
    NodePortRef,
    ProviderRef,
    Registry,
    SourceSpec,
    TargetSpec,
)
from hub.runtime.clock import Clock
from hub.runtime.rounds import own_round
from hub.runtime.supervise import supervise

log = logging.getLogger(__name__)

SUSPECT_SHARE = 0.3
SUSPECT_COUNT = 2
"""While more than this share of the clusters, and at least so many, are unreachable, the hub is the suspect:
``unreachable`` policies are suspended."""


class SourceKey(NamedTuple):
    """What sources are shared by."""

    cluster: str
    provider: ProviderRef


class ServiceKey(NamedTuple):
    """A Service of a source cluster that ports are read from."""

    cluster: str
    service: TargetKey


class Fleet:
    """Starts, keeps and stops the units of a registry's clusters; a reload touches only what changed.

    Args:
        on_change: called with a cluster's name when its views may have changed.
        on_copy: called instead with a source of the hub cluster, of which there may be many; None = ``on_change``.
        local: the hub cluster's client, through which providers read it; None = they cannot.
        doubt: (name, UID) -> why a cluster is not the one it was, as of :class:`RemoteCluster`.

    Attributes:
        twins: clusters that are the same one -> the names of all of them.
        suspended: so many clusters are unreachable that the hub itself is the suspect.
    """

    def __init__(
        self,
        connector: Connector,
        host: ProviderHost,
        clock: Clock,
        on_change: Callable[[str], None],
        local: Client | None = None,
        doubt: Callable[[str, str], str | None] = lambda *_: "",
        on_copy: Callable[[SourceKey], None] | None = None,
    ) -> None:
        self.clusters: dict[str, RemoteCluster] = {}
        self.sources: dict[SourceKey, Source] = {}
        self.services: dict[ServiceKey, RemoteService] = {}
        self.suspended = False
        self._connector = connector
        self._host = host
        self._clock = clock
        self._on_change = on_change
        self._on_copy = on_copy
        self._local = local
        self._doubt = doubt
        self.twins: dict[str, tuple[str, ...]] = {}
        self._uids: dict[str, str] = {}
        """Of the clusters, as twins were last looked for."""
        self._unreachable: set[str] = set()
        self._by_cluster: dict[str, dict[SourceKey, Source]] = {}
        self._slots = RelistSlots()
        self._tasks: dict[str | SourceKey | ServiceKey, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Stopped by a reload, still cleaning up."""

    def update(self, registry: Registry, own: tuple[OwnNetwork, ...] = ()) -> None:
        """Follow exactly what this registry asks for; what is asked for already goes on undisturbed.

        Args:
            registry: what is wanted.
            own: the hub cluster's own networks, which no remote cluster's addresses may lie in.
        """
        specs = {name: spec for name, spec in registry.clusters.items() if spec.state != "frozen"}
        wanted = _wanted(registry, specs)
        for name in [name for name, old in self.clusters.items() if not _same_access(old.spec, specs.get(name))]:
            self._stop(name)
            del self.clusters[name]
            self._drop_sources([key for key in self.sources if key.cluster == name])
            self._drop_services([key for key in self.services if key.cluster == name])
        self._drop_sources(self.sources.keys() - wanted.keys())
        services = _wanted_services(registry, specs)
        self._drop_services(self.services.keys() - services)
        for name, spec in specs.items():
            if name in self.clusters:
                self.clusters[name].spec = spec  # the same kubeconfig, perhaps written at another line
            elif spec.kubeconfig is not None:
                self._drop_sources(list(self._by_cluster.get(name, ())))  # started while there was none to give them
                self._start_cluster(spec)
        for key, (spec, policies) in wanted.items():
            if key in self.sources:
                self.sources[key].update(spec, registry.denied_cidrs, own)
                self.sources[key].keep(policies)
            else:
                self._start_source(key, spec, registry.denied_cidrs, own)
        for service in sorted(services - self.services.keys()):
            self._start_service(service)
        self._unreachable = {name for name, each in self.clusters.items() if each.status.state is State.UNREACHABLE}
        self._note_suspicion()
        self._note_twins()

    def reconsider(self) -> None:
        """Look again whether each cluster is the one it was: approvals or slices are others than before."""
        for each in self.clusters.values():
            each.reconsider()

    def _drop_sources(self, keys: Iterable[SourceKey]) -> None:
        for key in keys:
            self._stop(key)
            del self.sources[key]
            del self._by_cluster[key.cluster][key]
            if not self._by_cluster[key.cluster]:
                del self._by_cluster[key.cluster]

    def _start_cluster(self, spec: ClusterSpec) -> None:
        name = spec.name
        cluster = RemoteCluster(
            spec,
            self._connector,
            self._clock,
            self._slots,
            lambda changed, gone: self._nodes_changed(name, changed, gone),
            lambda: self._state_changed(name),
            self._doubt,
        )
        self.clusters[name] = cluster
        self._start(name, f"cluster {name}", cluster.run)

    def _start_source(
        self, key: SourceKey, spec: ClusterSpec, denied: tuple[Network, ...], own: tuple[OwnNetwork, ...]
    ) -> None:
        source = Source(
            spec,
            key.provider,
            self.clusters.get(key.cluster),
            self._host,
            self._clock,
            denied,
            own,
            lambda: self._source_changed(key),
            self._reader(key.cluster),
        )
        self.sources[key] = source
        self._by_cluster.setdefault(key.cluster, {})[key] = source
        self._start(key, f"provider {key.provider.name} of {key.cluster}", source.run)

    def _start_service(self, key: ServiceKey) -> None:
        reader = self._reader(key.cluster)
        if reader is not None:
            unit = RemoteService(*key, reader, self._clock, lambda: self._on_change(key.cluster))
            self.services[key] = unit
            self._start(key, f"Service {key.service} of {key.cluster}", unit.run)

    def _drop_services(self, keys: Iterable[ServiceKey]) -> None:
        for key in keys:
            self._stop(key)
            del self.services[key]

    def problem(self, cluster: str) -> str | None:
        """What is wrong with the providers of a cluster, "" = nothing; None where none is asked here."""
        sources = self._by_cluster.get(cluster)
        return next((each.problem for each in sources.values() if each.problem), "") if sources else None

    def node_port(self, cluster: str, ref: NodePortRef) -> PortReading:
        """What is known of a port of a Service in a source cluster."""
        unit, remote = self.services.get(ServiceKey(cluster, ref.service)), self.clusters.get(cluster)
        if unit is None or (remote is not None and remote.doubts != ""):
            return NOT_READ
        return unit.health_check_node_port() if ref.port == HEALTH_CHECK else unit.node_port(ref.port)

    def _reader(self, cluster: str) -> ClusterReader | None:
        """What providers may read of a cluster; None where there is no access to it."""
        if cluster == LOCAL and (client := self._local) is not None:

            async def local() -> Client:
                return client

            return ClusterReader(cluster, local, self._clock)
        unit = self.clusters.get(cluster)
        return ClusterReader(cluster, unit.connection, self._clock) if unit is not None else None

    def _start(
        self, key: str | SourceKey | ServiceKey, name: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        async def begin() -> None:
            await own_round()  # hundreds start together
            await work()

        self._tasks[key] = asyncio.create_task(supervise(name, begin, self._clock), name=name)

    def _stop(self, key: str | SourceKey | ServiceKey) -> None:
        task = self._tasks.pop(key)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        sources = self._by_cluster.get(name, {}).values()
        news = [source.nodes_changed(changed, gone) for source in sources]
        if any(news):
            self._on_change(name)

    def _source_changed(self, key: SourceKey) -> None:
        if (source := self.sources.get(key)) is not None:  # else the last word of one that is dropped
            source.noted()
        if key.cluster == LOCAL and self._on_copy is not None:
            self._on_copy(key)
        else:
            self._on_change(key.cluster)

    def _state_changed(self, name: str) -> None:
        """A cluster's state changed, and with it perhaps whom to suspect."""
        cluster = self.clusters.get(name)
        if cluster is None:  # the last word of one that is not followed any more
            return
        for source in self._by_cluster.get(name, {}).values():
            source.noted()
        if cluster.uid != self._uids.get(name):
            self._note_twins()
        if cluster.status.state is State.UNREACHABLE:
            self._unreachable.add(name)
        else:
            self._unreachable.discard(name)
        if not self._note_suspicion():
            self._on_change(name)

    def _note_twins(self) -> None:
        """Two names for one cluster: its nodes would be published twice, or half of what is meant is missing."""
        self._uids = {name: each.uid for name, each in self.clusters.items()}
        by_uid: dict[str, list[str]] = {}
        for name, uid in self._uids.items():
            if uid:
                by_uid.setdefault(uid, []).append(name)
        twins = {name: tuple(sorted(names)) for names in by_uid.values() if len(names) > 1 for name in names}
        if twins == self.twins:
            return
        for names in sorted(set(twins.values()) - set(self.twins.values())):
            log.warning("clusters %s are one and the same: their kubeconfigs lead to one cluster", ", ".join(names))
        changed = {name for name, _ in self.twins.items() ^ twins.items()}
        self.twins = twins
        for name in sorted(changed):
            self._on_change(name)

    def _note_suspicion(self) -> bool:
        """True where it begins or ends: then the targets of all clusters are looked at again."""
        unreachable = len(self._unreachable)
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
        for each in self.clusters:  # the policies of all that are unreachable apply again, or no more
            self._on_change(each)
        return True

    async def settled(self, seconds: float) -> None:
        """Wait until every source made its first statement or failed, at most ``seconds``."""
        units: list[RemoteCluster | Source] = [*self.clusters.values(), *self.sources.values()]
        services = [self._service_settled(key.cluster, each) for key, each in self.services.items()]
        waits = [asyncio.create_task(each) for each in (*(unit.settled() for unit in units), *services)]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for task in late:
                task.cancel()

    async def _service_settled(self, cluster: str, service: RemoteService) -> None:
        """Wait for a Service of a cluster that can be asked: of another one nothing is to be had."""
        remote = self.clusters.get(cluster)
        if remote is not None:
            await remote.settled()
        if remote is None or remote.status.state is State.READY:
            await service.settled()

    async def close(self) -> None:
        """Stop everything."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)


def _same_access(old: ClusterSpec, new: ClusterSpec | None) -> bool:
    return new is not None and new.kubeconfig == old.kubeconfig


def _wanted(
    registry: Registry, specs: Mapping[str, ClusterSpec]
) -> dict[SourceKey, tuple[ClusterSpec, set[NodePolicy]]]:
    """Every source of the registry with its node policies: clusters' own providers, and those that targets ask for."""
    wanted: dict[SourceKey, tuple[ClusterSpec, set[NodePolicy]]] = {}
    for name, spec in specs.items():
        if spec.provider is not None:
            wanted[SourceKey(name, spec.provider)] = spec, set()
    shared = {id(target.sources): target.sources for target in registry.targets.values()}
    for each in chain.from_iterable(shared.values()):
        if each.cluster in specs and each.provider.name:
            found = wanted.setdefault(SourceKey(each.cluster, each.provider), (specs[each.cluster], set()))
            found[1].add(each.nodes)
    return wanted


def _wanted_services(registry: Registry, specs: Mapping[str, ClusterSpec]) -> set[ServiceKey]:
    """Every Service that a target reads a port from, in each of its source clusters."""
    wanted: set[ServiceKey] = set()
    seen: set[int] = set()
    for target in registry.targets.values():
        if not any(port.node_port for port in target.ports or ()):
            if id(target.sources) in seen:  # shared by many targets: a large registry has a million of sources
                continue
            seen.add(id(target.sources))
        for source in target.sources:
            if source.cluster in specs:
                wanted.update(ServiceKey(source.cluster, ref.service) for ref in node_ports(target, source))
    return wanted


def node_ports(target: TargetSpec, source: SourceSpec) -> list[NodePortRef]:
    """What a target reads of the Services of one source cluster: its ports, and where its checks go."""
    refs = [port.node_port for port in target.ports or () if port.node_port is not None]
    if source.health.service is not None:
        refs.append(NodePortRef(source.health.service, HEALTH_CHECK))
    return refs
