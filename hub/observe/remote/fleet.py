"""Runs the remote clusters, sources and followed Services of a registry, each in its own task."""

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
from hub.observe.remote.status import READY_WITH_ERROR, State
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
"""``unreachable`` policies are suspended while more than SUSPECT_SHARE of the clusters, and at least SUSPECT_COUNT, are
unreachable: the hub's own network is then the likelier cause."""


class SourceKey(NamedTuple):
    """Identifies a source; targets with the same cluster and provider configuration share it."""

    cluster: str
    provider: ProviderRef


class ServiceKey(NamedTuple):
    """A Service of a source cluster that ports are read from."""

    cluster: str
    service: TargetKey


class Fleet:
    """Starts and stops the clusters, sources and Services of a registry; a reload restarts only changed ones.

    Args:
        on_change: called with a cluster's name when its views may have changed.
        on_copy: called instead for sources of the hub cluster, with the source's key; None = ``on_change``.
        local: client of the hub cluster, for providers that read it; None = they cannot.
        check_identity: see :class:`RemoteCluster`.

    Attributes:
        on_nodes: called with a cluster's name, its changed nodes and the names of deleted nodes; None = nobody asks.
        twins: cluster name -> all names of that cluster, if the registry has it under several names.
        suspended: whether ``unreachable`` policies are suspended, see ``SUSPECT_SHARE``.
    """

    def __init__(
        self,
        connector: Connector,
        host: ProviderHost,
        clock: Clock,
        on_change: Callable[[str], None],
        local: Client | None = None,
        check_identity: Callable[[str, str], str | None] = lambda *_: "",
        on_copy: Callable[[SourceKey], None] | None = None,
    ) -> None:
        self.clusters: dict[str, RemoteCluster] = {}
        self.sources: dict[SourceKey, Source] = {}
        self.services: dict[ServiceKey, RemoteService] = {}
        self.suspended = False
        self.on_nodes: Callable[[str, Iterable[Node], Iterable[str]], None] | None = None
        self._connector = connector
        self._host = host
        self._clock = clock
        self._on_change = on_change
        self._on_copy = on_copy
        self._local = local
        self._check_identity = check_identity
        self.twins: dict[str, tuple[str, ...]] = {}
        self._uids: dict[str, str] = {}
        """Cluster UIDs at the last check for twins."""
        self._unreachable: set[str] = set()
        self._by_cluster: dict[str, dict[SourceKey, Source]] = {}
        self._slots = RelistSlots()
        self._tasks: dict[str | SourceKey | ServiceKey, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks that a reload has cancelled and that have not ended yet."""

    def update(self, registry: Registry, own: tuple[OwnNetwork, ...] = ()) -> None:
        """Follow exactly the clusters, sources and Services of this registry; unchanged ones continue undisturbed.

        Args:
            registry: the registry in force.
            own: the hub cluster's own networks; addresses of remote clusters must not lie in them.
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
                self.clusters[name].spec = spec  # a changed entry with the same kubeconfig
            elif spec.kubeconfig is not None:
                self._drop_sources(list(self._by_cluster.get(name, ())))  # they were started without a RemoteCluster
                self._start_cluster(spec)
        for key, (spec, policies) in wanted.items():
            if key in self.sources:
                self.sources[key].update(spec, registry.denied_cidrs, own)
                self.sources[key].keep(policies)
            else:
                self._start_source(key, spec, registry.denied_cidrs, own)
        for service in sorted(services - self.services.keys()):
            self._start_service(service)
        self._unreachable = {
            name for name, cluster in self.clusters.items() if cluster.status.state is State.UNREACHABLE
        }
        self._note_suspicion()
        self._note_twins()

    def check_identities(self) -> None:
        """Check every cluster's identity again; called when approvals or slices have changed."""
        for cluster in self.clusters.values():
            cluster.check_identity()

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
            self._check_identity,
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
        """The first problem of a cluster's sources; "" if there is none, None if the cluster has no source."""
        sources = self._by_cluster.get(cluster)
        return next((source.problem for source in sources.values() if source.problem), "") if sources else None

    def state(self, cluster: str) -> str:
        """The state of a cluster in words, with a problem of its sources; "" if it is not followed."""
        remote, problem = self.clusters.get(cluster), self.problem(cluster)
        if remote is not None:
            state = remote.status.state
            return READY_WITH_ERROR if problem and state is State.READY else str(state)
        return "" if problem is None else str(State.DEGRADED if problem else State.READY)

    def outdated(self, cluster: str) -> str:
        """Why the Nodes of a remote cluster are not current; "" if they are."""
        unit = self.clusters.get(cluster)
        if unit is None:
            return f"cluster {cluster} is not followed: it is unknown, frozen or has no kubeconfig"
        if unit.status.state is not State.READY or unit.mismatch != "":
            return f"cluster {cluster} is {unit.status.state}: {unit.status.error or unit.mismatch or 'not read yet'}"
        return ""

    def node_port(self, cluster: str, ref: NodePortRef) -> PortReading:
        """The nodePort, or healthCheckNodePort, of a Service in a source cluster; NOT_READ until it can be trusted."""
        unit, remote = self.services.get(ServiceKey(cluster, ref.service)), self.clusters.get(cluster)
        if unit is None or (remote is not None and remote.mismatch != ""):
            return NOT_READ
        return unit.health_check_node_port() if ref.port == HEALTH_CHECK else unit.node_port(ref.port)

    def _reader(self, cluster: str) -> ClusterReader | None:
        """Read access to a cluster for providers; None if the hub has no access to it."""
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
            await own_round()  # hundreds start together: one in each round of the event loop, so that none blocks it
            await work()

        self._tasks[key] = asyncio.create_task(supervise(name, begin, self._clock), name=name)

    def _stop(self, key: str | SourceKey | ServiceKey) -> None:
        task = self._tasks.pop(key)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        changed, gone = tuple(changed), tuple(gone)
        if self.on_nodes is not None:
            self.on_nodes(name, changed, gone)
        sources = self._by_cluster.get(name, {}).values()
        news = [source.nodes_changed(changed, gone) for source in sources]
        if any(news):
            self._on_change(name)

    def _source_changed(self, key: SourceKey) -> None:
        if (source := self.sources.get(key)) is not None:  # else the source has been dropped and is still ending
            source.state_changed()
        if key.cluster == LOCAL and self._on_copy is not None:
            self._on_copy(key)
        else:
            self._on_change(key.cluster)

    def _state_changed(self, name: str) -> None:
        """Handle a changed state of a cluster: update ``twins`` and ``suspended`` too."""
        cluster = self.clusters.get(name)
        if cluster is None:  # it has been dropped and is still ending
            return
        for source in self._by_cluster.get(name, {}).values():
            source.state_changed()
        if cluster.uid != self._uids.get(name):
            self._note_twins()
        if cluster.status.state is State.UNREACHABLE:
            self._unreachable.add(name)
        else:
            self._unreachable.discard(name)
        if not self._note_suspicion():
            self._on_change(name)

    def _note_twins(self) -> None:
        """Find clusters with the same UID under several names.

        Either the nodes of such a cluster are published twice, or a kubeconfig leads to the wrong cluster and the nodes
        of the right one are missing.
        """
        self._uids = {name: cluster.uid for name, cluster in self.clusters.items()}
        by_uid: dict[str, list[str]] = {}
        for name, uid in self._uids.items():
            if uid:
                by_uid.setdefault(uid, []).append(name)
        twins = {name: tuple(sorted(names)) for names in by_uid.values() if len(names) > 1 for name in names}
        if twins == self.twins:
            return
        for names in sorted(set(twins.values()) - set(self.twins.values())):
            log.warning("clusters %s are the same cluster: their kubeconfigs lead to one API", ", ".join(names))
        changed = {name for name, _ in self.twins.items() ^ twins.items()}
        self.twins = twins
        for name in sorted(changed):
            self._on_change(name)

    def _note_suspicion(self) -> bool:
        """Update ``suspended``; if it changed, report all clusters as changed and return True."""
        unreachable = len(self._unreachable)
        suspended = unreachable >= SUSPECT_COUNT and unreachable > SUSPECT_SHARE * len(self.clusters)
        if suspended == self.suspended:
            return False
        self.suspended = suspended
        if suspended:
            log.warning(
                "%d of %d clusters are unreachable, probably because of the hub's network: "
                "unreachable policies are suspended",
                unreachable,
                len(self.clusters),
            )
        for name in self.clusters:
            self._on_change(name)
        return True

    async def settled(self, seconds: float) -> None:
        """Wait until every cluster, source and Service has answered or failed once, at most ``seconds``."""
        units: list[RemoteCluster | Source] = [*self.clusters.values(), *self.sources.values()]
        services = [self._service_settled(key.cluster, service) for key, service in self.services.items()]
        waits = [asyncio.create_task(wait) for wait in (*(unit.settled() for unit in units), *services)]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for task in late:
                task.cancel()

    async def _service_settled(self, cluster: str, service: RemoteService) -> None:
        """Wait for a Service, unless its cluster cannot be read."""
        remote = self.clusters.get(cluster)
        if remote is not None:
            await remote.settled()
        if remote is None or remote.status.state is State.READY:
            await service.settled()

    async def close(self) -> None:
        """Stop all clusters, sources and Services, and wait until they have ended."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)


def _same_access(old: ClusterSpec, new: ClusterSpec | None) -> bool:
    same_nodes = new is not None and (new.cloud is None) == (old.cloud is None)
    return new is not None and new.kubeconfig == old.kubeconfig and same_nodes


def _wanted(
    registry: Registry, specs: Mapping[str, ClusterSpec]
) -> dict[SourceKey, tuple[ClusterSpec, set[NodePolicy]]]:
    """Every source that a cluster entry or a target names, with the node policies that targets use with it."""
    wanted: dict[SourceKey, tuple[ClusterSpec, set[NodePolicy]]] = {}
    for name, spec in specs.items():
        if spec.provider is not None:
            wanted[SourceKey(name, spec.provider)] = spec, set()
    shared = {id(target.sources): target.sources for target in registry.targets.values()}
    for source in chain.from_iterable(shared.values()):
        if source.cluster in specs and source.provider.name:
            found = wanted.setdefault(SourceKey(source.cluster, source.provider), (specs[source.cluster], set()))
            found[1].add(source.nodes)
    return wanted


def _wanted_services(registry: Registry, specs: Mapping[str, ClusterSpec]) -> set[ServiceKey]:
    """Every Service that a target reads a port from, in each of its source clusters."""
    wanted: set[ServiceKey] = set()
    seen: set[int] = set()
    for target in registry.targets.values():
        if not any(port.node_port for port in target.ports or ()):
            if id(target.sources) in seen:  # targets share lists: a large registry would visit a million sources
                continue
            seen.add(id(target.sources))
        for source in target.sources:
            if source.cluster in specs:
                wanted.update(ServiceKey(source.cluster, ref.service) for ref in node_ports(target, source))
    return wanted


def node_ports(target: TargetSpec, source: SourceSpec) -> list[NodePortRef]:
    """The ports of one source cluster's Services that a target uses, for its own ports and for its health checks."""
    refs = [port.node_port for port in target.ports or () if port.node_port is not None]
    if source.health.service is not None:
        refs.append(NodePortRef(source.health.service, HEALTH_CHECK))
    return refs
