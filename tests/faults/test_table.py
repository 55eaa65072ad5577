"""The table in docs/reliability.md is the one the tests have, and each of its rows was measured."""

from __future__ import annotations

from collections import Counter

from tests.faults.rows import ROWS
from tests.faults.table import PAGE, in_page, known, measured, table


def test_the_page_has_the_rows_of_the_tests() -> None:
    """Faults and promises are those of the code, in its order: ``python -m tests.faults.table`` writes them."""
    page = PAGE.read_text()
    assert table(known(page)) == in_page(page)


def test_every_row_was_measured_and_lost_nothing() -> None:
    """No row stands there on trust."""
    assert {name: lost for name, (_, lost) in known(PAGE.read_text()).items() if lost != "0"} == {}


def test_at_least_forty_rows_with_unique_names() -> None:
    """Forty at least; a part of them in every run, the others at night."""
    assert len(ROWS) >= 40
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []
    assert 10 <= sum(row.always for row in ROWS) <= 20


def test_unpromised_recovery_is_not_a_failure() -> None:
    """Where all wait, that others waited for ever says nothing of the row."""
    found = {"failure": "", "detect": 0.4, "recover": 0.8, "others": float("inf"), "offences": []}
    rows = {row.promise.others is None: row for row in ROWS if row.promise.detect is not None}
    assert measured(rows[True], found) == ("0.4 s · 0.8 s · –", "0")
    assert measured(rows[False], found) == ("–", "–")
