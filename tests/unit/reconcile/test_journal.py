"""The log lines about written slices."""

from __future__ import annotations

import logging

import pytest

from hub.model import TargetKey
from hub.reconcile.journal import Journal


def test_writes_of_a_while_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """One line sums up the writes of all Services and names the first few."""
    journal = Journal()
    with caplog.at_level(logging.INFO):
        for number in range(7):
            journal.note(TargetKey("edge", f"s{number}"), ["create", "update"])
        journal.note(TargetKey("edge", "s0"), ["update"])
        journal.flush()
    assert caplog.messages == [
        "published: 15 slices written for edge/s0, edge/s1, edge/s2, edge/s3, edge/s4 and 2 more"
    ]


def test_nothing_is_logged_without_writes(caplog: pytest.LogCaptureFixture) -> None:
    """Without writes, nothing is logged."""
    journal = Journal()
    journal.note(TargetKey("edge", "a"), ["create"])
    journal.flush()
    caplog.clear()
    journal.flush()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        (["create"], "1 slice written"),
        (["delete"], "1 slice deleted"),
        (["delete", "update", "delete"], "1 slice written, 2 slices deleted"),
    ],
)
def test_deletions_are_counted_apart(caplog: pytest.LogCaptureFixture, operations: list[str], said: str) -> None:
    """A deleted slice is not called written, and one slice is not called slices."""
    journal = Journal()
    with caplog.at_level(logging.INFO):
        journal.note(TargetKey("edge", "a"), operations)
        journal.flush()
    assert caplog.messages == [f"published: {said} for edge/a"]
