"""Runs a provider type in the test's own event loop: for virtual time, and for simulations that repeat exactly."""

from __future__ import annotations

import asyncio
from types import FrameType


class SameLoop:
    """A :class:`hub.observe.providers.loops.LoopRunner` without a thread; create it inside the loop to use."""

    alive = False

    def __init__(self, _name: str) -> None:
        self.loop = asyncio.get_running_loop()

    def cpu(self) -> float:
        """0: it has no thread of its own."""
        return 0.0

    def stack(self) -> list[FrameType]:
        """Empty: it has no thread of its own."""
        return []

    def end(self) -> None:
        """Does nothing: the test owns the loop."""
