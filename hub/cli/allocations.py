"""``hub allocations``: reserved addresses and the nodes that have them."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.exits import Exit
from hub.cli.options import Given, Settings, hub_access, output, verbose
from hub.cli.render import Output
from hub.cli.server import registry_or_server, server_or_registry


@click.command(short_help="Show reserved addresses and the nodes that have them.")
@click.argument("name", metavar="[NAME|crd]", required=False)
@registry_or_server
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def allocations(ctx: click.Context, /, name: str | None, registry: str | None, output: Output, **given: Any) -> int:
    """Show the addresses of all NetIPAllocations, or of one: state, node, since when, and why.

    With --registry the command asks the clouds itself, once, and changes nothing; with --server it asks a running
    hub. 'hub allocations crd' prints the CustomResourceDefinition: hub allocations crd | kubectl apply -f -

    Exit codes: 0 ok, 1 no such allocation, 3 error, 4 the state of an address is unknown.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    if name == "crd":
        from hub.cli.allocations_crd import text

        click.echo(text(), nl=False)
        return Exit.OK
    asked = server_or_registry(given, registry)
    from hub.cli.print_allocations import from_clusters, from_server

    if isinstance(asked, str):
        options = Given(**given).options(asked, dry_run=True, leader_elect=False)
        return asyncio.run(from_clusters(options, name, output))
    return asyncio.run(from_server(asked, name, output))
