"""Measures what code does to its process: I/O, a blocked event loop, tasks that do not end when they are cancelled.

Not public: it is used by the rules of :mod:`hub_testkit.conformance`, and does not depend on providers.
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
    """Yields a list that receives a line for each I/O operation of this thread inside the context."""
    recording = _audit()
    seen: list[str] = []
    recording.seen = seen
    try:
        yield seen
    finally:
        recording.seen = None


async def longest_block(work: Callable[[], Awaitable[object]]) -> float:
    """Awaits ``work()`` and returns the longest time that the event loop was blocked meanwhile, in seconds."""
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
    """Cancels ``task`` and fails the test if it takes longer than ``patience`` seconds to end.

    Args:
        task: The task.
        what: Its name in the failure's message.
        patience: Seconds that it may take to end.
    """
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
    """Installs the audit hook and returns its thread-local state. Once per process: Python cannot remove a hook."""
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
    """Whether a path is a Python module: a late import does not count as the provider's I/O."""
    return not isinstance(path, str) or path.endswith((".py", ".pyc", ".so", ".pyd"))
