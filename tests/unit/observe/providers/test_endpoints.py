"""Following an EndpointProvider, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.observe.providers.endpoints import EndpointWatch, merge
from hub.observe.providers.host import ProviderHost
from hub.plugin import (
    EndpointProviderType,
    NoConfig,
    Port,
    ProviderType,
    Snapshot,
    SnapshotEndpoint,
    TerminalProviderError,
    TransientProviderError,
)
from hub.plugin.answers import read_snapshot
from hub.registry.spec import ProviderRef
from tests.support.loops import SameLoop
from tests.support.virtual import LoopClock, within
from tests.unit.observe.providers.plugins import Scripted, Streamed, catalog_of

VIRTUAL_TIME = True


def endpoint(name: str, address: str = "10.0.0.1", **fields: Any) -> SnapshotEndpoint:
    """An endpoint with one address."""
    return SnapshotEndpoint(name, (address,), **fields)


A, B = endpoint("a"), endpoint("b", "10.0.0.2")
AB = Snapshot((A, B))


class Bench:
    """An EndpointWatch and its host."""

    def __init__(self, type_: ProviderType) -> None:
        self.changes = 0
        self.host = ProviderHost(catalog_of(type_), clock=LoopClock(), folder="/nowhere", start_loop=SameLoop)
        self.host.catalog.load(type_.name)
        self.watch = EndpointWatch("legacy", ProviderRef(type_.name), self.host, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EndpointWatch]:
        """Run the watch until the block is left."""
        task = asyncio.create_task(self.watch.run())
        try:
            yield self.watch
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.host.close()


async def test_watch_keeps_the_last_snapshot() -> None:
    """A snapshot replaces the one before; an equal one counts as an answer, but is no change."""
    bench = Bench(Streamed([AB, 10.0, AB, 10.0, Snapshot((A,)), 1e9]).type())
    async with bench.running() as watch:
        await within(1, watch.settled())
        assert watch.snapshot == AB
        assert (bench.changes, watch.answers, watch.status.state) == (1, 1, "ready")
        await asyncio.sleep(15)
        assert (bench.changes, watch.answers, watch.version) == (1, 2, 1)
        await asyncio.sleep(10)
        assert watch.snapshot == Snapshot((A,))
        assert (bench.changes, watch.answers, watch.version) == (2, 3, 2)


async def test_every_empty_answer_is_announced() -> None:
    """Every empty answer calls ``on_change``, since the guard counts them."""
    empty = Snapshot(())
    bench = Bench(Streamed([AB, empty, empty, empty, 1e9]).type())
    async with bench.running() as watch:
        await asyncio.sleep(1)
        assert (bench.changes, watch.answers) == (4, 4)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (TransientProviderError("the file is half-written"), "the file is half-written"),
        (ValueError("boom"), "ValueError: boom"),
        (SystemExit(1), "raised SystemExit"),
        ("not a snapshot", "TypeError: watch() gave str, not Snapshot"),
        (Snapshot((A, A)), "TypeError: watch() gave two endpoints called 'a'"),
        (
            Snapshot((endpoint("x", 7),)),
            "TypeError: watch() gave endpoint 'x' whose addresses are not a tuple of strings",
        ),  # type: ignore[arg-type]
        (Snapshot((SnapshotEndpoint("x", ()),)), "TypeError: watch() gave endpoint 'x' with 0 addresses (1 to 100)"),
        (Snapshot([A]), "TypeError: watch() gave a Snapshot whose endpoints are not a tuple of SnapshotEndpoint"),  # type: ignore[arg-type]
    ],
)
async def test_a_failing_watch_keeps_the_snapshot_and_is_started_again(broken: Any, says: str) -> None:
    """After any failure the snapshot stays, the status has the error, and the watch is restarted."""
    bench = Bench(Streamed([AB, 5.0, broken, 1e9], [Snapshot((B,)), 1e9]).type())
    async with bench.running() as watch:
        await asyncio.sleep(5.5)
        assert watch.snapshot == AB
        assert (watch.status.state, watch.status.error) == ("degraded", says)
        await asyncio.sleep(5)
        assert watch.snapshot == Snapshot((B,))
        assert watch.status.state == "ready"
        assert (watch.answers, watch.failures) == (2, 1)


async def test_a_watch_that_ends_is_an_error() -> None:
    """A watch that ends is an error, and keeps the snapshot."""
    bench = Bench(Streamed([AB], [1e9]).type())
    async with bench.running() as watch:
        await asyncio.sleep(0.5)
        assert watch.snapshot == AB
        assert watch.status.error == "watch() ended, but a watch never ends by itself"


async def test_a_watch_that_fails_after_each_snapshot_is_started_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A snapshot does not reset the backoff; two minutes without a failure do."""
    started: list[float] = []

    class CutOff(Streamed):
        async def watch(self, /) -> AsyncIterator[Snapshot]:
            started.append(asyncio.get_running_loop().time())
            yield AB
            await asyncio.sleep(121.0 if len(started) == 9 else 0.5)
            raise TransientProviderError("cut off")

    bench = Bench(CutOff().type())
    async with bench.running() as watch:
        await asyncio.sleep(500)
        assert watch.snapshot == AB
    said = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == watch.failures == len(started)
    waits = [later - earlier - 0.5 for earlier, later in pairwise(started)]
    waits[8] -= 120.5
    expected = (1, 2, 4, 8, 16, 32, 60, 60, 1, 2, 4)
    assert all(base <= wait <= base * 1.25 for base, wait in zip(expected, waits, strict=False)), waits
    assert len(waits) >= len(expected)


async def test_watch_that_never_waits_is_slowed_down() -> None:
    """A watch that yields without waiting is slowed down, so that other tasks run."""
    given = 0

    class Flood(Streamed):
        async def watch(self, /) -> AsyncIterator[Snapshot]:
            nonlocal given
            while given < 5000:
                given += 1
                yield AB
            await asyncio.sleep(1e9)

    flood, good = Bench(Flood().type("flood")), Bench(Streamed([Snapshot((B,)), 1e9]).type("good"))
    async with flood.running() as flooding, good.running() as watch:
        await within(1, watch.settled())
        assert (watch.snapshot, flooding.snapshot) == (Snapshot((B,)), AB)
        assert given <= 2
        before, answers = given, flooding.answers
        await asyncio.sleep(2)
        assert 800 <= given - before <= 1010  # one every 2 ms
        assert 0 <= (given - before) - (flooding.answers - answers) <= 1  # at most one is under way
        assert flood.changes == 1


async def test_a_watch_that_waits_is_followed_at_its_own_pace() -> None:
    """A watch that sends every 5 ms is hardly slowed down."""
    bench = Bench(Streamed([Snapshot((A,)), 0.005, Snapshot((B,)), 0.005] * 50 + [1e9]).type())
    async with bench.running() as watch:
        await within(1, watch.settled())
        await asyncio.sleep(0.3)
        assert watch.version >= 40


async def test_a_watch_without_a_first_snapshot_is_started_again() -> None:
    """The first snapshot must arrive within 30 s; later ones have no deadline."""
    bench = Bench(Streamed([1e9], [AB, 1e9]).type())
    async with bench.running() as watch:
        await asyncio.sleep(30.5)
        assert watch.status.error == "watch() gave no snapshot within 30 s"
        await asyncio.sleep(5)
        assert watch.snapshot == AB
        await asyncio.sleep(86_400)
        assert watch.status.state == "ready"


async def test_terminal_error_waits_for_changed() -> None:
    """After a terminal error the watch is not restarted until ``changed`` is called."""
    provider = Streamed([TerminalProviderError("no such file configured")], [AB, 1e9])
    bench = Bench(provider.type())
    async with bench.running() as watch:
        await asyncio.sleep(86_400)
        assert watch.failures == 1
        assert watch.status.terminal
        watch.changed()
        await asyncio.sleep(2)
        assert watch.snapshot == AB


async def test_retry_after_paces_a_polled_provider() -> None:
    """Restarts wait for the ``retry_after`` of the error."""
    provider = Streamed(*[[TransientProviderError("bad", retry_after=60)] for _ in range(3)], [AB, 1e9])
    bench = Bench(provider.type())
    async with bench.running() as watch:
        await asyncio.sleep(179)
        assert watch.failures == 3
        await asyncio.sleep(2)
        assert watch.snapshot == AB


async def test_a_type_that_resolves_nodes_cannot_be_watched() -> None:
    """A type that resolves nodes is an error that says so."""
    bench = Bench(Scripted().type())
    async with bench.running() as watch:
        await within(1, watch.settled())
        assert watch.status.error == "provider 'scripted' resolves nodes and brings no endpoints of its own"


async def test_stopping_closes_the_stream_and_the_provider() -> None:
    """The task that opened stream and provider also closes them."""
    closed: list[str] = []

    class Provider:
        async def watch(self, /) -> AsyncIterator[Snapshot]:
            try:
                async with asyncio.timeout(1e6):  # a cancel scope across a yield breaks if the task changes
                    while True:
                        yield AB
                        await asyncio.sleep(1)
            finally:
                closed.append("stream")

    @asynccontextmanager
    async def open_provider(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
        yield Provider()
        closed.append("never")

    @asynccontextmanager
    async def careful(cluster: Any, config: Any, shared: Any) -> AsyncIterator[Any]:
        async with open_provider(cluster, config, shared) as provider:
            try:
                yield provider
            finally:
                closed.append("provider")

    bench = Bench(EndpointProviderType("streamed", careful, NoConfig))
    async with bench.running():
        await asyncio.sleep(5)
    assert closed == ["stream", "provider"]


def test_an_incomplete_snapshot_adds_and_changes_but_removes_nothing() -> None:
    """Endpoints that an incomplete snapshot does not name stay unchanged."""
    moved = endpoint("a", "10.0.0.9")
    new = endpoint("c", "10.0.0.3")
    partial = Snapshot((new, moved), complete=False, problems=("row 2: no name",))
    assert merge(AB, partial) == Snapshot((moved, B, new), complete=True, problems=("row 2: no name",))


def test_an_incomplete_first_snapshot_stays_incomplete() -> None:
    """The result stays incomplete until the first complete snapshot."""
    assert merge(None, Snapshot((B, A), complete=False)) == Snapshot((A, B), complete=False)
    assert merge(Snapshot((A,), complete=False), Snapshot((B,), complete=False)) == Snapshot((A, B), complete=False)


def test_ports_of_an_incomplete_snapshot_do_not_vanish() -> None:
    """If an incomplete snapshot names no ports, the last ones stay."""
    ports = (Port("https", 443),)
    assert merge(Snapshot((A,), ports=ports), Snapshot((B,), complete=False)).ports == ports


names = st.sampled_from("abcde")
snapshots = st.builds(
    lambda members, complete: Snapshot(tuple(endpoint(name, address) for name, address in members.items()), complete),
    st.dictionaries(names, st.sampled_from(["10.0.0.1", "10.0.0.2"])),
    st.booleans(),
)


@given(st.lists(snapshots, max_size=8))
def test_only_complete_snapshots_remove(offered: list[Snapshot]) -> None:
    """In any sequence of snapshots, only a complete one without a name removes that endpoint."""
    believed: Snapshot | None = None
    for snapshot in offered:
        before = {item.name for item in believed.endpoints} if believed else set()
        believed = merge(believed, snapshot)
        after = [item.name for item in believed.endpoints]
        assert after == sorted(after)
        assert {item.name for item in snapshot.endpoints} <= set(after)
        if not snapshot.complete:
            assert before <= set(after)
        else:
            assert set(after) == {item.name for item in snapshot.endpoints}
            assert believed.complete


def test_too_many_endpoints_are_refused() -> None:
    """A snapshot with too many endpoints is an error."""
    flood = Snapshot(tuple(endpoint(str(number)) for number in range(50_001)))
    with pytest.raises(TypeError, match="50001 endpoints"):
        read_snapshot(flood)
