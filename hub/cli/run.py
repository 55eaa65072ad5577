"""``hub run``: the hub itself."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from hub.cli import logs
from hub.cli.exits import Exit, leave_within
from hub.cli.limits import raise_limit
from hub.cli.options import BindAddress, Given, Settings, bind_address, duration, hub_access, registry
from hub.cli.options import verbose as verbose_option

if TYPE_CHECKING:
    from hub.app import Options

log = logging.getLogger(__name__)

STOP_WITHIN: Final = 4.7
"""Seconds from the signal to the end of the process: whoever sends SIGTERM may rely on 5."""


@click.command(short_help="Keep the hub cluster's Services up to date.")
@registry
@hub_access
@click.option("--once", is_flag=True, help="One pass over every Service, then exit: 2 where a source is unknown.")
@click.option("--dry-run", is_flag=True, help="Print what would be written, write nothing.")
@click.option(
    "--leader-elect",
    is_flag=False,
    flag_value=True,
    default=True,
    type=click.BOOL,
    metavar="[=true|false]",
    help="Write only while holding the Lease endpointslice-hub-OWNER. [default: true]",
)
@click.option("--no-leader-elect", is_flag=True, help="The same as --leader-elect=false.")
@click.option(
    "--removal-grace",
    metavar="DURATION",
    type=duration,
    default="60s",
    show_default=True,
    help="How long the slices of a Service stay that is gone from the registry.",
)
@click.option(
    "--health-probe-bind-address",
    metavar="HOST:PORT",
    type=bind_address,
    default="127.0.0.1:8081",
    show_default=True,
    help="Where /healthz and /readyz answer; 0 = off.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the log."
)
@verbose_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    registry: str,
    once: bool,
    dry_run: bool,
    leader_elect: bool,
    no_leader_elect: bool,
    removal_grace: float,
    health_probe_bind_address: BindAddress | None,
    log_format: logs.LogFormat,
    **given: Any,
) -> int:
    """Keep the hub cluster's Services pointing at the nodes of the clusters in the registry.

    Runs until SIGTERM or SIGINT, then finishes the write in flight and exits 0 within 5 seconds; a second
    signal ends it at once. The registry is read again when it changes.
    """
    verbose = ctx.ensure_object(Settings).verbose
    if once:
        logs.quiet(verbose, log_format)
    else:
        logs.follow(log_format, verbose)
    options = Given(**given).options(
        registry,
        dry_run=dry_run,
        # A dry run writes nothing, not even a Lease.
        leader_elect=leader_elect and not no_leader_elect and not dry_run,
        removal_grace=removal_grace,
    )
    raise_limit()
    if once:
        from hub.cli.once import once as single_pass

        return _in_loop(single_pass(options))
    return _in_loop(serve(options, health_probe_bind_address))


async def serve(options: Options, probes: BindAddress | None) -> int:
    """Run a hub until a signal arrives."""
    from hub.registry.isolated import begin

    check = begin(options.registry)  # goes on beside the imports

    from hub.app import assemble
    from hub.probes import serving

    stop = asyncio.Event()
    _on_signals(stop.set)
    async with assemble(options, check=check) as hub, serving(probes, hub):
        await hub.run(stop)
    return Exit.OK


def _on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT and make sure of the end; leave at once at the second."""
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def arrived(number: int) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        leave_within(STOP_WITHIN, Exit.OK)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived, number)


def _in_loop(work: Coroutine[Any, Any, int]) -> int:
    """Run ``work`` on uvloop, or on asyncio's own loop where that is not installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
