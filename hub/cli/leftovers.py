"""``hub purge --allocations``: takes the hub's finalizer off allocations, and its labels off nodes.

It talks only to the hub cluster: at the clouds, every address stays where it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import click
import msgspec

from hub.allocating.follow import PATH as ALLOCATIONS
from hub.allocations.spec import FINALIZER, LABEL_READY
from hub.cli.operations import PAGE, TIMEOUT, hub_cluster
from hub.cli.render import count, table
from hub.errors import NotFound
from hub.kube.client import MERGE_PATCH, Client

NODES: Final = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What the hub has put on allocations and nodes.

    Attributes:
        finalizers: name of an allocation with the hub's finalizer -> its other finalizers, and its resourceVersion.
        labels: name of a node -> the keys of its labels.
    """

    finalizers: dict[str, tuple[list[str], str]] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{count(len(self.finalizers), 'finalizer')} and the labels of {count(len(self.labels), 'node')}"


async def find(kubeconfig: str | None) -> Leftovers:
    """Look for leftovers in the hub cluster.

    Raises:
        HubError: allocations or nodes cannot be listed.
    """
    found = Leftovers()
    labels: dict[str, set[str]] = {LABEL_READY: {"true"}}
    async with hub_cluster(kubeconfig) as client:
        async for object_ in _listed(client, ALLOCATIONS):
            meta, spec = object_["metadata"], object_.get("spec", {})
            others = list(meta.get("finalizers", ()))
            if FINALIZER in others:
                others.remove(FINALIZER)
                found.finalizers[meta["name"]] = others, meta["resourceVersion"]
            if key := spec.get("addressLabel"):
                labels.setdefault(key, set()).update(spec.get("reservedIPs", ()))
        for key, values in sorted(labels.items()):
            async for node in _listed(client, NODES, key):
                if node["metadata"]["labels"][key] in values:
                    found.labels.setdefault(node["metadata"]["name"], []).append(key)
    return found


async def _listed(client: Client, path: str, selector: str = "") -> AsyncIterator[dict[str, Any]]:
    """All objects of a kind, page by page; none if the kind is not installed."""
    params = {"limit": PAGE} | ({"labelSelector": selector} if selector else {})
    while True:
        try:
            page = msgspec.json.decode(await client.request("GET", path, params=params))
        except NotFound:
            return
        for object_ in page.get("items") or ():
            yield object_
        if not (token := page["metadata"].get("continue")):
            return
        params["continue"] = token


def show(found: Leftovers) -> None:
    """Print the leftovers, one line each."""
    rows: Iterable[tuple[str, ...]] = [
        *(("NetIPAllocation", name, f"finalizer {FINALIZER}") for name in sorted(found.finalizers)),
        *(("Node", name, f"label {key}") for name, keys in sorted(found.labels.items()) for key in keys),
    ]
    if rows:
        click.echo(table(("KIND", "NAME", "WHAT"), rows))


async def let_go(kubeconfig: str | None, found: Leftovers) -> None:
    """Remove these finalizers and labels.

    Raises:
        HubError: an object could not be changed, for example because it has changed since.
    """
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"{ALLOCATIONS}/{name}", {"finalizers": others, "resourceVersion": version})
        for name, (others, version) in sorted(found.finalizers.items())
    ]
    changes += [(f"{NODES}/{name}", {"labels": dict.fromkeys(keys)}) for name, keys in sorted(found.labels.items())]
    async with hub_cluster(kubeconfig) as client:
        for path, metadata in changes:
            body = msgspec.json.encode({"metadata": metadata})
            try:
                await client.request("PATCH", path, body=body, timeout=TIMEOUT, content_type=MERGE_PATCH)
            except NotFound:
                continue  # it is gone, and so is the leftover
