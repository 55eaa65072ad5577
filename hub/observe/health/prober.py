"""Runs thousands of probes on one epoll and one timer wheel, without a task for each.

A probe takes a few system calls and a few microseconds of Python; asyncio sees one readable descriptor (the epoll) and
one task. The number of sockets is limited, in the hub and per cluster. Failing addresses have a smaller limit, so that
sockets are left for those that answer: an address that does not answer holds its socket for the whole timeout, which is
a thousand times as long.
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
"""Sockets of all clusters together."""
PER_CLUSTER: Final = 64
JITTER: Final = 0.05
"""Share by which each interval is longer or shorter, at random, so that probes spread over time."""
TIMED_OUT: Final = "timed out"
EVENTS: Final = 512
"""Events that are handled at once, 20 µs each, so that other work on the loop waits 10 ms at most."""

STALL: Final = 0.25
"""Seconds a tick may be late. If it is later, the hub was busy: probes under way get that time again."""

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
"""Sockets that this kind and the ones below it may hold together. What is left to LIVE alone, 128, is
enough for 5,000 addresses every 5 s that answer within 100 ms; 384 are enough for 600 that stop answering at
once (3 s out of every 5 each)."""
CLUSTER: Final = (PER_CLUSTER, 48, 16)
"""The same for one cluster."""


class Lane(msgspec.Struct, eq=False, weakref=True):
    """The sockets of one cluster, and the probes that wait for one."""

    cluster: str
    held: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0])
    waiting: tuple[deque[Probe], deque[Probe], deque[Probe]] = msgspec.field(
        default_factory=lambda: (deque(), deque(), deque())
    )
    hungry: bool = False


class Probe(msgspec.Struct, eq=False):
    """One address under one check; the engine's and the board's common record.

    Attributes:
        open: what to do with a connection: a flight, or None where the check cannot be carried out now.
        verdict, run, passing: see :class:`hub.observe.health.verdicts.Standing`.
        at: when the last answer came.
        since: when the run of answers like it began.
        reason: why it failed last; "" if it passed.
        fallen: its verdict was healthy before the run of failures that ended it.
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

    __slots__ = ("descriptor", "excused", "flight", "kind", "over", "probe")

    def __init__(self, probe: Probe, kind: Kind, flight: Flight, descriptor: int) -> None:
        self.probe = probe
        self.kind = kind
        self.flight = flight
        self.descriptor = descriptor
        self.over = False
        self.excused = False
        """It got its time again. That happens once, or nothing would ever time out on a machine that is always late."""


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
        self._hungry: deque[Lane] = deque()
        self._epoll: select.epoll | None = None
        self._complained = float("-inf")
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
        """How many sockets are open."""
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
        """End probes that are overdue, start those that are due."""
        now = self._clock.now()
        late, self._ticked = now - self._ticked - TICK, now
        for flying in self._deadlines.due(now):
            if flying.over:
                continue
            if late > STALL and not flying.excused:
                flying.excused = True
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
            if not lane.hungry:
                lane.hungry = True
                self._hungry.append(lane)
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
            self._again(probe, now)
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
        self._again(probe, now)
        if error in _OWN_FAULT:
            self._complain(error, now)
        else:
            self._on_answer(probe, in_words(error), now)

    def _room(self, lane: Lane, kind: Kind) -> bool:
        """Whether a socket is free: sockets of a kind count against its limit and against those of the kinds above."""
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
            self._again(probe, now)
        if self._hungry:
            self._feed(now)

    def _close(self, flying: _Flying) -> None:
        assert self._epoll is not None  # noqa: S101 - nothing flies without
        flying.over = True
        del self._flying[flying.descriptor]
        # By hand: between fork and exec a child holds the descriptor too, and closing alone would not take it out.
        with suppress(OSError):  # ssl closes a socket itself that was reset just before it is wrapped
            self._epoll.unregister(flying.descriptor)
        flying.flight.sock.close()
        held, of_lane = self._held, flying.probe.lane.held
        for level in range(flying.kind + 1):
            held[level] -= 1
            of_lane[level] -= 1

    def _again(self, probe: Probe, now: float) -> None:
        """Schedule the next probe an interval after the start of the last one, so that slow answers do not delay it."""
        pause = probe.check.interval * (1.0 + JITTER * (2.0 * self._rng.random() - 1.0))
        self._due.put(probe, max(now, probe.started + pause))

    def _feed(self, now: float) -> None:
        """Give a free socket to a waiting probe: live ones first, clusters in turn."""
        for kind in Kind:
            for _ in range(len(self._hungry)):
                lane = self._hungry[0]
                self._hungry.rotate(-1)
                waiting = lane.waiting[kind]
                while waiting and (not waiting[0].active or self._room(lane, kind)):
                    probe = waiting.popleft()
                    if probe.active and self._start(probe, now):  # else the socket is still free
                        return
        for lane in [lane for lane in self._hungry if not any(lane.waiting)]:
            lane.hungry = False
            self._hungry.remove(lane)

    def _complain(self, error: int, now: float) -> None:
        if now - self._complained >= 60.0:
            self._complained = now
            log.warning("no sockets for health checks: %s; verdicts stay as they are", in_words(error))


def passed(outcome: str) -> bool:
    """Whether an outcome is a pass."""
    return outcome == PASSED
