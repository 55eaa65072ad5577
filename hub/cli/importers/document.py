"""Renders a clusters.yaml with comments, and remembers where each of its keys comes from.

The input is a tree of plain values, in which :class:`Noted` adds a comment above a key and names the variable that gave
its value. Rendering is deterministic; the output is YAML that the registry's loader reads.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hub.errors import HubError, Problem
from hub.registry.report import KeyPath, written

WIDTH: Final = 110
"""Columns of a comment."""

_PLAIN = re.compile(r"[A-Za-z/][-A-Za-z0-9_./]*")
_PLAIN_KEY = re.compile(r"[A-Za-z][-A-Za-z0-9_]*")
_ALSO_PLAIN = re.compile(r"(?!0x)[0-9][0-9.a-z]*[a-z]|[0-9.]+/[0-9]+")
"""Durations and IPv4 networks."""
_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Words that some YAML parsers do not read as text."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with a comment and its origin.

    Attributes:
        value: plain, or a tree.
        note: a comment above the key, in sentences.
        origin: the variable, annotation or option that it comes from.
    """

    value: Any
    note: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A rendered registry.

    Attributes:
        text: YAML.
        origins: path of a key, as messages write it -> origin of its value.
        tree: what was rendered.
        heading: the comment at the top, without how to run this text.
    """

    text: str
    origins: Mapping[str, str]
    tree: Mapping[str, Any]
    heading: str

    def error(self, problems: Sequence[Problem]) -> HubError:
        """The loader's problems in the user's terms: with the name of a variable instead of a line."""
        lines = dict.fromkeys(f"{self._origin(problem.path)}: {_problem_text(problem)}" for problem in problems)
        return HubError("; ".join(lines))

    def _origin(self, path: str) -> str:
        while path and path not in self.origins:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.origins.get(path, "environment")


def _problem_text(problem: Problem) -> str:
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def render(tree: Mapping[str, Any], heading: str = "", usage: str = "") -> Document:
    """The text of a tree; keys whose value is None are left out.

    Args:
        tree: the values.
        heading: a comment at the top.
        usage: how to run this text, below the heading.
    """
    origins: dict[str, str] = {}
    top = [*_comment(heading, ""), *_comment(usage, "")]
    body = list(_mapping(tree, "", (), origins))
    lines = [*top, *([""] if top and body[:1] != [""] else []), *body]
    return Document("\n".join(lines) + "\n", origins, tree, heading)


def plain(value: Any) -> Any:
    """A tree without comments and origins."""
    if isinstance(value, Noted):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def _mapping(tree: Mapping[str, Any], indent: str, path: KeyPath, origins: dict[str, str]) -> Iterator[str]:
    for key, item in tree.items():
        value, note = _unwrap(item, (*path, key), origins)
        if value is None:
            continue
        if not path and isinstance(value, (list, Mapping)) and value:
            yield ""
        yield from _comment(note, indent)
        name = _key(key)
        if _flat(value, (*path, key), origins):
            yield f"{indent}{name}: {_scalar(value)}"
        else:
            yield f"{indent}{name}:"
            yield from _nested(value, indent + "  ", (*path, key), origins)


def _nested(value: Any, indent: str, path: KeyPath, origins: dict[str, str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _mapping(value, indent, path, origins)
        return
    for index, item in enumerate(value):
        plain, note = _unwrap(item, (*path, index), origins)
        yield from _comment(note, indent)
        if _flat(plain, (*path, index), origins):
            yield f"{indent}- {_scalar(plain)}"
            continue
        lines = list(_nested(plain, indent + "  ", (*path, index), origins))
        first = next(number for number, line in enumerate(lines) if not line.lstrip().startswith("#"))
        yield from (f"{indent}{line.lstrip()}" for line in lines[:first])
        yield f"{indent}- {lines[first].lstrip()}"
        yield from lines[first + 1 :]


def _unwrap(item: Any, path: KeyPath, origins: dict[str, str]) -> tuple[Any, str]:
    if not isinstance(item, Noted):
        return item, ""
    if item.origin:
        origins[written(path)] = item.origin
    return item.value, item.note


def _flat(value: Any, path: KeyPath, origins: dict[str, str]) -> bool:
    """Whether a value is written on one line: a plain value, or a short mapping or list of plain values."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return True
    for key, item in items:
        if isinstance(item, Noted):
            if item.note or isinstance(item.value, (Mapping, list)):
                return False
            if item.origin:
                origins[written((*path, key))] = item.origin
        elif isinstance(item, Mapping) or (isinstance(item, list) and item):
            return False
    return len(_scalar(value)) < WIDTH - 20


def _scalar(value: Any) -> str:
    if isinstance(value, Noted):
        return _scalar(value.value)
    if isinstance(value, Mapping):
        inside = ((_key(key), item) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {_scalar(item)}" for key, item in inside if _scalar(item) != "null") + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    plain = isinstance(value, str) and (_PLAIN.fullmatch(value) or _ALSO_PLAIN.fullmatch(value))
    if plain and value.lower() not in _WORDS:
        return str(value)
    return _quoted(value)


def _quoted(value: Any) -> str:
    """The value as JSON, which is valid YAML; characters that do not print are escaped. Dates become text."""
    quoted = json.dumps(value, ensure_ascii=False, default=str)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS else _quoted(key)


def _comment(note: str, indent: str) -> list[str]:
    width = max(40, WIDTH - len(indent) - 2)
    return [
        f"{indent}# {line}".rstrip()
        for paragraph in note.splitlines()
        for line in (textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False) or [""])
    ]
