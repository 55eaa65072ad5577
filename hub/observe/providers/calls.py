"""Calls into a provider, each behind a deadline that the hub's loop keeps: no provider can hold the hub.

A call runs as a task in the provider type's own loop. One that ignores its cancellation is left behind after a grace of
one second, reported, and the provider is not called again for that cluster while it still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Generic, TypeVar

from hub.observe.providers.faults import ProviderCrashed, ProviderStalled
from hub.observe.providers.loops import PluginLoop, Running

T = TypeVar("T")

GRACE: Final = 1.0
"""Seconds a cancelled call gets to clean up; SIGTERM must end the whole hub within 5."""


class Calls:
    """Calls into one provider, none of which can outlive its deadline by more than the grace."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stuck: set[Running[Any]] = set()

    async def call(self, loop: PluginLoop, what: str, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """The result of ``await work()`` in the provider's loop.

        Raises:
            ProviderStalled: it took longer, its loop was left behind, or an earlier call is still running although
                cancelled.
            ProviderCrashed: it raised something that is no ``Exception``.
            HubError: whatever it raised, see :func:`hub.observe.providers.faults.clean`.
        """
        running = self.start(loop, what, work)
        try:
            try:
                await asyncio.wait({running.ended}, timeout=seconds)
            except asyncio.CancelledError:
                await self.abandon(running)
                raise
            if not running.ended.done():
                ended = await self.abandon(running)
                raise ProviderStalled(
                    f"{what} did not end within {seconds:g} s" + ("" if ended else " and ignores cancellation")
                )
            return running.ended.result()
        finally:
            del running  # it keeps the error, whose traceback leads to this frame

    def start(self, loop: PluginLoop, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Running[T]:
        """``await work()`` in the provider's loop, for a call that lasts; end it with :meth:`abandon`.

        Raises:
            ProviderStalled: the loop was left behind, or an earlier call is still running although cancelled.
        """
        if self._stuck:
            raise ProviderStalled(f"an earlier call still runs although it was cancelled; {what} was not called")
        return loop.start(self._name, what, work)

    async def abandon(self, running: Running[Any]) -> bool:
        """Cancel a call and wait a moment; False where it still runs."""
        running.cancel()
        self._stuck.add(running)
        running.ended.add_done_callback(lambda _: self._stuck.discard(running))
        await asyncio.wait({running.ended}, timeout=GRACE)
        return running.ended.done()


class Held(Generic[T]):
    """An async context manager kept open by a task of its own, so that it is left by the task that entered it.

    Args:
        calls: the calls it is one of: not entered while one of them was left behind and still runs.
        loop: where it is entered.
        enter: makes the manager.

    Attributes:
        running: the call that holds it open; ends when the manager was left, wanted or not. None before :meth:`open`,
            and once :meth:`failure` was asked.
    """

    def __init__(self, calls: Calls, loop: PluginLoop, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._calls = calls
        self._loop = loop
        self._enter = enter
        self._stop = asyncio.Event()
        """Waited for and set in the provider's loop only."""
        self.running: Running[None] | None = None

    @property
    def alive(self) -> bool:
        """Open, as far as is known."""
        return self.running is not None and not self.running.ended.done()

    async def open(self, seconds: float) -> T:
        """Enter; what is yielded.

        Raises:
            ProviderStalled: entering took longer, the loop was left behind, or an earlier call still runs although it
                was cancelled.
            HubError: whatever entering raised.
        """
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        running = self.running = self._calls.start(self._loop, "open", partial(self._hold, entered))
        try:
            waiting: set[asyncio.Future[Any]] = {running.ended, entered}
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._loop.post(self._stop.set)
            await self._calls.abandon(running)
            raise
        if entered.done():
            return entered.result()
        if not running.ended.done():
            self._loop.post(self._stop.set)  # should it get there after all, it closes at once
            ended = await self._calls.abandon(running)
            raise ProviderStalled(
                f"opening did not end within {seconds:g} s" + ("" if ended else " and ignores cancellation")
            )
        self.running = None
        try:
            running.ended.result()
        finally:
            del running, waiting  # as in Calls.call
        raise ProviderCrashed("opening ended without a provider")

    async def close(self, seconds: float) -> None:
        """Leave; cancelled after ``seconds``, and left behind after the grace. Raises nothing."""
        running = self.running
        if running is None:
            return
        self._loop.post(self._stop.set)
        if not running.ended.done():
            try:
                await asyncio.wait({running.ended}, timeout=seconds)
            finally:
                if not running.ended.done():
                    await self._calls.abandon(running)

    def failure(self) -> Exception:
        """Why a manager that should be open is not; asked once."""
        running, self.running = self.running, None
        assert running is not None  # noqa: S101 - only asked of one that was opened
        error = running.ended.exception()
        return error if isinstance(error, Exception) else ProviderCrashed("the provider closed itself")

    async def _hold(self, entered: asyncio.Future[T]) -> None:
        async with self._enter() as value:
            self._loop.tell(_enter, entered, value)
            await self._stop.wait()


def _enter(entered: asyncio.Future[T], value: T) -> None:
    if not entered.done():
        entered.set_result(value)
