"""Nodes that are replaced one by one, as an upgrade of a cluster does it."""

from __future__ import annotations

import random

import pytest

from hub.model import LOCAL
from tests.model.allocations.judge import Judge
from tests.model.allocations.world import World


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_nodes_rolled_one_by_one_move_each_address_once(count: int) -> None:
    """Each node has an address, so each goes to the new node, where it stays; the budget never holds one up."""
    judge = Judge()
    world = World(random.Random(1), judge)
    world.start(settle=False)
    for number in range(count):
        world.add_node(LOCAL, f"old-{number:03}")
    world.allocate("web", tuple(f"198.18.1.{number}" for number in range(count)))
    world.advance(60)
    for number in range(count):
        world.add_node(LOCAL, f"new-{number:03}")
        world.advance(15)
        world.edit(LOCAL, f"old-{number:03}", unschedulable=True)
        world.advance(30)
        world.remove_node(LOCAL, f"old-{number:03}")
        status = world.objects["web"].status
        assert status is not None
        assert all(entry.state == "Attached" for entry in status.addresses)
    assert judge.moves == count
