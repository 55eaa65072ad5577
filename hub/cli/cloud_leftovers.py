"""``hub purge --cloud``: deletes the objects of a cluster in its cloud that no Service needs.

It may run beside a hub: neither of them touches what the other works on, since here only what no Service needs goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import click

from hub.app.hub import Hub, Options, assemble
from hub.app.oneshot import observing
from hub.cli.observe import suggestion, warn_of_problems
from hub.cli.render import table
from hub.cloud.balancers import Refused, Step, Wait
from hub.controller.course import LAG, SOON, Memory
from hub.controlling.account import OpenAccount
from hub.controlling.carry import Carrier
from hub.controlling.cluster import ControlledCluster, Rights
from hub.controlling.leftovers import Leftover, Leftovers
from hub.controlling.services import UNREAD, Services
from hub.errors import HubError, UsageError
from hub.events.cloud import reporter_of
from hub.model import ObjectKey

REQUEST: Final = 30.0
"""Most seconds for one write to the cloud."""
PATIENCE: Final = 120.0
"""Seconds until the objects of a name must be gone: a cloud unmaps addresses and deletes balancers in its own time."""


async def find(options: Options, cluster: str) -> tuple[Leftover, ...]:
    """Look for leftovers.

    Raises:
        UsageError: the hub is not the cloud controller of the cluster, or only observes it.
        HubError: the hub cluster, the cluster or its cloud cannot be read.
    """
    async with _following(options, cluster) as (_, leftovers):
        return leftovers.found


def show(found: Sequence[Leftover]) -> None:
    """Print the leftovers, one line for each object."""
    rows = [(left.name, *each.split(" ", 1)) for left in found for each in left.objects]
    if rows:
        click.echo(table(("NAME", "KIND", "ID"), rows))


async def delete(options: Options, cluster: str, names: Collection[str]) -> None:
    """Delete the objects of these names, except those that have a Service now.

    Raises:
        HubError: something stays; the message names it.
    """
    async with _following(options, cluster) as (hub, leftovers):
        for left in leftovers.found:
            if left.name in names:
                await _delete(hub, leftovers, left.name)


async def _delete(hub: Hub, leftovers: Leftovers, name: str) -> None:
    begun = hub.clock.now()
    while True:
        why = await leftovers.delete(name)
        await leftovers.look()
        left = next((each for each in leftovers.found if each.name == name), None)
        if left is None:
            return
        waited = hub.clock.now() - begun
        # A list may still show what was just deleted.
        if isinstance(why, Refused) or waited > (PATIENCE if isinstance(why, Wait | Step) else LAG):
            text = f": {why.message}" if isinstance(why, Wait | Refused) else ""
            raise HubError(f"not deleted: {left}{text}; look at it in the cloud, and purge again")
        await hub.clock.sleep(SOON)


@asynccontextmanager
async def _following(options: Options, name: str) -> AsyncGenerator[tuple[Hub, Leftovers]]:
    async with assemble(options) as hub, observing(hub):
        warn_of_problems(hub)
        site = _site(hub, name)
        services = Services(name, site.client, hub.clock, lambda _: None, lambda: None)
        memories: dict[ObjectKey, Memory] = {}

        def memory(key: ObjectKey, uid: str) -> Memory:
            return memories.setdefault(key, Memory(uid, hub.clock.now()))

        leftovers = Leftovers(site, services, Carrier(site, services), memory)
        following = asyncio.create_task(services.run(), name=f"Services of {name}")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(options.settle):
                    while services.problem == UNREAD:  # noqa: ASYNC110 - a state, not an event
                        await asyncio.sleep(0.01)
            if problem := site.problem or services.problem:
                raise HubError(f"cluster {name}: {problem}")
            await leftovers.look()
            yield hub, leftovers
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await site.account.close()


def _site(hub: Hub, name: str) -> ControlledCluster:
    """The cluster with the right to write to its cloud, which holds no Lease and runs nothing by itself."""
    clouds = {each.name: each.cloud for each in hub.registry.clusters.values() if each.cloud is not None}
    spec = clouds.get(name)
    if spec is None:
        raise UsageError(f"the registry has no cluster {name} with cloud:{suggestion(name, clouds)}")
    rights = Rights(hub.elector.identity, lambda _: True, lambda _: REQUEST, lambda _: False, elects=False)
    account = OpenAccount(spec.provider, hub.host, lambda: None)
    account.clusters.add(name)
    reporter, _ = reporter_of(hub.clock, hub.elector.identity, lambda: site.client(), lambda: False, enabled=False)
    site = ControlledCluster(name, spec, account, hub.fleet, hub.clock, rights, reporter)
    return site
