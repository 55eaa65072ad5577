"""The fake of Google Cloud for blocking tests."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from hub_provider_gcp.testing import GcpFake


class GcpThread:
    """Serves a :class:`GcpFake` in a thread; a context manager.

    Attributes:
        fake: tests read its log and cloud, and change its ``cloud`` by single assignments and calls.
    """

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fake of Google Cloud")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def fail(self, fault: str) -> None:
        """Make every request fail until :meth:`heal`."""
        self._loop.call_soon_threadsafe(lambda: self.fake.fail(fault, times=None))

    def heal(self) -> None:
        """End all faults."""
        self._loop.call_soon_threadsafe(self.fake.heal)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with GcpFake() as self.fake:
            self._started.set()
            await self._stop.wait()
