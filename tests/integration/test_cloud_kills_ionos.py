"""``kill -9`` at each write to IONOS Cloud: the next process ends where a calm one does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hub_provider_ionos.testing import DATACENTER, PRIVATE, PUBLIC, TOKEN

from tests.support.apiserver.server import ApiServer
from tests.support.cloud_killing import KilledController, When, kills
from tests.support.cloud_scene import SERVICES
from tests.support.ionos import IonosScene, IonosThread
from tests.support.waiting import eventually

NAME: Final = "web.edge.kubernetes"
CREATE: Final = 4
"""Writes of a creation: IP block, load balancer, two rules."""
DELETE: Final = 2
"""Writes of a deletion: load balancer, IP block."""
LANS: Final = {"endpointslice-hub/ionos-listener-lan": str(PUBLIC), "endpointslice-hub/ionos-target-lan": str(PRIVATE)}
PORTS: Final = [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "https", "port": 443, "nodePort": 30443}]


@dataclass
class Killing(KilledController):
    """A controller of a cluster on IONOS Cloud."""

    scene: IonosScene

    def __post_init__(self) -> None:
        tokens = self.scene.world.folder / "tokens"
        tokens.mkdir()
        (tokens / DATACENTER).write_text(json.dumps({"tokens": [TOKEN]}))
        flags = ["--cloud-provider=ionos", f"--cloud-config={tokens}"]
        super().__init__(self.scene.world.folder, flags, {"IONOS_API_URL": self.scene.cloud.fake.url})

    def add_service(self) -> None:
        """Create the Service."""
        self.scene.add_service(ports=PORTS, metadata={"annotations": LANS})

    def settled(self, *addresses: str) -> bool:
        """Whether the cloud has what the Service wants; something missing or double is an AssertionError."""
        network = self.scene.cloud.fake.network
        assert len(network.named(NAME)) == len(network.balancers()) + len(network.blocks()) == 2
        [balancer], [block] = network.balancers(NAME), network.blocks(NAME)
        assert balancer["properties"]["ips"] == block["properties"]["ips"]
        assert [entry["ip"] for entry in self.scene.ingress()] == block["properties"]["ips"]
        wanted = {port["port"]: [(address, port["nodePort"]) for address in addresses] for port in PORTS}
        assert self.scene.targets(NAME) == wanted
        assert balancer["metadata"]["state"] == "AVAILABLE"
        return True


@pytest.fixture(params=[2, pytest.param(0, marks=pytest.mark.nightly)], ids=["lagging", ""])
def killing(
    hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Killing]:
    """A cluster whose cloud takes time; its lists may lag behind."""
    with IonosThread() as cloud:
        made = Killing(IonosScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud))
        cloud.fake.cloud.seconds, cloud.fake.network.lag, cloud.fake.cut = 0.5, request.param, made.cut
        try:
            yield made
        finally:
            made.kill()


@pytest.fixture
def nodes(killing: Killing) -> list[str]:
    """The addresses of two Nodes."""
    return [killing.scene.add_node(name) for name in ("n1", "n2")]


@pytest.mark.parametrize(("number", "when"), kills(CREATE, {(2, "after")}))
def test_a_creation_survives_a_kill(killing: Killing, nodes: list[str], number: int, when: When) -> None:
    """Killed at any write of a creation, the next process makes what is missing and doubles nothing."""
    killing.arm(number, when)
    killing.start()
    killing.add_service()
    eventually(lambda: killing.killed, 60)
    killing.start()
    eventually(lambda: killing.settled(*nodes), 120)


@pytest.mark.parametrize(("number", "when"), kills(DELETE, {(1, "after")}))
def test_a_deletion_survives_a_kill(killing: Killing, nodes: list[str], number: int, when: When) -> None:
    """Killed at any write of a deletion, the next process leaves nothing behind, and then lets the Service go."""
    killing.start()
    killing.add_service()
    eventually(lambda: killing.settled(*nodes), 120)
    killing.arm(number, when)
    killing.scene.remote.api.delete(f"{SERVICES}/web")
    eventually(lambda: killing.killed, 60)
    assert killing.scene.has_service()
    killing.start()
    eventually(lambda: not killing.scene.has_service(), 120)
    network = killing.scene.cloud.fake.network
    assert network.balancers() == network.blocks() == []


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "when"), kills(2, set()))
def test_a_change_of_nodes_survives_a_kill(killing: Killing, nodes: list[str], number: int, when: When) -> None:
    """Killed while a node joins, the next process ends with all nodes in both rules."""
    killing.start()
    killing.add_service()
    eventually(lambda: killing.settled(*nodes), 120)
    killing.arm(number, when)
    nodes.append(killing.scene.add_node("n3"))
    eventually(lambda: killing.killed, 60)
    killing.start()
    eventually(lambda: killing.settled(*nodes), 120)
