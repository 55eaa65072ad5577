"""Stage 1 of a decision: the inputs of :func:`~hub.decide.target.desired_endpoints`, from the readings of the sources.

Three rules apply per target. A source that has been unknown since the start keeps the endpoints that this target
published for it. An unknown source that failover has left loses its last known good endpoints. A cluster that is no
longer a source keeps its slices for the removal grace, and for longer while its registry entry is broken, while its
removal is withheld, or while another entry is broken whose ``formerly`` may list it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from hub.decide.snapshot import SourceReading, TargetSnapshot
from hub.decide.sources import SourceInput
from hub.model import LABEL_SOURCE_CLUSTER, LOCAL, Endpoint, Finding, Slice, SourceView, join_first
from hub.registry.spec import NAMED, ProviderRef, Registry, RegistryHeld, SourceSpec, TargetSpec, cluster_entry


class SourceMemory(msgspec.Struct, frozen=True):
    """The state of a target's sources between decisions.

    Attributes:
        adopted: cluster -> its slices that were published when it was first seen unknown.
        removed_since: cluster that is no longer a source -> when its removal grace began.
        given_up: clusters whose ``unreachable`` policy took effect and that have not been known since.
    """

    adopted: Mapping[str, tuple[Slice, ...]] = {}
    removed_since: Mapping[str, float] = {}
    given_up: frozenset[str] = frozenset()


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of one decision.

    Attributes:
        sources: in the registry's order, then clusters that are no longer sources and keep their slices.
        unknown: unknown source -> why it is unknown.
        wakes: seconds until one of the inputs changes with time.
        findings: in a fixed order.
        memory: for the next decision.
    """

    sources: tuple[SourceInput, ...]
    unknown: Mapping[str, str]
    wakes: tuple[float, ...]
    findings: tuple[Finding, ...]
    memory: SourceMemory


def inputs_of(
    snapshot: TargetSnapshot, target: TargetSpec, ours: Collection[Slice], memory: SourceMemory, active: str
) -> Inputs:
    """The inputs of one decision.

    Args:
        snapshot: the snapshot of the target.
        target: its registry entry.
        ours: its slices that this hub may write.
        memory: from the last decision.
        active: the source that failover has chosen; "" if there is none.
    """
    registry = snapshot.registry
    current = {source.cluster for source in target.sources}
    adopted = {name: slices for name, slices in memory.adopted.items() if name in current}
    given_up = set(memory.given_up & current)
    inputs: list[SourceInput] = []
    unknown: dict[str, str] = {}
    wakes: list[float] = []
    seen: list[Finding] = []
    for reading in snapshot.sources:
        source, result = reading.spec, reading.result
        name, view = source.cluster, result.view
        cluster = registry.clusters.get(name)
        if cluster is None or cluster.state == "frozen":
            unknown[name] = registry.broken_clusters.get(name, "frozen")
        elif view.unknown is not None:
            unknown[name] = view.unknown
            view = view_of_unknown(view, ours, adopted, left=target.strategy == "failover" and name != active)
        if result.view.unknown is None or (cluster is not None and cluster.state == "standby"):
            adopted.pop(name, None)
        seen += result.findings
        if result.wake_at is not None:
            wakes.append(result.wake_at - snapshot.wall)
        seconds = unreachable_seconds(source, result.view, reading.unreachable_for, given_up)
        inputs.append(
            SourceInput(
                source,
                view,
                "frozen" if cluster is None else cluster.state,
                seconds,
                None if name == LOCAL or cluster is None else cluster.allowed_ports,
                cluster.formerly if cluster is not None else (),
                reading.node_ports,
            )
        )
    removed, since, held = _removed_sources(snapshot, current, ours, memory.removed_since, wakes)
    return Inputs(
        (*inputs, *removed),
        unknown,
        tuple(wakes),
        (*seen, *_wrong_clusters(snapshot.sources), *_leaving(removed, registry, held)),
        SourceMemory(adopted, since, frozenset(given_up)),
    )


def _wrong_clusters(sources: Iterable[SourceReading]) -> Iterable[Finding]:
    """Findings about kubeconfigs that lead to a wrong cluster, or to the same cluster as another one."""
    for reading in sources:
        name = reading.spec.cluster
        if reading.wrong_cluster:
            yield Finding("WrongCluster", f"{name}: {reading.wrong_cluster}", (name,))
        if reading.twins:
            yield Finding("SameCluster", f"{', '.join(reading.twins)} are one and the same cluster", reading.twins)


def _removed_sources(
    snapshot: TargetSnapshot,
    current: set[str],
    ours: Collection[Slice],
    memory: Mapping[str, float],
    wakes: list[float],
) -> tuple[list[SourceInput], Mapping[str, float], Mapping[str, RegistryHeld]]:
    """Clusters that are no longer sources and keep their slices.

    Adds to ``wakes`` the seconds until a removal grace ends.

    Returns:
        The clusters as frozen inputs, the start of each cluster's removal grace, and the withheld removals by cluster.
    """
    registry, now = snapshot.registry, snapshot.now
    former = {old for name in current if name in registry.clusters for old in registry.clusters[name].formerly}
    unlisted = {slice_.labels.get(LABEL_SOURCE_CLUSTER, "") for slice_ in ours} - current - former
    found: list[SourceInput] = []
    times: dict[str, float] = {}
    withheld: dict[str, RegistryHeld] = {}
    for name in sorted(unlisted):
        since = memory.get(name, now)
        left = since + snapshot.hub.removal_grace - now
        held = snapshot.held.get(cluster_entry(name)) if name not in registry.clusters else None
        if name in registry.frozen_names:
            since = now  # the grace begins when the entry is fixed
        elif held is not None:
            withheld[name] = held
        elif _maybe_renamed(name, registry):
            since = now
        elif left > 0:
            wakes.append(left)
        else:
            times[name] = since
            continue
        times[name] = since
        found.append(SourceInput(SourceSpec(name, ProviderRef("")), SourceView(name, "no source", {}), "frozen"))
    return found, times, withheld


def unreachable_seconds(
    source: SourceSpec, view: SourceView, seconds: float | None, given_up: set[str]
) -> float | None:
    """Seconds without a connection, at least ``unreachable.after`` once the policy has taken effect.

    A load balancer in front of a dead API server may first refuse connections and later answer 503, which counts as
    connected. Endpoints that the policy removed or drained must not come back then, but only when the cluster is known
    again. Updates ``given_up``.
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


def view_of_unknown(
    view: SourceView, ours: Iterable[Slice], adopted: dict[str, tuple[Slice, ...]], *, left: bool
) -> SourceView:
    """The view to use for an unknown source. Updates ``adopted``.

    Args:
        view: the source's view, which may contain endpoints of its last complete answer.
        ours: published slices of the target.
        adopted: see :class:`SourceMemory`.
        left: whether failover has chosen another source.
    """
    if left:
        return msgspec.structs.replace(view, endpoints={}, adopted=True) if view.endpoints else view
    if any(view.endpoints.values()):
        return view  # the source's own last answer
    published = tuple([slice_ for slice_ in ours if slice_.labels.get(LABEL_SOURCE_CLUSTER) == view.cluster])
    if published:
        adopted.setdefault(view.cluster, published)
    kept = adopted.get(view.cluster, published)
    # If they are equal, the adopted endpoints are all published and the view need not contain them.
    return view if published == kept else msgspec.structs.replace(view, endpoints=_endpoints(kept), adopted=True)


def _endpoints(slices: tuple[Slice, ...]) -> Mapping[str, Mapping[str, Endpoint]]:
    """Published endpoints in the form of a view: without hostnames, which depend on the target."""
    families: dict[str, dict[str, Endpoint]] = {}
    for slice_ in slices:
        content = families.setdefault(slice_.address_type, {})
        for endpoint in slice_.endpoints:
            plain = endpoint if endpoint.hostname is None else msgspec.structs.replace(endpoint, hostname=None)
            content.setdefault(endpoint.address, plain)
    return families


def _leaving(
    removed: Iterable[SourceInput], registry: Registry, withheld: Mapping[str, RegistryHeld]
) -> Iterable[Finding]:
    if withheld:
        yield next(iter(withheld.values())).finding
    names = [source.spec.cluster for source in removed]
    leaving = [name for name in names if name not in registry.frozen_names and name not in withheld]
    if kept := tuple(name for name in leaving if _maybe_renamed(name, registry)):
        broken = join_first(sorted(registry.broken_clusters), NAMED)
        unlisted = ", ".join(kept)
        message = f"{unlisted}: in no entry, but perhaps a former name in a broken one, so its endpoints stay: {broken}"
        yield Finding("MaybeRenamed", message, kept)
    if gone := tuple(name for name in leaving if name not in kept):
        message = f"{', '.join(gone)}: no longer a source; its endpoints are removed after the removal grace"
        yield Finding("RemovalPending", message, gone)


def _maybe_renamed(name: str, registry: Registry) -> bool:
    """Whether no entry has this name, and a broken entry may have meant to list it in ``formerly``."""
    return bool(name and registry.broken_clusters) and name not in registry.clusters
