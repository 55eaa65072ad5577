"""Tests of turning documents into snapshots: which records count, and why others are rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hub_provider_inventory import InventoryError, parse, snapshot
from hypothesis import given
from hypothesis import strategies as st

from hub.plugin import Snapshot, SnapshotEndpoint


def record(name: str = "a", **fields: Any) -> dict[str, Any]:
    """A valid record, changed by ``fields``."""
    return {"name": name, "private_ip": "10.9.0.1", "ready": True, "worker": True} | fields


def test_good_records_become_endpoints_sorted_by_name() -> None:
    """An endpoint has the zone, all addresses and the readiness of its record; other keys are ignored."""
    records = [
        record("b", private_ip="10.9.0.2", ready=False),
        record("a", zone="de-txl", ips=["fd00::1", "10.9.0.1"], region="de", weight=3),
        record("control", worker=False),
    ]
    assert snapshot("x", records) == Snapshot(
        (
            SnapshotEndpoint("a", ("10.9.0.1", "fd00::1"), zone="de-txl"),
            SnapshotEndpoint("b", ("10.9.0.2",), ready=False, serving=False),
        )
    )


def test_an_empty_inventory_is_an_answer() -> None:
    """An empty inventory is a complete snapshot without endpoints."""
    assert snapshot("x", []) == Snapshot(())


def test_a_record_may_have_further_addresses_only() -> None:
    """A record needs no ``private_ip`` if it has ``ips``, and a null counts as absent."""
    made = snapshot("x", [record(private_ip=None, ips=["fd00:0::2"], zone=None)])
    assert made.endpoints == (SnapshotEndpoint("a", ("fd00::2",)),)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"name": "z", "private_ip": "10.9.0.9", "worker": True}, "record 1 ('z'): ready is missing"),
        ({"name": "z", "private_ip": "10.9.0.9", "ready": True}, "record 1 ('z'): worker is missing"),
        (record("z", ready="true"), "record 1 ('z'): ready must be true or false, not a string"),
        (record("z", worker=1), "record 1 ('z'): worker must be true or false, not a number"),
        (record("z", ready=None), "record 1 ('z'): ready is missing"),
        ({"private_ip": "10.9.0.9", "ready": True, "worker": True}, "record 1: name is missing"),
        (record(""), "record 1 (''): name must be a text of 1 to 253 printable characters"),
        (record("z" * 254), f"record 1 ('{'z' * 64}'): name must be a text of 1 to 253 printable characters"),
        (record("z") | {"name": 7}, "record 1: name must be a text of 1 to 253 printable characters"),
        (record("z", private_ip=None), "record 1 ('z'): private_ip is missing"),
        (record("z", private_ip="10.9.0.300"), "record 1 ('z'): '10.9.0.300' is not an IP address"),
        (record("z", private_ip="010.9.0.3"), "record 1 ('z'): '010.9.0.3' is not an IP address"),
        (record("z", private_ip="10.9.0.0/24"), "record 1 ('z'): '10.9.0.0/24' is not an IP address"),
        (record("z", private_ip=168427521), "record 1 ('z'): an address must be a string, not a number"),
        (record("z", ips="10.9.0.2"), "record 1 ('z'): ips must be an array"),
        (
            record("z", ips=["fe80::1%eth0"]),
            "record 1 ('z'): 'fe80::1%eth0' has a zone: only this host would understand it",
        ),
        (record("z", ips=["10.9.0.2"] * 51), "record 1 ('z'): has more than 50 addresses"),
        (record("z", zone=5), "record 1 ('z'): zone must be a text of 1 to 253 printable characters"),
        (record("a"), "record 1 ('a'): another record has the same name"),
        (record("a", worker=False), "record 1 ('a'): another record has the same name"),
        ("z", "record 1: must be an object, not a string"),
        (None, "record 1: must be an object, not null"),
        ([record("z")], "record 1: must be an object, not an array"),
    ],
)
def test_a_bad_record_is_rejected_and_makes_the_answer_incomplete(bad: object, reason: str) -> None:
    """The other records count, and the snapshot is incomplete, so that the hub removes nothing because of it."""
    made = snapshot("x", [record(), bad])
    assert made == Snapshot((SnapshotEndpoint("a", ("10.9.0.1",)),), complete=False, problems=(reason,))


def test_document_with_only_rejected_records_is_an_error() -> None:
    """A document with only rejected records is an error, not an empty answer."""
    with pytest.raises(InventoryError, match=r"inv\.json: all 2 records are rejected; record 0: must be an object"):
        snapshot("inv.json", [1, 2])


def test_many_problems_are_cut() -> None:
    """A snapshot lists twenty problems; a last line counts the others."""
    made = snapshot("x", [record(), *[None] * 100])
    assert len(made.problems) == 21
    assert made.problems[-1] == "and 80 more"


GOOD = json.dumps([record()]).encode()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "not JSON at line 1, column 1: Expecting value"),
        (GOOD[:30], "not JSON at line 1, column"),
        (GOOD[:-1], "not JSON at line 1, column"),
        (GOOD + GOOD, "not JSON at line 1, column"),
        (b"[NaN]", "not JSON: NaN is not allowed"),
        (b'[{"weight": -Infinity}]', "not JSON: -Infinity is not allowed"),
        (b"{}", "must be a JSON array of records, not an object"),
        (b"null", "must be a JSON array of records, not null"),
        (b'"x"', "must be a JSON array of records, not a string"),
        (b"1", "must be a JSON array of records, not a number"),
        (b"\xff\xfe[\x00]\x00", "not UTF-8 at byte 0"),
        (b'["\xe4"]', "not UTF-8 at byte 2"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[" + b"1" * 5000 + b"]", "not JSON: Exceeds the limit"),
        (b"<html>not found</html>", "not JSON at line 1, column 1"),
    ],
)
def test_error_names_document_and_position_and_quotes_nothing(document: bytes, reason: str) -> None:
    """The error names the document and the position of the mistake, and never quotes content."""
    with pytest.raises(InventoryError) as caught:
        parse("inv.json", document)
    assert str(caught.value).startswith(f"inv.json: {reason}")
    assert "html" not in str(caught.value)


def test_a_byte_order_mark_is_tolerated() -> None:
    """A byte order mark, as some editors write it, is skipped."""
    assert parse("x", b"\xef\xbb\xbf" + GOOD) == [record()]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(record())), inner, max_size=4),
    max_leaves=6,
)
mixed = st.dictionaries(st.sampled_from([*record(), "ips", "zone"]), json_values) | st.builds(
    record, st.sampled_from("abc"), worker=st.booleans()
)


@given(st.lists(mixed | json_values, max_size=6))
def test_snapshot_is_complete_exactly_if_no_record_is_rejected(records: list[Any]) -> None:
    """Any records give a snapshot or an InventoryError, and a snapshot is complete exactly if no record is rejected."""
    try:
        made = snapshot("x", records)
    except InventoryError:
        assert records
        return
    assert made.complete is (made.problems == ())
    assert [item.name for item in made.endpoints] == sorted({item.name for item in made.endpoints})
