"""Calls into a provider, each with a deadline that the hub's loop enforces, so that a provider cannot block the hub.

A call runs as a task in the provider type's own loop. A call that ignores its cancellation is abandoned after
:data:`GRACE`; until it ends, the provider is not called again for that cluster.
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
"""Seconds that a cancelled call has to clean up; SIGTERM must end the whole hub within 5 s."""


class Calls:
    """Calls into one provider; the caller waits at most for the deadline and the grace."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stuck: set[Running[Any]] = set()

    async def call(self, loop: PluginLoop, what: str, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Run ``await work()`` in the provider's loop and return its result.

        Raises:
            ProviderStalled: the call took longer than ``seconds``, its loop was abandoned, or an earlier call still
                runs although it was cancelled.
            ProviderCrashed: the call raised a BaseException that is not an ``Exception``.
            HubError: the call's own error, converted by :func:`hub.observe.providers.faults.clean`.
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
            del running  # breaks a reference cycle: it holds the error, whose traceback holds this frame

    def start(self, loop: PluginLoop, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Running[T]:
        """Start ``await work()`` in the provider's loop, without a deadline; end it with :meth:`abandon`.

        Raises:
            ProviderStalled: the loop was abandoned, or an earlier call still runs although it was cancelled.
        """
        if self._stuck:
            raise ProviderStalled(f"an earlier call still runs although it was cancelled; {what} was not called")
        return loop.start(self._name, what, work)

    async def abandon(self, running: Running[Any]) -> bool:
        """Cancel a call and wait at most :data:`GRACE` for its end; returns False if it still runs."""
        running.cancel()
        self._stuck.add(running)
        running.ended.add_done_callback(lambda _: self._stuck.discard(running))
        await asyncio.wait({running.ended}, timeout=GRACE)
        return running.ended.done()


class OpenManager(Generic[T]):
    """An async context manager that its own task keeps open, so that the same task enters and exits it.

    Args:
        calls: the provider's calls; the manager is not entered while an abandoned call still runs.
        loop: the event loop of the task.
        enter: makes the manager.

    Attributes:
        running: the task; it ends when the manager has exited, on request or by itself. None before :meth:`open` and
            after :meth:`failure`.
    """

    def __init__(self, calls: Calls, loop: PluginLoop, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._calls = calls
        self._loop = loop
        self._enter = enter
        self._stop = asyncio.Event()
        """Used only in the provider's loop."""
        self.running: Running[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the manager is open."""
        return self.running is not None and not self.running.ended.done()

    async def open(self, seconds: float) -> T:
        """Enter the manager and return the value that it yields.

        Raises:
            ProviderStalled: entering took longer than ``seconds``, the loop was abandoned, or an earlier call still
                runs although it was cancelled.
            HubError: the manager's own error, see :meth:`Calls.call`.
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
            self._loop.post(self._stop.set)  # if entering succeeds later, the manager exits at once
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
        """Exit the manager: the task is cancelled after ``seconds`` and abandoned after the grace. Raises nothing."""
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
        """Return why the manager exited by itself; call it once, after it was opened and ``alive`` became False."""
        running, self.running = self.running, None
        assert running is not None  # noqa: S101 - it was opened
        error = running.ended.exception()
        return error if isinstance(error, Exception) else ProviderCrashed("the provider closed itself")

    async def _hold(self, entered: asyncio.Future[T]) -> None:
        async with self._enter() as value:
            self._loop.post_to_hub(_enter, entered, value)
            await self._stop.wait()


def _enter(entered: asyncio.Future[T], value: T) -> None:
    if not entered.done():
        entered.set_result(value)
