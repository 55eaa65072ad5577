"""``hub balancers``: the load balancers that the hub keeps as a cloud controller."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click
import msgspec

from hub.cli import logs
from hub.cli.exits import Exit
from hub.cli.options import Settings, output, verbose
from hub.cli.render import Output, document, one_line, table, warn
from hub.cli.server import Server, fetch, server_of, server_option

HEADERS: Final = ("SERVICE", "STATE", "SINCE", "INGRESS", "OBJECTS", "NEXT")


@click.command(short_help="Show the load balancers of Services, and what comes next.")
@click.argument("cluster", required=False)
@server_option
@output("table", "json")
@verbose
@click.pass_context
def balancers(ctx: click.Context, /, cluster: str | None, output: Output, **given: Any) -> int:
    """Show each Service of type LoadBalancer in clusters whose cloud controller the hub is, or in one of them.

    Asks a running hub (--server).

    Exit codes: 0 ok, 1 no such cluster, 3 error, 4 a cluster or its cloud is not known now.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    where = server_of(given)
    if where is None:
        raise click.UsageError("Missing option '--server'")
    return asyncio.run(_show(where, cluster, output))


async def _show(where: Server, cluster: str | None, output: Output) -> int:
    from hub.cli.observe import suggestion
    from hub.report.values import Clouds

    found = await fetch(where, "/api/v1/clouds", Clouds)
    chosen = [each for each in found.clusters if cluster in (None, each.cluster)]
    if cluster is not None and not chosen:
        hint = suggestion(cluster, (each.cluster for each in found.clusters))
        click.echo(f"Error: the hub is not the cloud controller of a cluster {cluster}{hint}", err=True)
        return Exit.CHANGES
    if not found.clusters:
        warn("no cluster of the registry has cloud:")
    if output == "json":
        data = msgspec.to_builtins(msgspec.structs.replace(found, clusters=tuple(chosen)))
        click.echo(document("Clouds", {"clusters": data["clusters"]}, output))
    for each in chosen if output == "table" else ():
        heading = click.style(
            one_line(f"{each.cluster}, cloud {each.provider}, {each.mode}, duty {each.duty}"), bold=True
        )
        click.echo(heading + (f": {one_line(each.error or each.message)}" if each.error or each.message else ""))
        rows = [
            (
                one.service,
                one.state,
                one.since,
                " ".join(one.ingress),
                " ".join(one.ids.values()),
                one.message or "; ".join(one.steps),
            )
            for one in each.balancers
        ]
        if rows:
            click.echo(table(HEADERS, rows, "  "))
        for text in each.leftovers:
            click.echo(f"  no Service: {one_line(text)}")
    unknown = any(each.error or each.reason == "ClusterNotReady" for each in chosen)
    return Exit.UNKNOWN if unknown else Exit.OK
