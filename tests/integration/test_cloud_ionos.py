"""The hub as the cloud controller of a cluster on IONOS Cloud: real API servers, and the fake of IONOS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.cloud_scene import SERVICES, UNINITIALIZED
from tests.support.hub import RunningHub
from tests.support.ionos import IonosScene, IonosThread
from tests.support.waiting import eventually

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"


@pytest.fixture
def scene(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[IonosScene]:
    """A cluster without Nodes."""
    with IonosThread() as cloud:
        yield IonosScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)


def test_new_nodes_are_initialised(scene: IonosScene) -> None:
    """A new Node gets the addresses, the provider ID and the labels of its server, and loses the taint."""
    with RunningHub(scene.world, **scene.options):
        address = scene.add_node("n1", initialized=False)
        eventually(lambda: scene.remote.api.get("/api/v1/nodes/n1")["spec"].get("providerID"), 30)
        node = scene.remote.api.get("/api/v1/nodes/n1")
        assert UNINITIALIZED["key"] not in [taint["key"] for taint in node["spec"].get("taints", ())]
        assert node["metadata"]["labels"]["topology.kubernetes.io/region"] == "de-fra"
        assert {"type": "InternalIP", "address": address} in node["status"]["addresses"]
        assert scene.writes == []


def test_a_service_gets_a_balancer_follows_and_leaves_nothing(scene: IonosScene) -> None:
    """IP block, load balancer, rule, ingress; a new port and a new Node change rules; the deletion leaves nothing."""
    with RunningHub(scene.world, **scene.options):
        first = scene.add_node("n1")
        service = scene.add_service()
        eventually(lambda: scene.ingress() != [], 40)
        network = scene.cloud.fake.network
        [block] = network.blocks("web.edge.eu")
        assert scene.ingress() == [{"ip": block["properties"]["ips"][0], "ipMode": "VIP"}]
        assert scene.writes == ["POST ipblocks", "POST networkloadbalancers", "POST forwardingrules"]
        http = service["spec"]["ports"][0]["nodePort"]
        assert scene.targets() == {80: [(first, http)]}
        assert scene.service()["metadata"]["finalizers"] == [FINALIZER]

        second = scene.add_node("n2")
        eventually(lambda: scene.targets() == {80: [(first, http), (second, http)]}, 40)
        ports = [*service["spec"]["ports"], {"name": "https", "port": 443, "nodePort": 30443}]
        scene.remote.api.patch(f"{SERVICES}/web", {"spec": {"ports": ports}})
        eventually(lambda: scene.targets().get(443) == [(first, 30443), (second, 30443)], 40)
        assert scene.writes[3:] == ["PATCH forwardingrules", "POST forwardingrules"]

        scene.remote.api.patch("/api/v1/nodes/n2", {"metadata": {"labels": {"pool": "edge"}}})
        selector = {"cloud.ionos.com/node-selector": "pool=edge"}
        scene.remote.api.patch(f"{SERVICES}/web", {"metadata": {"annotations": selector}})
        eventually(lambda: scene.targets() == {80: [(second, http)], 443: [(second, 30443)]}, 40)

        scene.remote.api.delete(f"{SERVICES}/web")
        eventually(lambda: not scene.has_service(), 60)
        assert network.named("web.edge.eu") == []
        assert scene.writes[7:] == ["DELETE networkloadbalancers", "DELETE ipblocks"]
