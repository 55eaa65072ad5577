"""Writes the reference of the metrics, docs/reference/metrics.md, from the catalog.

Run ``python -m hub.report.metrics_reference`` in the repository's root; a test fails if the page is not current.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hub.allocating.metrics_catalog import ERROR_TYPES, FAMILIES, OPERATIONS, ORIGINAL, Family
from hub.report.collect_clouds import METRICS as CLOUD_METRICS
from hub.report.collect_clouds import ORIGINAL as CLOUD_ORIGINAL
from hub.report.metrics_catalog import METRICS, Metric

_INTRO: Final = """\
# Metrics

`hub run` serves `/metrics` on the address of the status page (`--listen`), and on a separate address with
`--metrics-bind-address`. The separate address has no authentication: bind it to loopback, or restrict access with a
NetworkPolicy. The format is Prometheus' text format, or OpenMetrics if the `Accept` header names it. This page is
generated from the code. [The alerts](../runbooks/index.md) and the Grafana dashboard (`dashboards/dashboard.json` in
the chart's `files/`) use these metrics.

## Rules

- **Labels**: `target` is a Service of the hub cluster (`namespace/name`), `source_cluster` a cluster of the registry.
  They are not called `namespace`, `service` and `cluster`, since Prometheus adds labels of these names to every target.
- **Replicas**: every replica serves metrics. Gauges about clusters are the same on all replicas that are in sync, so
  aggregate with `max without (instance, pod)`. Metrics that only the leader knows (the guard, findings, nodes by
  reason, probes) are missing or 0 on other replicas. Counters belong to one process: `sum without (instance, pod)`.
- **Cardinality**: apart from [allocations](#allocations), no label has a node, an address, a message or another value
  that a remote cluster chooses. The column *series* is the largest number of series with C clusters, T targets and P
  provider types in the registry. 200 clusters and 100 targets have at most about 14,000 series, most of them absent. A
  provider's own measures are limited to 20 names with 1,000 scopes each.
- **Removed** clusters and targets are absent from the next scrape. Counters are kept until the process ends.
- **Times** are Unix times in seconds (`_timestamp_seconds`), durations are seconds (`_seconds`).
- The `process_…` metrics of Prometheus' client library are included: memory, CPU time, open files, start time.
"""

_PROVIDERS: Final = """\
## Measures of providers

A provider may have metrics of its own: `endpointslice_hub_provider_NAME{provider, scope}`, a counter if NAME ends in
`_total` and otherwise a gauge. `scope` is the subject of the number, such as a data center. See [writing a
provider](../plugins/index.md#hubcontext). The `ionos` provider has:

| metric | type | meaning |
|---|---|---|
| `endpointslice_hub_provider_api_requests_total` | counter | requests sent, by API address |
| `endpointslice_hub_provider_api_rate_limited_total` | counter | of these, answered 429 |
| `endpointslice_hub_provider_api_rate_limit_remaining` | gauge | requests left, according to the API's last answer |
| `endpointslice_hub_provider_lists_total` | counter | complete lists, by data center or node pool |
| `endpointslice_hub_provider_list_failures_total` | counter | lists that failed |
| `endpointslice_hub_provider_early_lists_total` | counter | early lists, since a node was not in the last one |
| `endpointslice_hub_provider_list_interval_seconds` | gauge | time between lists; longer when rate limited |
"""

_ALLOCATIONS: Final = f"""\
## Allocations

A hub whose registry has `allocations:` also serves these metrics. The first {len(ORIGINAL)} have the names, types,
labels and buckets of ip-address-controller 1.1.0, and the label `cluster` in addition.

- **`cluster`** is the cluster whose nodes get the addresses (`spec.cluster`). For the hub cluster it is the environment
  variable `CLUSTER_NAME`, or empty. The calls of an account count for each of its clusters.
- **Replicas**: every replica serves `netipallocation_controller_…`. Only the leader serves the others.
- **Removed**: series of an allocation, an address or a node that is gone are absent from the next scrape, and so are
  the counters of that allocation.
- **Unknown**: while a cloud gives no answer, the addresses count as attached to their last known nodes, and
  `netipallocation_waiting` counts them with the reason `Unknown`.
- **Nodes**: `netipallocation_node_ip_ready` has the nodes that have an address of the allocation, had it before, or are
  about to get it. `netipallocation_node_cordoned` also has all nodes that an allocation selects.
- `status` is `success` or `error`. A pass is an error if it fails, or if `netipallocation_crd_status` is 0 after it.
- `operation` is one of {", ".join(f"`{name}`" for name in OPERATIONS)}; `error_type` is one of
  {", ".join(f"`{name}`" for name in ERROR_TYPES)}.
"""

_CLOUDS: Final = """\
## Cloud controller

A hub with `cloud:` at a cluster, and `hub cloud-controller`, also serve these metrics. Every replica reports about
itself: a cluster for which another replica acts has duty 0 and no other series.

| metric | type | labels | meaning |
|---|---|---|---|"""
_CONTROLLER: Final = """\
`hub cloud-controller` also serves these, with the names and buckets of Kubernetes' own cloud controllers
(k8s.io/cloud-provider 0.35):

| metric | type | labels | meaning |
|---|---|---|---|"""


def text() -> str:
    """The whole page in Markdown."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {metric.series} | {metric.help} |"
        for metric in METRICS
    ]
    table = ["| metric | type | labels | series | meaning |", "|---|---|---|---|---|", *rows]
    allocations = [_ALLOCATIONS, *map(_line, FAMILIES), ""]
    clouds = [_CLOUDS, *map(_row, CLOUD_METRICS), "", _CONTROLLER, *map(_row, CLOUD_ORIGINAL), ""]
    return "\n".join([_INTRO, "## The metrics", "", *table, "", _PROVIDERS, *allocations, *clouds])


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help.removesuffix('.')} |"


def _line(family: Family) -> str:
    """The row of a family of allocations."""
    head = ["| metric | type | labels | meaning |", "|---|---|---|---|"] if family is FAMILIES[0] else []
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return "\n".join([*head, f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"])


def main() -> None:
    """Write the page, relative to the current folder."""
    Path("docs/reference/metrics.md").write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
