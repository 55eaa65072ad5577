"""From the API's JSON to values: pure. What is missing or odd is said to be so, never taken for "none".

A list whose items cannot be read as a whole is malformed: an error. A single server whose NICs cannot be
read stays in the list with a ``problem``: nothing is known of its addresses.
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
"""Items of one list; a data center holds a few thousand servers at most."""


class Malformed(Exception):
    """The answer is not what the API's documentation says; the message says where."""


class Nic(NamedTuple):
    """A network card.

    Attributes:
        lan: number of its LAN.
        ips: normalised, the API's order, IPv4 before IPv6.
    """

    lan: int
    ips: tuple[str, ...]


class Server(NamedTuple):
    """A server.

    Attributes:
        vm_state: "" where the API does not say.
        busy: a change to it is under way.
        zone: "" for AUTO, which is none.
        nics: by the order of their slots.
        problem: why its NICs cannot be read; "" where they can.
    """

    id: str
    name: str
    vm_state: str
    busy: bool
    zone: str
    nics: tuple[Nic, ...]
    problem: str = ""


class PoolNode(NamedTuple):
    """A node of a managed Kubernetes cluster."""

    id: str
    name: str
    state: str
    ips: tuple[str, ...]


class Page(NamedTuple):
    """One page of a list.

    Attributes:
        items: each with its id.
        full: items a page of this list holds at most: what was asked for, or less where the API says so.
        more: the API names a next page; None where it says nothing about it.
    """

    items: tuple[tuple[str, Mapping[str, object]], ...]
    full: int
    more: bool | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All servers of a data center at one moment, ready to be asked.

    Attributes:
        servers: by id.
        failover: (lan, address) of the LANs' failover groups: nobody's own.
        by_name: servers by name, those of the same name together.
        holders: (lan, address) to the servers that have it, where these are several.
    """

    servers: Mapping[str, Server]
    failover: frozenset[tuple[int, str]]
    by_name: Mapping[str, tuple[Server, ...]] = field(compare=False)
    holders: Mapping[tuple[int, str], tuple[str, ...]] = field(compare=False)


def fleet(servers: Iterable[Server], failover: Iterable[tuple[int, str]]) -> Fleet:
    """Index a list of servers."""
    by_id = {server.id: server for server in servers}
    by_name: dict[str, tuple[Server, ...]] = {}
    holders: dict[tuple[int, str], tuple[str, ...]] = {}
    for server in by_id.values():
        by_name[server.name] = (*by_name.get(server.name, ()), server)
        for key in {(nic.lan, ip) for nic in server.nics for ip in nic.ips}:
            holders[key] = (*holders.get(key, ()), server.id)
    several = {key: ids for key, ids in holders.items() if len(ids) > 1}
    return Fleet(by_id, frozenset(failover), by_name, several)


def page(data: object, limit: int, identify: Callable[[object, str], str]) -> Page:
    """One page of a list as the API answers it.

    Args:
        data: the answer's body.
        limit: items that were asked for.
        identify: reads an item's id: :func:`uuid_of` or :func:`lan_of`.

    Raises:
        Malformed: it is no list, or an item has no id.
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
    """The id of a server, a node pool or a node.

    Raises:
        Malformed: it is no UUID.
    """
    found = as_uuid(value)
    if not found:
        raise Malformed(f"{where} has no id")
    return found


def lan_of(value: object, where: str) -> str:
    """The id of a LAN: a number in a string.

    Raises:
        Malformed: it is none.
    """
    return str(_lan(value, where))


def server(identity: str, item: Mapping[str, object]) -> Server:
    """A server of a list at depth 3.

    Raises:
        Malformed: its properties are missing: the list was not expanded.
    """
    where = f"server {identity}"
    properties = _mapping(item.get("properties"), f"{where}: properties")
    metadata = item.get("metadata")
    busy = isinstance(metadata, Mapping) and _text(cast("Mapping[str, object]", metadata).get("state")) == "BUSY"
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
    )


def failover_addresses(identity: str, item: Mapping[str, object]) -> list[tuple[int, str]]:
    """(lan, address) of a LAN's failover group; a LAN's id is a string, the NIC's is a number.

    Raises:
        Malformed: it cannot be read.
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


def pool_node(identity: str, item: Mapping[str, object]) -> PoolNode:
    """A node of a node pool at depth 1.

    Raises:
        Malformed: it cannot be read.
    """
    where = f"node {identity}"
    properties = _mapping(item.get("properties"), f"{where}: properties")
    metadata = item.get("metadata")
    state = _text(cast("Mapping[str, object]", metadata).get("state")) if isinstance(metadata, Mapping) else ""
    given = (properties.get("privateIP"), properties.get("publicIP"))
    ips = tuple(_address(ip, where) for ip in given if ip not in (None, ""))
    return PoolNode(identity, _text(properties.get("name")), state, ips)


def _nics(item: Mapping[str, object]) -> tuple[Nic, ...]:
    entities = _mapping(item.get("entities"), "entities")
    collection = _mapping(entities.get("nics"), "entities.nics")
    listed = collection.get("items")
    if not isinstance(listed, list):
        raise Malformed("its NICs are not in the answer")
    found: list[tuple[int, int, Nic]] = []
    for index, each in enumerate(cast("list[object]", listed)):
        where = f"NIC {index}"
        properties = _mapping(_mapping(each, where).get("properties"), f"{where}: properties")
        if "ips" not in properties:
            raise Malformed(f"{where}: ips is missing")
        ips = (*_addresses(properties["ips"], where), *_addresses(properties.get("ipv6Ips"), where))
        slot = properties.get("pciSlot")
        order = slot if isinstance(slot, int) and not isinstance(slot, bool) else 0
        found.append((order, index, Nic(_lan(properties.get("lan"), where), tuple(dict.fromkeys(ips)))))
    return tuple(nic for _, _, nic in sorted(found))


def _addresses(value: object, where: str) -> tuple[str, ...]:
    if value is None:  # as the API says that there is none yet
        return ()
    if not isinstance(value, list):
        raise Malformed(f"{where}: ips is {_kind(value)}, not a list")
    return tuple(_address(item, where) for item in cast("list[object]", value))


def _address(value: object, where: str) -> str:
    if isinstance(value, str) and "%" not in value:
        with suppress(ValueError):
            return str(ip_address(value))
    raise Malformed(f"{where}: an address is none")


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
