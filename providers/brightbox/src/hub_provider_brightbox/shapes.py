"""Reads parts of the API's objects, whose fields may have any type."""

from __future__ import annotations

from typing import Any, cast

Object = dict[str, Any]


def as_object(value: object) -> Object:
    """The value if it is an object, else {}."""
    return cast("Object", value) if isinstance(value, dict) else {}


def as_objects(value: object) -> list[Object]:
    """The objects in a list; [] for anything else."""
    return [as_object(item) for item in cast("list[object]", value) if item] if isinstance(value, list) else []


def part_id(each: Object, key: str) -> str:
    """The id of an object that another one names; "" if it names none."""
    return str(as_object(each.get(key)).get("id") or "")


def ids(each: Object | None, key: str) -> set[str]:
    """The ids of the objects in a list."""
    return {str(item.get("id")) for item in as_objects((each or {}).get(key))}
