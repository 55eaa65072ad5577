"""The hub together with kube-controller-manager: garbage collection, deleted namespaces, mirrored leftovers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hub.reconcile import foreign
from tests.support.apiserver.controllers import ControllerManager
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node
from tests.support.waiting import eventually

SERVICES = "/api/v1/namespaces/edge/services"


@pytest.fixture
def world(
    tmp_path: Path,
    hub_cluster: ApiServer,
    remote_clusters: tuple[ApiServer, ...],
    controller_manager: ControllerManager,
) -> World:
    """Cluster eu with one node and the Service ``payments``, in a hub cluster that runs kube-controller-manager."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    add_node(made.remotes["eu"], "n1", "10.1.0.1")
    made.add_service()
    made.write()
    return made


def test_slices_of_a_deleted_service_are_collected(world: World) -> None:
    """Kubernetes deletes the slices of a deleted Service by their ownerReference. The hub does not create new ones."""
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1")
        mark = world.hub_cluster.audit_mark()
        world.hub_cluster.api.delete(f"{SERVICES}/payments")
        eventually(lambda: world.slices() == [], 30)
        assert world.writes(mark, settle=1.0) == []
        assert hub.status() == "the Service does not exist"


def test_a_recreated_service_has_its_endpoints_again(world: World) -> None:
    """A recreated Service has slices that it owns, whether the garbage collector or the hub was faster."""
    with RunningHub(world):
        world.awaits("10.1.0.1")
        world.hub_cluster.api.delete(f"{SERVICES}/payments")
        uid = world.add_service()["metadata"]["uid"]
        time.sleep(3.0)

        def owned() -> bool:
            owners = [slice_["metadata"]["ownerReferences"][0]["uid"] for slice_ in world.slices()]
            return owners == [uid] and world.published() == ["10.1.0.1"]

        eventually(owned)


def test_a_namespace_that_is_gone_comes_back(world: World) -> None:
    """A namespace that is deleted and created again, with its Service, gets its endpoints again."""
    api = world.hub_cluster.api
    api.post("/api/v1/namespaces", {"metadata": {"name": "again"}})
    world.add_service(namespace="again")
    world.write(services=[{"name": "payments", "namespace": "again", "sources": [{"cluster": "eu"}]}])

    with RunningHub(world) as hub:
        eventually(lambda: world.published(namespace="again") == ["10.1.0.1"])
        api.delete("/api/v1/namespaces/again")
        eventually(lambda: not api.exists("/api/v1/namespaces/again"), 30)
        eventually(lambda: hub.status(namespace="again") == "the Service does not exist")
        api.post("/api/v1/namespaces", {"metadata": {"name": "again"}})
        world.add_service(namespace="again")
        eventually(lambda: world.published(namespace="again") == ["10.1.0.1"])


def test_mirrored_leftovers_are_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that Kubernetes mirrors from an old Endpoints object are reported as ForeignEndpoints and left alone."""
    monkeypatch.setattr(foreign, "PERIOD", 0.5)
    monkeypatch.setattr(foreign, "IDLE", 0.2)
    subset = {"addresses": [{"ip": "10.9.9.9"}], "ports": [{"name": "https", "port": 443}]}
    endpoints = {"metadata": {"name": "payments"}, "subsets": [subset]}
    world.hub_cluster.api.post("/api/v1/namespaces/edge/endpoints", endpoints)
    maker = "endpointslicemirroring-controller.k8s.io"
    selector = f"endpointslice.kubernetes.io/managed-by={maker}"
    mirrored = eventually(lambda: world.slices(selector=selector), 15)

    with RunningHub(world) as hub:
        eventually(lambda: "ForeignEndpoints" in hub.findings())
        assert maker in hub.findings()["ForeignEndpoints"].message
        assert world.published() == ["10.1.0.1"]

    assert world.slices(selector=selector) == mirrored
