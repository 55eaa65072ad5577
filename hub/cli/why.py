"""``hub why``: the chain of decisions behind an address, a node or a Service."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, registry, verbose
from hub.cli.render import Output


@click.command(short_help="Show the decisions behind an address, a node or a Service.")
@click.argument("subject", metavar="ADDRESS|NODE|NAMESPACE/SERVICE")
@registry
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def why(ctx: click.Context, /, subject: str, registry: str, output: Output, **given: Any) -> int:
    """Show why an address, a node or a Service is published as it is: decision by decision.

    Rejected candidates are shown with their reasons; for an address that nobody saw, the clusters whose
    allowedCIDRs contain it. Looks once, writes nothing.

    Exit codes: 0 ok, 1 nobody knows it, 2 a source is unknown (what is printed is what can be said), 3 error.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    options = Given(**given).options(registry, dry_run=True, leader_elect=False)
    from hub.cli.reasons import why as look

    return asyncio.run(look(options, subject, output))
