"""The pace of writes while changes continue: immediate, except in storms. On real API servers.

The audit logs have the times of changes and of writes on one clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node

NODES = 20
EXCLUDED = "node.kubernetes.io/exclude-from-external-load-balancers"


def address(number: int) -> str:
    """The address of a node."""
    return f"10.1.{number // 200}.{number % 200 + 1}"


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> Iterator[World]:
    """A running hub that publishes the nodes of one cluster for one Service."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    for number in range(NODES):
        add_node(made.remotes["eu"], f"n{number}", address(number))
    made.add_service()
    made.write()
    with RunningHub(made):
        made.awaits(*map(address, range(NODES)))
        yield made


def test_twenty_changes_a_second_of_one_service_are_published_at_once(world: World) -> None:
    """Half of the changes are published within a sixth of a second; the limit allows for a busy machine."""
    remote = world.remotes["eu"]
    marks = remote.audit_mark(), world.hub_cluster.audit_mark()
    begin = time.monotonic()
    for number in range(100):
        time.sleep(max(0.0, begin + number / 20 - time.monotonic()))
        label = "" if number % 2 == 0 else None  # removes the node from the slice, or adds it again
        remote.api.patch(f"/api/v1/nodes/n{number // 2 % NODES}", {"metadata": {"labels": {EXCLUDED: label}}})
    world.awaits(*map(address, range(NODES)))

    writes = world.writes(marks[1])
    changes = [
        request for request in remote.requests(marks[0]) if request.resource == "nodes" and request.verb == "patch"
    ]
    assert len(changes) == 100
    seconds = [  # the last two changes may have cancelled each other out, without a write
        next((write.ended for write in writes if write.received > change.received), math.inf) - change.received
        for change in changes
    ]
    assert statistics.median(seconds) < 0.16


def test_a_storm_shares_writes(world: World) -> None:
    """200 node replacements as fast as the API server allows cause far fewer writes, and none is lost."""
    remote = world.remotes["eu"]
    mark = world.hub_cluster.audit_mark()
    for number in range(100):
        add_node(remote, f"n{NODES + number}", address(NODES + number))
        remote.api.delete(f"/api/v1/nodes/n{number}")
    world.awaits(*map(address, range(100, 100 + NODES)))

    assert 0 < len(world.writes(mark)) < 100
