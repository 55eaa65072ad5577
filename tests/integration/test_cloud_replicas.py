"""Two ``hub run`` processes as the cloud controller of one cluster: the first one is paused in the middle of a step.

Each process has its own account at the API servers and its own port of the cloud, so that their requests can be told
apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import RULES
from tests.support.hub import NODE_RULES
from tests.support.replicas import SHORT, Replica
from tests.support.waiting import eventually

NAME = "web.edge.eu"
CREATE = 7
"""Writes of a creation: address, group, join, policy, rule, balancer, map."""


@dataclass
class Pair:
    """Two replicas of a hub; the scenes have the same cluster and the same account of the cloud.

    Attributes:
        writes: number of the first replica's writes to the cloud until it is paused.
    """

    replicas: list[Replica]
    scenes: list[BrightboxScene]
    writes: int = 0

    def cut(self, _: Any) -> str:
        """Called in the fake's thread with each write of the first replica."""
        self.writes -= 1
        if self.writes == 0:
            self.replicas[0].pause()
        return ""

    def state(self) -> dict[str, Any]:
        """What the cloud has under the Service's name; something missing or double is an AssertionError."""
        account = self.scenes[0].cloud.fake.account
        try:
            [balancer], [group] = account.find("load_balancers", NAME), account.find("server_groups", NAME)
            [policy], [cloud_ip] = account.find("firewall_policies", NAME), account.find("cloud_ips", NAME)
        except ValueError as error:
            raise AssertionError(str(account.named(NAME))) from error
        return {
            "nodes": sorted(node["id"] for node in balancer["nodes"]),
            "servers": sorted(row["id"] for row in group["servers"]),
            "policy": policy["server_group"]["id"] == group["id"],
            "rules": len(account.objects["firewall_rules"]),
            "mapped": (cloud_ip["load_balancer"] or {}).get("id") == balancer["id"],
            "published": self.scenes[0].hostnames() == [cloud_ip["fqdn"]],
        }

    def settled(self) -> bool:
        """Whether the cloud has what one undisturbed replica makes."""
        nodes = sorted(self.scenes[0].cloud.fake.account.objects["servers"])
        calm = {"nodes": nodes, "servers": nodes, "policy": True, "rules": 1, "mapped": True, "published": True}
        assert self.state() == calm
        return True


@pytest.fixture
def pair(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[Pair]:
    """The first replica acts for the cluster, and the second one stands by."""
    with ExitStack() as stack:
        clouds = [stack.enter_context(BrightboxThread()) for _ in range(2)]
        clouds[1].fake.account = clouds[0].fake.account
        made = Pair([], [])
        for number, cloud in enumerate(clouds):
            folder, name = tmp_path / str(number), f"ha-{number}"
            folder.mkdir()
            scene = BrightboxScene.create(hub_cluster, remote_clusters[0], folder, cloud)
            scene.remote.grant(name, *NODE_RULES, *RULES)
            scene.remote.certificate_kubeconfig(folder / "eu", name)
            replica = Replica(scene.world, name, "--allow-api-host", cloud.fake.host, *SHORT)
            stack.callback(replica.kill)
            made.replicas.append(replica)
            made.scenes.append(scene)
            replica.start()
            eventually(lambda replica=replica: " leads" in replica.log.read_text(), 20)  # type: ignore[misc]
        clouds[0].fake.cut = made.cut
        for _ in range(2):
            made.scenes[0].add_node(initialized=True)
        yield made


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number == 6 else pytest.mark.nightly) for number in range(1, CREATE)]
)
def test_a_replica_that_was_paused_in_a_step_writes_nothing_late(pair: Pair, number: int) -> None:
    """Paused for longer than its Lease, it makes no further write; the second one ends as one alone does.

    Once the second one is killed, the first one takes over again, and follows the nodes with what there is.
    """
    (first, second), (scene, other) = pair.replicas, pair.scenes
    pair.writes = number
    scene.add_service()
    eventually(lambda: first.paused, 30)
    mark, before = scene.remote.audit_mark(), len(scene.writes)
    eventually(pair.settled, 90)
    assert len(other.writes) == CREATE - number

    said = len(first.log.read_text())
    first.go_on()
    eventually(lambda: "stands by" in first.log.read_text()[said:], 20)
    assert len(scene.writes) == before
    assert [found for found in scene.remote.requests(mark, first.name) if found.writes] == []

    second.kill()
    scene.add_node(initialized=True)
    eventually(pair.settled, 40)
    assert [text.split("/")[2] for text in scene.writes[before:]] == ["server_groups", "load_balancers"]
