"""Blocking calls in threads: a call that hangs times out, takes one thread, and does not delay other calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from hub.runtime import threads
from hub.runtime.threads import AT_ONCE, HUNG_AFTER, NoAnswer, Reader, call_briefly
from tests.support.crowd import Crowd


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """An event that stays unset until the test sets it or ends; calls that wait for it hang."""
    release = threading.Event()
    yield release
    release.set()


def at_work() -> int:
    """The number of threads of this module that are busy."""
    return sum(thread.name == "files" for thread in threading.enumerate()) - len(threads._THREADS._idle)


async def test_a_call_behaves_like_a_call() -> None:
    """The result or error of the function is that of the call."""
    reader = Reader(5.0)
    assert await reader.call(max, 1, 2) == 2
    with pytest.raises(KeyError):
        await reader.call({}.__getitem__, "x")
    assert call_briefly(max, 1, 2) == 2
    with pytest.raises(KeyError):
        call_briefly({}.__getitem__, "x")


async def test_a_call_that_hangs_is_given_up(hung: threading.Event) -> None:
    """It times out; further calls fail at once without another thread, until the hanging call ends."""
    reader = Reader(0.3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(NoAnswer, match=r"^does not answer within 0.3 s$"):
        await reader.call(hung.wait)
    given_up = loop.time()
    assert 0.3 <= given_up - began < 2.0
    busy = at_work()
    for _ in range(10):
        with pytest.raises(NoAnswer):
            await reader.call(max, 1, 2)
    assert loop.time() - given_up < 0.2
    assert at_work() <= busy
    hung.set()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await reader.call(max, 1, 2) == 2
                break
            except NoAnswer:
                await asyncio.sleep(0.01)


async def test_call_after_a_cancelled_one_waits_for_its_end(hung: threading.Event) -> None:
    """After a cancelled call, the next one waits for its end, but only until the first one's timeout."""
    reader = Reader(1.0)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.9):
            await reader.call(hung.wait)
    with pytest.raises(NoAnswer):
        await reader.call(max, 1, 2)
    assert 1.0 <= asyncio.get_running_loop().time() - began < 1.9


async def test_hanging_call_gives_up_its_slot(hung: threading.Event) -> None:
    """A call that hangs gives its slot to the next one after ``HUNG_AFTER`` seconds."""
    hanging = [asyncio.create_task(Reader(30.0).call(hung.wait)) for _ in range(10 * AT_ONCE)]
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(10 * HUNG_AFTER + 5.0):
        assert await Reader(5.0).call(max, 1, 2) == 2
    assert asyncio.get_running_loop().time() - began >= 9 * HUNG_AFTER, "they were not before it"
    hung.set()
    await asyncio.gather(*hanging)


async def test_calls_at_once_are_few() -> None:
    """100 concurrent calls run on few threads."""
    crowd = Crowd()
    await asyncio.gather(*(Reader(5.0).call(crowd.visit, 0.005) for _ in range(100)))
    assert crowd.most <= AT_ONCE
    assert sum(thread.name == "files" for thread in threading.enumerate()) <= 2 * AT_ONCE


async def test_an_error_that_comes_late_is_nobodys(hung: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    """An error of a call that has timed out is not logged."""

    def stale() -> None:
        hung.wait()
        raise OSError(116, "Stale file handle")

    reader = Reader(HUNG_AFTER)
    with pytest.raises(NoAnswer):
        await reader.call(stale)
    hung.set()
    while reader._running is not None:  # noqa: ASYNC110 - set by the loop
        await asyncio.sleep(0.01)
    del reader
    assert caplog.text == ""


async def test_call_fails_if_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the call fails with a clear error, and later calls work again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader = Reader(5.0)
    with monkeypatch.context() as full:
        full.setattr(threads, "_THREADS", threads._Threads())
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NoAnswer, match=r"^cannot be read: no thread can be started: can't start new thread$"):
            await reader.call(int)
        assert call_briefly(int) is None
    assert await reader.call(int) == 0


def test_a_glance_is_short(hung: threading.Event) -> None:
    """``call_briefly`` returns None shortly after the start of a call that hangs."""
    began = time.monotonic()
    assert call_briefly(hung.wait) is None
    assert time.monotonic() - began < 2.0


def test_each_event_loop_has_separate_turns() -> None:
    """Calls that are left over in a closed event loop do not block calls in another loop."""
    release = threading.Event()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.gather(*(Reader(5.0).call(release.wait) for _ in range(3 * AT_ONCE)))

    async def read() -> int:
        return await Reader(5.0).call(max, 1, 2)

    try:
        asyncio.run(leave())
        assert asyncio.run(read()) == 2
    finally:
        release.set()
