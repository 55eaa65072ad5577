"""The drawings of the last hours: the endpoints of a Service, and the states of a cluster.

Pure functions of recorded changes. Times become per cent of the width, so that text and shapes keep their size on a
phone; only the areas of the chart are stretched.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from hub.events.timeline import WINDOW, Mark, Point, Recent, Span
from hub.report.page.signs import STATES, Sign
from hub.runtime.clock import rfc3339

PLOT: Final = 140.0
"""Height of the areas of a chart, in pixels."""
LABELLED: Final = 15.0
"""Height from which an area has its source's name in it, in pixels."""
THINNEST: Final = 0.5
"""Width of the shortest state of a cluster, in per cent."""
HEIGHTS: Final = {"bad": 16, "warn": 11, "good": 5, "idle": 2}
"""Kind of a state -> height of its bar, so that a problem is seen without colours."""

STEPS: Final = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 30, 40, 50, 60, 80, 100)
"""Numbers at the upper edge of a chart, times a power of ten."""

MARKS: Final = {
    "withheld": ("◆", "a removal of {} is withheld"),
    "released": ("◇", "no removal of {} is withheld any more"),
    "panic": ("▲", "no endpoint would be ready, so failed checks are ignored"),
    "panic over": ("△", "failed checks count again"),
    "failover": ("⇄", "{} is the active source"),
    "leader": ("●", "{}"),
}
"""Kind of a mark -> its shape and its words."""


class Area(NamedTuple):
    """One source of a chart: its path in a box of 1000 × 100, its present number, and where its name is written."""

    name: str
    style: str
    path: str
    now: int
    label: float | None


class Shown(NamedTuple):
    """A mark of a chart, ``x`` per cent from the left."""

    x: float
    symbol: str
    time: str
    text: str


class Chart(NamedTuple):
    """The chart of a Service. ``top`` is the number at its upper edge; ``hours`` are the ends and the middle."""

    since: str
    areas: tuple[Area, ...]
    marks: tuple[Shown, ...]
    top: int
    hours: tuple[str, str, str]
    text: str


class Bar(NamedTuple):
    """A state in a strip: where it begins and how wide it is, in per cent, and how high, in pixels."""

    x: float
    width: float
    height: int
    kind: str
    text: str


class Strip(NamedTuple):
    """The states of a cluster; ``words`` say how long it was Ready."""

    bars: tuple[Bar, ...]
    words: str
    text: str


def chart(recent: Recent, now: float) -> Chart:
    """The chart of a Service's recent changes."""
    start = max(recent.since, int(now) - WINDOW)
    end = max(int(now), start + 60)  # a process that has just started has no width yet
    points = recent.points
    every = [_total(point) for point in points]
    top = _rounded_up(max(every, default=1))
    columns = [index for index in range(len(recent.sources)) if any(point.ready[index] for point in points)]
    layers = [(recent.sources[index] or "other sources", [point.ready[index] for point in points]) for index in columns]
    if any(point.not_ready for point in points):
        layers.append(("not ready", [point.not_ready or 0 for point in points]))
    areas: list[Area] = []
    below = [0] * len(points)
    for number, (name, values) in enumerate(layers):
        above = [low + value for low, value in zip(below, values, strict=True)]
        style = "waits" if name == "not ready" else f"layer{number}"
        middle = (below[-1] + above[-1]) / 2 / top
        room = values[-1] / top * PLOT >= LABELLED
        label = round((1 - middle) * PLOT, 1) if room else None
        areas.append(Area(name, style, _path(points, below, above, start, end, top), values[-1], label))
        below = above
    marks = tuple(_mark(mark, start, end) for mark in recent.marks if mark.at >= start)
    seconds = end - start < 600
    hours = tuple(rfc3339(at)[11 : 19 if seconds else 16] for at in (start, (start + end) // 2, end))
    known = [total for total, point in zip(every, points, strict=True) if point.not_ready is not None]
    text = f"Published endpoints from {hours[0]} to {hours[2]} UTC: "
    now_known = bool(points) and points[-1].not_ready is not None
    text += f"{min(known)} to {max(known)}, " if known else ""
    text += f"now {known[-1]}" if now_known else "now not known"
    return Chart(rfc3339(recent.since), tuple(areas), marks, top, (hours[0], hours[1], hours[2]), text)


def _total(point: Point) -> int:
    return sum(point.ready) + (point.not_ready or 0)


def _rounded_up(number: int) -> int:
    """The number at the upper edge of a chart: at least ``number``, and mostly even, so that its half is whole."""
    power = int("1" + "0" * max(0, len(str(number)) - 2))
    return next(step * power for step in STEPS if step * power >= number)


def _path(points: Sequence[Point], below: Sequence[int], above: Sequence[int], start: int, end: int, top: int) -> str:
    """The outline of an area, in steps. It is interrupted where the endpoints are not known."""

    def x(at: int) -> str:
        return f"{(min(max(start, at), end) - start) / (end - start) * 1000:.1f}"

    def y(number: int) -> str:
        return f"{100 - 100 * number / top:.1f}"

    parts: list[str] = []
    ends = [*(point.at for point in points[1:]), end]
    steps = [step for step in zip(points, ends, below, above, strict=True) if step[1] > start]
    for known, group in groupby(steps, key=lambda step: step[0].not_ready is not None):
        if not known:
            continue
        run = list(group)
        upper = "".join(f"V{y(high)}H{x(until)}" for _, until, _, high in run)
        lower = "".join(f"V{y(low)}H{x(point.at)}" for point, _, low, _ in reversed(run))
        parts.append(f"M{x(run[0][0].at)} {y(run[0][2])}{upper}{lower}Z")
    return "".join(parts)


def _mark(mark: Mark, start: int, end: int) -> Shown:
    symbol, words = MARKS[mark.kind]
    return Shown(_per_cent(mark.at, start, end), symbol, rfc3339(mark.at), words.format(mark.about))


def _per_cent(at: int, start: int, end: int) -> float:
    return round((min(max(at, start), end) - start) / (end - start) * 100, 2)


def strip(spans: Sequence[Span], since: int, now: float) -> Strip:
    """The strip of a cluster's states since the start of the process, at most of the last hours."""
    start = max(since, int(now) - WINDOW)
    end = max(int(now), start + 60)
    bars: list[Bar] = []
    seconds: dict[str, int] = {}
    for index, span in enumerate(spans):
        until = spans[index + 1].at if index + 1 < len(spans) else end
        if until <= start:
            continue
        sign = STATES.get(span.state, Sign("idle", "○", "not followed"))
        begin = max(start, span.at)
        seconds[sign.words] = seconds.get(sign.words, 0) + until - begin
        x = _per_cent(begin, start, end)
        width = max(THINNEST, _per_cent(until, start, end) - x)
        text = f"{sign.words} from {rfc3339(begin)[11:19]} UTC"
        bars.append(Bar(x, round(width, 2), HEIGHTS[sign.kind], sign.kind, text))
    every = sum(seconds.values())
    shares = {words: _share(part, every) for words, part in seconds.items() if part}
    text = ", ".join(f"{words} {share}" for words, share in shares.items()) or "nothing recorded"
    words = f"{shares.get('Ready', '0 %')} Ready" if every else "–"
    return Strip(tuple(bars), words, f"since {rfc3339(start)[11:16]} UTC: {text}")


def _share(part: int, every: int) -> str:
    """A part in per cent; 100 % only for all of it."""
    return "100 %" if part == every else f"{min(99, max(1, round(100 * part / every)))} %"
