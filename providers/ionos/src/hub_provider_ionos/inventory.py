"""Pure functions that turn the API's JSON into values. Missing or malformed data is reported, never taken for "none".

A list with an item that cannot be read is an error. A server whose NICs cannot be read stays in the list with a
``problem``, and its addresses are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple, cast

from hub_provider_ionos.config import as_uuid

RUNNING: Final = "RUNNING"
MAX_ITEMS: Final = 50_000
"""The most items of one list; a data center holds a few thousand servers at most."""


class Malformed(Exception):
    """The answer does not match the API's documentation; the message says where."""


class Nic(NamedTuple):
    """A network card.

    Attributes:
        lan: The number of its LAN.
        ips: Its addresses, normalised; IPv4 before IPv6, otherwise in the API's order.
        id: Its UUID; "" if the API does not give one.
        busy: Whether a change to it is in progress.
    """

    lan: int
    ips: tuple[str, ...]
    id: str = ""
    busy: bool = False


class Server(NamedTuple):
    """A server.

    Attributes:
        vm_state: The state of its virtual machine; "" if the API does not give one.
        busy: Whether a change to it is in progress.
        zone: Its availability zone; "" for none and for AUTO, which names no zone.
        nics: Its network cards, sorted by slot.
        problem: Why its NICs cannot be read; "" if they can.
        instance_type: Type, cores and RAM in MiB, such as ``enterprise-4-8192``; "" if the API does not give them.
    """

    id: str
    name: str
    vm_state: str
    busy: bool
    zone: str
    nics: tuple[Nic, ...]
    problem: str = ""
    instance_type: str = ""


class PoolNode(NamedTuple):
    """A node of a managed Kubernetes cluster.

    Attributes:
        state: Its state; "" if the API does not give one.
        ips: Its addresses, normalised, the private one before the public one.
    """

    id: str
    name: str
    state: str
    ips: tuple[str, ...]


class Page(NamedTuple):
    """One page of a list.

    Attributes:
        items: (id, item) pairs.
        full: The most items that a page of this list holds: the requested limit, or the API's if that is lower.
        more: Whether the API names a next page; None if the answer has no links.
    """

    items: tuple[tuple[str, Mapping[str, object]], ...]
    full: int
    more: bool | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All servers of a data center at one moment, indexed.

    Attributes:
        servers: Servers by id.
        failover: (lan, address) pairs of the LANs' failover groups. They belong to no single server.
        by_name: All servers with a name, by name.
        holders: (lan, address) -> ids of the servers that have the address, if there are several.
        public: Numbers of the LANs that are connected to the internet.
    """

    servers: Mapping[str, Server]
    failover: frozenset[tuple[int, str]]
    by_name: Mapping[str, tuple[Server, ...]] = field(compare=False)
    holders: Mapping[tuple[int, str], tuple[str, ...]] = field(compare=False)
    public: frozenset[int] = frozenset()


def fleet(servers: Iterable[Server], failover: Iterable[tuple[int, str]], public: Iterable[int] = ()) -> Fleet:
    """Indexes a list of servers.

    Args:
        servers: The servers of one data center.
        failover: (lan, address) pairs of its failover groups.
        public: Numbers of its public LANs.
    """
    by_id = {server.id: server for server in servers}
    by_name: dict[str, tuple[Server, ...]] = {}
    holders: dict[tuple[int, str], tuple[str, ...]] = {}
    for server in by_id.values():
        by_name[server.name] = (*by_name.get(server.name, ()), server)
        for key in {(nic.lan, ip) for nic in server.nics for ip in nic.ips}:
            holders[key] = (*holders.get(key, ()), server.id)
    several = {key: ids for key, ids in holders.items() if len(ids) > 1}
    return Fleet(by_id, frozenset(failover), by_name, several, frozenset(public))


def page(data: object, limit: int, identify: Callable[[object, str], str]) -> Page:
    """Parses one page of a list.

    Args:
        data: The answer's body.
        limit: The number of items that were requested.
        identify: Reads an item's id: :func:`uuid_of` or :func:`lan_of`.

    Raises:
        Malformed: The body is not a list, or an item has no id.
    """
    whole = _mapping(data, "the answer")
    listed = whole.get("items")
    if not isinstance(listed, list):
        raise Malformed(f"items is {_kind(listed) if 'items' in whole else 'missing'}, not a list")
    items: list[tuple[str, Mapping[str, object]]] = []
    for index, item in enumerate(cast("list[object]", listed)):
        entry = _mapping(item, f"items[{index}]")
        items.append((identify(entry.get("id"), f"items[{index}]"), entry))
    said, links = whole.get("limit"), whole.get("_links")
    full = int(said) if isinstance(said, int | float) and not isinstance(said, bool) and 0 < said < limit else limit
    more = bool(cast("Mapping[str, object]", links).get("next")) if isinstance(links, Mapping) else None
    return Page(tuple(items), full, more)


def uuid_of(value: object, where: str) -> str:
    """Returns the id of a server, a node pool or a node, in lower case.

    Raises:
        Malformed: The id is not a UUID.
    """
    found = as_uuid(value)
    if not found:
        raise Malformed(f"{where} has no id")
    return found


def lan_of(value: object, where: str) -> str:
    """Returns the id of a LAN: a number in a string.

    Raises:
        Malformed: The id is not a number.
    """
    return str(_lan(value, where))


def server(identity: str, item: Mapping[str, object]) -> Server:
    """Parses a server of a list that was requested at depth 3.

    Raises:
        Malformed: Its properties are missing, so the list was not expanded.
    """
    where = f"server {identity}"
    properties = _mapping(item.get("properties"), f"{where}: properties")
    busy = state_of(item) == "BUSY"
    nics: tuple[Nic, ...] = ()
    problem = ""
    try:
        nics = _nics(item)
    except Malformed as error:
        problem = str(error)
    zone = _text(properties.get("availabilityZone"))
    return Server(
        identity,
        _text(properties.get("name")),
        _text(properties.get("vmState")),
        busy,
        "" if zone == "AUTO" else zone,
        nics,
        problem,
        _instance_type(properties),
    )


def _instance_type(properties: Mapping[str, object]) -> str:
    parts = [properties.get(name) for name in ("type", "cores", "ram")]
    known = isinstance(parts[0], str) and all(isinstance(part, int) for part in parts[1:])
    return "-".join(map(str, parts)).lower() if known else ""


def failover_addresses(identity: str, item: Mapping[str, object]) -> list[tuple[int, str]]:
    """Returns the (lan, address) pairs of a LAN's failover groups.

    A LAN's id is a number in a string here, but a number in a NIC; the result has numbers.

    Raises:
        Malformed: The LAN cannot be read.
    """
    where = f"LAN {identity}"
    properties = _mapping(item.get("properties"), f"{where}: properties")
    groups = properties.get("ipFailover")
    if groups is None:
        return []
    if not isinstance(groups, list):
        raise Malformed(f"{where}: ipFailover is {_kind(groups)}, not a list")
    found: list[tuple[int, str]] = []
    for group in cast("list[object]", groups):
        ip = _mapping(group, f"{where}: ipFailover").get("ip")
        if ip is not None:
            found.append((_lan(identity, where), _address(ip, where)))
    return found


def is_public(item: Mapping[str, object]) -> bool:
    """Whether a LAN that was requested at depth 1 is connected to the internet."""
    properties = item.get("properties")
    return isinstance(properties, Mapping) and cast("Mapping[str, object]", properties).get("public") is True


def pool_node(identity: str, item: Mapping[str, object]) -> PoolNode:
    """Parses a node of a node pool that was requested at depth 1.

    Raises:
        Malformed: The node cannot be read.
    """
    where = f"node {identity}"
    properties = _mapping(item.get("properties"), f"{where}: properties")
    given = (properties.get("privateIP"), properties.get("publicIP"))
    ips = tuple(_address(ip, where) for ip in given if ip not in (None, ""))
    return PoolNode(identity, _text(properties.get("name")), state_of(item), ips)


def state_of(item: Mapping[str, object]) -> str:
    """Returns the state in an item's metadata; "" if the API does not give one."""
    metadata = item.get("metadata")
    return _text(cast("Mapping[str, object]", metadata).get("state")) if isinstance(metadata, Mapping) else ""


def _nics(item: Mapping[str, object]) -> tuple[Nic, ...]:
    entities = _mapping(item.get("entities"), "entities")
    collection = _mapping(entities.get("nics"), "entities.nics")
    listed = collection.get("items")
    if not isinstance(listed, list):
        raise Malformed("its NICs are not in the answer")
    found: list[tuple[int, int, Nic]] = []
    for index, nic in enumerate(cast("list[object]", listed)):
        where = f"NIC {index}"
        entry = _mapping(nic, where)
        parsed = network_card(entry, where)
        slot = _mapping(entry["properties"], where).get("pciSlot")
        found.append((slot if isinstance(slot, int) and not isinstance(slot, bool) else 0, index, parsed))
    return tuple(parsed for _, _, parsed in sorted(found))


def network_card(item: Mapping[str, object], where: str) -> Nic:
    """Parses a NIC with its properties.

    Raises:
        Malformed: The NIC cannot be read.
    """
    properties = _mapping(item.get("properties"), f"{where}: properties")
    if "ips" not in properties:
        raise Malformed(f"{where}: ips is missing")
    ips = (*_addresses(properties["ips"], where), *_addresses(properties.get("ipv6Ips"), where))
    lan = _lan(properties.get("lan"), where)
    return Nic(lan, tuple(dict.fromkeys(ips)), as_uuid(item.get("id")), state_of(item) == "BUSY")


def _addresses(value: object, where: str) -> tuple[str, ...]:
    if value is None:  # the API answers null for a NIC that has no address yet
        return ()
    if not isinstance(value, list):
        raise Malformed(f"{where}: ips is {_kind(value)}, not a list")
    return tuple(_address(item, where) for item in cast("list[object]", value))


def _address(value: object, where: str) -> str:
    if isinstance(value, str) and "%" not in value:
        with suppress(ValueError):
            return str(ip_address(value))
    raise Malformed(f"{where}: an entry is not an IP address")


def _lan(value: object, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 11:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Malformed(f"{where}: its LAN is {_kind(value)}, not a number")


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise Malformed(f"{what} is {_kind(value)}, not an object")
    return cast("Mapping[str, object]", value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _kind(value: object) -> str:
    names: Mapping[type, str] = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
