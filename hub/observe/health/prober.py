"""Runs thousands of probes on one epoll and one timer wheel, without a task for each.

A probe takes a few system calls and a few microseconds of Python; asyncio sees one readable descriptor (the epoll) and
one task. The number of sockets is limited, in the hub and per cluster. Failing addresses have a smaller limit, so that
sockets are left for addresses that answer: one that does not answer holds its socket for the whole timeout, about a
thousand times as long.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Final

import msgspec

from hub.decide.checks import Check, Verdict
from hub.observe.health.flights import PASSED, Flight, Opener, connection, in_words
from hub.observe.health.wheel import TICK, Wheel
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

SOCKETS: Final = 512
"""Maximum sockets of all clusters together."""
PER_CLUSTER: Final = 64
"""Maximum sockets of one cluster, so that one cluster cannot use them all."""
JITTER: Final = 0.05
"""Maximum share by which an interval is longer or shorter, at random, so that probes spread over time."""
TIMED_OUT: Final = "timed out"
EVENTS: Final = 512
"""Maximum events that are handled at once. Each takes 20 µs, so other work on the loop waits 10 ms at most."""

STALL: Final = 0.25
"""Seconds that a tick may be late. After a later tick, the hub was busy: overdue probes get that time added once."""

_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_OWN_FAULT: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN)
)
"""Errors of this machine, which say nothing about the address."""


class Kind(IntEnum):
    """How well an address answers, in order of precedence. Each kind has its own limit of sockets."""

    LIVE = 0
    DOUBTFUL = 1
    """Its last probe failed, or it has not answered yet."""
    DEAD = 2
    """Its verdict is unhealthy."""


TOTAL: Final = (SOCKETS, 384, 128)
"""By kind, the maximum sockets of this kind and all worse kinds together. The 128 that are left to LIVE alone serve
5,000 addresses that are probed every 5 s and answer within 100 ms. 384 serve 600 addresses that stop answering at
once, each of which holds a socket for 3 s out of every 5 s."""
CLUSTER: Final = (PER_CLUSTER, 48, 16)
"""The same limits for one cluster."""


class Lane(msgspec.Struct, eq=False, weakref=True):
    """The sockets of one cluster, and the probes that wait for one.

    Attributes:
        held: by kind, the sockets of this kind and all worse kinds.
        waiting: by kind, the probes that wait for a socket.
        queued: whether the lane is in the prober's queue of lanes with waiting probes.
    """

    cluster: str
    held: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0])
    waiting: tuple[deque[Probe], deque[Probe], deque[Probe]] = msgspec.field(
        default_factory=lambda: (deque(), deque(), deque())
    )
    queued: bool = False


class Probe(msgspec.Struct, eq=False):
    """One address under one check; the prober and the board share this record.

    Attributes:
        open: makes a flight from the connecting socket.
        verdict, run, passing: see :class:`hub.observe.health.verdicts.CheckState`.
        at: when the last answer came.
        since: when the current run of passes or failures began.
        reason: why the last probe failed; "" if it passed.
        fallen: whether the last change of its verdict was from healthy to unhealthy.
        started: when the probe under way, or the last one, began.
        active: False once no target asks for it.
    """

    address: str
    check: Check
    lane: Lane
    open: Opener
    verdict: Verdict = None
    run: int = 0
    passing: bool | None = None
    at: float = 0.0
    since: float = 0.0
    reason: str = ""
    fallen: bool = False
    started: float = 0.0
    active: bool = True

    def kind(self) -> Kind:
        """The kind whose limit of sockets applies."""
        if self.verdict is False:
            return Kind.DEAD
        if self.passing or (self.passing is None and self.verdict):
            return Kind.LIVE
        return Kind.DOUBTFUL


class _Flying:
    """A probe under way."""

    __slots__ = ("descriptor", "extended", "flight", "kind", "over", "probe")

    def __init__(self, probe: Probe, kind: Kind, flight: Flight, descriptor: int) -> None:
        self.probe = probe
        self.kind = kind
        self.flight = flight
        self.descriptor = descriptor
        self.over = False
        self.extended = False
        """Whether its deadline was extended after a late tick. This happens only once: otherwise no probe would ever
        time out on a machine that is always late."""


class Prober:
    """Probes addresses at their intervals.

    Args:
        on_answer: called with (probe, why it failed or "", Clock.now()).
        rng: for jitter.
    """

    def __init__(
        self, clock: Clock, on_answer: Callable[[Probe, str, float], None], rng: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._on_answer = on_answer
        self._rng = rng or random.Random()
        self._due: Wheel[Probe] = Wheel()
        self._deadlines: Wheel[_Flying] = Wheel()
        self._flying: dict[int, _Flying] = {}
        self._held = [0, 0, 0]
        self._waiting_lanes: deque[Lane] = deque()
        self._epoll: select.epoll | None = None
        self._warned_at = float("-inf")
        self._ticked = float("inf")

    # --- adding and removing -------------------------------------------------------------------------

    def add(self, probe: Probe, within: float) -> None:
        """Start probing; the first probe is sent at a random moment of the next ``within`` seconds."""
        self._due.put(probe, self._clock.now() + self._rng.random() * within)

    @staticmethod
    def remove(probe: Probe) -> None:
        """Stop probing; a probe under way ends and is not reported."""
        probe.active = False

    @property
    def sockets(self) -> int:
        """The number of open sockets."""
        return len(self._flying)

    # --- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe until cancelled; then close every socket."""
        loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        try:
            loop.add_reader(self._epoll.fileno(), self._ready)
            while True:
                self.tick()
                await self._clock.sleep(TICK)
        finally:
            loop.remove_reader(self._epoll.fileno())
            for flying in list(self._flying.values()):
                self._close(flying)
                if flying.probe.active:
                    self._due.put(flying.probe, 0.0)
            self._epoll.close()
            self._epoll = None

    def tick(self) -> None:
        """End overdue probes and start due ones."""
        now = self._clock.now()
        late, self._ticked = now - self._ticked - TICK, now
        for flying in self._deadlines.due(now):
            if flying.over:
                continue
            if late > STALL and not flying.extended:
                flying.extended = True
                self._deadlines.put(flying, now + min(late, flying.probe.check.timeout))
            else:
                self._finish(flying, TIMED_OUT, now)
        for probe in self._due.due(now):
            if probe.active:
                self._start(probe, now)

    def _start(self, probe: Probe, now: float) -> bool:
        """Start a probe if there is a socket for it; True if it is under way."""
        kind, lane = probe.kind(), probe.lane
        if not self._room(lane, kind):
            lane.waiting[kind].append(probe)
            if not lane.queued:
                lane.queued = True
                self._waiting_lanes.append(lane)
            return False
        assert self._epoll is not None  # noqa: S101 - ticks come from run()
        probe.started = now
        try:
            sock, error = connection(probe.address, probe.check.port)
        except OSError as none_left:
            self._refused(probe, none_left.errno or errno.ENOMEM, now)
            return False
        if error not in (0, errno.EINPROGRESS):
            sock.close()
            self._refused(probe, error, now)
            return False
        flight = probe.open(sock, probe.address)
        if flight is None:
            sock.close()
            self._schedule_next(probe, now)
            return False
        descriptor = sock.fileno()
        flying = self._flying[descriptor] = _Flying(probe, kind, flight, descriptor)
        for level in range(kind + 1):
            self._held[level] += 1
            lane.held[level] += 1
        self._deadlines.put(flying, now + probe.check.timeout)
        self._epoll.register(descriptor, _EVENTS)
        return True

    def _refused(self, probe: Probe, error: int, now: float) -> None:
        """Handle a connection that failed at once."""
        self._schedule_next(probe, now)
        if error in _OWN_FAULT:
            self._warn_no_sockets(error, now)
        else:
            self._on_answer(probe, in_words(error), now)

    def _room(self, lane: Lane, kind: Kind) -> bool:
        """Whether a socket is free for a kind. It counts against the limits of this kind and of all better kinds."""
        held, of_lane = self._held, lane.held
        return all(held[level] < TOTAL[level] and of_lane[level] < CLUSTER[level] for level in range(kind + 1))

    def _ready(self) -> None:
        """Handle sockets that have events."""
        assert self._epoll is not None  # noqa: S101 - the loop calls it while run() runs
        now = self._clock.now()
        for descriptor, _ in self._epoll.poll(0, EVENTS):
            flying = self._flying.get(descriptor)
            if flying is None:
                continue
            try:
                outcome = flying.flight.step()
            except Exception:
                log.exception("probing %s failed; this counts as a failed probe", flying.probe.address)
                outcome = "the probe failed"
            if outcome is not None:
                self._finish(flying, outcome, now)

    def _finish(self, flying: _Flying, outcome: str, now: float) -> None:
        self._close(flying)
        probe = flying.probe
        if probe.active:
            self._on_answer(probe, outcome, now)
            self._schedule_next(probe, now)
        if self._waiting_lanes:
            self._start_waiting(now)

    def _close(self, flying: _Flying) -> None:
        assert self._epoll is not None  # noqa: S101 - no probe is under way without it
        flying.over = True
        del self._flying[flying.descriptor]
        # Unregister it explicitly: between fork and exec a child process holds the descriptor too, so that closing it
        # here would not remove it from the epoll.
        with suppress(OSError):  # ssl itself closes a socket that was reset just before wrapping
            self._epoll.unregister(flying.descriptor)
        flying.flight.sock.close()
        held, of_lane = self._held, flying.probe.lane.held
        for level in range(flying.kind + 1):
            held[level] -= 1
            of_lane[level] -= 1

    def _schedule_next(self, probe: Probe, now: float) -> None:
        """Schedule the next probe an interval after the start of the last one, so that slow answers do not delay it."""
        pause = probe.check.interval * (1.0 + JITTER * (2.0 * self._rng.random() - 1.0))
        self._due.put(probe, max(now, probe.started + pause))

    def _start_waiting(self, now: float) -> None:
        """Give a free socket to a waiting probe: the best kind first, clusters in turn."""
        for kind in Kind:
            for _ in range(len(self._waiting_lanes)):
                lane = self._waiting_lanes[0]
                self._waiting_lanes.rotate(-1)
                waiting = lane.waiting[kind]
                while waiting and (not waiting[0].active or self._room(lane, kind)):
                    probe = waiting.popleft()
                    if probe.active and self._start(probe, now):  # else the socket is still free
                        return
        for lane in [lane for lane in self._waiting_lanes if not any(lane.waiting)]:
            lane.queued = False
            self._waiting_lanes.remove(lane)

    def _warn_no_sockets(self, error: int, now: float) -> None:
        if now - self._warned_at >= 60.0:  # at most once a minute, since every probe may fail
            self._warned_at = now
            log.warning("no sockets for health checks: %s; verdicts stay as they are", in_words(error))


def passed(outcome: str) -> bool:
    """Whether an outcome is a pass."""
    return outcome == PASSED
