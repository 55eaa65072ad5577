"""The drawings of the last hours, from recorded changes."""

from __future__ import annotations

import re

import pytest

from hub.events.timeline import WINDOW, Mark, Point, Recent, Span
from hub.report.page.charts import PLOT, Area, Bar, Chart, Shown, chart, strip

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


def test_whole_chart() -> None:
    """A chart has the areas of the points in its window, a gap while they are unknown, and the marks in the window."""
    points = (
        Point(NOW - 1200, (0, 0, 3), 0),  # over when the window begins
        Point(NOW - 900, (1, 0, 1), 0),
        Point(NOW - 600, (2, 0, 0), 1),
        Point(NOW - 450, (0, 0, 0), None),
        Point(NOW - 300, (5, 0, 1), 1),
    )
    marks = (Mark(NOW - 901, "leader", "too old"), Mark(NOW - 900, "panic"), Mark(NOW - 600, "failover", "eu"))
    assert chart(Recent(NOW - 900, ("eu", "us", ""), points, marks), NOW + 0.5) == Chart(
        since="2027-01-15T07:45:00Z",
        areas=(
            Area(
                "eu",
                "layer0",
                "M0.0 100.0V87.5H333.3V75.0H500.0V100.0H333.3V100.0H0.0ZM666.7 100.0V37.5H1000.0V100.0H666.7Z",
                5,
                96.2,
            ),
            Area(
                "other sources",
                "layer1",
                "M0.0 87.5V75.0H333.3V75.0H500.0V75.0H333.3V87.5H0.0ZM666.7 37.5V25.0H1000.0V37.5H666.7Z",
                1,
                43.8,
            ),
            Area(
                "not ready",
                "waits",
                "M0.0 75.0V75.0H333.3V62.5H500.0V75.0H333.3V75.0H0.0ZM666.7 25.0V12.5H1000.0V25.0H666.7Z",
                1,
                26.2,
            ),
        ),
        marks=(
            Shown(0.0, "▲", "2027-01-15T07:45:00Z", "no endpoint would be ready, so failed checks are ignored"),
            Shown(33.33, "⇄", "2027-01-15T07:50:00Z", "eu is the active source"),
        ),
        top=8,
        hours=("07:45", "07:52", "08:00"),
        text="Published endpoints from 07:45 to 08:00 UTC: 2 to 7, now 7",
    )


def test_area_has_a_name_from_15_pixels_on() -> None:
    """With 140 pixels for 140 endpoints, 15 endpoints have room for a name, and 14 have not."""
    areas = chart(Recent(NOW - HOUR, ("eu", ""), (Point(NOW - HOUR, (15, 125), 0),)), NOW).areas
    assert [(area.name, area.label) for area in areas] == [("eu", 132.5), ("other sources", 62.5)]
    areas = chart(Recent(NOW - HOUR, ("eu", ""), (Point(NOW - HOUR, (14, 126), 0),)), NOW).areas
    assert [(area.name, area.label) for area in areas] == [("eu", None), ("other sources", 63.0)]


def test_times_of_a_window_below_ten_minutes_have_seconds() -> None:
    """From ten minutes on, minutes are enough."""
    assert chart(Recent(NOW - 599, ("eu", "")), NOW) == Chart(
        "2027-01-15T07:50:01Z",
        (),
        (),
        1,
        ("07:50:01", "07:55:00", "08:00:00"),
        "Published endpoints from 07:50:01 to 08:00:00 UTC: now not known",
    )
    assert chart(Recent(NOW - 600, ("eu", "")), NOW).hours == ("07:50", "07:55", "08:00")


def test_whole_strip() -> None:
    """A strip begins with its window; a state of no time has a thin bar and no share, an unknown state is idle."""
    spans = (
        Span(NOW - WINDOW - 100, "Pending"),
        Span(NOW - WINDOW, "Ready"),
        Span(NOW - 7000, "Syncing"),
        Span(NOW - 7000, "Degraded"),
        Span(NOW - 6999, ""),
    )
    assert strip(spans, NOW - WINDOW - 200, NOW + 0.9) == (
        (
            Bar(0.0, 67.59, 5, "good", "Ready from 02:00:00 UTC"),
            Bar(67.59, 0.5, 2, "idle", "Syncing from 06:03:20 UTC"),
            Bar(67.59, 0.5, 11, "warn", "Degraded from 06:03:20 UTC"),
            Bar(67.6, 32.4, 2, "idle", "not followed from 06:03:21 UTC"),
        ),
        "68 % Ready",
        "since 02:00 UTC: Ready 68 %, Degraded 1 %, not followed 32 %",
    )


def test_strip_of_a_young_process_covers_a_minute() -> None:
    """The strip of a process that has just started has a width, and a cluster may have been Ready for none of it."""
    since = NOW - 5
    assert strip((Span(since, "Ready"),), since, NOW).bars == (Bar(0.0, 100.0, 5, "good", "Ready from 07:59:55 UTC"),)
    assert strip((Span(since, "Degraded"), Span(since + 15, "Pending")), since, NOW) == (
        (
            Bar(0.0, 25.0, 11, "warn", "Degraded from 07:59:55 UTC"),
            Bar(25.0, 75.0, 2, "idle", "Pending from 08:00:10 UTC"),
        ),
        "0 % Ready",
        "since 07:59 UTC: Degraded 25 %, Pending 75 %",
    )
    assert strip((), NOW, NOW) == ((), "–", "since 08:00 UTC: nothing recorded")
