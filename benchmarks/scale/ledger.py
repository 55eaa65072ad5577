"""What the hub cluster publishes, and when each address came and went: kept from a watch of the slices."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import msgspec

Place = tuple[str, str]
"""A Service and an address."""


class _Conditions(msgspec.Struct, frozen=True, gc=False):
    ready: bool | None = None


_READY = _Conditions()


class _Endpoint(msgspec.Struct, gc=False):
    addresses: list[str]
    conditions: _Conditions = _READY


class _Port(msgspec.Struct, gc=False):
    port: int | None = None


class _Meta(msgspec.Struct, gc=False):
    name: str
    labels: dict[str, str] = {}


class _Slice(msgspec.Struct):
    metadata: _Meta
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _Event(msgspec.Struct):
    type: str
    object: _Slice


_decode = msgspec.json.Decoder(_Event).decode


class Ledger:
    """Takes the lines of a watch.

    Attributes:
        published: Service -> its ready addresses, with how many slices have each.
        ports: Service -> the port of the slice that came last.
        events: Service -> how many times a slice of it was written.
        came, went: when an address was first seen on a Service, and when it was last seen to go, by time.monotonic().
        changed: set with every line.
    """

    def __init__(self) -> None:
        self.published: dict[str, Counter[str]] = {}
        self.ports: dict[str, int | None] = {}
        self.events: Counter[str] = Counter()
        self.came: dict[Place, float] = {}
        self.went: dict[Place, float] = {}
        self.changed = asyncio.Event()
        self._slices: dict[str, set[str]] = {}

    def take(self, line: bytes) -> None:
        """One line of the watch."""
        event, now = _decode(line), time.monotonic()
        meta = event.object.metadata
        service = meta.labels.get("kubernetes.io/service-name", "")
        after: set[str] = set()
        if event.type != "DELETED":
            after = {
                one
                for each in event.object.endpoints or ()
                if each.conditions.ready is not False
                for one in each.addresses
            }
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
