"""``hub cluster remove``: deletes the registry entry, then the Secret, then the objects in the remote cluster.

In this order the registry never names a Secret that is already deleted. The entry and the Secret can be removed without
access to the remote cluster. The command then prints what the user still has to delete there.
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
        left: commands that delete the objects left in the remote cluster.
        problem: why they could not be deleted; "" if that was not tried.
    """

    left: tuple[str, ...] = ()
    problem: str = ""


async def remove(wish: Wish, clock: Clock, steps: list[Step]) -> Removed:
    """Remove the cluster; without ``apply``, only report what would be removed.

    Args:
        wish: what to do.
        clock: source of time.
        steps: receives a step for each object that was deleted, would be deleted, or was absent, even if a later step
            fails.

    Raises:
        HubError: the entry or the Secret cannot be removed; the remote cluster was not touched.
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
