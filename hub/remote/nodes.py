"""The Nodes of one remote cluster, as last completely known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hub.model import Node


class NodeStore:
    """A reflector's store that keeps objects identical as long as they are equal.

    A heartbeat decodes to an equal Node: it changes nothing here and reaches nobody.

    Args:
        on_change: called with (new or changed nodes, names gone), never with nothing.

    Attributes:
        lists: complete lists so far.
        version: grows with every change.
    """

    def __init__(self, on_change: Callable[[Iterable[Node], Iterable[str]], None]) -> None:
        self.nodes: dict[str, Node] = {}
        self.lists = 0
        self.version = 0
        self._on_change = on_change

    def replace(self, objects: dict[Any, Node], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list."""
        self.lists += 1
        old = self.nodes
        self.nodes = {name: kept if (kept := old.get(name)) == node else node for name, node in objects.items()}
        changed = [node for name, node in self.nodes.items() if old.get(name) is not node]
        gone = [name for name in old if name not in self.nodes]
        if changed or gone:
            self.version += 1
            self._on_change(changed, gone)

    def upsert(self, key: Any, value: Node, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """One node is new or changed."""
        if self.nodes.get(key) != value:
            self.nodes[key] = value
            self.version += 1
            self._on_change((value,), ())

    def delete(self, key: Any, value: Node, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """One node is gone."""
        if self.nodes.pop(key, None) is not None:
            self.version += 1
            self._on_change((), (key,))
