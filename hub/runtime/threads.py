"""Runs blocking calls in threads, above all file access, since a file may be on a mount that does not answer.

Such a call cannot run in the event loop: a ``stat`` on a hung NFS mount never returns, and the hub could neither renew
its Lease nor answer probes. asyncio's default threads are unsuitable too: there are only six on two cores, metrics,
status page and long lists share them, and the process cannot exit before they end. The threads of this module are
daemons, and their callers stop waiting after a timeout.
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
"""The number of calls that run at the same time, not counting those that hang; also the number of idle threads kept.
It is small because the calls contend with the event loop for the interpreter lock."""
HUNG_AFTER: Final = 0.1
"""Seconds after which a call counts as hung. A ``stat`` takes microseconds, reading a kubeconfig milliseconds."""


class NoAnswer(HubError):
    """A call did not end in time or could not start. The message is written to follow the name of the file."""


class Reader:
    """Makes blocking calls that concern one source, one at a time.

    A call that timed out keeps running in its thread. Until it ends, further calls fail at once, so a source that hangs
    takes one thread only, however often it is called.

    Args:
        seconds: the timeout of each call.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None
        self._until = 0.0

    async def call(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run ``function(*args)`` in a thread and return its result.

        Raises:
            NoAnswer: the call did not end in time, an earlier call still runs after its timeout, or no thread could
                be started.
            Exception: the error that ``function`` raised.
        """
        async with self._turn:
            if self._running is not None:  # the caller of that call has timed out or was cancelled
                await self._end(self._running)
            loop = asyncio.get_running_loop()
            async with _slots(loop):
                running = loop.run_in_executor(_THREADS, partial(function, *args))
                self._running = running
                running.add_done_callback(self._ended)
                self._until = loop.time() + self._seconds
                await asyncio.wait({running}, timeout=HUNG_AFTER)
            try:
                await self._end(running)
                return running.result()
            finally:
                del running  # breaks the cycle of an error's traceback -> this frame -> future -> error

    async def _end(self, running: asyncio.Future[Any]) -> None:
        """Wait until the call ends or its timeout is over; in the latter case raise NoAnswer."""
        if not running.done():
            await asyncio.wait({running}, timeout=max(0.0, self._until - asyncio.get_running_loop().time()))
        if not running.done():
            raise NoAnswer(f"does not answer within {self._seconds:g} s")

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._running = None
        if not running.cancelled():
            running.exception()  # marks the error as retrieved, so that asyncio does not log it


def call_briefly(function: Callable[..., T], /, *args: Any) -> T | None:
    """Run ``function(*args)`` in a thread; returns its result, or None after ``HUNG_AFTER`` seconds.

    Blocks the calling thread for that long at most; meant for callers that cannot await.

    Raises:
        Exception: the error that ``function`` raised.
    """
    try:
        return _THREADS.submit(function, *args).result(HUNG_AFTER)
    except (TimeoutError, NoAnswer):
        return None


class _Threads(Executor):
    """An executor without a limit: each call gets an idle daemon thread or a new one. Up to ``AT_ONCE`` stay idle."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        """The queues of idle threads. No lock is needed: ``pop`` and ``append`` are atomic, and a caller that has
        popped a queue is the only one that uses its thread."""

    def submit(self, function: Callable[..., T], /, *args: Any, **more: Any) -> Future[T]:
        """Run a call in a thread.

        Raises:
            NoAnswer: the system cannot start another thread.
        """
        done: Future[T] = Future()
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            try:
                Thread(target=self._serve, args=(calls,), name="files", daemon=True).start()
            except RuntimeError as error:
                raise NoAnswer(f"cannot be read: no thread can be started: {error}") from error
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
    except BaseException as error:  # noqa: BLE001 - raised to the caller that waits for the future
        done.set_exception(error)
    finally:
        del done, call  # breaks the same cycle as in Reader.call


_THREADS: Final = _Threads()
_slots_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _slots(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    return _slots_of_loops.setdefault(loop, asyncio.Semaphore(AT_ONCE))
