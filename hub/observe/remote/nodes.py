"""The Nodes of one remote cluster, as last completely known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from hub.kube.client import SILENCE_TIMEOUT
from hub.model import Node
from hub.runtime.clock import rfc3339

TOLD_LATE: Final = 5.0
"""Seconds a watch may be behind without it being worth a word; the API's timestamps are whole seconds."""
TOLD_LATEST: Final = SILENCE_TIMEOUT + 10.0
"""The most a watch can be behind: one that is silent for longer is given up, and the Nodes are listed anew."""


class NodeStore:
    """A reflector's store that keeps objects identical as long as they are equal.

    A heartbeat decodes to an equal Node: it changes nothing here and reaches nobody. Of a Node that has changed, what
    is as it was is the same object: endpoints and keys made of it live on, and would be in memory twice.

    A watch that stood still, because the network or the API server did, delivers its backlog in order: that a node
    is not Ready may arrive long after it is Ready again, with that event a moment behind. So the time a node is not
    Ready, as a watch tells it late, counts from its arrival (``ready_since`` is then that moment); a list tells how
    things are now, and what it says counts as it is.

    Args:
        on_change: called with (new or changed nodes, names gone), never with nothing.
        wall: Unix time now.

    Attributes:
        lists: complete lists so far.
        version: grows with every change.
    """

    def __init__(
        self, on_change: Callable[[Iterable[Node], Iterable[str]], None], wall: Callable[[], float] = time.time
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self.lists = 0
        self.version = 0
        self._on_change = on_change
        self._wall = wall
        self._told_late: dict[str, tuple[str, str]] = {}
        """Node -> ``ready_since`` as it was told, and the arrival that stands for it."""

    def replace(self, objects: dict[Any, Node], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list."""
        self.lists += 1
        self._told_late.clear()
        old = self.nodes
        self.nodes = {node.name: node for node in (_kept(old.get(name), each) for name, each in objects.items())}
        changed = [node for name, node in self.nodes.items() if old.get(name) is not node]
        gone = [name for name in old if name not in self.nodes]
        if changed or gone:
            self.version += 1
            self._on_change(changed, gone)

    def upsert(self, key: Any, value: Node, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """One node is new or changed."""
        before = self.nodes.get(key)
        value = _kept(before, self._as_told(key, value))
        if value is not before:
            self.nodes[key] = value
            self.version += 1
            self._on_change((value,), ())

    def delete(self, key: Any, value: Node, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """One node is gone."""
        self._told_late.pop(key, None)
        if self.nodes.pop(key, None) is not None:
            self.version += 1
            self._on_change((), (key,))

    def _as_told(self, key: str, node: Node) -> Node:
        """A Node of the watch, its ``ready_since`` not before the hub could know of it."""
        if node.ready == "True":
            self._told_late.pop(key, None)
            return node
        told, arrived = self._told_late.get(key, ("", ""))
        if told != node.ready_since or not told:
            self._told_late.pop(key, None)
            before = self.nodes.get(key)
            if before is None or before.ready != "True" or not self._is_late(node.ready_since):
                return node
            arrived = rfc3339(self._wall())
            self._told_late[key] = (node.ready_since, arrived)
        return msgspec.structs.replace(node, ready_since=arrived)

    def _is_late(self, since: str) -> bool:
        try:
            moment = datetime.fromisoformat(since)
            behind = self._wall() - moment.timestamp()
        except (ValueError, OverflowError):
            return False
        return moment.tzinfo is not None and TOLD_LATE < behind <= TOLD_LATEST


def _kept(old: Node | None, new: Node) -> Node:
    """``old`` where nothing has changed, else ``new`` with those fields of ``old`` that are equal."""
    if old is None:
        return new
    if old == new:
        return old
    fields = zip(msgspec.structs.astuple(old), msgspec.structs.astuple(new), strict=True)
    return Node(*[before if before == now else now for before, now in fields])
