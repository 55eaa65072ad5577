"""Computes the metrics of allocations (:mod:`hub.allocating.metrics_catalog`) at the moment of a scrape.

Imported only if the registry has ``allocations:``. Every replica reports about itself; only the leader reports about
allocations, nodes and clouds. What is gone has no series, since all but the counts is computed from the present state.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from typing import Final

from hub import __version__
from hub.allocating import metrics_catalog as c
from hub.allocating.run import Allocating
from hub.allocations.eligible import misfit
from hub.allocations.spec import LABEL_READY, Allocation, Entry, Status
from hub.allocations.view import NodeKey
from hub.model import LOCAL
from hub.report import probes
from hub.report.collect import Collected, Durations, Row
from hub.report.hub_state import HubState
from hub.report.metrics_catalog import Metric
from hub.runtime.tally import Tally

GCP: Final = "gcp"
"""The provider that ``gcp_api_…`` is about."""
NOT_WAITING: Final = ("Attached", "Released")
"""States of an address that waits for nothing."""


def collect(hub: HubState, allocating: Allocating, environ: Mapping[str, str]) -> Collected:
    """All families of allocations in the catalog's order.

    Args:
        hub: the hub.
        allocating: its allocations.
        environ: CLUSTER_NAME is the label ``cluster`` of the hub cluster, POD_NAME and CONTROLLER_VERSION name this
            replica.
    """
    found = _Collection(allocating, environ.get("CLUSTER_NAME", ""))
    found.controller(hub, environ)
    if allocating.leading:
        found.allocations()
        found.nodes()
        found.moves()
        found.clouds()
    return [
        (Metric(family.name, family.kind, family.help, family.labels), found.rows.get(family.name, []))
        for family in c.FAMILIES
    ]


class _Collection:
    """The series of one scrape."""

    def __init__(self, allocating: Allocating, local: str) -> None:
        self.rows: dict[str, list[Row]] = {}
        self._hub = allocating
        self._local = local
        known = sorted(allocating.known, key=lambda allocation: allocation.name)
        statuses = allocating.records.statuses
        self._known = [(value, found) for value in known if (found := statuses.get(value.name)) is not None]
        """The allocations that a pass of the leader has looked at, with their statuses."""

    def _add(self, family: c.Family, value: float | Durations, *labels: str) -> None:
        self.rows.setdefault(family.name, []).append(Row(labels, value))

    def _cluster(self, name: str) -> str:
        """The value of the label ``cluster``."""
        return self._local if name == LOCAL else name

    # --- this replica --------------------------------------------------------------------------------

    def controller(self, hub: HubState, environ: Mapping[str, str]) -> None:
        """What this replica is, and whether it acts."""
        pod = environ.get("POD_NAME") or socket.gethostname()
        self._add(c.IS_LEADER, self._hub.leading, self._local, pod)
        for family, path in ((c.HEALTHY, "/healthz"), (c.READY, "/readyz")):
            self._add(family, not any((probes.checks(hub, path) or {}).values()), self._local, pod)
        self._add(c.CONTROLLER_INFO, 1, self._local, environ.get("CONTROLLER_VERSION") or __version__, pod)

    # --- allocations -----------------------------------------------------------------------------------

    def allocations(self) -> None:
        """The state of each allocation, and what was done for it."""
        for allocation, status in self._known:
            labels = self._cluster(allocation.cluster), allocation.name
            entries = {entry.address: entry for entry in status.addresses}
            holders = {address: _holder(entries.get(address)) for address in allocation.addresses}
            attached = sum(1 for holder in holders.values() if holder)
            required = 0 if allocation.deleting else allocation.min_attached
            self._add(c.CRD_STATUS, not self._hub.records.failing.get(allocation.name), *labels)
            self._add(c.RESERVED, len(allocation.addresses), *labels)
            self._add(c.ATTACHED, attached, *labels)
            self._add(c.UNATTACHED, max(0, required - attached), *labels)
            for address, holder in holders.items():
                self._add(c.IP_ATTACHED, bool(holder), *labels, address, holder or "none")
            waiting = Counter(_reason(entry) for entry in status.addresses if entry.state not in NOT_WAITING)
            for reason, number in sorted(waiting.items()):
                self._add(c.WAITING, number, *labels, reason)
            self._add(c.WITHHELD, waiting["Withheld"], *labels)
            self._counts(allocation.name, labels)

    def _counts(self, name: str, labels: tuple[str, str]) -> None:
        tallies = self._hub.tallies
        for result in c.STATUSES:
            self._add(c.RECONCILES, tallies.passes.get((name, result), 0), *labels, result)
            self._add(c.ATTACHES, tallies.steps.get((name, "attach", result), 0), *labels, result)
            self._add(c.DETACHES, tallies.steps.get((name, "detach", result), 0), *labels, result)
        if name in tallies.seconds:
            self._add(c.RECONCILE_SECONDS, _durations(tallies.seconds[name]), *labels)

    def nodes(self) -> None:
        """The label and the cordon of the nodes that allocations use or may use."""
        of_cluster: dict[str, list[Allocation]] = {}
        used: set[NodeKey] = set()
        for allocation, status in self._known:
            of_cluster.setdefault(allocation.cluster, []).append(allocation)
            nodes = self._hub.sites.nodes(allocation.cluster)
            for name in sorted(_named(status) & nodes.keys()):
                ready = nodes[name].labels.get(LABEL_READY) == "true"
                self._add(c.NODE_IP_READY, ready, self._cluster(allocation.cluster), name, allocation.name)
                used.add(NodeKey(allocation.cluster, name))
        for cluster, allocations in sorted(of_cluster.items()):
            asked = {(found.selector, found.zones, found.region): found for found in allocations}.values()
            for name, node in sorted(self._hub.sites.nodes(cluster).items()):
                if NodeKey(cluster, name) in used or any(not misfit(node, found) for found in asked):
                    self._add(c.NODE_CORDONED, node.unschedulable, self._cluster(cluster), name)

    # --- moves and clouds ------------------------------------------------------------------------------

    def moves(self) -> None:
        """Durations of moves into the clusters of the registry's accounts."""
        clusters = {cluster for account in self._hub.accounts.values() for cluster in account.spec.clusters}
        for (cluster, cause), tally in sorted(self._hub.tallies.moves.items()):
            if cluster in clusters:
                self._add(c.MOVE_SECONDS, _durations(tally), self._cluster(cluster), cause)

    def clouds(self) -> None:
        """Calls of the providers. The calls of an account count for each of its clusters, since each needs them."""
        for (cluster, provider, operation, error), number in sorted(self._errors().items()):
            self._add(c.CLOUD_ERRORS, number, cluster, provider, operation, error)
            if provider == GCP:
                self._add(c.GCP_ERRORS, number, cluster, operation, error)
        seconds: dict[tuple[str, ...], list[Tally]] = {}
        gcp_seconds: dict[tuple[str, ...], list[Tally]] = {}
        calls: Counter[tuple[str, str]] = Counter()
        for name, account in self._hub.accounts.items():
            provider = account.spec.provider.name
            for (operation, _), number in account.calls.items():
                calls[name, operation] += number
            for operation, tally in account.durations.items():
                seconds.setdefault((provider, operation), []).append(tally)
                for cluster in account.spec.clusters if provider == GCP else ():
                    gcp_seconds.setdefault((self._cluster(cluster), operation), []).append(tally)
        for (name, operation), number in sorted(calls.items()):
            self._add(c.CLOUD_CALLS, number, name, operation)
        for family, found in ((c.CLOUD_SECONDS, seconds), (c.GCP_SECONDS, gcp_seconds)):
            for labels, tallies in sorted(found.items()):
                self._add(family, _durations(*tallies), *labels)

    def _errors(self) -> Counter[tuple[str, str, str, str]]:
        """The number of failed calls by cluster, provider, operation and type of error."""
        errors: Counter[tuple[str, str, str, str]] = Counter()
        for account in self._hub.accounts.values():
            for operation, error in account.calls:
                for cluster in account.spec.clusters:
                    labels = self._cluster(cluster), account.spec.provider.name, operation
                    # A counter that begins with its first error would hide that error from rate().
                    errors.update({(*labels, type_): 0 for type_ in c.ERROR_TYPES})
                    if error:
                        errors[(*labels, _error_type(error))] += account.calls[operation, error]
        return errors


def _holder(entry: Entry | None) -> str:
    """The node that has an address; "" if none has. While the cloud gives no answer, the last known node has it."""
    return entry.node if entry is not None and entry.state in ("Attached", "Leaving", "Unknown") else ""


def _named(status: Status) -> set[str]:
    """The nodes that have an address, had it before, or are about to get it."""
    moves = [entry.move for entry in status.addresses if entry.move is not None]
    return {name for entry in status.addresses for name in (entry.node, entry.last_node)} | {move.to for move in moves}


def _reason(entry: Entry) -> str:
    """Why an address waits."""
    return (entry.reason if entry.state in ("Pending", "Leaving") else "") or entry.state


def _error_type(name: str) -> str:
    if name in c.ERROR_TYPES:
        return name
    return "Timeout" if name == "ProviderStalled" else "TransientProviderError"


def _durations(*tallies: Tally) -> Durations:
    """The sum of tallies with the same bounds."""
    counts = tuple(map(sum, zip(*(tally.counts for tally in tallies), strict=True)))
    return Durations(tallies[0].bounds, counts, sum(tally.sum for tally in tallies))
