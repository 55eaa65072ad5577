"""Each provider in a whole hub: a move, drift, and what is not the hub's, on the provider's fake.

``make test ARGS="--nightly -n 0 -s -k 'serves_its_addresses and aws'"`` prints the writes that the cloud received.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.killing.clouds import CLOUDS
from tests.support.killing.stage import Stage, expected
from tests.support.waiting import eventually

MOVE: Final[Mapping[str, list[str]]] = {
    "simulated": ["detach", "attach", "restore"],
    "gcp": ["detach", "make room", "attach", "restore"],
    "aws": ["detach", "attach"],
    "azure": ["detach", "attach"],
    "ionos": ["detach", "attach"],
}
"""The writes of a move, in order; reads are in each provider's own tests, as are the exact requests."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "gcp" else pytest.mark.nightly) for kind in CLOUDS]
)
def test_a_cloud_serves_its_addresses_and_nothing_else(hub_cluster: ApiServer, tmp_path: Path, kind: str) -> None:
    """An address leaves a cordoned node; one that is taken by hand comes back; a stranger's address stays.

    The cloud receives the writes of these two and no others, one in the name of each step.
    """
    with Stage(hub_cluster, tmp_path, kind) as stage:
        stage.start()
        stage.drain()
        assert stage.end(40) == expected(stage)
        assert [written.act.kind for written in stage.written] == MOVE[kind]
        moved = len(stage.written)
        stage.cloud.release(stage.staying)
        eventually(lambda: stage.cloud.holder_of(stage.staying) == "n2", 60)
        eventually(lambda: stage.status()["attached"] == 2, 20)
        for written in stage.written:
            sys.stdout.write(f"{written.act.kind} {written.act.address} {written.act.node}\n")
        assert [written.act.kind for written in stage.written[moved:]] == ["attach"]
        assert {written.act.address for written in stage.written} <= {stage.moving, stage.staying, ""}
        assert stage.cloud.holder_of(stage.foreign) == "stranger"
