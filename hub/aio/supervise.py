"""The only place that starts long-running tasks: named, restarted with backoff, never silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hub.aio.backoff import Backoff
from hub.aio.clock import Clock
from hub.errors import HubError

log = logging.getLogger(__name__)


async def supervise(
    name: str, work: Callable[[], Awaitable[object]], clock: Clock, backoff: Backoff | None = None
) -> None:
    """Run ``work`` for ever: when it ends or raises, wait and run it again.

    A HubError is an expected failure and logged as a warning; anything else is a defect and logged
    with its traceback. Cancellation passes through. ``name`` says what and which cluster.
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
            # Not ours: of something it waited for. Passed on, it would end this task without a word.
            log.exception("%s failed", name)
        except Exception:
            log.exception("%s failed", name)
        await clock.sleep(backoff.next(clock.now()))


def spawn(
    group: asyncio.TaskGroup, name: str, work: Callable[[], Awaitable[object]], clock: Clock
) -> asyncio.Task[None]:
    """Start ``supervise(name, work)`` in ``group`` as a task of that name."""
    return group.create_task(supervise(name, work, clock), name=name)
