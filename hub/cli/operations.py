"""What ``hub approve``, ``pause``, ``resume`` and ``purge`` do in the hub cluster."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import click
import msgspec

from hub.aio.clock import SystemClock, rfc3339
from hub.cli.observe import meant
from hub.cli.render import count, table, warn
from hub.errors import ApiError, ClusterUnreachable, Conflict, HubError, NotFound
from hub.kube.client import MERGE_PATCH, Client
from hub.kube.credentials import Credentials
from hub.kube.hub_access import load_hub_access
from hub.kube.resolver import LookupPool
from hub.kube.wire import SLICES
from hub.local import approvals
from hub.local.cluster import LocalCluster
from hub.model import (
    ANNOTATION_PAUSED,
    ANNOTATION_STATE,
    LABEL_MANAGED_BY,
    LABEL_OWNER,
    LABEL_SERVICE_NAME,
    MANAGED_BY,
    ObjectKey,
    Slice,
)
from hub.plan.record import decode

TIMEOUT: Final = 10.0
PAGE: Final = "500"


@asynccontextmanager
async def hub_cluster(kubeconfig: str | None) -> AsyncIterator[Client]:
    """A client of the hub cluster.

    Raises:
        KubeconfigError: there is no access.
        ClusterUnreachable: nobody answers there.
    """
    access = await asyncio.to_thread(load_hub_access, kubeconfig)
    pool = LookupPool()
    try:
        async with Client(Credentials(access, SystemClock()), pool) as client:
            yield client
    except ClusterUnreachable as error:
        given = f"--kubeconfig {kubeconfig}" if kubeconfig else "no --kubeconfig"
        raise ClusterUnreachable(f"hub cluster ({given}): {error}; is it the one you mean?", error.kind) from error
    finally:
        pool.close()


# --- approve -------------------------------------------------------------------------------------


async def approve(kubeconfig: str | None, namespace: str, owner: str, subject: str, name: str) -> None:
    """Write an approval, and say what nobody withholds now.

    Raises:
        HubError: it could not be written.
    """
    kind, target = approvals.subject(subject)
    wall = SystemClock().wall()
    async with hub_cluster(kubeconfig) as client:
        if kind == "service":  # first: a hub at work would have let it go by then
            await _warn_of_another(client, owner, target, name)
        approval = await approvals.approve(client, namespace, owner, name, (kind, target), _who(), wall)
    where = f"ConfigMap {namespace}/{approvals.config_map(owner)}"
    click.echo(f"{subject}: {name} is approved until {rfc3339(approval.expires.timestamp())} ({where})")


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user, as in many containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


async def _warn_of_another(client: Client, owner: str, target: str, name: str) -> None:
    """A hash with a slip of the pen approves nothing; what a hub withholds stands on its slices."""
    namespace, _, service = target.partition("/")
    try:
        found = await _list(client, owner, f",{LABEL_SERVICE_NAME}={service}", namespace)
    except ApiError:  # whoever may approve need not be allowed to read slices
        return
    withheld = {decode(each.annotations.get(ANNOTATION_STATE, "")).hash for each in found} - {""}
    if not found:
        warn(f"{target} has no slices of owner {owner}")
    elif name not in withheld:
        hint = meant(name, withheld) or (f"; withheld: {', '.join(sorted(withheld))}" if withheld else "")
        warn(f"no hub has noted that it withholds {name} of {target}{hint}")


# --- pause, resume -------------------------------------------------------------------------------


async def set_paused(kubeconfig: str | None, target: str, *, paused: bool) -> None:
    """Set or remove the annotation.

    Raises:
        HubError: the Service does not exist or could not be patched.
    """
    namespace, _, name = target.partition("/")
    patch = {"metadata": {"annotations": {ANNOTATION_PAUSED: "true" if paused else None}}}
    path = f"/api/v1/namespaces/{namespace}/services/{name}"
    async with hub_cluster(kubeconfig) as client:
        try:
            await client.request(
                "PATCH", path, body=msgspec.json.encode(patch), timeout=TIMEOUT, content_type=MERGE_PATCH
            )
        except NotFound as error:
            raise HubError(f"Service {target} does not exist") from error


# --- purge ---------------------------------------------------------------------------------------


async def list_slices(kubeconfig: str | None, owner: str) -> list[Slice]:
    """All slices of an owner, by name.

    Raises:
        HubError: they cannot be listed.
    """
    async with hub_cluster(kubeconfig) as client:
        return await _list(client, owner)


async def _list(client: Client, owner: str, more: str = "", namespace: str = "") -> list[Slice]:
    """Slices with our label and this owner's, page by page."""
    head, _, plural = SLICES.path.rpartition("/")
    path = f"{head}/namespaces/{namespace}/{plural}" if namespace else SLICES.path
    params = {"labelSelector": f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_OWNER}={owner}{more}", "limit": PAGE}
    found: dict[ObjectKey, Slice] = {}
    while True:
        page, _, token = SLICES.list_page(await client.request("GET", path, params=params))
        found.update(page)
        if not token:
            break
        params["continue"] = token
    mine = [key for key, each in found.items() if _is_of(each, owner)]
    return [found[key] for key in sorted(mine)]


def _is_of(each: Slice, owner: str) -> bool:
    return each.labels.get(LABEL_MANAGED_BY) == MANAGED_BY and each.labels.get(LABEL_OWNER) == owner


def print_slices(found: Sequence[Slice]) -> None:
    """One line for each."""
    if found:
        rows = [(each.namespace, each.name, str(each.target), each.cluster, len(each.endpoints)) for each in found]
        click.echo(table(("NAMESPACE", "SLICE", "SERVICE", "CLUSTER", "ENDPOINTS"), rows))


async def delete_slices(kubeconfig: str | None, owner: str, found: Sequence[Slice]) -> int:
    """Delete exactly these states of these slices; how many went.

    Raises:
        HubError: one could not be deleted, or has changed since it was listed.
    """
    changed: list[str] = []
    async with hub_cluster(kubeconfig) as client:
        cluster = LocalCluster(client, SystemClock(), (owner,), lambda _: None)
        for each in found:
            try:
                await cluster.delete(each, TIMEOUT)
            except Conflict:
                changed.append(f"{each.namespace}/{each.name}")
    if changed:
        raise HubError(
            f"{count(len(changed), 'slice')} changed meanwhile and stayed, such as {changed[0]}: "
            f"does a hub of owner {owner} still run? Stop it and purge again"
        )
    return len(found)
