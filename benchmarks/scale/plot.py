"""Draws growth as SVG: a log-log panel for each figure, with the fitted line. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from benchmarks.scale.report import GROWING, Result, points, slope

WIDTH, HEIGHT, GAP = 300, 260, 24
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 44, 40
INK, PALE, MARK = "#24292f", "#d0d7de", "#0969da"


class Panel(NamedTuple):
    """A figure by the number of clusters."""

    title: str
    points: Sequence[tuple[float, float]]


def svg(result: Result) -> str:
    """Return the SVG of a growth run."""
    panels = [Panel(f"{figure.title}, {figure.unit}", points(result["runs"], figure)) for figure in GROWING]
    panels = [panel for panel in panels if panel.points]
    width = len(panels) * WIDTH + (len(panels) + 1) * GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 2 * GAP}" role="img">',
        "<style>text{font:12px sans-serif}</style>",
        "<title>Start-up, memory and CPU by the number of clusters, both scales logarithmic</title>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        lines += [f'<g transform="translate({GAP + number * (WIDTH + GAP)},{GAP})">', *_panel(panel), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    xs, ys = [x for x, _ in panel.points], [y for _, y in panel.points]
    across = _Axis(min(xs) / 1.3, max(xs) * 1.3, LEFT, WIDTH - RIGHT)
    up = _Axis(min(ys) / 1.6, max(ys) * 1.6, HEIGHT - BOTTOM, TOP)
    steep = slope(panel.points)
    title = panel.title + ("" if steep is None else f" (slope {steep:.2f})")
    lines = [f'<text x="{LEFT}" y="{TOP - 14}" fill="{INK}" font-weight="bold">{escape(title)}</text>']
    for x in sorted(set(xs)):
        at = across(x)
        lines.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{PALE}"/>')
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="{INK}">{x:g}</text>')
    for y in up.ticks():
        at = up(y)
        lines.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="{PALE}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="{INK}">{y:g}</text>')
    if steep is not None:
        middle = sum(math.log(y) - steep * math.log(x) for x, y in panel.points) / len(panel.points)
        ends = [(x, math.exp(middle + steep * math.log(x))) for x in (min(xs), max(xs))]
        (x1, y1), (x2, y2) = [(across(x), up(y)) for x, y in ends]
        lines.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{MARK}"/>')
    lines += [
        f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{MARK}" fill-opacity="0.7"/>'
        for x, y in panel.points
    ]
    lines.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle" fill="{INK}">clusters</text>'
    )
    return lines


class _Axis:
    """A logarithmic axis between two pixels."""

    def __init__(self, least: float, most: float, start: float, end: float) -> None:
        self._least, self._most = math.log(least), math.log(most)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        part = (math.log(value) - self._least) / (self._most - self._least)
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Return 1, 2 and 5 times the powers of ten that lie on the axis."""
        powers = range(math.floor(self._least / math.log(10)), math.ceil(self._most / math.log(10)) + 1)
        every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [tick for tick in every if self._least <= math.log(tick) <= self._most]
