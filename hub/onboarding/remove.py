"""``hub cluster remove``: deletes the registry entry, then the Secret, then the objects in the remote cluster.

In this order the hub never misses a kubeconfig that its registry names. The hub's side needs no remote cluster: one
that is gone for good can be removed, and what is left in one that is merely away is said.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from hub.errors import HubError
from hub.kube.admin import administer
from hub.kube.credentials import Credentials
from hub.onboarding import remote
from hub.onboarding.file import Registered
from hub.onboarding.remote import Step
from hub.onboarding.wish import Wish, hub_side, remote_access
from hub.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Removed:
    """What the user still has to delete.

    Attributes:
        left: commands for what is left in the remote cluster.
        problem: why that could not be removed; "" where nobody tried.
    """

    left: tuple[str, ...] = ()
    problem: str = ""


async def remove(wish: Wish, clock: Clock, steps: list[Step]) -> Removed:
    """Remove the cluster; without ``apply``, only report what would be removed.

    Args:
        wish: what.
        clock: where time comes from.
        steps: what was deleted, would be, or was not there is entered here, however this ends.

    Raises:
        HubError: the hub's side cannot be removed; the remote cluster was not touched.
    """
    registered = await asyncio.to_thread(Registered.read, wish.registry, wish.name) if wish.registry else None
    if registered is not None:
        await asyncio.to_thread(registered.without)
    async with AsyncExitStack() as stack:
        side = await stack.enter_async_context(hub_side(wish, clock))
        found = await side.find()
        if registered is not None:
            done = await asyncio.to_thread(registered.remove) if wish.apply else _would(registered.there)
            steps.append(Step(f"cluster {wish.name} in {wish.registry}", done))
        done = await side.delete() if wish.apply else _would(found is not None)
        steps.append(Step(f"Secret {wish.secrets_namespace}/{wish.name}", done))
    if wish.kubeconfig is None:
        return Removed(tuple(remote.by_hand(wish.access)))
    try:
        access = await remote_access(wish, wish.kubeconfig)
        async with administer(Credentials(access, clock)) as admin:
            await remote.withdraw(admin, wish.access, steps, apply=wish.apply)
    except HubError as error:
        return Removed(tuple(remote.by_hand(wish.access)), str(error))
    return Removed()


def _would(there: bool) -> str:
    return "to be deleted" if there else "absent"
