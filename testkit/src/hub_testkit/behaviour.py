"""What code does to the process it runs in: I/O, an event loop that stands still, a task that will not end.

It knows nothing of providers. Not public: it serves the rules of :mod:`hub_testkit.conformance`.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest

_IO_EVENTS: Final = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.bind",
    "subprocess.Popen",
    "os.system",
    "time.sleep",
)


@contextmanager
def watch_io() -> Generator[list[str], None, None]:
    """The I/O this thread does inside, one line each."""
    recording = _audit()
    seen: list[str] = []
    recording.seen = seen
    try:
        yield seen
    finally:
        recording.seen = None


async def longest_block(work: Callable[[], Awaitable[object]]) -> float:
    """The longest the event loop stood still meanwhile, in seconds."""
    longest, last = 0.0, time.monotonic()

    async def beat() -> None:
        nonlocal longest, last
        while True:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            await asyncio.sleep(0.01)

    task = asyncio.create_task(beat())
    try:
        await asyncio.sleep(0.02)
        await work()
        await asyncio.sleep(0.02)
    finally:
        task.cancel()
        await asyncio.wait({task})
    return longest


async def cancel(task: asyncio.Future[Any], what: str, patience: float) -> None:
    """Cancel ``what``, and fail the test if it takes longer than ``patience`` seconds to end."""
    task.cancel()
    started = time.monotonic()
    await asyncio.wait({task}, timeout=patience)
    took = time.monotonic() - started
    if not task.done():
        for _ in range(100):  # so that the test itself ends
            task.cancel()
            await asyncio.wait({task}, timeout=0.05)
            if task.done():
                break
        pytest.fail(f"{what} still ran {took:.1f} s after it was cancelled")
    if not task.cancelled():
        task.exception()


@functools.cache
def _audit() -> threading.local:
    """Install the audit hook, once per process: Python cannot take one away again."""
    recording = threading.local()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        seen: list[str] | None = getattr(recording, "seen", None)
        if seen is None:
            return
        if event in _IO_EVENTS:
            seen.append(event)
        elif event == "open" and not _is_code(args[0]):
            seen.append(f"open {args[0]!r}")

    sys.addaudithook(hook)
    return recording


def _is_code(path: object) -> bool:
    """A late import is no I/O of the provider's own."""
    return not isinstance(path, str) or path.endswith((".py", ".pyc", ".so", ".pyd"))
