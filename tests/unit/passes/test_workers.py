"""Workers leave room for whatever else there is on the loop."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hub.aio.clock import SystemClock
from hub.aio.queue import KeyedQueue
from hub.model import TargetKey
from hub.passes.workers import WORKERS, Passes

MANY = 500


class Quick:
    """Finds nothing to write, and so waits for nothing."""

    def __init__(self) -> None:
        self.passes = 0

    async def reconcile(self, key: TargetKey) -> float | None:
        self.passes += 1
        return None


async def test_passes_that_write_nothing_do_not_stop_the_loop() -> None:
    """An edit of the defaults concerns every Service; meanwhile events are handled and probes answered."""
    clock = SystemClock()
    queue: KeyedQueue[TargetKey] = KeyedQueue(clock, random.Random(0))
    reconciler: Any = Quick()
    passes = Passes(reconciler, queue, clock, lambda _: True, dry_run=False)
    workers = [asyncio.create_task(passes.work()) for _ in range(WORKERS)]
    for number in range(MANY):
        queue.add(TargetKey("edge", f"svc-{number}"))
    most = before = 0
    async with asyncio.timeout(10):
        while reconciler.passes < MANY:
            await asyncio.sleep(0)
            most, before = max(most, reconciler.passes - before), reconciler.passes
    for each in workers:
        each.cancel()
    await asyncio.gather(*workers, return_exceptions=True)

    assert most <= WORKERS
    assert passes.outcomes["succeeded"] == MANY
