"""Notices that another writer undoes the hub's writes to Nodes, so that the hub does not fight with it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from hub.controller.nodes import Change

REPEATS: Final = 3
WINDOW: Final = 600.0
"""Most times that the same write is made to one Node within so many seconds."""


class Undone:
    """Remembers the last writes to Nodes."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], tuple[Hashable, list[float]]] = {}

    def made(self, node: str, change: Change, now: float) -> None:
        """Note a write. Another target of the same aspect begins a new count: the hub itself changed its mind."""
        key = node, change.aspect
        target, times = self._made.get(key, (None, []))
        recent = [at for at in times if now - at < WINDOW] if target == change.target else []
        self._made[key] = change.target, [*recent, now]

    def wait(self, node: str, change: Change, now: float) -> float:
        """Seconds for which a write is not made again because it was undone too often; 0 if it may be made."""
        target, times = self._made.get((node, change.aspect), (None, []))
        if target != change.target or len(times) < REPEATS:
            return 0.0
        return max(0.0, times[-REPEATS] + WINDOW - now)

    def forget(self, node: str) -> None:
        """The Node is gone."""
        for key in [key for key in self._made if key[0] == node]:
            del self._made[key]
