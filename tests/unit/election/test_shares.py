"""When a replica takes a free Lease, asks for one, and gives one away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hub.election.elector import LeaseRecord
from hub.election.peers import HANDED, REGISTRY, SHARDS, WANTED
from hub.election.shard import Shard
from hub.election.shares import Shares
from tests.support.clocks import ManualClock


@pytest.mark.parametrize(
    ("number", "ready", "quits", "first_states", "taken"),
    [
        (1, True, False, "2", True),
        (1, False, False, "2", False),
        (1, True, True, "2", False),
        (1, True, False, "3", False),
        (0, True, False, "3", True),
    ],
    ids=["free", "another registry", "gives it back", "another count", "the first Lease itself"],
)
def test_free_lease_is_taken_if_all_agree(
    number: int, *, ready: bool, quits: bool, first_states: str, taken: bool
) -> None:
    """A free Lease is taken only with the registry in force and the number of shards that the first Lease states."""
    clock = ManualClock()
    first = LeaseRecord("other", 15, "", "", notes={SHARDS: first_states})
    electors = [SimpleNamespace(leading=False, seen=first), SimpleNamespace(leading=False, seen=None)]
    shards = [Shard(index, cast("Any", elector)) for index, elector in enumerate(electors)]
    peers = SimpleNamespace(holders=lambda: {"other"})
    shares = Shares(shards, cast("Any", peers), "me", clock, retry=2.0)
    if quits:
        shards[number].quit.set()
    assert shares.may_take(shards[number], LeaseRecord("", 15, "", ""), ready=ready) is taken
    assert shards[number].read_at == (None if taken else clock.now() + shares.pace)


class Seat:
    """An elector, and how often it was told to read its Lease now."""

    def __init__(self, seen: LeaseRecord | None, *, leading: bool = False) -> None:
        self.seen, self.leading, self.reads = seen, leading, 0
        self.written: list[LeaseRecord | None] = []

    def end_pause(self) -> None:
        """Read the Lease now."""
        self.reads += 1

    async def change_annotations(self, change: Callable[[LeaseRecord], LeaseRecord | None]) -> bool:
        """Change the Lease as it was last read; returns whether it was written."""
        assert self.seen is not None
        self.written.append(change(self.seen))
        return self.written[-1] is not None


class World:
    """Three shards of which this replica holds the first ones, and another replica the others, as ``a``."""

    def __init__(self, own: int = 1, *, mark: str = "m", wanted: str = "", shards: int = 3) -> None:
        self.clock = ManualClock()
        notes = {SHARDS: str(shards), REGISTRY: mark, **({WANTED: wanted} if wanted else {})}
        self.seats = [
            Seat(LeaseRecord("me" if number < own else "a", 15, "", "", notes=notes), leading=number < own)
            for number in range(3)
        ]
        self.shards = [Shard(number, cast("Any", seat)) for number, seat in enumerate(self.seats)]
        self.peers = SimpleNamespace(
            loads=lambda: Counter({"a": 3 - own}), load_of=lambda _: 0, holders=lambda: {"me", "a"}
        )
        self.shares = Shares(self.shards, cast("Any", self.peers), "me", self.clock, retry=2.0)

    async def asked(self, mark: str = "m") -> list[int]:
        """The shards that this replica asks for now."""
        before = [len(seat.written) for seat in self.seats]
        await self.shares.ask(mark)
        return [number for number, seat in enumerate(self.seats) if len(seat.written) > before[number]]


@pytest.mark.parametrize(("own", "asked"), [(0, [2]), (1, []), (2, []), (3, [])])
async def test_replica_with_two_more_shards_is_asked_for_one(own: int, asked: list[int]) -> None:
    """Only a replica that holds at least two Leases more is asked for one: the last of its Leases."""
    world = World(own)
    assert await world.asked() == asked
    for number in asked:
        [written] = world.seats[number].written
        assert written is not None
        assert written.notes[WANTED] == "me"


async def test_requests_have_an_interval() -> None:
    """After a request the next one waits three retry periods, or until this replica has got a Lease."""
    world = World(0)
    assert [await world.asked(), await world.asked()] == [[2], []]
    world.clock.advance(5.9)
    assert await world.asked() == []
    world.clock.advance(0.1)
    assert await world.asked() == [2]
    world.shares.allow_request()
    assert await world.asked() == [2]


async def test_nobody_is_asked_while_a_lease_is_free() -> None:
    """A free Lease is taken before another replica is asked."""
    world = World(0)
    world.peers.loads = lambda: None
    assert await world.asked() == []


@pytest.mark.parametrize("changes", [{"mark": "n"}, {"wanted": "other"}, {"shards": 4}])
async def test_lease_with_another_statement_is_not_asked_for(changes: dict[str, Any]) -> None:
    """A Lease that another replica wants, or that states another registry or number of shards, stays as it is."""
    world = World(0, **changes)
    assert await world.asked() == [0, 1, 2]
    assert [seat.written for seat in world.seats] == [[None]] * 3


async def test_request_that_was_written_before_is_repeated() -> None:
    """A Lease that carries our request already may be asked for again."""
    world = World(0, wanted="me")
    assert await world.asked() == [2]


async def test_lease_that_changed_hands_is_not_asked_for() -> None:
    """A Lease that the fullest replica no longer holds stays as it is."""
    world = World(0)
    world.peers.loads = lambda: Counter({"a": 3, "b": 1})
    for seat in world.seats:
        assert seat.seen is not None
        seat.seen = replace(seat.seen, holder="b")
    assert await world.asked() == []


@pytest.mark.parametrize(
    ("who", "load", "handed", "granted"),
    [
        ("a", 0, 0, True),
        ("a", 1, 0, True),
        ("a", 2, 0, False),
        ("a", 0, 1, False),  # one Lease is on its way to it; 2 - 0 - 1 < 2
        ("me", 0, 0, False),
        ("a" * 256, 0, 0, True),
        ("a" * 257, 0, 0, False),
    ],
)
def test_lease_is_granted_to_a_replica_with_two_fewer(who: str, load: int, handed: int, *, granted: bool) -> None:
    """A Lease is given to a replica that holds at least two fewer; Leases that were promised to it count as its own."""
    world = World(3)
    world.peers.load_of = lambda _: load
    for shard in world.shards[:handed]:
        shard.handed_to, shard.leaving = who, True
    assert world.shares.load == 3 - handed
    assert world.shares.grants(who) is granted


def test_free_leases_are_read_when_they_may_be_taken() -> None:
    """One Lease at a time is read, when its time has come; the first Lease, if it states no number of shards."""
    world = World(0)
    for number, at in ((0, world.clock.now()), (2, world.clock.now() + 1)):
        world.shards[number].read_at = at
    world.shares.read_free_lease(lambda: "")
    assert ([seat.reads for seat in world.seats], world.shards[0].read_at) == ([1, 0, 0], None)
    world.shares.read_free_lease(lambda: "")
    assert [seat.reads for seat in world.seats] == [1, 0, 0]
    world.clock.advance(1)
    world.shares.read_free_lease(lambda: "")
    assert [seat.reads for seat in world.seats] == [1, 0, 1]
    world.seats[0].seen = None
    world.shares.read_free_lease(lambda: "why")
    assert [seat.reads for seat in world.seats] == [1, 0, 1]
    world.shares.read_free_lease(lambda: "")
    assert [seat.reads for seat in world.seats] == [2, 0, 1]


@pytest.mark.parametrize(
    ("own", "holder", "handed", "waits"),
    [
        (0, "", "", 0.0),
        (0, "", "a", 2.0),  # it is meant for another replica
        (0, "", "me", 0.0),
        (2, "", "", 2.0),  # this replica has its share
        (2, "me", "", 0.0),  # it was ours
        (1, "", "", 0.0),
    ],
)
def test_free_lease_is_left_to_replicas_with_fewer(own: int, holder: str, handed: str, waits: float) -> None:
    """A replica with its share, or one for which the Lease is not meant, waits a retry period before it takes it."""
    world = World(own)
    record = LeaseRecord(holder, 15, "", "", notes={HANDED: handed} if handed else {}, version="7")
    shard, now = world.shards[2], world.clock.now()
    assert world.shares.may_take(shard, record, ready=True) is (waits == 0.0)
    assert shard.read_at == (now + waits if waits else None)
    world.clock.advance(waits or world.shares.pace)  # the pace between two Leases that one replica takes
    assert world.shares.may_take(shard, record, ready=True)
