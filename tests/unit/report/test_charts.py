"""The drawings of the last hours, from recorded changes."""

from __future__ import annotations

import re

import pytest

from hub.events.timeline import WINDOW, Mark, Point, Recent, Span
from hub.report.page.charts import PLOT, chart, strip

NOW = 1_800_000_000
HOUR = 3600


def test_sources_are_stacked_in_steps() -> None:
    """Each source is an area on top of the previous one; endpoints that are not ready are the highest."""
    points = (Point(NOW - HOUR, (2, 2, 0), 0), Point(NOW - HOUR // 2, (2, 1, 0), 1))
    found = chart(Recent(NOW - HOUR, ("eu", "us", ""), points), NOW)
    assert [(area.name, area.style, area.now) for area in found.areas] == [
        ("eu", "layer0", 2),
        ("us", "layer1", 1),
        ("not ready", "waits", 1),
    ]
    assert found.top == 4
    assert found.areas[0].path == "M0.0 100.0V50.0H500.0V50.0H1000.0V100.0H500.0V100.0H0.0Z"
    assert found.areas[1].path == "M0.0 50.0V0.0H500.0V25.0H1000.0V50.0H500.0V50.0H0.0Z"
    assert found.areas[0].label == PLOT * 0.75
    assert found.hours == ("07:00", "07:30", "08:00")
    assert found.text == "Published endpoints from 07:00 to 08:00 UTC: 4 to 4, now 4"


def test_unknown_endpoints_are_a_gap() -> None:
    """While another replica writes, the chart has no area."""
    points = (Point(NOW - 400, (5, 0), 0), Point(NOW - 300, (0, 0), None), Point(NOW - 100, (5, 0), 0))
    found = chart(Recent(NOW - 400, ("eu", ""), points), NOW)
    assert re.findall(r"[MH]([\d.]+)", found.areas[0].path) == ["0.0", "250.0", "0.0", "750.0", "1000.0", "750.0"]
    assert found.text.endswith("5 to 5, now 5")
    assert chart(Recent(NOW - 400, ("eu", ""), points[:2]), NOW).text.endswith("5 to 5, now not known")


def test_only_the_last_hours_are_drawn() -> None:
    """What lies before the window is cut off: its last point begins at the left edge."""
    points = (Point(NOW - 3 * WINDOW, (9, 0), 0), Point(NOW - 2 * WINDOW, (5, 0), 0))
    marks = (Mark(NOW - 2 * WINDOW, "panic"), Mark(NOW - WINDOW // 4, "withheld", "eu"))
    found = chart(Recent(NOW - 3 * WINDOW, ("eu", ""), points, marks), NOW)
    assert found.areas[0].path == "M0.0 100.0V50.0H1000.0V100.0H0.0Z"
    assert [(mark.x, mark.symbol, mark.text) for mark in found.marks] == [(75.0, "◆", "a removal of eu is withheld")]


def test_chart_of_a_service_without_endpoints_is_empty() -> None:
    """There is nothing to divide by, and nothing to draw."""
    for points in ((), (Point(NOW, (0, 0), 0),)):
        found = chart(Recent(NOW, ("eu", ""), points), NOW)
        assert (found.areas, found.top) == ((), 1)


def test_thin_areas_have_no_name_inside() -> None:
    """A name is written only where there is room for it; the legend has it anyway."""
    found = chart(Recent(NOW - HOUR, ("eu", "us", ""), (Point(NOW - HOUR, (99, 1, 0), 0),)), NOW)
    assert [(area.name, area.label is None) for area in found.areas] == [("eu", False), ("us", True)]


@pytest.mark.parametrize(
    ("number", "top"), [(1, 1), (3, 4), (7, 8), (10, 10), (11, 12), (99, 100), (100, 100), (101, 120), (10_001, 12_000)]
)
def test_upper_edge_is_close_above_the_highest_number(number: int, top: int) -> None:
    """The edge is a round number."""
    assert chart(Recent(NOW, ("eu", ""), (Point(NOW, (number, 0), 0),)), NOW).top == top


def test_times_of_a_young_process_have_seconds() -> None:
    """Else all three times could be the same."""
    assert chart(Recent(NOW - 30, ("eu", "")), NOW).hours == ("07:59:30", "08:00:00", "08:00:30")


def test_strip_shows_states_by_height_and_their_shares_in_words() -> None:
    """Worse states are higher; the words say how long the cluster was Ready, and 100 % means always."""
    since = NOW - 1000
    spans = (
        Span(since, "Pending"),
        Span(since + 100, "Ready"),
        Span(since + 899, "Unreachable"),
        Span(NOW - 100, "Ready"),
    )
    found = strip(spans, since, NOW)
    assert [(bar.x, bar.width, bar.kind, bar.height) for bar in found.bars] == [
        (0.0, 10.0, "idle", 2),
        (10.0, 79.9, "good", 5),
        (89.9, 0.5, "bad", 16),
        (90.0, 10.0, "good", 5),
    ]
    assert found.words == "90 % Ready"
    assert found.text == "since 07:43 UTC: Pending 10 %, Ready 90 %, Unreachable 1 %"
    assert strip((Span(since, "Ready"),), since, NOW).words == "100 % Ready"
    assert strip((Span(since, "Ready"), Span(NOW - 1, "Degraded")), since, NOW).words == "99 % Ready"


def test_strip_of_an_unknown_cluster_is_empty() -> None:
    """A cluster that no process follows has no bars."""
    assert strip((), NOW, NOW)[:2] == ((), "–")
