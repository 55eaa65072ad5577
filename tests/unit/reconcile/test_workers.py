"""Workers: they share the event loop, retry failed passes, and write changes in time."""

from __future__ import annotations

import asyncio
import itertools
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
from tests.support.virtual import LoopClock, VirtualLoop

MANY = 500


class Quick:
    """A reconciler that finds nothing to write, so its passes never wait."""

    def __init__(self) -> None:
        self.passes = 0

    async def reconcile(self, key: TargetKey) -> float | None:
        self.passes += 1
        return None


async def test_passes_that_write_nothing_do_not_stop_the_loop() -> None:
    """Other tasks run in between when hundreds of targets need a pass that writes nothing."""
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
    """A reconciler whose first pass awaits a future that is cancelled."""

    def __init__(self) -> None:
        self.passes = 0

    async def reconcile(self, key: TargetKey) -> float | None:
        self.passes += 1
        if self.passes == 1:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return None


async def test_foreign_cancellation_restarts_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When a future that a pass awaits is cancelled, the worker is restarted and the target is tried again."""
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
    """A reconciler whose first passes fail, each after so many seconds."""

    def __init__(self, error: HubError, failures: int = 1, takes: float = 0.0) -> None:
        self.error, self.failures, self.takes = error, failures, takes
        self.at: list[float] = []

    async def reconcile(self, key: TargetKey) -> float | None:
        self.at.append(asyncio.get_running_loop().time())
        if len(self.at) <= self.failures:
            await asyncio.sleep(self.takes)
            raise self.error
        return None


@pytest.mark.parametrize(
    ("error", "takes", "gaps"),
    [
        (ClusterUnreachable("no answer in time"), 0.1, [1.0, 2.0, 4.0]),
        (ClusterUnreachable("no answer in time"), 1.5, [1.5, 2.0, 4.0]),
        (ClusterUnreachable("no answer in time"), 10.0, [10.0, 10.0, 10.0]),
        (TooManyRequests(429, retry_after=7.0), 10.0, [17.0, 17.0, 17.0]),
    ],
)
def test_delays_count_from_the_start_of_a_failed_pass(error: HubError, takes: float, gaps: list[float]) -> None:
    """A pass that waited for an answer for longer than its delay is repeated at once, but not before a Retry-After."""

    async def main() -> list[float]:
        queue: KeyedQueue[TargetKey] = KeyedQueue(LoopClock(), random.Random(0))
        reconciler: Any = Failing(error, 3, takes)
        passes = Passes(reconciler, queue, LoopClock(), lambda _: True, dry_run=False)
        worker = asyncio.create_task(passes.work())
        queue.add(TargetKey("edge", "svc"))
        while len(reconciler.at) < 4:  # noqa: ASYNC110 - a state, not an event
            await asyncio.sleep(0.1)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        return [after - before for before, after in itertools.pairwise(reconciler.at)]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(main())
    assert all(gap - 0.01 <= one <= 1.2 * gap + 0.01 for gap, one in zip(gaps, found, strict=True)), found


def seconds_until_tried_again(error: HubError, every: float) -> float:
    """Seconds from a failed pass to the next one, while the target changes every so many seconds."""

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
def test_retry_after_delays_writes(asked: float, waited: float) -> None:
    """Retry-After is respected even if the target changes, up to a maximum."""
    found = seconds_until_tried_again(TooManyRequests(429, retry_after=asked), every=20)
    assert found == pytest.approx(waited, abs=0.002)


@pytest.mark.parametrize(
    "error",
    [TooManyRequests(429), ServerFault(503), ServerFault(504), ClusterUnreachable("hub cluster: no answer", "timeout")],
    ids=str,
)
def test_changes_wait_a_second_while_the_hub_cluster_is_overloaded(error: HubError) -> None:
    """After 429, 5xx or no answer, a target is tried once a second, not once for each change."""
    assert seconds_until_tried_again(error, every=0.05) == pytest.approx(RETRY_BASE, abs=0.002)


def test_a_change_is_tried_at_once_after_a_refusal() -> None:
    """After a refusal the next change of the target is tried at once: it may be acceptable."""
    assert seconds_until_tried_again(Forbidden(403, "Forbidden", "cannot create"), every=0.05) == pytest.approx(0.05)


WRITE: Final = 0.02
"""Seconds that a write takes, with nine others under way on two cores."""


class Writing:
    """A reconciler that publishes the changes known when a pass begins, and notes how long each has waited."""

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
    """The key of a target."""
    return TargetKey("edge", f"svc-{number}")


def published(keys: Sequence[TargetKey], moments: Sequence[float]) -> Writing:
    """Change all these targets at these moments; return the reconciler after their passes."""

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
    """Changes that arrive after the write of the previous one has ended are not merged and do not wait."""
    found = published([target(0)], [number / per_second for number in range(30 * per_second)])
    assert max(found.waited) == pytest.approx(WRITE, abs=0.002)
    assert found.writes[target(0)] == 30 * per_second


def test_changes_of_one_target_that_come_faster_than_writes_share_writes() -> None:
    """Changes that come every 2 ms share writes, and none waits long."""
    found = published([target(0)], [number / 500 for number in range(5000)])
    assert max(found.waited) < 0.15
    assert found.writes[target(0)] < 100


@pytest.mark.parametrize("services", [1, 10])
def test_a_rolling_replacement_shares_writes(services: int) -> None:
    """When ten nodes a second are replaced, changes share writes, and none waits long."""
    moments = [number / 10 + part for number in range(100) for part in (0.0, 0.006)]
    found = published([target(number) for number in range(services)], moments)
    assert max(found.writes.values()) < 75
    assert max(found.waited) < 0.15
