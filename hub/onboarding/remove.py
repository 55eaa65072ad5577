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
from hub.onboarding.options import ClusterOptions, open_cluster_secret, remote_access
from hub.onboarding.remote import Step
from hub.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class RemoveResult:
    """What the user still has to delete.

    Attributes:
        left: commands that delete the objects left in the remote cluster.
        problem: why they could not be deleted; "" if that was not tried.
    """

    left: tuple[str, ...] = ()
    problem: str = ""


async def remove(options: ClusterOptions, clock: Clock, steps: list[Step]) -> RemoveResult:
    """Remove the cluster; without ``apply``, only report what would be removed.

    Args:
        options: the options of the command line.
        clock: source of time.
        steps: receives a step for each object that was deleted, would be deleted, or was absent, even if a later step
            fails.

    Raises:
        HubError: the entry or the Secret cannot be removed; the remote cluster was not touched.
    """
    registered = await asyncio.to_thread(Registered.read, options.registry, options.name) if options.registry else None
    if registered is not None:
        await asyncio.to_thread(registered.text_without_entry)
    async with AsyncExitStack() as stack:
        secret_store = await stack.enter_async_context(open_cluster_secret(options, clock))
        found = await secret_store.find()
        if registered is not None:
            done = await asyncio.to_thread(registered.remove) if options.apply else _would(registered.exists)
            steps.append(Step(f"cluster {options.name} in {options.registry}", done))
        done = await secret_store.delete() if options.apply else _would(found is not None)
        steps.append(Step(f"Secret {options.secrets_namespace}/{options.name}", done))
    if options.kubeconfig is None:
        return RemoveResult(tuple(remote.removal_commands(options.access)))
    try:
        access = await remote_access(options, options.kubeconfig)
        async with administer(Credentials(access, clock)) as admin:
            await remote.withdraw(admin, options.access, steps, apply=options.apply)
    except HubError as error:
        return RemoveResult(tuple(remote.removal_commands(options.access)), str(error))
    return RemoveResult()


def _would(exists: bool) -> str:
    return "to be deleted" if exists else "absent"
