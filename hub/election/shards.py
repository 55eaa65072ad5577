"""Several Leases instead of one: each replica holds some, and writes the targets of these shards.

Every Lease is held by an :class:`~hub.election.elector.Elector`; here is what they have to do with each other.

- *Who may take.* A Lease says by annotations how many there are and which registry its holder divides. A replica takes
  one only while all Leases that are held say the same as it does. It writes its own first and reads the others' then,
  and gives its own back if they differ: of two that take at the same time at least one sees the other.
- *A new registry.* A replica says it on its Leases once no write is under way for targets that it lost by it; a target
  that it gained is written when all say the same (:attr:`Shards.agreed`).
- *Fair shares.* Who holds the fewest takes what is free; who holds at least two less than another asks for one, by an
  annotation on it. Its holder ends the writes under way, and releases it for the one that asked.
- *Another version*, whose other Leases may have other names. Who takes the first Lease after one goes on saying what it
  said, but for the number: whoever reads that gives back what it holds. When all have had the time, it begins.

With one shard nothing of this costs a request, and the Lease is the one of a hub without shards.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Protocol
from zlib import crc32

import msgspec

from hub.aio.clock import Clock
from hub.aio.supervise import supervise
from hub.election import MOST_SHARDS
from hub.election.elector import Elector, LeaseRecord, LeaseStore, Terms, Timing
from hub.errors import HubError, NotLeader
from hub.model import ANNOTATION_WITHHELD

log = logging.getLogger(__name__)

SHARDS: Final = "endpointslice-hub/shards"
"""Annotation: how many Leases there are; none = one."""
REGISTRY: Final = "endpointslice-hub/registry"
"""Annotation: which registry the holder divides."""
WANTED: Final = "endpointslice-hub/wanted-by"
"""Annotation on a Lease that is held: the identity of who asks for it."""
HANDED: Final = "endpointslice-hub/handed-to"
"""Annotation on a Lease that was released: the identity of who may take it first."""
WHOLE: Final = 3.0
"""Seconds in which one replica alone takes all shards, at most."""
LOOKS: Final = 3
"""Retry periods within which a replica looks at the first Lease (2.2) and acts on it (a half), and a bit."""
BUSY: Final = 0.02
"""Seconds between looks at writes under way."""


class Holder(Protocol):
    """The hub whose shards these are."""

    def changed(self) -> None:
        """Other shards are held than before, or the replicas have come to agree."""
        ...

    def busy(self, shard: int) -> bool:
        """Whether a write is under way for a target of this shard."""
        ...

    def leaving(self) -> bool:
        """Whether one is under way for a target that this process does not write any more."""
        ...

    def withheld(self) -> str:
        """Hash of the removal that is withheld here (hub.registry.removals); "" = none is."""
        ...


class _Terms(Terms):
    """One shard's, for its elector."""

    def __init__(self, shards: Shards, number: int) -> None:
        self._shards = shards
        self._number = number

    def notes(self) -> Mapping[str, str]:
        return self._shards.notes(self._number)

    def noticed(self, record: LeaseRecord) -> None:
        self._shards.noticed(self._number, record)

    def admits(self, record: LeaseRecord | None) -> bool:
        return self._shards.admits(self._number, record)


class _Shard(msgspec.Struct, eq=False):
    """One Lease here.

    Attributes:
        confirmed: it is held, and all others say the same.
        leaving: it is given away when the writes under way have ended.
        handed_to: who gets it then; "" = whoever takes it.
        free: version of the Lease nobody holds, and since when it was seen so.
        again: when it is worth another look; None = its elector's own looks do.
        inherited: whoever held it before withheld a removal, and nobody here has heard of it yet.
        quit: set to give it back and stand by.
    """

    number: int
    elector: Elector
    confirmed: bool = False
    leaving: bool = False
    handed_to: str = ""
    free: tuple[str, float] | None = None
    again: float | None = None
    inherited: bool = False
    quit: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


def count_of(record: LeaseRecord | None) -> int:
    """How many shards a Lease says there are; 0 = it is not there."""
    if record is None:
        return 0
    text = record.notes.get(SHARDS, "1")
    return min(int(text), MOST_SHARDS) if text.isascii() and text.isdigit() and len(text) < 9 else MOST_SHARDS


def scheme_of(mark: str) -> str:
    """How a registry is divided, by its mark (:data:`hub.election.assignment.SCHEME`)."""
    return mark.partition("-")[0]


class Shards:
    """All Leases of one hub, of which this process holds some.

    Args:
        store: of the Lease with a number; number 0 is the one of a hub without shards.
        count: of shards.
        identity: who we are.
        mark: of the registry in force (:attr:`hub.election.assignment.Assignment.mark`).

    Attributes:
        agreed: all that hold a shard divide the registry in force here.
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
        self._store = store
        self._clock = clock
        self._timing = timing or Timing()
        self._holder = holder
        self._rng = rng
        self._shards = [self._shard(number) for number in range(count)]
        self._others: dict[int, tuple[Elector, asyncio.Task[None]]] = {}
        """Leases of replicas that count more shards."""
        self._unseen: dict[int, str] = {}
        """Of these, those that were not looked at yet, and why."""
        self._mark = self._wanted = mark
        """What our Leases say, and what they are to say."""
        self._scheme = scheme_of(mark)
        self._before = ""
        """The mark on the first Lease, where it is of another version."""
        self._begin_at = float("inf")
        """When we, who hold the first Lease after it, begin."""
        self._round = 0
        self._pace = min(self._timing.retry / 4, WHOLE / count)
        self._next_take = float("-inf")
        self._ask_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._said = ""

    def _shard(self, number: int) -> _Shard:
        label = f"shard {number}: " if self.count > 1 else ""
        terms = _Terms(self, number)
        elector = Elector(self._store(number), self.identity, self._clock, self._timing, self._rng, terms, label)
        return _Shard(number, elector)

    # --- what others want to know ------------------------------------------------------------------

    @property
    def electors(self) -> tuple[Elector, ...]:
        """By number."""
        return tuple([each.elector for each in self._shards])

    @property
    def held(self) -> frozenset[int]:
        """The shards whose targets this process writes now."""
        return frozenset(each.number for each in self._shards if self._is_held(each))

    @staticmethod
    def _is_held(shard: _Shard) -> bool:
        return shard.confirmed and not shard.leaving

    @property
    def problem(self) -> str:
        """Why an attempt at a Lease had no answer, or why none may be taken; "" = nothing of the kind."""
        found = next((each.elector.problem for each in self._shards if each.elector.problem), "")
        return found or (self._obstacle() if self.count > 1 or self._others else "")

    @property
    def warned(self) -> bool:
        """Whether another replica that writes withholds a removal: it may have judged before there was more to lose."""
        return any(
            each.taken and not each.leading and each.seen is not None and ANNOTATION_WITHHELD in each.seen.notes
            for each in self.electors
        )

    def inherit(self) -> bool:
        """Whether who held a Lease of ours before withheld a removal; said once."""
        found = [each for each in self._shards if each.inherited and self._is_held(each)]
        for each in found:
            each.inherited = False
        return bool(found)

    def remaining(self) -> float:
        """Seconds until somebody else may hold one of ours; 0 where we hold none."""
        return min((each.elector.remaining() for each in self._shards if self._is_held(each)), default=0.0)

    def check(self, number: int) -> float:
        """The fence of one shard, see :meth:`Elector.check`.

        Raises:
            NotLeader: this process may not write its targets now.
        """
        shard = self._shards[number]
        seconds = shard.elector.check()
        if not self._is_held(shard):
            raise NotLeader(f"{self.identity} may not write: shard {number} is being taken, or handed over")
        return seconds

    # --- what the hub says -------------------------------------------------------------------------

    def use(self, mark: str) -> None:
        """Another registry is in force here. The others hear of it when no write is under way that it forbids."""
        if mark == self._wanted or self.count == 1:
            return
        self._wanted = mark
        self._round += 1
        self.agreed = False
        if not any(each.elector.leading for each in self._shards):
            self._mark = mark

    def keep(self) -> None:
        """Do not give back, at the end, the shards for which a write may be on its way."""
        for each in self._shards:
            if self._holder.busy(each.number):
                each.elector.keep()

    # --- running -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until cancelled, then give all back, at the same time. Let writes end before."""
        try:
            async with asyncio.TaskGroup() as group:
                for each in self._shards:
                    group.create_task(self._campaign(each), name=f"shard {each.number}")
                if self.count > 1:
                    group.create_task(self._every(self._pace / 2, self._look_again), name="shards: looks")
                    group.create_task(self._every(self._timing.retry / 2, self._deal), name="shards: shares")
        finally:
            for task in (*self._tasks, *(task for _, task in self._others.values())):
                task.cancel()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            try:
                await work()
            except HubError as error:
                log.debug("shards: %s", error)

    async def _campaign(self, shard: _Shard) -> None:
        """Hold the Lease, or wait for it; begin anew whenever it was given away."""
        while True:
            work = partial(shard.elector.run, partial(self._led, shard))
            name = "leader election" if self.count == 1 else f"election of shard {shard.number}"
            run = asyncio.create_task(supervise(name, work, self._clock), name=name)
            quit_ = asyncio.create_task(shard.quit.wait(), name=f"end of {name}")
            try:
                await asyncio.wait((run, quit_), return_when=asyncio.FIRST_COMPLETED)
            finally:
                run.cancel()
                quit_.cancel()
                ended = asyncio.gather(run, quit_, return_exceptions=True)
                try:
                    await asyncio.shield(ended)
                except asyncio.CancelledError:  # the Lease is being given back already: that goes on
                    await ended
                    raise
            shard.quit.clear()
            shard.leaving, shard.handed_to = False, ""

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

    def _led(self, shard: _Shard, leading: bool) -> None:
        shard.free = shard.again = None
        if self._before and not shard.number:
            self._begin_at = self._clock.now() + self._settling if leading else float("inf")
            if leading:
                log.info("%s follows another version; it writes in %.0f s", self.identity, self._settling)
        if not leading:
            shard.confirmed = False
            if not any(each.elector.leading for each in self._shards):
                self._mark = self._wanted
            self._holder.changed()
        elif self.count == 1 and not self._others and not self._before:
            shard.confirmed = True
            self._holder.changed()
        else:
            self._spawn(self._confirm(shard), f"confirming shard {shard.number}")

    async def _confirm(self, shard: _Shard) -> None:
        """A Lease was taken: hold it if all the others, read after that, say the same as it does."""
        while shard.elector.leading:
            if self._clock.now() >= self._begin_at and not shard.number:
                self._before = ""
            said = shard.elector.seen
            # Where it does not say what it should, it will with its next renewal.
            if said is not None and said.notes.get(REGISTRY) == (self._mark if self.count > 1 else None):
                with suppress(HubError):
                    await self._refresh()
                    self._settle(shard)
                    return
            await self._clock.sleep(self._pace)

    def _settle(self, shard: _Shard) -> None:
        """All the others were read after a Lease was taken."""
        if not shard.elector.leading:
            return
        if why := self._obstacle():
            self._leave(shard, "", why)
            return
        shard.confirmed = True
        self._ask_at = float("-inf")
        self._holder.changed()

    async def _refresh(self) -> None:
        """See all Leases that are not ours as they are now.

        Raises:
            HubError: one of them cannot be seen.
        """
        others = tuple(self._others)
        answers = await asyncio.gather(*(each.refresh() for each in self._all()), return_exceptions=True)
        for each in answers:
            if isinstance(each, BaseException):
                raise each
        for number in others:
            self._unseen.pop(number, None)

    def _all(self) -> Iterable[Elector]:
        yield from self.electors
        yield from (elector for elector, _ in self._others.values())

    # --- who may take ------------------------------------------------------------------------------

    def notes(self, number: int) -> Mapping[str, str]:
        """What our writes put on a Lease."""
        said = {SHARDS: str(self.count), REGISTRY: self._mark} if self.count > 1 else {}
        if self._before and not number:
            said = {REGISTRY: self._before}
        if withheld := self._holder.withheld():
            said[ANNOTATION_WITHHELD] = withheld
        if to := self._shards[number].handed_to:
            said[HANDED] = to
        return said

    def noticed(self, number: int, record: LeaseRecord) -> None:
        """A Lease was read."""
        self._widen(record)
        shard = self._shards[number]
        if not shard.elector.leading:
            shard.inherited = ANNOTATION_WITHHELD in record.notes
            if not number:
                self._before = record.notes.get(REGISTRY, "") if self._is_strange(record) else ""
        elif who := record.notes.get(WANTED):
            self._asked(shard, who)

    def admits(self, number: int, record: LeaseRecord | None) -> bool:
        """Whether a Lease that nobody holds may be taken now."""
        if why := self._obstacle():
            self._say(why)
            return False
        self._say("")
        if self.count == 1:
            return True
        shard, now = self._shards[number], self._clock.now()
        version = record.version if record is not None else ""
        if shard.free is None or shard.free[0] != version:
            shard.free = (version, now)
        wait = self._wait(shard, record, now)
        shard.again = now + wait if wait else None
        if not wait:
            self._next_take = now + self._pace
        return not wait

    def _wait(self, shard: _Shard, record: LeaseRecord | None, now: float) -> float:
        """Seconds until a free Lease may be taken; 0 = now."""
        if self._wanted != self._mark or shard.quit.is_set() or (shard.number and not self._counted()):
            return self._pace
        to = record.notes.get(HANDED) if record is not None else None
        if self.identity in (to, record.holder if record is not None else ""):
            return 0.0
        holders = {each.seen.holder for each in self.electors if each.taken and each.seen is not None}
        fair = -(-self.count // len(holders | {self.identity}))
        left = self._next_take - now
        if (to or self._load() >= fair) and shard.free is not None:
            left = max(left, shard.free[1] + self._timing.retry - now)
        return max(left, 0.0)

    def _is_strange(self, record: LeaseRecord | None) -> bool:
        """Whether a Lease is of another version, which divides otherwise or has other Leases."""
        return record is not None and scheme_of(record.notes.get(REGISTRY, self._mark)) != self._scheme

    @property
    def _settling(self) -> float:
        """Seconds within which another version's replicas have given up what they held when we took the first Lease."""
        return LOOKS * self._timing.retry + self._timing.duration

    def _counted(self) -> bool:
        """Whether the first Lease says our number: whoever counts otherwise reads it there."""
        return count_of(self._shards[0].elector.seen) == self.count

    def _load(self) -> int:
        """How many Leases are ours."""
        return sum(each.elector.leading and not each.leaving for each in self._shards)

    def _obstacle(self) -> str:
        """Why no Lease may be taken: somebody holds one and counts or divides otherwise."""
        if self._unseen:
            why = next(filter(None, self._unseen.values()), "")
            return f"the Leases of a larger --shards were not seen yet{f': {why}' if why else ''}"
        for number, each in (*enumerate(self.electors), *((n, one) for n, (one, _) in self._others.items())):
            if each.leading or not each.taken or each.seen is None:
                continue
            if (count := count_of(each.seen)) != self.count:
                if self.count == 1 and number == 0:
                    continue  # the one that is waited for
                return f"{each.holder} has --shards {count} and holds shard {number}; this replica has {self.count}"
            if self.count > 1 and each.seen.notes.get(REGISTRY) != self._mark:
                return f"{each.holder} holds shard {number} with another registry than this replica's"
        return ""

    def _say(self, why: str) -> None:
        if why and why != self._said:
            log.info("%s takes no shard: %s", self.identity, why)
        self._said = why

    def _widen(self, record: LeaseRecord) -> None:
        """Somebody counted more shards: look at the Leases beyond ours, too."""
        for number in range(self.count, count_of(record)):
            if number not in self._others:
                elector = Elector(self._store(number), self.identity, self._clock, self._timing, self._rng)
                name = f"look at shard {number}"
                task = asyncio.create_task(self._every(self._timing.retry, partial(self._look, number)), name=name)
                self._others[number] = elector, task
                self._unseen[number] = ""
                self._spawn(self._look(number), name)

    async def _look(self, number: int) -> None:
        if number not in self._others:
            return
        try:
            await self._others[number][0].refresh()
        except HubError as error:
            if number in self._unseen:
                self._unseen[number] = str(error)
        else:
            self._unseen.pop(number, None)
        if number in self._others and max(count_of(each.seen) for each in self.electors) <= number:
            self._others.pop(number)[1].cancel()
            self._unseen.pop(number, None)

    async def _look_again(self) -> None:
        """Have one free Lease looked at that may be taken by now; each replica begins elsewhere."""
        now, start = self._clock.now(), crc32(self.identity.encode()) % self.count
        if now < self._next_take:
            return
        if not self._counted() and not self._obstacle():
            self._shards[0].elector.nudge()  # it was made by somebody else just now
            return
        for shard in (*self._shards[start:], *self._shards[:start]):
            if shard.again is not None and shard.again <= now and not shard.elector.leading:
                shard.again = None
                shard.elector.nudge()
                return

    # --- shares ------------------------------------------------------------------------------------

    async def _deal(self) -> None:
        """What follows from how the others stand."""
        if self._load() and any(
            each.taken and not each.leading and (count_of(each.seen) != self.count or self._is_strange(each.seen))
            for each in self._all()
        ):
            for shard in self._shards:
                self._leave(shard, "", self._obstacle())
            return
        await self._agree()
        await self._ask()

    async def _agree(self) -> None:
        """Say which registry is in force here, and see whether all say the same."""
        if self.agreed:
            return
        if self._mark != self._wanted:
            if self._holder.leaving():
                return
            self._mark = self._wanted
        begun = self._round
        own = [each.elector.seen for each in self._shards if each.elector.leading]
        if any(record is None or record.notes.get(REGISTRY) != self._mark for record in own):
            return  # they say so with their next renewal
        await self._refresh()
        if begun == self._round and not self._obstacle():
            self.agreed = True
            self._holder.changed()

    async def _ask(self) -> None:
        """Ask for a shard of who holds the most, while that is two more than we do."""
        now = self._clock.now()
        if now < self._ask_at or self._mark != self._wanted or self._obstacle():
            return
        loads: Counter[str] = Counter()
        for each in self.electors:
            if each.leading:
                continue
            if not each.taken or each.seen is None:
                return  # one that is free comes first
            loads[each.seen.holder] += 1
        rich, most = max(loads.items(), key=lambda each: (each[1], each[0]), default=("", 0))
        if most - self._load() < 2:
            return
        self._ask_at = now + 3 * self._timing.retry
        for shard in reversed(self._shards):
            seen = shard.elector.seen
            if seen is not None and seen.holder == rich and await shard.elector.amend(partial(self._request, rich)):
                log.info("%s asks %s for shard %d", self.identity, rich, shard.number)
                return

    def _request(self, rich: str, record: LeaseRecord) -> LeaseRecord | None:
        """A Lease with our request on it; None where somebody else holds it, or asks."""
        notes = record.notes
        other = notes.get(WANTED, self.identity) != self.identity
        if record.holder != rich or other or notes.get(REGISTRY) != self._mark or count_of(record) != self.count:
            return None
        return replace(record, notes={**notes, WANTED: self.identity})

    def _asked(self, shard: _Shard, who: str) -> None:
        """Somebody asks for a shard of ours: he gets it while he has at least two less."""
        if not self._is_held(shard) or self._mark != self._wanted or who == self.identity or len(who) > 256:
            return
        theirs = sum(each.taken and each.seen is not None and each.seen.holder == who for each in self.electors)
        theirs += sum(each.handed_to == who for each in self._shards)
        if self._load() - theirs >= 2:
            self._leave(shard, who, f"to {who}, who has fewer")

    def _leave(self, shard: _Shard, to: str, why: str) -> None:
        """Give a Lease back once the writes under way have ended."""
        if shard.elector.leading and not shard.leaving:
            log.info("shard %d is given back: %s", shard.number, why)
            shard.leaving, shard.handed_to = True, to
            self._spawn(self._give_back(shard), f"giving back shard {shard.number}")

    async def _give_back(self, shard: _Shard) -> None:
        self._holder.changed()
        while self._holder.busy(shard.number):
            await self._clock.sleep(BUSY)
        shard.quit.set()
