"""Plugins that misbehave in every call of the hub, in virtual time: only their own answers are affected."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from hub.model import Found, Unknown
from hub.observe.providers.host import ProviderHost
from hub.observe.providers.resolver import Resolver
from hub.plugin import NoConfig, NodeProviderType, ProviderType
from hub.registry.spec import ProviderRef
from tests.support.loops import SameLoop
from tests.support.virtual import LoopClock, within
from tests.unit.observe.providers.plugins import Scripted, catalog_of, found, node

VIRTUAL_TIME = True


class Bench:
    """A Resolver with one type, and the task that runs it."""

    def __init__(self, type_: ProviderType, config: str = "{}") -> None:
        self.host = ProviderHost(catalog_of(type_), clock=LoopClock(), folder="/nowhere", start_loop=SameLoop)
        self.host.catalog.load(type_.name)  # imports run in a thread, which virtual time would overtake
        self.resolver = Resolver("c1", ProviderRef(type_.name, config), self.host, lambda: None)

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
            assert task.cancelled()
            await within(5, self.host.close())


def opened_by(enter: Any) -> ProviderType:
    """A type with this ``open``."""
    return NodeProviderType("scripted", asynccontextmanager(enter), NoConfig)


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), "hang"])
async def test_shared_that_fails_is_opened_again(error: Any) -> None:
    """If ``shared`` raises or never opens, the provider is degraded and tried again."""
    tries = 0

    @asynccontextmanager
    async def shared(_hub: Any) -> AsyncIterator[str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            if error == "hang":
                await asyncio.sleep(1e6)
            raise error
        yield "shared"

    bench = Bench(Scripted().type(shared=shared))
    async with bench.running() as resolver:
        await within(35, resolver.settled())
        assert resolver.status.state == "degraded"
        assert isinstance(resolver.resolutions["a"], Unknown)
        await asyncio.sleep(3)
        assert resolver.resolutions["a"] == Found(("10.0.0.1",))


async def test_clusters_do_not_queue_for_shared_that_hangs() -> None:
    """If ``shared`` stalls, all clusters that waited for it fail together."""
    tries = 0

    @asynccontextmanager
    async def shared(_hub: Any) -> AsyncIterator[str]:
        nonlocal tries
        tries += 1
        await asyncio.sleep(1e6)
        yield "never"

    bench = Bench(Scripted().type(shared=shared))
    others = [Resolver(f"c{number}", ProviderRef("scripted"), bench.host, lambda: None) for number in range(2, 10)]
    async with bench.running() as first, asyncio.TaskGroup() as group:
        tasks = [group.create_task(other.run()) for other in others]
        for other in others:
            other.update([node("a")])
        await within(33, asyncio.gather(*(resolver.settled() for resolver in (first, *others))))
        for resolver in (first, *others):
            assert resolver.status.state == "degraded"
            assert "opening did not end within 30 s" in resolver.status.error
        assert tries <= 2
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("what", ["open", "shared"])
async def test_abandoned_open_is_not_called_again_while_it_runs(what: str) -> None:
    """While an abandoned ``open`` or ``shared`` still runs, it is not called again."""
    tries = 0
    over = asyncio.Event()

    @asynccontextmanager
    async def stubborn(*_: Any) -> AsyncIterator[Any]:
        nonlocal tries
        tries += 1
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()
        yield Scripted()

    type_ = NodeProviderType("scripted", stubborn, NoConfig) if what == "open" else Scripted().type(shared=stubborn)
    async with Bench(type_).running() as resolver:
        await asyncio.sleep(3600)
        assert tries == 1
        assert "an earlier call still runs although it was cancelled" in resolver.status.error
        over.set()
        await asyncio.sleep(100)
        assert (tries, resolver.status.state) == (2, "ready")


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), KeyboardInterrupt(), "hang", "ignores"])
async def test_close_may_do_anything(error: Any) -> None:
    """If closing raises, never ends or ignores its cancellation, the end is delayed by seconds at most."""

    async def enter(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        yield Scripted()
        if error == "hang":
            await asyncio.sleep(1e6)
        if error == "ignores":
            for _ in range(3):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    continue
        if isinstance(error, BaseException):
            raise error

    bench = Bench(opened_by(enter))
    async with bench.running() as resolver:
        await within(1, resolver.settled())
        assert resolver.status.state == "ready"
    await asyncio.sleep(1000)  # abandoned tasks end within this time


class Exits(BaseModel):
    """A configuration whose validator raises SystemExit."""

    token: str

    @field_validator("token")
    @classmethod
    def _leave(cls, _value: str) -> str:
        raise SystemExit(1)


async def test_a_validator_that_exits_is_an_error_of_the_provider() -> None:
    """SystemExit in a validator is an error of the provider."""
    bench = Bench(Scripted().type(config=Exits), '{"token": "x"}')
    async with bench.running() as resolver:
        await within(1, resolver.settled())
        assert resolver.status.error == "raised SystemExit"


async def test_a_poll_interval_that_exits_is_an_error_of_the_provider() -> None:
    """SystemExit in ``poll_interval`` is an error of the provider."""

    def leave(_config: Any) -> float:
        raise SystemExit(1)

    async with Bench(Scripted().type(poll_interval=leave)).running() as resolver:
        await within(1, resolver.settled())
        assert resolver.status.error == "raised SystemExit"


@pytest.mark.parametrize(("scope", "says"), [(lambda _: sys.exit(1), "raised SystemExit"), (lambda _: 7, "not a text")])
async def test_invalid_scope_is_a_provider_error(scope: Any, says: str) -> None:
    """A ``scope`` that raises or is not a text is an error of the provider."""
    async with Bench(Scripted().type(scope=scope)).running() as resolver:
        await within(1, resolver.settled())
        assert says in resolver.status.error
        assert resolver.scope == ""


async def test_calls_are_counted_by_outcome() -> None:
    """Calls are counted by outcome and provider, and the numbers stay after the resolver ended."""
    bench = Bench(Scripted(found, ValueError("x")).type(scope=lambda _: "dc-1"))
    async with bench.running() as resolver:
        await within(1, resolver.settled())
        resolver.update([node("a", "10.0.0.9")])
        await within(1, resolver.settled())
        assert resolver.scope == "dc-1"
    [stats] = bench.host.stats.values()
    assert {name: number for name, number in stats.outcomes.items() if number} == {"answered": 1, "defect": 1}
    assert sum(stats.seconds.counts) == 2


class Trap(Mapping[str, Any]):
    """An answer that raises SystemExit when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise SystemExit(1)

    def __iter__(self) -> Iterator[str]:
        raise SystemExit(1)

    def __len__(self) -> int:
        raise SystemExit(1)


class Mute(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(("answer", "says"), [(Trap(), "raised SystemExit"), (Mute(), "Mute")])
async def test_unreadable_answer_keeps_known_resolutions(answer: Any, says: str) -> None:
    """An answer or error that raises when it is read keeps the known resolutions."""
    async with Bench(Scripted(found, answer).type()).running() as resolver:
        await within(1, resolver.settled())
        resolver.update([node("a", "10.0.0.9")])
        await within(1, resolver.settled())
        assert resolver.status.error == says
        assert resolver.resolutions["a"] == Found(("10.0.0.1",))
