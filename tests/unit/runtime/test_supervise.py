"""Supervised tasks are restarted and never end silently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from hub.errors import ClusterUnreachable
from hub.runtime.backoff import Backoff
from hub.runtime.clock import SystemClock
from hub.runtime.supervise import spawn, supervise, together, until_one_ends
from tests.support.clocks import HastyClock


async def restarts(work: Callable[[int], Awaitable[object]], times: int = 3) -> HastyClock:
    """Supervise ``work``, which gets the number of its run, and cancel it in its last one."""
    clock, runs, last = HastyClock(), 0, asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs > times:
            last.set()
            await asyncio.Event().wait()
        await work(runs)

    task = asyncio.create_task(supervise("nodes of eu", run, clock, Backoff(jitter=0.0)))
    async with asyncio.timeout(2):
        await last.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return clock


async def test_expected_failure_is_a_warning_and_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    """A HubError is logged as a warning without a traceback, and the work is restarted."""

    async def work(_: int) -> None:
        raise ClusterUnreachable("eu: connection refused", "refused")

    await restarts(work, 1)
    assert [(r.levelno, r.getMessage(), r.exc_info) for r in caplog.records if r.name.startswith("hub")] == [
        (logging.WARNING, "nodes of eu: eu: connection refused", None)
    ]


async def test_defect_is_an_error_with_its_traceback_and_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    """Any other exception is logged with its traceback, and the work is restarted."""

    async def work(_: int) -> None:
        raise ZeroDivisionError("oops")

    await restarts(work, 1)
    (record,) = [record for record in caplog.records if record.name.startswith("hub")]
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "nodes of eu failed")
    assert record.exc_info is not None


async def test_work_that_ends_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """Work that returns is restarted too."""

    async def work(_: int) -> None:
        return

    await restarts(work, 1)
    assert "nodes of eu ended; restarting" in caplog.text


async def test_restarts_wait_longer_and_longer() -> None:
    """Work that fails at once does not turn into a hot loop."""

    async def work(_: int) -> None:
        raise ClusterUnreachable("no")

    assert (await restarts(work, 4)).slept == [0.8, 1.6, 3.2, 6.4]


async def test_cancellation_of_something_it_waits_for_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A CancelledError that does not come from cancelling the task is logged, and the work is restarted."""

    async def work(_: int) -> None:
        inner = asyncio.create_task(asyncio.sleep(9))
        await asyncio.sleep(0)
        inner.cancel()
        await inner

    await restarts(work, 1)
    assert "nodes of eu failed" in caplog.text


async def test_cancellation_passes_while_waiting() -> None:
    """The task can also be cancelled between two runs."""

    async def work() -> None:
        raise ClusterUnreachable("no")

    task = asyncio.create_task(supervise("x", work, SystemClock()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_spawned_task_bears_the_name() -> None:
    """A spawned task has the given name, so that task dumps show it."""
    async with asyncio.TaskGroup() as group:
        task = spawn(group, "nodes of eu", asyncio.Event().wait, SystemClock())
        await asyncio.sleep(0)
        assert task.get_name() == "nodes of eu"
        task.cancel()


async def stay(ended: list[str]) -> None:
    """Wait until cancelled; the end takes a moment."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("stay")


async def fail() -> None:
    """Fail in a moment."""
    await asyncio.sleep(0)
    raise ClusterUnreachable("gone", "reset")


async def test_until_one_ends_cancels_the_others_and_raises() -> None:
    """The error of the task that ended first is raised after all others have ended."""
    ended: list[str] = []
    tasks = (asyncio.create_task(stay(ended)), asyncio.create_task(fail()))
    with pytest.raises(ClusterUnreachable, match="gone"):
        await until_one_ends(tasks)
    assert (ended, [task.done() for task in tasks]) == (["stay"], [True, True])


async def test_until_one_ends_passes_cancellation_on() -> None:
    """Cancelling the waiter cancels all tasks."""
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(2)]
    waiter = asyncio.create_task(until_one_ends(tasks))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert all(task.cancelled() for task in tasks)


async def test_calls_together_return_their_results_in_order() -> None:
    """The order is that of the calls, not that of their ends."""

    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await together(after(3), after(1), after(2)) == [3, 1, 2]
    assert await together() == []


async def test_a_call_that_fails_ends_the_others_before_its_error_is_raised() -> None:
    """No request goes on behind the back of the caller."""
    ended: list[str] = []
    with pytest.raises(ClusterUnreachable, match="gone"):
        await together(stay(ended), fail())
    assert ended == ["stay"]
