"""The event loops of all provider types of a hub: made when needed, watched, replaced where a plugin blocks.

Every quarter of a second each loop is asked for a sign of life. One that gives none for ten seconds is left behind with
its thread, and the next call makes a new one. At most three threads of a type are left behind at a time; then the type
is suspended until one of them ends. What no thread helps against is code that holds Python's interpreter lock (a
regular expression, a large JSON document): the whole hub stands still with it. That is told by CPU time: the plugin's
thread used it while the hub's could not run. The type is suspended for a while then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from hub.errors import ProviderError
from hub.observe.providers.context import ProviderHub
from hub.observe.providers.faults import ProviderStalled, ProviderSuspended
from hub.observe.providers.loops import LoopRunner, LoopThread, PluginLoop
from hub.plugin.spec import TransientProviderError
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

TICK: Final = 0.25
"""Seconds between two looks: every stall of two ticks is seen, most of one tick too; 4 wake-ups a second."""

REPORT_AFTER: Final = 0.5
"""Seconds after which a loop that blocks is named in the log: all clusters of the type wait for it."""

LEAVE_AFTER: Final = 10.0
"""Seconds after which it is left behind: longer than an import in the middle of a call takes on a slow machine."""

MAX_LEFT: Final = 3
"""Threads of a type that may be left behind at a time: each keeps its memory, and a core if it spins."""

HELD_SHARE: Final = 0.1
"""Part of the time in which the hub's loop stood still that the thread ran which held the interpreter, at least: the
machine may be ten times overloaded."""

HOLD_BUDGET: Final = 1.0
"""Seconds a provider may hold the interpreter at a time; a Lease is renewed every 2 s and lost after 10."""

FIRST_SUSPENSION: Final = 60.0
MAX_SUSPENSION: Final = 3600.0
"""Seconds; doubled each time, and back to the first after as many seconds in peace."""

Owners = Callable[[], Mapping[str, tuple[str, ...]]]
"""Module or package -> the providers whose code it is."""

StartLoop = Callable[[str], LoopRunner]
"""Starts a loop for a provider type."""


class StallRecord(msgspec.Struct):
    """How often a loop stood still since the start, and for how many seconds in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.seconds += seconds


class LoopPool:
    """The loops; :meth:`watch` runs beside them.

    Args:
        context: makes the HubContext for a loop.
        owners: whose code is whose, as of now.
        start: starts a loop.

    Attributes:
        own: stalls of the hub's own loop that no plugin is to blame for: its own work, or a machine without CPU.
        stalls: stalls by provider type; only of those that ever blocked.
    """

    def __init__(
        self, clock: Clock, context: Callable[[PluginLoop], ProviderHub], owners: Owners, start: StartLoop = LoopThread
    ) -> None:
        self.own = StallRecord()
        self.stalls: dict[str, StallRecord] = {}
        self._clock = clock
        self._context = context
        self._owners = owners
        self._start = start
        self._loops: dict[str, _Watched] = {}
        self._left: dict[str, list[PluginLoop]] = {}
        self._places: dict[str, str] = {}
        """Where a thread of a type last blocked."""
        self._suspended: dict[str, _Suspension] = {}

    def __iter__(self) -> Iterator[PluginLoop]:
        """The loops in use."""
        return iter([each.loop for each in self._loops.values()])

    def of(self, name: str) -> PluginLoop:
        """The loop of a provider type, made if there is none.

        Raises:
            ProviderSuspended: the type must not be called now.
            TransientProviderError: the system gives no thread for it.
        """
        if (suspended := self.suspension(name)) is not None:
            raise suspended
        if name not in self._loops:
            try:
                loop = PluginLoop(name, self._start(name), self._context)
            except RuntimeError as error:
                raise TransientProviderError(f"no thread for provider {name!r}: {error}") from error
            self._loops[name] = _Watched(loop, self._clock.now())
        return self._loops[name].loop

    def get(self, name: str) -> PluginLoop | None:
        """The loop of a provider type, where there is one."""
        watched = self._loops.get(name)
        return watched.loop if watched is not None else None

    def blocked(self, name: str) -> int:
        """Threads of a provider type that were left behind and have not ended."""
        left = [each for each in self._left.get(name, ()) if each.runner.alive]
        self._left[name] = left
        return len(left)

    def suspension(self, name: str) -> ProviderSuspended | None:
        """Why a provider type must not be called now; None where it may."""
        last = self._suspended.get(name)
        left = last.until - self._clock.now() if last is not None else 0.0
        if last is not None and left > 0:
            return ProviderSuspended(f"suspended because it {last.why}", retry_after=left)
        if name in self._left and (blocked := self.blocked(name)) >= MAX_LEFT:
            return ProviderSuspended(
                f"suspended because {blocked} of its threads block, the last one at {self._places[name]}; "
                "it is tried again when one ends, or when the hub is restarted"
            )
        return None

    def leave_all(self) -> None:
        """The hub ends: nothing more is heard from any loop."""
        for watched in self._loops.values():
            watched.loop.leave(partial(ProviderError, "the hub ends"))
        self._loops.clear()

    # --- watching ------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at every loop until cancelled."""
        while True:
            began, used = self._clock.now(), time.thread_time()
            await self._clock.sleep(TICK)
            now, mine = self._clock.now(), time.thread_time() - used
            late = now - began - TICK
            self._look(now, late if late > TICK else 0.0, mine)

    def _look(self, now: float, late: float, mine: float) -> None:
        """Look at every loop.

        Args:
            now: the time.
            late: seconds by which this look comes late; 0 where the hub's loop ran as it should.
            mine: seconds of CPU the hub's thread has used since the last look.
        """
        holding = [each for each in self._loops.values() if each.used() > late * HELD_SHARE > mine]
        for watched in holding:
            self._held(watched, late)
        if late and not holding:
            self.own.add(late)
            log.debug("the event loop stood still for %.1f s, in which its thread used %.1f s of CPU", late, mine)
        for watched in tuple(self._loops.values()):
            if late:  # the others may have been held up, too
                watched.asked_at += late
            elif watched.answered:
                self._over(watched, now)
            else:
                self._blocks(watched, now - watched.asked_at)

    def _over(self, watched: _Watched, now: float) -> None:
        if watched.blocked:
            self._record(watched.loop.name, watched.blocked)
        watched.ask(now)

    def _blocks(self, watched: _Watched, seconds: float) -> None:
        name = watched.loop.name
        watched.blocked = seconds
        if seconds >= REPORT_AFTER:
            self._places[name] = self._place(watched.loop)
            if not watched.reported:
                watched.reported = True
                text = "provider %r blocks its event loop (%.1f s so far) at %s; blocking calls belong in run_sync"
                log.warning(text, name, seconds, self._places[name])
        if seconds >= LEAVE_AFTER:
            self._record(name, seconds)
            self._leave(name, partial(ProviderStalled, f"blocked its event loop at {self._places[name]}"))
            text = "provider %r is started again in a new thread; %d of at most %d threads that block are left behind"
            log.warning(text, name, self.blocked(name), MAX_LEFT)

    def _held(self, watched: _Watched, seconds: float) -> None:
        """A provider held the interpreter: it has stopped the whole hub."""
        name = watched.loop.name
        where = self._places[name] = self._place(watched.loop)
        self._record(name, seconds)
        log.warning("provider %r stopped the whole hub for %.1f s: it held the interpreter at %s", name, seconds, where)
        if seconds <= HOLD_BUDGET:
            return
        now, last = self._clock.now(), self._suspended.get(name)
        length = FIRST_SUSPENSION
        if last is not None and now < last.until + last.seconds:
            length = min(2 * last.seconds, MAX_SUSPENSION)
        self._suspended[name] = _Suspension(
            now + length, length, f"stopped the whole hub for {seconds:.1f} s at {where}"
        )
        log.warning("provider %r is suspended for %.0f s: its clusters are unknown", name, length)
        self._leave(name, lambda: self.suspension(name) or ProviderStalled("was suspended"))

    def _leave(self, name: str, why: Callable[[], ProviderError]) -> None:
        loop = self._loops.pop(name).loop
        self._left.setdefault(name, []).append(loop)
        loop.leave(why)

    def _record(self, name: str, seconds: float) -> None:
        self.stalls.setdefault(name, StallRecord()).add(seconds)

    def _place(self, loop: PluginLoop) -> str:
        """Where its thread is: the innermost frame of the plugin's own code, or of any where there is none."""
        frames, owners = loop.runner.stack(), self._owners()
        for frame in frames:
            parts = str(frame.f_globals.get("__name__", "")).split(".")
            if any(loop.name in owners.get(".".join(parts[:length]), ()) for length in range(len(parts), 0, -1)):
                break
        else:
            if not frames:
                return "an unknown place"
            frame = frames[0]
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


class _Suspension(msgspec.Struct, frozen=True):
    """Until when a type is not called, for how long that is, and why."""

    until: float
    seconds: float
    why: str


class _Watched:
    """A loop, and the sign of life it was asked for.

    Attributes:
        answered: it came.
        blocked: seconds it did not come, as of the last look; 0 where it came in time.
        reported: the log names it already.
    """

    def __init__(self, loop: PluginLoop, now: float) -> None:
        self.loop = loop
        self._cpu = 0.0
        self.ask(now)

    def ask(self, now: float) -> None:
        """Ask for the next one."""
        self.asked_at, self.answered, self.blocked, self.reported = now, False, 0.0, False
        self.loop.post(self._answer)

    def used(self) -> float:
        """Seconds of CPU its thread has used since this was last called."""
        before, self._cpu = self._cpu, self.loop.runner.cpu()
        return self._cpu - before

    def _answer(self) -> None:
        self.answered = True
