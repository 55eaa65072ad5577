"""The guard of a running hub on real API servers: what it withholds and what releases it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hub.decide import guarding
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node
from tests.support.waiting import eventually

STATE = "endpointslice-hub/state"


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster ``eu`` with ten nodes and a Service ``payments`` without slices."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    made.add_service()
    made.write()
    for number in range(10):
        add_node(remote_clusters[0], f"n{number}", f"10.1.0.{number}")
    return made


def delete_nodes(world: World, count: int) -> None:
    """Delete the first ``count`` nodes of eu."""
    for number in range(count):
        world.remotes["eu"].api.delete(f"/api/v1/nodes/n{number}")


ALL = tuple(f"10.1.0.{number}" for number in range(10))


def test_an_empty_answer_is_published_only_when_it_stands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty result is published after three complete lists without a node. The hub requests these lists itself."""
    monkeypatch.setattr(guarding, "ASK_AGAIN", 1.5)
    world.write(services=[world.service(guard={"maxRemoval": "off"})])
    with RunningHub(world) as running:
        world.awaits(*ALL)
        delete_nodes(world, 10)
        eventually(lambda: "EmptyResultHeld" in running.findings())
        held_at = time.monotonic()
        assert len(world.published()) >= 1
        world.awaits(timeout=20)
        assert time.monotonic() - held_at >= 2.0
        assert len(world.slices()) == 1


def test_the_count_of_empty_answers_survives_a_restart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of empty results is stored in an annotation of the source's lowest-numbered slice."""
    monkeypatch.setattr(guarding, "ASK_AGAIN", 2.0)
    world.write(services=[world.service(guard={"maxRemoval": "off", "emptyResults": 4})])
    with RunningHub(world) as running:
        world.awaits(*ALL)
        delete_nodes(world, 10)
        eventually(lambda: "EmptyResultHeld" in running.findings())
        eventually(lambda: STATE in world.slices()[0]["metadata"]["annotations"])
    record = json.loads(world.slices()[0]["metadata"]["annotations"][STATE])
    assert record["v"] == 1
    assert world.published()
    with RunningHub(world):
        world.awaits(timeout=30)


def test_a_mass_removal_is_withheld_while_additions_go_through(world: World) -> None:
    """A removal that leaves less than half of the endpoints is withheld, and a new node is still published at once."""
    with RunningHub(world) as running:
        world.awaits(*ALL)
        delete_nodes(world, 5)
        eventually(lambda: set(world.published()) == set(ALL[5:]))
        for number in range(5, 8):
            world.remotes["eu"].api.delete(f"/api/v1/nodes/n{number}")
        eventually(lambda: "RemovalWithheld" in running.findings())
        add_node(world.remotes["eu"], "new", "10.1.0.99")
        eventually(lambda: "10.1.0.99" in world.published())
        assert set(world.published()) >= set(ALL[8:])


def test_a_withheld_removal_is_released_when_it_has_stood(world: World) -> None:
    """A withheld removal is released when the result has stayed the same for maxRemovalHold."""
    world.write(services=[world.service(guard={"maxRemovalHold": "3s"})])
    with RunningHub(world) as running:
        world.awaits(*ALL)
        world.remotes["eu"].pause()
        world.remotes["eu"].resume()
        delete_nodes(world, 7)
        eventually(lambda: "RemovalWithheld" in running.findings())
        world.awaits(*ALL[7:], timeout=15)


def test_filtering_never_empties_a_service(world: World) -> None:
    """A selector that matches no node is treated as a mistake, not as an empty cluster."""
    with RunningHub(world) as running:
        world.awaits(*ALL)
        world.write(services=[world.service(nodes={"selector": "pool=nowhere"}, guard={"maxRemoval": "off"})])
        eventually(lambda: "FilteredEmpty" in running.findings())
        time.sleep(1.0)
        assert world.published() == sorted(ALL)
