"""``hub endpoints``: endpoint views of the clusters, once or as a stream."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import click

from hub.cli import logs
from hub.cli.options import Given, Settings, hub_access, output, verbose


@click.command(short_help="Show (service, port, endpoint) views, once or as a stream.")
@click.option(
    "--registry",
    metavar="FILE",
    type=click.Path(),
    help="The registry; its views: block selects the clusters and Services. [default: the annotated Services of the "
    "hub cluster]",
)
@hub_access
@click.option("--watch", is_flag=True, help="Also print changes as they happen, until Ctrl-C.")
@click.option("--gather", is_flag=True, help="One view for each port of a Service, with all addresses.")
@click.option(
    "--compat",
    type=click.Choice(["dcontroller"]),
    help="Print exactly the objects that dcontroller's endpointslice-controller makes in the hub cluster.",
)
@output("table", "json")
@verbose
@click.pass_context
def endpoints(
    ctx: click.Context,
    /,
    registry: str | None,
    watch: bool,
    gather: bool,
    compat: str | None,
    output: Literal["table", "json"],
    **given: Any,
) -> int:
    """Show the ready endpoints behind Services, one line for each (service, port, address).

    Reads the Services and EndpointSlices of the clusters itself; writes nothing and needs no running hub. With
    --watch and -o json it prints the lines of the stream /api/v1/endpoints: the current objects, a bookmark,
    then the changes.

    Exit codes: 0 ok, 3 error, 4 a cluster could not be read (the output is incomplete).
    """
    logs.quiet(ctx.ensure_object(Settings).verbose)
    options = Given(**given).options(registry or "")
    from hub.cli.print_views import ViewOutput, print_endpoints

    return asyncio.run(print_endpoints(options, ViewOutput(watch, gather, compat is not None, output == "json")))
