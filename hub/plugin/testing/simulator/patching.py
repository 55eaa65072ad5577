"""The three kinds of patch: merge (RFC 7386), strategic merge for the lists that matter, JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from typing import Any

from hub.plugin.testing.simulator.answers import Refusal

MERGE_KEYS = {"conditions": "type", "addresses": "type", "ownerReferences": "uid", "ports": "port"}
"""Lists that a strategic merge patch merges item by item, and by which key; every other list is replaced. Kinds whose
list of such a name is atomic (EndpointSlice ports) are patched with :func:`merge`."""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any, key: str = "") -> Any:
    """A merge patch that merges the lists of :data:`MERGE_KEYS` by their keys."""
    if isinstance(patch, list) and key in MERGE_KEYS and isinstance(target, list):
        return _merge_list(target, patch, MERGE_KEYS[key])
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
        else:
            result[name] = strategic(result.get(name), value, name)
    return result


def _merge_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
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
    """RFC 6902's add, remove, replace and test.

    Raises:
        Refusal: 400 for what is not a patch, 422 for one that does not fit the object.
    """
    if not isinstance(operations, list):
        raise Refusal(400, "error decoding patch: a list of operations was expected")
    result = copy.deepcopy(target)
    for operation in operations:
        try:
            _apply(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise Refusal(422, "the server rejected our request due to an error in our request", details={}) from error
    return result


def _apply(target: Any, operation: dict[str, Any]) -> None:
    action = operation["op"]
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target[part]
    if isinstance(target, list):
        if action == "add":
            target.insert(len(target) if last == "-" else int(last), operation["value"])
            return
        place: Any = int(last)
    else:
        place = last
    if action == "remove":
        del target[place]
    elif action == "test":
        if target[place] != operation["value"]:
            raise ValueError("test failed")
    elif action in ("add", "replace"):
        if action == "replace":
            _ = target[place]
        target[place] = operation["value"]
    else:
        raise ValueError(f"unknown operation {action}")
