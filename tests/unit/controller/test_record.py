"""The record in an annotation of the Service."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from hub.cloud.balancers import Done, Intent, Marker, Record, Step
from hub.controller import record
from hub.controller.services import Names

NAMED = Names("web.edge.eu", ("web.edge.old",), Marker("c1", "uid-1"))
FULL = replace(
    record.empty(NAMED),
    ids={"balancer": "b-1"},
    made=("balancer", "group"),
    set=("policy",),
    intent=Intent(7.5, ("group",)),
)
TEXT = record.write(FULL, "eu", "toy")


def test_a_record_is_read_as_it_was_written() -> None:
    """Everything comes back, with the names of the Service."""
    assert record.read(TEXT, NAMED, "toy") == record.Kept(FULL, "eu")


def test_a_record_without_content_is_one() -> None:
    """A Service that is only held has a valid record."""
    found = record.read(record.write(record.empty(NAMED), "eu", "toy"), NAMED, "toy")
    assert found.valid
    assert found.record == record.empty(NAMED)


def test_what_was_intended_counts_as_made() -> None:
    """A creation whose answer was lost is the hub's, too."""
    text = record.write(replace(FULL, made=(), intent=Intent(7.5, ("group",))), "eu", "toy")
    assert record.read(text, NAMED, "toy").record.made == ("group",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("\udcff", "cannot be read"),
        ("[" * 2000, "cannot be read"),
        (TEXT + " " * 2048, "longer than 2048"),
        (TEXT.replace('"v":1', '"v":2'), "version 2"),
        (TEXT.replace("uid-1", "uid-2"), "another Service"),
        (TEXT.replace('"toy"', '"other"'), "the cloud 'other'"),
        (TEXT.replace('"cluster":"eu"', '"cluster":""'), "cannot be read"),
        (TEXT.replace("b-1", "\x00"), "cannot be read"),
    ],
)
def test_a_record_that_is_not_this_service_s_counts_as_none(text: str, why: str) -> None:
    """Unreadable, of another version, Service or cloud: nothing of it is used, and the reason is known (row 16)."""
    found = record.read(text, NAMED, "toy")
    assert found.record == record.empty(NAMED)
    assert not found.valid
    assert why in found.ignored


def test_no_annotation_is_no_mistake() -> None:
    """Without the annotation there is no record and no reason."""
    assert record.read("", NAMED, "toy") == record.Kept(record.empty(NAMED))


def test_a_record_never_exceeds_its_limit() -> None:
    """What names and markers find again is left out first; what the hub made stays."""
    large = replace(FULL, ids={f"kind-{number}": "x" * 30 for number in range(60)})
    text = record.write(large, "eu", "toy")
    assert len(text) <= record.LONGEST
    assert record.read(text, NAMED, "toy").record == replace(FULL, ids={}, set=())
    assert msgspec.json.decode(text)["made"] == ["balancer", "group"]


def test_steps_since_the_record_are_added_to_it() -> None:
    """A plan knows the ids that the last steps created; without a record, names find everything."""
    recent = [(Step("create-group", "", creates="group"), Done({"group": "g-1"}))]
    kept = record.read(TEXT, NAMED, "toy")
    assert kept.full(recent).ids == {"balancer": "b-1", "group": "g-1"}
    assert record.read("", NAMED, "toy").full(recent) == Record(NAMED.name, NAMED.marker, NAMED.former)
