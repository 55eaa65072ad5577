"""Clocks for tests that replace :class:`hub.runtime.clock.SystemClock`."""

from __future__ import annotations

import asyncio

from hub.runtime.clock import SystemClock


class ManualClock:
    """A clock that moves only when it is advanced; a sleep advances it.

    Attributes:
        time: monotonic time in seconds.
        wall_time: Unix time.
    """

    def __init__(self, time: float = 1000.0, wall_time: float = 1.8e9) -> None:
        self.time = time
        self.wall_time = wall_time

    def now(self) -> float:
        """Monotonic time in seconds."""
        return self.time

    def wall(self) -> float:
        """Unix time."""
        return self.wall_time

    async def sleep(self, seconds: float) -> None:
        """Advance the clock and return at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance both times."""
        self.time += seconds
        self.wall_time += seconds


class AheadClock(SystemClock):
    """The system's clock, ahead by as many seconds as a test sets."""

    ahead = 0.0

    def now(self) -> float:
        """Monotonic time in seconds."""
        return super().now() + self.ahead

    def wall(self) -> float:
        """Unix time."""
        return super().wall() + self.ahead


class HastyClock(SystemClock):
    """A clock whose sleeps return at once; ``slept`` lists their lengths in seconds."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run, and record the length."""
        self.slept.append(seconds)
        await asyncio.sleep(0)
