"""Tables and lines that no remote text can spoil."""

from __future__ import annotations

import json
import logging
import sys

import pytest
import yaml

from hub.cli.logs import JsonFormatter, TextFormatter
from hub.cli.render import count, document, one_line, table


def test_table_aligns_columns_and_marks_empty_cells() -> None:
    """Columns are as wide as their widest cell; nothing is shown as a dash."""
    assert table(("NAME", "N"), [("a", 1), ("longer", "")]) == "NAME     N\na        1\nlonger   -"


def test_one_line_disarms_what_terminals_obey() -> None:
    """Escape sequences and line ends of a remote text are shown, not obeyed."""
    assert one_line(" a\nb\t\x1b[2J\u202e ") == "a b \\x1b[2J\\x202e"


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_document_carries_version_and_kind(output: str, read: object) -> None:
    """Both formats hold the same, under a version."""
    made = document("Plan", {"services": ["ä"]}, output)  # type: ignore[arg-type]

    assert read(made) == {  # type: ignore[operator]
        "apiVersion": "endpointslice-hub/v1",
        "kind": "Plan",
        "services": ["ä"],
    }


def test_count_knows_one_from_many() -> None:
    """Numbers agree with their nouns."""
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


def record(*, failed: bool = False) -> logging.LogRecord:
    """A record of a fixed time, with an exception if asked for."""
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
    """A collector gets time, level, logger and message."""
    line = JsonFormatter().format(record())

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "hub.x",
        "message": 'edge/a: "quoted"\n',
    }


def test_json_log_keeps_the_traceback_of_a_defect() -> None:
    """A traceback is a field of its record, not further lines."""
    assert "KeyError" in json.loads(JsonFormatter().format(record(failed=True)))["traceback"]


def test_text_log_is_utc_with_milliseconds() -> None:
    """Time, level and logger come first."""
    assert TextFormatter().format(record()).startswith("2026-01-01T00:00:00.250Z WARNING hub.x: edge/a:")


def test_text_log_of_a_command_has_no_traceback() -> None:
    """A command that answers once shows the last line of a defect only."""
    line = TextFormatter(tracebacks=False).format(record(failed=True))

    assert "Traceback" not in line
    assert "KeyError: 'x'" in line
