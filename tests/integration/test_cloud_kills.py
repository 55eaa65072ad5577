"""``kill -9`` of the cloud controller at each write to the cloud: the next process ends where a calm one does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from hub_provider_brightbox.testing import CLIENT, SECRET

from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_killing import KilledController, When, kills
from tests.support.waiting import eventually

NAME: Final = "web.edge.kubernetes"
CREATE: Final = 7
"""Writes of a creation: address, group, join, policy, rule, balancer, map."""
DELETE: Final = 6
"""Writes of a deletion: unmap, balancer, address, leave, group, policy."""
UPDATE: Final = 4
"""Least writes of an update: join, rule, balancer, leave."""
SERVICE: Final = "/api/v1/namespaces/edge/services/web"


@dataclass
class Killing(KilledController):
    """A controller of a cluster in Brightbox."""

    scene: BrightboxScene

    def __post_init__(self) -> None:
        variables = {
            "BRIGHTBOX_CLIENT": CLIENT,
            "BRIGHTBOX_CLIENT_SECRET": SECRET,
            "BRIGHTBOX_API_URL": self.scene.cloud.fake.url,
        }
        super().__init__(self.scene.world.folder, ["--cloud-provider=brightbox"], variables)

    def state(self) -> dict[str, Any]:
        """What the cloud has under the Service's name, without ids."""
        account = self.scene.cloud.fake.account
        [balancer] = account.find("load_balancers", NAME)
        [group], [policy] = account.find("server_groups", NAME), account.find("firewall_policies", NAME)
        [cloud_ip] = account.find("cloud_ips", NAME)
        return {
            "nodes": sorted(node["id"] for node in balancer["nodes"]),
            "servers": sorted(row["id"] for row in group["servers"]),
            "policy": policy["server_group"]["id"] == group["id"],
            "rules": [rule["destination_port"] for rule in account.objects["firewall_rules"].values()],
            "listeners": [(row["in"], row["out"]) for row in balancer["listeners"]],
            "mapped": (cloud_ip["load_balancer"] or {}).get("id") == balancer["id"],
            "published": self.scene.hostnames() == [cloud_ip["fqdn"]],
        }


@pytest.fixture(params=[0, pytest.param(2, marks=pytest.mark.nightly)], ids=["", "lagging"])
def killing(
    hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Killing]:
    """A cluster with two initialised Nodes; the cloud's lists may lag behind."""
    with BrightboxThread() as cloud:
        scene = BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)
        made = Killing(scene)
        cloud.fake.cut, cloud.fake.account.lag = made.cut, request.param
        for _ in range(2):
            scene.add_node(initialized=True)
        try:
            yield made
        finally:
            made.kill()


def calm(killing: Killing) -> dict[str, Any]:
    """The state that an undisturbed process reaches."""
    nodes = sorted(node["metadata"]["name"] for node in killing.scene.remote.api.list("/api/v1/nodes"))
    ports = killing.scene.service()["spec"]["ports"]
    return {
        "nodes": nodes,
        "servers": nodes,
        "policy": True,
        "rules": [",".join(str(port["nodePort"]) for port in ports)],
        "listeners": [(port["port"], port["nodePort"]) for port in ports],
        "mapped": True,
        "published": True,
    }


def settled(killing: Killing) -> bool:
    """Whether the cloud has what the Service wants; something missing or double is an AssertionError."""
    try:
        found = killing.state()
    except ValueError as error:
        raise AssertionError(str(killing.scene.cloud.fake.account.named(NAME))) from error
    assert found == calm(killing)
    return True


@pytest.mark.parametrize(("number", "when"), kills(CREATE, {(1, "after"), (6, "after")}))
def test_a_creation_survives_a_kill(killing: Killing, number: int, when: When) -> None:
    """Killed at any write of a creation, the next process makes what is missing and doubles nothing."""
    killing.arm(number, when)
    killing.start()
    killing.scene.add_service()
    eventually(lambda: killing.killed, 40)
    killing.start()
    eventually(lambda: settled(killing), 90)


@pytest.mark.parametrize(("number", "when"), kills(DELETE, {(3, "after")}))
def test_a_deletion_survives_a_kill(killing: Killing, number: int, when: When) -> None:
    """Killed at any write of a deletion, the next process leaves nothing behind, and then lets the Service go."""
    killing.start()
    killing.scene.add_service()
    eventually(lambda: settled(killing), 40)
    killing.arm(number, when)
    killing.scene.remote.api.delete(SERVICE)
    eventually(lambda: killing.killed, 40)
    assert killing.scene.remote.api.exists(SERVICE)
    killing.start()
    eventually(lambda: not killing.scene.remote.api.exists(SERVICE), 90)
    assert killing.scene.cloud.fake.account.named(NAME) == []


@pytest.mark.parametrize(("number", "when"), kills(UPDATE, {(3, "after")}))
def test_an_update_survives_a_kill(killing: Killing, number: int, when: When) -> None:
    """Killed while a node leaves, another one joins and a port changes, the next process ends with all of it."""
    killing.start()
    killing.scene.add_service()
    eventually(lambda: settled(killing), 40)
    killing.arm(number, when)
    [leaving, *_] = killing.scene.remote.api.list("/api/v1/nodes")
    killing.scene.remote.api.delete(f"/api/v1/nodes/{leaving['metadata']['name']}")
    killing.scene.add_node(initialized=True)
    ports = [{"name": "http", "port": 8080, "targetPort": 8080, "nodePort": 30808}]
    killing.scene.remote.api.patch(SERVICE, {"spec": {"ports": ports}})
    eventually(lambda: killing.killed, 40)
    killing.start()
    eventually(lambda: settled(killing), 90)
