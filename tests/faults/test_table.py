"""Tests of the table in docs/reliability.md: it has the tests' rows, and each was measured."""

from __future__ import annotations

from collections import Counter

from tests.faults.rows import ROWS
from tests.faults.table import PAGE, in_page, known, measured, table


def test_the_page_has_the_rows_of_the_tests() -> None:
    """Faults and promises are those of the code, in its order; ``python -m tests.faults.table`` updates the page."""
    page = PAGE.read_text()
    assert table(known(page)) == in_page(page)


def test_every_row_was_measured_and_lost_nothing() -> None:
    """Every row has measured times and no lost endpoint."""
    assert {name: lost for name, (_, lost) in known(PAGE.read_text()).items() if lost != "0"} == {}


def test_at_least_forty_rows_with_unique_names() -> None:
    """There are at least forty rows with different names; some run always, the others at night."""
    assert len(ROWS) >= 40
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []
    assert 10 <= sum(row.always for row in ROWS) <= 20


def test_unpromised_recovery_is_not_a_failure() -> None:
    """If a promise lets others wait, an infinite delay of others is no failure of the row."""
    found = {"failure": "", "detect": 0.4, "recover": 0.8, "others": float("inf"), "offences": []}
    rows = {row.promise.others is None: row for row in ROWS if row.promise.detect is not None}
    assert measured(rows[True], found) == ("0.4 s · 0.8 s · –", "0")
    assert measured(rows[False], found) == ("–", "–")
