"""Decides whether the backends fail or the prober itself. Pure.

If more than half of the addresses that answered one interval ago stop answering within one interval, in two clusters or
more, the likeliest cause is the hub itself or its network. Verdicts are then frozen until less than :data:`CALM` of the
addresses fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

SUSPECT: Final = 0.5
"""The prober is suspected if more than this share of the addresses stop answering at once."""
CALM: Final = 0.3
"""A suspicion ends if less than this share fails; smaller than SUSPECT, so that the result does not alternate."""
CLUSTERS: Final = 2
"""Minimum number of clusters with such addresses: in a single cluster, the cluster itself probably fails."""
SLACK: Final = 1.1
"""Number of intervals within which the next probe has certainly been sent; more than 1, since they are jittered."""


class LastAnswer(NamedTuple):
    """The last answer of one address whose verdict is healthy, or was until recently.

    Attributes:
        passing: whether the answer was a pass.
        at: when it came.
        since: when the current run of passes or failures began.
        interval: seconds between probes of the address.
    """

    cluster: str
    passing: bool
    at: float
    since: float
    interval: float


def suspicious(seen: Iterable[LastAnswer], now: float) -> bool:
    """Whether so many addresses stopped answering at once that the prober itself probably fails.

    An answering address counts if its last answer came within its last interval, a failing address if it began to fail
    within it. Late probes therefore do not change the result.
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


def calm(seen: Iterable[LastAnswer]) -> bool:
    """Whether a suspicion is over: less than :data:`CALM` of the addresses fail, or there are none."""
    total = failing = 0
    for address in seen:
        total += 1
        failing += not address.passing
    return failing < CALM * total or total == 0
