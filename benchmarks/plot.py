"""Draws the graphs of the documentation as SVG: lines and dots over linear or logarithmic axes.

Pure: values in, text out. A graph has panels, one above the other or in columns. The same numbers always give the same
bytes, so a graph changes in git only if its figures change.

    hub = Series("hub", ((50, 1.0), (100, 2.1)), dots=True)
    cpu = Panel("CPU", Axis("clusters", log=True), Axis("% of a core", log=True), (hub,))
    Path("cpu.svg").write_text(svg([cpu], title="CPU by size"))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

COLOURS = ("#1f5fa8", "#c2410c", "#15803d", "#7c3aed", "#0e7490", "#a16207")
"""Colours of the series, in order; each has a contrast of at least 4.5 on white."""
WIDTH, HEIGHT = 760, 190
"""Size of a panel with its labels, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 28, 40
"""Margins around the axes of a panel, in pixels."""
TITLE = 34
"""Height of the title above all panels, in pixels."""
TICKS = 5
"""Approximate number of marks on a linear axis."""
FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a panel.

    Attributes:
        label: with its unit.
        log: logarithmic to base 10; values must be positive.
        low: first value; None = the smallest value, or 0 on a linear axis if that is near.
        high: last value; None = the largest value.
    """

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one line.

    Attributes:
        name: name in the legend; empty = not in the legend.
        points: (x, y), in the order in which the line joins them.
        line: whether a line joins the points.
        dots: whether each point has a dot.
        dashed: the line is a guide or a fit, not a measurement.
    """

    name: str
    points: Sequence[Point]
    line: bool = True
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A coloured part of the x axis in the background, for instance an outage; ``name`` is its tooltip."""

    begin: float
    end: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A pair of axes with its series and bands."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    bands: Sequence[Band] = ()


def svg(panels: Sequence[Panel], *, title: str = "", columns: int = 1) -> str:
    """Return an SVG document of panels, row by row.

    Raises:
        ValueError: there is no panel, or a value is not finite, or not above 0 on a logarithmic axis.
    """
    if not panels:
        raise ValueError("a graph has at least one panel")
    rows = math.ceil(len(panels) / columns)
    above = TITLE if title else 0
    wide, high = WIDTH * columns, HEIGHT * rows + above
    size = f"viewBox='0 0 {wide} {high}' width='{wide}' height='{high}'"
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {FONT} font-size='11' fill='#333'>"]
    if title:
        parts.append(f"<title>{escape(title)}</title>")
    parts.append("<rect width='100%' height='100%' fill='#fff'/>")  # white background, on a dark page too
    if title:
        parts.append(_text(LEFT, 22, title, "font-size='15' font-weight='600'"))
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        parts.append(f"<g transform='translate({column * WIDTH} {above + row * HEIGHT})'>")
        parts += _panel(panel)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """Converts values to pixels, and chooses the marks."""

    def __init__(self, axis: Axis, values: Iterable[float], begin: float, end: float) -> None:
        found = list(values)
        if any(not math.isfinite(value) or (axis.log and value <= 0) for value in found):
            raise ValueError(f"{axis.label}: a value that cannot be drawn")
        low = min(found, default=1.0) if axis.low is None else axis.low
        high = max(found, default=low + 1) if axis.high is None else axis.high
        if not axis.log and axis.low is None and 0 < low < high / 2:
            low = 0.0
        self.log = axis.log
        if low >= high:  # all values are equal: leave some room around them
            low, high = (low / 2, low * 2) if axis.log else (low - 0.5, low + 0.5)
        self.ticks = log_ticks(low, high) if axis.log else linear_ticks(low, high)
        self.low = min(low, self.ticks[0]) if axis.low is None else low
        self.high = max(high, self.ticks[-1]) if axis.high is None else high
        self.ticks = [tick for tick in self.ticks if self.low <= tick <= self.high]
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        """Convert a value to pixels. A value outside of the axis is put at its end."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        share = math.log(at / low) / math.log(high / low) if self.log else (at - low) / (high - low)
        return round(self._begin + share * (self._end - self._begin), 1)


def linear_ticks(low: float, high: float) -> list[float]:
    """Return marks 1, 2 or 5 × 10ⁿ apart, from the last one ≤ ``low`` to the first one ≥ ``high``."""
    raw = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, and 2 and 5 times them if there are few; the first is ≤ ``low``, the last ≥ ``high``."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    every = sorted(factor * 10.0**power for power in range(first, last + 1) for factor in factors)
    begin = max((tick for tick in every if tick <= low * (1 + 1e-9)), default=every[0])
    end = min((tick for tick in every if tick >= high * (1 - 1e-9)), default=every[-1])
    return [tick for tick in every if begin <= tick <= end]


def _panel(panel: Panel) -> list[str]:
    points = [point for series in panel.series for point in series.points]
    x = _Scale(panel.x, (point[0] for point in points), LEFT, WIDTH - RIGHT)
    y = _Scale(panel.y, (point[1] for point in points), HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, TOP - 10, panel.title, "font-size='12' font-weight='600'"), *_bands(panel.bands, x)]
    parts += _axes(panel, x, y)
    for number, series in enumerate(panel.series):
        parts += _series(series, COLOURS[number % len(COLOURS)], x, y)
    return parts + _legend(panel.series)


def _bands(bands: Iterable[Band], x: _Scale) -> list[str]:
    parts = []
    for band in bands:
        begin, width = x(band.begin), max(1.0, x(band.end) - x(band.begin))
        box = f"x='{begin}' y='{TOP}' width='{width:.1f}' height='{HEIGHT - TOP - BOTTOM}' fill='#f59e0b' opacity='.16'"
        parts.append(f"<rect {box}><title>{escape(band.name)}</title></rect>")
    return parts


def _axes(panel: Panel, x: _Scale, y: _Scale) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y.ticks:
        at = y(tick)
        parts.append(f"<path d='M{LEFT} {at}H{right}' stroke='#ddd'/>")
        parts.append(_text(LEFT - 6, at + 4, number(tick), "text-anchor='end'"))
    for tick in x.ticks:
        at = x(tick)
        parts.append(f"<path d='M{at} {bottom}v4' stroke='#333'/>")
        parts.append(_text(at, bottom + 16, number(tick), "text-anchor='middle'"))
    parts.append(f"<path d='M{LEFT} {TOP}V{bottom}H{right}' fill='none' stroke='#333'/>")
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, panel.x.label, "text-anchor='middle'"))
    middle = (TOP + bottom) / 2
    turned = f"text-anchor='middle' transform='rotate(-90 14 {middle:g})'"
    parts.append(_text(14, middle, panel.y.label, turned))
    return parts


def _series(series: Series, colour: str, x: _Scale, y: _Scale) -> list[str]:
    at = [(x(point[0]), y(point[1])) for point in series.points]
    parts = []
    if series.line and at:
        dash = " stroke-dasharray='6 4'" if series.dashed else ""
        joined = " ".join(f"{across},{up}" for across, up in at)
        parts.append(f"<polyline points='{joined}' fill='none' stroke='{colour}' stroke-width='1.5'{dash}/>")
    if series.dots:
        parts += [f"<circle cx='{across}' cy='{up}' r='3' fill='{colour}'/>" for across, up in at]
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    """Draw the names at the top right, from right to left."""
    parts, right = [], float(WIDTH - RIGHT)
    for position, one in reversed(list(enumerate(series))):
        if one.name:
            parts.append(
                _text(right, TOP - 10, one.name, f"text-anchor='end' style='fill:{COLOURS[position % len(COLOURS)]}'")
            )
            right -= 6.2 * len(one.name) + 14  # 6.2: approximate width of a letter
    return parts


def number(value: float) -> str:
    """Return a number without superfluous digits, such as 0.2, 50 or 2000."""
    return f"{value:.0f}" if value == round(value) else f"{value:.6g}"


def _text(x: float, y: float, text: str, more: str) -> str:
    return f"<text x='{x:g}' y='{y:g}' {more}>{escape(text)}</text>"
