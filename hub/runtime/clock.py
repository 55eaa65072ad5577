"""Time as an injected value, so that a test or a simulation can control it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def now(self) -> float:
        """Seconds since an arbitrary start, for intervals and deadlines. Never goes back."""
        ...

    def wall(self) -> float:
        """Unix time in seconds, for comparing with timestamps in objects. May jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; 0 yields once to the event loop."""
        ...


class SystemClock:
    """The machine's clocks. ``now`` counts through suspend (CLOCK_BOOTTIME), as leases need."""

    def now(self) -> float:
        """Seconds since boot, suspended time included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Unix time."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Like asyncio.sleep."""
        await asyncio.sleep(seconds)


def rfc3339(seconds: float) -> str:
    """Unix time as Kubernetes writes it: UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
