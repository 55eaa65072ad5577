"""Upgrading the hub, going back, and leaving it: no slice is written for any of these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hub.model import ANNOTATION_STATE
from tests.support import golden
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node
from tests.support.waiting import eventually

RELEASES = sorted(golden.DATA.glob("slices-*.json"))
LATER_STATE = '{"v":99,"withheld":{"reason":"of a version to come"}}'


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The clusters eu and us, both empty."""
    return World(tmp_path, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()


@pytest.fixture(params=RELEASES, ids=lambda file: file.stem)
def released(request: pytest.FixtureRequest, world: World) -> list[Object]:
    """The slices that a release wrote, restored in the hub cluster with its inputs."""
    content = json.loads(request.param.read_text())
    golden.prepare(world, content["inputs"])
    slices: list[Object] = content["slices"]
    return slices


def works(hub: RunningHub, world: World) -> bool:
    """Whether a hub leads, knows every cluster and has decided about every target."""
    names = [service["name"] for service in world.registry["services"]]
    return (
        hub.hub.elector.leading
        and all(hub.state(cluster) == "Ready: " for cluster in world.remotes)
        and all(not hub.status(name) and not hub.findings(name) for name in names)
    )


def test_slices_of_a_release_are_adopted_without_a_write(world: World, released: list[Object]) -> None:
    """This version adopts the slices of a release with 0 writes, and then follows the nodes."""
    golden.restore(world, released)
    mark = world.hub_cluster.audit_mark()

    with RunningHub(world) as hub:
        eventually(lambda: works(hub, world))
        assert world.writes(mark, settle=1.5) == []
        assert golden.portable(golden.observed(world)) != []
        add_node(world.remotes["us"], "us-9", "10.2.0.9")
        eventually(lambda: "10.2.0.9" in world.published("merged"))
        eventually(lambda: "10.2.0.9" in world.published("headless"))

    assert {request.verb for request in world.writes(mark)} == {"update"}
    assert len(world.writes(mark)) == 2


def test_same_inputs_write_the_same_slices_as_the_release(world: World, released: list[Object]) -> None:
    """From the same inputs this version writes the same slices; if their form changes, a release needs a new file."""
    with RunningHub(world):
        made = golden.portable(golden.settled(world))

    for slice_ in (*made, *released):
        slice_["metadata"]["annotations"].pop("endpointslice-hub/cluster-uid")
    assert made == released


def test_slices_of_a_later_version_are_taken_back_without_a_write(world: World, released: list[Object]) -> None:
    """Annotations and guard records of a later version stay without a write when the hub goes back to this version."""
    golden.restore(world, released, **{"endpointslice-hub/of-a-later-version": "yes"})
    [first] = [slice_ for slice_ in golden.observed(world) if golden.source(slice_) == "us" and "merged" in str(slice_)]
    path = world.slice_path(first["metadata"]["name"])
    world.hub_cluster.api.patch(path, {"metadata": {"annotations": {ANNOTATION_STATE: LATER_STATE}}})
    mark = world.hub_cluster.audit_mark()

    with RunningHub(world) as hub:
        eventually(lambda: works(hub, world))
        assert world.writes(mark, settle=1.5) == []
        add_node(world.remotes["us"], "us-9", "10.2.0.9")
        eventually(lambda: "10.2.0.9" in world.published("merged"))

    annotations = world.hub_cluster.api.get(path)["metadata"]["annotations"]
    assert annotations["endpointslice-hub/of-a-later-version"] == "yes"
    assert annotations[ANNOTATION_STATE] == LATER_STATE


def test_stopping_the_hub_for_good_keeps_its_slices(world: World, released: list[Object]) -> None:
    """Stopping the hub for good changes no slice; `hub purge` removes them (test_operate.py)."""
    with RunningHub(world):
        before = golden.settled(world)

    assert golden.observed(world) == before
    assert len(before) == len(released)
