"""Counts durations into buckets: what a histogram is made of, at the price of a list and a bisection.

prometheus-client's own counters take a lock and look their labels up at every event, some microseconds each.
Everything here happens in one event loop, and is read between two events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

WRITES: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds, seconds: a lone write takes milliseconds; what waits for an API server to come back, minutes."""
CALLS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds, seconds, of calls that are given up after 30."""


class Tally:
    """Durations by bucket.

    Attributes:
        bounds: upper bounds, inclusive, growing.
        counts: how many fell into each bucket; one more than bounds, for everything above.
        sum: of all, seconds.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def note(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds
