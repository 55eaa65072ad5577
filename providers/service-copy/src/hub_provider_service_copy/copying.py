"""Turns the EndpointSlices of one Service into a snapshot. The result is pure; a cache only saves work.

All slices count, of both families and whichever controller wrote them, because consumers of the source see them all.
Unset conditions mean what they mean to consumers: an endpoint without ``ready`` is ready, and ``serving`` defaults to
``ready``.
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
"""The endpoints of one slice, in its order: the endpoint of the API -> the endpoint of the snapshot."""


class Copier:
    """Makes snapshots of one Service's slices, and remembers the previous one.

    A slice that is the same object as in the previous call is not read again, and an endpoint equal to a previous one
    of the same slice stays the same object. The hub skips endpoints that are the same object as before.
    """

    def __init__(self) -> None:
        self._read: dict[str, tuple[Slice, Endpoints]] = {}

    def snapshot(self, slices: Sequence[Slice]) -> Snapshot:
        """Returns the endpoints of all slices, with the ports that most of them serve as the snapshot's ports.

        Args:
            slices: All slices of the Service, sorted by name, so that the same slices give the same snapshot.
        """
        problems = tuple(
            f"slice {slice_.name} holds {slice_.address_type} addresses, which cannot be copied"
            for slice_ in slices
            if slice_.address_type not in FAMILIES and slice_.endpoints
        )
        usable = [slice_ for slice_ in slices if slice_.address_type in FAMILIES]
        common = _common(usable)
        self._read = {slice_.name: (slice_, self._endpoints(slice_)) for slice_ in usable}
        found: dict[str, SnapshotEndpoint] = {}
        for slice_, endpoints in self._read.values():
            differs = _sorted(slice_.ports) != common
            for endpoint in endpoints.values():
                new = replace(endpoint, ports=_sorted(slice_.ports)) if differs else endpoint
                known = found.get(new.name)
                found[new.name] = new if known is None else _united(known, new, common)
        return Snapshot(tuple(found.values()), ports=common, problems=problems, copied=True)

    def _endpoints(self, slice_: Slice) -> Endpoints:
        known = self._read.get(slice_.name)
        if known is not None and known[0] is slice_:
            return known[1]
        before: Endpoints = known[1] if known is not None else {}
        return {
            endpoint: before[endpoint] if endpoint in before else _made(endpoint)
            for endpoint in slice_.endpoints
            if endpoint.addresses
        }


def _made(endpoint: Endpoint) -> SnapshotEndpoint:
    """Converts an endpoint. Its first address, the one that consumers use, is its only address and its name."""
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
    """Returns the ports that most endpoints serve, sorted; () without endpoints. A tie always has the same winner."""
    count: Counter[Ports] = Counter()
    for slice_ in slices:
        if slice_.endpoints:
            count[_sorted(slice_.ports)] += len(slice_.endpoints)
    return min(count, key=lambda ports: (-count[ports], [_order(port) for port in ports]), default=())


def _united(one: SnapshotEndpoint, other: SnapshotEndpoint, common: Ports) -> SnapshotEndpoint:
    """Merges two endpoints with the same address, from two slices.

    The ready one wins, ``one`` if both are or neither is. It gets the ports of both; of two ports with the same name
    and protocol, the winner's.
    """
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
