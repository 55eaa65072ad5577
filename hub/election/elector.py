"""Leader election: one Lease elects one hub, and a clock decides when its right to write ends.

This is client-go's leader election (tools/leaderelection/leaderelection.go) and a fence, which client-go lacks.
:meth:`Elector.check` is called before every write and judges by the time of the last renewal, so that a process that
was paused refuses to write even before its own tasks run again. Another holder's lease has expired when *we* have seen
it unchanged for long enough; timestamps in it are never trusted. This module does not know how a Lease is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec

from hub.errors import (
    AlreadyExists,
    ApiError,
    ClusterUnreachable,
    Conflict,
    HubError,
    NotFound,
    NotLeader,
    ServerFault,
    TooManyRequests,
)
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise, until_one_ends

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_LEASE = 3600
"""Seconds; a Lease that claims more was not written by a hub, and must not stop every hub from writing for ever."""
CONFLICTS = 3
"""Updates within one attempt: another client that keeps writing to our Lease must not make us lose it."""
WATCH_AGAIN = 30.0
"""Seconds until a refused watch of the Lease is tried again; the Lease is also read every few seconds."""
RELEASE_AGAIN = 0.2
"""Seconds until a failed release is tried again, unless the server asks for another time."""
PASSING = (ClusterUnreachable, TooManyRequests, ServerFault)
"""Errors after which another try may succeed."""
REMEMBERED = 64
"""Records kept that were sent since the last answer: any of them may be the one that is stored."""


class Timing(msgspec.Struct, frozen=True):
    """Seconds; Kubernetes' own defaults (component-base/config/v1alpha1/defaults.go).

    Attributes:
        duration: how long others wait before they take over a Lease that does not change; whole seconds.
        renew_deadline: after this long without a renewal the leader steps down by itself.
        retry: between renewals, and between looks at another holder's Lease (stretched by ``jitter``; sooner if that
            Lease ends sooner or is seen to be released).
        jitter: share of ``retry`` that a standby adds at random.
        call: of one request; a frozen etcd answers after 60 s, long after the Lease has expired (measured).
        quiet: no write starts within this long of the end.
        margin: a write must have ended this long before the end.
    """

    duration: int = 15
    renew_deadline: float = 10.0
    retry: float = 2.0
    jitter: float = 1.2
    call: float = 3.0
    quiet: float = 2.0
    margin: float = 1.0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as the election sees it.

    Attributes:
        holder: identity of the holder; "" = released.
        duration: seconds.
        acquired: RFC 3339 with microseconds, for readers only.
        renewed: like ``acquired``.
        transitions: how often the holder has changed.
        version: resourceVersion; "" before it is created.
        notes: annotations of the election. They do not say who holds the Lease, and are not compared.
    """

    holder: str
    duration: int
    acquired: str
    renewed: str
    transitions: int = 0
    version: str = ""
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)


class LeaseStore(Protocol):
    """One named Lease. Each call returns the record as stored; labels and annotations are the store's business."""

    async def get(self) -> LeaseRecord:
        """Raises NotFound, or any HubError when there is no answer."""
        ...

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Raises AlreadyExists, or any HubError when there is no answer."""
        ...

    async def update(self, record: LeaseRecord) -> LeaseRecord:
        """Replace the record of ``record.version``; raises Conflict or NotFound if the Lease has changed or is gone."""
        ...

    async def freed(self) -> None:
        """Return when the Lease seems to have no holder, possibly too early; raises any HubError if it cannot tell."""
        ...


class Terms:
    """Further conditions for holding a Lease: none here. Shards have some (hub.election.shards)."""

    def notes(self) -> Mapping[str, str]:
        """The annotations that our writes put on the Lease."""
        return {}

    def noticed(self, record: LeaseRecord) -> None:
        """The Lease was read."""

    def admits(self, record: LeaseRecord | None) -> bool:  # noqa: ARG002 - every Lease is admitted
        """Whether to take a Lease that nobody holds, or that does not exist (None)."""
        return True


class Elector:
    """Holds, or waits for, one Lease.

    Args:
        store: the Lease.
        identity: who we are, different for every process ever started (such as the Pod's name and a random part).
        clock: ``now`` must count through suspend.
        terms: further conditions for holding the Lease.
        label: start of each log line, to tell several Leases apart.

    Attributes:
        continued: when this process last became the leader, no other had held the Lease since it led before.
    """

    def __init__(
        self,
        store: LeaseStore,
        identity: str,
        clock: Clock,
        timing: Timing | None = None,
        rng: random.Random | None = None,
        terms: Terms | None = None,
        label: str = "",
    ) -> None:
        self.identity = identity
        self._terms = terms or Terms()
        self._label = label
        self._freed = asyncio.Event()
        self._store = store
        self._clock = clock
        self._timing = timing or Timing()
        self._rng = rng or random.Random()
        self._observed: LeaseRecord | None = None
        self._observed_at = 0.0
        self._missing: tuple[float, float] | None = None  # first and latest look that found no Lease
        self._leading = False
        self.continued = False
        self._over_another = False
        """We have overwritten a record of another process since we began to lead."""
        self._renewed_at = float("-inf")
        self._sent: deque[LeaseRecord] = deque(maxlen=REMEMBERED)
        self._kept = False
        self._problem = ""

    @property
    def seen(self) -> LeaseRecord | None:
        """The Lease as it was last seen; None = never seen."""
        return self._observed

    @property
    def taken(self) -> bool:
        """Whether any process may hold the Lease, as far as was seen."""
        return self._leading or (self._observed is not None and self._observed.holder != "" and self._seen_fresh())

    @property
    def leading(self) -> bool:
        """Whether this process holds the Lease, as far as its tasks have noticed."""
        return self._leading

    def nudge(self) -> None:
        """Have another look at the Lease now."""
        self._freed.set()

    async def refresh(self) -> None:
        """Read the Lease as it is now, without trying to take it.

        Raises:
            HubError: the Lease could not be read.
        """
        if self.leading:
            return
        with contextlib.suppress(NotFound):
            self._glimpse(await self._call(self._store.get()))

    def _glimpse(self, record: LeaseRecord) -> None:
        """Note a Lease that was read outside the election, unless we have begun to lead meanwhile."""
        if not self._leading and record != self._observed:
            self._observe(record)

    async def amend(self, change: Callable[[LeaseRecord], LeaseRecord | None]) -> bool:
        """Change the notes on a Lease that another process holds; False if ``change`` returns None.

        Raises:
            HubError: the Lease was not changed; a Conflict if other writers were faster each time.
        """
        for attempt in range(1, CONFLICTS + 1):
            record = change(await self._call(self._store.get()))
            if record is None:
                return False
            try:
                await self._call(self._store.update(record))
            except Conflict:  # its holder renewed it meanwhile
                if attempt == CONFLICTS:
                    raise
            else:
                break
        return True

    def remaining(self) -> float:
        """Seconds until another process may take the Lease; 0 for every process but the leader."""
        if not self._leading:
            return 0.0
        return max(0.0, self._renewed_at + self._timing.duration - self._clock.now())

    @property
    def problem(self) -> str:
        """Why the last attempt at the Lease was not answered; "" if it was."""
        return self._problem

    @property
    def holder(self) -> str:
        """Identity of the current leader as far as known here, safe to print; "" = none."""
        if self._leading:
            return self.identity
        if self._observed is None or not self._seen_fresh():
            return ""
        return "".join(letter if letter.isprintable() else "?" for letter in self._observed.holder[:256])

    def check(self) -> float:
        """The fence: call it right before every write.

        Returns:
            Seconds that the write may take; the caller must give it up after that.

        Raises:
            NotLeader: this process may not write now.
        """
        remaining = self.remaining()
        if remaining <= self._timing.quiet:
            holder = f"{self.holder} leads" if self.holder not in ("", self.identity) else "nobody is known to lead"
            raise NotLeader(f"{self.identity} may not write: {holder if not self._leading else 'its lease runs out'}")
        return remaining - self._timing.margin

    def keep(self) -> None:
        """Do not release the Lease at the end, since a write may be under way: others wait until it expires."""
        self._kept = True

    async def run(self, on_change: Callable[[bool], None]) -> None:
        """Take part in the election until cancelled, then release the Lease.

        ``on_change`` is called with True when this process starts to lead and with False when it stops. Let writes end
        before you cancel: the Lease is free for others at once.
        """
        try:
            while True:
                await self._acquire()
                self.continued, self._over_another = not self._over_another, False
                self._leading = True
                log.info("%s%s leads", self._label, self.identity)
                on_change(True)  # noqa: FBT003 - the callback's only argument
                await self._hold()
                self._leading = False
                taken = f"{self.holder} does" if self._observed_other() else "its lease was not renewed in time"
                log.warning("%s%s no longer leads: %s", self._label, self.identity, self._problem or taken)
                on_change(False)  # noqa: FBT003
        finally:
            if self._leading:
                self._leading = False
                on_change(False)  # noqa: FBT003
            await self._release()

    async def _acquire(self) -> None:
        """Return once the Lease is ours and fresh."""
        if await self._look():
            return
        self._freed.clear()
        watching = supervise("watch of the Lease", self._watch, self._clock)
        watch = asyncio.create_task(watching, name="watch of the Lease")
        try:
            while True:
                await self._pause()
                if await self._look():
                    return
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _look(self) -> bool:
        before = self.holder
        if await self._try() and self._since_renewal() < self._timing.renew_deadline:
            return True
        if self.holder != before:
            log.info("%s%s stands by; %s leads", self._label, self.identity, self.holder or "nobody")
        return False

    async def _watch(self) -> None:
        """Notice a release of the Lease at once. Nothing depends on it: the Lease is also read every few seconds."""
        while True:
            try:
                await self._store.freed()
            except HubError as error:
                log.debug("the Lease is not watched: %s", error)
                await self._clock.sleep(self._timing.retry if isinstance(error, PASSING) else WATCH_AGAIN)
            else:
                self._freed.set()
                await self._clock.sleep(self._timing.retry / 2)

    async def _pause(self) -> None:
        """Wait for the next look: some seconds, or until the Lease that we saw has expired or is released."""
        seconds = self._timing.retry * (1.0 + self._rng.random() * self._timing.jitter)
        if self._missing is not None:
            seconds = min(seconds, self._timing.duration / 4)  # only frequent looks prove that it stays missing
        left = self._seen_until() - self._clock.now()
        if 0 < left < seconds:
            seconds = left
        pause = asyncio.create_task(self._clock.sleep(seconds), name="pause before the next look at the Lease")
        freed = asyncio.create_task(self._freed.wait(), name="release of the Lease")
        await until_one_ends((pause, freed))
        self._freed.clear()

    async def _hold(self) -> None:
        """Renew until the Lease is lost or was not renewed in time."""
        while True:
            left = self._timing.renew_deadline - self._since_renewal()
            if left <= 0:
                return
            # Shortly before stepping down, try more often.
            await self._clock.sleep(min(self._timing.retry, left, max(left / 2, 0.25)))
            left = self._timing.renew_deadline - self._since_renewal()
            if left > 0 and not await self._try(left) and self._observed_other():
                return

    def _observed_other(self) -> bool:
        return self._observed is not None and not self._ours(self._observed)

    def _ours(self, record: LeaseRecord) -> bool:
        """Whether this process wrote the record. The name does not tell: two processes may have the same one."""
        return record.holder == self.identity and replace(record, version="") in self._sent

    def _since_renewal(self) -> float:
        return self._clock.now() - self._renewed_at

    async def _try(self, within: float = float("inf")) -> bool:
        """One attempt; False = not ours now. The reason for a failure is kept in ``_problem`` and logged once."""
        try:
            async with asyncio.timeout(None if within == float("inf") else within):
                ours = await self._attempt()
        except TimeoutError:
            problem = "no answer in time to renew"
        except HubError as error:
            problem = str(error)
        else:
            self._problem = ""
            return ours
        if problem != self._problem:
            log.warning("%slease of %s: %s", self._label, self.identity, problem)
        self._problem = problem
        return False

    async def _attempt(self) -> bool:
        if self._leading and self._observed is not None:
            with contextlib.suppress(Conflict, NotFound):  # our own update whose answer was lost, or another client's
                return await self._write(self._store.update, self._observed)
        for _ in range(CONFLICTS):
            try:
                record = await self._call(self._store.get())
            except NotFound:
                if not self._may_create() or not (self._leading or self._terms.admits(None)):
                    return False  # the Lease was deleted; its holder may not know it yet
                with contextlib.suppress(AlreadyExists):
                    return await self._write(self._store.create, None)
                return False
            self._missing = None
            if record != self._observed:
                self._observe(record)
            self._terms.noticed(record)
            if record.holder and not self._ours(record) and self._seen_fresh():
                return False
            if not self._leading and not self._terms.admits(record):
                return False
            with contextlib.suppress(Conflict):
                return await self._write(self._store.update, record)
        return False

    async def _write(
        self, operation: Callable[[LeaseRecord], Awaitable[LeaseRecord]], before: LeaseRecord | None
    ) -> bool:
        """Store ourselves as the holder. Our right counts from before the request, others count from after it."""
        started = self._clock.now()
        stamp, notes = self._stamp(), self._terms.notes()
        if before is not None and self._ours(before):
            record = replace(before, renewed=stamp, duration=self._timing.duration, notes=notes)
        else:
            transitions, version = (before.transitions + 1, before.version) if before is not None else (0, "")
            record = LeaseRecord(self.identity, self._timing.duration, stamp, stamp, transitions, version, notes)
            self._over_another = True  # even if the answer is lost
        self._sent.append(replace(record, version=""))
        stored = await self._call(operation(record))
        self._sent.clear()
        self._sent.append(replace(stored, version=""))
        self._observe(stored)
        self._missing = None
        self._renewed_at = started
        return True

    async def _release(self) -> None:
        """Let the next leader start at once; after a failure it must wait until the Lease expires."""
        if not self._sent or self._kept:
            return
        problem, record = "no answer", self._observed
        try:
            async with asyncio.timeout(self._timing.call):
                while True:
                    try:
                        await self._free(record)
                    except PASSING as error:
                        problem, record = str(error), None
                        asked = error.retry_after if isinstance(error, ApiError) else None
                        await self._clock.sleep(min(max(RELEASE_AGAIN, asked or 0.0), self._timing.call / 2))
                    else:
                        return
        except (HubError, TimeoutError) as error:
            log.warning("%slease of %s was not released: %s", self._label, self.identity, str(error) or problem)

    async def _free(self, record: LeaseRecord | None) -> None:
        for _ in range(CONFLICTS):
            if record is None or not self._ours(record):  # another process wrote it, or a write of ours was under way
                record = await self._store.get()
                if not self._ours(record):
                    return
            stamp, notes = self._stamp(), self._terms.notes()
            free = replace(record, holder="", duration=1, acquired=stamp, renewed=stamp, notes=notes)
            try:
                await self._store.update(free)
            except Conflict:
                record = None
            else:
                return

    async def _call(self, request: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timing.call):
                return await request
        except TimeoutError:
            raise ClusterUnreachable(f"the Lease was not answered within {self._timing.call:g} s", "timeout") from None

    def _observe(self, record: LeaseRecord) -> None:
        """Note the Lease as it is now. A new version of the same record, with another note, is no sign of life."""
        known, self._observed = self._observed, record
        if known is None or replace(record, version=known.version) != known:
            self._observed_at = self._clock.now()

    def _seen_fresh(self) -> bool:
        """Whether the last seen record may still be held, counted from when we saw it change."""
        return self._clock.now() < self._seen_until()

    def _seen_until(self) -> float:
        if self._observed is None:
            return float("-inf")
        duration = self._observed.duration if self._observed.duration > 0 else self._timing.duration
        return self._observed_at + min(duration, LONGEST_LEASE)

    def _may_create(self) -> bool:
        """Whether no other process can hold the Lease that is missing.

        True in a fresh installation, while we hold the Lease ourselves, and after the Lease was missing at every look
        for so long that its last holder has stopped writing.
        """
        now = self._clock.now()
        since, last = self._missing or (now, now)
        if now - last > self._timing.duration / 2:
            since = now  # it may have existed between two looks
        self._missing = (since, now)
        if self._observed is None or self._leading:
            return True
        return now - since >= self._timing.duration

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
