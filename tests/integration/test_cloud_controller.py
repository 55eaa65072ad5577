"""The hub as the cloud controller of a remote cluster: real API servers, and the fake of Brightbox."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from hub.cli import cli
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import LEASE
from tests.support.hub import RunningHub
from tests.support.ports import free_port
from tests.support.waiting import eventually

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
RECORD = "endpointslice-hub/load-balancer"


@pytest.fixture
def scene(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[BrightboxScene]:
    """A cluster without Nodes."""
    with BrightboxThread() as cloud:
        yield BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)


def test_new_nodes_are_initialised(scene: BrightboxScene) -> None:
    """A Node gets addresses, provider ID and labels of its server, and loses the taint; Synced is its Event."""
    with RunningHub(scene.world, **scene.options):
        name = scene.add_node()
        eventually(lambda: scene.initialized(name), 30)
        node = scene.node(name)
        assert node["spec"]["providerID"] == f"brightbox://{name}"
        labels = node["metadata"]["labels"]
        assert labels["topology.kubernetes.io/zone"] == labels["failure-domain.beta.kubernetes.io/zone"] == "gb1-a"
        assert labels["topology.kubernetes.io/region"] == "gb1"
        assert labels["node.kubernetes.io/instance-type"] == "1gb.ssd"
        assert [entry["type"] for entry in node["status"]["addresses"]] == [
            "Hostname",
            "ExternalDNS",
            "ExternalIP",
            "ExternalIP",
        ]
        assert scene.remote.api.get(LEASE)["spec"]["holderIdentity"] == "endpointslice-hub/default"
        assert scene.writes == []


def test_a_service_gets_a_balancer_and_leaves_nothing(scene: BrightboxScene, caplog: pytest.LogCaptureFixture) -> None:
    """A Service of type LoadBalancer gets one in 4 + 1 lists' time; its deletion leaves the cloud as it was.

    The log has each write with names and ids.
    """
    caplog.set_level("INFO", "hub.controlling")
    with RunningHub(scene.world, **scene.options):
        nodes = [scene.add_node() for _ in range(2)]
        eventually(lambda: all(map(scene.initialized, nodes)), 30)
        scene.add_service()
        eventually(lambda: scene.hostnames() != [], 30)
        assert scene.service()["metadata"]["finalizers"] == [FINALIZER]
        [cloud_ip] = scene.cloud.fake.account.find("cloud_ips", "web.edge.eu")
        assert scene.hostnames() == [cloud_ip["fqdn"]]
        [balancer] = scene.cloud.fake.account.find("load_balancers", "web.edge.eu")
        assert sorted(node["id"] for node in balancer["nodes"]) == sorted(nodes)
        assert [text.split("/1.0/")[1] for text in scene.writes][:2] == ["cloud_ips", "server_groups"]
        assert len(scene.writes) == 7
        created = f"cluster eu: Service edge/web: create load balancer web.edge.eu: {balancer['id']}"
        assert created in caplog.messages
        scene.remote.api.delete("/api/v1/namespaces/edge/services/web")
        eventually(lambda: not scene.remote.api.exists("/api/v1/namespaces/edge/services/web"), 60)
        assert scene.cloud.fake.account.named("web.edge.eu") == []
        assert f"cluster eu: Service edge/web: delete load balancer {balancer['id']}" in caplog.messages


def test_balancers_follow_the_nodes(scene: BrightboxScene) -> None:
    """A new Node joins, and one that is deleted leaves: add, change, remove."""
    with RunningHub(scene.world, **scene.options):
        first = scene.add_node()
        eventually(lambda: scene.initialized(first), 30)
        scene.add_service()
        eventually(lambda: scene.hostnames() != [], 30)
        before = len(scene.writes)
        second = scene.add_node()
        account = scene.cloud.fake.account

        def members() -> list[str]:
            [balancer] = account.find("load_balancers", "web.edge.eu")
            return sorted(node["id"] for node in balancer["nodes"])

        eventually(lambda: members() == [first, second], 30)
        assert next(text.rpartition("/")[2] for text in scene.writes[before:]) == "add_servers"
        scene.remote.api.delete(f"/api/v1/nodes/{first}")
        eventually(lambda: members() == [second], 30)
        eventually(
            lambda: [row["id"] for row in account.find("server_groups", "web.edge.eu")[0]["servers"]] == [second], 30
        )


def test_the_hub_shows_its_nodes_and_balancers(scene: BrightboxScene) -> None:
    """`hub balancers` and `hub status` show states and ids, and /metrics counts them."""
    port = free_port()
    with RunningHub(scene.world, port=port, **scene.options):
        node = scene.add_node()
        scene.add_service()
        eventually(lambda: scene.hostnames() != [], 40)
        server = ["--server", f"http://127.0.0.1:{port}"]
        shown = CliRunner().invoke(cli, ["balancers", "-o", "json", *server])
        [cluster] = json.loads(shown.stdout)["clusters"]
        assert (cluster["cluster"], cluster["provider"], cluster["duty"], cluster["mode"]) == (
            "eu",
            "brightbox",
            "held",
            "manage",
        )
        assert [(each["name"], each["state"]) for each in cluster["nodes"]] == [(node, "ready")]
        [balancer] = cluster["balancers"]
        assert (balancer["service"], balancer["state"]) == ("edge/web", "ready")
        assert balancer["ingress"] == scene.hostnames()
        assert sorted(balancer["ids"]) == ["account", "cloud_ip", "firewall_policy", "load_balancer", "server_group"]
        table = CliRunner().invoke(cli, ["balancers", "eu", *server]).stdout
        assert "edge/web" in table
        assert "duty held" in table
        unknown = CliRunner().invoke(cli, ["balancers", "euu", *server])
        assert (unknown.exit_code, "did you mean eu" in unknown.stderr) == (2, True)
        status = CliRunner().invoke(cli, ["status", *server]).stdout
        assert "brightbox" in status
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'endpointslice_hub_cloud_duty{cluster="eu"} 1' in text
        assert 'endpointslice_hub_cloud_nodes{cluster="eu",state="ready"} 1' in text
        assert 'endpointslice_hub_cloud_nodes_uninitialized{cluster="eu"} 0' in text
        assert 'endpointslice_hub_cloud_balancers{cluster="eu",state="ready"} 1' in text
        assert 'endpointslice_hub_cloud_steps_total{cluster="eu",error="",step="create-load-balancer"} 1' in text


def test_observe_writes_nothing_anywhere(scene: BrightboxScene) -> None:
    """In mode observe the Node keeps its taint, the Service gets no finalizer, no Lease is taken."""
    scene.write(mode="observe")
    port = free_port()
    with RunningHub(scene.world, port=port, **scene.options):
        node = scene.add_node()
        scene.add_service()
        server = ["--server", f"http://127.0.0.1:{port}"]

        def steps() -> list[str]:
            shown = json.loads(CliRunner().invoke(cli, ["balancers", "-o", "json", *server]).stdout)
            return [step for each in shown["clusters"][0]["balancers"] for step in each["steps"]]

        eventually(lambda: "create Cloud IP web.edge.eu" in steps(), 30)
        assert [text.split()[0] for text in steps()] == ["write", *["create"] * 5, "map", "write"]
        assert not scene.initialized(node)
        assert "finalizers" not in scene.service()["metadata"]
        assert scene.writes == []
        assert not scene.remote.api.exists(LEASE)


def test_what_another_tool_made_is_adopted_without_a_write(scene: BrightboxScene) -> None:
    """Objects of the right names and the finalizer, without record and marker: nothing is written to the cloud."""
    scene.write(loadBalancers={"settle": "1s"})
    with RunningHub(scene.world, **scene.options):
        names = [scene.add_node() for _ in range(2)]
        eventually(lambda: all(map(scene.initialized, names)), 30)
        scene.add_service()
        eventually(lambda: scene.hostnames() != [], 30)
        made = scene.hostnames()
    account = scene.cloud.fake.account
    scene.cloud.call(lambda: [each.update(description=None) for each in account.objects["server_groups"].values()])
    bare = {"annotations": {"endpointslice-hub/load-balancer": None}}
    scene.remote.api.patch("/api/v1/namespaces/edge/services/web", {"metadata": bare})
    for key in ("load_balancers", "server_groups"):
        for each in account.objects[key].values():
            members = "nodes" if key == "load_balancers" else "servers"
            scene.cloud.call(lambda each=each, members=members: each[members].reverse())  # type: ignore[misc]
    before = len(scene.writes)
    with RunningHub(scene.world, **scene.options):
        eventually(lambda: RECORD in scene.service()["metadata"].get("annotations", {}), 30)
        assert scene.hostnames() == made
        assert scene.writes[before:] == []
        scene.remote.api.delete("/api/v1/namespaces/edge/services/web")
        eventually(lambda: not scene.remote.api.exists("/api/v1/namespaces/edge/services/web"), 60)
        assert account.named("web.edge.eu") == []
