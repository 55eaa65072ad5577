"""``hub demo``: the hub on simulated clusters, without Kubernetes."""

from __future__ import annotations

import click

from hub.cli.options import duration, verbose
from hub.errors import HubError


@click.command(short_help="Show the hub at work on simulated clusters.")
@click.option(
    "--for",
    "seconds",
    metavar="DURATION",
    type=duration,
    help="End after this long. [default: until Ctrl-C; 30s without a terminal]",
)
@click.option("--allocations", is_flag=True, help="Show reserved addresses that follow nodes, for two minutes.")
@verbose
def demo(seconds: float | None, allocations: bool) -> int:
    """Show the hub at work: three simulated clusters on loopback, nodes that come, fail and go.

    Needs neither Kubernetes nor a network. The hub is the production code; the simulated clusters come from the
    distribution endpointslice-hub-testkit.
    """
    try:
        from hub_testkit.demo import main
    except ModuleNotFoundError as error:
        if error.name != "hub_testkit":
            raise
        raise HubError(
            "the demo is in the test kit; in a clone of the hub's repository: pip install ./testkit"
        ) from error
    return main(seconds, allocations=allocations)
