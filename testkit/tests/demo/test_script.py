"""The script: the same show for the same seed, and one that can be played."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hub_testkit.demo.layout import CLUSTERS, POOLS
from hub_testkit.demo.script import ACT, QUIET, Step, script


def played(steps: list[Step]) -> dict[str, set[str]]:
    """The nodes of each cluster after these steps; fails where a step cannot be played."""
    nodes = {each.name: {f"{each.prefix}-{number}" for number, _ in enumerate(POOLS, 1)} for each in CLUSTERS}
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
    """Nothing but the seed and the length decides what happens."""
    assert list(script(30.0)) == list(script(30.0))
    assert list(islice(script(None, 1), 60)) == list(islice(script(None, 1), 60))


def test_script_is_another_one_for_another_seed() -> None:
    """Another seed chooses other nodes for the same incidents."""
    one, two = list(script(30.0, 1)), list(script(30.0, 2))
    assert one != two
    assert [step.action for step in one] == [step.action for step in two]


@pytest.mark.parametrize("seconds", [4.0, 8.0, 30.0, 100.0])
def test_script_can_be_played_and_ends_as_it_began(seconds: float) -> None:
    """Only nodes that exist fail or leave, every cluster ends with as many as at first, and nothing stays broken."""
    steps = list(script(seconds))
    assert {name: len(nodes) for name, nodes in played(steps).items()} == {each.name: len(POOLS) for each in CLUSTERS}
    actions = [step.action for step in steps]
    for bad, good in (("fail", "recover"), ("dark", "light"), ("cloud-down", "cloud-up"), ("blip", "calm")):
        assert actions.count(bad) == actions.count(good) > 0


@pytest.mark.parametrize("seconds", [4.0, 8.0, 30.0, 100.0])
def test_script_leaves_time_at_the_end(seconds: float) -> None:
    """Steps come in order, and the last part of a show is quiet."""
    times = [step.at for step in script(seconds)]
    assert all(one <= two for one, two in pairwise(times))
    assert times[-1] <= seconds - min(QUIET, 0.3 * seconds)


def test_script_goes_on_for_ever_without_an_end() -> None:
    """An endless show repeats the act with other nodes."""
    steps = list(islice(script(None), 200))
    played(steps)
    assert steps[-1].at > 5 * ACT
    assert len({step.node for step in steps}) > 50


def test_script_of_a_moment_is_empty() -> None:
    """Nobody could follow an act of two seconds."""
    assert list(script(2.0)) == []
