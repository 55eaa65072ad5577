"""Hub processes that are killed in the middle of a move of a reserved address, on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.killing.judge import judge
from tests.support.killing.stage import Point, Stage, When, expected, points
from tests.support.replicas import DURATION

W = 1.0
"""Seconds that an operation of the cloud takes."""
CLOUDS = ("simulated", "gcp", "aws", "azure")


CHANGES = {"simulated": 3, "gcp": 4, "aws": 2, "azure": 2}
"""Changes of the cloud in an undisturbed move: detach, attach, and on some clouds making room and restoring."""


def play(stage: Stage, killed_at: list[Point], length: float = W) -> None:
    """Move the address; kill the leader at each of these points, one after the other."""
    stage.cloud.length(length)
    stage.start()
    undisturbed = CHANGES[stage.kind]
    stage.drain()
    for point in killed_at:
        stage.spring(point).start()
    assert stage.end(DURATION + 30 + 3 * W) == expected(stage)
    judge(stage, undisturbed)


@pytest.mark.parametrize("when", ["before", "after", "late", "pending"])
@pytest.mark.parametrize("kind", CLOUDS)
def test_a_move_survives_kills_at_every_step(hub_cluster: ApiServer, tmp_path: Path, kind: str, when: When) -> None:
    """A move whose leader is killed at every step ends as an undisturbed one."""
    with Stage(hub_cluster, tmp_path, kind) as stage:
        play(stage, points(stage.cloud, when, slow=True))


def test_kill_once(hub_cluster: ApiServer, tmp_path: Path) -> None:
    with Stage(hub_cluster, tmp_path, "simulated") as stage:
        play(stage, [])
