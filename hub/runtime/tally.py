"""Counts durations into the buckets of a histogram, at the cost of one bisection.

The histograms of prometheus-client take a lock and look up labels at every event, which costs some microseconds.
Tallies are written and read in one event loop, so they need no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

WRITE_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds: a write takes milliseconds, or minutes if it has to wait for the API server."""
CALL_BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds for calls that time out after 30 s."""


class Tally:
    """The number of durations in each bucket, and their sum.

    Attributes:
        bounds: inclusive upper bounds in seconds, ascending.
        counts: the number of durations in each bucket; the last bucket counts those above the highest bound.
        sum: the sum of all durations, in seconds.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def note(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds
