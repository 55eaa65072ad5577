"""Parses the YAML of a kubeconfig strictly: plain values only, with the line of each key, within limits.

Aliases, tags, merge keys and duplicate keys are refused: they can make a small document large, or mean something else
to another parser. No message quotes the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn

import yaml

from hub.errors import KubeconfigError

MAX_BYTES: Final = 1 << 20
"""The largest document, in bytes. A kubeconfig of 100 contexts has 0.6 MB."""

MAX_DEPTH: Final = 32
"""The deepest nesting of values; no field of a kubeconfig needs nearly as much."""

MAX_NODES: Final = 20_000
"""The largest number of values. 100 contexts have 3,000; 1 MiB of tiny values would block the event loop for 1 s."""


class Map(dict[str, Any]):
    """A mapping with the line of each key."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def parse_yaml(data: bytes, origin: str) -> Any:
    """Parse one YAML document from parser events, so that an alias is refused before it is expanded.

    Returns:
        Plain values, with a :class:`Map` for each mapping; None for an empty document.

    Raises:
        KubeconfigError: the document is not valid YAML, holds more than plain values, or exceeds a limit. The message
            names the position and never quotes the document.
    """
    if len(data) > MAX_BYTES:
        raise KubeconfigError(f"{origin}: larger than {MAX_BYTES} bytes; keep one cluster's contexts in a file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KubeconfigError(f"{origin}: not UTF-8 text; save it as UTF-8") from None
    try:
        return _Parser(text, origin).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise KubeconfigError(f"{origin}{place}: not valid YAML; check indentation and quotes there") from None
    except yaml.YAMLError:
        raise KubeconfigError(f"{origin}: not valid YAML: it holds characters that YAML does not allow") from None


class _Parser:
    """Builds plain values from parser events and refuses all other YAML features."""

    def __init__(self, text: str, origin: str) -> None:
        self._events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=yaml.CSafeLoader))
        self._origin = origin
        self._resolver = yaml.resolver.Resolver()
        self._nodes = 0

    def document(self) -> Any:
        """The value of the only document; None for an empty stream."""
        result: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second YAML document; keep one kubeconfig in a file")
            elif isinstance(event, yaml.NodeEvent):
                result = self._value(event, 0)
        return result

    def _value(self, event: yaml.Event, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(event, "YAML anchors and aliases are not accepted; write the value out")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, "YAML tags are not accepted; remove the one starting with an exclamation mark")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._refuse(event, f"more than {MAX_NODES} values; keep one cluster's contexts in a file")
        if depth > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth)
        assert isinstance(event, yaml.ScalarEvent)  # noqa: S101 - the only remaining kind of node
        text: str = event.value
        plain: bool = event.implicit[0]
        return self._plain(text) if plain else text

    def _mapping(self, depth: int) -> Map:
        result = Map()
        for key in self._events:
            if isinstance(key, yaml.MappingEndEvent):
                break
            self._value(key, depth + 1)  # only for its checks: keys may not be aliases or have tags either
            if not isinstance(key, yaml.ScalarEvent):
                self._refuse(key, "a key that is not text")
            name = key.value
            if name in result.lines:
                self._refuse(key, "a key is written twice; keep one")
            if name == "<<" and key.implicit[0]:
                self._refuse(key, "YAML merge keys are not accepted; write the values out")
            result.lines[name] = _line(key)
            result[name] = self._value(next(self._events), depth + 1)
        return result

    def _sequence(self, depth: int) -> list[Any]:
        result: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            result.append(self._value(event, depth + 1))
        return result

    def _plain(self, text: str) -> object:
        """The value of an unquoted scalar: None, a bool or a JSON number; any other scalar stays text."""
        tag: str = self._resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        if tag.endswith(":null"):
            return None
        if tag.endswith(":bool"):
            return text.lower() in ("true", "yes", "on")
        if tag.endswith((":int", ":float")):
            with suppress(ValueError):
                return json.loads(text)
        return text

    def _refuse(self, event: yaml.Event, problem: str) -> NoReturn:
        raise KubeconfigError(f"{self._origin}:{_line(event)}: {problem}")


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None  # noqa: S101 - the parser has set it
    return event.start_mark.line + 1
