"""Clocks for tests, in place of :class:`hub.runtime.clock.SystemClock`."""

from __future__ import annotations

import asyncio

from hub.runtime.clock import SystemClock


class ManualClock:
    """Stands still until it is moved; a sleep moves it.

    Attributes:
        time: seconds that only move forward.
        wall_time: Unix time.
    """

    def __init__(self, time: float = 1000.0, wall_time: float = 1.8e9) -> None:
        self.time = time
        self.wall_time = wall_time

    def now(self) -> float:
        """Seconds."""
        return self.time

    def wall(self) -> float:
        """Unix time."""
        return self.wall_time

    async def sleep(self, seconds: float) -> None:
        """Returns at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Both clocks move."""
        self.time += seconds
        self.wall_time += seconds


class AheadClock(SystemClock):
    """The machine's clocks, ahead by as much as a test wants."""

    ahead = 0.0

    def now(self) -> float:
        """Seconds."""
        return super().now() + self.ahead

    def wall(self) -> float:
        """Unix time."""
        return super().wall() + self.ahead


class HastyClock(SystemClock):
    """Waits for next to nothing, and notes how long it should have waited."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Lets others work."""
        self.slept.append(seconds)
        await asyncio.sleep(0)
