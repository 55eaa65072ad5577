"""Starts, monitors and replaces the event loops of provider types.

Every TICK the pool posts a callback to each loop. A loop that does not run it within ABANDON_AFTER seconds is abandoned
with its thread, and the next call starts a new loop. If MAX_ABANDONED abandoned threads of a type still run, the type
is suspended (not called) until one of them ends.

Separate threads do not help against plugin code that holds Python's interpreter lock (a regular expression, a large
JSON document): it stops the whole hub. The pool detects this by the CPU time that the plugin's thread used while the
hub's loop could not run, and suspends the type for a while.
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
"""Seconds between checks: every stall of two ticks is detected, for 4 wake-ups a second."""

REPORT_AFTER: Final = 0.5
"""Seconds after which a loop that blocks is logged: all clusters of the type wait for it."""

ABANDON_AFTER: Final = 10.0
"""Seconds after which a loop that blocks is abandoned: longer than an import within a call on a slow machine."""

MAX_ABANDONED: Final = 3
"""Maximum abandoned threads of a type: every thread keeps its memory, and a core if it spins."""

HELD_SHARE: Final = 0.1
"""Minimum CPU time of a plugin's thread, as a share of a stall of the hub, to be blamed for the stall. Small, since the
thread may get little CPU on an overloaded machine."""

HOLD_BUDGET: Final = 1.0
"""Seconds that a provider may hold the interpreter lock without being suspended; a Lease is renewed every 2 s and lost
after 10 s."""

FIRST_SUSPENSION: Final = 60.0
MAX_SUSPENSION: Final = 3600.0
"""Seconds. A suspension is twice as long as the last one, unless the last one ended at least its own length ago."""

Owners = Callable[[], Mapping[str, tuple[str, ...]]]
"""Returns module or package -> the providers that it belongs to."""

StartLoop = Callable[[str], LoopRunner]
"""Starts a loop for a provider type."""


class StallRecord(msgspec.Struct):
    """Number and total seconds of a loop's stalls since the start."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Add one stall."""
        self.count += 1
        self.seconds += seconds


class LoopPool:
    """The event loops of all provider types; run :meth:`watch` to monitor them.

    Args:
        context: makes the HubContext for a loop.
        owners: returns the providers that loaded modules belong to.
        start: starts a loop.

    Attributes:
        hub_stalls: stalls of the hub's loop that no plugin caused: the hub's own work, or a machine without free CPU.
        stalls: stalls by provider type; types that never blocked are left out.
    """

    def __init__(
        self, clock: Clock, context: Callable[[PluginLoop], ProviderHub], owners: Owners, start: StartLoop = LoopThread
    ) -> None:
        self.hub_stalls = StallRecord()
        self.stalls: dict[str, StallRecord] = {}
        self._clock = clock
        self._context = context
        self._owners = owners
        self._start = start
        self._loops: dict[str, _Watched] = {}
        self._abandoned: dict[str, list[PluginLoop]] = {}
        """Provider type -> its abandoned loops."""
        self._places: dict[str, str] = {}
        """Provider type -> the place in the code where its thread last blocked."""
        self._suspended: dict[str, _Suspension] = {}

    def __iter__(self) -> Iterator[PluginLoop]:
        """The loops in use."""
        return iter([watched.loop for watched in self._loops.values()])

    def of(self, name: str) -> PluginLoop:
        """The loop of a provider type, started if necessary.

        Raises:
            ProviderSuspended: the type must not be called now.
            TransientProviderError: the system cannot start another thread.
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
        """The loop of a provider type; None if it has none."""
        watched = self._loops.get(name)
        return watched.loop if watched is not None else None

    def abandoned_threads(self, name: str) -> int:
        """Number of abandoned threads of a provider type that still run."""
        left = [loop for loop in self._abandoned.get(name, ()) if loop.runner.alive]
        self._abandoned[name] = left
        return len(left)

    def suspension(self, name: str) -> ProviderSuspended | None:
        """The error to raise because a provider type must not be called now; None if it may be called."""
        last = self._suspended.get(name)
        left = last.until - self._clock.now() if last is not None else 0.0
        if last is not None and left > 0:
            return ProviderSuspended(f"suspended because it {last.why}", retry_after=left)
        if name in self._abandoned and (blocked := self.abandoned_threads(name)) >= MAX_ABANDONED:
            return ProviderSuspended(
                f"suspended because {blocked} of its threads block, the last one at {self._places[name]}; "
                "it is tried again when one ends, or when the hub is restarted"
            )
        return None

    def abandon_all(self) -> None:
        """Abandon all loops when the hub ends."""
        for watched in self._loops.values():
            watched.loop.abandon(partial(ProviderError, "the hub ends"))
        self._loops.clear()

    # --- watching ------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Check every loop periodically until cancelled."""
        while True:
            began, used = self._clock.now(), time.thread_time()
            await self._clock.sleep(TICK)
            now, hub_cpu = self._clock.now(), time.thread_time() - used
            late = now - began - TICK
            self._check(now, late if late > TICK else 0.0, hub_cpu)

    def _check(self, now: float, late: float, hub_cpu: float) -> None:
        """Check every loop.

        Args:
            now: the time.
            late: seconds by which this check is late; 0 if the hub's loop did not stall.
            hub_cpu: seconds of CPU that the hub's thread has used since the last check.
        """
        # The plugin's thread used the CPU while the hub's thread did not. Never true without a stall (late = 0).
        holding = [watched for watched in self._loops.values() if watched.used() > late * HELD_SHARE > hub_cpu]
        for watched in holding:
            self._note_lock_held(watched, late)
        if late and not holding:
            self.hub_stalls.add(late)
            log.debug("the event loop stood still for %.1f s, in which its thread used %.1f s of CPU", late, hub_cpu)
        for watched in tuple(self._loops.values()):
            if late:  # the stall of the hub may have delayed the answer
                watched.posted_at += late
            elif watched.answered:
                self._note_answer(watched, now)
            else:
                self._note_block(watched, now - watched.posted_at)

    def _note_answer(self, watched: _Watched, now: float) -> None:
        """Handle a loop that has run its callback: record the stall if it was late, and post the next callback."""
        if watched.blocked:
            self._record(watched.loop.name, watched.blocked)
        watched.post_callback(now)

    def _note_block(self, watched: _Watched, seconds: float) -> None:
        """Handle a loop that has not run its callback for ``seconds``: log this, and abandon the loop in the end."""
        name = watched.loop.name
        watched.blocked = seconds
        if seconds >= REPORT_AFTER:
            self._places[name] = self._place(watched.loop)
            if not watched.reported:
                watched.reported = True
                text = "provider %r blocks its event loop (%.1f s so far) at %s; blocking calls belong in run_sync"
                log.warning(text, name, seconds, self._places[name])
        if seconds >= ABANDON_AFTER:
            self._record(name, seconds)
            self._abandon(name, partial(ProviderStalled, f"blocked its event loop at {self._places[name]}"))
            text = "provider %r is started again in a new thread; %d of at most %d threads are abandoned and block"
            log.warning(text, name, self.abandoned_threads(name), MAX_ABANDONED)

    def _note_lock_held(self, watched: _Watched, seconds: float) -> None:
        """Handle a provider that held the interpreter lock and stopped the whole hub for ``seconds``."""
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
        self._abandon(name, lambda: self.suspension(name) or ProviderStalled("was suspended"))

    def _abandon(self, name: str, why: Callable[[], ProviderError]) -> None:
        loop = self._loops.pop(name).loop
        self._abandoned.setdefault(name, []).append(loop)
        loop.abandon(why)

    def _record(self, name: str, seconds: float) -> None:
        self.stalls.setdefault(name, StallRecord()).add(seconds)

    def _place(self, loop: PluginLoop) -> str:
        """The place in the code where a loop's thread is: the innermost frame of the plugin, else of any code."""
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
    """A period in which a type is not called: its end, its length in seconds, and the reason."""

    until: float
    seconds: float
    why: str


class _Watched:
    """A loop, and the callback that was last posted to it.

    Attributes:
        posted_at: Clock.now() at which the callback was posted; later by the stalls of the hub's loop since.
        answered: whether the callback has run.
        blocked: seconds that the callback was overdue at the last check; 0 if it ran in time.
        reported: whether the present stall has been logged.
    """

    def __init__(self, loop: PluginLoop, now: float) -> None:
        self.loop = loop
        self._cpu = 0.0
        self.post_callback(now)

    def post_callback(self, now: float) -> None:
        """Post the next callback."""
        self.posted_at, self.answered, self.blocked, self.reported = now, False, 0.0, False
        self.loop.post(self._answer)

    def used(self) -> float:
        """Seconds of CPU that the loop's thread has used since the last call."""
        before, self._cpu = self._cpu, self.loop.runner.cpu()
        return self._cpu - before

    def _answer(self) -> None:
        self.answered = True
