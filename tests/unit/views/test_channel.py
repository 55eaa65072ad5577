"""A channel's log: snapshots, resume tokens, turns, and readers that fall behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hub.views import channel as module
from hub.views.channel import Channel, Framing, TokenTooOld
from hub.views.shapes import Shape
from tests.support.clocks import ManualClock
from tests.support.virtual import LoopClock
from tests.unit.views.support import World


def made(world: World, shape: Shape | None = None) -> Channel:
    """A channel that listens to the board of ``world``."""
    channel = Channel(shape or Shape(), LoopClock(), lambda: ["eu"])
    world.board.listen(channel.changed)
    return channel


def events(text: bytes) -> list[Any]:
    """The decoded events of NDJSON."""
    return [json.loads(line) for line in text.splitlines()]


def said(text: bytes) -> list[tuple[str, str]]:
    """The type and the address of each event."""
    return [(event["type"], event["object"].get("spec", {}).get("address", "")) for event in events(text)]


async def test_a_snapshot_ends_with_a_bookmark_to_go_on_from() -> None:
    """A snapshot ends with a token and the unknown clusters; after that only changes are sent."""
    world = World()
    channel = made(world)
    world.put("a", "10.0.0.1", "10.0.0.2")
    await world.settle()
    position, text = channel.snapshot("ndjson")
    world.put("a", "10.0.0.1", "10.0.0.3")
    await world.settle()
    last, delta = channel.since(position, "ndjson")

    assert sorted(said(text)) == [("Added", "10.0.0.1"), ("Added", "10.0.0.2"), ("Bookmark", "")]
    bookmark = events(text)[-1]
    assert bookmark["object"]["status"] == {"unknownClusters": ["eu"]}
    assert bookmark["resourceVersion"] == channel.token(position)
    assert said(delta) == [("Added", "10.0.0.3"), ("Deleted", "10.0.0.2")]
    assert [channel.resume(event["resourceVersion"]) for event in events(delta)] == [position + 1, position + 2]
    assert last == position + 2


async def test_snapshot_is_encoded_again_if_unknown_clusters_change() -> None:
    """A snapshot is encoded again if its bookmark would name other unknown clusters."""
    unknown = ["eu", "us"]
    channel = Channel(Shape(), LoopClock(), lambda: unknown)
    first, again = channel.snapshot("ndjson"), channel.snapshot("ndjson")
    assert again[1] is first[1]
    unknown.remove("eu")
    assert events(channel.snapshot("ndjson")[1])[-1]["object"]["status"] == {"unknownClusters": ["us"]}


async def test_log_keeps_as_many_events_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position is refused as soon as an event after it has left the log; the present one never is."""
    monkeypatch.setattr(module, "LOG_EVENTS", 4)
    world = World()
    channel = made(world)
    for number in range(3):
        world.put("a", f"10.0.0.{number}")
        await world.settle()
    assert channel.position == 5
    assert channel.since(1, "ndjson")[0] == channel.resume(channel.token(5)) == 5
    assert said(channel.since(1, "ndjson")[1]) == [
        ("Added", "10.0.0.1"),
        ("Deleted", "10.0.0.0"),
        ("Added", "10.0.0.2"),
        ("Deleted", "10.0.0.1"),
    ]
    assert channel.since(5, "ndjson") == (5, b"")
    for position in (0, 6):
        with pytest.raises(TokenTooOld):
            channel.since(position, "ndjson")


async def test_snapshot_is_reused_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is encoded again after a second if there are later events, or when they have left the log."""
    world, clock = World(), ManualClock()
    channel = Channel(Shape(), clock)
    world.board.listen(channel.changed)
    first = channel.snapshot("ndjson")
    clock.advance(100.0)
    assert channel.snapshot("ndjson")[1] is first[1]
    world.put("a", "10.0.0.1")
    await world.settle()
    second = channel.snapshot("ndjson")
    assert (first[0], second[0]) == (0, 1)
    world.put("a", "10.0.0.2")
    await world.settle()
    clock.advance(0.9)
    assert channel.snapshot("ndjson") == second
    clock.advance(0.1)
    assert channel.snapshot("ndjson")[0] == 3
    monkeypatch.setattr(module, "LOG_EVENTS", 1)
    for number in (3, 4):
        world.put("a", f"10.0.0.{number}")
        await world.settle()
    assert channel.snapshot("ndjson")[0] == 7


async def test_changed_object_is_an_update() -> None:
    """A change of an object is one event; a compatible bookmark has no status."""
    world = World()
    channel, compat = made(world), made(world, Shape(compat=True))
    world.put("a", "10.0.0.1")
    await world.settle()
    world.board.mark_stale("local", stale=True)
    world.drop("a")
    await world.settle()
    world.put("a", "10.0.0.1")
    await world.settle()
    world.board.mark_stale("local", stale=False)
    await world.settle()
    assert [kind for kind, _ in said(channel.since(0, "ndjson")[1])] == ["Added", "Deleted", "Added", "Updated"]
    assert events(compat.bookmark("ndjson", 1)) == [
        {
            "type": "Bookmark",
            "resourceVersion": compat.token(1),
            "object": {"kind": "EndpointView", "metadata": {"resourceVersion": compat.token(1)}},
        }
    ]
    assert [json.loads(body)["spec"]["address"] for body in channel.objects()] == ["10.0.0.1"]


async def test_server_sent_events_carry_the_same_lines() -> None:
    """Server-sent events have the same lines, with the resume token as id."""
    world = World()
    channel = made(world)
    world.put("a", "10.0.0.1")
    await world.settle()
    position, text = channel.snapshot("sse")
    first = text.decode().split("\n\n")[0].split("\n")
    [line, _] = events(channel.snapshot("ndjson")[1])

    assert first[:2] == [f"id: {channel.token(position)}", "event: Added"]
    assert json.loads(first[2].removeprefix("data: ")) == line


async def test_an_event_is_encoded_once_for_all_readers() -> None:
    """All readers get the same bytes object for a delta and for a snapshot."""
    world = World()
    channel = made(world)
    position, _ = channel.snapshot("ndjson")
    world.put("a", "10.0.0.1")
    await world.settle()
    assert channel.since(position, "ndjson")[1] is channel.since(position, "ndjson")[1]
    assert channel.snapshot("ndjson")[1] is channel.snapshot("ndjson")[1]


async def test_readers_that_come_back_from_everywhere_leave_nothing_behind() -> None:
    """The cache of encoded deltas is bounded even if every reader has another position."""
    world = World()
    channel = made(world)
    for number in range(50):
        world.put("a", f"10.0.0.{number}")
        await world.settle()
    for position in range(channel.position):
        assert channel.since(position, "ndjson")[0] == channel.position
    assert len(channel._framed) <= module.CACHED_DELTAS


async def test_cached_snapshot_is_followed_by_later_changes() -> None:
    """A cached snapshot is followed by exactly the changes since its position."""
    world = World()
    channel = made(world)
    world.put("a", "10.0.0.1")
    await world.settle()
    first = channel.snapshot("ndjson")
    world.put("a", "10.0.0.2")
    await world.settle()
    position, text = channel.snapshot("ndjson")
    assert (position, text) == first
    assert said(channel.since(position, "ndjson")[1]) == [("Added", "10.0.0.2"), ("Deleted", "10.0.0.1")]


async def test_unchanged_shape_makes_no_event() -> None:
    """Compatible objects do not have ``stale``, so its change makes no event for them."""
    world = World()
    own, compat = made(world), made(world, Shape(compat=True))
    world.put("a", "10.0.0.1")
    await world.settle()
    before = compat.position
    world.board.mark_stale("local", stale=True)
    await world.settle()
    assert compat.position == before == 1
    assert own.position == 2


@pytest.mark.parametrize("framing", ["ndjson", "sse"])
async def test_position_outside_the_log_is_refused(framing: Framing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old events leave the log; older positions and tokens are refused with the next step."""
    monkeypatch.setattr(module, "LOG_EVENTS", 10)
    world = World()
    channel = made(world)
    world.put("a", "10.0.0.0")
    await world.settle()
    start = channel.position
    for number in range(1, 8):
        world.put("a", f"10.0.0.{number}")
        await world.settle()
    with pytest.raises(TokenTooOld, match="start again without"):
        channel.since(start, framing)
    with pytest.raises(TokenTooOld, match="start again without one, with a snapshot"):
        channel.resume(channel.token(start))
    assert channel.resume(channel.token(start + 4)) == start + 4
    assert channel.since(start + 4, framing)[0] == start + 14


@pytest.mark.parametrize(
    "token", ["", "x", "1", "-", "abcdef01-1", "{epoch}-", "{epoch}--1", "{epoch}-99", "{epoch}-" + "9" * 40]
)
async def test_a_token_of_elsewhere_is_refused(token: str) -> None:
    """Tokens of another process, of the future and invalid ones are refused."""
    channel = made(World())
    epoch = channel.token(0).partition("-")[0]
    with pytest.raises(TokenTooOld):
        channel.resume(token.replace("{epoch}", epoch))


async def test_a_change_of_everything_fits_into_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log holds a change of all objects, so that up-to-date readers are not dropped."""
    monkeypatch.setattr(module, "LOG_EVENTS", 10)
    world = World()
    channel = made(world)
    for number in range(30):
        world.put(f"s{number}", "10.0.0.1")
    await world.settle()
    position = channel.position
    world.board.mark_stale("local", stale=True)
    await world.settle()
    assert len(events(channel.since(position, "ndjson")[1])) == 30


async def test_readers_are_served_in_turns() -> None:
    """Other tasks run between groups of readers."""
    world = World()
    channel = made(world)
    served: list[int] = []

    async def read(number: int) -> None:
        await channel.wait_for_events(0)
        served.append(number)

    readers = [asyncio.create_task(read(number)) for number in range(100)]
    await asyncio.sleep(0)
    world.put("a", "10.0.0.1")
    most = 0
    async with asyncio.timeout(10):
        while len(served) < 100:
            before = len(served)
            await asyncio.sleep(0)
            most = max(most, len(served) - before)
    await asyncio.gather(*readers)
    assert most <= module.READERS_PER_TURN
    assert served == list(range(100))


async def test_rounds_are_as_far_apart_as_there_are_readers() -> None:
    """With many readers, frequent changes are sent together in few rounds."""
    world = World()
    channel = made(world)
    rounds: list[int] = []

    async def read() -> None:
        position = 0
        while position < 40:
            await channel.wait_for_events(position)
            position, _ = channel.since(position, "ndjson")
            rounds.append(position)

    readers = [asyncio.create_task(read()) for _ in range(100)]
    for number in range(20):
        world.put("a", f"10.0.0.{number}")
        await world.settle()
        await asyncio.sleep(0.001)
    world.put("a")
    await asyncio.wait_for(asyncio.gather(*readers), 10)
    assert rounds[-100:] == [40] * 100
    assert len(rounds) <= 600


async def test_cancelled_reader_leaves_no_entry() -> None:
    """A reader that stops waiting leaves no entry behind."""
    channel = made(World())
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await channel.wait_for_events(0)
    assert channel._waiting == {}
