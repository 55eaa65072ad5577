"""Prints what a cloud controller keeps: load balancers for ``hub balancers``, Nodes for ``hub nodes``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing
from hub.cli.controlled import unknown
from hub.cli.exits import Exit
from hub.cli.observe import suggestion, warn_of_problems
from hub.cli.render import Output, document, one_line, table, warn
from hub.cli.server import Server, fetch
from hub.report.clouds import clouds_of
from hub.report.values import Clouds, ClusterCloud

BALANCERS: Final = ("SERVICE", "STATE", "SINCE", "INGRESS", "OBJECTS", "NEXT")
NODES: Final = ("NODE", "INSTANCE", "STATE", "SINCE", "PROVIDER ID", "MESSAGE")


async def from_clusters(options: Options, cluster: str | None, output: Output) -> int:
    """Print the load balancers of all clusters or of one, as this command observes them.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub, observing(hub):
        warn_of_problems(hub)
        return show(clouds_of(hub), cluster, output)


async def from_server(server: Server, cluster: str | None, output: Output) -> int:
    """Print what a running hub knows.

    Raises:
        HubError: no hub answers at ``server``, or it refuses.
    """
    return show(await fetch(server, "/api/v1/clouds", Clouds), cluster, output)


def show(found: Clouds, cluster: str | None, output: Output) -> int:
    """Print load balancers; return the exit code."""
    chosen = [each for each in found.clusters if cluster in (None, each.cluster)]
    if cluster is not None and not chosen:
        hint = suggestion(cluster, (each.cluster for each in found.clusters))
        click.echo(f"Error: the hub is not the cloud controller of a cluster {cluster}{hint}", err=True)
        return Exit.USAGE
    if not found.clusters:
        warn("no cluster of the registry has cloud:")
    if output == "json":
        click.echo(document("Clouds", {"clusters": msgspec.to_builtins(chosen)}, output))
    else:
        click.echo("\n\n".join(map(_balancers, chosen)), nl=bool(chosen))
    return Exit.UNKNOWN if any(map(unknown, chosen)) else Exit.OK


def nodes_text(found: ClusterCloud) -> str:
    """The Nodes of a cluster with their machines."""
    rows = [
        (one.name, one.instance, one.state, one.since, one.provider_id, one.message or "; ".join(one.changes))
        for one in found.nodes
    ]
    return _text(found, NODES, rows)


def _balancers(found: ClusterCloud) -> str:
    rows = [
        (
            one.service,
            one.state,
            one.since,
            " ".join(one.ingress),
            " ".join(one.ids.values()),
            "; ".join(one.steps) or one.message,
        )
        for one in found.balancers
    ]
    return "\n".join([_text(found, BALANCERS, rows), *(f"  no Service: {one_line(text)}" for text in found.leftovers)])


def _text(found: ClusterCloud, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(_lines(found, headers, rows))


def _lines(found: ClusterCloud, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    place = one_line(f"{found.cluster}, cloud {found.provider}, {found.mode}, duty {found.duty}")
    problem = found.error or found.message
    yield click.style(place, bold=True) + (f": {one_line(problem)}" if problem else "")
    if rows:
        yield table(headers, rows, "  ")
