"""Divides the targets among several replicas: each shard has a Lease, and its holder writes the shard's targets.

An :class:`~hub.election.elector.Elector` holds each Lease. This module adds the rules between the Leases:

- *Agreement before taking.* Annotations on a Lease state the number of shards and the registry that its holder divides.
  A replica takes a Lease only if every held Lease states the same number and registry as the replica itself. It writes
  its own Lease first, then reads the others, and gives its own back if they differ. So if two replicas take Leases at
  the same time, at least one of them sees the other.
- *A new registry.* A new registry can move targets between shards. A replica writes the new registry's mark on its
  Leases once no write is under way for a target that has moved away from it. It writes the targets that have moved to
  it once all Leases carry the new mark (:attr:`Shards.agreed`).
- *Fair shares.* The replica that holds the fewest Leases takes a free one. A replica that holds at least two fewer than
  another asks it for one by an annotation. The holder lets the writes under way end, then releases the Lease for the
  replica that asked.

With one shard none of this costs a request, and the Lease is that of a hub without shards.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from hub.election.elector import Elector, LeaseRecord, LeaseStore, Terms, Timing
from hub.election.peers import HANDED, REGISTRY, SHARDS, WANTED, Peers
from hub.election.shard import Shard
from hub.election.shares import Shares
from hub.errors import HubError, NotLeader
from hub.model import ANNOTATION_WITHHELD
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

WRITE_POLL: Final = 0.02
"""Seconds between checks whether writes are still under way; writes take milliseconds."""


class Holder(Protocol):
    """The parts of the hub that :class:`Shards` calls."""

    def changed(self) -> None:
        """Called after a change of :attr:`Shards.held` or :attr:`Shards.agreed`."""
        ...

    def busy(self, shard: int) -> bool:
        """Whether a write is under way for a target of this shard."""
        ...

    def leaving(self) -> bool:
        """Whether a write is under way for a target that this process may no longer write."""
        ...

    def withheld(self) -> str:
        """Hash of the removal that this process withholds (hub.registry.removals); "" = none."""
        ...


class _Terms(Terms):
    """Passes an elector's calls on to :class:`Shards`, with the number of its shard."""

    def __init__(self, shards: Shards, number: int) -> None:
        self._shards = shards
        self._number = number

    def notes(self) -> Mapping[str, str]:
        return self._shards.notes(self._number)

    def lease_read(self, record: LeaseRecord) -> None:
        self._shards.lease_read(self._number, record)

    def may_take(self, record: LeaseRecord | None) -> bool:
        return self._shards.may_take(self._number, record)


class Shards:
    """All Leases of one hub, of which this process holds some.

    Args:
        store: returns the store of the Lease with a number; number 0 is the Lease of a hub without shards.
        count: number of shards.
        identity: of this process (see :class:`~hub.election.elector.Elector`).
        clock: of the election.
        timing: None = the defaults.
        mark: identifies the registry in force (:attr:`hub.election.assignment.Assignment.mark`).
        holder: the hub.
        rng: for the electors' jitter; None = a new generator for each.

    Attributes:
        agreed: whether all replicas that hold a shard divide the registry that is in force in this process.
    """

    def __init__(
        self,
        store: Callable[[int], LeaseStore],
        count: int,
        identity: str,
        clock: Clock,
        timing: Timing | None = None,
        *,
        mark: str = "",
        holder: Holder,
        rng: random.Random | None = None,
    ) -> None:
        self.count = count
        self.identity = identity
        self.agreed = True
        self._clock = clock
        self._timing = timing = timing or Timing()
        self._holder = holder
        make = partial(self._elector, store, rng)
        self._shards = [Shard(number, make(number, terms=_Terms(self, number))) for number in range(count)]
        self._peers = Peers(self.electors, make)
        self._shares = Shares(self._shards, self._peers, identity, clock, timing.retry)
        self._mark = self._wanted = mark
        """The mark that is written on our Leases, and the mark of the registry in force, which replaces it."""
        self._round = 0
        """The number of registries that have come into force; detects a change during an await."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged = ""
        """The last logged reason for taking no shard."""

    def _elector(
        self, store: Callable[[int], LeaseStore], rng: random.Random | None, number: int, terms: Terms | None = None
    ) -> Elector:
        label = f"shard {number}: " if self.count > 1 else ""
        return Elector(store(number), self.identity, self._clock, self._timing, rng, terms, label)

    # --- state for other modules -------------------------------------------------------------------

    @property
    def electors(self) -> tuple[Elector, ...]:
        """All electors, by number of the shard."""
        return tuple([shard.elector for shard in self._shards])

    @property
    def held(self) -> frozenset[int]:
        """The shards whose targets this process writes now."""
        return frozenset(shard.number for shard in self._shards if shard.held)

    @property
    def problem(self) -> str:
        """Why a Lease could not be read or written, or why none may be taken; "" = no problem."""
        found = next((elector.problem for elector in self.electors if elector.problem), "")
        return found or (self._obstacle() if self.count > 1 or self._peers.larger_count_seen else "")

    @property
    def other_withholds(self) -> bool:
        """Whether another replica that holds a shard withholds a removal.

        This replica must then withhold too: endpoints that the same file added meanwhile make the removal's share
        smaller (hub.registry.removals).
        """
        return self._peers.withholding

    def inherit(self) -> bool:
        """Whether the previous holder of one of our Leases withheld a removal; True only once for each Lease taken."""
        found = [shard for shard in self._shards if shard.inherited and shard.held]
        for shard in found:
            shard.inherited = False
        return bool(found)

    def remaining(self) -> float:
        """Seconds until another replica may take one of our shards; 0 if this process holds none."""
        return min((shard.elector.remaining() for shard in self._shards if shard.held), default=0.0)

    def check(self, number: int) -> float:
        """The fence of one shard (see :meth:`Elector.check`): call it right before every write.

        Returns:
            Seconds that the write may take.

        Raises:
            NotLeader: this process may not write the shard's targets now.
        """
        shard = self._shards[number]
        seconds = shard.elector.check()
        if not shard.held:
            raise NotLeader(f"{self.identity} may not write: shard {number} is being taken, or handed over")
        return seconds

    # --- calls from the hub ------------------------------------------------------------------------

    def use_registry(self, mark: str) -> None:
        """Put another registry in force; our Leases carry its ``mark`` once :meth:`Holder.leaving` is False."""
        if mark == self._wanted or self.count == 1:
            return
        self._wanted = mark
        self._round += 1
        self.agreed = False
        if not self._leads_any():
            self._mark = mark

    def keep_leases(self) -> None:
        """Before the end of :meth:`run`: do not release the Leases of shards that may still have a write under way."""
        for shard in self._shards:
            if self._holder.busy(shard.number):
                shard.elector.keep_lease()

    # --- running -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in all elections until cancelled, then release all Leases at once. Let writes end before."""
        try:
            async with asyncio.TaskGroup() as group:
                for shard in self._shards:
                    name = "leader election" if self.count == 1 else f"election of shard {shard.number}"
                    campaign = shard.campaign(name, self._clock, self._lease_changed)
                    group.create_task(campaign, name=f"shard {shard.number}")
                follow = self._peers.follow(self._clock, self._timing.retry)
                group.create_task(follow, name="shards: Leases beyond ours")
                if self.count > 1:
                    take = self._every(self._shares.pace / 2, self._read_free_lease)
                    group.create_task(take, name="shards: free Leases")
                    group.create_task(self._every(self._timing.retry / 2, self._balance), name="shards: shares")
        finally:
            for task in self._tasks:
                task.cancel()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await work()
            except HubError as error:
                log.debug("shards: %s", error)

    def _spawn(self, work: Awaitable[None], name: str) -> None:
        task = asyncio.ensure_future(work)
        if isinstance(task, asyncio.Task):
            task.set_name(name)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    def _lease_changed(self, shard: Shard, leading: bool) -> None:
        """Called when this process has taken or lost a Lease."""
        shard.free = shard.read_at = None
        if not leading:
            shard.confirmed = False
            if not self._leads_any():
                self._mark = self._wanted
            self._holder.changed()
        elif self.count == 1 and not self._peers.larger_count_seen:
            shard.confirmed = True
            self._holder.changed()
        else:
            self._spawn(self._confirm(shard), f"confirming shard {shard.number}")

    async def _confirm(self, shard: Shard) -> None:
        """Read all other Leases after taking one; keep it if they state the same shards and registry."""
        while shard.elector.leading:
            written = shard.elector.seen
            # Our own Lease must carry our statement before the others are read; the next renewal writes it.
            if written is not None and written.notes.get(REGISTRY) == (self._mark if self.count > 1 else None):
                with suppress(HubError):
                    await self._peers.refresh()
                    self._confirm_or_leave(shard)
                    return
            await self._clock.sleep(self._shares.pace)

    def _confirm_or_leave(self, shard: Shard) -> None:
        """Decide whether to keep a Lease, now that all others were read after it was taken."""
        if not shard.elector.leading:
            return
        if why := self._obstacle():
            self._leave(shard, "", why)
            return
        shard.confirmed = True
        self._shares.allow_request()
        self._holder.changed()

    def _leave(self, shard: Shard, to: str, why: str) -> None:
        """Give a Lease back once the writes under way have ended; ``to``: who may take it first, "" = any replica."""
        if shard.elector.leading and not shard.leaving:
            log.info("shard %d is given back: %s", shard.number, why)
            shard.leaving, shard.handed_to = True, to
            self._spawn(self._give_back(shard), f"giving back shard {shard.number}")

    async def _give_back(self, shard: Shard) -> None:
        self._holder.changed()
        while self._holder.busy(shard.number):
            await self._clock.sleep(WRITE_POLL)
        shard.quit.set()

    # --- calls from the electors -------------------------------------------------------------------

    def notes(self, number: int) -> Mapping[str, str]:
        """The annotations to write on a Lease."""
        notes = {SHARDS: str(self.count), REGISTRY: self._mark} if self.count > 1 else {}
        if withheld := self._holder.withheld():
            notes[ANNOTATION_WITHHELD] = withheld
        if to := self._shards[number].handed_to:
            notes[HANDED] = to
        return notes

    def lease_read(self, number: int, record: LeaseRecord) -> None:
        """Called with a Lease that its elector has read."""
        self._peers.read_beyond(record)
        shard = self._shards[number]
        if not shard.elector.leading:
            shard.inherited = ANNOTATION_WITHHELD in record.notes
        elif who := record.notes.get(WANTED):
            self._answer_request(shard, who)

    def may_take(self, number: int, record: LeaseRecord | None) -> bool:
        """Whether to take a free Lease now."""
        why = self._obstacle()
        if why and why != self._logged:
            log.info("%s takes no shard: %s", self.identity, why)
        self._logged = why
        if why or self.count == 1:
            return not why
        return self._shares.may_take(self._shards[number], record, ready=self._wanted == self._mark)

    def _leads_any(self) -> bool:
        return any(elector.leading for elector in self.electors)

    def _obstacle(self) -> str:
        return self._peers.obstacle(self._mark)

    # --- agreement and fair shares -----------------------------------------------------------------

    async def _read_free_lease(self) -> None:
        self._shares.read_free_lease(self._obstacle)

    async def _balance(self) -> None:
        """React to the other replicas' Leases: give ours back, agree on a new registry, or ask for a shard."""
        if self._shares.load and self._peers.counts_differ():
            for shard in self._shards:
                self._leave(shard, "", self._obstacle())
            return
        await self._agree()
        if self._mark == self._wanted and not self._obstacle():
            await self._shares.ask(self._mark)

    async def _agree(self) -> None:
        """Write the mark of the registry in force on our Leases, and set ``agreed`` once all others carry it."""
        if self.agreed:
            return
        if self._mark != self._wanted:
            if self._holder.leaving():
                return
            self._mark = self._wanted
        begun = self._round
        own = [elector.seen for elector in self.electors if elector.leading]
        if any(record is None or record.notes.get(REGISTRY) != self._mark for record in own):
            return  # the next renewal writes it
        await self._peers.refresh()
        if begun == self._round and not self._obstacle():
            self.agreed = True
            self._holder.changed()

    def _answer_request(self, shard: Shard, who: str) -> None:
        """Give a shard to the replica that asks for it, if that replica holds at least two fewer than this one."""
        if shard.held and self._mark == self._wanted and self._shares.grants(who):
            self._leave(shard, who, f"{who} asked for it and holds fewer shards")
