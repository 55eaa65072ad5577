"""From the EndpointSlices of one Service to a snapshot: pure, but for a memory that only makes it cheap.

All slices count, of every family and whoever wrote them: consumers of the source see them all. What the
API leaves open is read as consumers read it: an endpoint that says nothing about being ready is ready, one
that says nothing about serving serves as far as it is ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hub.plugin import Endpoint, Port, Slice, Snapshot, SnapshotEndpoint

FAMILIES: Final = ("IPv4", "IPv6")

Ports = tuple[Port, ...]
Endpoints = dict[Endpoint, SnapshotEndpoint]
"""Those of one slice, by what they were made of, in its order."""


class Copier:
    """Makes snapshots of one Service's slices.

    A slice that is the same object as before is not read again, and an endpoint that is equal to one of the same
    slice before stays the same object: further on, that is how the hub knows that nothing is to be done for it.
    """

    def __init__(self) -> None:
        self._read: dict[str, tuple[Slice, Endpoints]] = {}

    def snapshot(self, slices: Sequence[Slice]) -> Snapshot:
        """Everything the Service publishes.

        Args:
            slices: all of them; sorted by name, so that the same slices give the same snapshot.
        """
        problems = tuple(
            f"slice {each.name} holds {each.address_type} addresses, which cannot be copied"
            for each in slices
            if each.address_type not in FAMILIES and each.endpoints
        )
        usable = [each for each in slices if each.address_type in FAMILIES]
        common = _common(usable)
        self._read = {each.name: (each, self._endpoints(each)) for each in usable}
        found: dict[str, SnapshotEndpoint] = {}
        for each, endpoints in self._read.values():
            differs = _sorted(each.ports) != common
            for endpoint in endpoints.values():
                one = replace(endpoint, ports=_sorted(each.ports)) if differs else endpoint
                known = found.get(one.name)
                found[one.name] = one if known is None else _united(known, one, common)
        return Snapshot(tuple(found.values()), ports=common, problems=problems, copied=True)

    def _endpoints(self, each: Slice) -> Endpoints:
        known = self._read.get(each.name)
        if known is not None and known[0] is each:
            return known[1]
        before: Endpoints = known[1] if known is not None else {}
        return {
            endpoint: before[endpoint] if endpoint in before else _made(endpoint)
            for endpoint in each.endpoints
            if endpoint.addresses
        }


def _made(endpoint: Endpoint) -> SnapshotEndpoint:
    """One endpoint, named by its address: the first one, as consumers connect to it."""
    conditions = endpoint.conditions
    ready = conditions.ready is not False
    return SnapshotEndpoint(
        endpoint.addresses[0],
        endpoint.addresses[:1],
        ready=ready,
        serving=ready if conditions.serving is None else conditions.serving,
        terminating=conditions.terminating is True,
        zone=endpoint.zone or "",
        hostname=endpoint.hostname or "",
        node_name=endpoint.node_name or "",
        target_ref=endpoint.target_ref,
        hints=endpoint.hints,
    )


def _common(slices: Sequence[Slice]) -> Ports:
    """The ports that most endpoints serve; of two, always the same one. () where there is no endpoint."""
    count: Counter[Ports] = Counter()
    for each in slices:
        if each.endpoints:
            count[_sorted(each.ports)] += len(each.endpoints)
    return min(count, key=lambda ports: (-count[ports], [_order(port) for port in ports]), default=())


def _united(one: SnapshotEndpoint, other: SnapshotEndpoint, common: Ports) -> SnapshotEndpoint:
    """An address in two slices: the ready one counts, with the ports of both; of one name the first counts."""
    first, second = (other, one) if other.ready and not one.ready else (one, other)
    mine = common if first.ports is None else first.ports
    theirs = common if second.ports is None else second.ports
    names = {(port.name, port.protocol) for port in mine}
    ports = _sorted((*mine, *(port for port in theirs if (port.name, port.protocol) not in names)))
    return replace(first, ports=None if ports == common else ports)


def _sorted(ports: Ports) -> Ports:
    return ports if len(ports) < 2 else tuple(sorted(ports, key=_order))


def _order(port: Port) -> tuple[str, str, int, str]:
    return port.name, port.protocol, port.port or 0, port.app_protocol or ""
