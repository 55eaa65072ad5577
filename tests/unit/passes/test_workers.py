"""Workers leave room for whatever else there is on the loop."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from hub.aio.clock import SystemClock
from hub.aio.queue import KeyedQueue
from hub.aio.supervise import spawn
from hub.errors import TooManyRequests
from hub.kube.reflector import LONGEST_RETRY_AFTER
from hub.model import TargetKey
from hub.passes.workers import WORKERS, Passes
from tests.unit.resolution.virtual import LoopClock, VirtualLoop

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


class Cancelled:
    """What the first pass waits for is cancelled, by whoever it belongs to."""

    def __init__(self) -> None:
        self.passes = 0

    async def reconcile(self, key: TargetKey) -> float | None:
        self.passes += 1
        if self.passes == 1:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return None


async def test_a_cancellation_that_is_not_the_workers_ends_neither_it_nor_its_target(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker that ended without a word would be missed by nobody but the targets."""
    clock = SystemClock()
    queue: KeyedQueue[TargetKey] = KeyedQueue(clock, random.Random(0))
    reconciler: Any = Cancelled()
    passes = Passes(reconciler, queue, clock, lambda _: True, dry_run=False)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        worker = spawn(group, "worker 0", passes.work, clock)
        queue.add(TargetKey("edge", "svc"))
        while passes.outcomes["succeeded"] == 0:  # noqa: ASYNC110 - a state, not an event
            await asyncio.sleep(0.01)
        worker.cancel()
    assert reconciler.passes == 2
    assert [each.message for each in caplog.records] == ["worker 0 failed"]


class Refused:
    """The first pass meets an API server that asks to wait."""

    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after
        self.at: list[float] = []

    async def reconcile(self, key: TargetKey) -> float | None:
        self.at.append(asyncio.get_running_loop().time())
        if len(self.at) == 1:
            raise TooManyRequests(429, retry_after=self.retry_after)
        return None


@pytest.mark.parametrize(("asked", "waited"), [(30, 30), (1e9, LONGEST_RETRY_AFTER)])
def test_the_hub_cluster_is_not_written_to_before_it_wants_to(asked: float, waited: float) -> None:
    """Whatever changes meanwhile; a proxy that asks for years is not believed."""

    async def main() -> None:
        queue: KeyedQueue[TargetKey] = KeyedQueue(LoopClock(), random.Random(0))
        reconciler: Any = Refused(asked)
        passes = Passes(reconciler, queue, LoopClock(), lambda _: True, dry_run=False)
        worker = asyncio.create_task(passes.work())
        for _ in range(20):
            queue.add(TargetKey("edge", "svc"))
            await asyncio.sleep(20)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

        first, second, *_ = reconciler.at
        assert second - first == pytest.approx(waited, abs=0.002)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
