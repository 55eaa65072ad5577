"""Calls into plugins, and what is left of those that failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from hub.errors import ProviderError
from hub.resolution.calls import Calls, Held, contain_tasks
from tests.support.garbage import garbage


async def test_a_call_that_failed_is_gone_with_its_error() -> None:
    """A provider may fail for days, and each time its traceback leads to all that the call held."""
    calls = Calls("scripted")

    async def broken() -> None:
        raise RuntimeError("no")

    async def left() -> None:
        raise SystemExit(1)

    with garbage() as found:
        for work in (broken, left):
            with suppress(RuntimeError, ProviderError):
                await calls.call("resolve", work, 5)
    assert not found.keys() & {"Task", "RuntimeError", "ProviderCrashed"}, found


async def test_a_provider_that_does_not_open_is_gone_with_its_error() -> None:
    """It is tried again for as long as it fails."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise RuntimeError("no")
        yield

    with garbage() as found:
        held = Held(Calls("scripted"), broken)
        with suppress(RuntimeError):
            await held.open(5)
        del held
    assert not found.keys() & {"Held", "Task"}, found


async def test_a_provider_that_ended_is_gone_with_its_error() -> None:
    """What it did in the background has failed."""
    ended = asyncio.Event()

    @asynccontextmanager
    async def dying() -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        try:
            yield
        except asyncio.CancelledError:
            raise RuntimeError("gone") from None
        finally:
            del task

    with garbage() as found:
        held = Held(Calls("scripted"), dying)
        await held.open(5)
        assert held.task is not None
        held.task.add_done_callback(lambda _: ended.set())
        await ended.wait()
        assert isinstance(held.failure(), RuntimeError)
        del held
    assert not found.keys() & {"Held", "Task"}, found


async def test_a_task_of_a_plugin_that_was_cancelled_is_gone() -> None:
    """As each of those is that a provider gives a deadline."""
    contain_tasks(asyncio.get_running_loop())
    calls = Calls("scripted")

    async def inner() -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        for _ in range(3):
            with suppress(TimeoutError):
                await asyncio.wait_for(inner(), 0.01)

    with garbage() as found:
        await calls.call("resolve", work, 5)
    assert "_Contained" not in found, found
