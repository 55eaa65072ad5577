"""Runs a hub once: for commands that read everything, print or write the result, and exit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from hub.app.hub import Hub
from hub.decide.decision import Decision
from hub.errors import ApiError, HubError


@asynccontextmanager
async def observing(hub: Hub) -> AsyncIterator[None]:
    """Follow everything; wait until all sources have answered or failed, at most ``settle`` seconds. Decides nothing.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    hub.fleet.update(hub.registry, hub.own_networks.networks)
    tasks = [
        asyncio.create_task(hub.local.follow_services(), name="services of the hub cluster"),
        asyncio.create_task(hub.local.follow_slices(), name="slices of the hub cluster"),
        asyncio.create_task(hub.adopting.run(), name="slices to be adopted"),
        asyncio.create_task(hub.host.loops.watch(), name="event loops of providers"),
    ]
    try:
        await _local_or_error(hub)
        await hub.adopting.wait_synced()
        await hub.own_networks.read_all()
        await hub.zones.read()
        await hub.approvals.read_once()
        await hub.restore()
        hub.fleet.check_identities()
        await hub.fleet.settled(hub.options.settle)
        if hub.options.dry_run:  # a command that writes acts on no address and for no cloud
            hub.follow_allocations()
            hub.follow_clouds()
        for room in (hub.allocating, hub.controlling):
            if room is not None:
                await room.settled_once(hub.options.settle)
        yield
    finally:
        for room in (hub.allocating, hub.controlling):
            if room is not None:
                await room.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await hub.fleet.close()
        await hub.host.close()


async def _local_or_error(hub: Hub) -> None:
    """Wait until the hub cluster has been read.

    Raises:
        HubError: it cannot be read, or not within ``settle`` seconds.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(hub.options.settle):
            while not hub.local.synced and not hub.local.attempted:  # noqa: ASYNC110 - states
                await asyncio.sleep(0.01)
    if not hub.local.synced:
        raise HubError(f"hub cluster: {hub.local.error or 'no answer'}")


async def one_pass(hub: Hub) -> list[Decision]:
    """Make one pass over every target, after health checks; slices of unknown sources are not changed.

    Returns:
        The last decision about each target.
    """
    checks = [source.health for target in hub.registry.targets.values() for source in target.sources]
    if any(check.mode != "off" for check in checks):
        await hub.board.probe_once(
            lambda: [hub.reconciler.decide(key) for key in hub.all_targets()], hub.options.settle
        )
    if not hub.options.dry_run:
        await hub.history.load()
    results = []
    for key in hub.all_targets():
        if not hub.options.dry_run:
            with suppress(ApiError):  # kept as Reconciler.problem()
                # A pass asks for another one at once (RECHECK), for example after a conflict; five are enough for that.
                for _ in range(5):
                    if (await hub.reconciler.reconcile(key) or 1.0) > 0.5:
                        break
        result = hub.reconciler.last(key) if not hub.options.dry_run else hub.reconciler.decide(key)
        if result is not None:
            results.append(result)
    await hub.history.flush()
    return results
