"""``hub status``: the state of every cluster and every Service."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import click

from hub.cli import logs
from hub.cli.exits import Exit
from hub.cli.options import Given, Settings, hub_access, output, verbose
from hub.cli.render import Output
from hub.cli.server import registry_or_server, server_or_registry


@click.command(short_help="Show the state of every cluster and Service.")
@registry_or_server
@hub_access
@output("table", "json")
@click.option("--watch", is_flag=True, help="Keep the tables of --server up to date until Ctrl-C.")
@verbose
@click.pass_context
def status(ctx: click.Context, /, registry: str | None, output: Output, watch: bool, **given: Any) -> int:
    """Show the state of every cluster and Service: endpoints, withheld removals, paused Services, errors.

    With --registry the command reads the clusters itself, once, and writes nothing: it shows the cluster states it
    found and the published endpoints, and does not probe health. With --server it asks a running hub; a standby
    names the leader.

    With --watch, a terminal shows the tables, problems first; elsewhere a line is printed for each change. A hub
    that does not answer any more is asked again every 2 seconds. Ctrl-C ends the command with code 0.

    Exit codes: 0 ok, 3 error, 4 a source or an address is unknown, or an entry of the registry is broken (the output
    is incomplete).
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    asked = server_or_registry(given, registry)
    if watch:
        if isinstance(asked, str):
            raise click.UsageError("--watch needs --server, the address of a running hub")
        if output != "table":
            raise click.UsageError("--watch and -o json cannot be combined")
        from hub.cli.watch_status import watch_status

        with suppress(KeyboardInterrupt):
            asyncio.run(watch_status(asked))
        return Exit.OK
    from hub.cli.print_status import status_from_clusters, status_from_server

    if isinstance(asked, str):
        options = Given(**given).options(asked, dry_run=True, leader_elect=False)
        return asyncio.run(status_from_clusters(options, output))
    return asyncio.run(status_from_server(asked, output))
