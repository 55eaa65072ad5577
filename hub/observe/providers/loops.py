"""Runs an event loop for one provider type in its own thread, and passes calls between it and the hub's loop.

A plugin that blocks stops only its own loop. Only frozen values and the hub's own exceptions pass between the loops.
:meth:`PluginLoop.start` runs a call in the plugin's loop and returns its outcome; the ``…_hub`` methods run code in the
hub's loop. Deadlines are enforced by the hub's loop, so they work while the plugin's loop blocks. A loop that blocks is
abandoned: its calls end with an error at once, and its later callbacks are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from hub.errors import ProviderError
from hub.observe.providers.faults import ProviderCrashed, clean, places

if TYPE_CHECKING:
    from hub.observe.providers.context import ProviderHub

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_DEPTH: Final = 100
"""Maximum frames of a thread, from the innermost, that are searched for the place where it blocks."""


class LoopRunner(Protocol):
    """Runs an event loop for one provider type."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its thread still runs; False if it has none."""
        ...

    def cpu(self) -> float:
        """Seconds of CPU that its thread has used."""
        ...

    def stack(self) -> list[FrameType]:
        """The present frames of its thread, the innermost first."""
        ...

    def end(self) -> None:
        """Cancel the loop's tasks, and stop it when they have ended; does not wait for that."""
        ...


class LoopThread:
    """A :class:`LoopRunner` with a daemon thread, so that a blocked thread does not keep the process alive.

    Args:
        name: name of the provider type.

    Raises:
        RuntimeError: the system cannot start another thread.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._name = name
        self._cpu_clock: int | None = None
        self._ended = False
        self._ending: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"provider {name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def cpu(self) -> float:
        """Seconds of CPU that the thread has used; 0 before it runs and after it has ended."""
        with suppress(OSError):
            return time.clock_gettime(self._cpu_clock) if self._cpu_clock is not None else 0.0
        return 0.0

    def stack(self) -> list[FrameType]:
        """The present frames of the thread, the innermost first."""
        frames: list[FrameType] = []
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - documented for such uses
        while frame is not None and len(frames) < MAX_DEPTH:
            frames.append(frame)
            frame = frame.f_back
        return frames

    def end(self) -> None:
        """Cancel the loop's tasks and stop it; a thread that blocks does this when it continues."""
        with suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self._end)

    def _run(self) -> None:
        self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        asyncio.set_event_loop(self.loop)
        contain(self.loop)
        while not self._ended:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - SystemExit in a plugin's callback must not end the loop
                unhandled(self.loop, {"message": f"a callback of provider {self._name!r} failed", "exception": error})
        self.loop.close()

    def _end(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self._ending = self.loop.create_task(self._finish(tasks), name="end")

    async def _finish(self, tasks: set[asyncio.Task[Any]]) -> None:
        if tasks:
            await asyncio.wait(tasks)  # a task that ignores its cancellation keeps the thread
        self._ended = True
        self.loop.stop()


class Running(Generic[T]):
    """A call in a plugin's loop; used in the hub's loop.

    Attributes:
        ended: done once the call has ended, with its result or a HubError, or once its loop was abandoned.
    """

    def __init__(self, loop: PluginLoop, what: str) -> None:
        self.ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._loop = loop
        self._what = what
        self._task: asyncio.Task[T] | None = None

    def cancel(self) -> None:
        """Cancel the call in its loop; ``ended`` is done when it has ended."""
        self._loop.post(self._cancel)

    def settle(self, result: T | None, error: Exception | None) -> None:
        """Set the outcome of the call, which has ended or whose loop was abandoned."""
        self._loop.forget(self)
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(result)  # type: ignore[arg-type]  # T may be None
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # marks it as retrieved, so that asyncio does not log it

    # --- in the plugin's loop ------------------------------------------------------------------------

    def begin(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Start the call's task; ``name`` is the task's name."""
        self._task = self._loop.runner.loop.create_task(Contained(work()), name=name)
        self._task.add_done_callback(self._finished)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finished(self, task: asyncio.Task[T]) -> None:
        error: Exception | None = None
        if task.cancelled():
            error = ProviderCrashed(f"{self._what} cancelled itself")
        elif (failure := task.exception()) is not None:
            error = self._loop.clean(failure)
            del failure
        self._loop.post_to_hub(self.settle, task.result() if error is None else None, error)


class PluginLoop:
    """One provider type's loop. Created in the hub's loop.

    Attributes:
        name: the provider type.
        context: the HubContext for code in this loop.
        abandoned: returns the error of calls into the loop after it was abandoned; None while the loop is in use.
    """

    def __init__(self, name: str, runner: LoopRunner, context: Callable[[PluginLoop], ProviderHub]) -> None:
        self.name = name
        self.runner = runner
        self.abandoned: Callable[[], ProviderError] | None = None
        self._hub = asyncio.get_running_loop()
        self._running: set[Running[Any]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.context = context(self)

    # --- in the hub's loop ---------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """Number of running calls."""
        return len(self._running)

    @property
    def tasks(self) -> int:
        """Number of tasks in this loop, including those of the provider."""
        return len(asyncio.all_tasks(self.runner.loop))

    def start(self, owner: str, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Running[T]:
        """Run ``await work()`` as a task in the plugin's loop.

        Args:
            owner: the caller, for the task's name.
            what: the call, for the task's name and for errors.
            work: makes the coroutine; called in the plugin's loop.

        Raises:
            ProviderError: the loop was abandoned.
        """
        if self.abandoned is not None:
            raise self.abandoned()
        running: Running[T] = Running(self, what)
        self._running.add(running)
        self.post(running.begin, f"{owner} {what}", work)
        return running

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Schedule a callback in the plugin's loop; ignored if the loop has ended."""
        with suppress(RuntimeError):
            self.runner.loop.call_soon_threadsafe(call, *args)

    def abandon(self, why: Callable[[], ProviderError]) -> None:
        """Abandon the loop: fail every call now, ignore later callbacks, and let the thread end when it can."""
        self.abandoned = why
        for running in tuple(self._running):
            running.settle(None, why())
        for task in tuple(self._serving):
            task.cancel()
        self.runner.end()

    def forget(self, running: Running[Any]) -> None:
        """Remove a call that has ended."""
        self._running.discard(running)

    # --- in the plugin's loop ------------------------------------------------------------------------

    def post_to_hub(self, call: Callable[..., object], *args: Any) -> None:
        """Schedule a callback in the hub's loop; ignored if this loop is abandoned by then."""
        with suppress(RuntimeError):  # the hub's loop has ended
            self._hub.call_soon_threadsafe(self._run_posted, call, args)

    async def call_in_hub(self, function: Callable[[T], object], value: T) -> None:
        """Call ``function(value)`` in the hub's loop and wait for it, so that a fast sender is slowed down."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.post_to_hub(self._call, function, value, done)
        await done

    async def run_in_hub(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``await work()`` in the hub's loop, and return its result or raise its exception."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._hub))

    def start_in_hub(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        """Run ``work()`` as a task in the hub's loop, and return a function that ends it.

        The task also ends when this loop is abandoned.
        """
        serving: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = self._hub.create_task(work(), name=name)
            serving.append(task)
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        def stop() -> None:
            for task in serving:
                task.cancel()

        self.post_to_hub(begin)
        return lambda: self.post_to_hub(stop)

    def clean(self, error: BaseException) -> Exception:
        """A plugin's error, converted for the hub's loop by :func:`hub.observe.providers.faults.clean`."""
        return clean(error, self.context.secrets())

    # --- crossing ------------------------------------------------------------------------------------

    def _run_posted(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run a callback in the hub's loop, unless the plugin's loop was abandoned."""
        if self.abandoned is None:
            call(*args)

    def _call(self, function: Callable[[T], object], value: T, done: asyncio.Future[None]) -> None:
        error: Exception | None = None
        try:
            function(value)
        except Exception as raised:  # noqa: BLE001 - raised again in the plugin's task
            error = clean(raised)
        self.post(_finish_call, done, error)


def _finish_call(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


# --- what runs in a plugin's loop -----------------------------------------------------------------------


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """Install a task factory and an exception handler, so that no task ends the loop and no secret is logged."""

    def factory(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **more: Any) -> asyncio.Task[T]:
        return asyncio.Task(work if isinstance(work, Contained) else Contained(work), loop=loop, **more)

    loop.set_task_factory(factory)  # type: ignore[arg-type]  # typeshed also allows generators
    loop.set_exception_handler(unhandled)


def unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log like asyncio's default handler, but without error texts and arguments, which may contain secrets."""
    message, error = str(context.get("message")), context.get("exception")
    task = context.get("future", context.get("task"))
    if "handle" in context:  # "Exception in callback name(arguments)"
        message = message.partition("(")[0]
    if isinstance(task, asyncio.Task):
        message += f" ({task.get_name()})"
    if isinstance(error, BaseException):
        message += f": {type(error).__name__}\n{places(error)}"
    log.error("%s", message)


class Contained(Coroutine[Any, Any, T]):
    """A plugin's coroutine; ``SystemExit`` and other BaseExceptions in it become ProviderCrashed.

    It is not a coroutine function around ``work``: if its task ended before the first step, ``work`` would never be
    awaited, which Python warns about.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work

    def send(self, value: Any, /) -> Any:
        """See :class:`collections.abc.Coroutine`."""
        try:
            return self._work.send(value)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # for example SystemExit, which would end the event loop
            raise ProviderCrashed(f"raised {type(error).__name__}") from error

    def throw(self, *error: Any) -> Any:
        """See :class:`collections.abc.Coroutine`."""
        try:
            return self._work.throw(*error)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as raised:
            raise ProviderCrashed(f"raised {type(raised).__name__}") from raised
        finally:
            del error  # breaks a reference cycle: its traceback holds this frame

    def close(self) -> None:
        """See :class:`collections.abc.Coroutine`."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        """See :class:`collections.abc.Coroutine`."""
        return self._work.__await__()
