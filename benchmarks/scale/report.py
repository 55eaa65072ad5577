"""From the figures of runs to the tables, slopes and the plot of docs/performance.md. Pure: no servers, no clock."""

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
RETURNED = 10.0
"""Seconds within which clusters that are back are followed again; not a goal, the point where the text says so."""

SLOPE = 1.1
"""The most a figure may grow by, on log-log scales: 1 is in proportion to the clusters."""


class Goal(NamedTuple):
    """One line of the first table; ``met`` is None where nothing was promised."""

    name: str
    measured: str
    goal: str
    met: bool | None


def goals(phases: Phases) -> list[Goal]:
    """What was measured beside what was promised, in the order of the phases; those that were not run are left out."""
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
    if peaks := [each["peak_mib"] for each in phases.values() if "peak_mib" in each]:
        lines.append(Goal("memory, peak of all phases", f"{max(peaks):,.0f} MiB", "≤ 600 MiB", max(peaks) <= 600))
    line("idle", "idle CPU, a report per node every 5 min", "hub_cpu", "%", 10)
    line(OFTEN, "idle CPU, a report per node every 10 s", "hub_cpu", "%", 60)
    idle = [phases[each]["writes"] for each in ("idle", OFTEN) if each in phases]
    if idle:
        lines.append(Goal("writes while idle", str(sum(idle)), "0", not sum(idle)))
    for phase in (REPLACED, REPLACED_OFTEN):
        goal = 2.0 if phase == REPLACED else None
        line(phase, f"change → slices, p50, {phase}", "p50_s", "s", None, 3)
        line(phase, f"change → slices, p99, {phase}", "p99_s", "s", goal, 3)
        line(phase, f"CPU, {phase}", "hub_cpu", "%", None)
    missed = [each["missed"] + each.get("wrong", 0) for each in phases.values() if "missed" in each]
    if missed:
        lines.append(Goal("changes lost, and Services wrong afterwards", str(sum(missed)), "0", not sum(missed)))
    lines += _dead(phases)
    line(EDIT, "an edit of one Service: in effect", "right_s", "s", None, 2)
    line(EDIT_ALL, "an edit of every Service that changes nothing: writes", "writes", "", 0, 0)
    line("restart", "restart: SIGTERM to the end", "stop_s", "s", None)
    line("restart", "restart until every Service is right", "right_s", "s", None)
    line("restart", "restart: Services rewritten that need not be", "rewritten", "", 0, 0)
    stalls = {name: each["stall_ms"] for name, each in phases.items() if "stall_ms" in each}
    if stalls:
        worst = max(stalls, key=lambda each: stalls[each])
        text = f"{stalls[worst]:,.0f} ms ({worst})"
        lines.append(Goal("longest stall of the event loop", text, "≤ 100 ms", stalls[worst] <= 100))
    return lines


def _dead(phases: Phases) -> Iterable[Goal]:
    """How much longer the others' changes took than in the phases before and after, on the mean.

    The API server takes more for a write from phase to phase, whatever the clusters do.
    """
    live = [phases[each] for each in (ALL_LIVE, LIVE_AGAIN) if phases.get(each, {}).get("p50_s")]
    for phase in DEAD:
        value = phases.get(phase, {}).get("p50_s")
        if live and value:
            base = statistics.fmean(each["p50_s"] for each in live)
            medians = ", ".join(f"{each['p50_s']:.3f}" for each in live)
            tails = ", ".join(f"{each['p99_s']:.3f}" for each in live)
            text = f"{value / base:.2f} × ({medians} → {value:.3f} s; p99 {tails} → {phases[phase]['p99_s']:.3f} s)"
            yield Goal(f"change → slices, p50, {phase}", text, "≤ 1.1 ×", value / base <= 1.1)
    if BACK in phases:
        yield Goal("until they are followed again", f"{phases[BACK]['right_s']:.1f} s", "stated", None)


def good(phases: Phases) -> bool:
    """Whether the run measured what it should."""
    return all(each.get("right", True) for each in phases.values()) and bool(phases)


def table(lines: Sequence[Goal]) -> str:
    """In Markdown."""
    words = {True: "ok", False: "missed", None: ""}
    rows = [f"| {each.name} | {each.measured} | {each.goal} | {words[each.met]} |" for each in lines]
    return "\n".join(["| figure | measured | goal | |", "|---|---|---|---|", *rows])


def phase_table(phases: Phases) -> str:
    """Who used what in each phase."""
    rows = []
    for name, each in phases.items():
        cpu = each["cpu"]
        shares = (each.get("hub_cpu", 0.0), cpu["remotes"], cpu["kube-apiserver"] + cpu["etcd"], cpu["harness"])
        late = (each["late_ms"], each["stall_ms"], each["stall_cpu_ms"], each["gc_ms"])
        cells = [f"{each['seconds']:.0f}", f"{each['writes']:,}", *(f"{value:.1f}" for value in shares)]
        rows.append(f"| {' | '.join([name, *cells, *(f'{value:.0f}' for value in late)])} |")
    columns = ("hub, %", "remotes, %", "API server and etcd, %", "harness, %", "remotes late, ms")
    names = ("phase", "s", "writes", *columns, "stall, ms", "its CPU, ms", "GC, ms")
    return "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", *rows])


def document(result: Result) -> str:
    """The measured part of docs/performance.md, for one fleet."""
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
    """When and on what."""
    machine = result["machine"]
    return (
        f"{result['date']}, {machine['cores']} cores ({result['pinned']}), Python {machine['python']}, "
        f"kube-apiserver {machine['kubernetes']}, etcd {machine['etcd']}"
    )


def size(run: Result) -> str:
    """``500 clusters × 100 nodes, 2,000 Services``."""
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
    """(clusters, value) of each run that has the figure."""
    return sorted(
        (run["clusters"], run["phases"][figure.phase][figure.key])
        for run in runs
        if figure.key in run["phases"].get(figure.phase, {})
    )


def slope(found: Sequence[tuple[float, float]]) -> float | None:
    """Least squares on log-log scales; None of fewer than two sizes."""
    logs = [(math.log(x), math.log(y)) for x, y in found if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope


def growth(result: Result) -> str:
    """The table of medians by size, with slopes."""
    runs = result["runs"]
    sizes = sorted({run["clusters"] for run in runs})
    rounds = max(sum(run["clusters"] == each for run in runs) for each in sizes)
    head = f"| figure | {' | '.join(f'{each} clusters' for each in sizes)} | slope | goal | |"
    each = f"{runs[0]['nodes']} nodes and {runs[0]['services']} Services per cluster"
    lines = [f"{about(result)}; {each}, medians of {rounds} runs.", "", head]
    lines.append("|---" * (len(sizes) + 4) + "|")
    for figure in GROWING:
        found = points(runs, figure)
        medians = {each: [y for x, y in found if x == each] for each in sizes}
        cells = [f"{statistics.median(ys):,.1f}" if ys else "–" for ys in medians.values()]
        steep = slope(found)
        verdict = ["–", f"≤ {SLOPE}", ""] if steep is None else [f"{steep:.2f}", f"≤ {SLOPE}", _word(steep <= SLOPE)]
        lines.append(f"| {figure.title}, {figure.unit} | {' | '.join([*cells, *verdict])} |")
    return "\n".join(lines)


def _word(met: bool) -> str:
    return "ok" if met else "missed"
