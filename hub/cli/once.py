"""``hub run --once``: one pass over every target, for cron jobs and pipelines."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import click

from hub.app.hub import Hub, Options, assemble
from hub.app.oneshot import observing
from hub.app.oneshot import once as one_pass
from hub.cli.changes import print_plan
from hub.cli.exits import Exit
from hub.cli.observe import warn_of_problems
from hub.cli.render import count, one_line
from hub.errors import ClusterUnreachable, NotLeader
from hub.passes.reconcile import Pass
from hub.report.facts import unknown_sources
from hub.report.held import approving_flags

log = logging.getLogger(__name__)

SOON: Final = 2.0
"""Seconds in which a free Lease is taken."""
LEASE_PATIENCE: Final = 20.0
"""Seconds to wait for the Lease: it expires 15 s after its holder's end, and is looked at every 2 to 4.4 s."""
PENDING: Final = "RemovalPending"
"""The finding of a Service with a source that the registry does not give it any more."""


async def once(options: Options) -> int:
    """One pass. Unknown sources stay untouched and are named on stderr.

    Returns:
        OK; UNKNOWN if a source was unknown; ERROR if a write is still to be done.

    Raises:
        HubError: the hub cluster cannot be read, or another hub leads.
    """
    # As after Ctrl-C: the Lease is given back where no pass had begun, and what follows need not wait for its expiry. A
    # SIGINT in its place would be lost on a process that a script runs in the background: shells have those ignore it.
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with assemble(options) as hub, observing(hub), _leading(hub):
        warn_of_problems(hub)
        passes = await one_pass(hub)
        failed = _failures(hub, passes)
        unknown = unknown_sources(hub, passes)
        if options.dry_run:
            print_plan(passes, flags=approving_flags(hub), registry=hub.reconciler.withheld())
        else:
            done = ", ".join(f"{number} {kind}d" for kind, number in hub.writer.writes.items())
            click.echo(f"{count(len(passes), 'service')}; slices: {done}")
            for line in (*_waiting(passes), *_put_off(passes), *(f"Unknown: {each}" for each in unknown), *failed):
                click.echo(one_line(line), err=True)
    if failed:
        return Exit.ERROR
    return Exit.UNKNOWN if unknown else Exit.OK


def _waiting(passes: Sequence[Pass]) -> list[str]:
    idle = [each for each in passes if each.plan is None and each.again_after is None]
    return [f"Warning: {each.target}: {each.status}" for each in idle if each.status != "gone"]


def _put_off(passes: Sequence[Pass]) -> list[str]:
    """Targets with slices that are to go after the removal grace: no pass follows in which they would."""
    names = [
        each.target
        for each in passes
        if (each.plan is None and each.again_after is not None) or any(one.reason == PENDING for one in each.findings)
    ]
    return [
        f"Warning: {name}: slices that the registry asks for no more stay: a single pass does not wait for "
        "--removal-grace; with 0s they go"
        for name in names
    ]


def _failures(hub: Hub, passes: Sequence[Pass]) -> list[str]:
    found = ((each.target, hub.reconciler.problem(each.target)) for each in passes)
    return [f"Error: {target}: {problem}" for target, problem in found if problem]


@asynccontextmanager
async def _leading(hub: Hub) -> AsyncIterator[None]:
    """Hold the Lease, where this hub takes part in the election.

    It is given back at the end, but for an end that may have cut a write off: that one may arrive yet.

    Raises:
        NotLeader: somebody else holds it and goes on holding it, or it cannot be had at all.
    """
    if not hub.options.leader_elect:
        yield
        return
    # Why a Lease cannot be had is known there, and said there.
    logging.getLogger("hub.election.elector").setLevel(min(logging.WARNING, log.getEffectiveLevel()))
    election = asyncio.create_task(hub.leading.shards.run(), name="leader")
    try:
        if not await _within(SOON, hub):
            click.echo(f"waiting for the Lease {hub.lease}{_held(hub)}", err=True)
            if not await _within(LEASE_PATIENCE, hub):
                raise NotLeader(f"the Lease {hub.lease} cannot be had{_held(hub)}; --leader-elect=false does without")
        try:
            yield
        except (asyncio.CancelledError, ClusterUnreachable):
            hub.elector.keep()
            raise
    finally:
        election.cancel()
        with suppress(asyncio.CancelledError):
            await election


def _held(hub: Hub) -> str:
    return f": {hub.elector.holder} holds it" if hub.elector.holder else ""


async def _within(seconds: float, hub: Hub) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not hub.writing:  # noqa: ASYNC110 - a state, not an event
                await asyncio.sleep(0.01)
    return hub.writing
