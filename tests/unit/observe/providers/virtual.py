"""An event loop whose time jumps to the next timer when there is nothing else to do.

Hours pass in milliseconds, so deadlines of 30 s can be tested unchanged. Not for tests with threads, processes or
sockets: time would jump past them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """A selector that advances the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("nothing will ever happen: the test waits for something nobody does")
        if not ready and timeout is not None:
            self.time += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with the time of its selector."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.time


class LoopClock:
    """A Clock with the time of the running loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Await ``work``, which must end within ``seconds``."""
    async with asyncio.timeout(seconds):
        return await work


def anything(*_: Any, **__: Any) -> None:
    """A callback that does nothing."""
