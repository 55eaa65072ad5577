"""What this process may write, and which other work it does, by the shards that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from hub.app.leading import Leading
from hub.election.assignment import Assignment
from hub.errors import NotLeader
from hub.model import TargetKey
from hub.registry.spec import ClusterSpec, ProviderRef, Registry, SourceSpec, TargetSpec
from hub.runtime.clock import SystemClock

CLUSTERS = [f"c{number}" for number in range(20)]
PROVIDER = ProviderRef("node-addresses")
KEYS = [TargetKey("edge", name) for name in CLUSTERS]
REGISTRY = Registry(
    "default",
    {name: ClusterSpec(name, PROVIDER) for name in CLUSTERS},
    {key: TargetSpec(key, (SourceSpec(key.name, PROVIDER),)) for key in KEYS},
    digest="one",
)
SHARDS = Assignment(REGISTRY, 2)
OF_0, OF_1 = (next(key for key in KEYS if SHARDS.of(key) == number) for number in (0, 1))
"""A target of each shard."""


class Process:
    """The rights of a process that holds these shards, and what it does: passes under way, calls of ``on_change``."""

    def __init__(self, *held: int, count: int = 2, elects: bool = True) -> None:
        self.under_way: Sequence[TargetKey] = ()
        self.changes = 0
        self.leading = Leading(
            lambda _: cast("Any", None),
            "me",
            SystemClock(),
            REGISTRY,
            lambda: self.under_way,
            self._changed,
            count=count,
            elects=elects,
        )
        self.leading.held = frozenset(held)

    def _changed(self) -> None:
        self.changes += 1


def test_one_replica_acts_for_a_cluster() -> None:
    """With two shards, each cluster has exactly one replica that acts for it; both replicas act for some."""
    one, other = Process(0).leading, Process(1).leading
    acts = {name: (one.acts_for(name), other.acts_for(name)) for name in CLUSTERS}
    assert set(acts.values()) == {(True, False), (False, True)}


def test_only_the_leader_acts_for_clusters() -> None:
    """Without shards, the leader acts for all clusters and a standby for none."""
    assert all(Process(0, count=1).leading.acts_for(name) for name in CLUSTERS)
    assert not any(Process(count=1).leading.acts_for(name) for name in CLUSTERS)


@pytest.mark.parametrize(
    ("held", "count", "writes"),
    [
        ((), 1, (False, False)),
        ((0,), 1, (True, True)),
        ((), 2, (False, False)),
        ((0,), 2, (True, False)),
        ((1,), 2, (False, True)),
        ((0, 1), 2, (True, True)),
    ],
)
def test_targets_of_held_shards_are_written(held: tuple[int, ...], count: int, writes: tuple[bool, bool]) -> None:
    """Only targets of held shards are written; with shards, another replica writes the others."""
    leading = Process(*held, count=count).leading
    assert (leading.writes(OF_0), leading.writes(OF_1)) == writes
    assert (leading.writing, leading.holds_shard_0) == (bool(held), 0 in held)
    elsewhere = [key for key, here in zip((OF_0, OF_1), writes, strict=True) if not here and count > 1]
    assert leading.written_elsewhere([OF_0, OF_1]) == elsewhere


def test_without_shards_the_number_of_leases_is_one() -> None:
    """A process that takes part in no election has one shard, reports no problem, and writes after `begin`."""
    process = Process(count=3, elects=False)
    leading = process.leading
    assert (leading.count, leading.problem, leading.writes(OF_1)) == (1, "", False)
    leading.begin()
    assert (leading.held, leading.writes(OF_1), process.changes) == (frozenset({0}), True, 1)
    assert leading.check(OF_1) > 0


def test_targets_that_a_new_registry_moves_are_not_written() -> None:
    """A target that a registry moves to another shard is not written until all replicas have this registry."""
    leading = Process(0, 1).leading
    source = REGISTRY.targets[OF_1].sources
    changed = replace(
        REGISTRY, digest="two", targets={**REGISTRY.targets, OF_0: replace(REGISTRY.targets[OF_0], sources=source)}
    )
    leading.use_registry(changed)
    assert leading.shard(OF_0) == leading.shard(OF_1) == 1
    assert (leading.writes(OF_0), leading.writes(OF_1)) == (False, True)
    assert leading.written_elsewhere([OF_0, OF_1]) == [OF_0]
    with pytest.raises(NotLeader, match=r"another replica may write edge/.* until all have the registry in force"):
        leading.check(OF_0)


def test_without_shards_no_target_moves() -> None:
    """A new registry moves no target if there is one shard."""
    leading = Process(0, count=1).leading
    leading.use_registry(replace(REGISTRY, digest="two", targets={}))
    assert leading.writes(OF_0)
    assert leading.registry_part().targets == {}


@pytest.mark.parametrize(
    ("held", "under_way", "busy", "leaving"),
    [
        ((0, 1), [], (False, False), False),
        ((0, 1), [OF_0], (True, False), False),
        ((0, 1), [OF_0, OF_1], (True, True), False),
        ((0,), [OF_0], (True, False), False),
        ((0,), [OF_0, OF_1], (True, True), True),  # the pass over a target of a shard that is not held any more
    ],
)
def test_shards_with_passes_under_way_are_busy(
    held: tuple[int, ...], under_way: list[TargetKey], busy: tuple[bool, bool], *, leaving: bool
) -> None:
    """A shard is busy while one of its targets is written, or a target that this process no longer writes."""
    process = Process(*held)
    process.under_way = under_way
    assert (process.leading.busy(0), process.leading.busy(1)) == busy
    assert process.leading.leaving() is leaving


def test_an_ending_process_holds_no_shards() -> None:
    """A process that is ending writes nothing more, whatever the election says."""
    process = Process(0, 1)
    process.leading.end()
    assert not process.leading.writing
    process.leading.changed()
    assert (process.leading.held, process.changes) == (frozenset(), 1)
