"""Serves a provider's fake in a thread, for blocking tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Self, TypeVar

F = TypeVar("F")
T = TypeVar("T")


class FakeThread(Generic[F]):
    """A context manager.

    Args:
        make: makes the fake; called in the thread's loop.

    Attributes:
        fake: tests read it; :meth:`call` changes it.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[F]]) -> None:
        self._make = make
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fake")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def call(self, work: Callable[[], T]) -> T:
        """The result of a function that is called in the fake's thread."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._make() as self.fake:
            self._started.set()
            await self._stop.wait()
