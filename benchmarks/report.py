"""Computes the table of medians and ratios from single runs. Pure: no servers, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.world import Row

Result = Mapping[str, Any]

ROWS = (Row(4, 500, 25), Row(10, 1000, 10), Row(1, 100, 10), Row(1, 100, 1))
QUICK = (Row(2, 20, 2), Row(1, 20, 1))
BEGIN, END = "<!-- bench: begin (make bench ARGS=--write-docs) -->", "<!-- bench: end -->"
COMMAND_GOAL = 0.5
"""Seconds that ``import hub.cli`` and ``hub check`` may take."""


class Figure(NamedTuple):
    """A figure of the table.

    Attributes:
        key: name in results.
        title: name in tables.
        digits: decimal places.
    """

    key: str
    title: str
    digits: int


FIGURES = (
    Figure("converge_s", "start-up to all slices right, s", 2),
    Figure("all_p50_ms", "change → all slices, p50, ms", 1),
    Figure("all_p99_ms", "change → all slices, p99, ms", 1),
    Figure("rss_end_mb", "memory at the end, MB", 0),
    Figure("rss_peak_mb", "memory at its peak, MB", 0),
    Figure("cpu_per_heartbeat_ms", "CPU per node heartbeat, ms", 3),
    Figure("writes_per_flip", "writes per change", 2),
    Figure("heartbeat_writes", "writes by heartbeats", 0),
    Figure("paced5_p50_ms", "5 changes a second → slice, p50, ms", 1),
    Figure("paced5_p99_ms", "5 changes a second → slice, p99, ms", 1),
    Figure("paced20_p50_ms", "20 changes a second → slice, p50, ms", 1),
    Figure("paced20_p99_ms", "20 changes a second → slice, p99, ms", 1),
    Figure("rolling_writes", "writes per Service, 100 nodes replaced in 10 s", 1),
    Figure("rolling_last_s", "last of them → all slices, s", 2),
)

GOALS: Mapping[Row, Mapping[str, float]] = {
    ROWS[0]: dict.fromkeys((figure.key for figure in FIGURES[:6]), 1.0) | {"converge_s": 1.2, "rolling_writes": 0.5},
    ROWS[1]: {
        "converge_s": 0.85,
        "all_p50_ms": 0.75,
        "all_p99_ms": 0.9,
        "rss_end_mb": 0.65,
        "rss_peak_mb": 0.65,
        "cpu_per_heartbeat_ms": 0.6,
        "rolling_writes": 0.5,
    },
    ROWS[2]: {"all_p50_ms": 1.0, "all_p99_ms": 1.2, "rolling_writes": 0.5},
    ROWS[3]: {"paced5_p50_ms": 1.2, "paced5_p99_ms": 1.5, "paced20_p50_ms": 1.2, "paced20_p99_ms": 1.5},
}
"""Upper limits of the ratio hub / goref."""

GOOD_ENOUGH = {"paced5_p50_ms": 60.0, "paced5_p99_ms": 60.0, "paced20_p50_ms": 60.0, "paced20_p99_ms": 60.0}
"""The ratio does not matter if the hub's own figure is at most this."""

ABSOLUTE_LIMITS = {"rolling_last_s": 0.15}
"""Upper limits of the hub's own figure, for figures without a goal for the ratio."""


def absolute_goal(row: Row, key: str) -> float | None:
    """Return the exact value that a count of the hub must have, or None for other figures."""
    return {"writes_per_flip": float(row.services), "heartbeat_writes": 0.0}.get(key)


def medians(runs: Iterable[Result]) -> dict[str, dict[str, float]]:
    """Return program -> figure -> median over the runs that converged and missed no change."""
    by_subject: dict[str, list[Result]] = {}
    for run in runs:
        if good(run):
            by_subject.setdefault(run["subject"], []).append(run)
    return {
        subject: {
            figure.key: statistics.median(run[figure.key] for run in good_runs)
            for figure in FIGURES
            if all(figure.key in run for run in good_runs)
        }
        for subject, good_runs in by_subject.items()
    }


def good(run: Result) -> bool:
    """Whether a run converged and missed no change."""
    return bool(run["converged"]) and not run["missed"]


def ratio(one: float | None, other: float | None) -> float | None:
    """Return ``one`` / ``other``, or None if one of them is missing or ``other`` is 0."""
    return one / other if one is not None and other else None


def row_of(run: Result) -> Row:
    """Return the row of a run."""
    return Row(run["clusters"], run["nodes"], run["services"] // run["clusters"])


def table(row: Row, runs: Sequence[Result]) -> list[str]:
    """Return a Markdown table of one row: medians, ratios, goals."""
    found = medians(runs)
    lines = [
        "| figure | goref | hub | floor | hub / goref | goal | hub / floor |",
        "|---|---|---|---|---|---|---|",
    ]
    for figure in FIGURES:
        if not any(figure.key in figures for figures in found.values()):
            continue  # not measured in this row
        values = {subject: found.get(subject, {}).get(figure.key) for subject in ("goref", "hub", "floor")}
        to_goref = ratio(values["hub"], values["goref"])
        cells = [
            figure.title,
            *(_number(values[subject], figure.digits) for subject in ("goref", "hub", "floor")),
            _number(to_goref, 2),
            _goal(row, figure, values["hub"], to_goref),
            _number(ratio(values["hub"], values["floor"]), 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _goal(row: Row, figure: Figure, value: float | None, to_goref: float | None) -> str:
    """Return the text of a goal, with a mark that says whether it is reached."""
    exact = absolute_goal(row, figure.key)
    if exact is not None:
        text = f"{exact:g}"
        return text if value is None else f"{text} {'✓' if value == exact else '✗'}"
    goal, limit = GOALS.get(row, {}).get(figure.key), ABSOLUTE_LIMITS.get(figure.key)
    if goal is None and limit is not None and row in GOALS:
        text = f"hub ≤ {limit}"
        return text if value is None else f"{text} {'✓' if round(value, figure.digits) <= limit else '✗'}"
    if goal is None:
        return "–"
    text = f"≤ {goal}"
    if (good_enough := GOOD_ENOUGH.get(figure.key)) is not None:
        text = f"{text} or hub ≤ {good_enough:g}"
        if value is not None and round(value, figure.digits) <= good_enough:
            return f"{text} ✓"
    # Compare the printed number: 1.004 is printed as 1.00 and reaches a goal of 1.0.
    return text if to_goref is None else f"{text} {'✓' if round(to_goref, 2) <= goal else '✗'}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def document(report: Mapping[str, Any]) -> str:
    """Return the measured block of docs/performance.md: machine, tables, commands."""
    machine = report["machine"]
    lines = [
        f"Measured on {report['date']}: {machine['cores']} cores, {machine['memory_gb']} GB memory, {machine['arch']},",
        f"Python {machine['python']}, Go {machine['go']}, Kubernetes {machine['kubernetes']}, etcd {machine['etcd']}.",
    ]
    for row in dict.fromkeys(map(row_of, report["runs"])):
        runs = [run for run in report["runs"] if row_of(run) == row]
        rounds = max(run["round"] for run in runs) + 1
        heading = f"**{row}** ({rounds} {'round' if rounds == 1 else 'rounds'} of {runs[0]['flips']} flips, medians)"
        lines += ["", heading, "", *table(row, runs)]
        bad = [run for run in runs if not good(run)]
        if bad:
            lines += ["", f"Not counted: {len(bad)} of {len(runs)} runs, which did not finish or missed changes."]
    if report["commands"]:
        lines += ["", "| command | median, s | goal |", "|---|---|---|"]
        for name, seconds in report["commands"].items():
            verdict = "✓" if seconds < COMMAND_GOAL else "✗"
            lines.append(f"| `{name}` | {seconds:.2f} | < {COMMAND_GOAL} {verdict} |")
    return "\n".join(lines)


def replace_block(page: str, text: str, begin: str, end: str) -> str:
    """Replace the text between two marks of a page.

    Raises:
        ValueError: the page lacks one of the marks.
    """
    head, begins, rest = page.partition(begin)
    _, ends, tail = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"the page has no {end if begins else begin}")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"
