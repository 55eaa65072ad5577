"""Records what the hub cluster publishes, and when addresses appeared and disappeared, from a watch of the slices."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from benchmarks.slices import Event

Place = tuple[str, str]
"""A Service and an address."""


class Ledger:
    """The published addresses, and the times of their changes.

    Attributes:
        published: Service -> its ready addresses, with the number of slices that contain each.
        ports: Service -> the port in its last changed slice.
        events: Service -> number of events of its slices.
        came, went: (Service, address) -> time at which the address first appeared, and last disappeared; monotonic.
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

    def apply(self, event: Event) -> None:
        """Apply an event of the watch."""
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
        for ip in after - before:
            if not addresses[ip]:
                self.came.setdefault((service, ip), now)
            addresses[ip] += 1
        for ip in before - after:
            addresses[ip] -= 1
            if addresses[ip] <= 0:
                del addresses[ip]
                self.went[service, ip] = now
        self.events[service] += 1
        self.changed.set()

    def wrong(self, wanted: dict[str, set[str]]) -> list[str]:
        """Return the Services that do not publish exactly the wanted addresses."""
        return [
            service
            for service, addresses in wanted.items()
            if self.published.get(service, Counter()).keys() != addresses
        ]
