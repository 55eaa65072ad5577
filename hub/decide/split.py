"""Split a group of endpoints with different ports into several groups, because a slice has one set of ports.

Only copies of Services whose own slices have different ports need this; all other groups are returned unchanged.
Published endpoints stay in the slices that already have their ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hub.decide.endpoints import EndpointGroup, PublishedSlice, by_address
from hub.model import Endpoint, Port, Slice

MAX_ENDPOINTS: Final = 1000
"""Maximum number of endpoints in one slice that the API accepts."""

Ports = tuple[Port, ...]


def split(group: EndpointGroup) -> tuple[EndpointGroup, ...]:
    """Split a group by port sets.

    Returns:
        The parts with endpoints before those without; among each, the part with the group's own ``ports`` comes first.
    """
    if not group.port_sets:
        return (group,)
    others = sorted(set(group.port_sets.values()) - {group.ports}, key=msgspec.json.encode)
    slices: dict[Ports, list[PublishedSlice]] = {ports: [] for ports in (group.ports, *others)}
    endpoints: dict[Ports, dict[str, Endpoint]] = {ports: {} for ports in slices}
    for published in group.slices:  # slices whose ports no endpoint serves any more go to the first set
        slices.get(published.slice.ports, slices[group.ports]).append(published)
    for address, endpoint in group.endpoints.items():
        endpoints[group.port_sets.get(address, group.ports)][address] = endpoint
    parts = [_part(group, ports, tuple(slices[ports]), endpoints[ports]) for ports in slices]
    parts = [part for part in parts if part.endpoints or part.slices]
    return tuple(sorted(parts, key=lambda part: not part.endpoints)) or (group,)


def _part(
    group: EndpointGroup, ports: Ports, slices: tuple[PublishedSlice, ...], endpoints: Mapping[str, Endpoint]
) -> EndpointGroup:
    """The part of a group that serves these ports."""
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


def may_exchange(one: Slice, other: Slice) -> bool:
    """Whether an address may move between two slices: they belong to one group and have different ports."""
    return one.cluster == other.cluster and one.address_type == other.address_type and one.ports != other.ports


def gaining_first(updates: Sequence[Slice], parts: Sequence[EndpointGroup]) -> list[Slice]:
    """Order updates so that an address that moves between two slices is in at least one of them at any time.

    If slices wait for each other in a circle, one of them is written first and keeps the endpoints that leave it, as
    far as they fit into a slice. The next pass removes them.
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
    """The effect of an update on the addresses of one slice.

    Attributes:
        update: the updated slice.
        gains: address -> endpoint, for endpoints that the update adds.
        losses: addresses that the update removes, in the slice's order.
        other_ports: whether the update changes the ports, which the leaving endpoints do not serve.
    """

    update: Slice
    gains: Mapping[str, Endpoint]
    losses: tuple[str, ...]
    other_ports: bool

    def keeping(self, awaited: Mapping[str, Endpoint]) -> Slice:
        """The update, which keeps endpoints that it would remove before another slice has added them."""
        kept = [awaited[address] for address in self.losses if address in awaited]
        if not kept:
            return self.update
        endpoints = (*self.update.endpoints, *kept)
        return msgspec.structs.replace(self.update, endpoints=endpoints[:MAX_ENDPOINTS])


def _shift(published: PublishedSlice, update: Slice) -> _Shift:
    before = dict.fromkeys(published.addresses)
    now = {endpoint.address: endpoint for endpoint in update.endpoints}
    return _Shift(
        update,
        {address: endpoint for address, endpoint in now.items() if address not in before},
        tuple(address for address in before if address not in now),
        published.slice.ports != update.ports,
    )
