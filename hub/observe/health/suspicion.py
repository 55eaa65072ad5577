"""Decides whether the backends fail or the prober itself. Pure.

When more than half of the addresses that answered one interval ago stop within one interval, in two clusters
or more, the likeliest culprit is what they have in common: this hub, or its network. Verdicts freeze then,
until less than :data:`CALM` of them fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

SUSPECT: Final = 0.5
CALM: Final = 0.3
CLUSTERS: Final = 2
SLACK: Final = 1.1
"""Intervals are jittered: this many intervals after the last probe, the next one was sent for certain."""


class Seen(NamedTuple):
    """The last answer of one address whose verdict is healthy.

    Attributes:
        passing: what it was.
        at: when it came.
        since: when the run of answers like it began.
        interval: seconds between probes of it.
    """

    cluster: str
    passing: bool
    at: float
    since: float
    interval: float


def suspicious(seen: Iterable[Seen], now: float) -> bool:
    """Whether so many addresses stopped answering at once that the prober is the suspect.

    Only addresses heard of within their last interval count, so that it holds too where probes are late.
    """
    stopped: dict[str, int] = {}
    answering = 0
    for address in seen:
        within = now - address.interval * SLACK
        if address.passing:
            answering += address.at >= within
        elif address.since >= within:
            stopped[address.cluster] = stopped.get(address.cluster, 0) + 1
    failing = sum(stopped.values())
    return len(stopped) >= CLUSTERS and failing > SUSPECT * (failing + answering)


def calm(seen: Iterable[Seen]) -> bool:
    """Whether a suspicion is over: few enough of the addresses that should be healthy fail."""
    total = failing = 0
    for address in seen:
        total += 1
        failing += not address.passing
    return failing < CALM * total or total == 0
