"""Is it the backends, or is it the prober? Pure.

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
"""An interval is jittered; so much of it after the last probe, the next one has been sent."""


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
    """Whether so much stopped answering at once that the prober is the suspect.

    Only addresses heard of within their last interval count, so that it holds too where probes are late.
    """
    stopped: dict[str, int] = {}
    answering = 0
    for each in seen:
        within = now - each.interval * SLACK
        if each.passing:
            answering += each.at >= within
        elif each.since >= within:
            stopped[each.cluster] = stopped.get(each.cluster, 0) + 1
    failing = sum(stopped.values())
    return len(stopped) >= CLUSTERS and failing > SUSPECT * (failing + answering)


def calm(seen: Iterable[Seen]) -> bool:
    """Whether a suspicion is over: of all that should be healthy, few enough fail."""
    total = failing = 0
    for each in seen:
        total += 1
        failing += not each.passing
    return failing < CALM * total or total == 0
