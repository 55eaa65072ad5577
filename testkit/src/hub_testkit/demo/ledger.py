"""Keeps account: which changes reached the consumers and how fast, and whether anything was lost on the way.

Pure bookkeeping over what should be published and what is; time is an argument. It decides the demo's exit
code, so it must not take the hub's word for anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hub_testkit.demo.world import Published, Shown, Spot

SETTLED: Final = 3.0
"""Seconds an endpoint must have been wanted before its absence counts as a loss: until then the hub may still be
carrying out what was wanted before."""
ECHO: Final = 0.5
"""Seconds after a change in which a write may still belong to it."""
REMEMBERED: Final = 1000
"""Latencies kept: a show on a terminal may last for days."""


@dataclass(slots=True)
class Change:
    """Something that happened in the world.

    Attributes:
        text: what, in words.
        at: when, in seconds.
        wanted: what it changed: spot -> how it should be shown from now on; None = not at all.
        effect: the same in words.
        timed: it counts among the latencies.
        seconds: until it was published; None = not yet, or a later change came first.
    """

    text: str
    at: float
    wanted: Mapping[Spot, Shown | None]
    effect: str
    timed: bool = True
    seconds: float | None = None


@dataclass(slots=True)
class Ledger:
    """The account of one show.

    Attributes:
        changes: incidents so far.
        pending: changes that are not published yet, oldest first.
        latencies: seconds, of the latest changes that were published.
        lost: how often an endpoint was not published as ready although nothing had asked for that.
        idle_writes: writes at times when nothing had changed: a heartbeat must not cause one.
    """

    changes: int = 0
    pending: list[Change] = field(default_factory=list)
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    lost: int = 0
    idle_writes: int = 0
    _wanted: Published = field(default_factory=dict)
    _wanted_since: dict[Spot, float] = field(default_factory=dict)
    _ready: frozenset[Spot] = frozenset()
    _writes: int = 0
    _busy_at: float = 0.0

    def happened(self, text: str, wanted: Published, now: float, *, timed: bool = True) -> Change:
        """Enter an incident, with everything that should be published after it.

        Args:
            text: the incident in words.
            wanted: everything that should be published after it.
            now: seconds.
            timed: how long it takes says something about the hub.
        """
        self.changes += 1
        before, self._wanted = self._wanted, dict(wanted)
        spots = sorted(before.keys() | wanted.keys())
        delta = {spot: wanted.get(spot) for spot in spots if before.get(spot) != wanted.get(spot)}
        for spot, shown in delta.items():
            if shown is not None and shown.ready:
                self._wanted_since[spot] = now
            else:
                self._wanted_since.pop(spot, None)
        # What is wanted otherwise by now need not be seen.
        for change in self.pending:
            change.wanted = {spot: shown for spot, shown in change.wanted.items() if spot not in delta}
        change = Change(text, now, delta, in_words(before, delta), timed)
        if delta:
            self.pending.append(change)
        return change

    def observed(self, published: Published, writes: int, now: float) -> list[Change]:
        """Enter what is published now, after so many writes; returns the changes that are complete with it."""
        if self.pending:
            self._busy_at = now
        elif now - self._busy_at > ECHO:
            self.idle_writes += writes - self._writes
        self._writes = writes
        ready = frozenset(spot for spot, shown in published.items() if shown.ready)
        for spot in self._ready - ready:
            since = self._wanted_since.get(spot)
            self.lost += since is not None and now - since >= SETTLED
        self._ready = ready
        done = [
            each for each in self.pending if all(published.get(spot) == shown for spot, shown in each.wanted.items())
        ]
        for change in done:
            self.pending.remove(change)
            if change.wanted:
                change.seconds = now - change.at
                if change.timed:
                    self.latencies.append(change.seconds)
        return done


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a show ended.

    Attributes:
        text: the summary, one line.
        ok: what is published is what should be, and nothing was lost.
    """

    text: str
    ok: bool


def differences(published: Published, wanted: Published) -> list[str]:
    """What is wrong with what is published, one sentence per endpoint; empty = nothing."""
    wrong: list[str] = []
    for spot in sorted(published.keys() | wanted.keys()):
        is_, should = published.get(spot), wanted.get(spot)
        if is_ == should:
            continue
        if is_ is None and should is not None:
            wrong.append(f"{spot.service} lacks {spot.address} of {should.cluster}")
        elif is_ is not None and should is None:
            wrong.append(f"{spot.service} still has {spot.address} of {is_.cluster}")
        else:
            wrong.append(f"{spot.service} shows {spot.address} as {is_}, not {should}")
    return wrong


def verdict(
    ledger: Ledger, published: Published, wanted: Published, *, clusters: int, nodes: int, services: int, writes: int
) -> Verdict:
    """Check what is published and sum up."""
    wrong = differences(published, wanted)
    text = (
        f"demo: {clusters} clusters, {nodes} nodes, {services} services: {counted(ledger.changes, 'change')}, "
        f"{counted(writes, 'write')}, {counted(ledger.lost, 'endpoint')} lost; "
    )
    if not wrong:
        return Verdict(f"{text}published = expected", ledger.lost == 0)
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return Verdict(f"{text}published is NOT as expected: {wrong[0]}{more}", ok=False)


def in_words(before: Published, delta: Mapping[Spot, Shown | None]) -> str:
    """What a change means for consumers: ``1 endpoint out of 2 services``."""
    groups: dict[str, list[Spot]] = {}
    for spot, shown in delta.items():
        old = before.get(spot)
        if shown is None:
            kind = "out of"
        elif old is None:
            kind = "into"
        else:
            kind = "ready again in" if shown.ready else "not ready in"
        groups.setdefault(kind, []).append(spot)
    return ", ".join(f"{_endpoints(spots)} {kind} {_services(spots)}" for kind, spots in sorted(groups.items()))


def _endpoints(spots: Iterable[Spot]) -> str:
    return counted(len({spot.address for spot in spots}), "endpoint")


def _services(spots: Iterable[Spot]) -> str:
    return counted(len({spot.service for spot in spots}), "service")


def counted(number: int, noun: str) -> str:
    """``1 endpoint``, ``2 endpoints``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
