"""``hub balancers``: the load balancers that the hub keeps as a cloud controller."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, verbose
from hub.cli.render import Output
from hub.cli.server import registry_or_server, server_or_registry


@click.command(short_help="Show the load balancers of Services, and what comes next.")
@click.argument("cluster", required=False)
@registry_or_server
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def balancers(ctx: click.Context, /, cluster: str | None, registry: str | None, output: Output, **given: Any) -> int:
    """Show each Service of type LoadBalancer in clusters whose cloud controller the hub is, or in one of them.

    With --registry the command asks the clusters and the clouds itself, once, and writes nothing; with --server it
    asks a running hub.

    Exit codes: 0 ok, 2 no such cluster, 3 error, 4 a cluster or its cloud is not known now.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    asked = server_or_registry(given, registry)
    from hub.cli.print_clouds import from_clusters, from_server

    if isinstance(asked, str):
        options = Given(**given).options(asked, dry_run=True, leader_elect=False)
        return asyncio.run(from_clusters(options, cluster, output))
    return asyncio.run(from_server(asked, cluster, output))
