"""Carries out ``hub pause``, ``resume`` and ``purge`` in the hub cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import click
import msgspec

from hub.cli.render import count, table
from hub.errors import ClusterUnreachable, Conflict, HubError, NotFound, UsageError
from hub.kube.client import MERGE_PATCH, Client
from hub.kube.credentials import Credentials
from hub.kube.hub_access import load_hub_access
from hub.kube.resolver import LookupPool
from hub.kube.wire import SLICES
from hub.model import (
    ANNOTATION_PAUSED,
    LABEL_MANAGED_BY,
    LABEL_OWNER,
    MANAGED_BY,
    ObjectKey,
    Slice,
)
from hub.observe.local.cluster import LocalCluster
from hub.runtime.clock import SystemClock

TIMEOUT: Final = 10.0
"""Seconds for one request."""
PAGE: Final = "500"
"""Objects in one page of a list."""


@asynccontextmanager
async def hub_cluster(kubeconfig: str | None) -> AsyncIterator[Client]:
    """A client of the hub cluster.

    Raises:
        KubeconfigError: there is no access.
        ClusterUnreachable: it does not answer.
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


# --- pause, resume -------------------------------------------------------------------------------


async def set_paused(kubeconfig: str | None, target: str, *, paused: bool) -> None:
    """Set or remove the annotation.

    Raises:
        UsageError: the Service or the allocation does not exist.
        HubError: it could not be patched.
    """
    namespace, _, name = target.partition("/")
    patch = {"metadata": {"annotations": {ANNOTATION_PAUSED: "true" if paused else None}}}
    path = f"/api/v1/namespaces/{namespace}/services/{name}"
    if namespace == "allocation":
        path = f"/apis/netinfra.darkbrains.com/v1alpha1/netipallocations/{name}"
    async with hub_cluster(kubeconfig) as client:
        try:
            await client.request(
                "PATCH", path, body=msgspec.json.encode(patch), timeout=TIMEOUT, content_type=MERGE_PATCH
            )
        except NotFound as error:
            what = target.replace("/", " ") if namespace == "allocation" else f"Service {target}"
            raise UsageError(f"{what} does not exist") from error


# --- purge ---------------------------------------------------------------------------------------


async def list_slices(kubeconfig: str | None, owner: str) -> list[Slice]:
    """All slices of an owner, by name.

    Raises:
        HubError: they cannot be listed.
    """
    async with hub_cluster(kubeconfig) as client:
        return await slices_of(client, owner)


async def slices_of(client: Client, owner: str, namespace: str = "") -> list[Slice]:
    """The slices of an owner in a namespace, "" = all namespaces; page by page."""
    head, _, plural = SLICES.path.rpartition("/")
    path = f"{head}/namespaces/{namespace}/{plural}" if namespace else SLICES.path
    params = {"labelSelector": f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_OWNER}={owner}", "limit": PAGE}
    found: dict[ObjectKey, Slice] = {}
    while True:
        page, _, token = SLICES.list_page(await client.request("GET", path, params=params))
        found.update(page)
        if not token:
            break
        params["continue"] = token
    mine = [key for key, slice_ in found.items() if _is_of(slice_, owner)]
    return [found[key] for key in sorted(mine)]


def _is_of(slice_: Slice, owner: str) -> bool:
    return slice_.labels.get(LABEL_MANAGED_BY) == MANAGED_BY and slice_.labels.get(LABEL_OWNER) == owner


def print_slices(found: Sequence[Slice]) -> None:
    """Print a table of slices, one line per slice."""
    if found:
        rows = [
            (slice_.namespace, slice_.name, str(slice_.target), slice_.cluster, len(slice_.endpoints))
            for slice_ in found
        ]
        click.echo(table(("NAMESPACE", "SLICE", "SERVICE", "CLUSTER", "ENDPOINTS"), rows))


async def delete_slices(kubeconfig: str | None, owner: str, found: Sequence[Slice]) -> int:
    """Delete these slices, unless one changed since it was listed; return their number.

    Raises:
        HubError: a slice could not be deleted or has changed.
    """
    changed: list[str] = []
    async with hub_cluster(kubeconfig) as client:
        cluster = LocalCluster(client, SystemClock(), (owner,), lambda _: None)
        for slice_ in found:
            try:
                await cluster.delete(slice_, TIMEOUT)
            except Conflict:
                changed.append(f"{slice_.namespace}/{slice_.name}")
    if changed:
        raise HubError(
            f"{count(len(changed), 'slice')} changed after the listing and were not deleted, such as {changed[0]}: "
            f"is a hub of owner {owner} still running? Stop it and purge again"
        )
    return len(found)
