"""Gathers the snapshot of a target from what the rest of the hub has observed. Writes nothing, contacts no cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from hub.decide.checks import NO_VERDICTS
from hub.decide.decision import is_ours
from hub.decide.ports import NO_READINGS
from hub.decide.snapshot import HubIdentity, PastWrites, SourceReading, TargetSnapshot, not_followed
from hub.decide.view import ViewResult
from hub.model import Finding, GuardDefaults, Slice, TargetKey
from hub.observe.health.board import Board
from hub.observe.local.cluster import LocalCluster
from hub.observe.remote.fleet import Fleet, SourceKey, node_ports
from hub.observe.remote.status import State
from hub.reconcile.adopting import Adopting
from hub.reconcile.memory import WriteMemory
from hub.registry.removals import Removals
from hub.registry.spec import Registry, SourceSpec, TargetSpec, cluster_entry, service_entry
from hub.runtime.clock import Clock


class Gather:
    """Gathers snapshots.

    Args:
        hub: identity and settings of this hub.
        registry: returns the registry in force.
        fleet: the remote clusters and the sources.
        local: the hub cluster.
        adopting: slices of other controllers that ours replace.
        board: verdicts of health checks; None = nothing is probed.
        clock: where time comes from.
        approvals: returns the hashes that are approved now.
        warned: whether another replica withholds a mass removal now.
        uid: returns the UID of a cluster by name; "" if it is not known.
        hub_zones: returns the zones of the hub cluster's Nodes; None = not known.

    Attributes:
        removals: decides whether a removal that the registry in force causes is withheld.
    """

    def __init__(
        self,
        hub: HubIdentity,
        registry: Callable[[], Registry],
        fleet: Fleet,
        local: LocalCluster,
        adopting: Adopting,
        board: Board | None,
        clock: Clock,
        *,
        approvals: Callable[[], Collection[str]] = frozenset,
        warned: Callable[[], bool] = bool,
        uid: Callable[[str], str] = lambda _: "",
        hub_zones: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        self._hub = hub
        self.registry = registry
        self.fleet = fleet
        self.local = local
        self.adopting = adopting
        self.board = board
        self._clock = clock
        self._approvals = approvals
        self._uid = uid
        self._hub_zones = hub_zones
        self.removals = Removals(self._owned, approvals, hub.flags, warned)

    def snapshot(self, key: TargetKey, writes: WriteMemory, notes: tuple[Finding, ...]) -> TargetSnapshot:
        """Gather all inputs of a decision about a target.

        Args:
            key: the target.
            writes: its earlier writes; refusals that have ended are dropped.
            notes: findings that other parts of the hub attached to the target.
        """
        registry, now = self.registry(), self._clock.now()
        # Judged first: published endpoints that the registry adds would make the share of a removal look smaller.
        self.removals.judge(registry)
        observed = tuple(self.local.slices.of(key).values())
        target = registry.targets.get(key)
        clusters = {slice_.cluster for slice_ in observed}
        sources = tuple([self._reading(target, source) for source in target.sources]) if target is not None else ()
        named = [reading.spec.cluster for reading in sources]
        retry_in = writes.expire(now)
        return TargetSnapshot(
            hub=self._hub,
            key=key,
            now=now,
            wall=self._clock.wall(),
            registry=registry,
            service=self.local.services.get(key),
            namespace_watched=self.local.follows(key.namespace),
            observed=observed,
            sources=sources,
            writes=PastWrites(writes.refused, writes.foreign, tuple(writes.findings(now)), retry_in),
            verdicts=self.board.verdicts() if self.board is not None else NO_VERDICTS,
            approvals=self._approvals(),
            held={
                entry: held
                for entry in self._dropped(key, target, clusters, registry)
                if (held := self.removals.held(registry, entry)) is not None
            },
            uids={name: uid for name in clusters.union(named) if (uid := self._uid(name))},
            theirs=self.adopting.theirs(key) if target is not None and target.adopt else (),
            notes=notes,
            hub_zones=self._hub_zones(),
        )

    def view(self, source: SourceSpec) -> ViewResult:
        """The endpoints that a source offers now; unknown if nothing follows the source."""
        unit = self.fleet.sources.get(SourceKey(source.cluster, source.provider))
        return unit.view(source.nodes) if unit is not None else not_followed(source.cluster)

    def _reading(self, target: TargetSpec, source: SourceSpec) -> SourceReading:
        name, fleet = source.cluster, self.fleet
        unit = fleet.sources.get(SourceKey(name, source.provider))
        cluster, refs = fleet.clusters.get(name), node_ports(target, source)
        return SourceReading(
            source,
            unit.view(source.nodes) if unit is not None else not_followed(name),
            unit.answers if unit is not None else 0,
            unit.guard if unit is not None else GuardDefaults(),
            cluster.unreachable_for() if cluster is not None and not fleet.suspended else None,
            {ref: fleet.node_port(name, ref) for ref in refs} if refs else NO_READINGS,
            cluster.status.error if cluster is not None and cluster.status.state is State.WRONG_CLUSTER else "",
            fleet.twins.get(name, ()),
            unit.addresses if unit is not None else None,
        )

    def _dropped(
        self, key: TargetKey, target: TargetSpec | None, clusters: Iterable[str], registry: Registry
    ) -> Iterable[str]:
        """Entries that the registry lacks although slices of this target were made from them.

        Args:
            key: the target.
            target: its entry; None if it has none, or a broken one.
            clusters: source clusters of its slices.
            registry: the registry in force.
        """
        if target is None and clusters and key not in registry.broken_targets:
            yield service_entry(key)
        for name in clusters:
            if target is not None and name not in registry.clusters and name not in registry.frozen_names:
                yield cluster_entry(name)

    def _owned(self, registry: Registry) -> Iterable[Slice]:
        """All observed slices that this hub owns."""
        return (slice_ for slice_ in self.local.slices.values() if is_ours(slice_, registry.owner, self._hub))
