"""``hub status --watch``: the tables of a running hub, kept up to date in a terminal, or a line for each change."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from hub.cli.print_status import CLUSTERS, SERVICES, cluster_row, notes, replica_text, service_row
from hub.cli.render import count, one_line
from hub.cli.reserved import summary
from hub.cli.server import Server, fetch
from hub.errors import HubError
from hub.report.values import Cluster, Service, Status
from hub.runtime.clock import SystemClock, rfc3339

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

INTERVAL: Final = 2.0
"""Seconds between requests; the hub computes an answer at most twice a second."""


async def watch_status(server: Server) -> None:
    """Show the status of a running hub until cancelled.

    Raises:
        HubError: the first request failed; later ones are repeated.
    """
    first = await fetch(server, "/api/v1/status", Status)
    if sys.stdout.isatty():
        await _in_terminal(first, _later(server))
    else:
        await _in_lines(first, _later(server))


async def _later(server: Server) -> AsyncIterator[Status | HubError]:
    """Further answers of the hub; an error if it does not answer."""
    while True:
        await asyncio.sleep(INTERVAL)
        try:
            yield await fetch(server, "/api/v1/status", Status)
        except HubError as error:
            yield error


def _now() -> str:
    return rfc3339(SystemClock().wall())


# --- lines -----------------------------------------------------------------------------------------------


async def _in_lines(first: Status, later: AsyncIterator[Status | HubError]) -> None:
    shown, problem = first, ""
    click.echo(f"{_now()} {overview(first)}")
    async for answer in later:
        if isinstance(answer, HubError):
            if not problem:
                click.echo(f"{_now()} no answer, asking again: {one_line(str(answer))}")
            problem = str(answer)
            continue
        if problem:
            click.echo(f"{_now()} the hub answers again")
        for line in changes(shown, answer):
            click.echo(f"{_now()} {line}")
        shown, problem = answer, ""


def overview(found: Status) -> str:
    """The replica and the number of clusters and Services, in one line."""
    number = f"{count(len(found.clusters), 'cluster')}, {count(len(found.services), 'Service')}"
    return f"{one_line(replica_text(found))}; {number}"


def changes(old: Status, new: Status) -> Iterator[str]:
    """One line for each cluster, Service or other part that changed."""
    before, after = _parts(old), _parts(new)
    for name in [*after, *(name for name in before if name not in after)]:
        if before.get(name) != after.get(name):
            yield f"{one_line(name)}: {one_line(after.get(name, 'gone'))}"


def _parts(found: Status) -> Mapping[str, str]:
    """What a line names -> its state in words."""
    parts = {"hub": replica_text(found)}
    if found.registry.withheld is not None:
        parts["registry"] = f"{found.registry.withheld.message}; approve with: {found.registry.withheld.approve}"
    if found.allocations is not None:
        parts["allocations"] = summary(found.allocations)
    for cluster in found.clusters:
        _, mode, state, _, nodes, error = cluster_row(cluster)
        words = [str(mode), str(state), f"{nodes} nodes" if nodes != "" else "", str(error)]
        parts[f"cluster {cluster.name}"] = ", ".join(filter(None, words))
    for service in found.services:
        _, status, ready, sources = service_row(service)
        parts[service.name] = f"{status}; {ready} ready; {sources or 'no sources'}"
        for held in service.withheld:
            parts[f"{service.name} {held.cluster} {held.family}"] = f"{held.message}; approve with: {held.approve}"
    return parts


# --- a terminal -------------------------------------------------------------------------------------------


async def _in_terminal(first: Status, later: AsyncIterator[Status | HubError]) -> None:
    from rich.live import Live

    shown, at = first, _now()
    with Live(picture(shown, f"as of {at}; Ctrl-C ends"), auto_refresh=False) as live:
        async for answer in later:
            if isinstance(answer, HubError):
                footer = f"✗ no answer since {at}, asking again: {one_line(str(answer))}"
            else:
                shown, at = answer, _now()
                footer = f"as of {at}; Ctrl-C ends"
            live.update(picture(shown, footer), refresh=True)


def picture(found: Status, footer: str) -> RenderableType:
    """The status for a terminal. Problems come first, since a terminal cuts off what is too long."""
    from rich.console import Group
    from rich.text import Text

    clusters, services = sorted(found.clusters, key=_is_fine), sorted(found.services, key=_works)
    parts: list[RenderableType] = [Text(footer, style="red" if footer.startswith("✗") else "dim")]
    parts += [Text(replica_text(found), style="bold")]
    parts += [Text.from_ansi(f"\n{block}") for block in notes(found)]
    if found.allocations is not None:
        parts += [Text(f"\n{summary(found.allocations)}")]
    parts += [Text(), _table(CLUSTERS, map(cluster_row, clusters), [_is_fine(cluster) for cluster in clusters])]
    parts += [Text(), _table(SERVICES, map(service_row, services), [_works(service) for service in services])]
    return Group(*parts)


def _table(headers: Sequence[str], rows: Iterable[Sequence[object]], fine: Sequence[bool]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(*headers, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for row, good in zip(rows, fine, strict=True):
        cells = [Text(one_line(str(cell)) or "-") for cell in row]  # not a str: rich would interpret its markup
        table.add_row(*cells, style="" if good else "yellow")
    return table


def _is_fine(cluster: Cluster) -> bool:
    return cluster.state in ("Ready", "") and not cluster.error


def _works(service: Service) -> bool:
    unknown = any(source.unknown for source in service.sources)
    return not (service.problem or service.withheld or unknown) and service.ready == service.total > 0
