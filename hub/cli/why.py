"""``hub why``: the chain of decisions behind an address, a node or a Service."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, cluster_name, hub_access, output, verbose
from hub.cli.render import Output
from hub.cli.server import registry_or_server, server_or_registry


@click.command(short_help="Show the decisions behind an address, a node or a Service.")
@click.argument("subject", metavar="ADDRESS|NODE|NAMESPACE/SERVICE")
@click.option(
    "--cluster",
    metavar="NAME",
    type=cluster_name,
    help="Explain a node, or a Service of type LoadBalancer, of this cluster, whose cloud controller the hub is.",
)
@registry_or_server
@hub_access
@output("table", "json")
@verbose
@click.pass_context
def why(
    ctx: click.Context, /, subject: str, cluster: str | None, registry: str | None, output: Output, **given: Any
) -> int:
    """Show the decisions behind an address, a node or a Service, step by step.

    Rejected candidates are shown with their reasons. For an address that no cluster has, the clusters whose
    allowedCIDRs contain it are shown. For an address, a node or a Service that is gone, the history says when
    it was removed, and why.

    With --cluster, show what the cloud controller of that cluster decided instead: about a node its machine,
    its changes and its deletion; about a Service of type LoadBalancer every annotation with its value or default, the
    objects in the cloud and the steps that come next.

    With --registry the command reads the clusters itself, once, and writes nothing; with --server it asks a running
    hub.

    Exit codes: 0 ok, 1 not found, 3 error, 4 a source or the address is unknown (the output is
    incomplete).
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    asked = server_or_registry(given, registry)
    from hub.cli.print_why import why_from_clusters, why_from_server

    if isinstance(asked, str):
        options = Given(**given).options(asked, dry_run=True, leader_elect=False)
        return asyncio.run(why_from_clusters(options, subject, output, cluster or ""))
    return asyncio.run(why_from_server(asked, subject, output, cluster or ""))
