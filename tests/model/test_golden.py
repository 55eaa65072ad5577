"""Decisions that were recorded once come out the same, whatever the code looks like by now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from hub.decide import failover
from tests.model.golden import table
from tests.model.golden.moments import Step
from tests.model.golden.replay import replayed

LEAST = 5000
"""Decisions."""
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
    """Names of the steps whose outcome is another one now."""
    for name, steps in sequences:
        outcomes = replayed((step.moment for step in steps), deltas=deltas)
        for number, (step, outcome) in enumerate(zip(steps, outcomes, strict=True)):
            if outcome != step.outcome:
                yield f"{name}, step {number}"


@pytest.fixture(scope="module")
def sequences() -> list[tuple[str, list[Step]]]:
    """All golden histories, equal values as one object."""
    return table.load()


def test_every_decision_is_as_recorded(sequences: list[tuple[str, list[Step]]]) -> None:
    """``python -m tests.model.golden`` prints what differs."""
    assert list(differences(sequences, deltas=True)) == []


def test_equal_copies_of_the_inputs_give_the_same_decisions() -> None:
    """Identity makes a decision cheap and never another one."""
    assert list(differences(table.load(shared=False), deltas=False)) == []


def test_recorded_histories_hold_every_kind_of_decision(sequences: list[tuple[str, list[Step]]]) -> None:
    """Thousands of decisions, with each finding and each status that the heart knows, in a small file."""
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
    """One second more until the sources that failover left may go."""
    monkeypatch.setattr(failover, "SETTLE", failover.SETTLE + 1.0)
    assert any(differences(sequences, deltas=True))
