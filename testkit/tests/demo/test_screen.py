"""Tests of the rendered picture, without a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hub_testkit.demo.screen import ClusterRow, Count, Event, Picture, ServiceRow, duration, render
from rich.console import Console

PICTURE = Picture(
    elapsed=12.3,
    left=17.7,
    clusters=(
        ClusterRow("payments-eu", "Ready", 12.0, Count(7, 7)),
        ClusterRow("payments-us", "Unreachable", 3.1, Count(6, 7), "connection refused"),
        ClusterRow("payments-ap", "Ready", 2.0, Count(7, 7), "connection lost", 4.0),
    ),
    services=(
        ServiceRow("edge/payments", (Count(7, 7), Count(6, 7), Count(7, 7))),
        ServiceRow("edge/refunds", (None, Count(4, 4), None), "failover"),
    ),
    events=tuple(Event(float(n), f"event {n}") for n in range(50)),
    changes=57,
    writes=64,
    heartbeats=640,
    idle_writes=0,
    lost=0,
    latencies=(0.010, 0.034, 0.5),
    footer=("in /tmp/x: clusters.yaml",),
)


def rendered(picture: Picture, width: int = 120, lines: int = 40) -> list[str]:
    """Renders the picture as lines of text."""
    console = Console(record=True, width=width, height=lines, file=io.StringIO())
    console.print(render(picture, lines))
    return console.export_text().splitlines()


def row(lines: list[str], name: str) -> list[str]:
    """Returns the words of the line that begins with a name."""
    return next(line.split() for line in lines if line.startswith(name))


def test_render_shows_services_and_clusters() -> None:
    """A Service has its endpoints by cluster and in total; a cluster has its state, its age and the last error."""
    lines = rendered(PICTURE)
    assert row(lines, "edge/payments") == ["edge/payments", "20/21", "7/7", "6/7", "7/7"]
    assert row(lines, "edge/refunds") == ["edge/refunds", "4/4", "·", "4/4", "·", "failover"]
    assert row(lines, "payments-us") == ["payments-us", "Unreachable", "3.1", "s", "6/7", "connection", "refused"]
    assert " ".join(row(lines, "payments-ap")).endswith("connection lost (4.0 s ago)")


def test_render_sums_up() -> None:
    """The picture has the totals of changes, writes, latencies, heartbeats and losses, and the time that is left."""
    text = "\n".join(rendered(PICTURE))
    assert "changes: 57 → writes: 64 · half within 34 ms, all within 500 ms" in text
    assert "heartbeats: 640 → writes: 0 · endpoints lost: 0" in text
    assert "12 s, 18 s to go" in text
    assert "until Ctrl-C" in "\n".join(rendered(replace(PICTURE, left=None)))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 30), (200, 60)])
def test_render_fits_the_terminal(width: int, height: int) -> None:
    """The picture fits into the terminal, always has the newest event, and cuts no count."""
    lines = rendered(PICTURE, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any("event 49" in line for line in lines)
    assert row(lines, "edge/payments")[1:] == ["20/21", "7/7", "6/7", "7/7"]
    assert row(lines, "payments-us")[1] == "Unreachable"


def test_render_leaves_out_the_oldest_events() -> None:
    """A terminal with fewer lines shows fewer events, and always the newest."""
    shown = [line for line in rendered(PICTURE, lines=24) if "event" in line]
    assert 0 < len(shown) < 10
    assert "event 49" in shown[-1]


@pytest.mark.parametrize(("seconds", "text"), [(0.034, "34 ms"), (2.14, "2.1 s"), (185.0, "3m05s"), (59.97, "60.0 s")])
def test_duration_is_short(seconds: float, text: str) -> None:
    """A duration is written in milliseconds, seconds or minutes."""
    assert duration(seconds) == text
