"""Every metric of the hub: its name, type, labels, how many series it can have, and what it says.

One place for the collector, the reference page and the tests. There is no label for nodes or addresses: a
fleet has too many of them, and they come and go. A Service is called ``target`` and a cluster
``source_cluster``, since Prometheus itself puts ``namespace``, ``service`` and often ``cluster`` on whatever it
scrapes.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from hub.observe.remote.status import State

PREFIX: Final = "endpointslice_hub_"

Kind = Literal["gauge", "counter", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    """One metric family.

    Attributes:
        name: in full, ``_total`` included.
        labels: in order.
        series: how many there can be: C clusters, T targets, P provider types of the registry, S scopes.
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
BUILD_INFO = _metric("build_info", "gauge", "1; the hub's version and the owner it writes for", "version owner")
LEADER = _metric("leader", "gauge", "1 where this process writes the shard", "shard", "shards")
LEASE_REMAINING = _metric("lease_remaining_seconds", "gauge", "Until somebody else may write; 0 for a standby")
HUB_CLUSTER_SYNCED = _metric("hub_cluster_synced", "gauge", "1 where Services and slices of the hub cluster are known")
LOOP_STALLS = _metric(
    "loop_stalls_total",
    "counter",
    "Times an event loop stood still: a provider's, or, where provider is empty, the hub's own",
    "provider",
    "P + 1",
)
LOOP_STALL_SECONDS = _metric("loop_stall_seconds_total", "counter", "How long it stood still", "provider", "P + 1")
TASKS = _metric("tasks", "gauge", "Tasks of the event loops; their number follows the clusters, not the hub's age")

# --- the registry --------------------------------------------------------------------------------------
REGISTRY_GENERATION = _metric("registry_generation", "gauge", "Registries accepted since the start, the first included")
REGISTRY_RELOADS = _metric("registry_reloads_total", "counter", "Registries read: accepted or rejected", "outcome", "2")
REGISTRY_REJECTED = _metric(
    "registry_rejected", "gauge", "1 while the file is rejected and the last good registry in force"
)
REGISTRY_ACCEPTED = _metric("registry_last_accepted_timestamp_seconds", "gauge", "When a registry was last accepted")
REGISTRY_BROKEN = _metric("registry_broken_entries", "gauge", "Entries that are frozen for a mistake in them")
REGISTRY_WITHHELD = _metric(
    "registry_withheld_endpoints", "gauge", "Endpoints that would go with what the registry dropped, and are withheld"
)
REGISTRY_CLUSTERS = _metric("registry_clusters", "gauge", "Remote clusters in the registry in force")
REGISTRY_TARGETS = _metric(
    "registry_targets", "gauge", "Targets in the registry in force, copies by annotation included"
)

# --- clusters ------------------------------------------------------------------------------------------
CLUSTER_STATE = _metric(
    "cluster_state", "gauge", "1 for the state a cluster is in", "source_cluster state", f"{len(STATES)} C"
)
CLUSTER_SINCE = _metric(
    "cluster_state_since_timestamp_seconds", "gauge", "When it got into that state", "source_cluster", "C"
)
CLUSTER_SUCCESS = _metric(
    "cluster_last_success_timestamp_seconds",
    "gauge",
    "The last moment at which its Nodes were known completely; before the first, when the hub began to ask",
    "source_cluster",
    "C",
)
CLUSTER_NODES = _metric(
    "cluster_nodes",
    "gauge",
    "Its nodes by why they are not published; the reason published for those that are",
    "source_cluster reason",
    "at most 14 C",
)
CLUSTER_ENDPOINTS = _metric(
    "cluster_endpoints",
    "gauge",
    "Endpoints published of it, over all targets",
    "source_cluster family condition",
    f"{2 * len(CONDITIONS)} C",
)
CREDENTIAL_EXPIRY = _metric(
    "credential_expiry_timestamp_seconds",
    "gauge",
    "When the credential of a cluster ends by its own date; local is the hub cluster",
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
    "unreachable_policies_suspended", "gauge", "1 while so many clusters are unreachable that the hub is the suspect"
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
    "The last moment at which the provider of a source did not fail",
    "source_cluster provider scope",
    "sources of the registry",
)
PROVIDER_CALLS = _metric(
    "provider_calls_total",
    "counter",
    "Calls into providers by outcome; snapshots of one that watches count as answers",
    "provider outcome",
    "6 P",
)
PROVIDER_SECONDS = _metric(
    "provider_call_duration_seconds", "histogram", "How long a call of resolve took", "provider", "13 P"
)
PROVIDER_SUSPENDED = _metric(
    "provider_suspended", "gauge", "1 while a provider is not called because it blocked", "provider", "P"
)
PROVIDER_BLOCKED = _metric(
    "provider_blocked_threads", "gauge", "Threads of a provider that block and were left behind", "provider", "P"
)

# --- targets -------------------------------------------------------------------------------------------
ENDPOINTS = _metric(
    "endpoints",
    "gauge",
    "Endpoints published for a target, of all sources",
    "target family condition",
    f"{2 * len(CONDITIONS)} T",
)
SLICES = _metric("slices", "gauge", "Slices of a target that this owner has", "target", "T")
ORPHANED_SLICES = _metric(
    "orphaned_slices", "gauge", "Slices of this owner whose Service the registry does not name (any more)"
)
GUARD_WITHHELD = _metric(
    "guard_withheld_endpoints",
    "gauge",
    "Endpoints the guard keeps although they would go; 0 where it holds nothing",
    "target reason",
    f"{len(GUARD_REASONS)} T",
)
GUARD_SINCE = _metric(
    "guard_withheld_since_timestamp_seconds", "gauge", "Since when the guard holds something", "target", "T"
)
FINDINGS = _metric(
    "findings", "gauge", "What was found in a target's last pass", "target reason", "at most 40 T, only those found"
)
UNKNOWN_SOURCES = _metric("unknown_sources", "gauge", "Sources of a target that make no statement", "target", "T")

# --- probes --------------------------------------------------------------------------------------------
PROBES = _metric("probes_total", "counter", "Probes by outcome: passed, timeout, failed", "outcome", "3")
PROBED = _metric(
    "probed_addresses", "gauge", "Addresses that are probed, by verdict", "source_cluster verdict", "3 (C + 1)"
)
PROBER_SUSPECTED = _metric("prober_suspected", "gauge", "1 while failures count for nothing: the prober is the suspect")

# --- work ----------------------------------------------------------------------------------------------
WRITES = _metric("writes_total", "counter", "Slices written: requests that succeeded", "operation", "3")
WRITE_FAILURES = _metric(
    "write_failures_total", "counter", "Writes the API server refused: conflicts, too", "operation", "3"
)
SUPPRESSED = _metric(
    "writes_suppressed_total",
    "counter",
    "Passes that wrote nothing: unchanged, contended (another writer keeps changing the slices)",
    "reason",
    "2",
)
PUBLISH_SECONDS = _metric(
    "change_to_publish_seconds",
    "histogram",
    "From the arrival of a change (an event, a provider's answer, a verdict) to the end of the write that carries it",
    "",
    "17",
)
RECONCILES = _metric("reconciles_total", "counter", "Passes over a target by outcome", "outcome", "4")
RECONCILE_SECONDS = _metric(
    "reconcile_duration_seconds", "histogram", "How long a pass took, its writes included", "", "17"
)
QUEUE_DEPTH = _metric("queue_depth", "gauge", "Targets that wait for a pass")
QUEUE_DELAYED = _metric("queue_delayed", "gauge", "Targets with a pass later on: timers and retries")
QUEUE_OLDEST = _metric(
    "queue_oldest_seconds", "gauge", "How long the oldest change has not been published or dismissed"
)

METRICS: Final = tuple(_all)
"""In the order of the reference."""

PROVIDER_PREFIX: Final = PREFIX + "provider_"
PROVIDER_LABELS: Final = ("provider", "scope")
"""Of what providers measure themselves; see ``HubContext.measure``."""


def measured(name: str) -> Metric:
    """The family of a number that a provider shows."""
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(PROVIDER_PREFIX + name, kind, "Counted by the provider itself", PROVIDER_LABELS)
