"""Judges a soak: from samples, log lines and what the recorder saw to verdicts, a table and a graph. Pure.

Each judge gets the whole run and says what it found, what the limit is, and whether that is met.
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
from benchmarks.soak_script import Fault, covered

MEMORY_LIMIT = 1.0
"""MiB per hour that resident memory may grow by, as the Theil–Sen slope over the last two thirds."""
COUNT_LIMIT = 1.0
"""The same for descriptors, tasks, threads and temporary files, in pieces per hour."""
SETTLED = 1 / 3
"""Of the run: before, caches fill and the allocator finds its size."""
LINGER = 90.0
"""Seconds after a fault in which its consequences may be in the log: a reflector waits up to 60 s to look again."""
NOT_MADE = frozenset({"start", "busy", "slow-api"})
"""Faults that nobody made: the hub is starting, or the machine has other work."""
COUNTS = {
    "fds": "open descriptors",
    "tasks": "tasks of the event loop",
    "threads": "threads",
    "files": "temporary files",
}
WORKERS = 4.0
"""Threads that the event loop's pool may still start after the first quiet stretch: it makes them when all are busy."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A log line that a fault explains.

    Attributes:
        pattern: matched at the beginning of its message; a group ``cluster`` says which one must be broken.
        faults: one of these must be under way, or just be over.
    """

    pattern: re.Pattern[str]
    faults: frozenset[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says."""

    what: str
    found: str
    limit: str
    met: bool


@dataclass(frozen=True, slots=True)
class Soak:
    """All there is to judge.

    Attributes:
        samples: in order; ``at`` is seconds after the start, ``rss`` and ``pss`` MiB, ``cpu`` % of a core.
        quiet: two stretches without faults, one soon after the start and one before the end.
        log: the hub's lines as they are.
        began: Unix time of the start.
        lost: endpoints that left although nothing said so, in the recorder's words.
        wrong: what was not as it ought to be at the end, in the recorder's words.
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
    """What all judges say."""
    counts = [count(soak, key) for key in COUNTS]
    return [memory(soak), *counts, log(soak, tuple(expected)), lost(soak), right(soak)]


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points with different x (Theil 1950, Sen 1968); 0.0 of none.

    A quarter of the points may be anything without moving it far, so that a burst is no leak.
    """
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if x2 != x1]
    return statistics.median(slopes) if slopes else 0.0


def slope(soak: Soak, key: str) -> float:
    """Of a figure, per hour, over the last two thirds.

    Raises:
        ValueError: there are too few samples to say anything.
    """
    points = [(each["at"] / 3600, each[key]) for each in soak.samples if each["at"] >= soak.seconds * SETTLED]
    if len(points) < 10 or points[-1][0] * 3600 < soak.seconds * 0.95:
        raise ValueError(f"{len(points)} samples of {key}: the run was not watched to its end")
    return theil_sen(points)


def memory(soak: Soak) -> Verdict:
    """Resident memory does not grow."""
    grows = slope(soak, "rss")
    window = f"last {soak.seconds * (1 - SETTLED) / 60:.0f} minutes"
    return Verdict(
        f"memory, Theil–Sen slope of the {window}",
        f"{grows:+.2f} MiB/h",
        f"≤ {MEMORY_LIMIT:g} MiB/h",
        grows <= MEMORY_LIMIT,
    )


def count(soak: Soak, key: str) -> Verdict:
    """There are no more of something in the last quiet stretch than in the first, nor does their number grow."""
    before, after = ([each[key] for each in soak.samples if begin <= each["at"] <= end] for begin, end in soak.quiet)
    if not before or not after:
        raise ValueError(f"no samples of {key} in a quiet stretch")
    was, now, grows = statistics.median(before), statistics.median(after), slope(soak, key)
    return Verdict(
        f"{COUNTS[key]}, quiet at the start → quiet at the end",
        f"{was:g} → {now:g}, {grows:+.2f}/h",
        f"no more, ≤ {COUNT_LIMIT:g}/h",
        now <= was + (WORKERS if key == "threads" else 0) and grows <= COUNT_LIMIT,
    )


def lost(soak: Soak) -> Verdict:
    """No endpoint left a Service, or was shown as not ready, but for a change in the world or the registry."""
    return Verdict("endpoints lost", str(len(soak.lost)), "0", not soak.lost)


def right(soak: Soak) -> Verdict:
    """At the end every Service publishes what it ought to, and nothing else is published."""
    return Verdict("wrong at the end", str(len(soak.wrong)), "0", not soak.wrong)


def log(soak: Soak, expected: Sequence[Expected]) -> Verdict:
    """Every warning and error is one that a fault of that moment explains."""
    strange = unexpected(soak, expected)
    warned = sum(bool(severe(each)) for each in soak.log)
    return Verdict(
        "log lines outside the list written before", f"{len(strange)} of {warned} warnings and errors", "0", not strange
    )


def severe(line: str) -> dict[str, Any] | None:
    """A line of the log that is a warning or worse, or that is none of the hub's at all; None for others."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {"time": "", "level": "critical", "message": line}
    if not isinstance(entry, dict) or "level" not in entry:
        return {"time": "", "level": "critical", "message": line}
    return entry if entry["level"] not in ("debug", "info") or "traceback" in entry else None


def unexpected(soak: Soak, expected: Sequence[Expected]) -> list[str]:
    """The warnings and errors that no fault explains."""
    faults = sorted(soak.faults, key=lambda each: each.begin)
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
    active = covered(faults, moment, LINGER)
    for each in expected:
        match = each.pattern.match(entry["message"])
        if match is not None:
            cluster = match.groupdict().get("cluster")
            if any(one.what in each.faults and cluster in (None, one.cluster) for one in active):
                return True
    return False


# --- what is shown -------------------------------------------------------------------------------


def table(found: Iterable[Verdict]) -> str:
    """In Markdown."""
    rows = [f"| {each.what} | {each.found} | {each.limit} | {'met' if each.met else 'missed'} |" for each in found]
    return "\n".join(["| | found | limit | |", "|---|---|---|---|", *rows])


def graph(soak: Soak, title: str) -> str:
    """An SVG of the run: memory, descriptors and tasks, CPU, Services not yet right, faults under way."""
    minutes = Axis("", low=0.0, high=soak.seconds / 60)
    last = Axis("minutes; yellow: the hub's API server restarts", low=0.0, high=soak.seconds / 60)
    bands = [
        Band(each.begin / 60, (each.end + 10) / 60, "the hub's API server restarts")
        for each in soak.faults
        if each.what == "hub-api"
    ]

    def line(key: str, name: str = "") -> Series:
        return Series(name, [(each["at"] / 60, each[key]) for each in soak.samples])

    grows = slope(soak, "rss") / 60
    window = [each for each in soak.samples if each["at"] >= soak.seconds * SETTLED]
    middle = statistics.median(each["rss"] - grows * each["at"] / 60 for each in window)
    ends = [(each["at"] / 60, middle + grows * each["at"] / 60) for each in (window[0], window[-1])]
    fit = Series(f"Theil–Sen {grows * 60:+.2f} MiB/h", ends, dashed=True)
    made = [each for each in soak.faults if each.what not in NOT_MADE]
    under_way = [
        (each["at"] / 60, float(sum(one.begin <= each["at"] <= one.end for one in made))) for each in soak.samples
    ]
    panels = [
        Panel("Memory", minutes, Axis("MiB", low=0.0), (line("rss", "resident"), fit), bands),
        Panel(
            "Open descriptors, tasks", minutes, Axis("", low=0.0), (line("fds", "fds"), line("tasks", "tasks")), bands
        ),
        Panel("CPU", minutes, Axis("% of a core", low=0.0), (line("cpu"),), bands),
        Panel("Services not (yet) as they ought to be", minutes, Axis("", low=0.0), (line("behind"),), bands),
        Panel("Faults under way", last, Axis("", low=0.0), (Series("", under_way),), bands),
    ]
    return svg(panels, title=title)
