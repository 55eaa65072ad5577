"""What the sources of one target say right now: from the fleet's views to the inputs of ``desire``.

Three things are added to a view here, all per target. A source that has made no statement since the start
stands by what this target published of it before. A source that failover has left is not remembered at
all while it says nothing. And a source that the registry no longer names keeps its slices for the removal
grace; for as long as it takes, where its entry is broken or its removal is withheld, and where a broken entry
may have been called so: its ``formerly`` may be what is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from hub.decide.ports import NO_READINGS, PortReading
from hub.decide.sources import SourceInput
from hub.decide.view import ViewResult
from hub.model import LABEL_SOURCE_CLUSTER, LOCAL, Endpoint, Finding, Slice, SourceView, few
from hub.observe.remote.fleet import Fleet, SourceKey, node_ports
from hub.observe.remote.status import State
from hub.registry.removals import NAMED, RegistryHeld, Removals, cluster_entry
from hub.registry.spec import ClusterSpec, NodePortRef, ProviderRef, Registry, SourceSpec, TargetSpec
from hub.runtime.clock import Clock


class _Parked(msgspec.Struct):
    """A source that is none any more, while its slices stay."""

    since: float
    input: SourceInput


class Remembered(msgspec.Struct):
    """What a target remembers of its sources between passes.

    Attributes:
        adopted: cluster -> what was published of it when it was first seen unknown.
        stand_ins: cluster -> (view, adopted slices, the view used instead).
        parked: clusters that are no sources any more.
        given_up: clusters whose ``unreachable`` policy took effect, until they make a statement again.
        names: (registry entry, registry) -> every cluster name that belongs to the target today.
    """

    adopted: dict[str, tuple[Slice, ...]] = msgspec.field(default_factory=dict)
    stand_ins: dict[str, tuple[SourceView, tuple[Slice, ...], SourceView]] = msgspec.field(default_factory=dict)
    parked: dict[str, _Parked] = msgspec.field(default_factory=dict)
    given_up: set[str] = msgspec.field(default_factory=set)
    names: tuple[TargetSpec, Registry, frozenset[str]] | None = None

    def forget(self, cluster: str) -> None:
        """What was published of a source is not to come back: it has spoken, or its slices are to go."""
        self.adopted.pop(cluster, None)
        self.stand_ins.pop(cluster, None)


class Gathered(NamedTuple):
    """The inputs of one pass.

    Attributes:
        inputs: in source order, then what is parked.
        unknown: sources that made no statement -> why.
        wakes: seconds until one of them changes by itself.
    """

    inputs: tuple[SourceInput, ...]
    unknown: Mapping[str, str]
    wakes: list[float]
    findings: tuple[Finding, ...]


class Inputs:
    """Reads the fleet on behalf of targets.

    Args:
        grace: seconds before slices go whose source the registry no longer names.
        removals: what of that is withheld.
    """

    def __init__(self, fleet: Fleet, clock: Clock, grace: float, removals: Removals) -> None:
        self._removals = removals
        self._fleet = fleet
        self._clock = clock
        self._grace = grace

    def view(self, source: SourceSpec) -> ViewResult:
        """What a source offers now."""
        unit = self._fleet.sources.get(SourceKey(source.cluster, source.provider))
        if unit is None:
            return ViewResult(SourceView(source.cluster, "not followed", {}), {})
        return unit.view(source.nodes)

    def gather(
        self, spec: TargetSpec, registry: Registry, ours: tuple[Slice, ...], memory: Remembered, active: str
    ) -> Gathered:
        """The inputs of one pass over one target; ``active`` is the source that failover has chosen, if any."""
        inputs: list[SourceInput] = []
        unknown: dict[str, str] = {}
        wakes: list[float] = []
        seen: list[Finding] = []
        for source in spec.sources:
            name = source.cluster
            cluster = registry.clusters.get(name)
            result = self.view(source)
            view = result.view
            if cluster is None or cluster.state == "frozen":
                unknown[name] = registry.broken_clusters.get(name, "frozen")
            elif view.unknown is not None:
                unknown[name] = view.unknown
                view = _stand_in(view, ours, memory, left=spec.strategy == "failover" and name != active)
            if result.view.unknown is None or (cluster is not None and cluster.state == "standby"):
                memory.forget(name)
            seen += result.findings
            if result.wake_at is not None:
                wakes.append(result.wake_at - self._clock.wall())
            seconds = _policy_stands(source, result.view, self._unreachable_for(name), memory.given_up)
            inputs.append(_input(source, view, cluster, seconds, self._node_ports(spec, source)))
        parked, held = self._parked(spec, registry, ours, memory, wakes)
        findings = (*seen, *self._strangers(spec), *_leaving(parked, registry, held))
        return Gathered((*inputs, *parked.values()), unknown, wakes, findings)

    def _node_ports(self, spec: TargetSpec, source: SourceSpec) -> Mapping[NodePortRef, PortReading]:
        """What is known of the ports that the registry entry reads in a source cluster."""
        refs = node_ports(spec, source)
        return {ref: self._fleet.node_port(source.cluster, ref) for ref in refs} if refs else NO_READINGS

    def _strangers(self, spec: TargetSpec) -> Iterable[Finding]:
        """Sources whose kubeconfig does not lead where it should."""
        for source in spec.sources:
            name = source.cluster
            unit = self._fleet.clusters.get(name)
            if unit is not None and unit.status.state is State.WRONG_CLUSTER:
                yield Finding("WrongCluster", f"{name}: {unit.status.error}", (name,))
            if names := self._fleet.twins.get(name):
                yield Finding("SameCluster", f"{', '.join(names)} are one and the same cluster", names)

    def _unreachable_for(self, cluster: str) -> float | None:
        unit = self._fleet.clusters.get(cluster)
        if unit is None or (seconds := unit.unreachable_for()) is None or self._fleet.suspended:
            return None
        return seconds

    def _parked(
        self, spec: TargetSpec, registry: Registry, ours: tuple[Slice, ...], memory: Remembered, wakes: list[float]
    ) -> tuple[Mapping[str, SourceInput], Mapping[str, RegistryHeld]]:
        """Published by what is no source any more, and not to go yet: its slices are not touched."""
        known = memory.names
        if known is None or known[0] is not spec or known[1] is not registry:
            today = {source.cluster for source in spec.sources}
            memory.given_up &= today
            for name in (memory.adopted.keys() | memory.stand_ins.keys()) - today:
                memory.forget(name)
            former = [name for each in today if each in registry.clusters for name in registry.clusters[each].formerly]
            known = memory.names = (spec, registry, frozenset((*today, *former)))
        strange = {each.labels.get(LABEL_SOURCE_CLUSTER, "") for each in ours} - known[2]
        if not strange:
            memory.parked.clear()
            return {}, {}
        now = self._clock.now()
        found: dict[str, SourceInput] = {}
        withheld: dict[str, RegistryHeld] = {}
        memory.parked = {name: each for name, each in memory.parked.items() if name in strange}
        for name in sorted(strange):
            parked = memory.parked.get(name)
            if parked is None:
                nothing = SourceInput(SourceSpec(name, ProviderRef("")), SourceView(name, "no source", {}), "frozen")
                parked = memory.parked[name] = _Parked(now, nothing)
            left = parked.since + self._grace - now
            if name in registry.frozen_names:
                found[name] = parked.input
                parked.since = now  # the grace begins when the entry is mended
            elif name not in registry.clusters and (held := self._removals.held(registry, cluster_entry(name))):
                found[name], withheld[name] = parked.input, held
            elif _maybe_renamed(name, registry):
                found[name] = parked.input
                parked.since = now
            elif left > 0:
                found[name] = parked.input
                wakes.append(left)
        return found, withheld


def _policy_stands(source: SourceSpec, view: SourceView, seconds: float | None, given_up: set[str]) -> float | None:
    """Seconds without a connection; a policy that took effect stays in effect until there is a statement.

    A load balancer in front of a dead API server may refuse now and answer 503 then: what was taken out for
    being unreachable does not come back for that.
    """
    after, name = source.unreachable.after, source.cluster
    if view.unknown is None:
        given_up.discard(name)
        return None
    if seconds is not None and seconds >= after:
        given_up.add(name)
    elif seconds is None and name in given_up:
        return after
    return seconds


def _stand_in(view: SourceView, ours: tuple[Slice, ...], memory: Remembered, *, left: bool) -> SourceView:
    """A source that says nothing: what this target may publish of it where it is missing."""
    name = view.cluster
    kept: tuple[Slice, ...] = ()
    if left:
        if not view.endpoints:
            return view
    elif any(view.endpoints.values()):
        return view  # the source's own memory
    else:
        mine = tuple([each for each in ours if each.labels.get(LABEL_SOURCE_CLUSTER) == name])
        if name not in memory.adopted:
            if mine:
                memory.adopted[name] = mine
            return view
        kept = memory.adopted[name]
        if mine == kept:
            return view  # it is all there
    known = memory.stand_ins.get(name)
    if known is None or known[0] is not view or known[1] is not kept:
        instead = msgspec.structs.replace(view, endpoints=_endpoints(kept), adopted=True)
        known = memory.stand_ins[name] = (view, kept, instead)
    return known[2]


def _endpoints(slices: tuple[Slice, ...]) -> Mapping[str, Mapping[str, Endpoint]]:
    """Published endpoints as a view has them: without hostnames, which are the target's business."""
    families: dict[str, dict[str, Endpoint]] = {}
    for each in slices:
        content = families.setdefault(each.address_type, {})
        for endpoint in each.endpoints:
            plain = endpoint if endpoint.hostname is None else msgspec.structs.replace(endpoint, hostname=None)
            content.setdefault(endpoint.address, plain)
    return families


def _leaving(
    parked: Mapping[str, SourceInput], registry: Registry, withheld: Mapping[str, RegistryHeld]
) -> Iterable[Finding]:
    if withheld:
        yield next(iter(withheld.values())).finding
    leaving = [name for name in parked if name not in registry.frozen_names and name not in withheld]
    if kept := tuple(name for name in leaving if _maybe_renamed(name, registry)):
        message = f"{', '.join(kept)}: in no entry; stays until these are mended, as one may have been called so: "
        yield Finding("MaybeRenamed", message + few(sorted(registry.broken_clusters), NAMED), kept)
    if names := tuple(name for name in leaving if name not in kept):
        message = f"{', '.join(names)}: no source any more; what is published of it goes after the removal grace"
        yield Finding("RemovalPending", message, names)


def _maybe_renamed(name: str, registry: Registry) -> bool:
    """No entry has this name, and one that is broken may have meant to say that it had."""
    return bool(name and registry.broken_clusters) and name not in registry.clusters


def _input(
    source: SourceSpec,
    view: SourceView,
    cluster: ClusterSpec | None,
    unreachable_for: float | None,
    node_ports: Mapping[NodePortRef, PortReading],
) -> SourceInput:
    return SourceInput(
        source,
        view,
        "frozen" if cluster is None else cluster.state,
        unreachable_for,
        None if source.cluster == LOCAL or cluster is None else cluster.allowed_ports,
        cluster.formerly if cluster is not None else (),
        node_ports,
    )
