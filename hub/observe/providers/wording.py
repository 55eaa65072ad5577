"""Says in the registry's words what pydantic and msgspec find wrong in a provider's configuration.

The libraries' own messages are written for programmers, and msgspec quotes wrong values of enumerations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from hub.plugin.config import schema

_TYPES: Final[Mapping[str, str]] = {
    "string": "text",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "array": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "object": "a mapping",
    "ip_any_address": "an IP address",
    "ip_any_network": "a network such as 10.7.0.0/16",
}
"""Types as the libraries name them -> what a user must write."""
_PHRASES: Final[Mapping[str, str]] = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "match pattern": "match the pattern",
    " matching regex ": " that matches the pattern ",
    " of length >": " with a length >",
    " of length <": " with a length <",
    " >= ": " of at least ",
    " <= ": " of at most ",
    " > ": " of more than ",
    " < ": " of less than ",
}
"""Phrases of the libraries' messages about limits -> our words."""
_MISSING: Final = "required key is missing"
_EMPTY: Final = "must not be empty"


def pydantic_words(kind: str, message: str) -> str:
    """The message for a finding of pydantic with this type and message."""
    if kind == "missing":
        return _MISSING
    if written := _TYPES.get(re.sub(r"_(type|parsing|from_float)$", "", kind)):
        return f"must be {written}"
    said = re.fullmatch(r"[A-Z][a-z]+ should (.*?)(?: after validation.*)?", message)
    if said is None:  # the plugin's own words
        return message.removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    return _EMPTY if said[1].startswith("have at least 1 ") else f"must {_reworded(said[1])}"


def msgspec_words(model: Any, message: str) -> tuple[str, str]:
    """The key's path (such as ``.families[0]``; "" = the whole) and the message for an error of msgspec."""
    text, _, place = message.partition(" - at `$")
    place = place.rstrip("`")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"{place}.{missing[1]}", _MISSING
    if text.startswith("Invalid enum value"):
        return place, f"must be {_choices(schema(model), place)}"
    expected = re.fullmatch(r"Expected `([^`]+)`(.*?)(?:, got .*)?", text)
    if expected is None:  # the plugin's own words
        return place, text
    types, limit = expected.groups()
    if limit == " of length >= 1":
        return place, _EMPTY
    written = " or ".join(_TYPES.get(type_, type_) for type_ in types.split(" | ") if type_ != "null")
    return place, f"must be {written}{_reworded(limit)}"


def _reworded(text: str) -> str:
    for said, words in _PHRASES.items():
        text = text.replace(said, words)
    return text


def _choices(whole: Mapping[str, Any], place: str) -> str:
    """The values that a JSON Schema allows at a path."""
    node: Any = whole
    for name in re.findall(r"\.([^.\[]+)|\[", place):  # "" for an index
        node = node.get("properties", {}).get(name, {}) if name else node.get("items", {})
        while options := node.get("anyOf", ()):
            node = options[0]
        if "$ref" in node:
            node = whole["$defs"][node["$ref"].rpartition("/")[2]]
    *others, last = map(str, node.get("enum") or ["one of the allowed values"])
    return f"{', '.join(others)} or {last}" if others else last
