"""Adds a cluster's entry to the text of clusters.yaml, or removes it; comments and order stay. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from hub.errors import UsageError


class NotHere(UsageError):
    """The text must be edited by hand; the message says where."""


def entry(name: str, networks: Sequence[str], provider: str, services: Sequence[str] = ()) -> str:
    """The item of ``clusters:`` as YAML, not indented."""
    known = ", ".join(map(_scalar, networks))
    missing = "" if networks else "   # required: the networks of its nodes"
    also = f"   # its account may read Services in {', '.join(services)}" if services else ""
    return (
        f"- name: {_scalar(name)}\n"
        f"  kubeconfig: {{secret: {_scalar(name)}}}{also}\n"
        f"  allowedCIDRs: [{known}]{missing}\n"
        f"  provider: {{name: {provider}}}\n"
    )


def _scalar(text: str) -> str:
    """Text as YAML, in quotes if it would be read as something else: ``on``, ``null``, ``1e3``."""
    return text if ":" not in text and yaml.safe_load(text) == text else json.dumps(text)


def names(text: str) -> dict[str, dict[str, Any]]:
    """The clusters of a registry by name, as written; entries that are not mappings are left out.

    Every value is its text: ``no`` is one for the hub, and what looks like a date need not be one.
    """
    data = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - only texts, lists, mappings  # nosec B506
    clusters = data.get("clusters") if isinstance(data, dict) else None
    found = [cluster for cluster in clusters if isinstance(cluster, dict)] if isinstance(clusters, list) else []
    return {str(cluster.get("name")): cluster for cluster in found}


def line_of(text: str, name: str) -> int:
    """The line of a cluster's entry, 1-based; 0 if there is none."""
    _, sequence = _clusters(text)
    item = _item(sequence, name) if isinstance(sequence, yaml.SequenceNode) else None
    return item.start_mark.line + 1 if item is not None else 0


def added(text: str, item: str) -> str:
    """The text with one more cluster, behind the last one.

    Raises:
        NotHere: the list of clusters is not written one to a line.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    _, sequence = _clusters(text)
    if sequence is None:
        return "".join([*lines, "clusters:\n", _indented(item, 2)])
    if not isinstance(sequence, yaml.SequenceNode) or sequence.flow_style or not sequence.value:
        raise NotHere(f"line {sequence.start_mark.line + 1}: clusters is not a list with one entry below the other")
    behind = _last_line(sequence) + 1
    return "".join([*lines[:behind], _indented(item, sequence.start_mark.column), *lines[behind:]])


def removed(text: str, name: str) -> str:
    """The text without a cluster, and without the list if it was the only one; comments above it stay.

    Raises:
        NotHere: it is not there, or not in lines of its own.
    """
    line, sequence = _clusters(text)
    if not isinstance(sequence, yaml.SequenceNode) or sequence.flow_style:
        raise NotHere("clusters is not a list with one entry below the other")
    item = _item(sequence, name)
    lines = text.splitlines(keepends=True)
    if item is None or not lines[item.start_mark.line].lstrip().startswith("-"):
        raise NotHere(f"cluster {name} has no lines of its own")
    rest = [*lines[: item.start_mark.line], *lines[_last_line(item) + 1 :]]
    if len(sequence.value) == 1:
        del rest[line]  # a key without a value costs the whole file
    return "".join(rest)


def _clusters(text: str) -> tuple[int, yaml.Node | None]:
    """The line of the key, 0-based, and its value; None if there is none."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    return next(((key.start_mark.line, value) for key, value in pairs if key.value == "clusters"), (0, None))


def _item(sequence: yaml.SequenceNode, name: str) -> yaml.MappingNode | None:
    for item in sequence.value:
        if isinstance(item, yaml.MappingNode):
            for key, value in item.value:
                if key.value == "name" and value.value == name:
                    return item
    return None


def _last_line(node: yaml.Node) -> int:
    """The last line with content of a node, 0-based; YAML reports the start of the next node as its end."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    mark = node.end_mark
    return int(mark.line if mark.column else mark.line - 1)


def _indented(item: str, columns: int) -> str:
    return "".join(" " * columns + line for line in item.splitlines(keepends=True))
