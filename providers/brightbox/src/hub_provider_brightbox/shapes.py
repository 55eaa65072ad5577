"""Reads parts of the API's objects, whose fields may have any type."""

from __future__ import annotations

from typing import Any, TypeGuard

Object = dict[str, Any]


def _is_object(value: object) -> TypeGuard[Object]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is a list."""
    return isinstance(value, list)


def as_object(value: object) -> Object:
    """The value if it is an object, else {}."""
    return value if _is_object(value) else {}


def as_list(value: object) -> list[Any]:
    """The value if it is a list, else []."""
    return value if is_list(value) else []


def as_objects(value: object) -> list[Object]:
    """The objects in a list; [] for anything else."""
    return [found for item in as_list(value) if (found := as_object(item))]


def part_id(each: Object, key: str) -> str:
    """The id of an object that another one names; "" if it names none."""
    return str(as_object(each.get(key)).get("id") or "")


def ids(each: Object | None, key: str) -> set[str]:
    """The ids of the objects in a list."""
    return {str(item.get("id")) for item in as_objects((each or {}).get(key))}
