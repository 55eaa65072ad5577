"""Several Leases instead of one: each replica holds some of them, and writes the targets of these shards.

Every Lease is held by an :class:`~hub.election.elector.Elector`. This module adds what several Leases need:

- *Who may take a Lease.* Annotations on a Lease say how many shards there are and which registry its holder divides. A
  replica takes a Lease only while every Lease that is held says the same as it does. It writes its own Lease first and
  reads the others afterwards, and gives its own back if they differ: of two replicas that take at the same time, at
  least one sees the other.
- *A new registry.* A replica writes the new registry's mark on its Leases once no write is under way for a target that
  it lost by it. A target that it gained is written once all Leases say the same (:attr:`Shards.agreed`).
- *Fair shares.* The replica that holds the fewest takes a free Lease. A replica that holds at least two fewer than
  another asks for one by an annotation. The holder lets the writes under way end, then releases that Lease for the
  replica that asked.

With one shard none of this costs a request, and the Lease is the one of a hub without shards.
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
"""Seconds between checks whether writes are still under way."""


class Holder(Protocol):
    """The hub whose shards these are."""

    def changed(self) -> None:
        """Other shards are held than before, or the replicas have come to agree."""
        ...

    def busy(self, shard: int) -> bool:
        """Whether a write is under way for a target of this shard."""
        ...

    def leaving(self) -> bool:
        """Whether a write is under way for a target that this process no longer writes."""
        ...

    def withheld(self) -> str:
        """Hash of the removal that is withheld here (hub.registry.removals); "" = none."""
        ...


class _Terms(Terms):
    """Hands an elector's questions to :class:`Shards`, with the number of its shard."""

    def __init__(self, shards: Shards, number: int) -> None:
        self._shards = shards
        self._number = number

    def notes(self) -> Mapping[str, str]:
        return self._shards.notes(self._number)

    def noticed(self, record: LeaseRecord) -> None:
        self._shards.noticed(self._number, record)

    def admits(self, record: LeaseRecord | None) -> bool:
        return self._shards.admits(self._number, record)


class Shards:
    """All Leases of one hub, of which this process holds some.

    Args:
        store: the store of the Lease with a number; number 0 is the Lease of a hub without shards.
        count: number of shards.
        identity: who we are.
        mark: identifies the registry in force (:attr:`hub.election.assignment.Assignment.mark`).

    Attributes:
        agreed: all replicas that hold a shard divide the registry that is in force here.
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
        """What our Leases say, and what they are to say."""
        self._round = 0
        """Counts the registries that came into force here."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged = ""
        """Why no shard is taken, as it was logged last."""

    def _elector(
        self, store: Callable[[int], LeaseStore], rng: random.Random | None, number: int, terms: Terms | None = None
    ) -> Elector:
        label = f"shard {number}: " if self.count > 1 else ""
        return Elector(store(number), self.identity, self._clock, self._timing, rng, terms, label)

    # --- what other modules ask --------------------------------------------------------------------

    @property
    def electors(self) -> tuple[Elector, ...]:
        """By number."""
        return tuple([shard.elector for shard in self._shards])

    @property
    def held(self) -> frozenset[int]:
        """The shards whose targets this process writes now."""
        return frozenset(shard.number for shard in self._shards if shard.held)

    @property
    def problem(self) -> str:
        """Why a Lease was not answered, or why none may be taken; "" = no problem."""
        found = next((elector.problem for elector in self.electors if elector.problem), "")
        return found or (self._obstacle() if self.count > 1 or self._peers.count_more else "")

    @property
    def warned(self) -> bool:
        """Whether another replica that writes withholds a removal: it may have judged before there was more to lose."""
        return self._peers.withholding

    def inherit(self) -> bool:
        """Whether the previous holder of a Lease of ours withheld a removal; True only once for each Lease taken."""
        found = [shard for shard in self._shards if shard.inherited and shard.held]
        for shard in found:
            shard.inherited = False
        return bool(found)

    def remaining(self) -> float:
        """Seconds until another replica may hold one of our shards; 0 if we hold none."""
        return min((shard.elector.remaining() for shard in self._shards if shard.held), default=0.0)

    def check(self, number: int) -> float:
        """The fence of one shard, see :meth:`Elector.check`.

        Raises:
            NotLeader: this process may not write its targets now.
        """
        shard = self._shards[number]
        seconds = shard.elector.check()
        if not shard.held:
            raise NotLeader(f"{self.identity} may not write: shard {number} is being taken, or handed over")
        return seconds

    # --- what the hub reports ----------------------------------------------------------------------

    def use(self, mark: str) -> None:
        """Another registry is in force here. Our Leases say so once no write is under way that it forbids."""
        if mark == self._wanted or self.count == 1:
            return
        self._wanted = mark
        self._round += 1
        self.agreed = False
        if not self._leads_any():
            self._mark = mark

    def keep(self) -> None:
        """At the end, do not release the Leases of shards for which a write may still be under way."""
        for shard in self._shards:
            if self._holder.busy(shard.number):
                shard.elector.keep()

    # --- running -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until cancelled, then release all Leases at the same time. Let writes end before."""
        try:
            async with asyncio.TaskGroup() as group:
                for shard in self._shards:
                    name = "leader election" if self.count == 1 else f"election of shard {shard.number}"
                    group.create_task(shard.campaign(name, self._clock, self._led), name=f"shard {shard.number}")
                follow = self._peers.follow(self._clock, self._timing.retry)
                group.create_task(follow, name="shards: Leases of a larger --shards")
                if self.count > 1:
                    group.create_task(self._every(self._shares.pace / 2, self._look_again), name="shards: looks")
                    group.create_task(self._every(self._timing.retry / 2, self._deal), name="shards: shares")
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

    def _led(self, shard: Shard, leading: bool) -> None:
        """A Lease was taken or lost."""
        shard.free = shard.look_at = None
        if not leading:
            shard.confirmed = False
            if not self._leads_any():
                self._mark = self._wanted
            self._holder.changed()
        elif self.count == 1 and not self._peers.count_more:
            shard.confirmed = True
            self._holder.changed()
        else:
            self._spawn(self._confirm(shard), f"confirming shard {shard.number}")

    async def _confirm(self, shard: Shard) -> None:
        """A Lease was taken: keep it if all the others, read after that, say the same as it does."""
        while shard.elector.leading:
            written = shard.elector.seen
            # If it does not say yet what it should, it will with its next renewal.
            if written is not None and written.notes.get(REGISTRY) == (self._mark if self.count > 1 else None):
                with suppress(HubError):
                    await self._peers.refresh()
                    self._settle(shard)
                    return
            await self._clock.sleep(self._shares.pace)

    def _settle(self, shard: Shard) -> None:
        """All other Leases were read after we took this one."""
        if not shard.elector.leading:
            return
        if why := self._obstacle():
            self._leave(shard, "", why)
            return
        shard.confirmed = True
        self._shares.hurry()
        self._holder.changed()

    def _leave(self, shard: Shard, to: str, why: str) -> None:
        """Give a Lease back once the writes under way have ended."""
        if shard.elector.leading and not shard.leaving:
            log.info("shard %d is given back: %s", shard.number, why)
            shard.leaving, shard.handed_to = True, to
            self._spawn(self._give_back(shard), f"giving back shard {shard.number}")

    async def _give_back(self, shard: Shard) -> None:
        self._holder.changed()
        while self._holder.busy(shard.number):
            await self._clock.sleep(WRITE_POLL)
        shard.quit.set()

    # --- who may take ------------------------------------------------------------------------------

    def notes(self, number: int) -> Mapping[str, str]:
        """The annotations that our writes put on a Lease."""
        notes = {SHARDS: str(self.count), REGISTRY: self._mark} if self.count > 1 else {}
        if withheld := self._holder.withheld():
            notes[ANNOTATION_WITHHELD] = withheld
        if to := self._shards[number].handed_to:
            notes[HANDED] = to
        return notes

    def noticed(self, number: int, record: LeaseRecord) -> None:
        """A Lease was read."""
        self._peers.widen(record)
        shard = self._shards[number]
        if not shard.elector.leading:
            shard.inherited = ANNOTATION_WITHHELD in record.notes
        elif who := record.notes.get(WANTED):
            self._asked(shard, who)

    def admits(self, number: int, record: LeaseRecord | None) -> bool:
        """Whether a Lease that nobody holds may be taken now."""
        why = self._obstacle()
        if why and why != self._logged:
            log.info("%s takes no shard: %s", self.identity, why)
        self._logged = why
        if why or self.count == 1:
            return not why
        return self._shares.take(self._shards[number], record, ready=self._wanted == self._mark)

    def _leads_any(self) -> bool:
        return any(elector.leading for elector in self.electors)

    def _obstacle(self) -> str:
        return self._peers.obstacle(self._mark)

    # --- dealing with the other replicas -----------------------------------------------------------

    async def _look_again(self) -> None:
        self._shares.look_again(self._obstacle)

    async def _deal(self) -> None:
        """Do what follows from what the other replicas hold and say."""
        if self._shares.load and self._peers.counts_differ():
            for shard in self._shards:
                self._leave(shard, "", self._obstacle())
            return
        await self._agree()
        if self._mark == self._wanted and not self._obstacle():
            await self._shares.ask(self._mark)

    async def _agree(self) -> None:
        """Write the registry in force here on our Leases, and see whether all others say the same."""
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

    def _asked(self, shard: Shard, who: str) -> None:
        """A replica asks for a shard of ours: it gets the shard while it holds at least two fewer than we do."""
        if shard.held and self._mark == self._wanted and self._shares.grants(who):
            self._leave(shard, who, f"to {who}, which holds fewer")
