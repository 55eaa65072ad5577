"""What is known of the nodes of a cluster, and since when, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from hub.allocating.follow import Machines, Sites
from hub.allocations.view import NodeKey
from hub.model import LOCAL, Node
from hub.observe.providers.catalog import Catalog
from hub.observe.providers.host import ProviderHost
from hub.observe.remote.fleet import Fleet
from tests.support.virtual import LoopClock, anything
from tests.support.waiting import until
from tests.unit.allocating.scene import NODES, FakeApi
from tests.unit.observe.remote.test_fleet import NoAccess, cluster, registry

VIRTUAL_TIME = True


def ready(name: str = "m1", *, on: bool = True, since: str = "") -> Node:
    """A node that is Ready or not."""
    return Node(name, ready=str(on), ready_since=since)


# --- since when a node is Ready ----------------------------------------------------------------------------------


def times(machines: Machines, name: str = "m1") -> tuple[float, float]:
    """Since when a node is Ready, and since when it is not."""
    return machines.nodes[name].ready_since, machines.nodes[name].unready_since


def test_a_node_that_is_not_ready_is_so_from_when_the_hub_saw_it() -> None:
    """Its own timestamp counts for Ready in the first list only; a change is dated when it is seen, and once."""
    machines = Machines()
    machines.note([ready("m1", since="1970-01-01T00:00:07Z"), ready("m2", on=False)], (), 100.0, first=True)
    assert (times(machines), times(machines, "m2")) == ((7.0, 0.0), (0.0, 100.0))
    machines.note([ready("m1", on=False), ready("m2")], (), 200.0, first=False)
    machines.note([ready("m1", on=False), ready("m2")], (), 300.0, first=False)
    assert (times(machines), times(machines, "m2")) == ((0.0, 200.0), (200.0, 0.0))
    machines.note((), ["m1"], 400.0, first=False)
    assert list(machines.nodes) == ["m2"]


def test_a_node_is_not_ready_from_the_end_of_an_outage() -> None:
    """Nobody saw the node while the cluster was not current, so its grace begins again; Ready nodes stay."""
    machines = Machines()
    machines.note([ready("m1", on=False), ready("m2", since="1970-01-01T00:00:07Z")], (), 100.0, first=True)
    machines.restart(500.0)
    assert (times(machines), times(machines, "m2")) == ((0.0, 500.0), (7.0, 0.0))


# --- clusters that are not current ---------------------------------------------------------------------------------


class Following:
    """The sites of the hub cluster and of ``eu``, whose API server the test plays."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.api = FakeApi()
        self._host = ProviderHost(Catalog(), clock=self.clock, folder="/nowhere")
        self.fleet = Fleet(NoAccess(self.clock, cast("Any", None)), self._host, self.clock, anything)
        self.sites = Sites(self.api.client, self.fleet, self.clock, self.clock.now, anything, anything)
        self.fleet.on_nodes = self.sites.note

    def update(self, state: str = "active") -> None:
        """Put a registry with this state of ``eu`` into force."""
        self.fleet.update(registry(cluster("eu", state=state)))
        self.sites.state_changed("eu")

    def answer(self, *nodes: Node) -> None:
        """Let ``eu`` answer with these nodes."""
        unit = self.fleet.clusters["eu"]
        unit._store.replace({node.name: node for node in nodes}, "1")
        unit.answered()
        self.sites.state_changed("eu")

    def problem(self) -> str:
        """The problem of ``eu``, as the planner gets it."""
        return self.sites.site("main", "eu", {NodeKey("eu", "m1"): "i-m1"}, recognised=True).problem

    async def close(self) -> None:
        """Ends the fleet."""
        await self.fleet.close()
        await self._host.close()


@pytest.fixture
async def following() -> AsyncIterator[Following]:
    """The sites, with ``eu`` in the registry."""
    made = Following()
    made.update()
    yield made
    await made.close()


async def test_nodes_of_a_cluster_are_known_when_it_is_active_and_ready(following: Following) -> None:
    """Before its first answer and in any other state nothing is known, although the nodes are remembered."""
    assert following.problem().startswith("cluster eu is ")
    following.answer(ready())
    assert following.problem() == ""
    following.update("standby")
    assert following.problem() == "cluster eu is standby"
    following.update()
    assert following.problem() == ""
    following.fleet.clusters["eu"].mismatch = "another cluster answers"
    assert "another cluster answers" in following.problem()
    following.update("frozen")
    assert following.problem() == "cluster eu is not followed: it is unknown, frozen or has no kubeconfig"


async def test_nodes_without_recognised_instances_are_not_known(following: Following) -> None:
    """A node whose instance the provider has not looked for yet is not one that it does not know."""
    following.answer(ready())
    assert following.sites.site("main", "eu", {}, recognised=False).problem == "the nodes of eu are being recognised"


async def test_grace_begins_again_when_a_cluster_becomes_active(following: Following) -> None:
    """A node that is not Ready counts from the end of the time in which nothing was known."""
    following.answer(ready(on=False))
    following.update("standby")
    await asyncio.sleep(600)
    following.update()
    assert following.sites.site("main", "eu", {}, recognised=True).machines["m1"].unready_since == following.clock.now()
    since = following.clock.now()
    await asyncio.sleep(600)
    following.sites.state_changed("eu")
    assert following.sites.site("main", "eu", {}, recognised=True).machines["m1"].unready_since == since


async def test_nodes_of_the_hub_cluster_are_unknown_while_they_cannot_be_read(following: Following) -> None:
    """Their list must be read once; what is wrong is said."""
    site = following.sites.site("main", LOCAL, {}, recognised=True)
    assert site.problem == "nodes of the hub cluster: not read yet"
    following.api.put(f"{NODES}/n1", {"metadata": {}, "status": {}})
    task = asyncio.create_task(following.sites.run())
    await until(lambda: following.sites.problem(LOCAL) == "")
    assert list(following.sites.site("main", LOCAL, {}, recognised=True).machines) == ["n1"]
    task.cancel()
