"""If a hub starts with a rejected file, it uses the last accepted registry, which it stored in a ConfigMap."""

from __future__ import annotations

import gzip
import random
from base64 import b64decode
from pathlib import Path

import pytest

from hub.errors import RegistryError
from hub.observe.local import accepted
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, HubProcess, RunningHub, World, add_node
from tests.support.waiting import eventually

BROKEN = "version: 1\nclusters: [\n"
PATH = f"/api/v1/namespaces/default/configmaps/{accepted.config_map('default')}"


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster eu with a node, and the Service payments, which publishes it."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    made.add_service()
    add_node(remote_clusters[0], "n1", "10.1.0.1")
    made.write()
    return made


def kept(world: World) -> Object:
    """The ConfigMap with the stored registry, once it exists."""
    found = eventually(lambda: world.hub_cluster.api.find(PATH))
    assert found is not None
    return found


def test_leader_stores_the_accepted_registry_once(world: World) -> None:
    """The accepted registry is stored as text with its owner; a change is stored, an unchanged file is not."""
    with RunningHub(world):
        found = kept(world)
        assert found["data"] == {accepted.PLAIN: world.path.read_text()}
        assert found["metadata"]["labels"]["endpointslice-hub/owner"] == "default"
        world.write(services=[world.service(endpointsPerSlice=50)])
        eventually(lambda: kept(world)["data"] == {accepted.PLAIN: world.path.read_text()})
        version = kept(world)["metadata"]["resourceVersion"]
        world.write_text(BROKEN)
        world.awaits("10.1.0.1")
    world.write(services=[world.service(endpointsPerSlice=50)])
    mark = world.hub_cluster.audit_mark()
    with RunningHub(world) as running:
        eventually(lambda: running.hub.writing)
        add_node(world.remotes["eu"], "n2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2")
    assert kept(world)["metadata"]["resourceVersion"] == version
    name = accepted.config_map("default")
    writes = [request for request in world.hub_cluster.requests(mark, "hub") if request.writes and request.name == name]
    assert writes == []


@pytest.mark.parametrize("ruin", [BROKEN, "version: 9\n", None], ids=["no YAML", "another version", "no file"])
def test_start_with_rejected_file_uses_the_last_registry(world: World, ruin: str | None) -> None:
    """The hub keeps its endpoints, follows nodes, reports the error, and uses the repaired file."""
    with HubProcess(world):
        world.awaits("10.1.0.1")
        kept(world)
    good = world.path.read_text()
    if ruin is None:
        world.path.unlink()
    else:
        world.write_text(ruin)
    add_node(world.remotes["eu"], "n2", "10.1.0.2")
    with HubProcess(world, "--leader-elect=false") as process:
        world.awaits("10.1.0.1", "10.1.0.2")
        eventually(lambda: "the registry is rejected: the one accepted at 20" in process.log.read_text())
        eventually(lambda: events(world))
        world.add_service("orders")
        world.write_text(good.replace("name: payments", "name: orders"))
        world.awaits("10.1.0.1", "10.1.0.2", service="orders")
    assert str(world.path) in process.log.read_text()


def events(world: World) -> list[Object]:
    """The Events about the rejected registry."""
    found = world.hub_cluster.api.list("/apis/events.k8s.io/v1/namespaces/default/events")
    return [event for event in found if event["reason"] == "RegistryRejected"]


def test_status_and_metrics_see_the_rejection(world: World) -> None:
    """Status and metrics have the time at which the registry in use was accepted, and the file's error."""
    with RunningHub(world):
        kept(world)
    good = world.path.read_text()
    world.write_text(BROKEN)
    with RunningHub(world, fall_back=True) as running:
        world.awaits("10.1.0.1")
        assert running.hub.fallback_accepted_at == kept(world)["metadata"]["annotations"][accepted.ACCEPTED_AT]
        assert running.hub.rejected is not None
        eventually(lambda: running.hub.reloads["rejected"] == 1)
        world.write_text(good)
        eventually(lambda: running.hub.rejected is None)
        assert running.hub.fallback_accepted_at == ""


def test_registry_of_another_owner_is_not_used(world: World) -> None:
    """The owner is the file's if it is readable, else --owner. If nothing is stored for that owner, the hub exits."""
    world.write(owner="team-a")
    path = f"/api/v1/namespaces/default/configmaps/{accepted.config_map('team-a')}"
    with RunningHub(world):
        eventually(lambda: world.hub_cluster.api.find(path))
    world.write_text(BROKEN)
    with pytest.raises(RegistryError), RunningHub(world, fall_back=True):
        pass
    with RunningHub(world, fall_back=True, owner="team-a") as running:
        assert running.hub.registry.owner == "team-a"
    world.write_text(f"owner: team-a  # ours\n{BROKEN}")
    with RunningHub(world, fall_back=True) as running:
        assert running.hub.registry.owner == "team-a"
    world.write_text(f"owner: team-b\n{BROKEN}")
    with pytest.raises(RegistryError), RunningHub(world, fall_back=True, owner="team-a"):
        pass


def test_a_large_registry_is_kept_compressed(world: World) -> None:
    """A registry that is stored compressed is used like any other."""
    world.write_text(world.path.read_text() + "".join(f"# {number:0100d}\n" for number in range(8000)))
    with RunningHub(world):
        found = kept(world)
    assert "data" not in found
    assert gzip.decompress(b64decode(found["binaryData"][accepted.PACKED])).decode() == world.path.read_text()
    world.write_text(BROKEN)
    with RunningHub(world, fall_back=True):
        add_node(world.remotes["eu"], "n2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2")


def test_too_large_registry_is_reported_and_not_stored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A registry that does not fit into a ConfigMap is reported and not stored; the hub works otherwise."""
    noise = random.Random(1).randbytes(1_200_000).hex()
    world.write_text(world.path.read_text() + f"# {noise}\n")
    with RunningHub(world):
        world.awaits("10.1.0.1")
        eventually(lambda: "too large to be kept" in caplog.text)
    assert world.hub_cluster.api.find(PATH) is None


def test_publishing_works_without_permission_to_store_the_registry(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the missing rule once."""
    rules = [rule for rule in HUB_RULES if "configmaps" not in rule["resources"]]
    read = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
    world.hub_cluster.grant("nobody", *rules, read)
    world.hub_cluster.kubeconfig(world.kubeconfig, "nobody")
    with RunningHub(world):
        world.awaits("10.1.0.1")
        eventually(lambda: "the registry is not kept for a restart: 403" in caplog.text)
    assert caplog.text.count("the registry is not kept for a restart") == 1
    assert f"lacks the rule «{accepted.RULE}» for the ConfigMap {accepted.config_map('default')}" in caplog.text


def test_garbage_in_the_config_map_is_rejected(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A stored registry is validated like a file; if it is invalid, the hub exits with the reason."""
    with RunningHub(world):
        kept(world)
    world.hub_cluster.api.patch(PATH, {"data": {accepted.PLAIN: "version: 3"}})
    world.write_text(BROKEN)
    with pytest.raises(RegistryError, match="is not YAML"), RunningHub(world, fall_back=True):
        pass
    assert f"in ConfigMap default/{accepted.config_map('default')} cannot be used" in caplog.text
    assert "version: must be 1, not 3" in caplog.text
