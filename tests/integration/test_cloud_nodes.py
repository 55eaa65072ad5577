"""The node part of the cloud controller on a real API server, with a scripted cloud."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hub.cloud.instances import Instance
from hub.controller.nodes import uninitialized
from hub.controller.rights import PART_RULES
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.reflector import Reflector
from hub.kube.resolver import LookupPool
from hub.kube.secret import Secret
from hub.kube.wire import CONTROLLED_NODES
from hub.model import Node
from hub.observe.remote.nodes import NodeStore
from hub.onboarding.manifests import NODE_RULES
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.clocks import AheadClock
from tests.support.controlled_nodes import UNINITIALIZED, ScriptedAccount, ScriptedSite, machine
from tests.support.waiting import until

PATH = "/api/v1/nodes"
SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
RULES = (*NODE_RULES, *PART_RULES["nodes"], *PART_RULES["delete-nodes"])


class Scene:
    """A cluster without Nodes, the requests of its node part, and the Nodes as the watch brings them.

    Attributes:
        sent: (method, path, body) of each write.
        seen: every state of a Node that the watch brought.
    """

    def __init__(self, server: ApiServer, client: Client, clock: AheadClock, **spec: Any) -> None:
        self.server = server
        self.client = client
        self.clock = clock
        self.sent: list[tuple[str, str, bytes]] = []
        self.seen: list[Node] = []
        self.failure: Exception | None = None
        self.site = ScriptedSite(clock, self._connect, **spec)
        self.site.problem = "not read yet"
        self.store = NodeStore(self._changed)

    @property
    def cloud(self) -> ScriptedAccount:
        found: ScriptedAccount = self.site.account
        return found

    async def _connect(self) -> Scene:
        return self

    async def request(self, method: str, path: str, *, body: bytes | None = None, **more: Any) -> bytes:
        """Make a request of the node part."""
        if method != "GET":
            self.sent.append((method, path, body or b""))
        return await self.client.request(method, path, body=body, **more)

    def _changed(self, changed: Iterable[Node], gone: Iterable[str]) -> None:
        changed = tuple(changed)
        self.seen += changed
        self.site.take(self.store.nodes, changed, gone)

    # --- what observes the store ---

    def listing(self) -> None:
        pass

    def answered(self) -> None:
        if self.site.problem:
            self.site.problem = ""
            self.site.part.state_changed()

    def failed(self, error: Exception) -> None:
        self.failure = error

    # --- the cluster ---

    def register(self, name: str, *, new: bool = True, ready: str = "True", **meta: Any) -> None:
        """Register a Node, as a kubelet does."""
        spec: Object = {"taints": [UNINITIALIZED]} if new else {"providerID": f"c://{name}"}
        self.server.api.post(PATH, {"metadata": {"name": name, **meta}, "spec": spec})
        self.ready(name, ready)

    def ready(self, name: str, status: str) -> None:
        """Set a Node's condition Ready."""
        condition = {"type": "Ready", "status": status, "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        self.server.api.patch(f"{PATH}/{name}/status", {"status": {"conditions": [condition]}})

    def node(self, name: str) -> Object:
        """A Node."""
        return self.server.api.get(f"{PATH}/{name}")

    def keys(self, name: str) -> list[str]:
        """The keys of a Node's taints, as the watch brought them."""
        return [taint.key for taint in self.site.nodes[name].taints]

    def later(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.ahead += seconds
        self.site.part.state_changed()


@pytest.fixture
def pool() -> Iterator[LookupPool]:
    """Threads for name resolution."""
    lookups = LookupPool(1)
    yield lookups
    lookups.close()


@pytest.fixture
def server(remote_clusters: Sequence[ApiServer]) -> ApiServer:
    """A cluster whose account has the rights of the node part, and no others."""
    found = remote_clusters[0]
    found.grant("hub", *RULES)
    for node in found.api.list(PATH):
        found.api.delete(f"{PATH}/{node['metadata']['name']}")
    return found


@asynccontextmanager
async def running(
    server: ApiServer, pool: LookupPool, machines: Mapping[str, Instance] | None = None, **spec: Any
) -> AsyncIterator[Scene]:
    """Follow the Nodes, and run the node part; the cloud has these machines."""
    access = ClusterAccess(server.url, Token(Secret(server.token("hub"))), "test", ca_data=server.ca_pem.encode())
    clock = AheadClock()
    async with Client(Credentials(access, clock), pool) as client:
        scene = Scene(server, client, clock, **spec)
        scene.cloud.machines.update(machines or {})
        reflector = Reflector("nodes", client, CONTROLLED_NODES, scene.store, scene, clock)
        tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(scene.site.part.run())]
        try:
            await until(lambda: not scene.site.problem or scene.failure or any(task.done() for task in tasks))
            assert scene.failure is None, scene.failure
            yield scene
            assert not any(task.done() for task in tasks), tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.05)


async def test_a_new_node_has_its_addresses_when_its_taint_goes(server: ApiServer, pool: LookupPool) -> None:
    """Addresses first; then provider ID and labels, and the taint off, in one patch; also without any label."""
    async with running(server, pool) as scene:
        scene.cloud.machines["n1"] = machine("n1", instance_type="m1", labels={"example.com/pool": "blue"})
        await asyncio.to_thread(scene.register, "n1")
        await until(lambda: scene.site.reporter.events)
        await until(lambda: UNINITIALIZED["key"] not in scene.keys("n1"))
        assert scene.site.reporter.events == [("Synced", "n1")]
        assert [path for _, path, _ in scene.sent] == [f"{PATH}/n1/status", f"{PATH}/n1"]
        node = await asyncio.to_thread(scene.node, "n1")
        assert node["spec"]["providerID"] == "c://n1"
        assert [entry["address"] for entry in node["status"]["addresses"]] == ["n1", "198.51.100.7"]
        assert node["metadata"]["labels"] == {
            "beta.kubernetes.io/instance-type": "m1",
            "example.com/pool": "blue",
            "failure-domain.beta.kubernetes.io/region": "z",
            "failure-domain.beta.kubernetes.io/zone": "z-a",
            "node.kubernetes.io/instance-type": "m1",
            "topology.kubernetes.io/region": "z",
            "topology.kubernetes.io/zone": "z-a",
        }
        bare = [seen for seen in scene.seen if not uninitialized(seen)]
        assert bare
        assert all(len(seen.addresses) == 2 and seen.provider_id and len(seen.labels) == 7 for seen in bare)


async def test_taints_that_changed_unseen_are_not_lost(server: ApiServer, pool: LookupPool) -> None:
    """Another taint comes in between the decision and the patch: 422, then only the right taint goes."""
    async with running(server, pool) as scene:
        other = {"key": "example.com/other", "effect": "NoSchedule"}
        request = scene.request

        async def late(method: str, path: str, **more: Any) -> bytes:
            if path == f"{PATH}/n1" and len(scene.sent) == 1:
                taints = {"spec": {"taints": [other, UNINITIALIZED]}}
                await asyncio.to_thread(server.api.patch, path, taints)
            return await request(method, path, **more)

        scene.request = late  # type: ignore[method-assign]
        scene.cloud.machines["n1"] = machine("n1")
        await asyncio.to_thread(scene.register, "n1")
        await until(lambda: ("Synced", "n1") in scene.site.reporter.events)
        await until(lambda: scene.keys("n1") == ["example.com/other"])
        assert [method for method, _, _ in scene.sent] == ["PATCH"] * 3
        assert scene.site.reporter.began == []


@pytest.mark.parametrize("there", [[], ["example.com/other"]])
async def test_a_shut_down_machine_taints_its_node_until_it_is_ready(
    server: ApiServer, pool: LookupPool, there: list[str]
) -> None:
    """Not Ready and stopped: the taint is added, also as the first one. Ready: it is removed."""
    taints = {"spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in there]}}
    async with running(server, pool) as scene:
        scene.cloud.machines["n1"] = machine("n1")
        await asyncio.to_thread(scene.register, "n1", new=False)
        scene.later(301)
        await until(lambda: "n1" in scene.site.nodes and scene.site.nodes["n1"].addresses)
        await asyncio.to_thread(server.api.patch, f"{PATH}/n1", taints)
        await until(lambda: scene.keys("n1") == there)
        scene.cloud.machines["n1"] = machine("n1", status="stopped")
        await asyncio.to_thread(scene.ready, "n1", "False")
        scene.later(21)
        await until(lambda: scene.keys("n1") == [*there, SHUTDOWN])
        await asyncio.to_thread(scene.ready, "n1", "True")
        await until(lambda: scene.keys("n1") == there)


async def test_a_node_without_a_machine_goes_after_two_answers(server: ApiServer, pool: LookupPool) -> None:
    """Not before deleteAfter, 20 s between two answers and five minutes of age; the other Nodes stay."""
    async with running(server, pool) as scene:
        for name in ("n1", "n2", "n3"):
            scene.cloud.machines[name] = machine(name)
            await asyncio.to_thread(scene.register, name, new=False)
        await until(lambda: len(scene.site.nodes) == 3)
        del scene.cloud.machines["n1"]
        await asyncio.to_thread(scene.ready, "n1", "Unknown")
        await until(lambda: scene.site.nodes["n1"].ready == "Unknown")
        for seconds in (21, 21, 21, 21, 21):  # it is old enough only after 300 s
            asked = len(scene.cloud.questions)
            scene.later(seconds)
            await until(lambda asked=asked: len(scene.cloud.questions) > asked)  # type: ignore[misc]
        assert not [sent for sent in scene.sent if sent[0] == "DELETE"]
        scene.later(210)
        await until(lambda: "n1" not in scene.site.nodes)
        names = [node["metadata"]["name"] for node in await asyncio.to_thread(server.api.list, PATH)]
        assert sorted(names) == ["n2", "n3"]
        assert scene.site.reporter.events == [("DeletingNode", "n1")]


async def test_a_node_that_is_registered_anew_in_the_last_moment_lives(server: ApiServer, pool: LookupPool) -> None:
    """Its preconditions fail: the API server refuses the deletion of the new Node."""
    async with running(server, pool) as scene:
        for name in ("n1", "n2"):
            scene.cloud.machines[name] = machine(name)
            await asyncio.to_thread(scene.register, name, new=False)
        request = scene.request
        uids: list[str] = []

        async def late(method: str, path: str, **more: Any) -> bytes:
            if method == "DELETE" and not uids:
                await asyncio.to_thread(server.api.delete, path)
                await asyncio.to_thread(scene.register, "n1", new=False, ready="False")
                uids.append((await asyncio.to_thread(scene.node, "n1"))["metadata"]["uid"])
            return await request(method, path, **more)

        scene.request = late  # type: ignore[method-assign]
        await until(lambda: len(scene.site.nodes) == 2)
        del scene.cloud.machines["n1"]
        await asyncio.to_thread(scene.ready, "n1", "Unknown")
        await until(lambda: scene.site.nodes["n1"].ready == "Unknown")
        for seconds in (301, 21, 21):
            asked = len(scene.cloud.questions)
            scene.later(seconds)
            await until(lambda asked=asked: len(scene.cloud.questions) > asked)  # type: ignore[misc]
        scene.later(61)
        await until(lambda: uids)
        scene.later(30)
        await until(lambda: scene.site.nodes["n1"].uid == uids[0])
        assert (await asyncio.to_thread(scene.node, "n1"))["metadata"]["uid"] == uids[0]


async def test_many_new_nodes_cost_one_question(server: ApiServer, pool: LookupPool) -> None:
    """500 Nodes that wait when the hub starts: one question, and each of them is written twice."""

    def register() -> None:
        for number in range(500):
            meta = {"name": f"n{number:03}", "labels": {"kubernetes.io/hostname": f"n{number:03}"}}
            server.api.post(PATH, {"metadata": meta, "spec": {"taints": [UNINITIALIZED]}})

    await asyncio.to_thread(register)
    machines = {name: machine(name) for name in (f"n{number:03}" for number in range(500))}
    async with running(server, pool, machines, monitor=600.0) as scene:
        await until(lambda: len(scene.site.reporter.events) == 500, 120)
        assert len(scene.sent) == 1000
    assert [len(question) for question in scene.cloud.questions] == [500]
