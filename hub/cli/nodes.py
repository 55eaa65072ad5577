"""``hub nodes``: what became of every node of the remote clusters."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, registry, verbose
from hub.cli.render import Output


@click.command(short_help="Show which nodes are published, and why not.")
@click.argument("cluster", required=False)
@registry
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def nodes(ctx: click.Context, /, cluster: str | None, registry: str, output: Output, **given: Any) -> int:
    """Show every node of all clusters, or of one: whether it is eligible, its address, and why not.

    A node is judged once per provider and node rules that Services ask for. Health is not probed here.

    Exit codes: 0 ok, 2 a source is unknown (what is printed is what can be said), 3 error.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    options = Given(**given).options(registry, dry_run=True, leader_elect=False)
    from hub.cli.sources import nodes as look

    return asyncio.run(look(options, cluster, output))
