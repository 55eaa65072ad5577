"""``hub run``: the hub itself."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from hub.cli import logs
from hub.cli.election import Election, leader_election
from hub.cli.environment import Environment, allocator_environment, environment
from hub.cli.exits import Exit, exit_within
from hub.cli.limits import raise_limit
from hub.cli.listen import listen_of, listener
from hub.cli.options import (
    DEFAULT_OWNER,
    BindAddress,
    Given,
    Settings,
    bind_address,
    boolean,
    duration,
    hub_access,
    is_default,
    is_from_environment,
    service,
    shared_option,
)
from hub.cli.options import owner as owner_label
from hub.cli.options import registry as registry_option
from hub.cli.options import verbose as verbose_option

if TYPE_CHECKING:
    from hub.app.hub import Hub, Options
    from hub.cli.importers.allocator import Allocator
    from hub.report.server import Listen

log = logging.getLogger(__name__)

HEALTH_PORT: Final = 8080
"""Where ip-address-controller answers probes."""
STOP_WITHIN: Final = 4.7
"""Seconds from the signal to the end of the process: users may rely on 5 s after SIGTERM."""
SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread must let the event loop run. With Python's default of 5 ms, each answer that the loop
reads while threads parse kubeconfigs would take that much longer."""


@click.command(short_help="Keep the hub cluster's Services up to date.")
@registry_option(required=False)
@click.option(
    "--from-env",
    is_flag=True,
    help="Use the environment variables of the single-target controller instead of a registry; see 'hub import env'.",
)
@click.option(
    "--from-allocator-env",
    is_flag=True,
    help="Use the environment variables of ip-address-controller instead of a registry, with its Lease and ports; "
    "see 'hub import ip-address-controller'.",
)
@hub_access
@click.option(
    "--once",
    is_flag=True,
    help="Make one pass over every Service, then exit (code 4 if a source is unknown). Slices dropped from "
    "clusters.yaml are deleted only with --removal-grace 0s.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written, write nothing.")
@leader_election
@click.option(
    "--removal-grace",
    metavar="DURATION",
    type=duration,
    default="60s",
    show_default=True,
    help="How long to keep the slices of a Service after it was dropped from the registry.",
)
@click.option(
    "--take-over",
    metavar="NAMESPACE/SERVICE",
    type=service,
    multiple=True,
    help="Adopt the slices of this Service even though another hub of the same owner wrote them. May be repeated.",
)
@click.option(
    "--health-probe-bind-address",
    metavar="HOST:PORT",
    type=bind_address,
    default="127.0.0.1:8081",
    show_default=True,
    help="Where /healthz and /readyz answer; 0 = off.",
)
@listener
@click.option(
    "--metrics-bind-address",
    metavar="HOST:PORT",
    type=bind_address,
    help="A separate address for /metrics, without authentication; 0 = off. [default: off]",
)
@shared_option(
    "--owner",
    metavar="OWNER",
    type=owner_label,
    default=DEFAULT_OWNER,
    show_default=True,
    help="The owner whose last accepted registry is used if the file is rejected at start and does not say its owner.",
)
@click.option(
    "--events",
    is_flag=False,
    flag_value=True,
    default=True,
    type=boolean,
    metavar="[=true|false]",
    help="Write Kubernetes Events about Services and about the hub itself. [default: true]",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the log."
)
@verbose_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    registry: str | None,
    from_env: bool,
    from_allocator_env: bool,
    once: bool,
    dry_run: bool,
    removal_grace: float,
    take_over: tuple[str, ...],
    health_probe_bind_address: BindAddress | None,
    metrics_bind_address: BindAddress | None,
    owner: str,
    events: bool,
    log_format: logs.LogFormat,
    **given: Any,
) -> int:
    """Keep the hub cluster's Services pointing at the nodes of the clusters in the registry.

    Runs until SIGTERM or SIGINT, then finishes the write in flight and exits 0 within 5 seconds; a second
    signal ends it at once. The registry is read again when it changes. If the new registry is invalid, the last
    accepted one stays in force, also across a restart. With --from-env the inventory's program need not be allowed
    by --allow-exec, because the user who sets the variables also starts the hub.
    """
    imported = from_env or from_allocator_env
    if imported and is_from_environment("registry"):
        registry = None
    if from_env and from_allocator_env:
        raise click.UsageError("--from-env and --from-allocator-env cannot be combined")
    if imported == (registry is not None):
        option = "--from-env" if from_env else "--from-allocator-env"
        raise click.UsageError(
            f"{option} and --registry cannot be combined" if imported else "Missing option '--registry'"
        )
    verbose = ctx.ensure_object(Settings).verbose
    if once:
        logs.quiet(verbose, log_format)
    else:
        logs.follow(log_format, verbose)
    from hub.model import TargetKey

    read = environment if from_env else allocator_environment
    found = Environment(registry) if registry is not None else read()
    if found.allocator is not None:
        health_probe_bind_address, metrics_bind_address = _as_allocator(
            found.allocator, given, health_probe_bind_address, metrics_bind_address
        )
    listen = listen_of(ctx, given)
    given["allow_exec"] = (*given["allow_exec"], *found.programs)
    dry_run = dry_run or found.dry_run
    election = Election.of(given)
    election.check(once=once)
    make_options = partial(
        Given(**given).options,
        found.registry,
        content=found.content,
        dry_run=dry_run,
        events=events,
        fall_back=registry is not None and not once,
        owner=owner,
        # A dry run writes nothing, not even a Lease.
        leader_elect=election.wanted and not dry_run,
        timing=election.timing(),
        lease=election.leader_elect_resource_name,
        removal_grace=removal_grace,
        shards=election.shards,
        take_over=frozenset(TargetKey(*name.split("/", 1)) for name in take_over),
    )
    raise_limit()
    if once:
        from hub.cli.once import once as single_pass

        return in_loop(single_pass(make_options()))
    return in_loop(serve(found, make_options, health_probe_bind_address, metrics_bind_address, listen))


def _as_allocator(
    found: Allocator, given: dict[str, Any], probes: BindAddress | None, metrics: BindAddress | None
) -> tuple[BindAddress | None, BindAddress | None]:
    """Use the Lease and the ports of ip-address-controller for options that are not given; returns the addresses."""
    if is_default("leader_elect_resource_name"):
        given["leader_elect_resource_name"] = found.lease
    if is_default("leader_elect_lease_duration"):
        given["leader_elect_lease_duration"] = float(found.lease_seconds)
        if is_default("leader_elect_renew_deadline"):
            given["leader_elect_renew_deadline"] = min(10.0, found.lease_seconds * 2 / 3)
    if is_default("health_probe_bind_address"):
        probes = BindAddress(None, HEALTH_PORT)
    if is_default("metrics_bind_address"):
        metrics = BindAddress(None, found.metrics_port)
    return probes, metrics


async def serve(
    found: Environment,
    make_options: Callable[[], Options],
    probes: BindAddress | None,
    metrics: BindAddress | None = None,
    listen: Listen | None = None,
) -> int:
    """Run a hub until a signal arrives; answer probes, scrapes and browsers meanwhile.

    Args:
        found: the registry.
        make_options: makes the hub's options; imports most of the hub.
        probes: where /healthz and /readyz answer.
        metrics: a separate address for /metrics.
        listen: where the status page answers.
    """
    stop = asyncio.Event()
    on_signals(stop.set)  # before the imports, which take a while
    sys.setswitchinterval(SWITCH_INTERVAL)
    from hub.errors import RegistryError
    from hub.registry.isolated import begin
    from hub.runtime.collector import avoid_long_collections

    check = None
    with suppress(RegistryError):  # assemble() loads the registry again and handles the error
        check = begin(found.registry, found.content)  # runs in another process during the imports

    running: Hub | None = None
    # Also around the imports: their objects stay, and garbage collection would take a tenth of the imports' time.
    async with avoid_long_collections(lambda: running is not None and _settled(running)):
        # In a thread, because the import takes a third of a second.
        await asyncio.to_thread(import_module, "hub.app.hub")
        from hub.app.hub import assemble
        from hub.report.collect import Collector
        from hub.report.metrics import Metrics, serving_metrics
        from hub.report.probes import serving
        from hub.report.server import Listen, listening
        from hub.runtime.heap import trimming

        async with (
            trimming(),
            assemble(make_options(), check=check) as hub,
            serving(probes, hub),
            serving_metrics(metrics, Metrics(Collector(hub))),
            listening(listen or Listen(None), hub),
        ):
            running = hub
            await hub.run(stop)
    return Exit.OK


def _settled(hub: Hub) -> bool:
    """Whether every cluster has answered or failed, and no target is queued."""
    from hub.observe.remote.status import State

    clusters = hub.fleet.clusters.values()
    asked = clusters or not hub.registry.clusters
    return bool(asked and hub.local.synced and not len(hub.queue)) and all(
        cluster.status.state not in (State.PENDING, State.SYNCING) for cluster in clusters
    )


def on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT and set a deadline for the exit; exit at once at the second."""
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def arrived(number: int) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        exit_within(STOP_WITHIN, Exit.OK)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived, number)


def in_loop(work: Coroutine[Any, Any, int]) -> int:
    """Run ``work`` on uvloop, or on asyncio's own loop if uvloop is not installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(work)
        except asyncio.CancelledError:  # by a signal
            raise KeyboardInterrupt from None
