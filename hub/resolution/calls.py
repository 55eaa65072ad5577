"""Foreign code behind a deadline: no provider can hold, stop or crash the hub.

Calls run in tasks of their own instead of the caller's, outside any TaskGroup: a provider that swallows
its cancellation would otherwise keep the caller (and the group) waiting for ever. Here it is left behind
after a grace of one second, reported, and not called again while it still runs.

Tasks a provider starts itself inherit a context variable by which :func:`contain_tasks` knows them: what no
task may raise (``SystemExit`` would end the event loop) becomes an error of the provider there, too.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

from hub.errors import ProviderError

log = logging.getLogger(__name__)

T = TypeVar("T")

GRACE: Final = 1.0
"""Seconds a cancelled call gets to clean up; SIGTERM must end the whole hub within 5."""


class ProviderStalled(ProviderError):
    """A provider did not answer within its deadline."""


class ProviderCrashed(ProviderError):
    """A provider ended in a way no call may end: it exited, cancelled itself, or its background task died."""


class Interrupted(BaseException):
    """Raised in a plugin's code that blocked the event loop; no ``Exception``, so that it is not swallowed."""


_FOREIGN: Final[ContextVar[bool]] = ContextVar("foreign", default=False)
"""Whether a plugin's code runs here."""


class Calls:
    """Calls into one provider, none of which can outlive its deadline by more than the grace."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stuck: set[asyncio.Task[Any]] = set()

    async def call(self, what: str, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        """The result of ``await work()``.

        Raises:
            ProviderStalled: it took longer, or an earlier call is still running although cancelled.
            ProviderCrashed: it raised something that is no ``Exception``.
            Exception: whatever it raised.
        """
        task = self.start(what, work)
        try:
            try:
                await asyncio.wait({task}, timeout=seconds)
            except asyncio.CancelledError:
                await self.abandon(task)
                raise
            if not task.done():
                ended = await self.abandon(task)
                raise ProviderStalled(
                    f"{what} did not end within {seconds:g} s" + ("" if ended else " and ignores cancellation")
                )
            return outcome(task, what)
        finally:
            del task  # as in outcome

    def start(self, what: str, work: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """``await work()`` as a task, for a call that lasts; end it with :meth:`abandon`.

        Raises:
            ProviderStalled: an earlier call is still running although cancelled.
        """
        if self._stuck:
            raise ProviderStalled(f"an earlier call still runs although it was cancelled; {what} was not called")
        return asyncio.create_task(_contained(work), name=f"{self._name} {what}")

    async def abandon(self, task: asyncio.Task[Any]) -> bool:
        """Cancel ``task`` and wait a moment; False where it still runs."""
        task.cancel()
        self._stuck.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait({task}, timeout=GRACE)
        return task.done()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._stuck.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it as forgotten


class Held(Generic[T]):
    """An async context manager kept open by a task of its own, so that it is left by the task that entered it.

    Args:
        calls: the calls it is one of: not entered while one of them was left behind and still runs.
        enter: makes the manager.

    Attributes:
        task: ends when the manager was left, wanted or not; None before :meth:`open`, and once it was asked why it
            failed.
    """

    def __init__(self, calls: Calls, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._calls = calls
        self._enter = enter
        self._stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Open, as far as is known."""
        return self.task is not None and not self.task.done()

    async def open(self, seconds: float) -> T:
        """Enter; what is yielded.

        Raises:
            ProviderStalled: entering took longer, or an earlier call is still running although cancelled.
            Exception: whatever entering raised.
        """
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        task = self.task = self._calls.start("open", lambda: self._hold(entered))
        try:
            waiting: set[asyncio.Future[Any]] = {task, entered}
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._stop.set()
            await self._calls.abandon(task)
            raise
        if entered.done():
            return entered.result()
        if not task.done():
            self._stop.set()  # should it get there after all, it closes at once
            ended = await self._calls.abandon(task)
            raise ProviderStalled(
                f"opening did not end within {seconds:g} s" + ("" if ended else " and ignores cancellation")
            )
        self.task = None
        try:
            outcome(task, "opening")
        finally:
            del task, waiting  # as in outcome
        raise ProviderCrashed("opening ended without a provider")

    async def close(self, seconds: float) -> None:
        """Leave; cancelled after ``seconds``, and left behind after the grace. Raises nothing."""
        task = self.task
        if task is None:
            return
        self._stop.set()
        if not task.done():
            try:
                await asyncio.wait({task}, timeout=seconds)
            finally:
                if not task.done():
                    await self._calls.abandon(task)
        if task.done() and not task.cancelled():
            task.exception()

    def failure(self) -> Exception:
        """Why a manager that should be open is not; asked once."""
        task, self.task = self.task, None
        assert task is not None  # noqa: S101 - only asked of one that was opened
        try:
            outcome(task, "the provider's background work")
        except Exception as error:  # noqa: BLE001 - foreign code
            return error
        finally:
            del task  # as in outcome
        return ProviderCrashed("the provider closed itself")

    async def _hold(self, entered: asyncio.Future[T]) -> None:
        async with self._enter() as value:
            entered.set_result(value)
            await self._stop.wait()


def outcome(task: asyncio.Task[T], what: str) -> T:
    """The result of an ended task.

    Raises:
        ProviderCrashed: it was cancelled by itself.
        Exception: whatever it raised.
    """
    try:
        if task.cancelled():
            raise ProviderCrashed(f"{what} cancelled itself")
        if not isinstance(task.exception(), Exception | None):
            raise ProviderCrashed(f"raised {type(task.exception()).__name__}") from task.exception()
        return task.result()
    finally:
        del task  # it keeps the error, whose traceback leads to this frame


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, no task that a provider starts on ``loop`` can end it, or write to the log what its error says.

    A second call changes nothing.
    """

    def factory(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **more: Any) -> asyncio.Task[T]:
        return asyncio.Task(_Contained(work) if _FOREIGN.get() else work, loop=loop, **more)

    if loop.get_task_factory() is None:
        loop.set_task_factory(factory)  # type: ignore[arg-type]  # typeshed also allows generators
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_unhandled)


def _unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio would, without an error's text or a call's arguments: nobody has redacted them."""
    message, error = str(context.get("message")), context.get("exception")
    task = context.get("future", context.get("task"))
    if "handle" in context:  # "Exception in callback name(arguments)"
        message = message.partition("(")[0]
    if isinstance(task, asyncio.Task):
        message += f" ({task.get_name()})"
    if isinstance(error, BaseException):
        message += f": {type(error).__name__}\n{places(error)}"
    log.error("%s", message)


def places(error: BaseException) -> str:
    """A traceback without the error's text, which may quote a secret."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


async def _contained(work: Callable[[], Awaitable[T]]) -> T:
    _FOREIGN.set(True)
    with _translated(GeneratorExit):  # which is how Python closes this coroutine where its loop has ended
        return await work()


class _Contained(Coroutine[Any, Any, T]):
    """A provider's own coroutine; not one around it, which would leave it unawaited where its task ends early."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work

    def send(self, value: Any, /) -> Any:
        with _translated():
            return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        try:
            with _translated():
                return self._work.throw(*error)
        finally:
            del error  # its traceback leads to this frame

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()


@contextmanager
def _translated(*allowed: type[BaseException]) -> Iterator[None]:
    passing: tuple[type[BaseException], ...] = (Exception, asyncio.CancelledError, *allowed)
    try:
        yield
    except passing:
        raise
    except Interrupted as error:
        raise ProviderCrashed(str(error)) from error
    except BaseException as error:  # SystemExit in a task would end the event loop
        raise ProviderCrashed(f"raised {type(error).__name__}") from error
