"""The demo's picture as plain values, and its rendering as a table. Rendering is a pure function without the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Tone = str
"""A rich style."""

STATE_TONES: Final = {"Ready": "green", "Unreachable": "red", "Degraded": "yellow"}
CHROME: Final = 17
"""The number of lines of a picture besides its events and its footer."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of endpoints or nodes: the ready ones, and all."""

    ready: int
    total: int

    def __str__(self) -> str:
        return f"{self.ready}/{self.total}"


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A Service.

    Attributes:
        counts: Published endpoints by cluster, in the picture's order; None if the cluster is no source in use.
        note: A remark, such as the strategy.
    """

    name: str
    counts: tuple[Count | None, ...]
    note: str = ""

    @property
    def sum(self) -> Count:
        """The sum over all clusters."""
        counts = [count for count in self.counts if count is not None]
        return Count(sum(count.ready for count in counts), sum(count.total for count in counts))


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A remote cluster as the hub sees it.

    Attributes:
        since: Seconds in ``state``.
        nodes: Nodes that report, and all, as the cluster itself knows them.
        error: The last error, also if it is over; "" = none so far.
        error_age: Seconds since the error was over; None = it still holds.
    """

    name: str
    state: str
    since: float
    nodes: Count
    error: str = ""
    error_age: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """An event to show, ``at`` seconds after the start."""

    at: float
    text: str
    tone: Tone = ""

    def __str__(self) -> str:
        return f"{self.at:6.1f}s  {self.text}"


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is shown at one moment.

    Attributes:
        elapsed: Seconds since the start.
        left: Seconds until the end; None = until Ctrl-C.
        latencies: Seconds until publication, of each change.
        footer: Lines with the demo's files and a command to try.
        ending: Whether there are no more incidents.
    """

    elapsed: float
    left: float | None
    clusters: Sequence[ClusterRow]
    services: Sequence[ServiceRow]
    events: Sequence[Event]
    changes: int
    writes: int
    heartbeats: int
    idle_writes: int
    lost: int
    latencies: Sequence[float] = ()
    footer: tuple[str, ...] = ()
    ending: bool = False


def render(picture: Picture, lines: int = 40) -> RenderableType:
    """Renders the picture, at most ``lines`` high; the oldest events are left out if there is not enough room."""
    room = max(1, lines - CHROME - len(picture.footer))
    return Group(
        _title(picture),
        _services(picture),
        _clusters(picture),
        _totals(picture),
        Text(),
        *(_line(str(event), event.tone) for event in picture.events[-room:]),
        Text(),
        *(_line(line, "dim") for line in picture.footer),
    )


def duration(seconds: float) -> str:
    """Formats seconds as ``34 ms``, ``2.1 s`` or ``3m05s``."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f}m{seconds % 60:02.0f}s"


def _title(picture: Picture) -> Text:
    end = "until Ctrl-C" if picture.left is None else f"{max(0.0, picture.left):.0f} s to go"
    if picture.ending:
        end = "ending"
    text = Text("EndpointSlice Hub", style="bold", no_wrap=True, overflow="ellipsis")
    return text.append(f" demo · simulated clusters, the real hub · {picture.elapsed:.0f} s, {end}", style="not bold")


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1])  # only this column is shortened if the terminal is too narrow
    return table


def _services(picture: Picture) -> Table:
    table = _table("SERVICE", "READY/ALL", *(row.name for row in picture.clusters), "")
    for row in picture.services:
        table.add_row(row.name, _count(row.sum, bold=True), *map(_count, row.counts), _line(row.note, "dim"))
    return table


def _count(count: Count | None, *, bold: bool = False) -> Text:
    if count is None:
        return Text("·", style="dim")
    tone = "red" if count.total == 0 else "green" if count.ready == count.total else "yellow"
    return Text(str(count), style=f"bold {tone}" if bold else tone)


def _clusters(picture: Picture) -> Table:
    table = _table("CLUSTER", "STATE", "SINCE", "NODES UP", "LAST ERROR")
    for row in picture.clusters:
        over = row.error_age is not None
        error = f"{row.error} ({duration(row.error_age)} ago)" if row.error and row.error_age is not None else row.error
        table.add_row(
            row.name,
            Text(row.state, style=STATE_TONES.get(row.state, "cyan")),
            duration(row.since),
            _count(row.nodes),
            _line(error, "dim" if over else "red"),
        )
    return table


def _totals(picture: Picture) -> Text:
    text = Text()
    text.append(f"changes: {picture.changes} → writes: {picture.writes}", style="bold")
    if picture.latencies:
        slowest = duration(max(picture.latencies))
        text.append(f" · half within {duration(median(picture.latencies))}, all within {slowest}")
    text.append(f"\nheartbeats: {picture.heartbeats} → writes: {picture.idle_writes} · ")
    return text.append(f"endpoints lost: {picture.lost}", style="bold red" if picture.lost else "bold green")


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
