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
from hub.app.oneshot import observing, one_pass
from hub.cli.changes import print_plan
from hub.cli.exits import Exit
from hub.cli.observe import warn_of_problems
from hub.cli.render import count, one_line
from hub.cli.reserved import moves
from hub.decide.decision import Decision
from hub.errors import ClusterUnreachable, NotLeader
from hub.report.allocations import allocations_of, writes_of
from hub.report.clouds import cloud_writes, clouds_of
from hub.report.facts import unknown_sources
from hub.report.held import approving_flags

log = logging.getLogger(__name__)

SOON: Final = 2.0
"""Seconds within which a free Lease is taken; after that, tell the user that the command waits."""
LEASE_PATIENCE: Final = 20.0
"""Seconds to wait for the Lease: it expires 15 s after its holder's last renewal, and is checked every 2 to 4.4 s."""
PENDING: Final = "RemovalPending"
"""Reason of the finding for a Service that still has slices of a source dropped from the registry."""


async def once(options: Options) -> int:
    """Make one pass. Slices of unknown sources are not changed; the sources are named on stderr.

    Returns:
        OK; UNKNOWN if a source was unknown; ERROR if a write failed.

    Raises:
        HubError: the hub cluster cannot be read, or another hub leads.
    """
    # Treat SIGTERM like Ctrl-C: the Lease is released if no pass has begun, so that the next hub need not wait for its
    # expiry. Scripts cannot send SIGINT instead: shells make background processes ignore it.
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with assemble(options) as hub, observing(hub), _leading(hub):
        warn_of_problems(hub)
        passes = await one_pass(hub)
        failed = _failures(hub, passes)
        unknown = unknown_sources(hub, passes)
        if options.dry_run:
            moving = moves(allocations_of(hub)) if hub.allocating is not None else None
            withheld, writes = hub.reconciler.withheld(), [*writes_of(hub), *cloud_writes(clouds_of(hub))]
            print_plan(passes, "table", approving_flags(hub), withheld, moving, writes)
        else:
            done = ", ".join(f"{number} {kind}d" for kind, number in hub.writer.writes.items())
            click.echo(f"{count(len(passes), 'service')}; slices: {done}")
            warnings = (*_undecided(passes), *_delayed_deletions(passes))
            for line in (*warnings, *(f"Unknown: {source}" for source in unknown), *failed):
                click.echo(one_line(line), err=True)
    if failed:
        return Exit.ERROR
    return Exit.UNKNOWN if unknown else Exit.OK


def _undecided(passes: Sequence[Decision]) -> list[str]:
    idle = [result for result in passes if result.plan is None and result.again_after is None]
    return [f"Warning: {result.target}: {result.status}" for result in idle if result.status != "gone"]


def _delayed_deletions(passes: Sequence[Decision]) -> list[str]:
    """Warn of slices that only a later pass, after the removal grace, would delete: there is no later pass."""
    names = [
        result.target
        for result in passes
        if (result.plan is None and result.again_after is not None)
        or any(finding.reason == PENDING for finding in result.findings)
    ]
    return [
        f"Warning: {name}: slices dropped from clusters.yaml are kept, because a single pass does not wait for "
        "--removal-grace; delete them with --removal-grace 0s"
        for name in names
    ]


def _failures(hub: Hub, passes: Sequence[Decision]) -> list[str]:
    found = ((result.target, hub.reconciler.problem(result.target)) for result in passes)
    return [f"Error: {target}: {problem}" for target, problem in found if problem]


@asynccontextmanager
async def _leading(hub: Hub) -> AsyncIterator[None]:
    """Hold the Lease if this hub takes part in the election.

    The Lease is released at the end, except after an interruption that may have cut off a write: that write may still
    reach the API server.

    Raises:
        NotLeader: another hub keeps holding the Lease, or the Lease cannot be written.
    """
    if not hub.options.leader_elect:
        yield
        return
    # The elector logs why it cannot get the Lease.
    logging.getLogger("hub.election.elector").setLevel(min(logging.WARNING, log.getEffectiveLevel()))
    election = asyncio.create_task(hub.leading.shards.run(), name="leader")
    try:
        if not await _leads_within(SOON, hub):
            click.echo(f"waiting for the Lease {hub.lease}{_holder(hub)}", err=True)
            if not await _leads_within(LEASE_PATIENCE, hub):
                raise NotLeader(
                    f"cannot get the Lease {hub.lease}{_holder(hub)}; use --leader-elect=false to run without it"
                )
        try:
            yield
        except (asyncio.CancelledError, ClusterUnreachable):
            hub.elector.keep_lease()
            raise
    finally:
        election.cancel()
        with suppress(asyncio.CancelledError):
            await election


def _holder(hub: Hub) -> str:
    return f": {hub.elector.holder} holds it" if hub.elector.holder else ""


async def _leads_within(seconds: float, hub: Hub) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not hub.writing:  # noqa: ASYNC110 - a state, not an event
                await asyncio.sleep(0.01)
    return hub.writing
