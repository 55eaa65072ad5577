"""Pure functions that find a node's server and the node's addresses among the server's. They never guess.

All of the server's own addresses are candidates, in order. For each family, the hub publishes the first one inside the
cluster's ``allowedCIDRs``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final, Literal
from uuid import UUID

from hub.plugin import Absent, Found, Node, Resolution, Unknown
from hub_provider_ionos.config import Family, as_uuid
from hub_provider_ionos.inventory import RUNNING, Fleet, PoolNode, Server

_PROVIDER_ID: Final = re.compile(r"ionos:/{2,3}([0-9A-Fa-f-]{36})")

MAX_PER_FAMILY: Final = 50
"""The most candidates of one family: the hub accepts 100 addresses per node, and a NIC has at most 50 of a family."""

MISSING: Final = "missing"
"""The lists have no server or node with this identity."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Selects and orders the addresses of a node.

    Attributes:
        lans: LANs whose addresses count, in order of preference.
        families: IP families to take, in order of preference.
        networks: Only addresses inside one of them count; empty = all.
    """

    lans: tuple[int, ...]
    families: tuple[Family, ...] = ("IPv4", "IPv6")
    networks: tuple[IPv4Network | IPv6Network, ...] = ()


def provider_uuid(node: Node) -> str:
    """Returns the UUID of a provider ID ``ionos://UUID`` (or ``ionos:///UUID``); "" for any other provider ID."""
    match = _PROVIDER_ID.fullmatch(node.provider_id)
    return as_uuid(match[1]) if match else ""


def system_uuids(node: Node) -> tuple[str, ...]:
    """Returns the machine's UUID in both spellings; () without one.

    Older firmware writes the first three groups with their bytes in reverse order.
    """
    plain = as_uuid(node.system_uuid)
    return (plain, str(UUID(bytes_le=UUID(plain).bytes))) if plain else ()


def servers_of(node: Node, fleets: Sequence[Fleet]) -> list[Server]:
    """Returns every server that may be the node's; more than one is a contradiction.

    The node's name counts only if no server has one of its UUIDs.
    """
    identities = dict.fromkeys((provider_uuid(node), *system_uuids(node)))
    found = [fleet.servers[uuid] for uuid in identities for fleet in fleets if uuid in fleet.servers]
    if not found and node.name:
        found = [server for fleet in fleets for server in fleet.by_name.get(node.name, ())]
    return found


def resolve(node: Node, fleets: Sequence[Fleet], rules: Rules) -> Resolution | Literal["missing"]:
    """Resolves a node from the lists of servers.

    ``Absent`` and :data:`MISSING` are preliminary: the caller needs a second list that agrees.
    """
    found = servers_of(node, fleets)
    if not found:
        return MISSING
    if len(found) > 1:
        return Unknown(f"ambiguous: servers {_listed(server.id for server in found)} match")
    server = found[0]
    if server.vm_state not in ("", RUNNING):
        return Absent(f"server {server.id} is {server.vm_state}")
    if server.problem:
        return Unknown(f"server {server.id}: {server.problem}")
    fleet = next(fleet for fleet in fleets if server.id in fleet.servers)
    return _addresses(node, server, fleet, rules)


def resolve_pool_node(node: Node, pool_nodes: Sequence[PoolNode], rules: Rules) -> Resolution | Literal["missing"]:
    """Resolves a node from the list of a managed Kubernetes cluster's nodes, like :func:`resolve` but without LANs."""
    identity = provider_uuid(node)
    found = [pool_node for pool_node in pool_nodes if identity and pool_node.id == identity]
    found = found or [pool_node for pool_node in pool_nodes if node.name and pool_node.name == node.name]
    if not found:
        return MISSING
    if len(found) > 1:
        return Unknown(f"ambiguous: nodes {_listed(pool_node.id for pool_node in found)} match")
    if found[0].state == "TERMINATING":
        return Absent(f"node {found[0].id} is TERMINATING")
    candidates = _candidates(found[0].ips, _reported(node), rules)
    taken = tuple(ip for family in rules.families for ip in candidates[family][:MAX_PER_FAMILY])
    return Found(taken) if taken else Absent(f"node {found[0].id} has no address that counts")


def _addresses(node: Node, server: Server, fleet: Fleet, rules: Rules) -> Resolution:
    own = _reported(node)
    taken: dict[Family, list[str]] = {family: [] for family in rules.families}
    for lan in rules.lans:
        ips = [ip for nic in server.nics if nic.lan == lan for ip in nic.ips if (lan, ip) not in fleet.failover]
        for family, candidates in _candidates(ips, own, rules).items():
            for ip in candidates:
                holders = fleet.holders.get((lan, ip))
                if holders is None:
                    taken[family].append(ip)
                elif not taken[family]:
                    return Unknown(f"ambiguous: servers {_listed(holders)} have the same address {ip} in LAN {lan}")
    addresses = tuple(ip for ips in taken.values() for ip in list(dict.fromkeys(ips))[:MAX_PER_FAMILY])
    if addresses:
        return Found(addresses, server.zone)
    if server.busy:
        return Unknown(f"server {server.id} is being changed and has no address in LAN {_lans(rules)} yet")
    return Absent(f"server {server.id} has no address of its own in LAN {_lans(rules)}")


def _candidates(ips: Iterable[str], own: Collection[str], rules: Rules) -> dict[Family, list[str]]:
    """Returns the addresses that count, by family: those that the Node reports first, otherwise in the given order."""
    found: dict[Family, list[str]] = {family: [] for family in rules.families}
    for ip in ips:
        family = _family(ip)
        if family in found and _inside(ip, rules):
            found[family].append(ip)
    return {family: sorted(listed, key=lambda ip: ip not in own) for family, listed in found.items()}


def _reported(node: Node) -> frozenset[str]:
    return frozenset(_normal(entry.address) for entry in node.addresses if entry.type in ("InternalIP", "ExternalIP"))


def _normal(text: str) -> str:
    """Spells an address as the lists do: an IPv6 address can be written in many ways. Other text stays unchanged."""
    try:
        return str(ip_address(text))
    except ValueError:
        return text


def _inside(ip: str, rules: Rules) -> bool:
    return not rules.networks or any(ip_address(ip) in network for network in rules.networks)


def _family(ip: str) -> Family:
    return "IPv6" if ":" in ip else "IPv4"


def _lans(rules: Rules) -> str:
    return " or ".join(map(str, rules.lans))


def _listed(ids: Iterable[str]) -> str:
    return " and ".join(sorted(ids)[:3])
