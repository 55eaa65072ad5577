"""What the Leases of other replicas state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from hub.election import MOST_SHARDS
from hub.election.elector import LeaseRecord
from hub.election.peers import REGISTRY, SHARDS, Peers, count_of
from hub.errors import ClusterUnreachable, HubError
from hub.model import ANNOTATION_WITHHELD


@dataclass
class Lease:
    """What an elector knows of a Lease."""

    seen: LeaseRecord | None = None
    maybe_held: bool = True
    leading: bool = False
    error: HubError | None = None
    reads: int = 0

    @property
    def holder(self) -> str:
        return self.seen.holder if self.seen is not None else ""

    async def refresh(self) -> None:
        self.reads += 1
        if self.error is not None:
            raise self.error


def held(holder: str, shards: int = 3, registry: str = "m", *, withholds: bool = False) -> Lease:
    """A Lease that a replica holds."""
    notes = {SHARDS: str(shards), REGISTRY: registry, **({ANNOTATION_WITHHELD: "3f"} if withholds else {})}
    return Lease(LeaseRecord(holder, 15, "", "", notes=notes))


def ours(shards: int = 3) -> Lease:
    """A Lease that this replica holds."""
    lease = held("me", shards)
    lease.leading = True
    return lease


def free() -> Lease:
    """A Lease that nobody holds."""
    lease = held("")
    lease.maybe_held = False
    return lease


def peers(*leases: Lease, beyond: Lease | None = None) -> Peers:
    """The state of the Leases of our shards, and of any Lease beyond."""
    return Peers(cast("Any", leases), lambda _: cast("Any", beyond))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (None, 1),
        ("1", 1),
        ("7", 7),
        ("0", 0),
        ("99999999", MOST_SHARDS),
        ("000000003", MOST_SHARDS),  # nine characters
        ("", MOST_SHARDS),
        ("x", MOST_SHARDS),
        ("٣", MOST_SHARDS),
    ],
)
def test_count_that_a_lease_states(text: str | None, count: int) -> None:
    """A Lease without the annotation states one shard; nonsense counts as the most shards."""
    assert count_of(LeaseRecord("other", 15, "", "", notes={} if text is None else {SHARDS: text})) == count
    assert count_of(None) == 0


def test_loads_of_the_replicas() -> None:
    """Replicas are counted by the Leases that they hold; the loads are unknown while a Lease is free."""
    one = peers(held("a"), held("a"), held("b"), ours(), Lease())
    assert one.holders() == {"a", "b", "me"}
    assert one.loads() == {"a": 2, "b": 1}
    assert (one.load_of("a"), one.load_of("b"), one.load_of("me"), one.load_of("c")) == (2, 1, 0, 0)
    other = peers(held("a"), ours(), free())
    assert (other.holders(), other.loads()) == ({"a", "me"}, None)


def test_withheld_removal_of_another_replica() -> None:
    """A removal counts as withheld if another replica says so on a Lease that it holds."""
    assert peers(held("a"), held("b", withholds=True)).withholding
    own = held("me", withholds=True)
    own.leading = True
    assert not peers(own, free(), held("a")).withholding


@pytest.mark.parametrize(
    ("leases", "obstacle", "differ"),
    [
        ((ours(), held("a"), free()), "", False),
        ((ours(), held("a", 4), free()), "a has --shards 4 and holds shard 1; this replica has 3", True),
        ((ours(), held("a", registry="n"), free()), "a holds shard 1 with another registry than this replica's", False),
        ((held("a", 4),), "", True),  # a hub without shards stands by for the only Lease
        ((held("a", 1, registry="n"),), "", False),
    ],
)
def test_other_count_or_registry_is_an_obstacle(leases: tuple[Lease, ...], obstacle: str, *, differ: bool) -> None:
    """While a replica states another number of shards or another registry, this one takes no Lease."""
    found = peers(*leases)
    assert (found.obstacle("m"), found.counts_differ(), found.larger_count_seen) == (obstacle, differ, False)


async def test_leases_beyond_ours_are_read_first() -> None:
    """If a Lease states more shards, no Lease is taken before those beyond ours were read."""
    beyond = held("b", 4)
    beyond.error = ClusterUnreachable("no answer")
    first = held("a", 4)
    found = peers(ours(), first, free(), beyond=beyond)
    assert first.seen is not None
    found.read_beyond(first.seen)
    assert found.larger_count_seen
    unread = "Leases of a replica with a larger --shards were not read yet"
    assert found.obstacle("m") == unread
    with pytest.raises(ClusterUnreachable):
        await found.refresh()
    assert found.obstacle("m") == unread
    beyond.error = None
    await found.refresh()
    assert found.obstacle("m") == "a has --shards 4 and holds shard 1; this replica has 3"
    found.read_beyond(first.seen)  # known already
    assert found.obstacle("m") == "a has --shards 4 and holds shard 1; this replica has 3"
