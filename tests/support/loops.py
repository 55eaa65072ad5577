"""A provider type's loop that is the test's own: for virtual time, and for simulations that must repeat exactly."""

from __future__ import annotations

import asyncio
from types import FrameType


class SameLoop:
    """A :class:`hub.observe.providers.loops.LoopRunner` without a thread; made inside the loop that it is to be."""

    alive = False

    def __init__(self, _name: str) -> None:
        self.loop = asyncio.get_running_loop()

    def cpu(self) -> float:
        """None of its own."""
        return 0.0

    def stack(self) -> list[FrameType]:
        """There is no thread to look at."""
        return []

    def end(self) -> None:
        """Whoever made the loop ends it."""
