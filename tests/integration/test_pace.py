"""How fast changes are published while more of them come: at once, but for storms. Between real API servers.

The audit logs say when a change was made and when a slice was written, on one clock.
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
    """Of a node."""
    return f"10.1.{number // 200}.{number % 200 + 1}"


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> Iterator[World]:
    """A hub at work that publishes the nodes of one cluster for one Service."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    for number in range(NODES):
        add_node(made.remotes["eu"], f"n{number}", address(number))
    made.add_service()
    made.write()
    with RunningHub(made):
        made.awaits(*map(address, range(NODES)))
        yield made


def test_twenty_changes_a_second_of_one_service_are_published_at_once(world: World) -> None:
    """Half of them within a sixth of a second: a machine with much else to do is slow, but nothing waits for a rate."""
    remote = world.remotes["eu"]
    marks = remote.audit_mark(), world.hub_cluster.audit_mark()
    begin = time.monotonic()
    for number in range(100):
        time.sleep(max(0.0, begin + number / 20 - time.monotonic()))
        label = "" if number % 2 == 0 else None  # out of the slice, and in again
        remote.api.patch(f"/api/v1/nodes/n{number // 2 % NODES}", {"metadata": {"labels": {EXCLUDED: label}}})
    world.awaits(*map(address, range(NODES)))

    writes = world.writes(marks[1])
    changes = [each for each in remote.requests(marks[0]) if each.resource == "nodes" and each.verb == "patch"]
    assert len(changes) == 100
    seconds = [  # the last two may have cancelled each other out, so that no write carries them
        next((write.ended for write in writes if write.received > change.received), math.inf) - change.received
        for change in changes
    ]
    assert statistics.median(seconds) < 0.16


def test_a_storm_shares_writes(world: World) -> None:
    """Nodes that are replaced as fast as an API server can: 200 changes make far fewer writes, and none is lost."""
    remote = world.remotes["eu"]
    mark = world.hub_cluster.audit_mark()
    for number in range(100):
        add_node(remote, f"n{NODES + number}", address(NODES + number))
        remote.api.delete(f"/api/v1/nodes/n{number}")
    world.awaits(*map(address, range(100, 100 + NODES)))

    assert 0 < len(world.writes(mark)) < 100
