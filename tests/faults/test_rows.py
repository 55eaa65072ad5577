"""The tests of the fault table, one per row, on real API servers; see docs/reliability.md."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.rows import ROWS, Row
from tests.faults.run import Outcome

ASKED = 6.0
"""The most requests per second to a cluster, whatever it answers: retries start at about one per second."""


def _parameters() -> list[Any]:
    return [pytest.param(row, id=row.name, marks=() if row.always else pytest.mark.nightly) for row in ROWS]


@pytest.mark.parametrize("row", _parameters())
def test_fault(outcome: Outcome, row: Row) -> None:
    """The hub notices the fault and recovers in time, others wait no longer than promised, and no endpoint is lost.

    On a busy machine, all times may be longer by the measured factor.
    """
    found, promise = outcome.rows[row.name], row.promise
    assert found.failure == ""
    assert outcome.lost == ""
    assert found.offences == []
    if promise.detect is not None:
        assert found.detect is not None, "the status showed no problem"
        assert found.detect <= promise.detect * found.strain
    assert found.recover is not None
    assert found.recover <= promise.recover * found.strain
    if promise.others is not None:
        assert found.others <= promise.others * found.strain
    assert 1 <= found.writes <= found.changes
    assert found.asked <= ASKED


def test_control_cluster_is_published_without_violations(outcome: Outcome) -> None:
    """The control cluster, which belongs to no row, is published without offences, and no write was needless."""
    assert outcome.lost == ""
    assert outcome.commits > 2 * len(outcome.rows)
    assert outcome.elsewhere == []
    assert outcome.unexplained == []
