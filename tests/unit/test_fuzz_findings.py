"""Bugs that fuzzing (tests/fuzz) found, each as a test."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hub_provider_inventory import parse, snapshot

from hub.cli.logs import TextFormatter
from hub.errors import ApiError, RegistryError
from hub.kube.client import api_error
from hub.model import Absent, Found, Hints, NamedHint, ObjectReference, Port
from hub.plugin import Snapshot, SnapshotEndpoint
from hub.plugin.answers import MAX_TEXT, read_answer, read_snapshot
from hub.registry.load import loads
from tests.fuzz.mutate import as_json
from tests.fuzz.servers import WATCH_LINES, reflected


class Text(str):
    """A string of a plugin's own class, which the JSON encoder does not accept."""

    __slots__ = ()


HALF = "\ud800"
"""Half of a surrogate pair; JSON may spell it, UTF-8 may not."""


@pytest.mark.parametrize("key", ["name", "zone"])
@pytest.mark.parametrize("text", [HALF, "a\nb", "\x1b[2J"])
def test_unencodable_record_is_rejected_alone(key: str, text: str) -> None:
    """A record that cannot be encoded is rejected alone; it used to stop all slices of the Service."""
    record = {"name": "w1", "private_ip": "10.0.0.1", "ready": True, "worker": True, "zone": "a"}
    document = json.dumps([record | {key: text}, record | {"name": "w2", "private_ip": "10.0.0.2"}]).encode()
    offered = snapshot("legacy.json", parse("legacy.json", document))
    assert [endpoint.name for endpoint in offered.endpoints] == ["w2"]
    assert "must be a text of 1 to 253 printable characters" in offered.problems[0]


@pytest.mark.parametrize("text", [HALF, Text("a"), "x" * (MAX_TEXT + 1)])
def test_an_answer_with_a_zone_that_cannot_be_written_is_an_error(text: str) -> None:
    """A zone that cannot be encoded makes the whole answer unknown, like a wrong type."""
    with pytest.raises(TypeError, match="whose zone is not a string"):
        read_answer(["a"], {"a": Found(("10.0.0.1",), text)})


@pytest.mark.parametrize(
    "answer", [Absent(HALF), Found((HALF,)), Found((Text("10.0.0.1"),)), Found(("10.0.0.1", HALF), "a")]
)
def test_an_answer_with_any_text_that_cannot_be_written_is_an_error(answer: Any) -> None:
    """A reason or address that cannot be encoded makes the answer unknown."""
    with pytest.raises(TypeError):
        read_answer(["a"], {"a": answer})


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": HALF},
        {"zone": HALF},
        {"node_name": Text("n1")},
        {"hostname": "x" * (MAX_TEXT + 1)},
        {"target_ref": ObjectReference("Node", HALF)},
        {"target_ref": ObjectReference("Node", 5)},  # type: ignore[arg-type]
        {"hints": Hints((NamedHint(HALF),))},
        {"hints": Hints(("a",))},  # type: ignore[arg-type]
        {"hints": Hints((NamedHint("a"),) * 101)},
        {"ports": (Port(None, 443),)},  # type: ignore[arg-type]
        {"ports": (Port("https", "443"),)},  # type: ignore[arg-type]
        {"ports": (Port("https", port=True),)},
        {"ports": (Port("https", 443, app_protocol=HALF),)},
    ],
)
def test_an_endpoint_with_a_field_that_cannot_be_written_is_an_error(wrong: dict[str, Any]) -> None:
    """Text that cannot be encoded is also found in nested fields, whose types a plugin need not respect."""
    good: dict[str, Any] = {"name": "a", "addresses": ("10.0.0.1",)}
    read_snapshot(Snapshot((SnapshotEndpoint(**good),)))
    with pytest.raises(TypeError):
        read_snapshot(Snapshot((SnapshotEndpoint(**{**good, **wrong}),)))


def test_problems_that_cannot_be_written_are_an_error() -> None:
    """Problems that cannot be encoded are an error."""
    with pytest.raises(TypeError, match="problems"):
        read_snapshot(Snapshot((), problems=(HALF,)))


def test_a_wish_to_wait_that_no_float_holds_is_an_error_like_any_other() -> None:
    """``retryAfterSeconds`` of 400 digits is an ordinary error; it used to end the cluster's watch."""
    body = json.dumps({"kind": "Status", "details": {"retryAfterSeconds": 10**400}}).encode()
    error = api_error(429, body, "GET /x")
    assert error.status == 429
    assert error.retry_after is not None
    assert error.retry_after >= 2**53


def test_a_version_of_thousands_of_digits_ends_no_watch() -> None:
    """A resourceVersion that Python refuses to parse does not end the watch."""
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Node", "metadata": {"resourceVersion": "9" * 5_000}}}
    assert reflected([as_json(WATCH_LINES[0]), as_json(bookmark), as_json(bookmark)])


def test_server_message_is_one_short_line() -> None:
    """A server's reason and message are cut and have no line breaks."""
    error = ApiError(403, "x" * 70_000, "no\n2026-01-01T00:00:00.000Z INFO hub: all is well\x1b[2J", what="GET /x")
    assert str(error).isprintable()
    assert len(str(error)) < 400
    assert "all is well" in str(error)


@pytest.mark.parametrize(
    "content", [b'"a\\nb": 1\nversion: 1\n', b"version: 1\nowner: !a%0Ab x\n", b'version: "1\\e[2J"\n']
)
def test_registry_problem_stays_on_one_line(content: bytes) -> None:
    """Keys, tags and values of a registry are quoted on one line, whatever characters they have."""
    with pytest.raises(RegistryError) as caught:
        loads(content, "clusters.yaml")
    assert all(str(problem).isprintable() for problem in caught.value.problems)


def test_a_log_message_begins_no_line_that_looks_like_another() -> None:
    """Line breaks in a text log message are indented, and terminal codes are escaped."""
    record = logging.LogRecord(
        "hub.x", logging.INFO, "x.py", 1, "a\n2026-01-01T00:00:00.000Z ERROR b\x1b[2J", None, None
    )
    first, second = TextFormatter().format(record).split("\n")
    assert first.endswith("INFO hub.x: a")
    assert second == "    2026-01-01T00:00:00.000Z ERROR b\\x1b[2J"
