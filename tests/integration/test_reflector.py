"""The reflector with a real API server that is killed, paused, loses its history, or is full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hub.errors import ClusterUnreachable, HubError
from hub.kube import client as client_module
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.reflector import Reflector
from hub.kube.resolver import LookupPool
from hub.kube.secret import Secret
from hub.kube.wire import NODES
from hub.model import Node
from hub.runtime.clock import SystemClock
from tests.support.apiserver.server import ApiServer
from tests.support.waiting import until

PATH = "/api/v1/nodes"


class Impatient(SystemClock):
    """A clock with short sleeps, so that outages take less time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.1))


class Kept:
    """A store and observer that keeps everything."""

    def __init__(self) -> None:
        self.objects: dict[str, Node] = {}
        self.smallest = 1 << 30
        self.lists = 0
        self.answers = 0
        self.errors: list[HubError] = []

    def replace(self, objects: dict[Any, Node], resource_version: str) -> None:
        self.objects = objects
        self.lists += 1
        self.smallest = min(self.smallest, len(objects))

    def upsert(self, key: Any, value: Node, resource_version: str) -> None:
        self.objects[key] = value

    def delete(self, key: Any, value: Node, resource_version: str) -> None:
        del self.objects[key]
        self.smallest = min(self.smallest, len(self.objects))

    def listing(self) -> None:
        pass

    def answered(self) -> None:
        self.answers += 1

    def failed(self, error: HubError) -> None:
        self.errors.append(error)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the ClusterUnreachable errors."""
        return [error.kind for error in self.errors if isinstance(error, ClusterUnreachable)]


@pytest.fixture
def pool() -> Iterator[LookupPool]:
    """Threads for name resolution."""
    lookups = LookupPool(1)
    yield lookups
    lookups.close()


@asynccontextmanager
async def following(server: ApiServer, pool: LookupPool, **more: Any) -> AsyncIterator[tuple[Kept, Reflector[Node]]]:
    """Run a reflector of the server's Nodes, and wait for its first list and watch."""
    access = ClusterAccess(server.url, Token(Secret(server.token())), "test", ca_data=server.ca_pem.encode())
    kept = Kept()
    async with Client(Credentials(access, SystemClock()), pool) as client:
        reflector = Reflector("nodes", client, NODES, kept, kept, Impatient(), **more)
        task = asyncio.create_task(reflector.run())
        try:
            await until(lambda: kept.answers >= 2)  # the list, and the watch that follows
            yield kept, reflector
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.05)


async def create(server: ApiServer, *names: str) -> None:
    """Create Nodes in a thread."""
    for name in names:
        await asyncio.to_thread(server.api.post, PATH, {"metadata": {"name": name}})


async def delete(server: ApiServer, name: str) -> None:
    """Delete a Node in a thread."""
    await asyncio.to_thread(server.api.delete, f"{PATH}/{name}")


async def test_store_follows_the_nodes(hub_cluster: ApiServer, pool: LookupPool) -> None:
    """Additions, changes and deletions arrive with one list and one watch."""
    await create(hub_cluster, "n1", "n2")
    mark = hub_cluster.audit_mark()
    async with following(hub_cluster, pool) as (kept, _):
        assert sorted(kept.objects) == ["n1", "n2"]
        await create(hub_cluster, "n3")
        await delete(hub_cluster, "n1")
        patch = {"metadata": {"labels": {"zone": "a"}}}
        await asyncio.to_thread(hub_cluster.api.patch, f"{PATH}/n2", patch)
        await until(lambda: kept.objects["n2"].labels.get("zone") == "a")
        assert sorted(kept.objects) == ["n2", "n3"]
        assert kept.errors == []
    await asyncio.sleep(0.2)
    verbs = [request.verb for request in hub_cluster.requests(mark) if request.verb in ("list", "watch")]
    assert sorted(verbs) == ["list", "watch"]


async def test_killed_server_is_followed_again(hub_cluster: ApiServer, pool: LookupPool) -> None:
    """After SIGKILL the store keeps its content; after the restart it has the changes made meanwhile."""
    await create(hub_cluster, "n1", "n2")
    async with following(hub_cluster, pool) as (kept, _):
        await asyncio.to_thread(hub_cluster.kill)
        await until(lambda: "refused" in kept.kinds)
        assert (set(kept.kinds), sorted(kept.objects)) == ({"reset", "refused"}, ["n1", "n2"])
        await asyncio.to_thread(hub_cluster.restart)
        await create(hub_cluster, "n3")
        await delete(hub_cluster, "n1")
        await until(lambda: sorted(kept.objects) == ["n2", "n3"])
        assert kept.smallest == 2


async def test_forgotten_history_means_a_new_list(hub_cluster: ApiServer, pool: LookupPool) -> None:
    """After an expired version, a new list replaces the store without a gap."""
    await create(hub_cluster, "n1", "n2")
    async with following(hub_cluster, pool) as (kept, reflector):
        seen = int(reflector.resource_version)
        await asyncio.to_thread(hub_cluster.api.post, "/api/v1/namespaces/edge/configmaps", {"metadata": {"name": "x"}})
        await asyncio.to_thread(hub_cluster.forget_history)
        await until(lambda: kept.lists == 2)
        assert (sorted(kept.objects), kept.smallest) == (["n1", "n2"], 2)
        assert int(reflector.resource_version) > seen
        await create(hub_cluster, "n3")
        await until(lambda: "n3" in kept.objects)


async def test_frozen_server_is_noticed_and_its_return_too(
    hub_cluster: ApiServer, pool: LookupPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused server closes no connection: silence ends the watch, connecting fails, and the store stays."""
    await create(hub_cluster, "n1", "n2")
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 0.5)
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 1.5)
    async with following(hub_cluster, pool) as (kept, _):
        hub_cluster.pause()
        await until(lambda: kept.errors, 10)
        assert (set(kept.kinds), sorted(kept.objects), kept.lists) == ({"timeout"}, ["n1", "n2"], 1)
        hub_cluster.resume()
        await create(hub_cluster, "n3")
        await until(lambda: "n3" in kept.objects)


async def test_thousand_nodes_come_in_pages(hub_cluster: ApiServer, pool: LookupPool) -> None:
    """A thousand Nodes are read in pages of a hundred, and stored at once."""
    names = [f"n{number:04}" for number in range(1000)]

    def make(part: list[str]) -> None:
        with hub_cluster.api_with(hub_cluster.token()) as api:
            for name in part:
                api.post(PATH, {"metadata": {"name": name}})

    def make_all() -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(make, [names[first::4] for first in range(4)]))

    await asyncio.to_thread(make_all)
    mark = hub_cluster.audit_mark()
    async with following(hub_cluster, pool, page_size=100) as (kept, reflector):
        assert (sorted(kept.objects), kept.lists) == (names, 1)
        await asyncio.sleep(0.2)
        lists = [request for request in hub_cluster.requests(mark) if request.verb == "list"]
        assert len(lists) == 10
        await delete(hub_cluster, names[0])
        await until(lambda: len(kept.objects) == 999)
        assert reflector.relists == 1
