"""Tests of leases without waiting: an event loop with virtual time, and a fake API server for Leases."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from hub.election.elector import LeaseRecord


class _Jump(selectors.SelectSelector):
    """Advances the time instead of waiting."""

    elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "deadlock: no event and no timer is pending"
            self.elapsed += max(0.0, timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.elapsed


def simulate(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` in virtual time, then cancel the remaining tasks."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)


def real() -> float:
    """The loop's virtual time, which the clocks of the simulated processes may differ from."""
    return asyncio.get_running_loop().time()


@dataclass
class Server:
    """The Lease on the API server."""

    record: LeaseRecord | None = None
    version: int = 0
    calls: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def store(self, record: LeaseRecord) -> LeaseRecord:
        """Store the Lease with a new version."""
        self.version += 1
        self.record = replace(record, version=str(self.version))
        self.changed.set()
        self.changed = asyncio.Event()
        return self.record

    @property
    def holder(self) -> str:
        """The present holder; "" = none."""
        return self.record.holder if self.record is not None else ""
