"""Providers that block the event loop: named, interrupted, suspended, taken back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from hub.aio.watchdog import Frame, Stall
from hub.model import Found, Unknown
from hub.registry.spec import ProviderRef
from hub.resolution.catalog import Catalog
from hub.resolution.endpoints import EndpointWatch
from hub.resolution.host import ProviderHost
from hub.resolution.resolver import Resolver
from hub.resolution.stalls import FIRST_SUSPENSION, MAX_SUSPENSION, WINDOW, Stalls
from tests.unit.resolution.plugins import GOOD, Install, node
from tests.unit.resolution.virtual import within

MINE = Frame("plugin_bad.client", "/site/plugin_bad/client.py", 7, "fetch")
LIBRARY = Frame("requests.api", "/site/requests/api.py", 3, "get")
IMPORT = Frame("importlib._bootstrap", "<frozen importlib._bootstrap>", 1, "_load")
HUB = Frame("hub.desired.view", "/hub/view.py", 5, "build")
LOOP = Frame("asyncio.base_events", "/lib/base_events.py", 1, "run_forever")
OWNERS = {"plugin_bad": ("bad",)}


class ManualClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.time = 10_000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


class Bench:
    """Stalls that are told what a watchdog would tell them."""

    def __init__(self, owners: Mapping[str, tuple[str, ...]]) -> None:
        self.clock = ManualClock()
        self.suspended: list[str] = []
        self.stalls = Stalls(lambda: owners, self.clock, self.suspended.append)

    async def stall(self, seconds: float, *stacks: tuple[Frame, ...], starved: bool = False) -> None:
        """One stall, from the first look to the last."""
        samples = stacks or ((LIBRARY, MINE, LOOP),)
        self.stalls.look(Stall(0.3, over=False, samples=samples[:1], starved=starved))
        self.stalls.look(Stall(seconds, over=True, samples=samples, starved=starved))
        await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Over one plugin, ``bad``."""
    made = Bench(OWNERS)
    async with made.stalls.watching():
        yield made


async def test_a_stall_is_charged_to_the_plugin_whose_frame_is_innermost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A library called by the plugin is the plugin's doing; the log names provider, duration, file and line, once."""
    with caplog.at_level(logging.WARNING, "hub.resolution.stalls"):
        await bench.stall(0.6)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("provider 'bad' blocks the event loop (0.6 s) at /site/plugin_bad/client.py:7 in fetch; ")
    record = bench.stalls.records["bad"]
    assert (record.count, record.seconds, record.suspensions) == (1, 0.6, 0)
    assert record.where == "/site/plugin_bad/client.py:7 in fetch"
    assert bench.stalls.suspension("bad") is None


@pytest.mark.parametrize(
    ("stacks", "starved"),
    [
        (((HUB, LOOP),), False),
        (((HUB, MINE, LOOP),), False),
        (((LIBRARY, LOOP),), False),
        (((MINE, LOOP), (HUB, LOOP)), False),
        (((MINE, LOOP),), True),
        (((Frame("plugin_badly", "x", 1, "f"), LOOP),), False),
    ],
    ids=["the hub", "the hub called by a plugin", "neither", "half of each", "no CPU", "another with a similar name"],
)
async def test_a_stall_that_is_not_clearly_a_plugins_blames_nobody(
    bench: Bench, stacks: tuple[tuple[Frame, ...], ...], starved: bool
) -> None:
    """It is counted as the hub's own."""
    await bench.stall(5.0, *stacks, starved=starved)
    assert bench.stalls.records == {}
    assert (bench.stalls.own.count, bench.stalls.own.seconds) == (1, 5.0)
    assert bench.suspended == []


async def test_more_than_a_second_within_a_minute_suspends(bench: Bench) -> None:
    """Short stalls far apart are warned about and borne; close together they are too much."""
    for _ in range(10):
        await bench.stall(0.6)
        bench.clock.time += WINDOW + 1
    assert bench.suspended == []
    await bench.stall(0.6)
    await bench.stall(0.6)
    assert bench.suspended == ["bad"]
    error = bench.stalls.suspension("bad")
    assert error is not None
    assert str(error) == "suspended because it blocked the event loop at /site/plugin_bad/client.py:7 in fetch"
    assert error.retry_after == FIRST_SUSPENSION
    bench.clock.time += FIRST_SUSPENSION
    assert bench.stalls.suspension("bad") is None


async def test_suspensions_double_up_to_an_hour_and_are_forgotten_in_peace(bench: Bench) -> None:
    """A provider that never learns costs the hub a second an hour."""
    lengths = []
    for _ in range(8):
        await bench.stall(2.0)
        error = bench.stalls.suspension("bad")
        assert error is not None
        lengths.append(error.retry_after)
        bench.clock.time += (error.retry_after or 0) + 1
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert bench.stalls.records["bad"].suspensions == 8
    bench.clock.time += MAX_SUSPENSION
    await bench.stall(2.0)
    error = bench.stalls.suspension("bad")
    assert error is not None
    assert error.retry_after == FIRST_SUSPENSION


async def test_an_import_in_the_middle_of_a_call_may_take_longer(bench: Bench) -> None:
    """It is named like any stall, and only one of more than nine seconds counts."""
    importing = (Frame("sdk.models", "/site/sdk/models.py", 1, "<module>"), IMPORT, MINE, LOOP)
    await bench.stall(8.0, importing)
    assert bench.stalls.records["bad"].seconds == 8.0
    assert bench.suspended == []
    await bench.stall(11.0, importing)
    assert bench.suspended == ["bad"]


async def test_a_stall_that_does_not_end_is_reported_meanwhile(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """After a second, and not again when it ends."""
    stack = ((MINE, LOOP),)
    with caplog.at_level(logging.WARNING, "hub.resolution.stalls"):
        for seconds in (0.3, 0.55, 0.9, 1.1):
            bench.stalls.look(Stall(seconds, over=False, samples=stack))
        assert len(caplog.records) == 1
        assert "1.1 s so far, and goes on" in caplog.text
        bench.stalls.look(Stall(1.4, over=True, samples=stack))
        assert len(caplog.records) == 1


async def test_each_stall_is_reported_also_after_one_that_blames_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A stall that was reported so far may end as nobody's: the process got no CPU."""
    stack = ((MINE, LOOP),)
    with caplog.at_level(logging.WARNING, "hub.resolution.stalls"):
        bench.stalls.look(Stall(1.1, over=False, samples=stack))
        bench.stalls.look(Stall(1.4, over=True, samples=stack, starved=True))
        assert len(caplog.records) == 1
        bench.stalls.look(Stall(0.6, over=True, samples=stack))
        assert len(caplog.records) == 2


# --- the whole way: a plugin on disk, a real loop, real time -----------------------------------------------

BLOCKING = {
    "sleeps": "import time; time.sleep(60)",
    "spins": "\n        while True: pass",
    "reads": "import socket\n        a, b = socket.socketpair()\n        with a, b: a.recv(1)",
    "spins and swallows": (
        "\n        while True:\n            try: sum(range(1000))\n            except Exception: pass"
    ),
}


@pytest.mark.parametrize("source", BLOCKING.values(), ids=BLOCKING)
async def test_a_provider_that_blocks_for_ever_is_interrupted_and_suspended(install: Install, source: str) -> None:
    """The loop runs again after one to two seconds, the provider is named, and nothing is asked of it for a minute."""
    install("bad", GOOD.replace("return {node", f"{source}\n        return {{node", 1))
    install("good")
    host = ProviderHost(Catalog(), clock=RealClock(), folder="/nowhere")
    bad, good = (Resolver(name, ProviderRef(name), host, lambda: None) for name in ("bad", "good"))
    tasks = [asyncio.create_task(each.run()) for each in (bad, good)]
    async with host.stalls.watching():
        good.update([node("g1")])
        await within(5, good.settled())
        started = time.monotonic()
        bad.update([node("b1")])
        await within(10, bad.settled())
        assert time.monotonic() - started < 5
        assert isinstance(bad.resolutions["b1"], Unknown)
        await _until(lambda: bad.status.error.startswith("suspended because it blocked the event loop at "))
        assert "plugin_hub_bad.py:" in bad.status.error
        assert host.stalls.records["bad"].suspensions == 1
        good.update([node("g2", "10.0.0.2")])
        await within(1, good.settled())
        assert good.resolutions["g2"] == Found(("10.0.0.1",))
        assert "good" not in host.stalls.records
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await host.close()


BLOCKING_SHARED = GOOD.replace("open=open_provider", "open=open_provider, shared=shared").replace(
    "@hookimpl",
    """calls = []

@asynccontextmanager
async def shared(hub):
    import time
    calls.append(1)
    time.sleep(60)
    yield

@hookimpl""",
)
BLOCKING_RESOLVE = GOOD.replace(
    "return {node", "calls.append(1); import time; time.sleep(60)\n        return {node", 1
).replace("class Provider", "calls = []\n\nclass Provider")


@pytest.mark.parametrize("source", [BLOCKING_SHARED, BLOCKING_RESOLVE], ids=["shared", "resolve"])
async def test_whoever_waits_with_the_one_that_blocks_is_not_called(install: Install, source: str) -> None:
    """All clusters of a provider begin at once: one of them blocks, and none of the others after it."""
    install("bad", source)
    host = ProviderHost(Catalog(), clock=RealClock(), folder="/nowhere")
    await host.catalog.load_async("bad")
    resolvers = [Resolver(f"c{number}", ProviderRef("bad"), host, lambda: None) for number in range(6)]
    async with host.stalls.watching():
        tasks = [asyncio.create_task(each.run()) for each in resolvers]
        for each in resolvers:
            each.update([node("a")])
        await _until(lambda: all(each.status.error.startswith("suspended because") for each in resolvers), 20)
        import plugin_hub_bad  # type: ignore[import-not-found]

        assert len(plugin_hub_bad.calls) == 1
        await _until(lambda: host.stalls.records["bad"].count == 1)
        assert host.stalls.records["bad"].suspensions == 1
        error = host.stalls.suspension("bad")
        assert error is not None
        assert FIRST_SUSPENSION - 10 < (error.retry_after or 0) <= FIRST_SUSPENSION
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await host.close()


ENDPOINTS = """
import asyncio, time
from contextlib import asynccontextmanager
from hub.plugin import ProviderType, Snapshot, SnapshotEndpoint, hookimpl

class Provider:
    async def watch(self, /):
        yield Snapshot((SnapshotEndpoint("a", ("10.0.0.1",)),))
        await asyncio.sleep(0.1)
        time.sleep(60)

@asynccontextmanager
async def open_provider(cluster, config, shared):
    yield Provider()

@hookimpl
def hub_register_providers():
    return [ProviderType(name=NAME, open=open_provider, brings_endpoints=True)]
"""


async def test_a_suspended_watch_keeps_its_snapshot(install: Install) -> None:
    """Whoever brings endpoints is stopped the same way, and loses none of them."""
    install("bad", ENDPOINTS)
    host = ProviderHost(Catalog(), clock=RealClock(), folder="/nowhere")
    watch = EndpointWatch("legacy", ProviderRef("bad"), host, lambda: None)
    async with host.stalls.watching():
        task = asyncio.create_task(watch.run())
        await _until(lambda: watch.status.error.startswith("suspended because"))
        assert watch.snapshot is not None
        assert [each.name for each in watch.snapshot.endpoints] == ["a"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await host.close()


BACKGROUND = GOOD.replace(
    "async def open_provider(cluster, config, shared):\n    yield Provider()",
    """async def open_provider(cluster, config, shared):
    import asyncio, time
    async def work():
        await asyncio.sleep(0.1)
        time.sleep(60)
    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        opened.append(cluster.name)
        yield Provider()

opened = []""",
)


async def test_background_work_that_blocks_is_closed_with_its_provider(install: Install) -> None:
    """What a provider does between calls counts, too; suspended, it is closed."""
    install("bad", BACKGROUND)
    host = ProviderHost(Catalog(), clock=RealClock(), folder="/nowhere")
    resolver = Resolver("c1", ProviderRef("bad"), host, lambda: None)
    async with host.stalls.watching():
        task = asyncio.create_task(resolver.run())
        resolver.update([node("a")])
        await within(5, resolver.settled())
        assert resolver.resolutions["a"] == Found(("10.0.0.1",))
        await _until(lambda: resolver.status.error.startswith("suspended because"))
        assert resolver.resolutions["a"] == Found(("10.0.0.1",))
        import plugin_hub_bad

        assert plugin_hub_bad.opened == ["c1"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await host.close()


class RealClock:
    """The machine's."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _until(condition: Callable[[], bool], seconds: float = 8.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - states
            await asyncio.sleep(0.02)
