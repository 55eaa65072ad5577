"""Pure functions that tell who has a reserved address, from the reserved blocks and from the servers' NICs.

Both sources have to agree. A NIC that has the address counts more than the block's own note of its consumer, and a
contradiction is Unknown, never Free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple, cast

from hub.plugin.addresses import (
    AddressState,
    Changing,
    Elsewhere,
    Free,
    Gone,
    Held,
    InstanceState,
    NotReserved,
    Present,
    Unknown,
    Unsupported,
)
from hub_provider_ionos.config import as_uuid
from hub_provider_ionos.inventory import RUNNING, Fleet, Malformed, Nic, Server

STOPPED: Final = frozenset(("SHUTDOWN", "SHUTOFF", "CRASHED", "SUSPENDED", "PAUSED"))
"""States of a virtual machine that does not run. BLOCKED is not among them: it waits for input or output."""

Fleets = Mapping[str, Fleet]
"""The servers of each data center of the account, by the data center's UUID."""


class Consumer(NamedTuple):
    """What a block says about the holder of one address; ids are "" if the API does not give them."""

    server: str
    datacenter: str
    managed: bool
    """Whether it is a node of managed Kubernetes."""
    what: str
    """The holder in words."""


class Reserved(NamedTuple):
    """A reserved address.

    Attributes:
        location: The block's location, as Nodes are labelled with it: ``de-fra``.
        consumers: Its holders; None if the block does not list them.
    """

    location: str
    consumers: tuple[Consumer, ...] | None


class Place(NamedTuple):
    """A NIC, the server and the data center that it belongs to."""

    datacenter: str
    server: Server
    nic: Nic


def region_of(location: str) -> str:
    """Returns a location in the form of a label's value: ``de-fra`` for ``de/fra``."""
    return location.replace("/", "-")


def block(identity: str, item: Mapping[str, object]) -> dict[str, Reserved]:
    """Parses a reserved block of a list that was requested at depth 1: address -> what the block says about it.

    Raises:
        Malformed: The block cannot be read.
    """
    where = f"reserved block {identity}"
    properties = _mapping(item.get("properties"), f"{where}: properties")
    location, ips = properties.get("location"), properties.get("ips")
    if not isinstance(location, str) or not isinstance(ips, list):
        raise Malformed(f"{where}: location or ips is missing")
    consumers = properties.get("ipConsumers")
    if consumers is not None and not isinstance(consumers, list):
        raise Malformed(f"{where}: ipConsumers is not a list")
    entries = None if consumers is None else [_mapping(entry, where) for entry in cast("list[object]", consumers)]
    return {
        str(ip): Reserved(
            region_of(location),
            None if entries is None else tuple(_consumer(entry) for entry in entries if entry.get("ip") == ip),
        )
        for ip in cast("list[object]", ips)
    }


def agree(address: str, reserved: Reserved | None, fleets: Fleets) -> bool:
    """Whether older lists of servers confirm what a new list of blocks says, so that no newer list is needed."""
    if reserved is None:
        return True
    if reserved.consumers is None:
        return False
    seen = places_of(address, fleets)
    named = {consumer.server for consumer in reserved.consumers if _is_ours(consumer, fleets)}
    return {place.server.id for place in seen} == named and not any(place.nic.busy for place in seen)


def address_state(address: str, reserved: Reserved | None, fleets: Fleets) -> AddressState:
    """Returns the state of an address."""
    if reserved is None:
        return NotReserved("no reserved block of the account has it")
    consumers = reserved.consumers or ()
    if managed := [consumer for consumer in consumers if consumer.managed]:
        return Elsewhere(managed[0].what)
    for datacenter, fleet in fleets.items():
        for lan, ip in fleet.failover:
            if ip == address:
                return Elsewhere(f"failover group of LAN {lan} of data center {datacenter}")
    seen = places_of(address, fleets)
    if not seen:
        return _unseen(reserved, fleets)
    server, nic = seen[0].server, seen[0].nic
    if len(seen) > 1:
        return Unknown(f"several NICs have it, of servers {' and '.join(sorted({place.server.id for place in seen}))}")
    if others := [consumer for consumer in consumers if consumer.server != server.id]:
        return Unknown(f"server {server.id} has it, but the reserved block names {others[0].what}")
    if not nic.id:
        return Unknown(f"the API gives no id for the NIC of server {server.id} that has it")
    return Changing() if nic.busy else Held(server.id, nic.id, reserved.location)


def _unseen(reserved: Reserved, fleets: Fleets) -> AddressState:
    """Returns the state of an address that no known NIC has."""
    for consumer in reserved.consumers or ():
        if not _is_ours(consumer, fleets):
            return Elsewhere(consumer.what)
        return Unknown(f"the reserved block names {consumer.what}, but its NICs do not have it")
    problems = [server for fleet in fleets.values() for server in fleet.servers.values() if server.problem]
    if reserved.consumers is None and problems:
        return Unknown(f"server {problems[0].id} may have it: {problems[0].problem}")
    return Free(reserved.location)


def instance_state(instance: str, fleets: Fleets, regions: Mapping[str, str]) -> InstanceState:
    """Returns the state of a server.

    Args:
        instance: The server's UUID.
        fleets: All servers.
        regions: Data center -> region.
    """
    found = find(instance, fleets)
    if found is None:
        return Gone("no data center of the account has this server")
    datacenter, server = found
    if server.problem or server.vm_state not in (RUNNING, *STOPPED):
        return Unknown(server.problem or f"its state is {server.vm_state[:40] or 'not in the answer'}")
    nic = primary(server, fleets[datacenter])
    if nic is None:
        return Unsupported("it has no NIC on a public LAN")
    why = why_no_room(nic)
    return Present(server.vm_state == RUNNING, regions[datacenter], server.zone, room=not why, why=why)


def find(instance: str, fleets: Fleets) -> tuple[str, Server] | None:
    """Returns a server and its data center; None if no data center has it."""
    for datacenter, fleet in fleets.items():
        if instance in fleet.servers:
            return datacenter, fleet.servers[instance]
    return None


def primary(server: Server, fleet: Fleet) -> Nic | None:
    """Returns the NIC that reserved addresses are added to, the first one on a public LAN; None without one."""
    return next((nic for nic in server.nics if nic.lan in fleet.public), None)


def why_no_room(nic: Nic) -> str:
    """Returns why a NIC can take no reserved address now; "" if it can."""
    own = ipv4(nic)
    if not own:
        return "its NIC has no address of its own, so that an added one could not be removed again"
    return f"its NIC has the addresses {', '.join(own[:3])} already" if len(own) > 1 else ""


def ipv4(nic: Nic) -> list[str]:
    """Returns the IPv4 addresses of a NIC."""
    return [ip for ip in nic.ips if ip_address(ip).version == 4]


def places_of(address: str, fleets: Fleets) -> Sequence[Place]:
    """Returns the NICs that have an address."""
    return [
        Place(datacenter, server, nic)
        for datacenter, fleet in fleets.items()
        for server in fleet.servers.values()
        for nic in server.nics
        if address in nic.ips
    ]


def _is_ours(consumer: Consumer, fleets: Fleets) -> bool:
    """Whether the account's lists of servers should have the consumer."""
    if not consumer.server:
        return False
    return consumer.datacenter in fleets or not consumer.datacenter or find(consumer.server, fleets) is not None


def _consumer(entry: Mapping[str, object]) -> Consumer:
    server, datacenter, nic = (as_uuid(entry.get(key)) for key in ("serverId", "datacenterId", "nicId"))
    pool = as_uuid(entry.get("k8sNodePoolUuid")) or as_uuid(entry.get("k8sClusterUuid"))
    what = f"server {server}" if server else f"NIC {nic}" if nic else "a resource without server"
    what = f"node pool {pool} of managed Kubernetes" if pool else what
    return Consumer(server, datacenter, bool(pool), f"{what} of data center {datacenter}" if datacenter else what)


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise Malformed(f"{where}: not an object")
    return cast("Mapping[str, object]", value)
