"""Judges a soak: computes verdicts, a table and a graph from samples, log lines and the recorder's findings. Pure.

Each judge gets the whole run, and returns a figure, its limit, and whether the limit is met.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from benchmarks.plot import Axis, Band, Panel, Series, svg
from benchmarks.soak_script import Fault, active_faults

MEMORY_LIMIT = 1.0
"""MiB per hour by which resident memory may grow: Theil–Sen slope over the last two thirds of the run."""
COUNT_LIMIT = 1.0
"""The same for descriptors, tasks, threads and temporary files, as a number per hour."""
SETTLED = 1 / 3
"""Share of the run after which growth is measured: before, caches fill up and the heap reaches its size."""
LINGER = 90.0
"""Seconds after a fault in which the log may still show its effects: a reflector retries after up to 60 s."""
UNPLANNED = frozenset({"start", "busy", "slow-api"})
"""Faults that are not in the script: the hub starts, or the machine is busy."""
COUNTS = {
    "fds": "open descriptors",
    "tasks": "tasks of the event loop",
    "threads": "threads",
    "files": "temporary files",
}
WORKERS = 4.0
"""Threads that the event loop's pool may start after the first quiet stretch: it starts one when all are busy."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A log line that a fault explains.

    Attributes:
        pattern: matches the beginning of the message. A group ``cluster`` is the cluster that must have the fault.
        faults: one of these must be active, or have ended less than ``LINGER`` seconds ago.
    """

    pattern: re.Pattern[str]
    faults: frozenset[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a judge: a row of the table."""

    what: str
    found: str
    limit: str
    met: bool


@dataclass(frozen=True, slots=True)
class Soak:
    """The recorded data of a run.

    Attributes:
        samples: in order; ``at`` is seconds after the start, ``rss`` and ``pss`` MiB, ``cpu`` % of a core.
        quiet: two stretches without faults, one soon after the start and one before the end.
        log: the lines of the hub's log.
        began: Unix time of the start.
        lost: endpoints that were removed without a reason, as texts of the recorder.
        wrong: Services that were wrong at the end, as texts of the recorder.
    """

    seconds: float
    samples: Sequence[Mapping[str, float]]
    quiet: tuple[tuple[float, float], tuple[float, float]]
    faults: Sequence[Fault]
    log: Sequence[str]
    began: float
    lost: Sequence[str]
    wrong: Sequence[str]


# --- the judges ----------------------------------------------------------------------------------


def verdicts(soak: Soak, expected: Iterable[Expected]) -> list[Verdict]:
    """Return the verdicts of all judges."""
    counts = [judge_count(soak, key) for key in COUNTS]
    return [judge_memory(soak), *counts, judge_log(soak, tuple(expected)), judge_lost(soak), judge_end(soak)]


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between all pairs of points with different x (Theil 1950, Sen 1968); 0.0 without pairs.

    Outliers, up to a quarter of the points, hardly change it, so a burst does not look like a leak.
    """
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if x2 != x1]
    return statistics.median(slopes) if slopes else 0.0


def slope(soak: Soak, key: str) -> float:
    """Return the slope of a figure per hour, over the last two thirds of the run.

    Raises:
        ValueError: there are too few samples.
    """
    points = [(sample["at"] / 3600, sample[key]) for sample in soak.samples if sample["at"] >= soak.seconds * SETTLED]
    if len(points) < 10 or points[-1][0] * 3600 < soak.seconds * 0.95:
        raise ValueError(f"{len(points)} samples of {key}: the run was not watched to its end")
    return theil_sen(points)


def judge_memory(soak: Soak) -> Verdict:
    """Judge that resident memory does not grow."""
    grows = slope(soak, "rss")
    window = f"last {soak.seconds * (1 - SETTLED) / 60:.0f} minutes"
    return Verdict(
        f"memory, Theil–Sen slope of the {window}",
        f"{grows:+.2f} MiB/h",
        f"≤ {MEMORY_LIMIT:g} MiB/h",
        grows <= MEMORY_LIMIT,
    )


def judge_count(soak: Soak, key: str) -> Verdict:
    """Judge that a number is no higher in the last quiet stretch than in the first, and does not grow."""
    before, after = (
        [sample[key] for sample in soak.samples if begin <= sample["at"] <= end] for begin, end in soak.quiet
    )
    if not before or not after:
        raise ValueError(f"no samples of {key} in a quiet stretch")
    was, now, grows = statistics.median(before), statistics.median(after), slope(soak, key)
    return Verdict(
        f"{COUNTS[key]}, quiet at the start → quiet at the end",
        f"{was:g} → {now:g}, {grows:+.2f}/h",
        f"no more, ≤ {COUNT_LIMIT:g}/h",
        now <= was + (WORKERS if key == "threads" else 0) and grows <= COUNT_LIMIT,
    )


def judge_lost(soak: Soak) -> Verdict:
    """Judge that no endpoint was removed or marked not ready without a change of its node or the registry."""
    return Verdict("endpoints lost", str(len(soak.lost)), "0", not soak.lost)


def judge_end(soak: Soak) -> Verdict:
    """Judge that at the end every Service publishes exactly the right addresses."""
    return Verdict("wrong at the end", str(len(soak.wrong)), "0", not soak.wrong)


def judge_log(soak: Soak, expected: Sequence[Expected]) -> Verdict:
    """Judge that a fault explains every warning and error."""
    unexplained = unexpected(soak, expected)
    warned = sum(bool(severe(line)) for line in soak.log)
    return Verdict(
        "log lines outside the list written before",
        f"{len(unexplained)} of {warned} warnings and errors",
        "0",
        not unexplained,
    )


def severe(line: str) -> dict[str, Any] | None:
    """Return a log line if it is a warning or worse, or not a log record of the hub; otherwise None."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {"time": "", "level": "critical", "message": line}
    if not isinstance(entry, dict) or "level" not in entry:
        return {"time": "", "level": "critical", "message": line}
    return entry if entry["level"] not in ("debug", "info") or "traceback" in entry else None


def unexpected(soak: Soak, expected: Sequence[Expected]) -> list[str]:
    """Return the warnings and errors that no fault explains."""
    faults = sorted(soak.faults, key=lambda fault: fault.begin)
    found = []
    for line in soak.log:
        entry = severe(line)
        if entry is not None and not _explained(entry, expected, faults, soak.began):
            found.append(line)
    return found


def _explained(entry: Mapping[str, Any], expected: Sequence[Expected], faults: list[Fault], began: float) -> bool:
    if not entry["time"] or "traceback" in entry:
        return False
    moment = datetime.fromisoformat(entry["time"]).timestamp() - began
    active = active_faults(faults, moment, LINGER)
    for warning in expected:
        match = warning.pattern.match(entry["message"])
        if match is not None:
            cluster = match.groupdict().get("cluster")
            if any(fault.what in warning.faults and cluster in (None, fault.cluster) for fault in active):
                return True
    return False


# --- table and graph -------------------------------------------------------------------------------


def table(found: Iterable[Verdict]) -> str:
    """Return the verdicts as a Markdown table."""
    rows = [f"| {row.what} | {row.found} | {row.limit} | {'met' if row.met else 'missed'} |" for row in found]
    return "\n".join(["| | found | limit | |", "|---|---|---|---|", *rows])


def graph(soak: Soak, title: str) -> str:
    """Return an SVG of the run: memory, descriptors and tasks, CPU, Services that are behind, active faults."""
    minutes = Axis("", low=0.0, high=soak.seconds / 60)
    last = Axis("minutes; yellow: the hub's API server restarts", low=0.0, high=soak.seconds / 60)
    bands = [
        Band(fault.begin / 60, (fault.end + 10) / 60, "the hub's API server restarts")
        for fault in soak.faults
        if fault.what == "hub-api"
    ]

    def line(key: str, name: str = "") -> Series:
        return Series(name, [(sample["at"] / 60, sample[key]) for sample in soak.samples])

    grows = slope(soak, "rss") / 60
    window = [sample for sample in soak.samples if sample["at"] >= soak.seconds * SETTLED]
    middle = statistics.median(sample["rss"] - grows * sample["at"] / 60 for sample in window)
    ends = [(sample["at"] / 60, middle + grows * sample["at"] / 60) for sample in (window[0], window[-1])]
    fit = Series(f"Theil–Sen {grows * 60:+.2f} MiB/h", ends, dashed=True)
    planned = [fault for fault in soak.faults if fault.what not in UNPLANNED]
    active = [
        (sample["at"] / 60, float(sum(fault.begin <= sample["at"] <= fault.end for fault in planned)))
        for sample in soak.samples
    ]
    panels = [
        Panel("Memory", minutes, Axis("MiB", low=0.0), (line("rss", "resident"), fit), bands),
        Panel(
            "Open descriptors, tasks", minutes, Axis("", low=0.0), (line("fds", "fds"), line("tasks", "tasks")), bands
        ),
        Panel("CPU", minutes, Axis("% of a core", low=0.0), (line("cpu"),), bands),
        Panel("Services that are behind", minutes, Axis("", low=0.0), (line("behind"),), bands),
        Panel("Active faults", last, Axis("", low=0.0), (Series("", active),), bands),
    ]
    return svg(panels, title=title)
