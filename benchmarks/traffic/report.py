"""Judges the figures of all rows, and writes tables and the graph of docs/traffic.md. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.plot import Axis, Panel, Series, svg
from benchmarks.traffic.figures import ARMS, HUB_ARMS, RATE, Arm, ConsumerName, Figures
from benchmarks.traffic.rows import ROWS, Row

BEGIN, END = "<!-- traffic: begin (make traffic) -->", "<!-- traffic: end -->"
DEAD_NODE_SECONDS = 3 * 5.0 + 3.0 + 1.0
"""fall × interval + timeout + 1 s with the defaults of health checks."""
LATE = 0.5
"""A client that was later than this, in seconds, shows that the machine was overloaded."""
DRAWN = ("node link down", "node answers RST", "failover")

Found = Mapping[str, Mapping[Arm, Figures]]
"""Figures by row and arm, in the order of the rows."""


class Goal(NamedTuple):
    """A goal of one arm in one row."""

    row: str
    arm: Arm
    text: str
    met: bool


def goals(found: Found) -> list[Goal]:
    """Judge all figures that were measured."""
    return [goal for row in ROWS if row.name in found for goal in _goals(row, found[row.name])]


def _goals(row: Row, figures: Mapping[Arm, Figures]) -> Iterable[Goal]:
    for arm in HUB_ARMS:
        if arm not in figures:
            continue
        lost = figures[arm].lost
        if row.zero:
            yield Goal(row.name, arm, "0 lost", lost == 0)
        if row.dead and arm != "hub":
            most = math.ceil(row.dead * RATE * DEAD_NODE_SECONDS)
            yield Goal(row.name, arm, f"at most {most} lost", lost <= most)
        if "reference" in figures:
            reference = figures["reference"].lost
            # kube-proxy chooses nodes at random, so allow three standard deviations; none if the reference loses none.
            most = reference + round(3 * math.sqrt(reference))
            yield Goal(row.name, arm, "no more lost than by the reference", lost <= most)


def document(result: Mapping[str, Any], found: Mapping[ConsumerName, Found]) -> str:
    """Return the measured block of docs/traffic.md."""
    machine = result["machine"]
    lines = [
        f"Measured on {result['date']} on {machine['cores']} cores with {machine['memory_gb']} GB memory,",
        f"Python {machine['python']}, Go {machine['go']} and Kubernetes {machine['kubernetes']}.",
        f"Each arm got {RATE:g} requests/s.",
    ]
    if result.get("old"):
        lines.append(f"In `hub upgrade`, version {result['old']} and this one replaced each other.")
    notes = []
    for consumer, rows in found.items():
        lines += ["", f"## Through {consumer}", "", *_tables(rows)]
        notes += [f"- {consumer}: {goal.row}, {goal.arm}: {goal.text}" for goal in goals(rows) if not goal.met]
        notes += [f"- {consumer}: {text}" for text in _distorted(rows)]
    notes += [f"- {problem}" for problem in result["broken"]]
    return "\n".join(lines + (["", "## Missed goals and problems", "", *notes] if notes else []))


def _tables(found: Found) -> list[str]:
    arms = [arm for arm in ARMS if any(arm in figures for figures in found.values())]
    parts: dict[str, Callable[[Figures], str]] = {
        "Requests lost": lambda one: f"{one.lost:,}",
        "Seconds from the fault to the start of the last lost request": lambda one: _seconds(one.last_lost),
        "Requests sent to an address after its Node was deleted": lambda one: _count(one.after_removal),
        "Seconds from the creation of a Node to its first request (the slowest new node)": lambda one: _seconds(
            one.first_request
        ),
    }
    lines: list[str] = []
    for title, cell in parts.items():
        table = _table(found, arms, cell, goals(found) if title == "Requests lost" else None)
        if len(table) > 2:  # else no row has such a figure
            lines += ["", f"{title}:", "", *table]
    return lines[1:]


def _distorted(found: Found) -> list[str]:
    """Say what may have distorted the figures."""
    late = {name: max(one.late for one in figures.values()) for name, figures in found.items()}
    rows = [name for name, seconds in late.items() if seconds > LATE]
    jumps = {name: next((one.jump for one in figures.values()), 0.0) for name, figures in found.items()}
    texts = [
        f"{name}: the wall clock jumped by {jump:+g} s; the figures use the monotonic clock"
        for name, jump in jumps.items()
        if abs(jump) >= LATE
    ]
    if rows:
        worst = max(late[name] for name in rows)
        texts.append(f"the machine was overloaded: clients were up to {worst:.1f} s late ({', '.join(rows)})")
    return texts


def picture(found: Found) -> str:
    """Draw the lost requests per second of some rows."""
    panels = [
        Panel(
            row.name,
            Axis("seconds", low=0.0),
            Axis("lost per second", low=0.0),
            [
                Series(arm, list(enumerate(map(float, found[row.name][arm].lost_by_second))))
                for arm in ARMS
                if arm in found[row.name]
            ],
        )
        for row in ROWS
        if row.name in DRAWN and row.name in found
    ]
    return svg(panels, title="Requests lost by the consumers of each arm")


def _table(
    found: Found, arms: Sequence[Arm], cell: Callable[[Figures], str], judged: Sequence[Goal] | None = None
) -> list[str]:
    """Return a table of rows by arms. Rows without a value are left out."""
    more = [] if judged is None else ["goals"]
    lines = [f"| {' | '.join(['row', *arms, *more])} |", "|---" * (1 + len(arms) + len(more)) + "|"]
    for name, figures in found.items():
        cells = [cell(figures[arm]) if arm in figures else "–" for arm in arms]
        if judged is not None:
            cells.append("met" if all(goal.met for goal in judged if goal.row == name) else "missed")
        elif set(cells) == {"–"}:
            continue
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else "never" if math.isinf(value) else f"{value:.1f}"
