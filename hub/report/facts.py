"""Gathers the facts for :mod:`hub.decide.explain`: sources with their nodes, and targets with their last decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hub.decide.addresses import AddressPolicy
from hub.decide.checks import Watch
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.explain import Facts, SourceFacts, TargetFacts
from hub.decide.view import ViewResult
from hub.model import LOCAL, Resolution, TargetKey
from hub.observe.remote.fleet import SourceKey
from hub.registry.spec import ClusterSpec, NodePolicy, ProviderRef, SourceSpec
from hub.report.hub_state import HubState


@dataclass(frozen=True, slots=True)
class Inspected:
    """The view of one cluster with one provider and one node policy.

    Attributes:
        services: targets that use exactly this source.
        unknown: why the source is unknown; None if it is known.
        resolutions: node name -> the provider's answer.
    """

    cluster: str
    provider: str
    services: tuple[str, ...]
    unknown: str | None
    result: ViewResult
    resolutions: Mapping[str, Resolution]


Wanted = tuple[str, ProviderRef | None, NodePolicy, tuple[str, ...]]
"""A source to inspect: its cluster, provider and node policy, and the targets that use it."""


def inspected(hub: HubState, cluster: str | None = None) -> list[Inspected]:
    """The sources of all clusters, or of one cluster, in the order of clusters.yaml."""
    return [_inspect(hub, *wanted) for wanted in _sources(hub, cluster)]


def _sources(hub: HubState, wanted: str | None) -> Iterable[Wanted]:
    """The sources of all clusters, or of ``wanted`` only, in the order of clusters.yaml."""
    used = _used(hub, hub.registry.targets)
    names = dict.fromkeys([*hub.registry.clusters, *hub.registry.broken_clusters])
    by_name: dict[str, list[Wanted]] = {}
    for source in used:
        by_name.setdefault(source[0], []).append(source)
    for name in names if wanted is None else [name for name in names if name == wanted]:
        yield from by_name.get(name, ())
        spec = hub.registry.clusters.get(name)
        if name not in by_name and (wanted is not None or name in hub.registry.broken_clusters or _has_nodes(spec)):
            # No target uses this cluster, so show its nodes under the default node policy.
            yield name, spec.provider if spec is not None else None, NodePolicy(), ()


def _used(hub: HubState, keys: Iterable[TargetKey]) -> list[Wanted]:
    """The sources of these targets, without duplicates."""
    used: dict[tuple[str, ProviderRef, NodePolicy], list[str]] = {}
    for key in keys:
        target = hub.registry.targets.get(key)
        for source in target.sources if target is not None else ():
            used.setdefault((source.cluster, source.provider, source.nodes), []).append(str(key))
    return [(*key, tuple(services)) for key, services in used.items()]


def _has_nodes(spec: ClusterSpec | None) -> bool:
    return spec is not None and spec.provider is not None


def _inspect(
    hub: HubState, cluster: str, provider: ProviderRef | None, policy: NodePolicy, services: tuple[str, ...]
) -> Inspected:
    spec = hub.registry.clusters.get(cluster)
    reference = provider or ProviderRef("")
    result = hub.reconciler.view(SourceSpec(cluster, reference, nodes=policy))
    unknown = result.view.unknown
    frozen = spec is not None and spec.state == "frozen"
    if spec is None:
        unknown = hub.registry.broken_clusters.get(cluster, "not in the registry")
    elif frozen:
        unknown = "state frozen: not contacted"
    elif provider is None:
        unknown = "no Service uses it with a provider"
    source = hub.fleet.sources.get(SourceKey(cluster, reference))
    resolutions = source.resolutions if source is not None else {}
    return Inspected(cluster, reference.name, services, unknown, result, resolutions)


def gather(hub: HubState, results: Iterable[Decision], keys: Iterable[TargetKey] | None = None) -> Facts:
    """The present facts about some targets and sources.

    Args:
        hub: a hub that has observed its clusters.
        results: the decisions about the targets.
        keys: the targets whose sources are included; None = all sources.
    """
    found = inspected(hub) if keys is None else [_inspect(hub, *wanted) for wanted in _used(hub, keys)]
    sources = []
    for source in found:
        remote = hub.fleet.clusters.get(source.cluster)
        nodes = remote.nodes if remote is not None else {}
        sources.append(
            SourceFacts(source.cluster, source.services, source.unknown, source.result, source.resolutions, nodes)
        )
    denied, own = hub.registry.denied_cidrs, hub.own_networks.networks
    names = hub.registry.clusters.keys() if keys is None else dict.fromkeys(source.cluster for source in found)
    policies = {
        name: AddressPolicy(hub.registry.clusters[name].allowed_cidrs, denied, own=own)
        for name in names
        if name != LOCAL and name in hub.registry.clusters
    }
    return Facts(tuple(sources), tuple(_target(hub, result) for result in results), policies)


def copied(facts: Facts) -> Facts:
    """A copy of the facts for use in a thread, since the event loop continues to change the originals."""
    sources = tuple(
        SourceFacts(
            source.cluster, source.services, source.unknown, source.result, dict(source.resolutions), dict(source.nodes)
        )
        for source in facts.sources
    )
    return Facts(sources, facts.targets, facts.policies)


def known_targets(hub: HubState) -> set[TargetKey]:
    """Every Service of the registry, and every Service with slices of this hub."""
    registry = hub.registry
    return {*registry.targets, *registry.broken_targets, *registry.notes, *hub.local.slices.targets()}


def unknown_sources(hub: HubState, results: Iterable[Decision], keys: Collection[TargetKey] | None = None) -> list[str]:
    """Unknown sources and broken entries as lines, each with the reason; clusters with ``state: frozen`` are left out.

    Args:
        hub: a hub that has observed its clusters.
        results: the decisions about the targets.
        keys: the targets; None = all targets, including broken entries.
    """
    registry = hub.registry
    found = {name: reason for result in results for name, reason in result.unknown.items()}
    frozen = {name for name, spec in registry.clusters.items() if spec.state == "frozen"}
    lines = {f"cluster {name}: {reason}" for name, reason in found.items() if name not in frozen}
    asked = registry.broken_targets.keys() if keys is None else registry.broken_targets.keys() & set(keys)
    broken = {f"service {target}: {registry.broken_targets[target]}" for target in asked}
    return sorted(lines | broken)


def _target(hub: HubState, result: Decision) -> TargetFacts:
    spec = hub.registry.targets.get(result.target)
    return TargetFacts(
        result,
        tuple(dict.fromkeys(source.cluster for source in spec.sources)) if spec is not None else (),
        # The stored slices of another replica's targets are thin: they have no addresses.
        tuple(hub.local.slices.of(result.target).values()) if not hub.local.slices.thin(result.target) else (),
        {GroupKey(watch.cluster, watch.family): probed(hub, watch) for watch in result.watches} if hub.writing else {},
    )


def probed(hub: HubState, watch: Watch) -> Mapping[str, tuple[str, str]]:
    """Address -> the verdict in words, and why the last probe failed."""
    words = {True: "healthy", False: "unhealthy", None: "not known yet"}
    verdicts = hub.board.verdicts().get(watch.check, {})
    return {
        address: (words[verdicts.get(address)], hub.board.reason(watch.check, address)) for address in watch.addresses
    }
