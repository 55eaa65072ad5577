"""When a replica takes a free Lease."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hub.election.elector import LeaseRecord
from hub.election.peers import SHARDS
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
