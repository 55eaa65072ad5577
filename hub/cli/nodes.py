"""``hub nodes``: the state of every node of the remote clusters."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, verbose
from hub.cli.render import Output
from hub.cli.server import registry_or_server, server_or_registry


@click.command(short_help="Show which nodes are published, and why not.")
@click.argument("cluster", required=False)
@registry_or_server
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def nodes(ctx: click.Context, /, cluster: str | None, registry: str | None, output: Output, **given: Any) -> int:
    """Show every node of all clusters, or of one: whether it is eligible, its address, and why not.

    A node is listed once for each combination of provider and node rules that Services use. With --registry the
    command reads the clusters itself, once, and health is not probed. With --server it asks a running hub, and the
    verdicts of health probes are shown too.

    For a cluster whose cloud controller the hub is, every node is listed with its machine in the cloud: running,
    starting, stopped, leaving, absent or unknown.

    Exit codes: 0 ok, 3 error, 4 a source is unknown (the output is incomplete).
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    asked = server_or_registry(given, registry)
    from hub.cli.print_nodes import nodes_from_clusters, nodes_from_server

    if isinstance(asked, str):
        options = Given(**given).options(asked, dry_run=True, leader_elect=False)
        return asyncio.run(nodes_from_clusters(options, cluster, output))
    return asyncio.run(nodes_from_server(asked, cluster, output))
