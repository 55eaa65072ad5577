"""Returns free memory from malloc to the system.

By itself, glibc returns only the free memory at the end of its heap. Memory that is freed after a long list was read
lies in the middle, so the hub would keep its peak size for ever. ``malloc_trim`` takes some milliseconds in a thread;
memory that is needed again later costs page faults.

glibc also gives each thread its own arena, so that threads do not wait for one another. Python's threads wait for the
interpreter lock anyway, memory freed in one arena is of no use to another thread, and every arena grows separately.
Therefore all threads share one arena.

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

TRIM_INTERVAL: Final = 60.0
"""Seconds between two calls of ``malloc_trim``."""
M_ARENA_MAX: Final = -8
"""Option number from glibc's malloc.h."""


@asynccontextmanager
async def trimming(every: float = TRIM_INTERVAL) -> AsyncIterator[None]:
    """Return free memory every ``every`` seconds while the context is open. This changes settings of the whole process.

    Threads that start from now on share the existing arenas, even after the context is closed.
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
        await asyncio.to_thread(_malloc_trim)


def _malloc_trim() -> None:
    with suppress(AttributeError):
        _libc().malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    """The C library; the ones of musl and macOS lack both functions.

    It is opened only once, since every ``CDLL`` object is a reference cycle.
    """
    import ctypes  # takes 7 ms, which would delay the start

    return ctypes.CDLL(None)
