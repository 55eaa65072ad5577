"""The settings that keep the garbage collector from blocking the event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from hub.runtime import collector
from hub.runtime.collector import avoid_long_collections
from tests.support.waiting import until


class Knot:
    """A reference cycle, which only a collection can free."""

    dead = 0

    def __init__(self) -> None:
        self.self = self

    def __del__(self) -> None:
        type(self).dead += 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Checks that each test leaves the collector's settings as they were."""
    gc.collect()
    Knot.dead = 0
    yield
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


async def test_nothing_is_collected_during_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No collection runs during the start; objects that exist at its end are frozen, later ones are not."""
    monkeypatch.setattr(collector, "START_POLL", 0.01)
    known = False
    async with avoid_long_collections(lambda: known):
        await asyncio.sleep(0.05)
        assert (gc.isenabled(), gc.get_freeze_count()) == (False, 0)
        Knot()
        known = True
        await until(gc.isenabled)
        assert gc.get_freeze_count() > 0
        gc.collect()
        assert Knot.dead == 0
        Knot()
        gc.collect()
        assert Knot.dead == 1


async def test_a_start_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the start never ends, collections begin after a while all the same."""
    monkeypatch.setattr(collector, "START_POLL", 0.01)
    async with avoid_long_collections(lambda: False, patience=0.05):
        await until(gc.isenabled)


@pytest.mark.parametrize(("long", "dead"), [(0.0, 0), (60.0, 1)])
async def test_full_collection_skips_survivors_of_a_long_one(
    monkeypatch: pytest.MonkeyPatch, long: float, dead: int
) -> None:
    """A full collection skips objects that survived a long one, but not those that survived a short one."""
    monkeypatch.setattr(collector, "LONG_COLLECTION", long)
    async with avoid_long_collections(lambda: True):
        await until(gc.isenabled)
        knot = Knot()
        gc.collect()
        del knot
        gc.collect()
        assert Knot.dead == dead


async def test_everything_is_looked_at_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daily collection frees garbage among the frozen objects."""
    monkeypatch.setattr(collector, "FULL_COLLECTION_INTERVAL", 0.2)
    knot = Knot()
    async with avoid_long_collections(lambda: True):
        await until(gc.isenabled)
        del knot
        gc.collect()
        assert Knot.dead == 0
        async with asyncio.timeout(10):
            while not Knot.dead:  # noqa: ASYNC110 - a state, not an event
                await asyncio.sleep(0.01)
        assert gc.get_freeze_count() > 0


async def test_full_collections_are_frequent_after_the_daily_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen objects do not count towards the quarter of growth that Python waits for before a full collection."""
    monkeypatch.setattr(collector, "FULL_COLLECTION_INTERVAL", 0.2)
    known: list[list[int]] = [[] for _ in range(300_000)]
    full: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            full.append(len(known))

    async with avoid_long_collections(lambda: True):
        await until(gc.isenabled)
        gc.callbacks.append(note)
        try:
            async with asyncio.timeout(10):
                while not full:  # noqa: ASYNC110 - a state, not an event
                    await asyncio.sleep(0.01)
            monkeypatch.setattr(collector, "FULL_COLLECTION_INTERVAL", 3600.0)
            full.clear()
            known += [[] for _ in range(30_000)]
        finally:
            gc.callbacks.remove(note)
    assert full


async def test_full_collections_are_frequent_while_the_context_is_open() -> None:
    """The thresholds are lower inside the context, and restored afterwards."""
    before = gc.get_threshold()
    async with avoid_long_collections(lambda: True):
        assert gc.get_threshold() == collector.THRESHOLDS
    assert gc.get_threshold() == before


async def test_everything_is_collected_again_afterwards() -> None:
    """Objects that were frozen inside the context are collected after it."""
    async with avoid_long_collections(lambda: True):
        await until(gc.isenabled)
        Knot()
        gc.freeze()
    gc.collect()
    assert Knot.dead == 1
