"""Stores the Nodes of one remote cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from hub.kube.client import SILENCE_TIMEOUT
from hub.model import Node
from hub.runtime.clock import rfc3339

LATE_AFTER: Final = 5.0
"""Seconds by which a watch event may lag without being late. The API's timestamps are whole seconds."""
LATEST: Final = SILENCE_TIMEOUT + 10.0
"""Maximum seconds by which a watch event can lag: the hub ends a watch that is silent for longer, and lists the
Nodes."""


class NodeStore:
    """A reflector's store that keeps the old object while the new one is equal.

    A kubelet heartbeat decodes to an equal Node: nothing changes, and ``on_change`` is not called. A changed Node
    shares its equal fields with the old one, since endpoints refer to them and they would be in memory twice.

    A watch that hung delivers its backlog in order: "not Ready" may arrive long after the node became Ready again,
    followed at once by "Ready". If an event with "not Ready" is late, ``ready_since`` is therefore set to its arrival,
    so that the grace period starts then. A list is current, so its ``ready_since`` is used unchanged.

    Args:
        on_change: called with (new or changed nodes, names of deleted nodes), at least one of them not empty.
        wall: returns the Unix time.

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
        self._late: dict[str, tuple[str, str]] = {}
        """Node name -> ``ready_since`` of a late event, and the time of arrival that replaces it."""

    def replace(self, objects: dict[Any, Node], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a complete list."""
        self.lists += 1
        self._late.clear()
        old = self.nodes
        self.nodes = {node.name: node for node in (_kept(old.get(name), new) for name, new in objects.items())}
        changed = [node for name, node in self.nodes.items() if old.get(name) is not node]
        gone = [name for name in old if name not in self.nodes]
        if changed or gone:
            self.version += 1
            self._on_change(changed, gone)

    def upsert(self, key: Any, value: Node, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: a node is new or changed."""
        before = self.nodes.get(key)
        value = _kept(before, self._corrected(key, value))
        if value is not before:
            self.nodes[key] = value
            self.version += 1
            self._on_change((value,), ())

    def delete(self, key: Any, value: Node, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: a node was deleted."""
        self._late.pop(key, None)
        if self.nodes.pop(key, None) is not None:
            self.version += 1
            self._on_change((), (key,))

    def _corrected(self, key: str, node: Node) -> Node:
        """The Node of a watch event; if the event was late, ``ready_since`` is the time of its arrival."""
        if node.ready == "True":
            self._late.pop(key, None)
            return node
        since, arrived = self._late.get(key, ("", ""))
        if since != node.ready_since or not since:
            self._late.pop(key, None)
            before = self.nodes.get(key)
            if before is None or before.ready != "True" or not self._is_late(node.ready_since):
                return node
            arrived = rfc3339(self._wall())
            self._late[key] = (node.ready_since, arrived)
        return msgspec.structs.replace(node, ready_since=arrived)

    def _is_late(self, since: str) -> bool:
        try:
            moment = datetime.fromisoformat(since)
            behind = self._wall() - moment.timestamp()
        except (ValueError, OverflowError):
            return False
        return moment.tzinfo is not None and LATE_AFTER < behind <= LATEST


def _kept(old: Node | None, new: Node) -> Node:
    """``old`` if both are equal, else ``new`` with the equal fields taken from ``old``."""
    if old is None:
        return new
    if old == new:
        return old
    fields = zip(msgspec.structs.astuple(old), msgspec.structs.astuple(new), strict=True)
    return Node(*[before if before == now else now for before, now in fields])
