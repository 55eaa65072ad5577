"""Every metric of the hub: name, type, labels, number of series, and help text.

The collector, the reference page and the tests use this catalog. No label has nodes or addresses as values, since a
fleet has too many of them and they change. The labels are called ``target`` and ``source_cluster`` because Prometheus
itself adds ``namespace``, ``service`` and often ``cluster``.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from hub.observe.remote.status import State

PREFIX: Final = "endpointslice_hub_"

Kind = Literal["gauge", "counter", "histogram", "info"]


class Metric(msgspec.Struct, frozen=True):
    """One metric family.

    Attributes:
        name: full name, including ``_total``.
        labels: names of the labels, in order.
        series: largest number of series, with C clusters, T targets and P provider types in the registry.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    series: str = "1"


_all: list[Metric] = []


def _metric(name: str, kind: Kind, text: str, labels: str = "", series: str = "1") -> Metric:
    made = Metric(PREFIX + name, kind, text, tuple(labels.split()), series)
    _all.append(made)
    return made


STATES: Final = tuple(State)
CONDITIONS: Final = ("ready", "draining", "failed")
VERDICTS: Final = ("healthy", "unhealthy", "unknown")
GUARD_REASONS: Final = ("EmptyResultHeld", "FilteredEmpty", "RemovalWithheld")

# --- the process ---------------------------------------------------------------------------------------
BUILD_INFO = _metric("build_info", "gauge", "Always 1; the labels are the hub's version and owner", "version owner")
LEADER = _metric("leader", "gauge", "1 if this process writes the shard", "shard", "shards")
LEASE_REMAINING = _metric(
    "lease_remaining_seconds", "gauge", "Time until this process must stop writing; 0 on a standby"
)
HUB_CLUSTER_SYNCED = _metric("hub_cluster_synced", "gauge", "1 if Services and slices of the hub cluster are known")
LOOP_STALLS = _metric(
    "loop_stalls_total",
    "counter",
    "Stalls of an event loop: of a provider, or of the hub if provider is empty",
    "provider",
    "P + 1",
)
LOOP_STALL_SECONDS = _metric("loop_stall_seconds_total", "counter", "Total time of these stalls", "provider", "P + 1")
TASKS = _metric(
    "tasks", "gauge", "Tasks of all event loops; the number depends on the registry and should not grow over time"
)

# --- the registry --------------------------------------------------------------------------------------
REGISTRY_GENERATION = _metric(
    "registry_generation", "gauge", "Registries accepted since the start, including the first"
)
REGISTRY_RELOADS = _metric("registry_reloads_total", "counter", "Registries read: accepted or rejected", "outcome", "2")
REGISTRY_REJECTED = _metric(
    "registry_rejected", "gauge", "1 while the file is rejected and the last good registry is in force"
)
REGISTRY_ACCEPTED = _metric("registry_last_accepted_timestamp_seconds", "gauge", "When a registry was last accepted")
REGISTRY_BROKEN = _metric("registry_broken_entries", "gauge", "Entries that are frozen because of a mistake in them")
REGISTRY_WITHHELD = _metric(
    "registry_withheld_endpoints", "gauge", "Endpoints whose removal from the registry is withheld"
)
REGISTRY_CLUSTERS = _metric("registry_clusters", "gauge", "Remote clusters in the registry in force")
REGISTRY_TARGETS = _metric(
    "registry_targets", "gauge", "Targets in the registry in force, including copies by annotation"
)

# --- clusters ------------------------------------------------------------------------------------------
CLUSTER_STATE = _metric(
    "cluster_state",
    "gauge",
    "1 for the cluster's present state, 0 for all others",
    "source_cluster state",
    f"{len(STATES)} C",
)
CLUSTER_SINCE = _metric(
    "cluster_state_since_timestamp_seconds", "gauge", "When the cluster's state last changed", "source_cluster", "C"
)
CLUSTER_SUCCESS = _metric(
    "cluster_last_success_timestamp_seconds",
    "gauge",
    "When the cluster's Nodes were last completely known; before that, when the hub began to follow the cluster",
    "source_cluster",
    "C",
)
CLUSTER_NODES = _metric(
    "cluster_nodes",
    "gauge",
    "Nodes of the cluster by the reason why they are not published; reason published: they are published",
    "source_cluster reason",
    "at most 14 C",
)
CLUSTER_ENDPOINTS = _metric(
    "cluster_endpoints",
    "gauge",
    "Published endpoints of the cluster in all targets",
    "source_cluster family condition",
    f"{2 * len(CONDITIONS)} C",
)
CREDENTIAL_EXPIRY = _metric(
    "credential_expiry_timestamp_seconds",
    "gauge",
    "When the cluster's credential expires; local is the hub cluster",
    "source_cluster",
    "C + 1",
)
CREDENTIAL_RENEWALS = _metric(
    "credential_renewals_total",
    "counter",
    "Attempts to renew the token that hub cluster add made, by outcome: succeeded, failed",
    "source_cluster outcome",
    "2 C",
)
SUSPENDED = _metric(
    "unreachable_policies_suspended",
    "gauge",
    "1 while unreachable policies are suspended, since so many clusters are unreachable",
)

# --- providers -----------------------------------------------------------------------------------------
SOURCE_FAILING = _metric(
    "source_failing",
    "gauge",
    "1 while the provider of a source fails",
    "source_cluster provider scope",
    "sources of the registry",
)
SOURCE_SUCCESS = _metric(
    "source_last_success_timestamp_seconds",
    "gauge",
    "When the provider of a source last worked; the present time while it works",
    "source_cluster provider scope",
    "sources of the registry",
)
PROVIDER_CALLS = _metric(
    "provider_calls_total",
    "counter",
    "Calls into providers by outcome; each snapshot of a watch counts as answered",
    "provider outcome",
    "6 P",
)
PROVIDER_SECONDS = _metric(
    "provider_call_duration_seconds", "histogram", "Duration of calls of resolve", "provider", "13 P"
)
PROVIDER_SUSPENDED = _metric(
    "provider_suspended", "gauge", "1 while a provider is suspended because it blocked", "provider", "P"
)
PROVIDER_BLOCKED = _metric(
    "provider_blocked_threads", "gauge", "Abandoned threads of a provider that still block", "provider", "P"
)

# --- targets -------------------------------------------------------------------------------------------
ENDPOINTS = _metric(
    "endpoints",
    "gauge",
    "Published endpoints of a target, from all sources",
    "target family condition",
    f"{2 * len(CONDITIONS)} T",
)
SLICES = _metric("slices", "gauge", "Slices of a target with this hub's owner", "target", "T")
ORPHANED_SLICES = _metric(
    "orphaned_slices", "gauge", "Slices with this hub's owner whose Service is not in the registry"
)
GUARD_WITHHELD = _metric(
    "guard_withheld_endpoints",
    "gauge",
    "Endpoints whose removal the guard withholds",
    "target reason",
    f"{len(GUARD_REASONS)} T",
)
GUARD_SINCE = _metric(
    "guard_withheld_since_timestamp_seconds",
    "gauge",
    "When the guard began to withhold; absent if it withholds nothing",
    "target",
    "T",
)
FINDINGS = _metric(
    "findings", "gauge", "Findings of a target's last pass", "target reason", "at most 40 T, only those found"
)
UNKNOWN_SOURCES = _metric("unknown_sources", "gauge", "Sources of a target that are unknown", "target", "T")

# --- probes --------------------------------------------------------------------------------------------
PROBES = _metric("probes_total", "counter", "Probes by outcome: passed, timeout, failed", "outcome", "3")
PROBED = _metric("probed_addresses", "gauge", "Probed addresses by verdict", "source_cluster verdict", "3 (C + 1)")
PROBER_SUSPECTED = _metric(
    "prober_suspected", "gauge", "1 while failed probes are ignored, since the prober itself probably fails"
)

# --- work ----------------------------------------------------------------------------------------------
WRITES = _metric("writes_total", "counter", "Successful writes of slices", "operation", "3")
WRITE_FAILURES = _metric(
    "write_failures_total", "counter", "Writes that the API server refused, including conflicts", "operation", "3"
)
SUPPRESSED = _metric(
    "writes_suppressed_total",
    "counter",
    "Passes that wrote nothing: unchanged, or contended (another writer keeps changing the slices)",
    "reason",
    "2",
)
PUBLISH_SECONDS = _metric(
    "change_to_publish_seconds",
    "histogram",
    "Time from the arrival of a change (an event, a provider's answer, a verdict) to the end of its write",
    "",
    "17",
)
RECONCILES = _metric("reconciles_total", "counter", "Passes over a target by outcome", "outcome", "4")
RECONCILE_SECONDS = _metric(
    "reconcile_duration_seconds", "histogram", "Duration of passes, including their writes", "", "17"
)
QUEUE_DEPTH = _metric("queue_depth", "gauge", "Targets that wait for a pass")
QUEUE_DELAYED = _metric("queue_delayed", "gauge", "Targets whose next pass is scheduled by a timer or retry")
QUEUE_OLDEST = _metric("queue_oldest_seconds", "gauge", "Age of the oldest change that is not processed")

METRICS: Final = tuple(_all)
"""All metrics, in the order of the reference page."""

PROVIDER_PREFIX: Final = PREFIX + "provider_"
PROVIDER_LABELS: Final = ("provider", "scope")
"""Labels of a provider's own measures, see ``HubContext.measure``."""


def measured(name: str) -> Metric:
    """The metric family of a provider's own measure."""
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(PROVIDER_PREFIX + name, kind, "Measured by the provider", PROVIDER_LABELS)
