"""Tests of golden histories: today's code makes the recorded decisions again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from hub.decide import failover
from tests.model.golden import table
from tests.model.golden.moments import Step
from tests.model.golden.replay import replayed

LEAST = 5000
"""The least number of decisions."""
MOST_BYTES = 2_000_000
KINDS = frozenset(
    {
        "AdoptionWaiting",
        "AddressConflict",
        "ApprovalUsed",
        "ClusterDisrupted",
        "EmptyResultAccepted",
        "EmptyResultHeld",
        "EndpointsUnhealthy",
        "FailedOver",
        "FilteredEmpty",
        "MaybeRenamed",
        "OldWriterActive",
        "OwnerConflict",
        "PanicMode",
        "PlanReleased",
        "RegistryRemovalWithheld",
        "RemovalPending",
        "RemovalWithheld",
    }
)
STATUSES = frozenset({"paused", "frozen", "removing", "gone", "not in"})


def differences(sequences: list[tuple[str, list[Step]]], *, deltas: bool) -> Iterator[str]:
    """The names of the steps whose outcome has changed."""
    for name, steps in sequences:
        outcomes = replayed((step.moment for step in steps), deltas=deltas)
        for number, (step, outcome) in enumerate(zip(steps, outcomes, strict=True)):
            if outcome != step.outcome:
                yield f"{name}, step {number}"


@pytest.fixture(scope="module")
def sequences() -> list[tuple[str, list[Step]]]:
    """All golden histories; equal values are one object."""
    return table.load()


def test_every_decision_is_as_recorded(sequences: list[tuple[str, list[Step]]]) -> None:
    """Every decision is as recorded; ``python -m tests.model.golden`` prints differences."""
    assert list(differences(sequences, deltas=True)) == []


def test_equal_copies_of_the_inputs_give_the_same_decisions() -> None:
    """Equal inputs that are other objects give the same decisions: identity only saves work."""
    assert list(differences(table.load(shared=False), deltas=False)) == []


def test_recorded_histories_hold_every_kind_of_decision(sequences: list[tuple[str, list[Step]]]) -> None:
    """The file has thousands of decisions with every finding and status that decisions can have, and is small."""
    steps = [step for _, found in sequences for step in found]
    reasons = Counter(finding.reason for step in steps for finding in step.outcome.findings)
    statuses = {status for step in steps for status in STATUSES if step.outcome.status.startswith(status)}
    writes = sum(any(step.outcome.planned or ()) for step in steps)
    assert len(steps) >= LEAST
    assert writes >= LEAST / 5
    assert reasons.keys() >= KINDS
    assert statuses == STATUSES
    assert table.DATA.stat().st_size < MOST_BYTES


def test_a_planted_change_of_a_decision_is_noticed(
    sequences: list[tuple[str, list[Step]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If removed sources of a failover stay one second longer, the replay differs."""
    monkeypatch.setattr(failover, "SETTLE", failover.SETTLE + 1.0)
    assert any(differences(sequences, deltas=True))
