"""The three kinds of patch: merge (RFC 7386), strategic merge, JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from typing import Any, TypeGuard, cast

from hub_testkit.simulator.answers import Refusal

Json = dict[str, Any]

MERGE_KEYS = {"conditions": "type", "addresses": "type", "ownerReferences": "uid", "ports": "port"}
"""Lists that a strategic merge patch merges item by item, with the key; other lists are replaced. Kinds in which such a
list is atomic (EndpointSlice ports) are patched with :func:`merge`."""


def merge(target: Any, patch: Any) -> Any:
    """Applies a merge patch (RFC 7386): null removes a field, lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    result = _copied(target)
    for key, value in cast("Json", patch).items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any, key: str = "") -> Any:
    """Applies a strategic merge patch: like a merge patch, but merges the lists in :data:`MERGE_KEYS` by their keys."""
    if isinstance(patch, list) and key in MERGE_KEYS and isinstance(target, list):
        return _merge_list(cast("list[Json]", target), cast("list[Json]", patch), MERGE_KEYS[key])
    if not isinstance(patch, dict):
        return cast("Any", patch)
    result = _copied(target)
    for name, value in cast("Json", patch).items():
        if name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
        else:
            result[name] = strategic(result.get(name), value, name)
    return result


def _copied(target: Any) -> Json:
    return dict(cast("Json", target)) if isinstance(target, dict) else {}


def _merge_list(target: list[Json], patch: list[Json], key: str) -> list[Json]:
    result = list(target)
    for item in patch:
        at = next((n for n, old in enumerate(result) if old.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(item)
        else:
            result[at] = strategic(result[at], item)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Applies add, remove, replace and test of a JSON patch (RFC 6902).

    Raises:
        Refusal: 400 if it is not a patch, 422 if it does not fit the object.
    """
    if not isinstance(operations, list):
        raise Refusal(400, "error decoding patch: a list of operations was expected")
    result = copy.deepcopy(target)
    for operation in cast("list[Json]", operations):
        try:
            _apply(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise Refusal(422, "the server rejected our request due to an error in our request", details={}) from error
    return result


def _apply(target: Any, operation: Json) -> None:
    action, value = operation["op"], operation.get("value")
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    for part in parents:
        target = target[_place(target, part)]
    if action == "add" and _is_list(target):
        target.insert(len(target) if last == "-" else int(last), value)
        return
    # ``target`` is a dict or a list; both take ``place`` in brackets.
    place, container = _place(target, last), cast("Json", target)
    if action != "add":
        old = container[place]
        if action == "test" and old != value:
            raise ValueError("test failed")
    if action == "remove":
        del container[place]
    elif action in ("add", "replace"):
        container[place] = value
    elif action != "test":
        raise ValueError(f"unknown operation {action}")


def _place(target: Any, part: str) -> Any:
    return int(part) if _is_list(target) else part


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
