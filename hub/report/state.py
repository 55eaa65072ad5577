"""Snapshots of the hub's state, for the API, the status page and ``hub status``.

A snapshot is taken in one step of the event loop, so that it is consistent. Taking it makes no requests and no
decisions. Unchanged parts are the same objects as in the last snapshot, so that snapshots of thousands of Services are
cheap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hub import __version__
from hub.decide.decision import Decision
from hub.decide.explain import condition
from hub.model import ANNOTATION_PAUSED, LOCAL, Slice, TargetKey
from hub.registry.spec import SourceSpec
from hub.report.allocations import allocations_in_status
from hub.report.clouds import clouds_in_status
from hub.report.held import approving_flags, held, registry_withheld
from hub.report.hub_state import HubState
from hub.report.values import (
    NOT_PROBED,
    Checked,
    Cluster,
    Noted,
    RegistryState,
    Replica,
    Role,
    Service,
    Source,
    Status,
)
from hub.runtime.clock import rfc3339

PROBED: Final = "probed"
"""The ``verdict`` of a check in a process that probes its addresses."""
NO_DECISION: Final = "no decision yet"
STANDS_BY: Final = "standby: as published"
ELSEWHERE: Final = "{} writes shard {}: as published"
"""Values of ``Service.status`` if this process has made no decision; "as published": only the slices are reported."""

Counted = tuple[str, Counter[str]]
"""A source cluster, and endpoints by condition."""


class _Known(NamedTuple):
    """A Service of the last snapshot, and the values that it was computed from."""

    parts: tuple[object, ...]
    value: Service


class Snapshots:
    """Takes snapshots of one hub.

    Args:
        hub: a running hub, or one that has observed its clusters once.
    """

    def __init__(self, hub: HubState) -> None:
        self._hub = hub
        self._services: dict[TargetKey, _Known] = {}
        self._counts: dict[tuple[str, str], tuple[Slice, Counted]] = {}

    def take(self) -> Status:
        """The present snapshot."""
        hub = self._hub
        keys = sorted({*hub.registry.targets, *hub.registry.broken_targets, *hub.registry.notes, *self._sliced()})
        views: dict[SourceSpec, str | None] = {}
        flags = approving_flags(hub)
        passes = [result for key in keys if (result := last_decision(hub, key)).status != "gone"]
        services = [self._service(result.target, result, views, flags) for result in passes]
        for gone in self._services.keys() - set(keys):
            del self._services[gone]
        if len(self._counts) > 2 * sum(1 for _ in hub.local.slices.values()) + 100:
            self._counts.clear()  # most of these counts belong to deleted slices
        return assembled(hub, services)

    def _sliced(self) -> Iterable[TargetKey]:
        return self._hub.local.slices.targets()

    def service(self, key: TargetKey) -> Service:
        """One Service."""
        return self._service(key, last_decision(self._hub, key), {}, approving_flags(self._hub))

    def _service(self, key: TargetKey, result: Decision, views: dict[SourceSpec, str | None], flags: str) -> Service:
        hub = self._hub
        slices = tuple(hub.local.slices.of(key).values())
        annotations = service.annotations if (service := hub.local.services.get(key)) is not None else {}
        unknown = tuple(sorted(unknown_of(hub, result, views).items()))
        changed = hub.reconciler.written_at(key)
        problem = hub.reconciler.problem(key) if hub.writes(key) else ""  # other replicas do not know it
        paused = annotations.get(ANNOTATION_PAUSED) == "true"
        spec = hub.registry.targets.get(key)
        identities = (result.desired, result.withheld, result.findings, spec, *slices)
        equals = (result.status, unknown, changed, problem, paused, flags, hub.writes(key))
        known = self._services.get(key)
        if known is not None and _same(known.parts, (equals, *identities)):
            return known.value
        value = described(
            result,
            tuple(self._count(slice_) for slice_ in slices),
            [source.cluster for source in spec.sources] if spec is not None else [],
            dict(unknown),
            flags,
            paused=paused,
            changed=changed,
            problem=problem,
            probed=hub.writes(key),
        )
        if known is not None and known.value == value:
            value = known.value
        self._services[key] = _Known((equals, *identities), value)
        return value

    def _count(self, slice_: Slice) -> Counted:
        known = self._counts.get((slice_.namespace, slice_.name))
        if known is None or known[0] is not slice_:
            known = self._counts[slice_.namespace, slice_.name] = (slice_, counts(slice_))
        return known[1]


def counts(slice_: Slice) -> Counted:
    """The source cluster of a slice, and its endpoints by condition."""
    return slice_.cluster, Counter(map(condition, slice_.endpoints))


def _same(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    return len(old) == len(new) and old[0] == new[0] and all(map(_is, old[1:], new[1:]))


def _is(one: object, other: object) -> bool:
    return one is other or (not one and not other)


def last_decision(hub: HubState, key: TargetKey) -> Decision:
    """The last decision about a target; a Decision with only a status if this process has made none."""
    if hub.writes(key) and (last := hub.reconciler.last(key)) is not None:
        return last
    if key in hub.registry.broken_targets:
        return Decision(key, status=f"frozen: {hub.registry.broken_targets[key]}")
    if hub.leading.count > 1 and not hub.writes(key):
        holder = hub.leading.holder_of(key) or "no replica"
        return Decision(key, status=ELSEWHERE.format(holder, hub.leading.shard(key)))
    return Decision(key, status=NO_DECISION if hub.writing or not hub.elector.holder else STANDS_BY)


def assembled(hub: HubState, services: Iterable[Service], role: Role | None = None) -> Status:
    """A snapshot with these Services; ``role`` None = the role that follows from the hub's state."""
    names = (*hub.registry.clusters, *hub.registry.broken_clusters)
    clusters = [cluster(hub, name) for name in names]
    return Status(
        replica(hub, role),
        RegistryState(
            registry_withheld(hub.reconciler.withheld()),
            str(hub.rejected) if hub.rejected is not None else "",
            tuple(map(str, hub.problems)),
        ),
        # The hub cluster itself is listed only if it has an error.
        tuple(cluster for cluster in clusters if cluster.name != LOCAL or cluster.error),
        tuple(services),
        allocations_in_status(hub),
        clouds_in_status(hub),
    )


def replica(hub: HubState, role: Role | None = None) -> Replica:
    """The state of this process."""
    leads = hub.leads
    holder = hub.elector.identity if leads else hub.elector.holder
    return Replica(
        __version__,
        hub.registry.owner,
        hub.elector.identity,
        role or _role(hub, holder),
        holder,
        hub.options.dry_run,
        hub.local.synced,
        hub.trouble,
        tuple(sorted(hub.leading.held)),
        hub.leading.count,
    )


def _role(hub: HubState, holder: str) -> Role:
    if hub.health.stopping:
        return "stopping"
    if hub.writing:
        return "leader"
    return "standby" if holder else "starting"


def cluster(hub: HubState, name: str) -> Cluster:
    """The state of a cluster."""
    spec = hub.registry.clusters.get(name)
    if spec is None:
        return Cluster(name, "broken", error=hub.registry.broken_clusters.get(name, ""))
    remote, problem = hub.fleet.clusters.get(name), hub.fleet.problem(name)
    if remote is None:
        return Cluster(name, spec.state, _unfollowed(problem), error=problem or "")
    now = remote.status
    nodes = len(remote.nodes) if remote.synced else None
    return Cluster(name, spec.state, str(now.state), rfc3339(now.since), nodes, now.error or problem or "")


def _unfollowed(problem: str | None) -> str:
    """The state of a cluster whose Nodes are not followed: its provider's, or "" if the provider is not called."""
    if problem is None:  # frozen, or followed by other replicas only
        return ""
    return "Degraded" if problem else "Ready"


def unknown_of(hub: HubState, result: Decision, views: dict[SourceSpec, str | None] | None = None) -> Mapping[str, str]:
    """The unknown sources of a target: cluster -> why.

    Without a decision about the target, its present sources are checked, unless another replica decides about it.

    Args:
        hub: the hub.
        result: the last decision about the target.
        views: a cache: source -> why it is unknown, or None.
    """
    if result.desired is not None or (hub.leading.count > 1 and not hub.writes(result.target)):
        return result.unknown
    views = {} if views is None else views
    found = dict(result.unknown)
    spec = hub.registry.targets.get(result.target)
    for source in spec.sources if spec is not None else ():
        if source.cluster in found:
            continue
        if source not in views:
            views[source] = hub.reconciler.view(source).view.unknown
        if (why := views[source]) is not None:
            found[source.cluster] = why
    return found


def described(
    result: Decision,
    counted: Sequence[Counted],
    names: Iterable[str],
    unknown: Mapping[str, str],
    flags: str = "",
    *,
    paused: bool = False,
    changed: float | None = None,
    problem: str = "",
    probed: bool = False,
) -> Service:
    """The state of a Service after a pass.

    Args:
        result: the decision of the pass.
        counted: for each slice, the source cluster and the endpoints by condition.
        names: the source clusters, in order.
        unknown: unknown sources -> why.
        flags: options for the ``hub approve`` commands.
        paused: whether the Service has the pause annotation.
        changed: Unix time of the last write.
        problem: why the last write failed.
        probed: whether this process probes the Service's addresses.
    """
    total: Counter[str] = Counter()
    for _, conditions in counted:
        total += conditions
    checks = sorted({str(watch.check) for watch in result.desired.watches}) if result.desired is not None else ()
    return Service(
        str(result.target),
        result.status,
        paused,
        total["ready"],
        total.total(),
        total["unhealthy"],
        total["draining"],
        None if changed is None else rfc3339(changed),
        problem,
        tuple(sources(names, counted, unknown)),
        held(result, flags),
        tuple(Noted(finding.reason, finding.message) for finding in result.findings),
        tuple(Checked(check, PROBED if probed else NOT_PROBED) for check in checks),
    )


def sources(names: Iterable[str], counted: Sequence[Counted], unknown: Mapping[str, str]) -> Iterable[Source]:
    """Published endpoints by cluster: the sources in order, then clusters that are no longer sources."""
    by_cluster: dict[str, Counter[str]] = {}
    for name, conditions in counted:
        by_cluster.setdefault(name, Counter()).update(conditions)
    none: Counter[str] = Counter()
    for name in dict.fromkeys((*names, *sorted(by_cluster))):
        found = by_cluster.get(name, none)
        yield Source(name, found["ready"], found.total(), unknown.get(name))


def observed(hub: HubState, results: Iterable[Decision]) -> Status:
    """A snapshot of a process that has observed the clusters once, for ``hub status`` without a running hub."""
    flags = approving_flags(hub)
    services = []
    for result in results:
        spec = hub.registry.targets.get(result.target)
        service = hub.local.services.get(result.target)
        services.append(
            described(
                result,
                [counts(slice_) for slice_ in hub.local.slices.of(result.target).values()],
                [source.cluster for source in spec.sources] if spec is not None else [],
                unknown_of(hub, result),
                flags,
                paused=service is not None and service.annotations.get(ANNOTATION_PAUSED) == "true",
            )
        )
    return assembled(hub, services, "observer")
