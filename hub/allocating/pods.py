"""Which Pods of a workload are on a node, watched only while the plan asks for it.

A Pod belongs to a workload by the UIDs of its controllers, never by labels or names: its controller is the StatefulSet
or DaemonSet, or a ReplicaSet whose controller is the Deployment. A workload that does not exist has no Pods. Any other
error leaves them unknown, which the plan counts as present.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from cachetools import TTLCache

from hub.allocating.rights import PODS as PODS_RIGHT
from hub.allocating.rights import WORKLOADS, explained
from hub.allocations.spec import WorkloadRef, moment
from hub.allocations.view import NodeKey, Pod, Pods
from hub.errors import Forbidden, HubError, NotFound
from hub.kube import wire
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import Resource
from hub.model import ObjectKey, OwnerReference
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise, until_one_ends

log = logging.getLogger(__name__)

COLLECTIONS: Final = {"Deployment": "deployments", "StatefulSet": "statefulsets", "DaemonSet": "daemonsets"}
LOOK_AGAIN: Final = 5.0
"""Seconds between looks at the Pods without a change, since a Pod stops counting when its grace period is over."""
WORKLOAD_AGAIN: Final = 30.0
"""Seconds after which the workload is read again: it may be another one of the same name."""
WARN_AGAIN: Final = 600.0
"""Seconds after which a problem that has not ended is logged again."""
OTHERS: Final = 1
"""Other Pods count as there where the hub may not list the Pods of all namespaces."""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a static Pod, which only its node can remove."""

Key = tuple[NodeKey, WorkloadRef]


class _PodMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    annotations: dict[str, str] | None = None


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _PodMeta
    status: _PodStatus = _PodStatus()


class _Owned(msgspec.Struct):
    metadata: _PodMeta


class _PodList(msgspec.Struct):
    items: tuple[_Pod, ...] = ()


PODS: Resource[_Pod] = wire.resource(
    "/api/v1/pods",
    "Pod",
    _Pod,
    lambda found: found,
    lambda meta: ObjectKey(meta.namespace, meta.name),
    "pods: list, watch",
)


class PodWatch:
    """Watches Pods.

    Args:
        connect: returns a connected client of a cluster.
        clock: where time comes from.
        on_change: called when the Pods of a node may have changed.

    Attributes:
        found: the Pods of the workload on the node, without keys that are unknown.
        problems: key -> why its Pods are unknown.
    """

    def __init__(
        self, connect: Callable[[str], Awaitable[Client]], clock: Clock, on_change: Callable[[NodeKey], None]
    ) -> None:
        self.found: dict[Key, Pods] = {}
        self.problems: dict[Key, HubError] = {}
        self._connect = connect
        self._clock = clock
        self._on_change = on_change
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._warned: TTLCache[Key, str] = TTLCache(1000, WARN_AGAIN, timer=clock.now)
        """Problems in the log, until the Pods could be watched for a while; the same question does not repeat them."""

    def ask(self, wanted: frozenset[Key]) -> None:
        """Watch exactly these nodes and workloads."""
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
            self.found.pop(key, None)
            self.problems.pop(key, None)
        for key in wanted - self._tasks.keys():
            name = f"Pods of {key[1]} on {key[0]}"
            self._tasks[key] = asyncio.create_task(supervise(name, partial(self._follow, key), self._clock))

    @property
    def known(self) -> frozenset[Key]:
        """The nodes and workloads whose Pods are known, or why they are not."""
        return frozenset(self.found.keys() | self.problems.keys())

    async def close(self) -> None:
        """Stop all watches."""
        tasks = list(self._tasks.values())
        self.ask(frozenset())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: Key) -> None:
        while True:
            try:
                await self._once(key)
                self._warned.pop(key, None)
            except NotFound:
                self._set(key, Pods(others=OTHERS))
            except HubError as error:
                self.found.pop(key, None)
                if str(error) not in self._warned.values():
                    log.warning("Pods of %s on %s are unknown: %s", key[1], key[0], error)
                self.problems[key], self._warned[key] = error, str(error)
                self._on_change(key[0])
            await self._clock.sleep(LOOK_AGAIN)

    async def _once(self, key: Key) -> None:
        """Watch until the workload is to be read again, or something fails."""
        node, workload = key
        client = await self._connect(node.cluster)
        path = f"/apis/apps/v1/namespaces/{workload.namespace}/{COLLECTIONS[workload.kind]}/{workload.name}"
        uid = (await _read(client, node.cluster, workload.namespace, path)).uid
        watched = _Watched()
        reflector = Reflector(
            f"Pods of {workload} on {node}",
            client,
            PODS,
            watched,
            watched,
            self._clock,
            params={"fieldSelector": f"spec.nodeName={node.name}"},
            namespace=workload.namespace,
        )
        tasks = [
            asyncio.create_task(reflector.run()),
            asyncio.create_task(self._look(key, client, uid, watched)),
            asyncio.create_task(self._clock.sleep(WORKLOAD_AGAIN)),
        ]
        await until_one_ends(tasks)

    async def _look(self, key: Key, client: Client, uid: str, watched: _Watched) -> None:
        """Keep ``found`` up to date; ends with the error of the watch."""
        owners: dict[str, str] = {}
        others: int | None = OTHERS
        while True:
            watched.changed.clear()
            if watched.error is not None:
                raise explained(watched.error, PODS_RIGHT, key[0].cluster, key[1].namespace) from watched.error
            if watched.current:
                mine = [
                    _pod(pod)
                    for pod in list(watched.pods.values())
                    if self._counts(pod) and await self._belongs(client, key[0].cluster, pod, uid, owners)
                ]
                if others is not None and key[1].kind == "DaemonSet":
                    others = await self._others(client, key[0].name)
                ordered = sorted(mine, key=lambda pod: (pod.namespace, pod.name))
                self._set(key, Pods(tuple(ordered), OTHERS if others is None else others))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN):
                    await watched.changed.wait()

    def _counts(self, pod: _Pod) -> bool:
        """Whether a Pod may still run."""
        ends = pod.metadata.deletion_timestamp
        over = ends is not None and moment(ends) < self._clock.wall()
        return pod.status.phase in ("", "Pending", "Running", "Unknown") and not over

    async def _others(self, client: Client, node: str) -> int | None:
        """How many Pods a drain of the node still has to remove, of all namespaces; None = the hub may not list them.

        Drains leave Pods of DaemonSets and mirror Pods.
        """
        try:
            body = await client.request("GET", PODS.path, params={"fieldSelector": f"spec.nodeName={node}"})
        except Forbidden:
            return None
        pods = msgspec.json.decode(body, type=_PodList).items
        return sum(self._counts(pod) and not _stays(pod.metadata) for pod in pods)

    @staticmethod
    async def _belongs(client: Client, cluster: str, pod: _Pod, uid: str, owners: dict[str, str]) -> bool:
        owner = _controller(pod.metadata)
        if owner is None or owner.uid == uid:
            return owner is not None
        if owner.kind != "ReplicaSet":
            return False
        if owner.uid not in owners:
            path = f"/apis/apps/v1/namespaces/{pod.metadata.namespace}/replicasets/{owner.name}"
            try:
                above = _controller(await _read(client, cluster, pod.metadata.namespace, path))
            except NotFound:
                above = None
            owners[owner.uid] = above.uid if above is not None else ""
        return owners[owner.uid] == uid

    def _set(self, key: Key, found: Pods) -> None:
        self.problems.pop(key, None)
        if key in self._tasks and self.found.get(key) != found:
            self.found[key] = found
            self._on_change(key[0])


class _Watched:
    """Store and observer of one watch."""

    def __init__(self) -> None:
        self.pods: Mapping[Any, _Pod] = {}
        self.current = False
        self.error: HubError | None = None
        self.changed = asyncio.Event()

    def replace(self, objects: dict[Any, _Pod], resource_version: str) -> None:  # noqa: ARG002 - a Store
        self.pods = objects
        self.changed.set()

    def upsert(self, key: Any, value: _Pod, resource_version: str) -> None:  # noqa: ARG002 - a Store
        self.pods = {**self.pods, key: value}
        self.changed.set()

    def delete(self, key: Any, value: _Pod, resource_version: str) -> None:  # noqa: ARG002 - a Store
        self.pods = {name: pod for name, pod in self.pods.items() if name != key}
        self.changed.set()

    def listing(self) -> None:
        self.current = False

    def answered(self) -> None:
        self.current = True
        self.changed.set()

    def failed(self, error: HubError) -> None:
        self.error = error
        self.changed.set()


async def _read(client: Client, cluster: str, namespace: str, path: str) -> _PodMeta:
    """The metadata of a workload or a ReplicaSet."""
    try:
        body = await client.request("GET", path)
    except HubError as error:
        raise explained(error, WORKLOADS, cluster, namespace) from error
    return msgspec.json.decode(body, type=_Owned).metadata


def _controller(meta: _PodMeta) -> OwnerReference | None:
    return next((owner for owner in meta.owner_references or () if owner.controller), None)


def _stays(meta: _PodMeta) -> bool:
    """Whether a drain leaves the Pod on its node."""
    owner = _controller(meta)
    return MIRROR in (meta.annotations or {}) or (owner is not None and owner.kind == "DaemonSet")


def _pod(pod: _Pod) -> Pod:
    meta = pod.metadata
    return Pod(meta.namespace, meta.name, meta.uid, meta.resource_version, meta.creation_timestamp or "")
