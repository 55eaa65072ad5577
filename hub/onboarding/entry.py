"""Adds a cluster's entry to the text of clusters.yaml or removes it; keeps comments and order. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from hub.errors import HubError


class UnsupportedLayout(HubError):
    """The layout of the text is not supported, so the user must edit it; the message says where."""


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
    """Text as YAML; quoted if a YAML parser would read anything but this text (``on``, ``null``, ``1e3``)."""
    return text if ":" not in text and yaml.safe_load(text) == text else json.dumps(text)


def by_name(text: str) -> dict[str, dict[str, Any]]:
    """The clusters of a registry by name, as written; entries that are not mappings are left out.

    All scalars are text. A YAML 1.1 parser would turn ``no`` into a boolean and some texts into dates.
    """
    data = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes only texts, lists and mappings  # nosec B506
    clusters = data.get("clusters") if isinstance(data, dict) else None
    found = [cluster for cluster in clusters if isinstance(cluster, dict)] if isinstance(clusters, list) else []
    return {str(cluster.get("name")): cluster for cluster in found}


def line_of(text: str, name: str) -> int:
    """The line of a cluster's entry, 1-based; 0 if there is none."""
    _, sequence = _clusters(text)
    item = _item(sequence, name) if isinstance(sequence, yaml.SequenceNode) else None
    return item.start_mark.line + 1 if item is not None else 0


def with_item(text: str, item: str) -> str:
    """The text with one more cluster, after the last one.

    Raises:
        UnsupportedLayout: ``clusters`` is not a block list (one ``-`` entry below the other).
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    _, sequence = _clusters(text)
    if sequence is None:
        return "".join([*lines, "clusters:\n", _indented(item, 2)])
    if not isinstance(sequence, yaml.SequenceNode) or sequence.flow_style or not sequence.value:
        line = sequence.start_mark.line + 1
        raise UnsupportedLayout(f"line {line}: clusters is not a list with one entry below the other")
    behind = _last_line(sequence) + 1
    return "".join([*lines[:behind], _indented(item, sequence.start_mark.column), *lines[behind:]])


def without_item(text: str, name: str) -> str:
    """The text without a cluster; if it was the only one, also without the key ``clusters``.

    Comments above the entry stay.

    Raises:
        UnsupportedLayout: the cluster is not in the text, or its entry shares lines with something else.
    """
    line, sequence = _clusters(text)
    if not isinstance(sequence, yaml.SequenceNode) or sequence.flow_style:
        raise UnsupportedLayout("clusters is not a list with one entry below the other")
    item = _item(sequence, name)
    lines = text.splitlines(keepends=True)
    if item is None or not lines[item.start_mark.line].lstrip().startswith("-"):
        raise UnsupportedLayout(f"cluster {name} has no lines of its own")
    rest = [*lines[: item.start_mark.line], *lines[_last_line(item) + 1 :]]
    if len(sequence.value) == 1:
        del rest[line]  # the hub rejects a file with a key without a value
    return "".join(rest)


def _clusters(text: str) -> tuple[int, yaml.Node | None]:
    """The 0-based line of the key ``clusters``, and its value; (0, None) if the text lacks the key."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else ()
    return next(((key.start_mark.line, value) for key, value in pairs if key.value == "clusters"), (0, None))


def _item(sequence: yaml.SequenceNode, name: str) -> yaml.MappingNode | None:
    """The entry of the cluster with this name; None if there is none."""
    for item in sequence.value:
        if isinstance(item, yaml.MappingNode):
            for key, value in item.value:
                if key.value == "name" and value.value == name:
                    return item
    return None


def _last_line(node: yaml.Node) -> int:
    """The 0-based last line with content of a node; PyYAML reports the start of the next node as the end of a block."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    mark = node.end_mark
    return int(mark.line if mark.column else mark.line - 1)


def _indented(item: str, columns: int) -> str:
    return "".join(" " * columns + line for line in item.splitlines(keepends=True))
