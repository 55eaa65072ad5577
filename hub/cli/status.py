"""``hub status``: how every cluster and every Service is doing."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, verbose
from hub.cli.render import Output
from hub.cli.server import chosen, registry_or_server


@click.command(short_help="Show how every cluster and Service is doing.")
@registry_or_server
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def status(ctx: click.Context, /, registry: str | None, output: Output, **given: Any) -> int:
    """Show how every cluster and every Service is doing: states, endpoints, what is withheld, what is paused.

    With --registry it looks once by itself and writes nothing: states are as this command found them, endpoints
    as they are published, and health is not probed. With --server a running hub tells what it knows; a standby
    names the leader.

    Exit codes: 0 ok, 2 a source is unknown or an entry of the registry broken (what is printed is what can be
    said), 3 error.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    asked = chosen(given, registry)
    from hub.cli.standing import status as look
    from hub.cli.standing import status_of

    if isinstance(asked, str):
        return asyncio.run(look(Given(**given).options(asked, dry_run=True, leader_elect=False), output))
    return asyncio.run(status_of(asked, output))
