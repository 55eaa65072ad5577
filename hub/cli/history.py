"""``hub history``: what happened to the endpoints of one Service or of all, and why."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from hub.cli import logs
from hub.cli.options import (
    Settings,
    is_from_environment,
    is_given,
    kubeconfig,
    lease_namespace,
    output,
    own_namespace,
    owner_option,
    service,
    verbose,
)
from hub.cli.render import Output
from hub.cli.server import server_of, server_option

SELECTORS: Final = ("kubeconfig", "lease_namespace", "owner")
"""Options that select a ConfigMap."""


@click.command(short_help="Show what was added, removed and withheld, and why.")
@click.argument("name", metavar="[NAMESPACE/SERVICE]", required=False, type=service)
@server_option
@kubeconfig
@lease_namespace
@owner_option
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    metavar="NUMBER",
    default=100,
    show_default=True,
    help="Show at most this many events: the newest.",
)
@output("table", "json")
@verbose
@click.pass_context
def history(
    ctx: click.Context,
    /,
    name: str | None,
    kubeconfig: str | None,
    lease_namespace: str | None,
    owner: str,
    limit: int,
    output: Output,
    **given: Any,
) -> int:
    """Show what happened to the endpoints of a Service, or of all Services, newest last.

    Shows what was added, removed, withheld, released and approved, when, for which reason, and by whose approval.
    Without --server the command reads the ConfigMap endpointslice-hub-history-OWNER of the hub's namespace, which
    the leader writes at most once a minute. A running hub (--server) also knows the last minute. If the server comes
    from the environment, --kubeconfig, --lease-namespace and --owner select the ConfigMap instead.

    Exit codes: 0 ok, 1 nothing is known, 3 error.
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    server = server_of(given)
    if is_from_environment("server") and any(map(is_given, SELECTORS)):
        server = None
    from hub.cli.print_history import history_from_cluster, history_from_server

    if server is not None:
        return asyncio.run(history_from_server(server, name, limit, output))
    namespace = lease_namespace or own_namespace()
    return asyncio.run(history_from_cluster(kubeconfig, namespace, owner, name, limit, output))
