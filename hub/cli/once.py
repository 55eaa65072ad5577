"""``hub run --once``: one pass over every target, for cron jobs and pipelines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import click

from hub.app import Hub, Options, assemble
from hub.cli.exits import Exit
from hub.cli.changes import print_plan, unknown_sources
from hub.cli.render import count, one_line
from hub.errors import NotLeader
from hub.reconcile import Pass

LEASE_PATIENCE: Final = 20.0
"""Seconds to wait for the Lease: it expires 15 s after its holder's end, and is looked at every 2 to 4.4 s."""


async def once(options: Options) -> int:
    """One pass. Unknown sources stay untouched and are named on stderr.

    Returns:
        OK; UNKNOWN if a source was unknown; ERROR if a write is still to be done.

    Raises:
        HubError: the hub cluster cannot be read, or another hub leads.
    """
    async with assemble(options) as hub, hub.observing(), _leading(hub):
        passes = await hub.once()
        if options.dry_run:
            print_plan(passes)
        else:
            done = ", ".join(f"{number} {kind}d" for kind, number in hub.writer.writes.items())
            click.echo(f"{count(len(passes), 'service')}; slices: {done}")
        failed = _failures(hub, passes)
        unknown = unknown_sources(hub, passes)
        for line in (*_waiting(passes), *(f"Unknown: {each}" for each in unknown), *failed):
            click.echo(one_line(line), err=True)
    if failed:
        return Exit.ERROR
    return Exit.UNKNOWN if unknown else Exit.OK


def _waiting(passes: Sequence[Pass]) -> list[str]:
    return [f"Warning: {each.target}: {each.status}" for each in passes if each.plan is None and each.status != "gone"]


def _failures(hub: Hub, passes: Sequence[Pass]) -> list[str]:
    found = ((each.target, hub.reconciler.problem(each.target)) for each in passes)
    return [f"Error: {target}: {problem}" for target, problem in found if problem]


@asynccontextmanager
async def _leading(hub: Hub) -> AsyncIterator[None]:
    """Hold the Lease, where this hub takes part in the election.

    Raises:
        NotLeader: somebody else holds it and goes on holding it.
    """
    if not hub.options.leader_elect:
        yield
        return
    leads = asyncio.Event()
    election = asyncio.create_task(hub.elector.run(lambda leading: leads.set() if leading else None), name="leader")
    try:
        try:
            async with asyncio.timeout(LEASE_PATIENCE):
                await leads.wait()
        except TimeoutError:
            holder = hub.elector.holder
            why = f"{holder} holds the Lease {hub.lease}" if holder else f"the Lease {hub.lease} cannot be had"
            raise NotLeader(
                f"{why}: a hub is running already (--leader-elect=false writes nevertheless)"
                if holder
                else f"{why}; the messages above say why (--leader-elect=false does without)"
            ) from None
        yield
    finally:
        election.cancel()
        with suppress(asyncio.CancelledError):
            await election
