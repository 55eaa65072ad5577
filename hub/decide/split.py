"""One group of endpoints that serve different ports becomes several, since a slice has one set of ports.

Only copies of Services whose own slices differ need this; every other group comes back as it is. What is
published stays in the slices that have its ports already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hub.decide.endpoints import EndpointGroup, PublishedSlice, by_address
from hub.model import Endpoint, Port, Slice

MOST: Final = 1000
"""Endpoints in one slice that the API takes."""

Ports = tuple[Port, ...]


def split(group: EndpointGroup) -> tuple[EndpointGroup, ...]:
    """The group by port sets, those with endpoints first; the group's own ``ports`` first among them."""
    if not group.port_sets:
        return (group,)
    others = sorted(set(group.port_sets.values()) - {group.ports}, key=msgspec.json.encode)
    slices: dict[Ports, list[PublishedSlice]] = {ports: [] for ports in (group.ports, *others)}
    endpoints: dict[Ports, dict[str, Endpoint]] = {ports: {} for ports in slices}
    for published in group.slices:  # those whose ports nobody serves any more go to the first set
        slices.get(published.slice.ports, slices[group.ports]).append(published)
    for address, endpoint in group.endpoints.items():
        endpoints[group.port_sets.get(address, group.ports)][address] = endpoint
    parts = [_part(group, ports, tuple(slices[ports]), endpoints[ports]) for ports in slices]
    parts = [part for part in parts if part.endpoints or part.slices]
    return tuple(sorted(parts, key=lambda part: not part.endpoints)) or (group,)


def _part(
    group: EndpointGroup, ports: Ports, slices: tuple[PublishedSlice, ...], endpoints: Mapping[str, Endpoint]
) -> EndpointGroup:
    """What serves these ports."""
    before = by_address(slices)
    return msgspec.structs.replace(
        group,
        endpoints=endpoints,
        ports=ports,
        slices=slices,
        removed={address: endpoint for address, endpoint in before.items() if address not in endpoints},
        changed={
            address: (endpoint, endpoints[address])
            for address, endpoint in before.items()
            if address in endpoints and endpoints[address] != endpoint
        },
        added=tuple(sorted(endpoints.keys() - before.keys())),
        drop=group.drop or not endpoints,
        port_sets={},
    )


def exchange(one: Slice, other: Slice) -> bool:
    """Whether an address may be on its way from one slice to the other: they are of one group, and have other ports."""
    return one.cluster == other.cluster and one.address_type == other.address_type and one.ports != other.ports


def gaining_first(updates: Sequence[Slice], parts: Sequence[EndpointGroup]) -> list[Slice]:
    """Updates in an order in which an address that moves between two slices is never in neither.

    Where slices wait for each other in a circle, one of them keeps what leaves it, for the next pass to take out: as
    many as fit into a slice.
    """
    before = {slice_.slice.name: slice_ for part in parts for slice_ in part.slices}
    left = {update.name: _shift(before[update.name], update) for update in updates}
    awaited = {address: endpoint for shift in left.values() for address, endpoint in shift.gains.items()}
    ordered: list[Slice] = []
    while left:
        free = [name for name, shift in left.items() if awaited.keys().isdisjoint(shift.losses)]
        for name in free or [min(left, key=lambda name: left[name].other_ports)]:
            shift = left.pop(name)
            ordered.append(shift.keeping(awaited))
            for address in shift.gains:
                del awaited[address]
    return ordered


class _Shift(NamedTuple):
    """What an update does to one slice.

    Attributes:
        update: the slice as it is to be.
        gains: endpoints it did not hold, by address.
        losses: addresses it holds no more, in its order.
        other_ports: it gets other ports: what leaves it does not serve these.
    """

    update: Slice
    gains: Mapping[str, Endpoint]
    losses: tuple[str, ...]
    other_ports: bool

    def keeping(self, awaited: Mapping[str, Endpoint]) -> Slice:
        """The update with what it loses and no other slice holds yet."""
        kept = [awaited[address] for address in self.losses if address in awaited]
        if not kept:
            return self.update
        endpoints = (*self.update.endpoints, *kept)
        return msgspec.structs.replace(self.update, endpoints=endpoints[:MOST])


def _shift(published: PublishedSlice, update: Slice) -> _Shift:
    before = dict.fromkeys(published.addresses)
    now = {endpoint.address: endpoint for endpoint in update.endpoints}
    return _Shift(
        update,
        {address: endpoint for address, endpoint in now.items() if address not in before},
        tuple(address for address in before if address not in now),
        published.slice.ports != update.ports,
    )
