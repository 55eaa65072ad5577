"""The load balancer part is killed at each write to its Service: the next one ends where a calm one does.

``test_cloud_kills.py`` kills at the writes to the cloud.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from hub.controller.course import LAG
from hub.controller.record import ANNOTATION
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.hub_access import load_hub_access
from hub.kube.resolver import LookupPool
from hub.runtime.clock import SystemClock
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.balancing import PREFIX
from tests.support.balancing_site import Scene, ToyAccount, ToySite, running

NAME = "web.edge.eu"
When = Literal["before", "after"]


class Killing:
    """The cluster's API; at one write the process is killed, before the request is sent or before its answer arrives.

    Attributes:
        left: writes until then; 0 = no kill.
        killed: set then; the writer gets no answer.
        writes: number of all writes.
    """

    def __init__(self, client: Client) -> None:
        self.left = 0
        self.when: When = "before"
        self.killed = asyncio.Event()
        self.writes = 0
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def arm(self, number: int, when: When) -> None:
        """Kill the process at this write from now on."""
        self.left, self.when = number, when

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        """Make a request."""
        if method == "GET":
            return await self._client.request(method, path, **more)
        self.writes += 1
        self.left -= 1
        if self.left != 0:
            return await self._client.request(method, path, **more)
        if self.when == "after":
            await self._client.request(method, path, **more)
        self.killed.set()
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def cluster(server: ApiServer, folder: Path) -> AsyncIterator[Killing]:
    """The cluster, as the hub accesses it."""
    path = folder / "kubeconfig"
    server.kubeconfig(path)
    pool = LookupPool()
    async with Client(Credentials(load_hub_access(path), SystemClock()), pool) as found:
        yield Killing(found)
    pool.close()


def create(scene: Scene) -> None:
    """A person creates the Service."""
    scene.add()


def update(scene: Scene) -> None:
    """A person changes a port, and sets an annotation; the record keeps its name."""
    ports = [{"name": "http", "port": 80}, {"name": "https", "port": 443}]
    scene.patch({"metadata": {"annotations": {PREFIX + "policy": "first"}}, "spec": {"ports": ports}})


def delete(scene: Scene) -> None:
    """A person deletes the Service."""
    scene.delete()


def state(scene: Scene) -> Object:
    """What there is in the cloud and of the Service, without ids and times."""
    service = scene.service()
    things = {
        thing.kind: (thing.name, thing.nodes, thing.ports, bool(thing.holds)) for thing in scene.cloud.things.values()
    }
    found: Object = {"number": len(scene.cloud.things), "things": things, "service": service is not None}
    if service is not None:
        record = json.loads(service["metadata"].get("annotations", {}).get(ANNOTATION, "{}"))
        found["finalizers"] = service["metadata"].get("finalizers")
        found["record"] = {key: value for key, value in record.items() if key not in ("uid", "ids")}
        found["ids"] = {kind: id_ in scene.cloud.things for kind, id_ in record.get("ids", {}).items()}
        balancer = service.get("status", {}).get("loadBalancer", {})
        found["published"] = [entry["ip"].startswith("203.0.113.") for entry in balancer.get("ingress", ())]
    return found


async def calm(killing: Killing, server: ApiServer, act: Callable[[Scene], None]) -> Object:
    """The end of a course without a kill; the Service is gone afterwards; ``killing.writes`` are those of the act."""
    async with running(ToySite(killing), server.api) as scene:  # type: ignore[arg-type] - it behaves like a Client
        await begun(scene, act)
        killing.writes = 0
        act(scene)
        await scene.until(lambda: ended(scene, act))
        found, writes = state(scene), killing.writes
        if act is not delete:
            scene.delete()
            await scene.until(lambda: scene.service() is None)
        killing.writes = writes
        return found


async def begun(scene: Scene, act: Callable[[Scene], None]) -> None:
    """What is there before a person acts."""
    if act is not create:
        scene.add()
        await scene.state("ready")


def ended(scene: Scene, act: Callable[[Scene], None]) -> bool:
    """Whether a calm course has ended."""
    if act is delete:
        return scene.service() is None
    ready = scene.told is not None and scene.told.state == "ready"
    return ready and (act is create or scene.cloud.of(NAME)["balancer"].ports == (80, 443))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("act", "number"), [(create, 1), (create, 2), (update, 1), (delete, 1)])
async def test_a_kill_at_a_write_to_the_service_changes_nothing(
    hub_cluster: ApiServer, tmp_path: Path, act: Callable[[Scene], None], number: int, when: When
) -> None:
    """Killed before or after record, status, or the finalizer's end are written: the end is that of a calm course."""
    async with cluster(hub_cluster, tmp_path) as killing:
        wanted = await calm(killing, hub_cluster, act)
        assert killing.writes == (2 if act is create else 1)
        site = ToySite(killing)  # type: ignore[arg-type]
        async with running(site, hub_cluster.api) as scene:
            await begun(scene, act)
            killing.arm(number, when)
            act(scene)
            await asyncio.wait_for(killing.killed.wait(), 15)
        site.account = ToyAccount(site.cloud, site.clock)
        async with running(site, hub_cluster.api) as scene:
            async with asyncio.timeout(20):
                while not await asyncio.to_thread(lambda: ended(scene, act) and state(scene) == wanted):
                    scene.ahead(LAG / 10)
                    await asyncio.sleep(0.02)
        assert site.cloud.breaches == []
