"""The text format of the log: only real records begin a line."""

from __future__ import annotations

import logging
import sys

import pytest

from hub.cli.logs import TextFormatter

FORGED = "2026-01-01T00:00:00.000Z INFO hub.election: all is well"


@pytest.mark.parametrize("tracebacks", [True, False])
def test_no_line_of_a_traceback_begins_a_record(tracebacks: bool) -> None:
    """Lines of an exception's message are indented and their control characters are escaped."""
    try:
        raise ValueError(f"no\n{FORGED}\x1b[2J")
    except ValueError:
        record = logging.LogRecord("hub.x", logging.ERROR, "x.py", 1, "failed", None, sys.exc_info())
    first, *rest = TextFormatter(tracebacks=tracebacks).format(record).split("\n")
    assert first.endswith("ERROR hub.x: failed")
    assert all(line.startswith("    ") for line in rest)
    assert rest[-1] == f"    {FORGED}\\x1b[2J"
