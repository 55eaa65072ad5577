"""``hub plan``: what a hub would write now."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, registry, service, verbose
from hub.cli.render import Output


@click.command(short_help="Show what a hub would write now.")
@click.argument("services", metavar="[NAMESPACE/SERVICE]...", nargs=-1, type=service)
@registry()
@hub_access
@output("table", "json", "yaml")
@verbose
@click.pass_context
def plan(ctx: click.Context, /, services: tuple[str, ...], registry: str, output: Output, **given: Any) -> int:
    """Show what a hub would write now, for all Services or the named ones.

    Reads the hub cluster, every remote cluster and the cloud accounts, and writes nothing. Without SERVICE it also
    shows which reserved addresses would move now: a line ADDRESS, FROM → TO, CAUSE for each. Addresses that wait before
    they leave their nodes, or whose allocation is paused, are listed with the reason, and are no change; the command
    sees a cordon or a failure for the first time, so waits begin with it. Then come labels of nodes, evictions and
    finalizers that would be written now for addresses that are in their place; a move changes the labels of its nodes,
    which are not listed.

    Last come the changes of cloud controllers, in order: for each node what is written to it, for each Service of type
    LoadBalancer the steps in the cloud and the writes to the Service. What is withheld is listed with the reason, and
    is no change. Deletions of nodes are not shown, since they need two answers of the cloud 20 s apart. Removals that
    `hub run` delays by --removal-grace are shown without the delay.

    Exit codes: 0 no change, 1 changes, 3 error, 4 a source or an address is unknown (the output is
    incomplete).
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    options = Given(**given).options(registry, dry_run=True, leader_elect=False, removal_grace=0.0)
    from hub.cli.observe import plan_from_clusters

    return asyncio.run(plan_from_clusters(options, services, output))
