"""Sends log records to stderr, as text for people or as JSON for collectors.

Nothing is redacted here: secrets never reach a log call (hub.kube.secret, HubContext.redact).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal

from hub.errors import one_line

LogFormat = Literal["text", "json"]


class TextFormatter(logging.Formatter):
    """``2026-01-01T00:00:00.000Z INFO hub.observe.remote.cluster: message``."""

    def __init__(self, *, tracebacks: bool = True) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._tracebacks = tracebacks

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002
        """UTC with milliseconds."""
        return _timestamp(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Indent further lines and escape control characters: a message may quote text from outside."""
        record.message = "\n    ".join(map(one_line, record.message.split("\n")))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The traceback, or its last line only; indented, so that no line looks like a new record."""
        text = super().formatException(ei) if self._tracebacks else f"{ei[0].__name__}: {ei[1]}"
        return "\n".join(f"    {one_line(line)}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message and, for a defect, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Encode a record."""
        entry = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def follow(log_format: LogFormat, verbose: int) -> None:
    """Set up logging for a long-running command: changes of state; with ``-v`` everything."""
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    _install(formatter, logging.DEBUG if verbose else logging.INFO)


def quiet(verbose: int, log_format: LogFormat = "text") -> None:
    """Set up logging for a command that prints its own output: errors only; with ``-v`` INFO, with ``-vv`` DEBUG."""
    formatter = JsonFormatter() if log_format == "json" else TextFormatter(tracebacks=verbose > 0)
    _install(formatter, (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbose, 2)])


def _install(formatter: logging.Formatter, level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))  # leave out the debug records of libraries
    logging.getLogger("hub").setLevel(level)
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # a closed stderr does not stop the hub
