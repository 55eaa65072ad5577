"""Leader election: one Lease elects one hub process, and the process's own clock ends its right to write.

This is client-go's leader election (tools/leaderelection/leaderelection.go) plus a fence, which client-go lacks.
:meth:`Elector.check` is called before every write and computes from the time of the last renewal. So a process that was
paused refuses to write even before its own tasks run again. Another holder's Lease counts as expired when *this
process* has seen it unchanged for long enough; timestamps in the Lease are never trusted. This module does not know how
a Lease is stored (see :mod:`hub.election.lease`).
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
"""Seconds. A longer duration in a Lease counts as this one: written by hand, it must not block all hubs for days."""
CONFLICTS = 3
"""Most updates within one attempt. Without retries, a client that keeps annotating the Lease could make us lose it."""
WATCH_AGAIN = 30.0
"""Seconds before a refused watch of the Lease is retried; this may be long, since standbys also poll the Lease."""
RELEASE_AGAIN = 0.2
"""Seconds before a failed release is retried; longer if the server asks for it with Retry-After."""
TRANSIENT = (ClusterUnreachable, TooManyRequests, ServerFault)
"""Transient errors: a retry may succeed."""
MAX_UNANSWERED = 64
"""Most unanswered writes that are remembered: the API server may have stored any of them."""


class Timing(msgspec.Struct, frozen=True):
    """The timing of the election, in seconds.

    ``duration``, ``renew_deadline`` and ``retry`` are Kubernetes' defaults
    (component-base/config/v1alpha1/defaults.go); ``jitter`` is client-go's.

    Attributes:
        duration: how long standbys wait before they take over a Lease that does not change; whole seconds.
        renew_deadline: the leader steps down after this long without a renewal.
        retry: time between two renewals, and between two reads of another holder's Lease. A standby adds ``jitter``;
            it reads earlier if the Lease expires or is released earlier.
        jitter: largest share of ``retry`` that a standby adds at random.
        call: timeout of one request. A frozen etcd answers only after 60 s (measured), long after the Lease expires.
        quiet: no write may start when the Lease expires in this many seconds or fewer.
        margin: every write must end at least this many seconds before the Lease expires.
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
    """The fields of a Lease that the election uses.

    Attributes:
        holder: identity of the holder; "" = released.
        duration: seconds.
        acquired: RFC 3339 with microseconds; written for people, never used for decisions.
        renewed: like ``acquired``.
        transitions: how often the holder has changed.
        version: resourceVersion; "" before the Lease is created.
        notes: annotations that belong to the election. Not compared, since they do not say who holds the Lease.
    """

    holder: str
    duration: int
    acquired: str
    renewed: str
    transitions: int = 0
    version: str = ""
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)


class LeaseStore(Protocol):
    """Reads and writes one named Lease; methods that return a record return it as stored."""

    async def get(self) -> LeaseRecord:
        """Read the Lease.

        Raises:
            NotFound: the Lease does not exist.
            HubError: the Lease could not be read.
        """
        ...

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Create the Lease.

        Raises:
            AlreadyExists: another process created it first.
            HubError: the request failed; the Lease may have been created all the same.
        """
        ...

    async def update(self, record: LeaseRecord) -> LeaseRecord:
        """Replace the Lease if its version still is ``record.version``.

        Raises:
            Conflict: the Lease has changed.
            NotFound: the Lease does not exist.
            HubError: the request failed; the Lease may have been updated all the same.
        """
        ...

    async def wait_until_free(self) -> None:
        """Return when the Lease seems to have no holder. It may return too early: read the Lease afterwards.

        Raises:
            HubError: the Lease cannot be watched.
        """
        ...


class Terms:
    """Additional conditions for holding a Lease. This class sets none; :mod:`hub.election.shards` does."""

    def notes(self) -> Mapping[str, str]:
        """The annotations to write on the Lease with each create and update."""
        return {}

    def lease_read(self, record: LeaseRecord) -> None:
        """Called with the Lease whenever an attempt to take or renew it has read it."""

    def may_take(self, record: LeaseRecord | None) -> bool:  # noqa: ARG002 - every Lease is admitted
        """Whether to take a Lease that is released or expired, or that does not exist (None)."""
        return True


class Elector:
    """Holds one Lease, or waits for it.

    Args:
        store: reads and writes the Lease.
        identity: of this process; unique for every process ever started (such as the Pod's name and a random part).
        clock: its ``now`` must advance while the machine is suspended.
        timing: None = the defaults.
        rng: for the jitter; None = a new generator.
        terms: additional conditions for holding the Lease; None = none.
        label: prefix of each log line, to tell several Leases apart.
        shared: whether other processes use this identity, and something else lets only one of them run: this process
            then takes a Lease of its identity at once.

    Attributes:
        continued: whether this process, when it last became the leader, took back a Lease that no other process had
            held since; False when it leads for the first time.
        took_expired: whether this process, when it last became the leader, took a Lease that its holder had not
            released: that holder may still be acting.
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
        *,
        shared: bool = False,
    ) -> None:
        self.identity = identity
        self._shared = shared
        self._terms = terms or Terms()
        self._label = label
        self._pause_over = asyncio.Event()
        self._store = store
        self._clock = clock
        self._timing = timing or Timing()
        self._rng = rng or random.Random()
        self._observed: LeaseRecord | None = None
        self._observed_at = 0.0
        self._missing: tuple[float, float] | None = None  # times of the first and last read without a Lease
        self._leading = False
        self.continued = False
        self.took_expired = False
        self._over_another = False
        """Since this process last became the leader, it created the Lease or overwrote another holder's record."""
        self._renewed_at = float("-inf")
        self._sent: deque[LeaseRecord] = deque(maxlen=MAX_UNANSWERED)
        self._keep = False
        self._problem = ""

    @property
    def seen(self) -> LeaseRecord | None:
        """The Lease as this process last read or wrote it; None = never."""
        return self._observed

    @property
    def maybe_held(self) -> bool:
        """Whether some process, this one included, may hold the Lease, as far as this process knows."""
        return self._leading or (self._observed is not None and self._observed.holder != "" and self._seen_fresh())

    @property
    def leading(self) -> bool:
        """Whether this process holds the Lease, as far as its tasks have noticed; only :meth:`check` is exact."""
        return self._leading

    def end_pause(self) -> None:
        """Make a standby read the Lease now and try to take it, instead of after the pause."""
        self._pause_over.set()

    async def refresh(self) -> None:
        """Read the Lease without trying to take it. Does nothing while this process leads.

        Raises:
            HubError: the Lease could not be read.
        """
        if self.leading:
            return
        with contextlib.suppress(NotFound):
            self._note_outside_read(await self._call(self._store.get()))

    def _note_outside_read(self, record: LeaseRecord) -> None:
        """Note a Lease that was read outside the election, unless this process has become the leader meanwhile."""
        if not self._leading and record != self._observed:
            self._observe(record)

    async def change_annotations(self, change: Callable[[LeaseRecord], LeaseRecord | None]) -> bool:
        """Change the annotations on a Lease that another process holds.

        Args:
            change: returns the new record for the current one, or None to leave the Lease unchanged.

        Returns:
            False if ``change`` returned None.

        Raises:
            HubError: the Lease was not changed; Conflict if other clients wrote to it during every attempt.
        """
        for attempt in range(1, CONFLICTS + 1):
            record = change(await self._call(self._store.get()))
            if record is None:
                return False
            try:
                await self._call(self._store.update(record))
            except Conflict:  # most likely its holder renewed it meanwhile
                if attempt == CONFLICTS:
                    raise
            else:
                break
        return True

    def remaining(self) -> float:
        """Seconds until another process may take the Lease; 0 if this process does not lead."""
        if not self._leading:
            return 0.0
        return max(0.0, self._renewed_at + self._timing.duration - self._clock.now())

    @property
    def duration(self) -> float:
        """Seconds that the Lease lasts without a renewal."""
        return self._timing.duration

    @property
    def problem(self) -> str:
        """Why the last attempt to take or renew the Lease failed; "" if it was answered, also if another leads."""
        return self._problem

    @property
    def holder(self) -> str:
        """Identity of the leader as far as this process knows, safe to print; "" = none known."""
        if self._leading:
            return self.identity
        if self._observed is None or not self._seen_fresh():
            return ""
        return "".join(letter if letter.isprintable() else "?" for letter in self._observed.holder[:256])

    def check(self) -> float:
        """The fence: call it right before every write.

        Returns:
            Seconds that the write may take; the caller must abort it after that.

        Raises:
            NotLeader: this process may not write now.
        """
        remaining = self.remaining()
        if remaining <= self._timing.quiet:
            holder = f"{self.holder} leads" if self.holder not in ("", self.identity) else "nobody is known to lead"
            raise NotLeader(f"{self.identity} may not write: {holder if not self._leading else 'its lease runs out'}")
        return remaining - self._timing.margin

    def keep_lease(self) -> None:
        """Do not release the Lease when :meth:`run` ends, since a write may be under way: let it expire instead."""
        self._keep = True

    async def run(self, on_change: Callable[[bool], None]) -> None:
        """Take part in the election until cancelled, then release the Lease.

        ``on_change`` is called with True when this process starts to lead and with False when it stops. Let writes end
        before cancelling: other processes may take a released Lease at once.
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
                reason = f"{self.holder} does" if self._observed_other() else "its lease was not renewed in time"
                log.warning("%s%s no longer leads: %s", self._label, self.identity, self._problem or reason)
                on_change(False)  # noqa: FBT003
        finally:
            if self._leading:
                self._leading = False
                on_change(False)  # noqa: FBT003
            await self._release()

    async def _acquire(self) -> None:
        """Return once this process holds the Lease and has renewed it within the deadline."""
        if await self._try_as_standby():
            return
        self._pause_over.clear()
        watching = supervise("watch of the Lease", self._watch, self._clock)
        watch = asyncio.create_task(watching, name="watch of the Lease")
        try:
            while True:
                await self._pause()
                if await self._try_as_standby():
                    return
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _try_as_standby(self) -> bool:
        """Try to take the Lease; log a change of the leader if another process has it."""
        before = self.holder
        if await self._try() and self._since_renewal() < self._timing.renew_deadline:
            return True
        if self.holder != before:
            log.info("%s%s stands by; %s leads", self._label, self.identity, self.holder or "nobody")
        return False

    async def _watch(self) -> None:
        """Notice a release of the Lease at once. This is only faster: standbys also poll the Lease."""
        while True:
            try:
                await self._store.wait_until_free()
            except HubError as error:
                log.debug("the Lease is not watched: %s", error)
                await self._clock.sleep(self._timing.retry if isinstance(error, TRANSIENT) else WATCH_AGAIN)
            else:
                self._pause_over.set()
                await self._clock.sleep(self._timing.retry / 2)

    async def _pause(self) -> None:
        """Wait for ``retry`` plus jitter, or until the Lease expires or is released if that is earlier."""
        seconds = self._timing.retry * (1.0 + self._rng.random() * self._timing.jitter)
        if self._missing is not None:
            seconds = min(seconds, self._timing.duration / 4)  # only frequent reads prove that it stays missing
        left = self._seen_until() - self._clock.now()
        if 0 < left < seconds:
            seconds = left
        pause = asyncio.create_task(self._clock.sleep(seconds), name="pause before the next look at the Lease")
        freed = asyncio.create_task(self._pause_over.wait(), name="release of the Lease")
        await until_one_ends((pause, freed))
        self._pause_over.clear()

    async def _hold(self) -> None:
        """Renew the Lease until it is lost or was not renewed in time."""
        while True:
            left = self._timing.renew_deadline - self._since_renewal()
            if left <= 0:
                return
            # Retry more often shortly before the deadline.
            await self._clock.sleep(min(self._timing.retry, left, max(left / 2, 0.25)))
            left = self._timing.renew_deadline - self._since_renewal()
            if left > 0 and not await self._try(left) and self._observed_other():
                return

    def _observed_other(self) -> bool:
        return self._observed is not None and not self._ours(self._observed)

    def _ours(self, record: LeaseRecord) -> bool:
        """Whether this process wrote the record. The identity proves nothing: two processes may have the same one."""
        return record.holder == self.identity and replace(record, version="") in self._sent

    def _since_renewal(self) -> float:
        return self._clock.now() - self._renewed_at

    async def _try(self, within: float = float("inf")) -> bool:
        """Try once, for at most ``within`` seconds, to take or renew the Lease; returns whether it is ours.

        The reason for a failure is kept in ``_problem`` and logged once.
        """
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
            with contextlib.suppress(Conflict, NotFound):
                # A conflict may come from our own update whose answer was lost, or from another client: read the Lease.
                return await self._write(self._store.update, self._observed)
        for _ in range(CONFLICTS):
            try:
                record = await self._call(self._store.get())
            except NotFound:
                if not self._may_create() or not (self._leading or self._terms.may_take(None)):
                    return False  # if the Lease was deleted, its holder may not have noticed yet
                with contextlib.suppress(AlreadyExists):
                    return await self._write(self._store.create, None)
                return False
            self._missing = None
            if record != self._observed:
                self._observe(record)
            self._terms.lease_read(record)
            handed = self._shared and record.holder == self.identity
            if record.holder and not handed and not self._ours(record) and self._seen_fresh():
                return False
            if not self._leading and not self._terms.may_take(record):
                return False
            with contextlib.suppress(Conflict):
                return await self._write(self._store.update, record)
        return False

    async def _write(
        self, operation: Callable[[LeaseRecord], Awaitable[LeaseRecord]], before: LeaseRecord | None
    ) -> bool:
        """Store this process as the holder; returns True.

        Our right to write counts from before the request. Other processes count from when they see the new record,
        which is later, so the two periods never overlap.
        """
        started = self._clock.now()
        stamp, notes = self._stamp(), self._terms.notes()
        if before is not None and self._ours(before):
            record = replace(before, renewed=stamp, duration=self._timing.duration, notes=notes)
        else:
            transitions, version = (before.transitions + 1, before.version) if before is not None else (0, "")
            record = LeaseRecord(self.identity, self._timing.duration, stamp, stamp, transitions, version, notes)
            self._over_another = True  # set before the request: its answer may be lost
            self.took_expired = before is not None and before.holder != ""
        self._sent.append(replace(record, version=""))
        stored = await self._call(operation(record))
        self._sent.clear()
        self._sent.append(replace(stored, version=""))
        self._observe(stored)
        self._missing = None
        self._renewed_at = started
        return True

    async def _release(self) -> None:
        """Release the Lease so that another process can lead at once; after a failure it waits for the expiry."""
        if not self._sent or self._keep:
            return
        problem, record = "no answer", self._observed
        try:
            async with asyncio.timeout(self._timing.call):
                while True:
                    try:
                        await self._free(record)
                    except TRANSIENT as error:
                        problem, record = str(error), None
                        asked = error.retry_after if isinstance(error, ApiError) else None
                        await self._clock.sleep(min(max(RELEASE_AGAIN, asked or 0.0), self._timing.call / 2))
                    else:
                        return
        except (HubError, TimeoutError) as error:
            log.warning("%slease of %s was not released: %s", self._label, self.identity, str(error) or problem)

    async def _free(self, record: LeaseRecord | None) -> None:
        """Clear the holder if it is this process; ``record``: the Lease as last read, None = read it first."""
        for _ in range(CONFLICTS):
            if record is None or not self._ours(record):
                # Read the Lease: another process may have taken it, or a write of ours was not answered.
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
            raise ClusterUnreachable(f"no answer about the Lease within {self._timing.call:g} s", "timeout") from None

    def _observe(self, record: LeaseRecord) -> None:
        """Note the Lease as read. If only its version or annotations changed, its holder did not renew it."""
        known, self._observed = self._observed, record
        if known is None or replace(record, version=known.version) != known:
            self._observed_at = self._clock.now()

    def _seen_fresh(self) -> bool:
        """Whether the last record has not expired yet, counted from when this process saw it change."""
        return self._clock.now() < self._seen_until()

    def _seen_until(self) -> float:
        if self._observed is None:
            return float("-inf")
        duration = self._observed.duration if self._observed.duration > 0 else self._timing.duration
        return self._observed_at + min(duration, LONGEST_LEASE)

    def _may_create(self) -> bool:
        """Whether no other process can believe that it holds the missing Lease.

        True if this process never saw the Lease (a fresh installation), while this process leads, and once every read
        for a whole ``duration`` found no Lease: by then its last holder has stopped writing.
        """
        now = self._clock.now()
        since, last = self._missing or (now, now)
        if now - last > self._timing.duration / 2:
            since = now  # the Lease may have existed between the two reads
        self._missing = (since, now)
        if self._observed is None or self._leading:
            return True
        return now - since >= self._timing.duration

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
