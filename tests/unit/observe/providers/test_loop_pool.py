"""A plugin that blocks affects only itself, is named in the log, and continues in a new thread."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType

import pytest

from hub.model import Found, Unknown
from hub.observe.providers.catalog import Catalog
from hub.observe.providers.context import ProviderHub
from hub.observe.providers.endpoints import EndpointWatch
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.loop_pool import FIRST_SUSPENSION, HOLD_BUDGET, MAX_ABANDONED, MAX_SUSPENSION, LoopPool
from hub.observe.providers.resolver import Resolver
from hub.registry.spec import ProviderRef
from hub.runtime.clock import SystemClock
from tests.support.clocks import ManualClock
from tests.support.loops import SameLoop
from tests.support.virtual import within
from tests.support.waiting import until
from tests.unit.observe.providers.plugins import GOOD, Install, node

FAST = 5.0


class FastClock(SystemClock):
    """A clock that runs FAST times as fast: ten seconds take two."""

    def now(self) -> float:
        return time.monotonic() * FAST

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / FAST)


class Hub:
    """A running provider host, and resolvers that use it."""

    def __init__(self) -> None:
        self.host = ProviderHost(Catalog(), clock=FastClock(), folder="/nowhere")
        self.tasks: list[asyncio.Task[None]] = []

    async def resolver(self, name: str, cluster: str = "") -> Resolver:
        """Start a resolver of node ``a``."""
        await self.host.catalog.load_async(name)
        made = Resolver(cluster or name, ProviderRef(name), self.host, lambda: None)
        self.tasks.append(asyncio.create_task(made.run()))
        made.update([node("a")])
        return made

    async def watch(self, name: str) -> EndpointWatch:
        """Start to follow a provider that brings endpoints."""
        made = EndpointWatch(name, ProviderRef(name), self.host, lambda: None)
        self.tasks.append(asyncio.create_task(made.run()))
        return made


@asynccontextmanager
async def running() -> AsyncIterator[Hub]:
    """Run until the block is left; everything must then end within 5 s, as SIGTERM requires."""
    made = Hub()
    made.tasks.append(asyncio.create_task(made.host.loops.watch()))
    try:
        yield made
    finally:
        plugin().release()
        began = time.monotonic()
        for task in made.tasks:
            task.cancel()
        await asyncio.wait(made.tasks)
        await made.host.close()
        assert time.monotonic() - began < 5


def plugin() -> ModuleType:
    """The imported module of provider ``bad``."""
    return sys.modules["plugin_hub_bad"]


async def slowest_answer(resolver: Resolver, condition: Callable[[], bool]) -> float:
    """Change a node again and again until ``condition``; return the seconds of the slowest answer."""
    slowest, number = 0.0, 0
    while not condition():
        number += 1
        began = time.monotonic()
        resolver.update([node("a", f"10.1.{number >> 8}.{number & 255}")])
        await within(10, resolver.settled())
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.02)
    assert number > 10
    return slowest


BLOCKS = """
import hashlib, os, threading, time
released, calls = threading.Event(), []
reading, writing = os.pipe()

def release():
    released.set()
    os.write(writing, b".")

def block():
    calls.append(threading.current_thread())
    {how}
"""
"""Put before a provider's source: ``block()`` blocks until ``release()``."""
WAYS = {
    "sleeps": "released.wait()",
    "spins": "\n    while not released.is_set(): pass",
    "reads": "os.read(reading, 1)",
    "spins in C": "\n    while not released.is_set(): hashlib.pbkdf2_hmac('sha256', b'', b'', 1_000_000)",
    "swallows everything": (
        "\n    while not released.is_set():\n        try: time.sleep(0.01)\n        except BaseException: pass"
    ),
}


def blocking(source: str, place: str, how: str = WAYS["sleeps"]) -> str:
    """A provider that blocks before ``place``."""
    assert source.count(place) == 1
    return BLOCKS.format(how=how) + source.replace(place, f"block(); {place}")


RESOLVE = "return {node.name"


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
async def test_blocking_plugin_does_not_stop_others(
    install: Install, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Other providers keep answering; the blocking one is logged with its place and gets a new thread."""
    install("bad", blocking(GOOD, RESOLVE, how))
    install("good")
    with caplog.at_level(logging.WARNING, "hub.observe.providers.loop_pool"):
        async with running() as hub:
            good = await hub.resolver("good")
            await within(5, good.settled())
            bad = await hub.resolver("bad")
            slowest = await slowest_answer(good, lambda: bad.status.state == "degraded")
            assert slowest < 0.5
            assert isinstance(bad.resolutions["a"], Unknown)
            assert bad.status.error.startswith("blocked its event loop at ")
            assert "plugin_hub_bad.py:" in bad.status.error
            assert "in block" in bad.status.error
            assert hub.host.loops.abandoned_threads("bad") == 1
            await until(lambda: len(plugin().calls) == 2)
            assert len(set(plugin().calls)) == 2
            assert hub.host.loops.stalls["bad"].count == 1
            assert hub.host.loops.stalls["bad"].seconds >= 10
            assert hub.host.loops.abandoned_threads("good") == 0
    assert "provider 'bad' blocks its event loop (" in caplog.text
    assert "provider 'bad' is started again in a new thread; 1 of at most 3 threads" in caplog.text


async def test_a_fresh_thread_answers_where_the_plugin_no_longer_blocks(install: Install) -> None:
    """A provider that blocked once works again in a new thread, and its known resolutions stay."""
    install("bad", blocking(GOOD, RESOLVE).replace("    released.wait()", "    if len(calls) == 2: released.wait()"))
    async with running() as hub:
        bad = await hub.resolver("bad")
        await within(5, bad.settled())
        bad.update([node("a", "10.0.0.2")])
        await until(lambda: bad.status.state == "degraded")
        assert bad.resolutions["a"] == Found(("10.0.0.1",))
        await until(lambda: bad.status.state == "ready")
        assert hub.host.loops.suspension("bad") is None
        plugin().release()
        await until(lambda: hub.host.loops.abandoned_threads("bad") == 0)


async def test_a_plugin_that_always_blocks_gets_no_more_than_three_threads(install: Install) -> None:
    """After three blocked threads the type is suspended until one of them ends."""
    install("bad", blocking(GOOD, RESOLVE))
    install("good")
    async with running() as hub:
        good = await hub.resolver("good")
        resolvers = [await hub.resolver("bad", f"c{number}") for number in range(4)]
        await until(lambda: hub.host.loops.suspension("bad") is not None, 60)
        for resolver in resolvers:
            resolver.update([node("b")])
        await until(
            lambda: all("suspended because 3 of its threads block" in resolver.status.error for resolver in resolvers),
            60,
        )
        assert len(plugin().calls) == MAX_ABANDONED
        assert hub.host.loops.abandoned_threads("bad") == MAX_ABANDONED
        assert "plugin_hub_bad.py:" in resolvers[0].status.error
        assert hub.host.stats["bad"].outcomes["suspended"] > 0
        assert good.status.state == "ready"
        plugin().release()
        await until(lambda: hub.host.loops.suspension("bad") is None)
        again = await hub.resolver("bad", "c5")
        await within(5, again.settled())
        assert again.resolutions["a"] == Found(("10.0.0.1",))


SHARED = GOOD.replace("open=open_provider", "open=open_provider, shared=shared").replace(
    "@hookimpl", "@asynccontextmanager\nasync def shared(hub):\n    yield\n\n@hookimpl"
)
BACKGROUND = GOOD.replace(
    "async def open_provider(cluster, config, shared):\n    yield Provider()",
    """async def open_provider(cluster, config, shared):
    import asyncio
    async def work():
        await asyncio.sleep(0.1)
        return None
    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        yield Provider()""",
)
MEASURE = GOOD.replace("    yield Provider()", "    cluster.hub.measure('size', read)\n    yield Provider()").replace(
    "class Provider", "def read():\n    return {'': 1.0}\n\nclass Provider"
)


@pytest.mark.parametrize(
    "source",
    [
        blocking(GOOD, "yield Provider()"),
        blocking(SHARED, "yield\n\n@hookimpl"),
        blocking(BACKGROUND, "return None"),
    ],
    ids=["open", "shared", "background"],
)
async def test_it_does_not_matter_where_a_plugin_blocks(install: Install, source: str) -> None:
    """Blocking in ``open``, in ``shared`` or in a background task is detected alike."""
    install("bad", source)
    install("good")
    async with running() as hub:
        good = await hub.resolver("good")
        await within(5, good.settled())
        bad = await hub.resolver("bad")
        assert await slowest_answer(good, lambda: bad.status.state == "degraded") < 0.5
        assert bad.status.error.startswith("blocked its event loop at ")
        await until(lambda: len(plugin().calls) == 2)


async def test_closing_that_blocks_delays_the_end_by_seconds_at_most(install: Install) -> None:
    """A provider that blocks while closing does not keep the hub from ending within 5 s."""
    source = GOOD.replace("yield Provider()", "yield Provider()\n    pass")
    install(
        "bad", blocking(source, "pass").replace("def release():", "def release():\n    if calls: return\n    return")
    )
    async with running() as hub:
        bad = await hub.resolver("bad")
        await within(5, bad.settled())
        assert bad.status.state == "ready"
    assert len(plugin().calls) == 1
    plugin().released.set()


async def test_numbers_that_block_are_left_out_of_the_metrics(install: Install) -> None:
    """Measures of a provider that blocks are left out; those of other providers are read."""
    install("bad", blocking(MEASURE, "return {'': 1.0}"))
    install("good", MEASURE)
    async with running() as hub:
        for resolver in (await hub.resolver("good"), await hub.resolver("bad")):
            await within(5, resolver.settled())
        began = time.monotonic()
        await hub.host.measure()
        assert time.monotonic() - began < 2
        assert hub.host.measures() == (("good", "size", "", 1.0),)


ENDPOINTS = """
import asyncio
from contextlib import asynccontextmanager
from hub.plugin import EndpointProviderType, NoConfig, Snapshot, SnapshotEndpoint, hookimpl

class Provider:
    async def watch(self, /):
        yield Snapshot((SnapshotEndpoint("a", ("10.0.0.1",)),))
        await asyncio.sleep(0.1)
        return

@asynccontextmanager
async def open_provider(cluster, config, shared):
    yield Provider()

@hookimpl
def hub_register_providers():
    return [EndpointProviderType(name=NAME, open=open_provider, config=NoConfig)]
"""


async def test_a_watch_that_blocks_keeps_its_snapshot(install: Install) -> None:
    """The snapshot of a watch that blocks stays."""
    install("bad", blocking(ENDPOINTS, "return\n"))
    async with running() as hub:
        watch = await hub.watch("bad")
        await until(lambda: watch.status.error.startswith("blocked its event loop at "))
        assert watch.snapshot is not None
        assert [endpoint.name for endpoint in watch.snapshot.endpoints] == ["a"]


FLOOD = GOOD.replace(
    "    yield Provider()",
    """    import asyncio
    async def flood():
        while True:
            for _ in range(1000):
                cluster.changed()
            await asyncio.sleep(0.001)  # a loop that never waits is suspended, which is another test
    task = asyncio.create_task(flood())
    yield Provider()
    task.cancel()""",
)


async def test_flood_of_changed_calls_delays_no_provider(install: Install) -> None:
    """A provider that calls ``changed`` all the time gets about one pass a second, and delays no other."""
    install("bad", BLOCKS.format(how="pass") + FLOOD)
    install("good")
    async with running() as hub:
        good = await hub.resolver("good")
        await within(5, good.settled())
        bad = await hub.resolver("bad")
        await within(5, bad.settled())
        calls, began = bad.calls, time.monotonic()
        assert await slowest_answer(good, lambda: time.monotonic() - began > 2) < 0.5
        assert bad.calls - calls <= 2 * FAST + 2


def numbers_in(seconds: float) -> int:
    """How many numbers this machine adds up within ``seconds``, in one call that holds the interpreter lock."""
    began, sample = time.perf_counter(), 20_000_000
    sum(range(sample))
    return int(sample * seconds / (time.perf_counter() - began))


async def test_provider_that_holds_the_interpreter_is_suspended(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """A provider that holds the interpreter lock is logged and suspended."""
    install("bad", blocking(GOOD, RESOLVE, f"sum(range({numbers_in(2.5 * HOLD_BUDGET)}))"))
    host = ProviderHost(Catalog(), clock=SystemClock(), folder="/nowhere")
    await host.catalog.load_async("bad")
    watch = asyncio.create_task(host.loops.watch())
    await asyncio.sleep(0.3)
    bad = Resolver("c1", ProviderRef("bad"), host, lambda: None)
    task = asyncio.create_task(bad.run())
    with caplog.at_level(logging.WARNING, "hub.observe.providers.loop_pool"):
        for number in range(20):  # on a busy machine its thread may get no more CPU than the hub's
            bad.update([node("a", f"10.0.0.{number}")])
            await within(60, bad.settled())
            if bad.status.state == "degraded":
                break
    assert "provider 'bad' stopped the whole hub for " in caplog.text
    assert bad.status.error.startswith("suspended because it stopped the whole hub for ")
    assert "plugin_hub_bad.py:" in bad.status.error
    suspension = host.loops.suspension("bad")
    assert suspension is not None
    assert FIRST_SUSPENSION - 10 < (suspension.retry_after or 0) <= FIRST_SUSPENSION
    for pending in (task, watch):
        pending.cancel()
    await asyncio.wait([task, watch])
    await host.close()


# --- telling stalls apart, with a clock that the test moves -------------------------------------------


class Busy(SameLoop):
    """A loop whose thread has used as much CPU as the test says."""

    used = 0.0

    def cpu(self) -> float:
        return self.used


class LateClock(ManualClock):
    """A clock whose sleeps take longer by the given times; then ``sleep`` raises CancelledError."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if not self.late:
            raise asyncio.CancelledError
        self.advance(seconds + self.late.pop(0))


class Bench:
    """A pool with a loop for ``bad``, whose clock and CPU time the test sets."""

    def __init__(self) -> None:
        self.clock = LateClock()
        context = ProviderHub("bad", clock=self.clock)
        self.pool = LoopPool(self.clock, lambda _: context, dict, Busy)
        self.pool.of("bad")

    async def look(self, late: float, used: float) -> None:
        """Let the pool check once, this late, after the plugin's thread has used this much CPU."""
        loop = self.pool.of("bad")
        await asyncio.sleep(0)
        assert isinstance(loop.runner, Busy)
        loop.runner.used += used
        self.clock.late = [late]
        with pytest.raises(asyncio.CancelledError):
            await self.pool.watch()


@pytest.mark.parametrize(
    ("late", "used", "own", "its"), [(3.0, 0.1, 3.0, 0.0), (3.0, 2.9, 0.0, 3.0), (0.1, 0.1, 0.0, 0.0)]
)
async def test_hub_stall_is_blamed_on_the_thread_that_used_the_cpu(
    late: float, used: float, own: float, its: float
) -> None:
    """A stall of the hub is blamed on a plugin only if its thread used the CPU."""
    bench = Bench()
    await bench.look(late, used)
    assert bench.pool.hub_stalls.seconds == pytest.approx(own)
    assert sum(record.seconds for record in bench.pool.stalls.values()) == pytest.approx(its)
    assert (bench.pool.suspension("bad") is not None) == bool(its)


@pytest.mark.parametrize(("late", "suspended"), [(1.0, False), (1.01, True)])
async def test_interpreter_may_be_held_for_a_second(late: float, *, suspended: bool) -> None:
    """A provider is suspended if it holds the interpreter lock for more than a second (docs/plugins/index.md)."""
    bench = Bench()
    await bench.look(late, late)
    assert bench.pool.stalls["bad"].seconds == pytest.approx(late)
    assert (bench.pool.suspension("bad") is not None) == suspended


async def test_suspensions_double_up_to_an_hour_and_are_forgotten_in_peace() -> None:
    """Suspensions double up to an hour, and are short again after a long time without one."""
    bench = Bench()
    lengths = []
    for _ in range(8):
        await bench.look(2.0, 1.9)
        error = bench.pool.suspension("bad")
        assert error is not None
        lengths.append(error.retry_after)
        bench.clock.time += (error.retry_after or 0) + 1
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    bench.clock.time += MAX_SUSPENSION
    await bench.look(2.0, 1.9)
    error = bench.pool.suspension("bad")
    assert error is not None
    assert error.retry_after == FIRST_SUSPENSION
