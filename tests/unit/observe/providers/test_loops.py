"""A plugin's loop and the calls between it and the hub's loop, in its own thread and in the same thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hub_testkit.contexts import ClusterObjects

from hub.errors import ProviderError
from hub.model import Found, Slice
from hub.observe.providers.bridge import BridgedCluster, ChangedCall
from hub.observe.providers.context import ProviderHub
from hub.observe.providers.faults import ProviderCrashed, ProviderDefect, ProviderStalled
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.loops import LoopRunner, LoopThread, PluginLoop
from hub.observe.providers.resolver import Resolver
from hub.plugin import NoConfig, NodeProviderType, ProviderType, TerminalProviderError, TransientProviderError
from hub.registry.spec import ProviderRef
from hub.runtime.clock import SystemClock
from tests.support.loops import SameLoop
from tests.support.virtual import within
from tests.support.waiting import until
from tests.unit.observe.providers.plugins import Scripted, catalog_of, left, node


def loop_on(runner: type[Any]) -> PluginLoop:
    """A PluginLoop with this kind of runner."""
    made: LoopRunner = runner("scripted")
    return PluginLoop("scripted", made, lambda _: ProviderHub("scripted", clock=SystemClock()))


@pytest.fixture(params=[LoopThread, SameLoop])
async def loop(request: pytest.FixtureRequest) -> AsyncIterator[PluginLoop]:
    """A loop of each kind, for tests of what both guarantee."""
    made = loop_on(request.param)
    yield made
    await left(made)


@pytest.fixture
async def apart() -> AsyncIterator[PluginLoop]:
    """A loop in its own thread."""
    made = loop_on(LoopThread)
    yield made
    await left(made)


async def outcome(loop: PluginLoop, work: Any) -> Any:
    """The result of a call in the loop."""
    return await within(5, loop.start("test", "work", work).ended)


# --- calls ---------------------------------------------------------------------------------------------


async def test_a_call_brings_its_result_back(loop: PluginLoop) -> None:
    """A call runs in the plugin's loop, and its result arrives in the hub's."""

    async def work() -> int:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop.runner.loop
        return 7

    assert await outcome(loop, work) == 7
    assert loop.busy == 0


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no"), ProviderDefect, "ValueError: no"),
        (TransientProviderError("away", retry_after=3), TransientProviderError, "away"),
        (TerminalProviderError("wrong"), TerminalProviderError, "wrong"),
        (TimeoutError("slow"), ProviderStalled, "TimeoutError: slow"),
        (SystemExit(1), ProviderCrashed, "raised SystemExit"),
        (KeyboardInterrupt(), ProviderCrashed, "raised KeyboardInterrupt"),
        (GeneratorExit(), ProviderCrashed, "raised GeneratorExit"),
        (asyncio.CancelledError(), ProviderCrashed, "work cancelled itself"),
    ],
)
async def test_plugin_exception_is_converted_to_a_hub_exception(
    loop: PluginLoop, error: BaseException, kind: type[Exception], text: str
) -> None:
    """A plugin's exception is converted into an exception of the hub."""

    async def work() -> None:
        raise error

    with pytest.raises(kind) as caught:
        await outcome(loop, work)
    assert (type(caught.value), str(caught.value)) == (kind, text)
    assert caught.value is not error
    if isinstance(error, TransientProviderError):
        assert caught.value.retry_after == 3  # type: ignore[attr-defined]


async def test_a_cancelled_call_ends_when_it_really_has(loop: PluginLoop) -> None:
    """``ended`` of a cancelled call is not done before the call has ended."""
    over = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await over.wait()

    running = loop.start("test", "work", work)
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.sleep(0.02)
    assert not running.ended.done()
    loop.post(over.set)
    assert await within(5, running.ended) is None


async def test_a_loop_that_is_left_ends_its_calls_at_once_and_is_not_heard_again(loop: PluginLoop) -> None:
    """Calls of an abandoned loop fail at once, its callbacks are ignored, and new calls are refused."""
    taken: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            loop.post_to_hub(taken.append, "late")

    running = [loop.start("test", "work", work) for _ in range(3)]
    await asyncio.sleep(0.02)
    loop.abandon(partial(ProviderStalled, "blocked"))
    for call in running:
        with pytest.raises(ProviderStalled, match="blocked"):
            await within(1, call.ended)
        call.cancel()
    with pytest.raises(ProviderStalled, match="blocked"):
        loop.start("test", "work", work)
    await asyncio.sleep(0.05)
    assert taken == []


async def test_a_stream_of_values_waits_until_each_is_taken(loop: PluginLoop) -> None:
    """``hand`` waits until the value is taken, and raises the error of ``take``."""
    taken: list[int] = []
    given = 0

    def take(value: int) -> None:
        taken.append(value)
        if value == 99:
            raise ValueError("no more")

    async def work() -> None:
        nonlocal given
        for given in range(1000):
            await loop.call_in_hub(take, given)

    with pytest.raises(ProviderDefect, match="ValueError: no more"):
        await outcome(loop, work)
    assert taken == list(range(100))
    assert given == 99


async def test_slow_reader_gets_the_newest_state(loop: PluginLoop) -> None:
    """A slow reader skips states; the objects are no longer followed when it stops."""
    api = ClusterObjects()
    bridged = BridgedCluster(loop, api)
    seen: list[int] = []
    first, second = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        stream: Any = bridged.slices("prod", "web")
        async for slices in stream:
            seen.append(len(slices))
            if len(seen) == 1:
                loop.post_to_hub(first.set)
                await second.wait()
            elif len(slices) == 3:
                break
        await stream.aclose()

    running = loop.start("test", "work", work)
    await within(5, first.wait())
    for number in range(1, 4):
        api.set_slices("prod", "web", *(Slice(f"s{index}", "IPv4", (), ()) for index in range(number)))
        await asyncio.sleep(0.01)
    loop.post(second.set)
    await within(5, running.ended)
    assert seen[0] == 0
    assert seen[-1] == 3
    assert len(seen) <= 3
    await asyncio.sleep(0.02)
    assert not [task for task in asyncio.all_tasks() if "slices of prod/web" in task.get_name()]


async def test_an_error_of_the_clusters_api_reaches_the_plugin(loop: PluginLoop) -> None:
    """An error of the cluster's API is raised in the plugin with its text."""
    api = ClusterObjects()
    api.fail("prod", "web", "the API is away")

    async def work() -> None:
        async for _ in BridgedCluster(loop, api).services("prod", "web"):
            pass

    with pytest.raises(TransientProviderError, match="the API is away"):
        await outcome(loop, work)


async def test_a_flood_of_changed_is_one_call_at_a_time(loop: PluginLoop) -> None:
    """At most one ``changed`` waits in the hub's loop, and a later call is still passed on."""
    calls: list[float] = []
    changed = ChangedCall(loop, lambda: calls.append(time.monotonic()))

    async def work() -> float:
        for _ in range(100_000):
            changed()
        return time.monotonic()

    await outcome(loop, work)
    await asyncio.sleep(0.05)
    assert 1 <= len(calls) < 2000
    before = len(calls)

    async def once_more() -> None:
        changed()

    await outcome(loop, once_more)
    await asyncio.sleep(0.02)
    assert len(calls) == before + 1


# --- loops in their own thread -------------------------------------------------------------------------


async def test_a_callback_that_exits_does_not_end_the_loop(apart: PluginLoop, caplog: pytest.LogCaptureFixture) -> None:
    """After SystemExit in a callback the loop continues; the log has the place, but not the text."""

    def leave(token: str) -> None:
        raise SystemExit(token)

    async def work() -> str:
        asyncio.get_running_loop().call_soon(leave, "-".join(("s3cr3t", "token")))
        await asyncio.sleep(0.02)
        return "still here"

    with caplog.at_level(logging.ERROR):
        assert await outcome(apart, work) == "still here"
    assert "a callback of provider 'scripted' failed: SystemExit\n" in caplog.text
    assert f'File "{__file__}", line ' in caplog.text
    assert "s3cr3t-token" not in caplog.text


async def test_a_thread_ends_once_its_tasks_have(apart: PluginLoop) -> None:
    """The thread of an abandoned loop ends when its last task has ended."""
    over = asyncio.Event()

    async def work() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    apart.start("test", "work", work)
    await asyncio.sleep(0.02)
    apart.abandon(partial(ProviderError, "over"))
    await asyncio.sleep(0.1)
    assert apart.runner.alive
    apart.post(over.set)


async def test_tasks_that_a_plugin_leaks_do_not_keep_the_thread(apart: PluginLoop) -> None:
    """Tasks that a plugin has left behind are cancelled, so that the thread ends."""
    tasks: list[asyncio.Task[None]] = []

    async def work() -> None:
        tasks.extend(asyncio.create_task(asyncio.sleep(1e6)) for _ in range(100))

    await outcome(apart, work)
    assert apart.tasks >= 100


# --- tasks that plugins start --------------------------------------------------------------------------


class Bench:
    """A Resolver with one type whose loop has its own thread."""

    def __init__(self, type_: ProviderType) -> None:
        self.host = ProviderHost(catalog_of(type_), clock=SystemClock(), folder="/nowhere")
        self.resolver = Resolver("c1", ProviderRef(type_.name), self.host, lambda: None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Resolver]:
        """Run until the block is left; everything must then end within 5 s, as SIGTERM requires."""
        task = asyncio.create_task(self.resolver.run())
        try:
            self.resolver.update([node("a")])
            yield self.resolver
        finally:
            task.cancel()
            await within(5, asyncio.wait({task}))
            await within(5, self.host.close())


def opened_by(enter: Any) -> ProviderType:
    """A type with this ``open``."""
    return NodeProviderType("scripted", asynccontextmanager(enter), NoConfig)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), ValueError("x")])
async def test_background_task_exception_is_a_provider_error(error: BaseException) -> None:
    """Any exception in a background task of a provider is its error, and it is opened again."""
    opened = 0

    async def enter(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        nonlocal opened
        opened += 1

        async def work() -> None:
            await asyncio.sleep(0.2)
            raise error

        async with asyncio.TaskGroup() as group:
            if opened == 1:
                group.create_task(work())
            yield Scripted()

    async with Bench(opened_by(enter)).running() as resolver:
        await until(lambda: type(error).__name__ in resolver.status.error)
        assert resolver.resolutions["a"] == Found(("10.0.0.1",))
        await until(lambda: (opened, resolver.status.state) == (2, "ready"))


async def test_system_exit_in_a_task_does_not_end_the_loop() -> None:
    """SystemExit in a separate task does not end the event loop."""

    async def leave() -> None:
        raise SystemExit(1)

    async def enter(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        task = asyncio.create_task(leave())
        await asyncio.wait({task})
        assert "raised SystemExit" in str(task.exception())
        yield Scripted()

    async with Bench(opened_by(enter)).running() as resolver:
        await within(5, resolver.settled())
        assert resolver.status.state == "ready"


async def test_contained_tasks_are_like_others() -> None:
    """Tasks of plugins have results, names and cancellation like other tasks."""
    seen: list[object] = []

    async def enter(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        early = asyncio.create_task(asyncio.sleep(1), name="early")
        early.cancel()
        late = asyncio.create_task(asyncio.sleep(1e6))
        await asyncio.sleep(0.1)
        late.cancel()
        await asyncio.wait({early, late})
        seen.extend([early.get_name(), early.cancelled(), late.cancelled()])
        seen.append(await asyncio.create_task(asyncio.sleep(0.1, "result")))
        yield Scripted()

    async with Bench(opened_by(enter)).running() as resolver:
        await within(5, resolver.settled())
    assert seen == ["early", True, True, "result"]


async def test_provider_runs_in_its_own_thread() -> None:
    """A provider is opened, called and closed in its own thread, never in the hub's."""
    threads: set[str] = set()

    async def resolve(nodes: Any) -> dict[str, Found]:
        threads.add(threading.current_thread().name)
        return {node.name: Found(("10.0.0.1",)) for node in nodes}

    async def enter(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        threads.add(threading.current_thread().name)
        yield Scripted(resolve)
        threads.add(threading.current_thread().name)

    async with Bench(opened_by(enter)).running() as resolver:
        await within(5, resolver.settled())
        assert resolver.resolutions["a"] == Found(("10.0.0.1",))
    assert threads == {"provider scripted"}
