"""Which plugin makes the event loop stand still, and what is done about it.

A provider that blocks stops every cluster. The watchdog's stacks say where the loop stands; the innermost frame
that belongs to the hub or to a plugin says whose fault it is. A provider may stop the loop for one second in a
minute. One that takes more is interrupted where that is possible (a signal handler that raises in the plugin's
code: the loop runs in the main thread, and Python gets a word in), and suspended: closed, and not called again
for a while. Its clusters keep what is known of them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from types import FrameType
from typing import Final

import msgspec
from msgspec.structs import replace

from hub.aio.clock import Clock
from hub.aio.watchdog import Stack, Stall, Watchdog, stack_of
from hub.plugin.spec import TransientProviderError
from hub.resolution.calls import Interrupted

log = logging.getLogger(__name__)

BUDGET: Final = 1.0
"""Seconds a provider may stop the event loop within ``WINDOW``; a Lease is renewed every 2 s and lost after 10."""

WINDOW: Final = 60.0

IMPORT_BUDGET: Final = 10.0
"""Seconds for an import in the middle of a call: it happens once, and half of a module is worse than a late one."""

FIRST_SUSPENSION: Final = 60.0
MAX_SUSPENSION: Final = 3600.0
"""Seconds; doubled each time, and back to the first after as many seconds in peace."""

REPORT_AFTER: Final = 1.0
"""Seconds after which a stall is reported although it goes on: it may never end."""

INTERRUPT: Final = signal.SIGURG
"""Ignored where nobody handles it, and used by no library we know of; Go preempts its goroutines with it."""

IMPORT_SYSTEM: Final = "importlib._bootstrap"

Owners = Callable[[], Mapping[str, tuple[str, ...]]]
"""Module or package -> the providers whose code it is."""


class ProviderSuspended(TransientProviderError):
    """A provider blocked the event loop and is not called for a while."""


class Blame(msgspec.Struct, frozen=True):
    """Whose code stops the loop, where, and for how long it may."""

    names: tuple[str, ...]
    where: str
    budget: float


class StallRecord(msgspec.Struct, frozen=True):
    """What one provider did to the event loop since the start.

    Attributes:
        count: stalls.
        seconds: of standing still, in all.
        where: place of the last one, ``file:line in function``.
        at: Unix time of the last one.
        suspensions: times it was suspended.
    """

    count: int = 0
    seconds: float = 0.0
    where: str = ""
    at: float = 0.0
    suspensions: int = 0


class Suspension(msgspec.Struct, frozen=True):
    """Until when a provider is not called, for how long that is, and the place it blocked at."""

    until: float
    seconds: float
    where: str


class Stalls:
    """Follows the event loop; keeps the records and the suspensions.

    Args:
        owners: whose code is whose, as of now.
        on_suspend: called in the event loop's thread, maybe by a signal's handler, with the name of a provider that is
            suspended from now on.

    Attributes:
        own: stalls no plugin is to blame for: the hub's own work, or a machine without CPU.
    """

    def __init__(self, owners: Owners, clock: Clock, on_suspend: Callable[[str], None]) -> None:
        self.own = StallRecord()
        self._owners = owners
        self._clock = clock
        self._on_suspend = on_suspend
        self._records: dict[str, StallRecord] = {}
        self._recent: dict[str, deque[tuple[float, float]]] = {}
        self._suspended: dict[str, Suspension] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reported = False
        self._armed = False
        self._blocked: tuple[str, ...] = ()
        """The providers to interrupt, while the loop stands."""
        self._known: Mapping[str, tuple[str, ...]] = {}
        """The owners as last seen; a signal's handler must not wait for the catalog's lock."""

    @property
    def records(self) -> Mapping[str, StallRecord]:
        """By provider; only those that ever blocked."""
        return self._records

    def suspension(self, name: str) -> ProviderSuspended | None:
        """Why a provider must not be called now; None where it may."""
        last = self._suspended.get(name)
        left = last.until - self._clock.now() if last is not None else 0.0
        if last is None or left <= 0:
            return None
        return ProviderSuspended(f"suspended because it blocked the event loop at {last.where}", retry_after=left)

    def check(self, name: str) -> None:
        """Ask in the task that is about to call a provider: others may have waited with it.

        Raises:
            ProviderSuspended: it must not be called now.
        """
        if (suspended := self.suspension(name)) is not None:
            raise suspended

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        """Watch the running loop; interrupts too where that runs in the main thread."""
        self._loop = asyncio.get_running_loop()
        self._armed = threading.current_thread() is threading.main_thread()
        before = signal.signal(INTERRUPT, self._interrupted) if self._armed else None
        try:
            with Watchdog(self.look):
                yield
        finally:
            if self._armed:
                signal.signal(INTERRUPT, before)

    # --- in the watchdog's thread ------------------------------------------------------------------

    def look(self, stall: Stall) -> None:
        """What :class:`Watchdog` reports."""
        if stall.over:
            self._blocked = ()
        blame = self._blame(stall)
        if blame is None:
            if stall.over:
                self._reported = False
                self._note_own(stall)
            return
        if not stall.over and stall.seconds >= blame.budget and self._armed:
            self._blocked = blame.names
            signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)
        if stall.over or stall.seconds >= REPORT_AFTER:
            if not self._reported:
                so_far = "" if stall.over else " so far, and goes on"
                text = "provider %s blocks the event loop (%.1f s%s) at %s; blocking calls belong into run_sync"
                log.warning(text, " or ".join(map(repr, blame.names)), stall.seconds, so_far, blame.where)
            self._reported = not stall.over
        if stall.over and self._loop is not None:
            self._loop.call_soon_threadsafe(self._charge, blame, stall.seconds)

    def _note_own(self, stall: Stall) -> None:
        place = str(stall.samples[-1][0]) if stall.samples and stall.samples[-1] else "an unknown place"
        log.debug(
            "the event loop stood still for %.1f s at %s%s",
            stall.seconds,
            place,
            " (the process got no CPU)" if stall.starved else "",
        )
        self.own = _added(self.own, stall.seconds, place)

    def _blame(self, stall: Stall) -> Blame | None:
        """The providers whose code most of the samples were in, at its last place."""
        if stall.starved or not stall.samples:
            return None
        self._known = self._owners()
        found = [each for each in (_owner(stack, self._known) for stack in stall.samples) if each is not None]
        if 2 * len(found) <= len(stall.samples):
            return None
        return found[-1]

    # --- in the event loop -------------------------------------------------------------------------

    def _charge(self, blame: Blame, seconds: float) -> None:
        now = self._clock.now()
        for name in blame.names:
            self._records[name] = _added(self._records.get(name, StallRecord()), seconds, blame.where)
            if seconds <= blame.budget - BUDGET:  # a late import within its means
                continue
            recent = self._recent.setdefault(name, deque())
            recent.append((now, seconds))
            while recent[0][0] < now - WINDOW:
                recent.popleft()
            if sum(lasted for _, lasted in recent) > BUDGET:
                recent.clear()
                self._suspend(name, blame.where)

    def _suspend(self, name: str, where: str) -> None:
        """Suspend, once for one stall: the signal's handler may be first, and must not wait, so the loop logs it."""
        if self.suspension(name) is not None:
            return
        now, last = self._clock.now(), self._suspended.get(name)
        seconds = FIRST_SUSPENSION
        if last is not None and now < last.until + max(last.seconds, WINDOW):
            seconds = min(2 * last.seconds, MAX_SUSPENSION)
        self._suspended[name] = Suspension(now + seconds, seconds, where)
        record = self._records.get(name, StallRecord(where=where, at=time.time()))
        self._records[name] = replace(record, suspensions=record.suspensions + 1)
        self._on_suspend(name)
        if self._loop is not None:
            text = "provider %r is suspended for %.0f s: its clusters stay as they are"
            self._loop.call_soon_threadsafe(log.warning, text, name, seconds)

    def _interrupted(self, _signal: int, frame: FrameType | None) -> None:
        """The signal's handler, in the main thread: raises where a plugin is at work and the loop still stands."""
        blame = _owner(stack_of(frame), self._known)
        if blame is not None and not set(blame.names).isdisjoint(self._blocked):
            self._blocked = ()
            for name in blame.names:  # before the loop turns to the next call of the same provider
                self._suspend(name, blame.where)
            raise Interrupted("blocked the event loop and was interrupted")


def _owner(stack: Stack, owners: Mapping[str, tuple[str, ...]]) -> Blame | None:
    """Whose code is at work: of the frames that are the hub's or a plugin's, the innermost one decides."""
    budget = BUDGET
    for frame in stack:
        if frame.module == IMPORT_SYSTEM:
            budget = IMPORT_BUDGET
        parts = frame.module.split(".")
        for length in range(len(parts), 0, -1):
            names = owners.get(".".join(parts[:length]))
            if names:
                return Blame(names, str(frame), budget)
        if parts[0] == "hub":
            return None
    return None


def _added(record: StallRecord, seconds: float, where: str) -> StallRecord:
    # No Clock: the time is for people, and part of it is noted in the watchdog's thread.
    return replace(record, count=record.count + 1, seconds=record.seconds + seconds, where=where, at=time.time())
