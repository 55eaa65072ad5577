"""An event loop whose time jumps to the next timer when there is nothing else to do.

Hours pass in milliseconds, so deadlines of 30 s can be tested unchanged. While a call of ``run_in_executor`` runs, time
stands still, for at most ``PATIENCE``. Not for tests with other threads, processes or sockets: time would jump past
them.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from asyncio import Future
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 2.0
"""Real seconds; a call in a thread that takes longer hangs on purpose."""


class _JumpingSelector(selectors.SelectSelector):
    """A selector that advances the time instead of waiting."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.time = start
        self.threads: dict[Future[Any], float] = {}
        """Call in a thread -> the real time until which it is waited for."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The end of a call in a thread wakes the selector.
        patience = max(self.threads.values(), default=0.0) - time.monotonic()
        ready = super().select(0.0 if timeout == 0 else max(0.0, patience))
        if not ready and timeout is None:
            raise AssertionError("nothing will ever happen: the test waits for something nobody does")
        if not ready and timeout is not None:
            self.time += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with the time of its selector."""

    def __init__(self, start: float = 1000.0) -> None:
        self._jumping = _JumpingSelector(start)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.time

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> Future[T]:
        made = super().run_in_executor(executor, func, *args)
        self._jumping.threads[made] = time.monotonic() + PATIENCE
        made.add_done_callback(lambda done: self._jumping.threads.pop(done))
        return made


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
