"""Runs tasks: long-lived ones have a name, are restarted with backoff and never end silently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

from hub.errors import HubError
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

T = TypeVar("T")

log = logging.getLogger(__name__)


async def supervise(
    name: str, work: Callable[[], Awaitable[object]], clock: Clock, backoff: Backoff | None = None
) -> None:
    """Run ``work`` for ever: when it ends or raises, wait and run it again.

    A HubError is an expected failure and logged as a warning; any other exception is a defect and logged with its
    traceback. Cancellation passes through. ``name`` appears in log lines; it tells what runs and for which cluster.
    """
    backoff = backoff or Backoff()
    while True:
        try:
            await work()
            log.warning("%s ended; restarting", name)
        except HubError as error:
            log.warning("%s: %s", name, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Something that the work awaited was cancelled, not this task. Re-raised, the error would end this task
            # silently.
            log.exception("%s failed", name)
        except Exception:
            log.exception("%s failed", name)
        await clock.sleep(backoff.next(clock.now()))


def spawn(
    group: asyncio.TaskGroup, name: str, work: Callable[[], Awaitable[object]], clock: Clock
) -> asyncio.Task[None]:
    """Start ``supervise(name, work)`` in ``group`` as a task named ``name``."""
    return group.create_task(supervise(name, work, clock), name=name)


async def until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until one of the tasks ends, then cancel the others and wait until they have ended too.

    Raises:
        Exception: the error of the task that ended first, if it failed.
    """
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await _end(tasks)


async def together(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """The results of calls that run at once; if one fails, the others are cancelled before the error is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
