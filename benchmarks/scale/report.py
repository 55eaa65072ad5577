"""Computes the tables and slopes of docs/performance.md from the figures of runs. Pure: no servers, no clock."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Result = Mapping[str, Any]
Phases = Mapping[str, Mapping[str, Any]]

BEGIN, END = "<!-- bench-scale: begin (make bench-scale ARGS=--write-docs) -->", "<!-- bench-scale: end -->"
GROWTH_BEGIN = '<!-- bench-scale-growth: begin (make bench-scale ARGS="--growth --write-docs") -->'
GROWTH_END = "<!-- bench-scale-growth: end -->"

ALL_LIVE = "others, while all live"
LIVE_AGAIN = "others, while all live again"
DEAD = ("others, while a tenth does not answer", "others, while a tenth refuses connections")
OFTEN = "idle, reports every 10 s"
REPLACED = "1 % replaced per minute"
REPLACED_OFTEN = "5 % replaced per minute"
EDIT, EDIT_ALL = "an edit of one Service", "an edit of every Service that changes nothing"
BACK = "a tenth comes back"

SLOPE = 1.1
"""Upper limit of a figure's slope on log-log scales. 1 means in proportion to the number of clusters."""


class Goal(NamedTuple):
    """A row of the first table. ``met`` is None if there is no goal."""

    name: str
    measured: str
    goal: str
    met: bool | None


def goals(phases: Phases) -> list[Goal]:
    """Return measured figures with their goals, in the order of the phases; missing phases are left out."""
    lines: list[Goal] = []

    def line(phase: str, name: str, key: str, unit: str, most: float | None, digits: int = 1) -> None:
        value = phases.get(phase, {}).get(key)
        if value is not None:
            goal = "stated" if most is None else f"≤ {most:g} {unit}".rstrip() if most else "0"
            met = None if most is None else value <= most
            lines.append(Goal(name, f"{value:,.{digits}f} {unit}".rstrip(), goal, met))

    line("start", "start-up until every Service is right", "right_s", "s", None)
    line("start", "CPU time of the start", "cpu_s", "s", None)
    line(OFTEN, "memory (RSS) after the idle phases", "rss_mib", "MiB", None, 0)
    line(OFTEN, "memory (PSS) after the idle phases", "pss_mib", "MiB", None, 0)
    if peaks := [figures["peak_mib"] for figures in phases.values() if "peak_mib" in figures]:
        lines.append(Goal("memory, peak of all phases", f"{max(peaks):,.0f} MiB", "≤ 600 MiB", max(peaks) <= 600))
    line("idle", "idle CPU, a report per node every 5 min", "hub_cpu", "%", 10)
    line(OFTEN, "idle CPU, a report per node every 10 s", "hub_cpu", "%", 60)
    idle = [phases[name]["writes"] for name in ("idle", OFTEN) if name in phases]
    if idle:
        lines.append(Goal("writes while idle", str(sum(idle)), "0", not sum(idle)))
    for phase in (REPLACED, REPLACED_OFTEN):
        goal = 2.0 if phase == REPLACED else None
        line(phase, f"change → slices, p50, {phase}", "p50_s", "s", None, 3)
        line(phase, f"change → slices, p99, {phase}", "p99_s", "s", goal, 3)
        line(phase, f"CPU, {phase}", "hub_cpu", "%", None)
    missed = [figures["missed"] + figures.get("wrong", 0) for figures in phases.values() if "missed" in figures]
    if missed:
        lines.append(Goal("changes lost, and Services wrong afterwards", str(sum(missed)), "0", not sum(missed)))
    lines += _dead(phases)
    line(EDIT, "an edit of one Service: in effect", "right_s", "s", None, 2)
    line(EDIT_ALL, "an edit of every Service that changes nothing: writes", "writes", "", 0, 0)
    line("restart", "restart: SIGTERM to the end", "stop_s", "s", None)
    line("restart", "restart until every Service is right", "right_s", "s", None)
    line("restart", "restart: Services rewritten that need not be", "rewritten", "", 0, 0)
    stalls = {name: figures["stall_ms"] for name, figures in phases.items() if "stall_ms" in figures}
    if stalls:
        worst = max(stalls, key=lambda name: stalls[name])
        text = f"{stalls[worst]:,.0f} ms ({worst})"
        lines.append(Goal("longest stall of the event loop", text, "≤ 100 ms", stalls[worst] <= 100))
    return lines


def _dead(phases: Phases) -> Iterable[Goal]:
    """Compare changes while a tenth of the clusters is dead with the mean of the phases before and after.

    The mean is necessary because the API server needs more time for a write in each later phase.
    """
    live = [phases[name] for name in (ALL_LIVE, LIVE_AGAIN) if phases.get(name, {}).get("p50_s")]
    for phase in DEAD:
        value = phases.get(phase, {}).get("p50_s")
        if live and value:
            base = statistics.fmean(figures["p50_s"] for figures in live)
            medians = ", ".join(f"{figures['p50_s']:.3f}" for figures in live)
            tails = ", ".join(f"{figures['p99_s']:.3f}" for figures in live)
            text = f"{value / base:.2f} × ({medians} → {value:.3f} s; p99 {tails} → {phases[phase]['p99_s']:.3f} s)"
            yield Goal(f"change → slices, p50, {phase}", text, "≤ 1.1 ×", value / base <= 1.1)
    if BACK in phases:
        yield Goal("until they are followed again", f"{phases[BACK]['right_s']:.1f} s", "stated", None)


def good(phases: Phases) -> bool:
    """Whether every phase of the run reached its end."""
    return all(figures.get("right", True) for figures in phases.values()) and bool(phases)


def table(lines: Sequence[Goal]) -> str:
    """Return the goals as a Markdown table."""
    words = {True: "ok", False: "missed", None: ""}
    rows = [f"| {line.name} | {line.measured} | {line.goal} | {words[line.met]} |" for line in lines]
    return "\n".join(["| figure | measured | goal | |", "|---|---|---|---|", *rows])


def phase_table(phases: Phases) -> str:
    """Return a Markdown table of what each process used in each phase."""
    rows = []
    for name, figures in phases.items():
        cpu = figures["cpu"]
        shares = (figures.get("hub_cpu", 0.0), cpu["remotes"], cpu["kube-apiserver"] + cpu["etcd"], cpu["harness"])
        late = (figures["late_ms"], figures["stall_ms"], figures["stall_cpu_ms"], figures["gc_ms"])
        cells = [f"{figures['seconds']:.0f}", f"{figures['writes']:,}", *(f"{value:.1f}" for value in shares)]
        rows.append(f"| {' | '.join([name, *cells, *(f'{value:.0f}' for value in late)])} |")
    columns = ("hub, %", "remotes, %", "API server and etcd, %", "harness, %", "remotes late, ms")
    names = ("phase", "s", "writes", *columns, "stall, ms", "its CPU, ms", "GC, ms")
    return "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", *rows])


def document(result: Result) -> str:
    """Return the measured block of docs/performance.md for one fleet."""
    run = result["runs"][0]
    phases: Phases = run["phases"]
    return "\n".join(
        [
            f"{about(result)}. {size(run)}.",
            "",
            table(goals(phases)),
            "",
            "Percent are of one core.",
            "",
            phase_table(phases),
        ]
    )


def about(result: Result) -> str:
    """Return the date, the machine and the versions."""
    machine = result["machine"]
    return (
        f"{result['date']}, {machine['cores']} cores ({result['pinned']}), Python {machine['python']}, "
        f"kube-apiserver {machine['kubernetes']}, etcd {machine['etcd']}"
    )


def size(run: Result) -> str:
    """Return a text such as ``500 clusters × 100 nodes, 2,000 Services``."""
    return f"{run['clusters']} clusters × {run['nodes']} nodes, {run['clusters'] * run['services']:,} Services"


# --- growth --------------------------------------------------------------------------------------------


class Growing(NamedTuple):
    """A figure that grows with the fleet."""

    phase: str
    key: str
    title: str
    unit: str


GROWING = (
    Growing("start", "right_s", "start-up", "s"),
    Growing("start", "cpu_s", "CPU time of the start", "s"),
    Growing(OFTEN, "peak_mib", "memory, peak", "MiB"),
    Growing(OFTEN, "hub_cpu", "CPU at 10 s reports", "%"),
)


def points(runs: Iterable[Result], figure: Growing) -> list[tuple[int, float]]:
    """Return (clusters, value) of each run that has the figure."""
    return sorted(
        (run["clusters"], run["phases"][figure.phase][figure.key])
        for run in runs
        if figure.key in run["phases"].get(figure.phase, {})
    )


def slope(found: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope on log-log scales by least squares; None if there are fewer than two sizes."""
    logs = [(math.log(x), math.log(y)) for x, y in found if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope


def growth(result: Result) -> str:
    """Return a Markdown table of medians by size, with slopes."""
    runs = result["runs"]
    sizes = sorted({run["clusters"] for run in runs})
    rounds = max(sum(run["clusters"] == size for run in runs) for size in sizes)
    head = f"| figure | {' | '.join(f'{size} clusters' for size in sizes)} | slope | goal | |"
    per_cluster = f"{runs[0]['nodes']} nodes and {runs[0]['services']} Services per cluster"
    lines = [f"{about(result)}; {per_cluster}, medians of {rounds} runs.", "", head]
    lines.append("|---" * (len(sizes) + 4) + "|")
    for figure in GROWING:
        found = points(runs, figure)
        medians = {size: [y for x, y in found if x == size] for size in sizes}
        cells = [f"{statistics.median(ys):,.1f}" if ys else "–" for ys in medians.values()]
        steep = slope(found)
        verdict = ["–", f"≤ {SLOPE}", ""] if steep is None else [f"{steep:.2f}", f"≤ {SLOPE}", _word(steep <= SLOPE)]
        lines.append(f"| {figure.title}, {figure.unit} | {' | '.join([*cells, *verdict])} |")
    return "\n".join(lines)


def _word(met: bool) -> str:
    return "ok" if met else "missed"
