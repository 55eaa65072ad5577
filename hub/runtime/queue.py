"""A keyed work queue: a key is queued at most once, and never processed twice at the same time.

The semantics are those of client-go's workqueue, without its threads. A key that is added while it is processed is
processed once more afterwards. Delayed additions are kept separately, and the earliest one of a key wins. Each key has
its own backoff after failures.

A request is served at once. Requests that arrive while their key is processed share the next pass over it. They may be
the beginning of a storm of requests for this key. In a storm, a request waits some milliseconds for others to share its
pass, and longer as long as others do arrive.
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
"""Seconds before the first retry of a key; the EndpointSlice controller of Kubernetes starts at 1 s too
(kubernetes/pkg/controller/endpointslice/endpointslice_controller.go)."""
RETRY_CAP = 60.0
"""The longest time before a retry, in seconds, without jitter."""
STORM_FIRST = 0.012
"""Seconds that a request waits at the beginning of a storm. Two writes of one client, such as adding a node and
removing another, arrive 5 to 10 ms apart on a busy API server."""
STORM_LIMIT = 0.11
"""The longest wait in a storm, in seconds. It is longer than 0.1, so that at ten pairs of writes a second two pairs
share a pass. Together with its write, a change takes less than 0.15 s."""
STORM_GAP = 0.025
"""Seconds; requests further apart than this do not count as a storm, for example those of 20 changes a second."""
STORM_END = 0.15
"""Seconds without a request after which a storm is over. It is longer than ``STORM_LIMIT``, since requests wait that
long."""
STORM_REST = 1.0
"""Seconds in which no request waits, after a first wait in which no other request arrived. A client that makes each
change as soon as the last one is published often overlaps with the end of a pass; the rest keeps its waits below one in
a hundred changes."""
SPARE = 100
"""Outdated entries that the heap of delays may hold in addition to one for each valid entry."""


class _Storm(msgspec.Struct):
    """The state of a key that was requested while it was processed.

    Attributes:
        requested: the time of the last request.
        wait: seconds that a request waits for others to share its pass.
        shared: whether requests less than ``STORM_GAP`` apart share the next pass.
        overlaps: whether a request for the next pass arrived while the key was processed.
        rests_until: no request waits before this time, since no other request arrived during the first wait.
    """

    requested: float
    wait: float = STORM_FIRST
    shared: bool = False
    overlaps: bool = True
    rests_until: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether requests have arrived while another one waited."""
        return self.wait > STORM_FIRST


class KeyedQueue(Generic[K]):
    """A deduplicating FIFO queue of keys, with delayed additions and backoff after failures."""

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
        """The earliest time of the next pass, for keys whose server asked the hub to wait."""
        self._storms: dict[K, _Storm] = {}
        self._wakeups: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """The number of keys that are ready: neither delayed nor being processed."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """The number of delayed keys."""
        return len(self._due)

    @property
    def working(self) -> bool:
        """Whether any key is being processed."""
        return bool(self._processing)

    def under_way(self) -> Collection[K]:
        """The keys that are being processed."""
        return self._processing

    @property
    def idle(self) -> bool:
        """Whether no key is ready, delayed or being processed."""
        return not (self._queued or self._processing or self._due)

    def add(self, key: K) -> None:
        """Request a pass over ``key`` after a change: at once, after the current pass, or in a storm some ms later."""
        self.add_after(key, self._wait_in_storm(key))

    def _wait_in_storm(self, key: K) -> float:
        """Record a request and return the seconds that it waits for others to share its pass; 0.0 outside a storm."""
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
        """Request a pass ``delay`` seconds from now; an earlier request for the same key wins.

        If a server asked the hub to wait (see :meth:`retry`), the pass comes after that wait at the earliest.
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
        # A key whose delay is shortened again and again leaves an outdated entry in the heap each time.
        if len(self._heap) > 2 * len(self._due) + SPARE:
            self._heap = [(at, number, delayed) for number, (delayed, at) in enumerate(self._due.items())]
            heapq.heapify(self._heap)
        self._arm()

    def retry(self, key: K, at_least: float = 0.0, elapsed: float = 0.0) -> float:
        """Request another pass after a failure. Returns the delay in seconds: doubling, capped and jittered.

        Args:
            key: the key whose pass failed.
            at_least: seconds that a server asked the hub to wait. No pass over the key starts before they are over,
                not even one that was requested during the failed pass. A later request can shorten the delay to
                ``at_least``, but no further.
            elapsed: seconds that the failed pass took: the doubling delay counts from its start.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(RETRY_CAP, RETRY_BASE * 2.0 ** min(failures, 10)) * (1.0 + 0.2 * self._rng.random())
        delay = max(delay - elapsed, at_least, 0.0)
        if at_least > 0:
            self._withdraw(key)
            self._not_before[key] = self._clock.now() + at_least
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the backoff of a key after a successful pass."""
        self._failures.pop(key, None)

    def discard(self, key: K) -> None:
        """Drop pending requests for a key that no longer exists."""
        self._withdraw(key)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        self._storms.pop(key, None)

    def _withdraw(self, key: K) -> None:
        """Drop pending requests for a key, but keep its backoff."""
        self._due.pop(key, None)
        if key in self._queued:
            self._queued.discard(key)
            if key not in self._processing:
                self._ready.remove(key)

    async def get(self) -> K:
        """Wait for a key and return it. The caller must call :meth:`done` with it after the pass."""
        while not self._ready:
            waiter = asyncio.get_running_loop().create_future()
            self._wakeups.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._wakeups:
                    self._wakeups.remove(waiter)
                elif self._ready:  # woken and cancelled in the same round: wake another waiter instead
                    self._wake()
                raise
        key = self._ready.popleft()
        self._queued.discard(key)
        self._processing.add(key)
        self._after_wait(key)
        return key

    def _after_wait(self, key: K) -> None:
        """Adjust the storm of a key whose wait is over.

        If other requests arrived during the wait, the next wait is twice as long. If none arrived, the storm is over,
        or it was no storm in the first place and the key rests for ``STORM_REST`` seconds.
        """
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
        """Record the end of a pass over ``key``. If another one was requested meanwhile, the key is ready again."""
        self._processing.discard(key)
        if key in self._queued:
            self._ready.append(key)
            self._wake()

    def _put(self, key: K) -> None:
        self._due.pop(key, None)
        self._not_before.pop(key, None)  # that time has come
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
            heapq.heappop(self._heap)  # outdated: replaced by an earlier delay, already queued or withdrawn
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
