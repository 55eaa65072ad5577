"""The reference of the metrics in Markdown, from the catalog.

``python -m hub.report.metrics_reference`` in the repository's root writes docs/reference/metrics.md anew; a test
holds it current.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hub.report.metrics_catalog import METRICS

_INTRO: Final = """\
# Metrics

`hub run` answers `/metrics` where the status page is (`--listen`), and on an address of its own with
`--metrics-bind-address`. The latter asks nobody who he is: bind it to loopback, or keep strangers out by a
NetworkPolicy. The format is Prometheus' text format, or OpenMetrics for those who ask for it. This page is generated
from the code. [The alerts](../runbooks/index.md) and the Grafana dashboard (`dashboards/dashboard.json`
in the chart's `files/`) are made of these metrics.

## Rules

- **Labels**: `target` is a Service of the hub cluster (`namespace/name`), `source_cluster` a cluster of the registry.
  They are not called `namespace`, `service` and `cluster`, since Prometheus puts these on what it scrapes.
- **Replicas**: every replica answers. Gauges of the hub cluster and of the remote ones are the same on all that are in
  sync, so aggregate with `max without (instance, pod)`; what only the leader knows (the guard, findings, nodes by
  reason, probes) is missing or 0 elsewhere. Counters are each process's own: `sum without (instance, pod)`.
- **Cardinality**: no label has a node, an address, a message or anything else that a remote cluster chooses. The column
  *series* says how many there can be with C clusters, T targets and P provider types in the registry. 200 clusters
  and 100 targets are at most some 14,000 series, most of them absent. What a provider measures itself is bounded to 20
  names and 1,000 scopes each.
- **Removed** clusters and targets are gone from the next scrape on. Counters go on for as long as the process.
- **Times** are Unix times in seconds (`_timestamp_seconds`), durations are seconds (`_seconds`).
- The `process_…` metrics of Prometheus' client library come with them: memory, CPU time, open files, start time.
"""

_PROVIDERS: Final = """\
## What providers measure

A provider may show numbers of its own: `endpointslice_hub_provider_NAME{provider, scope}`, a counter where NAME ends in
`_total` and a gauge otherwise. `scope` is what the number is about, such as a data center. [Writing a
provider](../plugins/index.md#hubcontext) says how. The `ionos` provider has:

| metric | type | meaning |
|---|---|---|
| `endpointslice_hub_provider_api_requests_total` | counter | requests sent, by API address |
| `endpointslice_hub_provider_api_rate_limited_total` | counter | of these, answered 429 |
| `endpointslice_hub_provider_api_rate_limit_remaining` | gauge | requests left, as the API last said |
| `endpointslice_hub_provider_lists_total` | counter | complete lists, by data center or node pool |
| `endpointslice_hub_provider_list_failures_total` | counter | lists that failed |
| `endpointslice_hub_provider_early_lists_total` | counter | lists asked for early, since a node was in none |
| `endpointslice_hub_provider_list_interval_seconds` | gauge | from one list to the next; more when limited |
"""


def text() -> str:
    """The whole page."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} "
        f"| {each.series} | {each.help} |"
        for each in METRICS
    ]
    table = ["| metric | type | labels | series | meaning |", "|---|---|---|---|---|", *rows]
    return "\n".join([_INTRO, "## The metrics", "", *table, "", _PROVIDERS])


def main() -> None:
    """Write the page below the current folder."""
    Path("docs/reference/metrics.md").write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
