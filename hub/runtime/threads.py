"""Calls that block, in threads: those about files first of all, which may lie on a mount that does not answer.

The event loop cannot make them: a ``stat`` on a hung NFS mount never ends, and with it no Lease would be renewed and
no probe answered. asyncio's own threads are no place for them either: there are six on two cores, which metrics, status
page and long lists share, and a process does not end before they do. These here nobody waits for longer than he wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from hub.errors import HubError

T = TypeVar("T")

AT_ONCE: Final = 4
"""Calls that run at the same time: they contend with the event loop for the interpreter. What hangs does not count."""
HANGS: Final = 0.1
"""Seconds after which a call counts as one that hangs. A ``stat`` takes microseconds, a kubeconfig milliseconds."""


class NoAnswer(HubError):
    """A call did not end in time, or could not begin; the message goes on after the file's name."""


class Reader:
    """Calls about one source, one at a time.

    One that is given up goes on in its thread, and until it ends all others are given up at once: a source that hangs
    costs one thread, however often it is asked.

    Args:
        seconds: a call may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None
        self._until = 0.0

    async def call(self, function: Callable[..., T], /, *args: Any) -> T:
        """What ``function(*args)`` gives.

        Raises:
            NoAnswer: it did not end in time, or an earlier one still runs.
            Exception: whatever it raised.
        """
        async with self._turn:
            if self._running is not None:  # whoever asked has given up
                await self._end(self._running)
            loop = asyncio.get_running_loop()
            async with _slots(loop):
                running = loop.run_in_executor(_THREADS, partial(function, *args))
                self._running = running
                running.add_done_callback(self._ended)
                self._until = loop.time() + self._seconds
                await asyncio.wait({running}, timeout=HANGS)
            try:
                await self._end(running)
                return running.result()
            finally:
                del running  # it keeps the error that may be on its way, whose traceback leads to this frame

    async def _end(self, running: asyncio.Future[Any]) -> None:
        if not running.done():
            await asyncio.wait({running}, timeout=max(0.0, self._until - asyncio.get_running_loop().time()))
        if not running.done():
            raise NoAnswer(f"does not answer within {self._seconds:g} s")

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._running = None
        if not running.cancelled():
            running.exception()  # looked at, so that asyncio does not report it as forgotten


def glance(function: Callable[..., T], /, *args: Any) -> T | None:
    """What a call gives that ends at once; None where it hangs. Blocking, at most ``HANGS``: for who cannot await.

    Raises:
        Exception: whatever it raised.
    """
    try:
        return _THREADS.submit(function, *args).result(HANGS)
    except (TimeoutError, NoAnswer):
        return None


class _Threads(Executor):
    """As many daemon threads as there are calls; a few stay for the next ones."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        """Where they wait. What is done to it is atomic: taken out of it, a thread is whoever's took it."""

    def submit(self, function: Callable[..., T], /, *args: Any, **more: Any) -> Future[T]:
        """Carry out a call.

        Raises:
            NoAnswer: the system gives no more threads.
        """
        done: Future[T] = Future()
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            try:
                Thread(target=self._serve, args=(calls,), name="files", daemon=True).start()
            except RuntimeError as error:
                raise NoAnswer(f"cannot be read: no thread for it: {error}") from error
        calls.put(partial(_carry_out, done, partial(function, *args, **more)))
        return done

    def _serve(self, calls: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            calls.get()()
            if len(self._idle) >= AT_ONCE:
                return
            self._idle.append(calls)


def _carry_out(done: Future[T], call: Callable[[], T]) -> None:
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001 - is raised where the outcome is waited for
        done.set_exception(error)
    finally:
        del done, call  # as in Reader.call


_THREADS: Final = _Threads()
_slots_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _slots(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    return _slots_of_loops.setdefault(loop, asyncio.Semaphore(AT_ONCE))
