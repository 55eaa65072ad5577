"""Applies a JSON Patch (RFC 6902) as an API server does, for tests without one: add, remove, replace and test."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


class TestFailed(Exception):
    """An operation cannot be applied, or its test fails; an API server answers 422."""

    __test__ = False


def patched(document: Any, patch: Iterable[Mapping[str, Any]]) -> Any:
    """The document after all operations, which is a copy.

    Raises:
        TestFailed: an operation failed.
    """
    found = copy.deepcopy(document)
    for operation in patch:
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        holder = found
        try:
            for part in parents:
                holder = holder[int(part) if isinstance(holder, list) else part]
            _apply(holder, last, operation)
        except (KeyError, IndexError) as error:
            raise TestFailed(f"{operation['path']}: {error}") from error
    return found


def _apply(holder: Any, last: str, operation: Mapping[str, Any]) -> None:
    kind, value = operation["op"], operation.get("value")
    key: Any = last
    if isinstance(holder, list):
        key = len(holder) if last == "-" else int(last)
    if kind == "test":
        there = holder.get(key) if isinstance(holder, dict) else holder[key]
        if there != value:
            raise TestFailed(f"{operation['path']} is {there!r}")
    elif kind == "remove":
        del holder[key]
    elif kind == "add" and isinstance(holder, list):
        holder.insert(key, value)
    else:
        if kind == "replace" and key not in holder:
            raise TestFailed(f"{operation['path']} is missing")
        holder[key] = value
