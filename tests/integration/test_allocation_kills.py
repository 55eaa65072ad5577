"""Hub processes that are killed in the middle of a move of a reserved address, on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.killing.judge import judge
from tests.support.killing.stage import Point, Stage, expected, points
from tests.support.replicas import DURATION

W = 1.0
"""Seconds that an operation of the cloud takes."""
CLOUDS = ("simulated", "gcp", "aws", "azure")


def play(stage: Stage, killed_at: list[Point]) -> None:
    """Move the address; kill the leader at each of these points, one after the other."""
    if stage.cloud.operations:
        stage.cloud.length(W)
    stage.start()
    stage.drain()
    for point in killed_at:
        stage.spring(point).start()
    assert stage.end(DURATION + 30 + 3 * W) == expected(stage)
    judge(stage)


def test_kill_once(hub_cluster: ApiServer, tmp_path: Path) -> None:
    with Stage(hub_cluster, tmp_path, "simulated") as stage:
        play(stage, [])


def test_kill_first(hub_cluster: ApiServer, tmp_path: Path) -> None:
    with Stage(hub_cluster, tmp_path, "simulated") as stage:
        play(stage, points(stage.cloud))
