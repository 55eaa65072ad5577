"""Draining on real API servers: what the hub publishes from the moment a Node leaves until its endpoint is gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.hub import HubProcess, RunningHub, World, add_node, eu_and_us
from tests.support.waiting import eventually

DRAIN = 3.0
READY, DRAINING = (True, True, False), (False, True, True)


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Clusters eu and us, published for ``payments``, which drains for 3 seconds."""
    world = eu_and_us(tmp_path, hub_cluster, remote_clusters)
    add_node(world.remotes["eu"], "n2", "10.1.0.2")
    world.write(services=[world.service("payments", "eu", "us", drain=f"{DRAIN:g}s")])
    return world


def conditions(world: World) -> dict[str, tuple[bool, bool, bool]]:
    """Address -> ready, serving, terminating, as the API server has them."""
    return {
        endpoint["addresses"][0]: tuple(endpoint["conditions"][key] for key in ("ready", "serving", "terminating"))
        for slice_ in world.slices()
        for endpoint in slice_["endpoints"]
    }


def test_a_deleted_node_drains_and_goes(world: World) -> None:
    """Its endpoint is terminating for the configured time, not longer; the other ones do not change."""
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")
        world.remotes["eu"].api.delete("/api/v1/nodes/n2")
        eventually(lambda: conditions(world).get("10.1.0.2") == DRAINING, 5)
        begun = time.monotonic()
        assert conditions(world) == {"10.1.0.1": READY, "10.1.0.2": DRAINING, "10.2.0.1": READY}
        world.awaits("10.1.0.1", "10.2.0.1", timeout=DRAIN + 10)
        assert time.monotonic() - begun >= DRAIN - 0.5
        assert set(conditions(world).values()) == {READY}


def test_standby_drains_the_whole_cluster(world: World) -> None:
    """A cluster that is set to standby in the running file drains; taken back in time, it is ready again."""
    services = [world.service("payments", "eu", "us", drain=f"{DRAIN:g}s")]
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")
        world.write(clusters=[world.cluster("eu", state="standby"), world.cluster("us")], services=services)
        expected = {"10.1.0.1": DRAINING, "10.1.0.2": DRAINING, "10.2.0.1": READY}
        eventually(lambda: conditions(world) == expected, 10)
        world.write(services=services)
        eventually(lambda: set(conditions(world).values()) == {READY} and len(conditions(world)) == 3, 10)
        world.write(clusters=[world.cluster("eu", state="standby"), world.cluster("us")], services=services)
        world.awaits("10.2.0.1", timeout=DRAIN + 15)


def test_a_hub_that_is_killed_while_endpoints_drain(world: World) -> None:
    """The next hub finds the terminating endpoint in the slice, and removes it when the whole time has passed again."""
    with HubProcess(world) as first:
        world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1", timeout=30)
        world.remotes["eu"].api.delete("/api/v1/nodes/n2")
        eventually(lambda: conditions(world).get("10.1.0.2") == DRAINING, 10)
        first.kill()
    time.sleep(DRAIN)
    assert conditions(world)["10.1.0.2"] == DRAINING
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.2.0.1", timeout=60)
