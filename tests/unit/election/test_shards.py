"""Shards in virtual time: several replicas share the Leases, and a target never has two writers."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from hub.app.leading import Leading
from hub.app.settings import lease_name
from hub.election import MOST_SHARDS
from hub.election.elector import LeaseRecord
from hub.election.lease import lease_of
from hub.election.peers import HANDED, REGISTRY, SHARDS, WANTED, count_of
from hub.errors import AlreadyExists, ClusterUnreachable, Conflict, Forbidden, NotFound, NotLeader
from hub.model import TargetKey
from hub.registry.spec import ClusterSpec, ProviderRef, Registry, SourceSpec, TargetSpec
from tests.support.leases import Server, real, simulate

TARGETS: Final = tuple(TargetKey("edge", f"web-{number}") for number in range(6))
CLUSTERS: Final = tuple(f"c{number}" for number in range(9))
NODES: Final = ProviderRef("node-addresses")


def registry(generation: int = 0) -> Registry:
    """A registry in which each target has one source; many targets have another source in another generation."""
    rng = random.Random(generation)
    targets = {key: TargetSpec(key, (SourceSpec(rng.choice(CLUSTERS), NODES),)) for key in TARGETS}
    clusters = {name: ClusterSpec(name, NODES) for name in CLUSTERS}
    return Registry("default", clusters, targets, digest=f"{generation:016x}")


class World:
    """The Leases of one hub, and which replica writes which target."""

    def __init__(self) -> None:
        self.servers: dict[int, Server] = {}
        self.writing: dict[TargetKey, str] = {}
        self.written: Counter[TargetKey] = Counter()
        self.last: dict[TargetKey, str] = {}
        """Target -> the replica that wrote it last, and the generation of its registry."""

    def server(self, number: int) -> Server:
        return self.servers.setdefault(number, Server())

    def holders(self, count: int) -> list[str]:
        """The holder of each Lease, by number; "" = none."""
        return [self.server(number).holder for number in range(count)]

    def shares(self, count: int) -> list[int]:
        """The number of shards of each replica that holds any, sorted."""
        return sorted(Counter(filter(None, self.holders(count))).values())


@dataclass
class Way:
    """A process's connection to one Lease."""

    process: Process
    server: Server

    async def get(self) -> LeaseRecord:
        await self.process.travel(f"get {self.number}")
        if self.server.record is None:
            raise NotFound(404)
        record = self.server.record
        await self.process.come_back()
        return record

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        await self.process.travel(f"create {self.number}")
        if self.server.record is not None:
            raise AlreadyExists(409)
        stored = self.server.store(record)
        await self.process.come_back()
        return stored

    async def update(self, record: LeaseRecord) -> LeaseRecord:
        await self.process.travel(f"update {self.number}")
        if self.server.record is None:
            raise NotFound(404)
        if self.server.record.version != record.version:
            raise Conflict(409)
        stored = self.server.store(record)
        await self.process.come_back()
        return stored

    async def wait_until_free(self) -> None:
        while self.server.record is None or self.server.record.holder:
            await self.server.changed.wait()
        await self.process.come_back()

    @property
    def number(self) -> int:
        world = self.process.world
        return next(number for number, server in world.servers.items() if server is self.server)


@dataclass(eq=False)
class Process:
    """One hub process: its clock, its connection to the API server, its permissions, and its writes."""

    world: World
    name: str
    count: int = 6
    generation: int = 0
    rate: float = 1.0
    latency: float = 0.0
    away: bool = False
    """The API server does not answer."""
    calls: list[str] = field(default_factory=list)
    under_way: set[TargetKey] = field(default_factory=set)
    paused_until: float = 0.0
    longest: float = 0.5
    """Seconds a write takes at most."""
    withheld: str = ""
    """Hash of the removal that it withholds."""
    forbidden: frozenset[int] = frozenset()
    """Leases that its account may not use."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.name)
        self.offset = self.rng.uniform(0, 1e6)
        self.changes: list[tuple[float, frozenset[int]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.leading = Leading(
            lambda number: Way(self, self.world.server(number)),
            self.name,
            self,
            registry(self.generation),
            lambda: self.under_way,
            lambda: self.changes.append((real(), self.leading.held)),
            count=self.count,
            withheld=lambda: self.withheld,
        )

    # its clock

    def now(self) -> float:
        return self.offset + real() * self.rate

    def wall(self) -> float:
        return 1.7e9 + real()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
        await self.gate()

    async def gate(self) -> None:
        """Wait while the process is paused."""
        while (left := self.paused_until - real()) > 0:  # noqa: ASYNC110 - it may be prolonged meanwhile
            await asyncio.sleep(left)

    # its way to the API server

    async def travel(self, call: str) -> None:
        self.calls.append(call)
        await asyncio.sleep(self.rng.uniform(0, self.latency))
        await self.gate()
        if self.away:
            raise ClusterUnreachable("connection refused", "refused")
        if int(call.split()[1]) in self.forbidden:
            raise Forbidden(403, "Forbidden", "leases is forbidden", what=call)

    async def come_back(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, self.latency))
        await self.gate()

    # its life

    def start(self) -> Process:
        """Start to take part in the elections and to write."""
        self.tasks = [asyncio.create_task(self.leading.shards.run())]
        self.tasks += [asyncio.create_task(self._write(key)) for key in TARGETS]
        return self

    async def stop(self) -> None:
        """Stop as on SIGTERM: let the writes under way end, then release all Leases."""
        self.leading.end()
        while self.under_way:  # noqa: ASYNC110 - the test's own state
            await asyncio.sleep(0.01)
        await self._end()

    async def _end(self) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task

    def kill(self) -> None:
        """Stop at once, without releasing Leases."""
        self.paused_until = 1e12

    def reload(self, generation: int) -> None:
        """Load the registry of another generation."""
        self.generation = generation
        self.leading.use_registry(registry(generation))

    @property
    def held(self) -> int:
        return len(self.leading.held)

    async def _write(self, key: TargetKey) -> None:
        """Write one target again and again, as the fence allows."""
        world = self.world
        while True:
            await asyncio.sleep(self.rng.uniform(0, 1.0))
            await self.gate()
            if not self.leading.writes(key):
                continue
            self.under_way.add(key)
            try:
                with suppress(NotLeader):
                    budget = self.leading.check(key)
                    assert key not in world.writing, f"{self.name} and {world.writing[key]} write {key}"
                    world.writing[key] = self.name
                    try:
                        await asyncio.sleep(self.rng.uniform(0, min(budget, self.longest)) / self.rate)
                        assert world.writing[key] == self.name
                        world.written[key] += 1
                        world.last[key] = f"{self.name} {self.generation}"
                    finally:
                        del world.writing[key]
            finally:
                self.under_way.discard(key)

    def raise_what_failed(self) -> None:
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()


def check(*processes: Process) -> None:
    """Assert that no target has two writers."""
    for process in processes:
        process.raise_what_failed()
    for key in TARGETS:
        may = []
        for process in processes:
            with suppress(NotLeader):
                process.leading.check(key)
                may.append(process.name)
        assert len(may) <= 1, (key, may)


async def watch(seconds: float, *processes: Process) -> None:
    """Let time pass, with checks."""
    end = real() + seconds
    while real() < end:
        await asyncio.sleep(0.2)
        check(*processes)


async def pair(world: World, **more: int) -> tuple[Process, Process]:
    """Two replicas that have shared the shards."""
    first = Process(world, "first", **more).start()  # type: ignore[arg-type]
    await watch(10, first)
    second = Process(world, "second", **more).start()  # type: ignore[arg-type]
    await watch(30, first, second)
    return first, second


# -- one shard is what there was before ---------------------------------------------------------------------------


def test_single_shard_needs_no_annotations() -> None:
    """One shard needs no annotations and no requests beyond a read, a creation and a renewal every two seconds."""

    async def main() -> None:
        world = World()
        process = Process(world, "first", count=1).start()
        await asyncio.sleep(20.5)
        assert process.calls == ["get 0", "create 0", *["update 0"] * 10]
        record = world.servers[0].record
        assert record is not None
        assert (set(world.servers), dict(record.notes)) == ({0}, {})
        assert (process.leading.holds_shard_0, all(map(process.leading.writes, TARGETS))) == (True, True)
        assert process.leading.registry_part() is process.leading._assignment.registry

    simulate(main())


# -- shares -------------------------------------------------------------------------------------------------------


def test_a_lonely_replica_takes_all_shards_within_three_seconds() -> None:
    """The only replica writes all targets; each Lease states the number of shards and the registry."""

    async def main() -> None:
        for count in (2, 6, 64):
            world = World()
            process = Process(world, "first", count=count).start()
            await watch(3.5, process)
            assert process.held == count
            assert all(map(process.leading.writes, TARGETS))
            records = [world.server(number).record for number in range(count)]
            notes = {SHARDS: str(count), REGISTRY: process.leading._assignment.mark}
            assert all(record is not None and record.notes == notes for record in records)
            await process.stop()
            assert world.holders(count) == [""] * count

    simulate(main())


def test_replicas_that_start_together_share_the_shards() -> None:
    """No replica takes nearly all shards first and gives most of them away afterwards."""

    async def main() -> None:
        world = World()
        processes = [Process(world, f"hub-{number}", latency=0.02).start() for number in range(3)]
        await watch(10, *processes)
        assert world.shares(6) == [2, 2, 2]
        assert max(len(held) for process in processes for _, held in process.changes) <= 4

    simulate(main())


@pytest.mark.parametrize(("count", "replicas"), [(3, 2), (6, 3), (5, 4), (4, 6), (9, 4)])
def test_newcomers_get_their_share(count: int, replicas: int) -> None:
    """After each new replica no replica has more than its share, rounded up; then no shard moves any more."""

    async def main() -> None:
        world = World()
        processes: list[Process] = []
        for number in range(replicas):
            processes.append(Process(world, f"hub-{number}", count=count, latency=0.05).start())
            await watch(2 + 5 * count, *processes)
            shares = world.shares(count)
            assert (sum(shares), shares[-1] - shares[0] <= 1) == (count, True)
            assert shares[-1] == -(-count // (number + 1))
        before = [len(process.changes) for process in processes]
        await watch(60, *processes)
        assert [len(process.changes) for process in processes] == before

    simulate(main())


def test_a_shard_is_handed_over_within_a_fraction_of_a_second() -> None:
    """A handover takes less than a second, since the new holder need not wait for an expiry."""

    async def main() -> None:
        world = World()
        first = Process(world, "first", latency=0.01).start()
        await watch(10, first)
        second = Process(world, "second", latency=0.01).start()
        await watch(40, first, second)
        given = [at for (at, held), (_, before) in zip(first.changes[1:], first.changes, strict=False) if held < before]
        taken = [at for at, held in second.changes if held]
        gaps = [min(at - start for at in taken if at >= start) for start in given]
        assert (len(gaps), max(gaps) < 1.0) == (3, True), gaps

    simulate(main())


def test_the_holder_ends_the_writes_under_way_first() -> None:
    """A holder gives a shard away only after its writes under way have ended, and starts no new ones."""

    async def main() -> None:
        world = World()
        first = Process(world, "first", longest=8.0).start()
        await watch(10, first)
        second = Process(world, "second", longest=8.0).start()
        await watch(120, first, second)
        assert world.shares(6) == [3, 3]

    simulate(main())


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(6, 150))]
)
def test_handover_waits_for_writes_of_moved_targets(seed: int) -> None:
    """A write under way delays the handover of its shard even if a reload has moved its target to another shard."""

    async def main() -> None:
        rng = random.Random(seed)
        world = World()
        first = Process(world, "first", longest=9.0).start()
        await watch(8 + rng.uniform(0, 3), first)
        second = Process(world, "second", longest=9.0).start()
        for _ in range(400):
            await asyncio.sleep(0.02)
            if second.calls and first.under_way and first.held < 6:
                break
        await asyncio.sleep(rng.uniform(0, 0.3))
        first.reload(1)
        await watch(20, first, second)

    simulate(main())


# -- what is withheld ---------------------------------------------------------------------------------------------


def test_others_hear_that_a_removal_is_withheld() -> None:
    """A withheld removal, and its end, is known to the other replicas within seconds; its own replica is not warned."""

    async def main() -> None:
        world = World()
        first, second = await pair(world)
        assert [process.leading.shards.other_withholds for process in (first, second)] == [False, False]
        first.withheld = "0123456789ab"
        await watch(8, first, second)
        assert [process.leading.shards.other_withholds for process in (first, second)] == [False, True]
        first.withheld = ""
        await watch(8, first, second)
        assert not second.leading.shards.other_withholds

    simulate(main())


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_next_holder_learns_of_a_withheld_removal(count: int, end: str) -> None:
    """The next holder of a Lease learns once that its previous holder withheld a removal, however that one ended."""

    async def main() -> None:
        world = World()
        first = Process(world, "first", count=count).start()
        await watch(10, first)
        assert not first.leading.shards.inherit()
        first.withheld = "0123456789ab"
        await watch(5, first)
        second = Process(world, "second", count=count).start()
        await watch(0.5, first, second)
        if end == "stopped":
            await first.stop()
        else:
            first.kill()
        await watch(30, second)
        assert second.held == count
        assert [second.leading.shards.inherit() for _ in range(2)] == [True, False]
        await watch(5, second)
        assert (second.leading.shards.inherit(), second.leading.shards.other_withholds) == (False, False)

    simulate(main())


# -- ends ---------------------------------------------------------------------------------------------------------


def test_sigterm_gives_all_shards_back() -> None:
    """On SIGTERM a replica releases all its Leases, and the other replica holds them within seconds."""

    async def main() -> None:
        world = World()
        first, second = await pair(world)
        await first.stop()
        assert "first" not in world.holders(6)
        await watch(3, second)
        assert second.held == 6

    simulate(main())


@pytest.mark.parametrize("seed", range(6))
def test_sigterm_does_not_cancel_a_release(seed: int) -> None:
    """SIGTERM does not cancel the release of a Lease that is under way."""

    async def main() -> None:
        rng = random.Random(seed)
        world = World()
        first = Process(world, "first", latency=0.4).start()
        await watch(12, first)
        second = Process(world, "second", latency=0.05).start()
        while not any(shard.quit.is_set() for shard in first.leading.shards._shards):  # noqa: ASYNC110 - the test's own
            await asyncio.sleep(0.005)
        await asyncio.sleep(rng.uniform(0, 0.1))
        await first.stop()
        assert "first" not in world.holders(6)
        await second.stop()

    simulate(main())


def test_a_dead_replicas_shards_are_taken_when_its_leases_end() -> None:
    """The other replicas divide a dead replica's shards when its Leases have expired."""

    async def main() -> None:
        world = World()
        processes = [Process(world, f"hub-{number}", latency=0.02).start() for number in range(3)]
        await watch(20, *processes)
        processes[0].kill()
        await watch(12, *processes)  # a Lease of 15 s was renewed at most 2 s before
        assert world.shares(6) == [2, 2, 2]
        await watch(10, *processes)
        assert [process.held for process in processes[1:]] == [3, 3]

    simulate(main())


def test_a_paused_replica_may_write_nothing_when_it_wakes() -> None:
    """A replica that was paused until its shards were taken may not write, even before any of its tasks has run."""

    async def main() -> None:
        world = World()
        first, second = await pair(world)
        first.paused_until = real() + 40
        await watch(39.9, first, second)
        assert second.held == 6
        await watch(60, first, second)
        assert (first.held, second.held) == (3, 3)

    simulate(main())


# -- another number -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(3, 6), (6, 3), (1, 3), (3, 1)])
def test_new_shard_count_waits_for_the_last_old_replica(old: int, new: int) -> None:
    """Replicas with a new --shards wait until the last replica with the old number is gone, and say which one it is."""

    async def main() -> None:
        world = World()
        before = [Process(world, f"old-{number}", count=old).start() for number in range(2)]
        await watch(40, *before)
        after = [Process(world, f"new-{number}", count=new).start() for number in range(2)]
        await watch(30, *before, *after)
        await before[0].stop()
        await watch(30, before[1], *after)
        assert [process.held for process in (before[1], *after)] == [old, 0, 0]
        if old > 1:
            assert f"has --shards {old}" in after[0].leading.problem
        await before[1].stop()
        await watch(30, *after)
        assert sum(process.held for process in after) == new
        assert {count_of(world.server(number).record) for number in range(new)} == {new}
        assert [process.leading.problem for process in after] == ["", ""]

    simulate(main())


@pytest.mark.parametrize("new", [1, 2])
def test_replica_without_permission_for_leases_takes_no_shard(new: int) -> None:
    """A replica that may not read the Leases of a larger --shards takes no shard and says why, until it may."""

    async def main() -> None:
        world = World()
        before = Process(world, "old").start()
        await watch(10, before)
        after = Process(world, "new", count=new, forbidden=frozenset(range(new, MOST_SHARDS))).start()
        await watch(10, before, after)
        await before.stop()
        await watch(60, after)
        assert after.held == 0
        assert "of a replica with a larger --shards were not read yet: get " in after.leading.problem
        assert "403 Forbidden: leases is forbidden" in after.leading.problem
        after.reload(1)
        await watch(60, after)
        assert (after.held, "403 Forbidden" in after.leading.problem) == (0, True)
        after.forbidden = frozenset()
        await watch(20, after)
        assert (after.held, after.leading.problem) == (new, "")

    simulate(main())


@pytest.mark.parametrize("owner", ["default", "edge.hub", "1", "1.x", "o" * 63])
def test_no_lease_of_a_shard_is_another_owners(owner: str) -> None:
    """A shard's Lease never has the name of another hub's first Lease."""
    names = [lease_of(lease_name(owner), number) for number in range(MOST_SHARDS)]
    assert len(set(names)) == MOST_SHARDS
    assert names[0] == lease_name(owner)
    assert all("." in name and not name.startswith(lease_name("")) and len(name) <= 253 for name in names[1:])
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name) for name in names)


def test_nonsensical_shard_count_is_bounded() -> None:
    """A nonsensical number of shards in an annotation counts as the largest possible number."""
    for text in ("999999999999", "-3", "many", ""):
        assert count_of(LeaseRecord("x", 15, "", "", notes={SHARDS: text})) == MOST_SHARDS
    assert (count_of(None), count_of(LeaseRecord("x", 15, "", "")), MOST_SHARDS) == (0, 1, 64)


# -- another registry ---------------------------------------------------------------------------------------------


def test_a_replica_with_another_registry_takes_nothing() -> None:
    """A replica with another registry takes no shard and says why, until all have the same registry."""

    async def main() -> None:
        world = World()
        first = Process(world, "first").start()
        await watch(10, first)
        second = Process(world, "second", generation=1).start()
        await watch(60, first, second)
        assert (first.held, second.held) == (6, 0)
        assert "with another registry than this replica's" in second.leading.problem
        first.reload(1)
        await watch(40, first, second)
        assert (first.held, second.held, second.leading.problem) == (3, 3, "")

    simulate(main())


def test_a_reload_moves_targets_without_two_writers() -> None:
    """While replicas have different registries, the targets that move keep their writer or have none."""

    async def main() -> None:
        world = World()
        first, second = await pair(world)
        mine = {key for key in TARGETS if first.leading.writes(key)}
        second.reload(1)
        for key in mine:
            with pytest.raises(NotLeader):
                second.leading.check(key)
        await watch(60, first, second)
        assert mine == {key for key in TARGETS if first.leading.writes(key)}
        first.reload(1)
        await watch(30, first, second)
        written = {key: process.name for process in (first, second) for key in TARGETS if process.leading.writes(key)}
        moved = {key for key in mine if written[key] == "second"}
        assert (set(written), bool(moved)) == (set(TARGETS), True)
        assert {world.last[key] for key in moved} == {"second 1"}

    simulate(main())


def test_quick_registry_changes_keep_every_writer() -> None:
    """After quick changes of the registry and back, every target has its writer again."""

    async def main() -> None:
        world = World()
        first, second = await pair(world)
        for generation in (1, 0, 2, 0):
            second.reload(generation)
            await watch(0.5, first, second)
        await watch(30, first, second)
        assert {key for process in (first, second) for key in TARGETS if process.leading.writes(key)} == set(TARGETS)

    simulate(main())


# -- requests that nobody should grant ----------------------------------------------------------------------------


def test_request_of_a_replica_with_its_share_moves_nothing() -> None:
    """A request of a replica that holds its share moves nothing, and the next renewal removes it."""

    async def main() -> None:
        world = World()
        first, second = await pair(world)
        for server in [server for server in world.servers.values() if server.holder == "first"]:
            assert server.record is not None
            server.store(replace(server.record, notes={**server.record.notes, WANTED: "second"}))
        await watch(10, first, second)
        assert (first.held, second.held) == (3, 3)
        assert all(WANTED not in server.record.notes for server in world.servers.values() if server.record is not None)

    simulate(main())


def test_shard_given_to_a_dead_replica_is_taken_over() -> None:
    """A shard that was given to a replica that has gone is taken by another one after one retry period."""

    async def main() -> None:
        world = World()
        first = Process(world, "first").start()
        await watch(10, first)
        record = world.servers[5].record
        assert record is not None
        world.servers[5].store(replace(record, notes={**record.notes, WANTED: "ghost"}))
        while world.servers[5].holder:
            await watch(0.2, first)
        assert world.servers[5].record is not None
        assert world.servers[5].record.notes[HANDED] == "ghost"
        await watch(1.4, first)
        assert first.held == 5
        await watch(5, first)
        assert first.held == 6

    simulate(main())


# -- everything at once -------------------------------------------------------------------------------------------


async def trouble(processes: list[Process], rng: random.Random) -> None:
    """Pauses and outages of one process at a time, and reloads that reach the processes at different times."""
    generation = 0
    while True:
        await asyncio.sleep(rng.expovariate(1 / 6))
        process = rng.choice(processes)
        length = rng.choice((0.5, 3.0, 9.0, 16.0, 40.0)) * rng.uniform(0.5, 1.5)
        kind = rng.choice(("pause", "away", "reload", "reload"))
        if kind == "pause":
            process.paused_until = real() + length
        elif kind == "away":
            process.away = True
            await asyncio.sleep(length)
            process.away = False
        else:
            generation += 1
            for replica in rng.sample(processes, len(processes)):
                await asyncio.sleep(rng.choice((0.0, 0.3, 5.0)))
                await replica.gate()
                replica.reload(generation)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 40))])
def test_never_two_writers_of_one_target(seed: int) -> None:
    """In five minutes of faults no target has two writers; at the end all are written with the last registry."""

    async def main() -> None:
        rng = random.Random(seed)
        world = World()
        count = rng.choice((2, 3, 6))
        processes = [
            Process(world, f"hub-{number}", count=count, rate=rng.uniform(0.98, 1.02), latency=rng.choice((0.01, 0.5)))
            for number in range(3)
        ]
        for process in processes:
            process.start()
            await watch(rng.uniform(0, 5), *processes)
        chaos = asyncio.create_task(trouble(processes, rng))
        await watch(300, *processes)
        chaos.cancel()
        generation = max(process.generation for process in processes) + 1
        for process in processes:
            process.paused_until, process.away = 0.0, False
            process.reload(generation)
        await watch(90, *processes)
        assert (sum(process.held for process in processes), world.shares(count)[-1]) == (count, -(-count // 3))
        assert {text.split()[1] for text in world.last.values()} == {str(generation)}
        assert min(world.written[key] for key in TARGETS) > 50
        for process in processes:
            await process.stop()
        assert world.holders(count) == [""] * count

    simulate(main())
