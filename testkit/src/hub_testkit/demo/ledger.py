"""Records which changes reached the consumers, how fast, and whether endpoints were lost meanwhile.

It only compares what is published with what should be; time is an argument. It decides the demo's exit code, so it uses
no information from the hub itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hub_testkit.demo.world import Published, Shown, Spot

SETTLED: Final = 3.0
"""Seconds that an endpoint must have been wanted before its absence counts as a loss: until then the hub may still be
applying an earlier change."""

ECHO: Final = 0.5
"""Seconds after a change in which a write may still belong to it."""

REMEMBERED: Final = 1000
"""The most latencies that are kept, because a demo on a terminal may run for days."""


@dataclass(slots=True)
class Change:
    """An incident in the world and its effect.

    Attributes:
        text: The incident, in words.
        at: When it happened, in seconds.
        wanted: The endpoints that it changed: spot -> how the endpoint should be shown from now on; None = removed.
        effect: The change of endpoints, in words.
        timed: Whether it counts among the latencies.
        seconds: Seconds until it was published; None = not yet, or a later change replaced it.
    """

    text: str
    at: float
    wanted: Mapping[Spot, Shown | None]
    effect: str
    timed: bool = True
    seconds: float | None = None


@dataclass(slots=True)
class Ledger:
    """The records of one run of the demo.

    Attributes:
        changes: The number of incidents so far.
        pending: Changes that are not published yet, oldest first.
        latencies: Seconds until publication, of the latest published changes.
        lost: How often a ready endpoint stopped being published as ready although it was still wanted.
        idle_writes: Writes while no change was pending or just published; a heartbeat must not cause one.
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
        """Records an incident and returns its change.

        Args:
            text: The incident, in words.
            wanted: Everything that should be published after it.
            now: The time in seconds.
            timed: Whether the time until publication depends on the hub alone, and so counts as a latency.
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
        # An endpoint that changes again need not be published in its earlier state.
        for change in self.pending:
            change.wanted = {spot: shown for spot, shown in change.wanted.items() if spot not in delta}
        change = Change(text, now, delta, in_words(before, delta), timed)
        if delta:
            self.pending.append(change)
        return change

    def observed(self, published: Published, writes: int, now: float) -> list[Change]:
        """Records what is published at ``now``, after ``writes`` writes; returns the changes that are now complete."""
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
            change
            for change in self.pending
            if all(published.get(spot) == shown for spot, shown in change.wanted.items())
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
    """The result of a run of the demo.

    Attributes:
        text: The summary, in one line.
        ok: Whether exactly the wanted endpoints are published, and none was lost.
    """

    text: str
    ok: bool


def differences(published: Published, wanted: Published) -> list[str]:
    """Returns one sentence for each endpoint that is missing, superfluous or shown differently."""
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
    """Compares what is published with what is wanted, and sums up the run."""
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
    """Describes the effect of a change on consumers, such as ``1 endpoint out of 2 services``."""
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
    """Returns a number with its noun: ``1 endpoint``, ``2 endpoints``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
