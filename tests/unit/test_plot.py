"""The graphs of the documentation: elements are drawn at the place of their values."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from benchmarks.plot import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Band,
    Panel,
    Series,
    linear_ticks,
    log_ticks,
    number,
    svg,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(panel: Panel, tag: str) -> list[ET.Element]:
    """The elements of one kind in a graph with one panel."""
    return list(ET.fromstring(svg([panel])).iter(SVG + tag))


def line(panel: Panel) -> list[tuple[float, float]]:
    """The corners of the graph's first line."""
    points = drawn(panel, "polyline")[0].get("points", "")
    return [(float(x), float(y)) for x, y in (each.split(",") for each in points.split())]


def test_line_goes_from_corner_to_corner() -> None:
    """The smallest values are at the bottom left, the greatest at the top right, and the mean in the centre."""
    axis = Axis("x", low=0, high=10)
    found = line(Panel("", axis, axis, [Series("", [(0, 0), (5, 5), (10, 10)])]))
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    assert found == [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]


def test_equal_factors_are_equal_steps_on_a_logarithmic_axis() -> None:
    """On a logarithmic axis equal factors are equal steps, and a power law is a straight line."""
    panel = Panel("", Axis("x", log=True), Axis("y", log=True), [Series("", [(1, 3), (10, 30), (100, 300)])])
    (x0, y0), (x1, y1), (x2, y2) = line(panel)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)


def test_values_beyond_a_given_end_are_drawn_at_the_edge() -> None:
    """Values beyond the axis are drawn at the edge of the panel."""
    panel = Panel("", Axis("x", low=0, high=1), Axis("y", low=0, high=1), [Series("", [(-5, 0), (0.5, 9)])])
    assert line(panel) == [(LEFT, HEIGHT - BOTTOM), ((LEFT + WIDTH - RIGHT) / 2, TOP)]


def test_dots_bands_and_legend_are_there() -> None:
    """A graph has one circle per value, one box with a name per band, and the names of the series."""
    series = [Series("measured", [(1, 1), (2, 4)], line=False, dots=True), Series("fit", [(1, 1), (2, 4)], dashed=True)]
    panel = Panel("A & B", Axis("x"), Axis("y"), series, [Band(1.2, 1.4, "down <here>")])
    assert len(drawn(panel, "circle")) == 2
    assert [each.get("stroke-dasharray") for each in drawn(panel, "polyline")] == ["6 4"]
    assert [each.text for each in drawn(panel, "title")] == ["down <here>"]
    assert {"measured", "fit", "A & B"} <= {each.text for each in drawn(panel, "text")}


def test_panels_lie_in_columns() -> None:
    """Four panels in two columns are two rows."""
    panel = Panel("", Axis("x"), Axis("y"), [Series("", [(0, 0), (1, 1)])])
    text = svg([panel] * 4, columns=2)
    assert re.findall(r"translate\((\d+) (\d+)\)", text) == [(str(x), str(y)) for y in (0, HEIGHT) for x in (0, WIDTH)]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_values_that_cannot_be_drawn_are_refused(value: float) -> None:
    """NaN, infinity and, on a logarithmic axis, values up to 0 are refused."""
    with pytest.raises(ValueError, match="milliseconds"):
        svg([Panel("", Axis("x"), Axis("milliseconds", log=True), [Series("", [(1, value), (2, 2)])])])


def test_equal_values_get_room() -> None:
    """Equal values are drawn as a flat line."""
    assert len(line(Panel("", Axis("x"), Axis("y"), [Series("", [(1, 7), (2, 7)])]))) == 2


def test_marks_are_round() -> None:
    """The marks of an axis are round numbers that enclose all values."""
    assert linear_ticks(0, 60) == [0, 20, 40, 60]
    assert linear_ticks(187, 221) == [180, 190, 200, 210, 220, 230]
    assert log_ticks(50, 500) == [50, 100, 200, 500]
    assert log_ticks(3, 2_000_000) == [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000]
    assert [number(each) for each in (0.2, 50.0, 2000.0)] == ["0.2", "50", "2000"]
