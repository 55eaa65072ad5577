"""Random worlds against the planner: no law of docs/allocations.md is broken, and everything ends up in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.model.allocations.script import Run, Step, attempt, readable, script, shrunk

CHUNKS: Final = 20
RUNS: Final = 100
"""Runs of a chunk: 2,000 in all."""
NIGHTLY: Final = 1_000
STABLE: Final = ("nothing", "cordon", "uncordon", "fail", "recover", "join", "leave", "kill", "restart", "freeze")
"""What happens in the worlds that are played with and without restarts."""


def fails(seed: int, steps: Sequence[Step]) -> None:
    """Shrink a script that breaks a law, and fail with it."""
    fewer = shrunk(seed, steps)
    pytest.fail(f"seed {seed}: {attempt(seed, fewer)}\n{readable(seed, fewer)}", pytrace=False)


def play(first: int, runs: int) -> None:
    """Play scripts, and complain about the first that breaks a law."""
    for seed in range(first, first + runs):
        steps = script(seed)
        if attempt(seed, steps):
            fails(seed, steps)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_planner_breaks_no_law(chunk: int) -> None:
    """In random worlds, the invariants A1 to A9 hold in each step, and at the end everything is in its place."""
    play(chunk * RUNS, RUNS)


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_planner_breaks_no_law_in_many_worlds(chunk: int) -> None:
    """The same in ten times as many worlds."""
    play(1_000_000 + chunk * NIGHTLY, NIGHTLY)


class Uncordoned(Run):
    """A run that ends with all nodes schedulable: then every address that has a node to go to is attached."""

    def heal(self) -> None:
        """Uncordon all nodes too."""
        for name, cluster in self.world.clusters.items():
            for node in list(cluster.nodes):
                self.world.edit(name, node, unschedulable=False)
        super().heal()


@pytest.mark.parametrize("seed", range(40))
def test_end_is_the_same_with_and_without_restarts(seed: int) -> None:
    """A9: processes that are killed, stand still or lose the Lease change nothing about how many addresses serve."""
    steps = [step for step in script(seed) if step.what in STABLE]
    ends = []
    for calm in (False, True):
        run = Uncordoned(seed, calm=calm)
        run.play(steps)
        ends.append(run.world.serving())
    assert ends[0] == ends[1]


def test_worlds_see_every_state_cause_and_phase() -> None:
    """The random worlds reach all states, causes and phases that the laws name, so that their judgement counts."""
    states: set[str] = set()
    causes: set[str] = set()
    phases: set[str] = set()
    for seed in range(60):
        run = Run(seed)
        run.play(script(seed))
        states |= run.judge.states
        causes |= run.judge.causes
        phases |= run.judge.phases
    assert causes >= {"Free", "Gone", "OutOfService", "NotReady", "Drained", "NodeRemoved", "Misplaced", "Release"}
    assert phases == {"Detaching", "Attaching", "RollingBack", "Restoring", "Releasing"}
    assert states >= {"Attached", "Leaving", "Pending", "Unknown", "Elsewhere", "Conflict", "Released", *phases} - {
        "Restoring",
        "Releasing",
    }


def test_script_of_a_seed_is_always_the_same() -> None:
    """A seed that failed anywhere can be played again."""
    assert script(7) == script(7)
    assert script(7) != script(8)
