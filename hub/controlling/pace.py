"""Bounds the rate of writes to one cluster."""

from __future__ import annotations

from hub.runtime.clock import Clock


class Pace:
    """A token bucket, shared by all writes to Nodes and Services of one cluster.

    Args:
        clock: where time comes from.
        rate: writes per second.
        burst: writes in a row.
    """

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._tokens, self._at = burst, clock.now()

    async def take(self) -> None:
        """Wait until the next write may be made."""
        now = self._clock.now()
        self._tokens, self._at = min(self._burst, self._tokens + (now - self._at) * self._rate), now
        self._tokens -= 1.0
        if self._tokens < 0:
            await self._clock.sleep(-self._tokens / self._rate)
