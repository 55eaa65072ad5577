"""``hub status``: how every cluster and every Service is doing."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, registry, verbose
from hub.cli.render import Output


@click.command(short_help="Show how every cluster and Service is doing.")
@registry
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def status(ctx: click.Context, /, registry: str, output: Output, **given: Any) -> int:
    """Show how every cluster and every Service is doing: states, endpoints, what is withheld, what is paused.

    Looks once by itself, writes nothing: states are as this command found them, endpoints as they are
    published. Health is not probed here.

    Exit codes: 0 ok, 2 a source is unknown (what is printed is what can be said), 3 error.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    options = Given(**given).options(registry, dry_run=True, leader_elect=False)
    from hub.cli.standing import status as look

    return asyncio.run(look(options, output))
