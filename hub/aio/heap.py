"""Returns to the system what malloc keeps of memory that nobody uses any more.

glibc gives back only what lies at the end of its heap. What a long list needed while it was read lies in between: a hub
would stay as large as it ever was for a moment. Asking for it takes a millisecond or a few, in a thread; what is needed
again later costs page faults again.

It also gives each thread an arena of its own, so that none waits for another; Python's threads do that anyway.
What one of them has freed, a page of metrics or a file's content, serves none of the others, and each arena finds its
size for itself, over hours.

https://man7.org/linux/man-pages/man3/malloc_trim.3.html, https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ctypes

EVERY: Final = 60.0
"""Seconds."""
M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""


@asynccontextmanager
async def trimming(every: float = EVERY) -> AsyncIterator[None]:
    """Give back what is free every so often, while the context is open; it belongs to whoever runs the process.

    Threads that begin from now on share the arenas there are, and go on doing so afterwards.
    """
    with suppress(AttributeError):
        _libc().mallopt(M_ARENA_MAX, 1)
    task = asyncio.create_task(_trim(every), name="memory")
    try:
        yield
    finally:
        task.cancel()


async def _trim(every: float) -> None:
    while True:
        await asyncio.sleep(every)
        await asyncio.to_thread(_give_back)


def _give_back() -> None:
    with suppress(AttributeError):
        _libc().malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    """The C library, which has neither of the two in musl and macOS.

    Opened once: each one that is opened is a cycle for the garbage collector.
    """
    import ctypes  # 7 ms that a start has better use for

    return ctypes.CDLL(None)
