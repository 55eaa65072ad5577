"""Computes the metrics of the cloud controller at the moment of a scrape; imported only with a cloud controller.

Every replica reports about itself: a cluster for which another replica acts has duty 0 here and no other series.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from hub.controlling.cluster import ControlledCluster
from hub.controlling.run import Controlling
from hub.report.collect import Collected, Durations, Row
from hub.report.metrics_catalog import Metric
from hub.runtime.tally import Tally

PREFIX: Final = "endpointslice_hub_cloud_"
STATES: Final = ("ready", "working", "waiting", "failing", "withheld", "foreign")

DUTY: Final = Metric(
    PREFIX + "duty", "gauge", "Whether this replica is the cluster's cloud controller, with all rights.", ("cluster",)
)
NODES: Final = Metric(PREFIX + "nodes", "gauge", "Nodes by state.", ("cluster", "state"))
UNINITIALIZED: Final = Metric(
    PREFIX + "nodes_uninitialized", "gauge", "Nodes that the hub has to initialise and has not yet.", ("cluster",)
)
DELETIONS: Final = Metric(PREFIX + "node_deletions_total", "counter", "Nodes deleted.", ("cluster",))
WITHHELD: Final = Metric(
    PREFIX + "node_deletions_withheld", "gauge", "Nodes whose deletion waits for an approval.", ("cluster",)
)
BALANCERS: Final = Metric(PREFIX + "balancers", "gauge", "Load balancers by state.", ("cluster", "state"))
STEPS: Final = Metric(
    PREFIX + "steps_total",
    "counter",
    "Writes to the cloud; error is empty for good ones.",
    ("cluster", "step", "error"),
)
REQUESTS: Final = Metric(
    PREFIX + "requests_total",
    "counter",
    "Calls of the cloud's plugin; error is empty for good ones.",
    ("cloud", "operation", "error"),
)
RATE_LIMITED: Final = Metric(PREFIX + "rate_limited_total", "counter", "Rate limits that a cloud set.", ("cloud",))
ENSURED: Final = Metric(
    PREFIX + "ensure_duration_seconds",
    "histogram",
    "From the first write for a load balancer until it is as wanted.",
    ("cluster",),
)
SYNC: Final = Metric(
    PREFIX + "node_sync_duration_seconds", "histogram", "From a question to the last write to a Node.", ("cluster",)
)
UNTAINTED: Final = Metric(
    PREFIX + "taint_removal_delay_seconds",
    "histogram",
    "From a new Node's first sight until its taint was removed.",
    ("cluster",),
)
LEFTOVERS: Final = Metric(
    PREFIX + "leftovers", "gauge", "Names of objects in the cloud that no Service needs.", ("cluster",)
)
METRICS: Final = (
    DUTY,
    NODES,
    UNINITIALIZED,
    DELETIONS,
    WITHHELD,
    BALANCERS,
    STEPS,
    REQUESTS,
    RATE_LIMITED,
    ENSURED,
    SYNC,
    UNTAINTED,
    LEFTOVERS,
)

SYNCS: Final = Metric(
    "service_controller_loadbalancer_sync_total",
    "counter",
    "Passes over Services, as an effect of changes of Services and nodes.",
)
NODE_FAILURES: Final = Metric(
    "service_controller_nodesync_error_total", "counter", "Passes that failed, as an effect of changes of nodes."
)
NODE_ROUNDS: Final = Metric(
    "service_controller_nodesync_latency_seconds",
    "histogram",
    "From a change of nodes until every Service had a pass after it.",
)
UPDATED: Final = Metric(
    "service_controller_update_loadbalancer_host_latency_seconds",
    "histogram",
    "From the first write for a load balancer whose nodes have changed until it is as wanted.",
)
TAINT_REMOVED: Final = Metric(
    "node_controller_cloud_provider_taint_removal_delay_seconds",
    "histogram",
    "From a Node's creation until its taint was removed.",
)
SYNCED: Final = Metric(
    "node_controller_initial_node_sync_delay_seconds",
    "histogram",
    "The same: the taint is removed last.",
)
ORIGINAL: Final = (SYNCS, NODE_FAILURES, NODE_ROUNDS, UPDATED, TAINT_REMOVED, SYNCED)
"""The metrics of Kubernetes' own cloud controllers that ``hub cloud-controller`` has too."""


def original(cluster: ControlledCluster) -> Collected:
    """The families of ``ORIGINAL``, of the parts that run; names and bounds are those of k8s.io/cloud-provider 0.35."""
    found: list[tuple[Metric, float | Tally]] = []
    if (balancers := cluster.balancers_part) is not None:
        found += [
            (SYNCS, balancers.syncs),
            (NODE_FAILURES, balancers.node_failures),
            (NODE_ROUNDS, balancers.node_rounds),
            (UPDATED, balancers.carrier.updated),
        ]
    if (nodes := cluster.nodes_part) is not None:
        found += [(TAINT_REMOVED, nodes.initialized), (SYNCED, nodes.initialized)]
    return [(metric, [Row((), _durations(value) if isinstance(value, Tally) else value)]) for metric, value in found]


def collect(controlling: Controlling) -> Collected:
    """All families, in the order of ``METRICS``."""
    found = _Collection()
    for cluster in controlling.clusters.values():
        found.cluster(cluster)
    for account in controlling.accounts.values():
        name = account.ref.name
        for (operation, error), number in sorted(account.calls.items()):
            found.add(REQUESTS, number, name, operation, error)
        found.add(RATE_LIMITED, account.rate_limited, name)
    return [(metric, found.rows.get(metric, [])) for metric in METRICS]


class _Collection:
    """The series of one scrape."""

    def __init__(self) -> None:
        self.rows: dict[Metric, list[Row]] = {}

    def add(self, metric: Metric, value: float | Durations, *labels: str) -> None:
        rows = self.rows.setdefault(metric, [])
        for index, row in enumerate(rows):
            if row.labels == labels and isinstance(value, int | float) and isinstance(row.value, int | float):
                rows[index] = Row(labels, row.value + value)  # two accounts of one cloud
                return
        rows.append(Row(labels, value))

    def cluster(self, cluster: ControlledCluster) -> None:
        acts = cluster.halted is None or cluster.halted[0] != "Standby"
        self.add(DUTY, cluster.halted is None and cluster.complete, cluster.name)
        if not acts:
            return
        nodes, balancers = cluster.nodes_part, cluster.balancers_part
        if nodes is not None:
            states = Counter(told.state for told in nodes.told.values())
            for state in STATES:
                self.add(NODES, states[state], cluster.name, state)
            self.add(UNINITIALIZED, nodes.uninitialized, cluster.name)
            self.add(DELETIONS, nodes.deleted, cluster.name)
            self.add(WITHHELD, len(nodes.deletions.withheld), cluster.name)
            self.add(SYNC, _durations(nodes.syncs), cluster.name)
            self.add(UNTAINTED, _durations(nodes.untainted), cluster.name)
        if balancers is not None:
            states = Counter(told.state for told in balancers.told.values())
            for state in STATES:
                self.add(BALANCERS, states[state], cluster.name, state)
            for (step, error), number in sorted(balancers.steps.items()):
                self.add(STEPS, number, cluster.name, step, error)
            self.add(ENSURED, _durations(balancers.carrier.ensured), cluster.name)
            self.add(LEFTOVERS, len(balancers.leftovers), cluster.name)


def _durations(tally: Tally) -> Durations:
    return Durations(tally.bounds, tuple(tally.counts), tally.sum)
