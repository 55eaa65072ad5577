"""``hub demo``: the hub at work without any Kubernetes."""

from __future__ import annotations

import click

from hub.cli.options import duration, verbose


@click.command(short_help="Show the hub at work on simulated clusters.")
@click.option(
    "--for",
    "seconds",
    metavar="DURATION",
    type=duration,
    help="End after this long. [default: until Ctrl-C; 30s without a terminal]",
)
@verbose
def demo(seconds: float | None) -> int:
    """Show the hub at work: three simulated clusters on loopback, nodes that come, fail and go.

    Needs neither Kubernetes nor network; the hub is the one that runs in production.
    """
    from hub.demo import main

    return int(main(seconds) or 0)
