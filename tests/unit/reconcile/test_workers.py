"""Workers leave room for whatever else there is on the loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final, cast

import pytest

from hub.errors import ClusterUnreachable, Forbidden, HubError, ServerFault, TooManyRequests
from hub.kube.reflector import LONGEST_RETRY_AFTER
from hub.model import TargetKey
from hub.reconcile.workers import WORKERS, Passes
from hub.runtime.clock import SystemClock
from hub.runtime.queue import RETRY_BASE, KeyedQueue
from hub.runtime.supervise import spawn
from tests.unit.observe.providers.virtual import LoopClock, VirtualLoop

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


class Failing:
    """The first pass fails."""

    def __init__(self, error: HubError) -> None:
        self.error = error
        self.at: list[float] = []

    async def reconcile(self, key: TargetKey) -> float | None:
        self.at.append(asyncio.get_running_loop().time())
        if len(self.at) == 1:
            raise self.error
        return None


def seconds_until_tried_again(error: HubError, every: float) -> float:
    """Seconds from a pass that fails to the next one, while changes arrive all the time."""

    async def main() -> float:
        queue: KeyedQueue[TargetKey] = KeyedQueue(LoopClock(), random.Random(0))
        reconciler: Any = Failing(error)
        passes = Passes(reconciler, queue, LoopClock(), lambda _: True, dry_run=False)
        worker = asyncio.create_task(passes.work())
        while len(reconciler.at) < 2:
            queue.add(TargetKey("edge", "svc"))
            await asyncio.sleep(every)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        first, second, *_ = reconciler.at
        return float(second - first)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize(("asked", "waited"), [(30, 30), (1e9, LONGEST_RETRY_AFTER)])
def test_the_hub_cluster_is_not_written_to_before_it_wants_to(asked: float, waited: float) -> None:
    """Whatever changes meanwhile; a proxy that asks for years is not believed."""
    found = seconds_until_tried_again(TooManyRequests(429, retry_after=asked), every=20)
    assert found == pytest.approx(waited, abs=0.002)


@pytest.mark.parametrize(
    "error",
    [TooManyRequests(429), ServerFault(503), ServerFault(504), ClusterUnreachable("hub cluster: no answer", "timeout")],
    ids=str,
)
def test_changes_wait_a_second_while_the_hub_cluster_is_overloaded(error: HubError) -> None:
    """An API server that answers 429, 5xx or nothing gets one attempt a second for each target, not one a change."""
    assert seconds_until_tried_again(error, every=0.05) == pytest.approx(RETRY_BASE, abs=0.002)


def test_a_change_is_tried_at_once_after_a_refusal() -> None:
    """The next state of the target may be acceptable, and the API server isn't overloaded."""
    assert seconds_until_tried_again(Forbidden(403, "Forbidden", "cannot create"), every=0.05) == pytest.approx(0.05)


WRITE: Final = 0.02
"""Seconds that a write takes, with nine others under way on two cores."""


class Writing:
    """Publishes what has changed when the pass begins, and notes how long each change has waited for it."""

    def __init__(self) -> None:
        self.changes: dict[TargetKey, list[float]] = {}
        self.writes = dict.fromkeys(map(target, range(10)), 0)
        self.waited: list[float] = []

    async def reconcile(self, key: TargetKey) -> float | None:
        carried = self.changes.pop(key, [])
        if carried:
            await asyncio.sleep(WRITE)
            self.writes[key] += 1
            self.waited += [asyncio.get_running_loop().time() - change for change in carried]
        return None


def target(number: int) -> TargetKey:
    """One of many."""
    return TargetKey("edge", f"svc-{number}")


def published(keys: Sequence[TargetKey], moments: Sequence[float]) -> Writing:
    """What becomes of changes of all these targets at these moments."""

    async def main() -> Writing:
        queue: KeyedQueue[TargetKey] = KeyedQueue(LoopClock(), random.Random(0))
        reconciler = Writing()
        passes = Passes(cast("Any", reconciler), queue, LoopClock(), lambda _: True, dry_run=False)
        workers = [asyncio.create_task(passes.work()) for _ in range(WORKERS)]
        begin = asyncio.get_running_loop().time()
        for moment in moments:
            await asyncio.sleep(max(0.0, begin + moment - asyncio.get_running_loop().time()))
            for key in keys:
                reconciler.changes.setdefault(key, []).append(asyncio.get_running_loop().time())
                queue.add(key)
        await asyncio.sleep(10)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert len(reconciler.waited) == len(keys) * len(moments)
        return reconciler

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("per_second", [5, 20, 40])
def test_changes_of_one_target_are_written_one_by_one_and_at_once(per_second: int) -> None:
    """As long as the write of one has ended before the next arrives, none is merged with another or waits."""
    found = published([target(0)], [number / per_second for number in range(30 * per_second)])
    assert max(found.waited) == pytest.approx(WRITE, abs=0.002)
    assert found.writes[target(0)] == 30 * per_second


def test_changes_of_one_target_that_come_faster_than_writes_share_writes() -> None:
    """One each 2 ms makes eight writes a second, and none waits long."""
    found = published([target(0)], [number / 500 for number in range(5000)])
    assert max(found.waited) < 0.15
    assert found.writes[target(0)] < 100


@pytest.mark.parametrize("services", [1, 10])
def test_a_rolling_replacement_shares_writes(services: int) -> None:
    """Ten nodes a second are replaced: two replacements share a write, and none waits long."""
    moments = [number / 10 + part for number in range(100) for part in (0.0, 0.006)]
    found = published([target(number) for number in range(services)], moments)
    assert max(found.writes.values()) < 75
    assert max(found.waited) < 0.15
