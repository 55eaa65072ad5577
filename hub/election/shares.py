"""Keeps the replicas' shares of the Leases fair: when to take a free Lease, and when to ask another replica for one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from zlib import crc32

from hub.election.elector import LeaseRecord
from hub.election.peers import HANDED, REGISTRY, WANTED, Peers, count_of
from hub.election.shard import Shard
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

TAKE_ALL: Final = 3.0
"""Seconds within which the only replica takes all shards."""
LONGEST_IDENTITY: Final = 256
"""Characters; a longer identity in a request was not written by a hub, and is ignored."""


class Shares:
    """Compares the number of shards that this replica holds with those of the others.

    Args:
        shards: all shards, by number.
        peers: the Leases of the other replicas.
        identity: of this process.
        clock: of the election.
        retry: seconds; the retry period of the election.

    Attributes:
        pace: seconds between two Leases that this replica takes.
    """

    def __init__(self, shards: Sequence[Shard], peers: Peers, identity: str, clock: Clock, retry: float) -> None:
        self.pace = min(retry / 4, TAKE_ALL / len(shards))
        self._shards = shards
        self._peers = peers
        self._identity = identity
        self._clock = clock
        self._retry = retry
        self._next_take = float("-inf")
        self._next_request = float("-inf")

    @property
    def load(self) -> int:
        """The number of Leases that this replica holds and is not giving away."""
        return sum(shard.elector.leading and not shard.leaving for shard in self._shards)

    # --- free Leases -------------------------------------------------------------------------------

    def may_take(self, shard: Shard, record: LeaseRecord | None, *, ready: bool) -> bool:
        """Whether to take a free Lease now; if not, sets ``shard.read_at`` to the time of the next read.

        Args:
            shard: the shard of the free Lease.
            record: the Lease; None = it does not exist.
            ready: whether this replica's Leases carry the mark of the registry in force.
        """
        now = self._clock.now()
        version = record.version if record is not None else ""
        if shard.free is None or shard.free[0] != version:
            shard.free = (version, now)
        if ready and not shard.quit.is_set() and (shard.number == 0 or self._first_lease_agrees()):
            wait = max(self._due(shard.free[1], record) - now, 0.0)
        else:
            wait = self.pace
        shard.read_at = now + wait if wait else None
        if not wait:
            self._next_take = now + self.pace
        return not wait

    def _due(self, since: float, record: LeaseRecord | None) -> float:
        """The time at which this replica may take a Lease that has been free ``since``."""
        to = record.notes.get(HANDED) if record is not None else None
        if self._identity in (to, record.holder if record is not None else ""):
            return float("-inf")
        fair = -(-len(self._shards) // len(self._peers.holders() | {self._identity}))
        if to or self.load >= fair:
            # The Lease is meant for another replica, which gets one retry period to take it.
            return max(self._next_take, since + self._retry)
        return self._next_take

    def _first_lease_agrees(self) -> bool:
        """Whether the first Lease states our number of shards: replicas with a different number read it there."""
        return count_of(self._shards[0].elector.seen) == len(self._shards)

    def read_free_lease(self, obstacle: Callable[[], str]) -> None:
        """Make the elector of one free Lease that may be taken by now read it.

        Replicas start at different Leases, so that they do not compete for the same one.

        Args:
            obstacle: returns why no Lease may be taken; "" = nothing.
        """
        now, start = self._clock.now(), crc32(self._identity.encode()) % len(self._shards)
        if now < self._next_take:
            return
        if not self._first_lease_agrees() and not obstacle():
            self._shards[0].elector.end_pause()  # another replica may have just created it
            return
        for shard in (*self._shards[start:], *self._shards[:start]):
            if shard.read_at is not None and shard.read_at <= now and not shard.elector.leading:
                shard.read_at = None
                shard.elector.end_pause()
                return

    # --- Leases that others hold -------------------------------------------------------------------

    def allow_request(self) -> None:
        """Allow the next request at once, since this replica has just got a Lease."""
        self._next_request = float("-inf")

    async def ask(self, mark: str) -> None:
        """Ask the replica that holds the most Leases for one, if it holds at least two more than this replica.

        Args:
            mark: of the registry that this replica divides; a Lease with another mark is not asked for.

        Raises:
            HubError: a Lease could not be read or written.
        """
        now = self._clock.now()
        loads = self._peers.loads()
        if now < self._next_request or not loads:
            return  # too early, or a Lease is free: take that one first
        most, fullest = max((load, identity) for identity, load in loads.items())
        if most - self.load < 2:
            return
        self._next_request = now + 3 * self._retry
        request = partial(self._request, fullest, mark)
        for shard in reversed(self._shards):
            seen = shard.elector.seen
            if seen is not None and seen.holder == fullest and await shard.elector.change_annotations(request):
                log.info("%s asks %s for shard %d", self._identity, fullest, shard.number)
                return

    def _request(self, fullest: str, mark: str, record: LeaseRecord) -> LeaseRecord | None:
        """The Lease with our request as an annotation.

        None if ``fullest`` no longer holds it, another replica has asked for it, or it states another number of shards
        or registry.
        """
        notes = record.notes
        other = notes.get(WANTED, self._identity) != self._identity
        if record.holder != fullest or other or notes.get(REGISTRY) != mark or count_of(record) != len(self._shards):
            return None
        return replace(record, notes={**notes, WANTED: self._identity})

    def grants(self, who: str) -> bool:
        """Whether to give a Lease to the replica that asks for one: if it holds at least two fewer than this one."""
        if who == self._identity or len(who) > LONGEST_IDENTITY:
            return False
        promised = sum(shard.handed_to == who for shard in self._shards)
        return self.load - self._peers.load_of(who) - promised >= 2
