"""Computes the metrics from the hub's state at the moment of a scrape.

Most metrics are computed from the state instead of being counted separately, so the series of a removed cluster or
Service disappear with it. Collection runs in the event loop without interruption, so that the numbers are consistent.
Counts that would take long in a large fleet (the nodes of a cluster, the endpoints of a slice) are cached until their
objects change.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from hub import __version__
from hub.decide.view import ViewResult
from hub.kube.credentials import Credentials
from hub.model import LOCAL, TargetKey
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.fleet import SourceKey
from hub.observe.remote.status import State
from hub.registry.spec import NodePolicy, Registry
from hub.report import metrics_catalog as m
from hub.report.collect_slices import NOTHING, Published, Sums
from hub.report.hub_state import HubState
from hub.runtime.tally import Tally

PUBLISHED: Final = "published"
COUNT_SECONDS: Final = 0.01
"""Seconds for which slices are counted before other tasks of the event loop run."""


class Row(NamedTuple):
    """One series: the values of its labels, in order, and its value."""

    labels: tuple[str, ...]
    value: float | Durations


class Durations(NamedTuple):
    """The value of a :class:`Tally` at one moment."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


Collected = list[tuple[m.Metric, list[Row]]]


class Collector:
    """Collects the metrics of one hub, with caches of counts."""

    def __init__(self, hub: HubState) -> None:
        self._hub = hub
        self._published = Published()
        self._nodes: dict[str, tuple[tuple[ViewResult, ...], Counter[str]]] = {}
        self._policies: tuple[Registry | None, tuple[tuple[SourceKey, NodePolicy], ...]] = (None, ())
        """The registry, and the sources and node policies of its targets."""
        self._rows: dict[m.Metric, list[Row]] = {}

    def collect(self) -> Collected:
        """All metrics in the catalog's order, then the providers' own, then those of allocations."""
        self._rows = {}
        for part in (self._process, self._registry, self._clusters, self._sources, self._providers, self._endpoints):
            part()
        for part in (self._targets, self._probes, self._work):
            part()
        known = [(metric, self._rows.pop(metric, [])) for metric in m.METRICS]
        own = sorted(self._rows.items(), key=lambda row: row[0].name)
        return known + own + self._allocations() + self._clouds()

    def _clouds(self) -> Collected:
        if self._hub.controlling is None or not self._hub.controlling.clusters:
            return []
        from hub.report.collect_clouds import collect  # only hubs with a cloud controller import it

        return collect(self._hub.controlling)

    def _allocations(self) -> Collected:
        if self._hub.allocating is None or self._hub.registry.allocations is None:
            return []
        from hub.report.collect_allocations import collect  # only hubs with allocations import it

        return collect(self._hub, self._hub.allocating, os.environ)

    def _add(self, metric: m.Metric, value: float, *labels: str) -> None:
        self._rows.setdefault(metric, []).append(Row(labels, value))

    def _tally(self, metric: m.Metric, tally: Tally, *labels: str) -> None:
        value = Durations(tally.bounds, tuple(tally.counts), tally.sum)
        self._rows.setdefault(metric, []).append(Row(labels, value))

    def _each(self, metric: m.Metric, numbers: Mapping[str, float], *labels: str) -> None:
        for name, number in numbers.items():
            self._add(metric, number, *labels, name)

    # --- the process and the registry ------------------------------------------------------------

    def _process(self) -> None:
        hub = self._hub
        self._add(m.BUILD_INFO, 1, __version__, hub.registry.owner)
        for shard in range(hub.leading.count):
            self._add(m.LEADER, shard in hub.leading.held, str(shard))
        self._add(m.LEASE_REMAINING, hub.leading.shards.remaining())
        self._add(m.HUB_CLUSTER_SYNCED, hub.local.synced)
        loops = hub.host.loops
        for provider, record in {"": loops.hub_stalls, **loops.stalls}.items():
            self._add(m.LOOP_STALLS, record.count, provider)
            self._add(m.LOOP_STALL_SECONDS, record.seconds, provider)
        self._add(m.TASKS, len(asyncio.all_tasks()) + sum(loop.tasks for loop in loops))

    def _registry(self) -> None:
        hub, registry = self._hub, self._hub.registry
        self._add(m.REGISTRY_GENERATION, hub.reloads["accepted"])
        self._each(m.REGISTRY_RELOADS, hub.reloads)
        self._add(m.REGISTRY_REJECTED, hub.rejected is not None)
        self._add(m.REGISTRY_ACCEPTED, hub.reloaded_at)
        self._add(m.REGISTRY_BROKEN, len(registry.broken_clusters) + len(registry.broken_targets))
        withheld = hub.reconciler.last_withheld() if hub.writing else None
        self._add(m.REGISTRY_WITHHELD, withheld.endpoints if withheld is not None else 0)
        self._add(m.REGISTRY_CLUSTERS, len(registry.clusters.keys() - {LOCAL}))
        self._add(m.REGISTRY_TARGETS, len(registry.targets))

    # --- clusters and their sources ----------------------------------------------------------------

    def _clusters(self) -> None:
        fleet, wall, now = self._hub.fleet, self._hub.clock.wall(), self._hub.clock.now()
        for name, cluster in sorted(fleet.clusters.items()):
            for state in m.STATES:
                self._add(m.CLUSTER_STATE, cluster.status.state is state, name, state.value)
            self._add(m.CLUSTER_SINCE, cluster.status.since, name)
            self._add(m.CLUSTER_SUCCESS, _last_success(cluster, wall, now), name)
        for name, reasons in self._nodes_by_reason().items():
            for reason, number in sorted(reasons.items()):
                self._add(m.CLUSTER_NODES, number, name, reason)
        self._add(m.SUSPENDED, fleet.suspended)
        clients = {
            LOCAL: self._hub.client,
            **{name: cluster.client for name, cluster in sorted(fleet.clusters.items())},
        }
        for name, client in clients.items():
            access = client.access if client is not None else None
            if isinstance(access, Credentials) and (ends := access.expires_at()) is not None:
                self._add(m.CREDENTIAL_EXPIRY, ends, name)
        for (name, outcome), number in sorted(self._hub.renewal.counts.items()):
            if name in fleet.clusters:
                self._add(m.CREDENTIAL_RENEWALS, number, name, outcome)

    def _nodes_by_reason(self) -> Mapping[str, Counter[str]]:
        """The number of nodes by cluster and reason.

        A node that any target publishes counts as published; otherwise its first reason counts.
        """
        registry, fleet = self._hub.registry, self._hub.fleet
        if self._policies[0] is not registry:
            every = (source for target in registry.targets.values() for source in target.sources)
            used = {(SourceKey(source.cluster, source.provider), source.nodes): None for source in every}
            self._policies = registry, tuple(used)
        views: dict[str, list[ViewResult]] = {}
        for key, policy in self._policies[1] if self._hub.writing else ():
            source = fleet.sources.get(key)
            view = source.last_view(policy) if source is not None and key.cluster in fleet.clusters else None
            if view is not None:
                views.setdefault(key.cluster, []).append(view)
        known, self._nodes = self._nodes, {}
        for name, results in sorted(views.items()):
            last = known.get(name)
            if last is None or last[0] != tuple(results):
                last = tuple(results), _count_nodes(results)
            self._nodes[name] = last
        return {name: counts for name, (_, counts) in self._nodes.items()}

    def _sources(self) -> None:
        wall = self._hub.clock.wall()
        failing: dict[tuple[str, str, str], bool] = {}
        success: dict[tuple[str, str, str], float] = {}
        for key, source in self._hub.fleet.sources.items():
            labels = (key.cluster, key.provider.name, source.scope)
            since = source.failing_since
            failing[labels] = failing.get(labels, False) or since is not None
            success[labels] = min(success.get(labels, wall), wall if since is None else since)
        for labels in sorted(failing):
            self._add(m.SOURCE_FAILING, failing[labels], *labels)
            self._add(m.SOURCE_SUCCESS, success[labels], *labels)

    def _providers(self) -> None:
        host = self._hub.host
        for provider, stats in sorted(host.stats.items()):
            self._each(m.PROVIDER_CALLS, stats.outcomes, provider)
            self._tally(m.PROVIDER_SECONDS, stats.seconds, provider)
            self._add(m.PROVIDER_SUSPENDED, host.loops.suspension(provider) is not None, provider)
            self._add(m.PROVIDER_BLOCKED, host.loops.abandoned_threads(provider), provider)
        for provider, name, scope, number in host.measures():
            self._add(m.measured(name), number, provider, scope)

    # --- targets -------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Read the providers' measures, and count changed slices in several rounds of the event loop."""
        await self._hub.host.measure()
        until = time.monotonic() + COUNT_SECONDS
        for key, value in list(self._hub.local.slices.items()):
            self._published.add(key, value)
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + COUNT_SECONDS

    def _endpoints(self) -> None:
        hub, registry, published = self._hub, self._hub.registry, self._published
        for key, value in hub.local.slices.items():
            published.add(key, value)
        published.remove_missing(hub.local.slices)
        for (name, family), sums in sorted(published.clusters.items()):
            self._conditions(m.CLUSTER_ENDPOINTS, sums, name, family)
        slices: Counter[TargetKey] = Counter()
        for (target, family), sums in sorted(published.targets.items()):
            slices[target] += sums.slices
            self._conditions(m.ENDPOINTS, sums, str(target), family)
        for target in sorted(registry.targets):
            service = hub.local.services.get(target)
            for family in service.families if service is not None else ("IPv4",):
                if (target, family) not in published.targets:
                    self._conditions(m.ENDPOINTS, NOTHING, str(target), family)
            self._add(m.SLICES, slices[target], str(target))
        asked_for = registry.targets.keys() | registry.broken_targets.keys()
        self._add(m.ORPHANED_SLICES, sum(number for key, number in slices.items() if key not in asked_for))

    def _conditions(self, metric: m.Metric, sums: Sums, name: str, family: str) -> None:
        for condition, number in zip(m.CONDITIONS, (sums.ready, sums.draining, sums.failed), strict=True):
            self._add(metric, number, name, family, condition)

    def _targets(self) -> None:
        """The results of the passes; only while this process writes, since those of a standby are outdated."""
        if not self._hub.writing:
            return
        for key in sorted(self._hub.registry.targets.keys() | self._hub.registry.broken_targets.keys()):
            last, name = self._hub.reconciler.last(key), str(key)
            if last is None:
                continue
            held = dict.fromkeys(m.GUARD_REASONS, 0)
            for removal in last.withheld.values():
                held[removal.kind] += len(removal.addresses)
            self._each(m.GUARD_WITHHELD, held, name)
            if last.withheld:
                self._add(m.GUARD_SINCE, min(removal.since for removal in last.withheld.values()), name)
            for reason, number in sorted(Counter(finding.reason for finding in last.findings).items()):
                self._add(m.FINDINGS, number, name, reason)
            self._add(m.UNKNOWN_SOURCES, len(last.unknown), name)

    def _probes(self) -> None:
        board = self._hub.board
        self._each(m.PROBES, board.probes)
        standing = {(name, verdict): 0 for name in self._hub.fleet.clusters for verdict in m.VERDICTS}
        for (cluster, verdict), number in sorted({**standing, **board.verdict_counts()}.items()):
            self._add(m.PROBED, number, cluster, verdict)
        self._add(m.PROBER_SUSPECTED, board.suspected)

    # --- work ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        hub = self._hub
        self._each(m.WRITES, hub.writer.writes)
        self._each(m.WRITE_FAILURES, hub.writer.failures)
        self._each(m.SUPPRESSED, hub.reconciler.suppressed)
        self._tally(m.PUBLISH_SECONDS, hub.reconciler.latency.seconds)
        self._each(m.RECONCILES, hub.passes.outcomes)
        self._tally(m.RECONCILE_SECONDS, hub.passes.durations)
        self._add(m.QUEUE_DEPTH, len(hub.queue))
        self._add(m.QUEUE_DELAYED, hub.queue.delayed)
        self._add(m.QUEUE_OLDEST, hub.reconciler.latency.oldest(hub.clock.now()))


def _last_success(cluster: RemoteCluster, wall: float, now: float) -> float:
    """Unix time at which the Nodes were last complete; now while the state is Ready."""
    if cluster.status.state is State.READY:
        return wall
    return wall - (now - (cluster.started_at if cluster.answered_at is None else cluster.answered_at))


def _count_nodes(results: list[ViewResult]) -> Counter[str]:
    reasons: dict[str, str] = {}
    for result in results:
        for name, report in result.reports.items():
            if not report.reason or name not in reasons:
                reasons[name] = report.reason or PUBLISHED
    counts = Counter(reasons.values())
    counts[PUBLISHED] += 0  # the series exists even with 0 nodes
    return counts
