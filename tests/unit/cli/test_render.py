"""Tables, lines and log records with texts from remote clusters."""

from __future__ import annotations

import json
import logging
import sys

import pytest
import yaml

from hub.cli.logs import JsonFormatter, TextFormatter
from hub.cli.render import count, document, one_line, table


def test_table_aligns_columns_and_marks_empty_cells() -> None:
    """A column is as wide as its widest cell, and an empty cell is a dash."""
    assert table(("NAME", "N"), [("a", 1), ("longer", "")]) == "NAME     N\na        1\nlonger   -"


def test_one_line_shows_escape_sequences() -> None:
    """Escape sequences and line ends of a text are shown, not sent to the terminal."""
    assert one_line(" a\nb\t\x1b[2J\u202e ") == "a b \\x1b[2J\\x202e"


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_document_carries_version_and_kind(output: str, read: object) -> None:
    """JSON and YAML have the same content, with apiVersion and kind."""
    made = document("Plan", {"services": ["ä"]}, output)  # type: ignore[arg-type]

    assert read(made) == {  # type: ignore[operator]
        "apiVersion": "endpointslice-hub/v1",
        "kind": "Plan",
        "services": ["ä"],
    }


def test_count_knows_one_from_many() -> None:
    """The noun is singular for one, plural otherwise."""
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


def record(*, failed: bool = False) -> logging.LogRecord:
    """A log record of a fixed time, with or without an exception."""
    info = None
    if failed:
        try:
            raise KeyError("x")
        except KeyError:
            info = sys.exc_info()
    made = logging.LogRecord("hub.x", logging.WARNING, "f", 1, '%s: "quoted"\n', ("edge/a",), info)
    made.created, made.msecs = 1767225600.25, 250.0
    return made


def test_json_log_is_one_object_per_line() -> None:
    """A JSON record has time, level, logger and message."""
    line = JsonFormatter().format(record())

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "hub.x",
        "message": 'edge/a: "quoted"\n',
    }


def test_json_log_keeps_the_traceback_of_a_defect() -> None:
    """A traceback is a field of its JSON record, not further lines."""
    assert "KeyError" in json.loads(JsonFormatter().format(record(failed=True)))["traceback"]


def test_text_log_is_utc_with_milliseconds() -> None:
    """A text record starts with time, level and logger."""
    assert TextFormatter().format(record()).startswith("2026-01-01T00:00:00.250Z WARNING hub.x: edge/a:")


def test_text_log_of_a_command_has_no_traceback() -> None:
    """A command that runs once logs only the last line of a traceback."""
    line = TextFormatter(tracebacks=False).format(record(failed=True))

    assert "Traceback" not in line
    assert "KeyError: 'x'" in line
