"""One group of endpoints that serve different ports becomes several, since a slice has one set of ports.

Only copies of Services whose own slices differ need this; every other group comes back as it is. What is
published stays in the slices that have its ports already.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hub.model import EndpointGroup, Port, PublishedSlice, Slice

Ports = tuple[Port, ...]


def split(group: EndpointGroup) -> tuple[EndpointGroup, ...]:
    """The group by port sets, those with endpoints first; the group's own ``ports`` first among them."""
    if not group.port_sets:
        return (group,)
    others = sorted(set(group.port_sets.values()) - {group.ports}, key=msgspec.json.encode)
    parts = [_part(group, ports, (group.ports, *others)) for ports in (group.ports, *others)]
    parts = [part for part in parts if part.endpoints or part.slices]
    return tuple(sorted(parts, key=lambda part: not part.endpoints)) or (group,)


def _part(group: EndpointGroup, ports: Ports, known: Sequence[Ports]) -> EndpointGroup:
    """What serves these ports; slices whose ports nobody serves any more go to the first set."""
    slices = tuple(each for each in group.slices if _home(each, known) == ports)
    endpoints = {
        address: each for address, each in group.endpoints.items() if group.port_sets.get(address, group.ports) == ports
    }
    before = {
        address: endpoint
        for each in reversed(slices)
        for address, endpoint in zip(each.addresses, each.endpoints, strict=True)
    }
    return msgspec.structs.replace(
        group,
        endpoints=endpoints,
        ports=ports,
        slices=slices,
        removed={address: each for address, each in before.items() if address not in endpoints},
        changed={
            address: (each, endpoints[address])
            for address, each in before.items()
            if address in endpoints and endpoints[address] != each
        },
        added=tuple(sorted(endpoints.keys() - before.keys())),
        drop=group.drop or not endpoints,
        port_sets={},
    )


def _home(published: PublishedSlice, known: Sequence[Ports]) -> Ports:
    return published.slice.ports if published.slice.ports in known else known[0]


def exchange(one: Slice, other: Slice) -> bool:
    """Whether an address may be on its way from one slice to the other: they are of one group, and have other ports."""
    return one.cluster == other.cluster and one.address_type == other.address_type and one.ports != other.ports


def gaining_first(updates: Sequence[Slice], parts: Sequence[EndpointGroup]) -> list[Slice]:
    """Updates in an order in which an address that moves between two slices is never in neither."""
    published = {address for part in parts for each in part.slices for address in each.addresses}
    moving = {address for part in parts for address in part.added if address in published}
    return sorted(updates, key=lambda each: not any(endpoint.address in moving for endpoint in each.endpoints))
