"""Sends changes to open status pages: once a second, the same event to all of them.

Nothing runs while no page is open. A reader that does not keep up is dropped; its page reconnects and reloads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

log = logging.getLogger(__name__)

PACE: Final = 1.0
"""Seconds between events."""
MAX_WAITING: Final = 4
"""Most events that wait for one reader."""
READERS: Final = 256
"""Most open pages; further ones get 503 with Retry-After."""


class Reader:
    """One open page."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING + 1)
        """Events to send; None = the stream ends."""

    def end(self) -> None:
        """End the stream without sending the events that still wait."""
        with suppress(asyncio.QueueEmpty):
            while True:
                self.events.get_nowait()
        self.events.put_nowait(None)


class Broadcaster:
    """Sends events to all readers.

    Args:
        next_event: returns the next event, b"" if nothing changed.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self, next_event: Callable[[], Awaitable[bytes]], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._next_event = next_event
        self._sleep = sleep
        self._readers: set[Reader] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def full(self) -> bool:
        """Whether no further reader is accepted."""
        return len(self._readers) >= READERS

    def join(self) -> Reader:
        """Add a reader, which gets all events from now on."""
        reader = Reader()
        self._readers.add(reader)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="live pages")
        return reader

    def leave(self, reader: Reader) -> None:
        """Remove a reader."""
        self._readers.discard(reader)

    async def close(self) -> None:
        """End all streams."""
        for reader in self._readers:
            reader.end()
        self._readers.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._readers:
            try:
                event = await self._next_event()
            except Exception:
                log.exception("open status pages are not updated")
                event = b""
            if event:
                self._broadcast(event)
            await self._sleep(PACE)

    def _broadcast(self, event: bytes) -> None:
        for reader in list(self._readers):
            if reader.events.qsize() >= MAX_WAITING:
                self._readers.discard(reader)
                reader.end()
            else:
                reader.events.put_nowait(event)
