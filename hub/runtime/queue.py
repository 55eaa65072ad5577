"""A keyed work queue: each key is in it at most once and never worked on twice at a time.

client-go's workqueue without its threads: ``dirty`` remembers a key that was added while it was being
processed; delays are kept apart and the earliest wins; failures of a key back off on their own.

A request is served at once, and those that arrive while their key is in work share its next pass. Where that happens, a
storm of this key may have begun: its next request waits a few milliseconds for others, and longer while others do come.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

import msgspec

from hub.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)

RETRY_BASE = 1.0
"""First retry of a key, seconds: kube's EndpointSlice controller starts at 1 s on purpose
(kubernetes/pkg/controller/endpointslice/endpointslice_controller.go)."""
RETRY_CAP = 60.0
STORM_FIRST = 0.012
"""Seconds that a request waits at first in a storm. Two writes of one client, such as those that add a node and remove
another, arrive 5 to 10 ms apart on an API server with work to do."""
STORM_LIMIT = 0.11
"""The longest such wait, in seconds. It is longer than 0.1, so that at ten such pairs a second two of them share a
pass; with the write itself a change takes less than 0.15."""
STORM_GAP = 0.025
"""Requests further apart than these seconds are no storm, and none of them waits: 20 changes a second, for example."""
STORM_END = 0.15
"""Seconds without a request after which a storm is over: longer than ``STORM_LIMIT``, since requests wait that long."""
STORM_REST = 1.0
"""Seconds without any wait after a first wait in which no other request came. If each change is made as soon as the
last one is published, it often overlaps with the end of a pass; this way no more than one of a hundred waits."""
SPARE = 100
"""Delays that no longer count and are kept all the same, beside one for each that does."""


class _Storm(msgspec.Struct):
    """A key that was requested while it was in work.

    Attributes:
        requested: when it was requested last.
        wait: seconds that a request waits for others to share its pass.
        shared: requests less than ``STORM_GAP`` apart share the pass to come.
        overlaps: one of its requests came while the key was in work.
        rests_until: no request waits before, since none came when the first one waited.
    """

    requested: float
    wait: float = STORM_FIRST
    shared: bool = False
    overlaps: bool = True
    rests_until: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether requests came while others waited."""
        return self.wait > STORM_FIRST


class KeyedQueue(Generic[K]):
    """Deduplicating FIFO of keys with delayed and backed-off additions."""

    def __init__(self, clock: Clock, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._rng = rng or random.Random()
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._processing: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._seq = 0
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        """When a key may come again whose server asked to wait."""
        self._storms: dict[K, _Storm] = {}
        self._wakeups: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Keys ready to be worked on (neither delayed nor in work)."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """Keys whose turn comes later."""
        return len(self._due)

    @property
    def working(self) -> bool:
        """True while a pass is under way."""
        return bool(self._processing)

    def under_way(self) -> Collection[K]:
        """Keys whose pass is under way."""
        return self._processing

    @property
    def idle(self) -> bool:
        """True when nothing is ready, in work or delayed."""
        return not (self._queued or self._processing or self._due)

    def add(self, key: K) -> None:
        """Ask for a pass over ``key`` because something changed: now, after the pass under way, or later in a storm."""
        self.add_after(key, self._wait_in_storm(key))

    def _wait_in_storm(self, key: K) -> float:
        """Seconds that a request waits for others to share its pass; 0.0 outside a storm."""
        now, storm, in_work = self._clock.now(), self._storms.get(key), key in self._processing
        if storm is not None and now < storm.rests_until:
            return 0.0
        if storm is not None and now - storm.requested > STORM_END:
            storm = None
            del self._storms[key]
        if storm is None:
            if in_work:
                self._storms[key] = _Storm(now)
            return 0.0
        if now - storm.requested < STORM_GAP and (key in self._due or key in self._queued):
            storm.shared = True
        storm.requested = now
        storm.overlaps |= in_work
        return 0.0 if in_work and not storm.proven else storm.wait

    def add_after(self, key: K, delay: float) -> None:
        """Ask for a pass ``delay`` seconds from now; an earlier request for the same key wins.

        None comes before the end of a wait that a server asked for (see :meth:`retry`).
        """
        now = self._clock.now()
        due = max(now + delay, self._not_before.get(key, 0.0))
        if due <= now:
            self._put(key)
            return
        if key in self._queued or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._seq += 1
        heapq.heappush(self._heap, (due, self._seq, key))
        if len(self._heap) > 2 * len(self._due) + SPARE:  # a key that is added often has a delay left of each time
            self._heap = [(at, number, each) for number, (each, at) in enumerate(self._due.items())]
            heapq.heapify(self._heap)
        self._arm()

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Ask for another pass after a failure; returns the delay chosen (jittered, doubling, capped).

        ``at_least`` is what a server asked to wait, seconds: no request for the key comes before its end, be it one of
        the pass that failed. What the delay has beyond that is ours, and a later request shortens it.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(RETRY_CAP, RETRY_BASE * 2.0 ** min(failures, 10)) * (1.0 + 0.2 * self._rng.random())
        delay = max(delay, at_least)
        if at_least > 0:
            self._withdraw(key)
            self._not_before[key] = self._clock.now() + at_least
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure starts the backoff anew."""
        self._failures.pop(key, None)

    def discard(self, key: K) -> None:
        """Drop pending requests for a key that no longer exists."""
        self._withdraw(key)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        self._storms.pop(key, None)

    def _withdraw(self, key: K) -> None:
        self._due.pop(key, None)
        if key in self._queued:
            self._queued.discard(key)
            if key not in self._processing:
                self._ready.remove(key)

    async def get(self) -> K:
        """Wait for a key; the caller must call :meth:`done` with it."""
        while not self._ready:
            waiter = asyncio.get_running_loop().create_future()
            self._wakeups.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._wakeups:
                    self._wakeups.remove(waiter)
                elif self._ready:  # woken and cancelled at once: pass the wake-up on
                    self._wake()
                raise
        key = self._ready.popleft()
        self._queued.discard(key)
        self._processing.add(key)
        self._after_wait(key)
        return key

    def _after_wait(self, key: K) -> None:
        """Wait twice as long next time if requests came meanwhile; if none came, the storm is over, or was none."""
        storm = self._storms.get(key)
        if storm is None or self._clock.now() < storm.rests_until:
            return
        if storm.shared:
            storm.wait = min(STORM_LIMIT, 2 * storm.wait)
        elif not storm.overlaps and storm.proven:
            del self._storms[key]
        elif not storm.overlaps:
            storm.rests_until = self._clock.now() + STORM_REST
        storm.shared = storm.overlaps = False

    def done(self, key: K) -> None:
        """The pass over ``key`` has ended; if it was asked for meanwhile it is ready again."""
        self._processing.discard(key)
        if key in self._queued:
            self._ready.append(key)
            self._wake()

    def _put(self, key: K) -> None:
        self._due.pop(key, None)
        self._not_before.pop(key, None)  # it is over
        if key in self._queued:
            return
        self._queued.add(key)
        if key not in self._processing:
            self._ready.append(key)
            self._wake()

    def _wake(self) -> None:
        while self._wakeups:
            waiter = self._wakeups.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # superseded or already added
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            delay = max(0.0, self._heap[0][0] - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.now()
        while self._heap and self._heap[0][0] <= now + 1e-3:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self._put(key)
        self._arm()
