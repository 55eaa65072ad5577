"""Open pages stay current: one look a second for all of them, and what changed goes to each.

Nothing runs while no page is open. An event is made once, whoever reads it; a reader that does not keep up is
dropped, and its page reads everything anew when it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

log = logging.getLogger(__name__)

PACE: Final = 1.0
"""Seconds between looks."""
BEHIND: Final = 4
"""Events that may wait for one reader."""
READERS: Final = 256
"""Open pages; more are told to come back later."""


class Reader:
    """One open page."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND + 1)
        """None: it is over."""

    def end(self) -> None:
        """No more events; what waits is not worth sending."""
        with suppress(asyncio.QueueEmpty):
            while True:
                self.events.get_nowait()
        self.events.put_nowait(None)


class Broadcaster:
    """Tells readers what changed.

    Args:
        look: the next event, b"" where nothing changed.
        sleep: waits so many seconds.
    """

    def __init__(
        self, look: Callable[[], Awaitable[bytes]], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._look = look
        self._sleep = sleep
        self._readers: set[Reader] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def full(self) -> bool:
        """No more readers are taken."""
        return len(self._readers) >= READERS

    def join(self) -> Reader:
        """A new reader; it hears of what changes from now on."""
        reader = Reader()
        self._readers.add(reader)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="live pages")
        return reader

    def leave(self, reader: Reader) -> None:
        """A reader has gone."""
        self._readers.discard(reader)

    async def close(self) -> None:
        """Everybody goes."""
        for each in self._readers:
            each.end()
        self._readers.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._readers:
            try:
                event = await self._look()
            except Exception:
                log.exception("open pages cannot be told what changed")
                event = b""
            if event:
                self._tell(event)
            await self._sleep(PACE)

    def _tell(self, event: bytes) -> None:
        for each in list(self._readers):
            if each.events.qsize() >= BEHIND:
                self._readers.discard(each)
                each.end()
            else:
                each.events.put_nowait(event)
