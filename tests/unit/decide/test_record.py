"""Encoding and decoding the guard's record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.record import NO_RECORD, GuardRecord, decode, encode


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (NO_RECORD, ""),
        (GuardRecord(2), '{"v":1,"empty":2}'),
        (GuardRecord(0, "abc", 17), '{"v":1,"withheld":{"hash":"abc","since":17}}'),
        (GuardRecord(1, "abc", 17), '{"v":1,"empty":1,"withheld":{"hash":"abc","since":17}}'),
        (GuardRecord(foreign='{"v":2,"new":[]}'), '{"v":2,"new":[]}'),
    ],
)
def test_record_round_trip(record: GuardRecord, text: str) -> None:
    """The annotation's text is fixed, because other hubs read it."""
    assert (encode(record), decode(text)) == (text, record)


@pytest.mark.parametrize(
    "text",
    [
        *("{", "null", "[]", "7", '{"v":"1"}', '{"empty":2}', '{"v":1,"empty":"2"}', '{"v":1,"withheld":3}', "\ud800"),
        pytest.param('{"v":1,"x":' + "[" * 100_000, id="nothing but brackets"),
    ],
)
def test_unreadable_records_count_for_nothing(text: str) -> None:
    """An unreadable record is read as an empty one."""
    assert decode(text) == NO_RECORD


def test_negative_numbers_count_for_nothing() -> None:
    """Negative numbers in a record are read as zero."""
    assert decode('{"v":1,"empty":-5,"withheld":{"hash":"a","since":-1}}') == GuardRecord(0, "a", 0)


@given(st.integers(0, 100), st.text(), st.integers(0, 2**40))
def test_any_record_survives(empty: int, name: str, since: int) -> None:
    """Any record is read back as written, except a start time without a withheld removal."""
    record = GuardRecord(empty, name.encode("utf-8", "ignore").decode(), since)
    expected = record if record.hash else GuardRecord(empty)
    assert decode(encode(record)) == expected
