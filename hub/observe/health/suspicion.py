"""Decides whether the backends fail or the prober itself. Pure.

If more than half of the addresses that answered one interval ago stop answering within one interval, in two clusters or
more, the likeliest cause is the hub itself or its network. Verdicts are then frozen until less than :data:`CALM` of the
addresses fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

SUSPECT: Final = 0.5
CALM: Final = 0.3
CLUSTERS: Final = 2
SLACK: Final = 1.1
"""Number of intervals after which the next probe has certainly been sent, since intervals are jittered."""


class Seen(NamedTuple):
    """The last answer of one address whose verdict is healthy.

    Attributes:
        passing: whether it was a pass.
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
    """Whether so many addresses stopped answering at once that the prober itself probably fails.

    Only addresses with an answer within their last interval count, so that late probes do not change the result.
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
