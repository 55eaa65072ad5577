"""``kill -9`` of the hub at each write of a rename of a cluster: the next process ends where a calm one does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from hub.controller.record import ANNOTATION
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_killing import KilledController, When, kills
from tests.support.replicas import SHORT, Replica
from tests.support.waiting import eventually

OLD: Final = "web.edge.eu"
NEW: Final = "web.edge.alpha"
RENAME: Final = 5
"""Writes of a rename: address, group, policy, rule, balancer."""


class Killing(KilledController):
    """A hub that is the cloud controller of a cluster, because another command knows no former names."""

    def __init__(self, scene: BrightboxScene) -> None:
        super().__init__(scene.world.folder, [], {})
        self.scene = scene
        self._hub = Replica(scene.world, "ha-0", "--allow-api-host", scene.cloud.fake.host, *SHORT)

    def start(self) -> None:
        """Start the process."""
        self._hub.start()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._hub.kill()


@pytest.fixture(params=[0, pytest.param(2, marks=pytest.mark.nightly)], ids=["", "lagging"])
def killing(
    hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Killing]:
    """A cluster with two initialised Nodes and a load balancer; the cloud's lists may lag behind."""
    with BrightboxThread() as cloud:
        scene = BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)
        made = Killing(scene)
        cloud.fake.cut, cloud.fake.account.lag = made.cut, request.param
        for _ in range(2):
            scene.add_node(initialized=True)
        scene.add_service()
        try:
            made.start()
            eventually(lambda: scene.hostnames() != [], 60)
            yield made
        finally:
            made.kill()


@pytest.mark.parametrize(("number", "when"), kills(RENAME, {(3, "after")}))
def test_a_rename_survives_a_kill(killing: Killing, number: int, when: When) -> None:
    """Killed at any write of a rename, the next process renames the rest; nothing is made, and nothing goes."""
    scene, account = killing.scene, killing.scene.cloud.fake.account
    ids, hostnames, made = sorted(account.named(OLD)), scene.hostnames(), _posts(scene)
    assert len(ids) == 4
    killing.arm(number, when)
    scene.write(clusterName="alpha", formerClusterNames=["eu"])
    eventually(lambda: killing.killed, 40)
    killing.start()
    eventually(lambda: '"cluster":"alpha"' in scene.service()["metadata"]["annotations"][ANNOTATION], 60)
    assert (sorted(account.named(NEW)), account.named(OLD)) == (ids, [])
    assert [rule["description"] for rule in account.objects["firewall_rules"].values()] == [NEW]
    assert (scene.hostnames(), _posts(scene)) == (hostnames, made)


def _posts(scene: BrightboxScene) -> list[str]:
    """What was made, mapped and joined."""
    return [text for text in scene.writes if text.startswith("POST")]
