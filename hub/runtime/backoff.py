"""Delays that grow after each failure, with jitter."""

from __future__ import annotations

import random

import msgspec

_RANDOM = random.Random()
"""Shared by all backoffs, since each generator takes 2.5 KB and is seeded by a system call."""


class Backoff(msgspec.Struct):
    """The delay after each failure in a row; client-go's reflector values are the default.

    The delay is ``base * 2**n`` capped at ``cap``, then stretched by up to ``jitter`` of itself.
    Source: client-go tools/cache/reflector.go (0.8 s, factor 2, cap 30 s, jitter 1.0, reset after 2 min).

    Attributes:
        base: seconds of the first delay.
        cap: the longest delay before jitter, in seconds.
        jitter: the largest share by which a delay is stretched at random.
        reset_after: seconds without a failure, counted from the end of the last delay, after which the count starts
            over.
        rng: the source of the jitter.
    """

    base: float = 0.8
    cap: float = 30.0
    jitter: float = 1.0
    reset_after: float = 120.0
    rng: random.Random = _RANDOM
    _failures: int = 0
    _until: float | None = None

    def next(self, now: float) -> float:
        """Count a failure at ``now`` and return the seconds to wait after it."""
        if self._until is not None and now - self._until > self.reset_after:
            self._failures = 0
        delay = min(self.cap, self.base * 2.0 ** min(self._failures, 32)) * (1.0 + self.rng.random() * self.jitter)
        self._failures += 1
        self._until = now + delay
        return delay

    def reset(self) -> None:
        """Start over after a success."""
        self._failures = 0
        self._until = None
