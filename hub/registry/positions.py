"""Parses YAML text into plain data, with the line and column of every value.

The parser builds the data from libyaml's events, with an explicit stack. It refuses anchors, aliases, tags, repeated
keys and further documents, and limits the depth and the number of values, so that a hostile file costs little. Plain
scalars follow the core schema of YAML 1.2 (as editors do), not 1.1: ``off``, ``no``, ``on`` and ``12:30`` are text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from hub.registry.report import KeyPath, Report

MAX_DEPTH: Final = 32
"""Deepest nesting; sensible provider configurations need much less."""
MAX_VALUES: Final = 500_000
"""Most values in one file. 10,000 services have about 250,000; each value takes some 300 bytes while parsing."""

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: Final[dict[str, bool | None]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_NUMERIC: Final = frozenset("+-.0123456789")


class _Frame:
    """A mapping or list whose items are being read."""

    __slots__ = ("items", "key", "key_place", "path")

    def __init__(self, items: dict[str, object] | list[object], path: KeyPath) -> None:
        self.items = items
        self.path = path
        self.key: str | None = None
        self.key_place: tuple[int, int]  # set together with the key


class _Stop(Exception):
    """Ends the parsing; the reason is in the report."""


def parse(text: str, report: Report) -> object:
    """Parse the file's only document into plain data.

    Problems go into ``report``, and the places of all values into ``report.places``. Returns None if the text cannot be
    read as YAML, or is empty.
    """
    builder = _Builder(report)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark
        line, column = mark.line + 1, mark.column + 1
        message = ", ".join(part for part in (error.problem, error.context) if part)
        report.add_at((), line, column, f"is not YAML: {message}", _hint(text, line, column))
        return None
    except yaml.reader.ReaderError as error:
        line, column = _place(text, int(error.position))
        report.add_at((), line, column, "is not YAML: it contains a control character")
        return None
    except _Stop:
        return None
    return builder.root


def _place(text: str, offset: int) -> tuple[int, int]:
    """Line and column, 1-based, of a byte offset in the text's UTF-8."""
    before = text.encode()[:offset].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _hint(text: str, line: int, column: int) -> str:
    """A hint for a YAML error, from the character at its place; "" if there is none."""
    found = "".join(text.split("\n")[line - 1 : line])[column - 1 : column]
    return {
        "\t": "indent with spaces, not with tabs",
        "%": "put text that starts with % in quotes",
        "@": "put text that starts with @ in quotes",
        "`": "put text that starts with ` in quotes",
    }.get(found, "")


class _Builder:
    """Builds plain data from YAML events and records the place of each value."""

    def __init__(self, report: Report) -> None:
        self.root: object = None
        self._report = report
        self._places = report.places
        self._stack: list[_Frame] = []
        self._documents = 0

    def take(self, event: Any) -> None:
        """Process the next event."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._scalar(event)
        elif kind is yaml.MappingStartEvent:
            self._open(event, {})
        elif kind is yaml.SequenceStartEvent:
            self._open(event, [])
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self._stack.pop()
        elif kind is yaml.AliasEvent:
            path = self._value(event, None)
            self._refuse(event, path, "refers to another place of the file (*alias)", "write the value out")
        elif kind is yaml.DocumentStartEvent:
            self._documents += 1
            if self._documents > 1:
                self._refuse(event, (), "starts a second document", "a registry is one document: remove the ---")
                raise _Stop

    def _scalar(self, event: Any) -> None:
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.key is None and type(frame.items) is dict:
            self._key(frame, event)
            return
        text: str = event.value
        if not event.implicit[0]:
            value: object = text
        elif text in _WORDS:
            value = _WORDS[text]
        elif text[0] in _NUMERIC:
            value = _number(text)
        else:
            value = text
        path = self._value(event, value)
        self._decorated(event, path)

    def _key(self, frame: _Frame, event: Any) -> None:
        mark = event.start_mark
        frame.key = key = str(event.value)
        frame.key_place = place = (mark.line + 1, mark.column + 1)
        self._decorated(event, (*frame.path, key))
        if key in frame.items:
            line, column = self._places[(*frame.path, key)][2:]
            message, hint = "is written twice", f"first in line {line}, column {column}"
            self._report.add_at((*frame.path, key), *place, message, hint, fatal=True)

    def _open(self, event: Any, items: dict[str, object] | list[object]) -> None:
        path = self._value(event, items)
        self._decorated(event, path)
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(event, path, f"is nested deeper than {MAX_DEPTH} levels")
            raise _Stop
        self._stack.append(_Frame(items, path))

    def _value(self, event: Any, value: object) -> KeyPath:
        """Add a value to the mapping or list being read and record its place; returns its path."""
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        if not self._stack:
            self.root = value
            self._places[()] = (line, column, line, column)
            return ()
        frame = self._stack[-1]
        items = frame.items
        path: KeyPath
        if type(items) is list:
            path = (*frame.path, len(items))
            items.append(value)
            self._places[path] = (line, column, line, column)
        elif frame.key is None:
            self._refuse(event, frame.path, "is a list or mapping used as a key", "keys are text")
            raise _Stop
        else:
            path = (*frame.path, frame.key)
            if type(items) is dict:
                items[frame.key] = value
            self._places[path] = (line, column, *frame.key_place)
            frame.key = None
        if len(self._places) > MAX_VALUES:
            self._refuse(event, (), f"has more than {MAX_VALUES:,} values")
            raise _Stop
        return path

    def _decorated(self, event: Any, path: KeyPath) -> None:
        """Report the event's anchor and tag, if it has any."""
        if event.anchor is not None:
            self._refuse(event, path, f"has an anchor (&{event.anchor[:63]})", "write the value out where it is needed")
        if event.tag is not None:
            self._refuse(event, path, f"has a tag ({event.tag[:63]})", "remove it; quotes make text")

    def _refuse(self, event: Any, path: KeyPath, message: str, hint: str = "") -> None:
        mark = event.start_mark
        self._report.add_at(path, mark.line + 1, mark.column + 1, message, hint, fatal=True)


def _number(text: str) -> object:
    """The number that the text is in YAML's core schema, if JSON can represent it; otherwise the text."""
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and any(sign in text for sign in ".eE"):
        number = float(text)
        return number if abs(number) < 1e300 else text
    return text
