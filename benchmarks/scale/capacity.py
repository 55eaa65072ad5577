"""Computes what a fleet needs from measured constants: docs/fleet-size.md. Pure, except for the command.

    python -m benchmarks.scale.capacity                       print the tables
    python -m benchmarks.scale.capacity --fit FILE… --write   write constants from saved runs, and tables, to docs/

The constants are in docs/data/constants.json; everything else is computed from them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.report import replace_block
from benchmarks.scale.report import OFTEN, REPLACED_OFTEN
from hub.cli.limits import BASE, HIGHEST_LIMIT, PER_CLUSTER
from hub.registry.file import MAX_BYTES
from hub.registry.isolated import CPU_SECONDS

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = DOCS / "fleet-size.md"
FILE: Final = DOCS / "data" / "constants.json"
BEGIN, END = "<!-- {}: begin (python -m benchmarks.scale.capacity --write) -->", "<!-- {}: end -->"
PER_SLICE: Final = 100
"""Endpoints per slice, by default."""
REGISTRY_MIB: Final = MAX_BYTES >> 20
"""A larger clusters.yaml is not read."""
REPORT_KIB: Final = 12.0
"""Size of a node's report."""


class Constant(NamedTuple):
    """The unit and the meaning of a constant."""

    unit: str
    meaning: str


CONSTANTS: Final[Mapping[str, Constant]] = {
    "base_mib": Constant("MiB", "memory of a hub without clusters"),
    "cluster_kib": Constant("KiB", "memory of a remote cluster: connection, TLS, tasks"),
    "node_kib": Constant("KiB", "memory of a Node, its address and its endpoint"),
    "slice_kib": Constant("KiB", "memory of a slice of 100 endpoints and of its Service"),
    "report_ms": Constant("ms", "CPU of a node's report that changes nothing"),
    "base_idle_ms": Constant("ms/s", "CPU of a hub without clusters"),
    "cluster_idle_ms": Constant("ms/s", "CPU of a cluster in which nothing happens"),
    "write_ms": Constant("ms", "CPU of a slice written, from the node's event to the echo of the write"),
    "cluster_start_ms": Constant("ms", "CPU of the start for a cluster of 100 nodes and 4 Services"),
    "server_write_ms": Constant("ms", "CPU of API server and etcd for a slice written"),
    "slice_stored_kib": Constant("KiB", "a slice of 100 endpoints in etcd"),
    "entry_bytes": Constant("bytes", "a cluster or a Service in clusters.yaml"),
    "check_ms": Constant("ms", "CPU of reading a cluster and its 4 Services in clusters.yaml, in a process of its own"),
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet.

    Attributes:
        nodes: nodes per cluster.
        services: Services per cluster; each publishes all its nodes.
        report: seconds between two reports of a node.
        replaced: share of all nodes that is replaced per hour.
        shards: processes that share the Services; each follows only the clusters of its own Services.
    """

    clusters: int
    nodes: int = 100
    services: int = 4
    report: float = 300.0
    replaced: float = 0.01
    shards: int = 1

    def __str__(self) -> str:
        parts = f"{self.clusters:,} clusters"
        return parts if self.shards == 1 else f"{parts}, {self.shards} shards"


FLEETS: Final = (Fleet(500), Fleet(1000), Fleet(5000), Fleet(5000, shards=10))


class Need(NamedTuple):
    """The required amount of one resource."""

    name: str
    value: float
    text: str


def needs(fleet: Fleet, constants: Mapping[str, float]) -> list[Need]:
    """Return what each process needs, then the load of all processes on the hub cluster."""
    c = constants
    clusters = math.ceil(fleet.clusters / fleet.shards)
    nodes = clusters * fleet.nodes
    slices = clusters * fleet.services * math.ceil(fleet.nodes / PER_SLICE)
    stored = fleet.clusters * fleet.services * math.ceil(fleet.nodes / PER_SLICE) * c["slice_stored_kib"] / 1024
    # A replacement is two writes for each Service of the cluster: one adds the new node, one removes the old one.
    writes = fleet.clusters * fleet.nodes * fleet.replaced / 3600 * 2 * fleet.services
    busy = c["base_idle_ms"] + nodes / fleet.report * c["report_ms"] + clusters * c["cluster_idle_ms"]
    busy += writes / fleet.shards * c["write_ms"]
    memory = c["base_mib"] + (clusters * c["cluster_kib"] + nodes * c["node_kib"] + slices * c["slice_kib"]) / 1024
    start = clusters * c["cluster_start_ms"] / 1000
    files = BASE + PER_CLUSTER * clusters
    traffic = nodes / fleet.report * REPORT_KIB * 8 / 1000
    registry = fleet.clusters * (1 + fleet.services) * c["entry_bytes"] / (1 << 20)
    check = fleet.clusters * c["check_ms"] / 1000
    return [
        Need("memory of each process", memory, f"{memory:,.0f} MiB"),
        Need("CPU of each process", busy / 10, f"{busy / 10:,.1f} % of a core"),
        Need("CPU time of a start", start, f"{start:,.0f} s"),
        Need("watches of each process", clusters, f"{clusters:,}"),
        Need("open files of each process", files, f"{files:,}"),
        Need(
            "node reports, each process", nodes / fleet.report, f"{nodes / fleet.report:,.0f}/s, {traffic:,.0f} Mbit/s"
        ),
        Need("clusters.yaml", registry, f"{registry:,.1f} MiB"),
        Need("CPU time of an edit's check", check, f"{check:,.1f} s"),
        Need(
            "slices in the hub cluster", slices * fleet.shards, f"{slices * fleet.shards:,}, {stored:,.0f} MiB in etcd"
        ),
        Need(
            "slices written",
            writes,
            f"{writes:,.1f}/s, {writes * c['slice_stored_kib'] * 3.6 / 1.024:,.0f} MiB/h in etcd",
        ),
        Need("API server and etcd for these", writes, f"{writes * c['server_write_ms'] / 10:,.1f} % of a core"),
    ]


def limits(constants: Mapping[str, float], memory_mib: float = 4096, start_s: float = 60) -> list[tuple[str, int]]:
    """Return the limits of one process, with the number of clusters (100 nodes, 4 Services) that reach each; sorted."""
    c, one = constants, Fleet(1)
    per_cluster = c["cluster_kib"] + one.nodes * c["node_kib"] + one.services * c["slice_kib"]
    per_second = one.nodes / one.report * c["report_ms"] + c["cluster_idle_ms"]
    found = [
        (f"a start of {start_s:g} s", start_s * 1000 / c["cluster_start_ms"]),
        (f"clusters.yaml of {REGISTRY_MIB} MiB", REGISTRY_MIB * (1 << 20) / ((1 + one.services) * c["entry_bytes"])),
        (f"{CPU_SECONDS} s of CPU to check clusters.yaml", CPU_SECONDS * 1000 / c["check_ms"]),
        (f"memory of {memory_mib / 1024:g} GiB", (memory_mib - c["base_mib"]) * 1024 / per_cluster),
        ("half a core while nothing changes", (500 - c["base_idle_ms"]) / per_second),
        (f"{HIGHEST_LIMIT:,} open files", (HIGHEST_LIMIT - BASE) / PER_CLUSTER),
    ]
    return sorted(((name, int(clusters)) for name, clusters in found), key=lambda limit: limit[1])


# --- constants from runs -----------------------------------------------------------------------------


def fit(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compute the constants from saved runs. Constants that need other runs are left out."""
    found = _memory(runs)
    usual = Fleet(1)
    reports, idle, starts, writes, served = [], [], [], [], []
    for run in runs:
        phases = run["phases"]
        if {"idle", OFTEN} <= phases.keys():
            few, many = phases["idle"], phases[OFTEN]
            report = (many["hub_cpu"] - few["hub_cpu"]) * 10 / (many["reports_per_s"] - few["reports_per_s"])
            reports.append(report)
            idle.append((run["clusters"], few["hub_cpu"] * 10 - few["reports_per_s"] * report))
            if churned := phases.get(REPLACED_OFTEN):
                rate = churned["writes"] / churned["seconds"]
                writes.append((churned["hub_cpu"] - few["hub_cpu"]) * 10 / rate)
                server = sum(churned["cpu"][process] - few["cpu"][process] for process in ("kube-apiserver", "etcd"))
                served.append(server * 10 / rate)
        if (run["nodes"], run["services"]) == (usual.nodes, usual.services):
            starts.append((run["clusters"], phases["start"]["cpu_s"] * 1000))
    samples = {"report_ms": reports, "write_ms": writes, "server_write_ms": served}
    found |= {name: statistics.median(values) for name, values in samples.items() if values}
    if (line := _line(idle)) is not None:
        found |= {"cluster_idle_ms": line[0], "base_idle_ms": line[1]}
    if (line := _line(starts)) is not None:
        found["cluster_start_ms"] = line[0]
    return {name: round(value, 3) for name, value in found.items()}


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Fit a line. Returns the value per cluster and without clusters; None if all fleets have the same size."""
    if len({clusters for clusters, _ in points}) < 2:
        return None
    fitted = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return fitted.slope, fitted.intercept


def _memory(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Fit the peaks to clusters, nodes and slices. Returns nothing if the runs do not differ enough."""
    rows, peaks = [], []
    for run in runs:
        if (peak := run["phases"].get("start", {}).get("peak_mib")) is None:
            continue
        nodes, services = run["clusters"] * run["nodes"], run["clusters"] * run["services"]
        # A slice takes memory in proportion to its endpoints.
        slices = services * max(1.0, run["nodes"] / PER_SLICE)
        rows.append([1024.0, run["clusters"], nodes, slices])
        peaks.append(peak * 1024)
    found = least_squares(rows, peaks)
    if found is not None and found[-1] < 0:  # memory peaks during a start before slices exist
        found = least_squares([row[:-1] for row in rows], peaks)
        found = None if found is None else [*found, 0.0]
    names = ("base_mib", "cluster_kib", "node_kib", "slice_kib")
    return {} if found is None else dict(zip(names, found, strict=True))


def least_squares(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float] | None:
    """Return the x that minimizes |rows · x - wanted|², by the normal equations; None if there are several."""
    if not rows:
        return None
    size = len(rows[0])
    # Scale the columns, because their sizes are very different.
    scale = [max(abs(row[k]) for row in rows) or 1.0 for k in range(size)]
    scaled = [[row[k] / scale[k] for k in range(size)] for row in rows]
    lines = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)]
        + [sum(row[i] * want for row, want in zip(scaled, wanted, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(lines[k][i]))
        if abs(lines[pivot][i]) < 1e-9:
            return None
        lines[i], lines[pivot] = lines[pivot], lines[i]
        for k in range(size):
            if k != i:
                factor = lines[k][i] / lines[i][i]
                lines[k] = [a - factor * b for a, b in zip(lines[k], lines[i], strict=True)]
    return [lines[i][size] / lines[i][i] / scale[i] for i in range(size)]


# --- the page ------------------------------------------------------------------------------------------


def tables(constants: Mapping[str, float]) -> dict[str, str]:
    """Return the blocks of the page, by the name in their marks."""
    rows = [f"| `{name}` | {constants[name]:g} {one.unit} | {one.meaning} |" for name, one in CONSTANTS.items()]
    head = ["| constant | measured | what it is |", "|---|---|---|"]
    columns = [needs(fleet, constants) for fleet in FLEETS]
    lines = [f"| {' | '.join([row[0].name, *(need.text for need in row)])} |" for row in zip(*columns, strict=True)]
    fleets = ["| | " + " | ".join(map(str, FLEETS)) + " |", "|---" * (len(FLEETS) + 1) + "|"]
    limit_rows = [f"| {name} | {clusters:,} |" for name, clusters in limits(constants)]
    return {
        "constants": "\n".join([*head, *rows]),
        "needs": "\n".join([*fleets, *lines]),
        "limits": "\n".join(["| limit of one process | clusters |", "|---|---|", *limit_rows]),
    }


def page(text: str, constants: Mapping[str, float]) -> str:
    """Return the page with new tables."""
    for name, table in tables(constants).items():
        text = replace_block(text, table, BEGIN.format(name), END.format(name))
    return text


def main(argv: Iterable[str] | None = None) -> int:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.capacity", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fit", nargs="+", type=Path, metavar="FILE", default=[], help="saved runs of bench-scale")
    parser.add_argument("--write", action="store_true", help="write constants and tables to docs/")
    args = parser.parse_args(None if argv is None else list(argv))
    constants: dict[str, float] = json.loads(FILE.read_text())
    constants |= fit([run for file in args.fit for run in json.loads(file.read_text())["runs"]])
    print("\n\n".join(tables(constants).values()))
    if args.write:
        FILE.write_text(json.dumps(constants, indent=1) + "\n")
        PAGE.write_text(page(PAGE.read_text(), constants))
    return 0


if __name__ == "__main__":
    sys.exit(main())
