"""Tests of the script: it depends only on the seed, and can be played."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hub_testkit.demo.layout import CLUSTERS, POOLS
from hub_testkit.demo.script import ACT, QUIET, Step, script


def played(steps: list[Step]) -> dict[str, set[str]]:
    """Returns the nodes of each cluster after these steps; fails at a step that cannot be played."""
    nodes = {cluster.name: {f"{cluster.prefix}-{number}" for number, _ in enumerate(POOLS, 1)} for cluster in CLUSTERS}
    for step in steps:
        if step.action == "join":
            assert step.node not in nodes[step.cluster]
            nodes[step.cluster].add(step.node)
        elif step.node:
            assert step.node in nodes[step.cluster]
        if step.action == "leave":
            nodes[step.cluster].remove(step.node)
    return nodes


def test_script_is_the_same_for_the_same_seed() -> None:
    """The script depends only on the seed and the length."""
    assert list(script(30.0)) == list(script(30.0))
    assert list(islice(script(None, 1), 60)) == list(islice(script(None, 1), 60))


def test_script_is_another_one_for_another_seed() -> None:
    """Another seed chooses other nodes for the same incidents."""
    one, two = list(script(30.0, 1)), list(script(30.0, 2))
    assert one != two
    assert [step.action for step in one] == [step.action for step in two]


@pytest.mark.parametrize("seconds", [4.0, 8.0, 30.0, 100.0])
def test_script_can_be_played_and_ends_as_it_began(seconds: float) -> None:
    """Only existing nodes fail or leave, every cluster keeps its number of nodes, and every fault is undone."""
    steps = list(script(seconds))
    sizes = {name: len(nodes) for name, nodes in played(steps).items()}
    assert sizes == {cluster.name: len(POOLS) for cluster in CLUSTERS}
    actions = [step.action for step in steps]
    for bad, good in (("fail", "recover"), ("dark", "light"), ("cloud-down", "cloud-up"), ("blip", "calm")):
        assert actions.count(bad) == actions.count(good) > 0


@pytest.mark.parametrize("seconds", [4.0, 8.0, 30.0, 100.0])
def test_script_leaves_time_at_the_end(seconds: float) -> None:
    """Steps are in order, and the last part of a run has none."""
    times = [step.at for step in script(seconds)]
    assert all(one <= two for one, two in pairwise(times))
    assert times[-1] <= seconds - min(QUIET, 0.3 * seconds)


def test_endless_script_repeats_with_other_nodes() -> None:
    """An endless script repeats the act with other nodes."""
    steps = list(islice(script(None), 200))
    played(steps)
    assert steps[-1].at > 5 * ACT
    assert len({step.node for step in steps}) > 50


def test_script_of_a_moment_is_empty() -> None:
    """A run of two seconds has no incidents."""
    assert list(script(2.0)) == []
