"""Calls into plugins; failed ones must leave no garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from hub.errors import ProviderError
from hub.observe.providers.calls import Calls, OpenManager
from hub.observe.providers.context import ProviderHub
from hub.observe.providers.faults import ProviderDefect
from hub.observe.providers.loops import LoopThread, PluginLoop
from hub.runtime.clock import SystemClock
from tests.support.garbage import garbage
from tests.unit.observe.providers.plugins import left


@pytest.fixture
async def loop() -> AsyncIterator[PluginLoop]:
    """A plugin's loop in its own thread."""
    made = PluginLoop("scripted", LoopThread("scripted"), lambda _: ProviderHub("scripted", clock=SystemClock()))
    yield made
    await left(made)


async def test_a_call_that_failed_is_gone_with_its_error(loop: PluginLoop) -> None:
    """A failed call leaves no reference cycle, which would keep alive all that its traceback refers to."""
    calls = Calls("scripted")

    async def broken() -> None:
        raise RuntimeError("no")

    async def leaves() -> None:
        raise SystemExit(1)

    with garbage() as found:
        for work in (broken, leaves):
            with suppress(ProviderError):
                await calls.call(loop, "resolve", work, 5)
    assert not found.keys() & {"Task", "RuntimeError", "ProviderCrashed", "ProviderDefect", "Running"}, found


async def test_a_provider_that_does_not_open_is_gone_with_its_error(loop: PluginLoop) -> None:
    """A provider that fails to open leaves no reference cycle."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise RuntimeError("no")
        yield

    with garbage() as found:
        held = OpenManager(Calls("scripted"), loop, broken)
        with suppress(ProviderDefect):
            await held.open(5)
        del held
    assert not found.keys() & {"OpenManager", "Task", "Running"}, found


async def test_a_provider_that_ended_is_gone_with_its_error(loop: PluginLoop) -> None:
    """A provider that closes itself after an error leaves no reference cycle."""
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
        held = OpenManager(Calls("scripted"), loop, dying)
        await held.open(5)
        assert held.running is not None
        held.running.ended.add_done_callback(lambda _: ended.set())
        await ended.wait()
        assert isinstance(held.failure(), ProviderDefect)
        del held
    assert not found.keys() & {"OpenManager", "Task", "Running"}, found


async def test_a_task_of_a_plugin_that_was_cancelled_is_gone(loop: PluginLoop) -> None:
    """A cancelled task of a plugin, as after ``wait_for``, leaves no reference cycle."""
    calls = Calls("scripted")

    async def inner() -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        for _ in range(3):
            with suppress(TimeoutError):
                await asyncio.wait_for(inner(), 0.01)

    with garbage() as found:
        await calls.call(loop, "resolve", work, 5)
    assert "Contained" not in found, found
