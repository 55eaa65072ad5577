"""What the hub cluster publishes, and when each address came and went: kept from a watch of the slices."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from benchmarks.slices import Event

Place = tuple[str, str]
"""A Service and an address."""


class Ledger:
    """Takes the events of a watch.

    Attributes:
        published: Service -> its ready addresses, with how many slices have each.
        ports: Service -> the port of the slice that came last.
        events: Service -> how many times a slice of it was written.
        came, went: when an address was first seen on a Service, and when it was last seen to go, by time.monotonic().
        changed: set with every event.
    """

    def __init__(self) -> None:
        self.published: dict[str, Counter[str]] = {}
        self.ports: dict[str, int | None] = {}
        self.events: Counter[str] = Counter()
        self.came: dict[Place, float] = {}
        self.went: dict[Place, float] = {}
        self.changed = asyncio.Event()
        self._slices: dict[str, set[str]] = {}

    def take(self, event: Event) -> None:
        """One event of the watch."""
        now = time.monotonic()
        meta = event.object.metadata
        service = meta.service
        after: set[str] = set()
        if event.type != "DELETED":
            after = set(event.object.ready())
            self.ports[service] = event.object.ports[0].port if event.object.ports else None
        before = self._slices.pop(meta.name, set())
        if event.type != "DELETED":
            self._slices[meta.name] = after
        addresses = self.published.setdefault(service, Counter())
        for each in after - before:
            if not addresses[each]:
                self.came.setdefault((service, each), now)
            addresses[each] += 1
        for each in before - after:
            addresses[each] -= 1
            if addresses[each] <= 0:
                del addresses[each]
                self.went[service, each] = now
        self.events[service] += 1
        self.changed.set()

    def wrong(self, wanted: dict[str, set[str]]) -> list[str]:
        """The Services that publish anything else."""
        return [
            service
            for service, addresses in wanted.items()
            if self.published.get(service, Counter()).keys() != addresses
        ]
