"""Tests of leases without waiting: virtual time, and a fake API server for Leases."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hub.election.elector import LeaseRecord
from tests.support.virtual import VirtualLoop


def simulate(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` in virtual time that begins at 0, then cancel the remaining tasks."""
    with asyncio.Runner(loop_factory=partial(VirtualLoop, 0.0)) as runner:
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
