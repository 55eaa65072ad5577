"""What a Service's load balancer shall look like, and how that differs from what the cloud has. Order never counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from hub.plugin.clouds import Balancer, BalancerNode, BalancerPort
from hub_provider_ionos.instances import PROVIDER_ID, own_addresses
from hub_provider_ionos.network import Network, Rule

ALGORITHM: Final = "ROUND_ROBIN"
INTERVAL: Final = 2_000
TIMES: Final = {
    "client-timeout": ("clientTimeout", 50_000),
    "connect-timeout": ("connectTimeout", 5_000),
    "target-timeout": ("targetTimeout", 50_000),
    "retries": ("retries", 3),
}
"""Setting -> field of a rule's ``healthCheck``, and the cloud's default; times are milliseconds."""
MILLISECONDS: Final = ("check-interval", "client-timeout", "connect-timeout", "target-timeout")


class Place(NamedTuple):
    """Where a load balancer is: its data center and its LANs."""

    datacenter: str
    listener: int
    target: int


class Targets(NamedTuple):
    """The addresses that take the traffic.

    Attributes:
        ips: the nodes' addresses on the target LAN, sorted.
        missing: names of nodes that have none, although their servers are known.
        unknown: nodes whose servers are in no list, or cannot be read: whatever target they have stays.
    """

    ips: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unknown: tuple[BalancerNode, ...] = ()


def targets(want: Balancer, place: Place, seen: Network) -> Targets:
    """The targets that a balancer shall have."""
    ips: set[str] = set()
    missing: list[str] = []
    unknown: list[BalancerNode] = []
    fleet = seen.fleets[place.datacenter]
    for node in want.nodes:
        found = PROVIDER_ID.fullmatch(node.provider_id)
        id_ = found["id"].lower() if found else ""
        server = fleet.servers.get(id_)
        if server is not None and not server.problem:
            own = [ip for lan, ip in own_addresses(server, fleet) if lan == place.target and ":" not in ip]
            ips.update(own[:1])
            missing += [] if own else [node.name]
        elif server is None and any(id_ in other.servers for other in seen.fleets.values()):
            missing.append(node.name)
        else:
            unknown.append(node)
    return Targets(tuple(sorted(ips)), tuple(missing), tuple(unknown))


def kept(found: Targets, rule: Rule | None) -> tuple[str, ...]:
    """The addresses that a rule shall have: of an unknown node, what is there stays."""
    has = {str(each.get("ip")) for each in (rule.properties.targets or ())} if rule is not None else set[str]()
    if all(node.addresses for node in found.unknown):
        has &= {address.address for node in found.unknown for address in node.addresses}
    return tuple(sorted({*found.ips, *(has if found.unknown else ())}))


def algorithm(want: Balancer) -> str:
    """How connections are spread."""
    return "SOURCE_IP" if want.client_affinity else str(want.settings.get("algorithm") or ALGORITHM)


def rule(want: Balancer, port: BalancerPort, address: str, ips: Iterable[str]) -> dict[str, Any]:
    """All fields of the forwarding rule of a port."""
    settings = want.settings
    check = {"check": True, "checkInterval": settings.get("check-interval", INTERVAL)}
    proxy = settings.get("proxy-protocol", "none")
    return {
        "name": f"tcp-{port.port}",
        "algorithm": algorithm(want),
        "protocol": "TCP",
        "listenerIp": address,
        "listenerPort": port.port,
        "healthCheck": {field: settings.get(name, default) for name, (field, default) in TIMES.items()},
        "targets": [
            {"ip": ip, "port": port.node_port, "weight": 1, "proxyProtocol": proxy, "healthCheck": check} for ip in ips
        ],
    }


def changes(has: Rule, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a rule that differ. The targets are changed as a whole, and never to none."""
    fields = has.properties
    same = {
        "name": fields.name == wanted["name"],
        "algorithm": fields.algorithm == wanted["algorithm"],
        "protocol": fields.protocol == wanted["protocol"],
        "listenerIp": fields.listener_ip == wanted["listenerIp"],
        "listenerPort": fields.listener_port == wanted["listenerPort"],
        "healthCheck": _has(fields.health_check, wanted["healthCheck"]),
        "targets": not wanted["targets"] or _targeted(fields.targets or (), wanted["targets"]),
    }
    return {key: value for key, value in wanted.items() if not same[key]}


def _targeted(has: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two lists have the same targets; each address is in ``wanted`` once."""
    found = {each.get("ip"): each for each in has}
    return len(has) == len(wanted) and all(_has(found.get(each["ip"]), each) for each in wanted)


def _has(found: object, wanted: Mapping[str, Any]) -> bool:
    """Whether an object has all wanted fields; a missing ``proxyProtocol`` is none."""
    if not isinstance(found, Mapping):
        return False
    has = cast("Mapping[str, object]", found)
    for key, value in wanted.items():
        one = has.get(key, "none" if key == "proxyProtocol" else None)
        if not (_has(one, cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else one == value):
            return False
    return True
