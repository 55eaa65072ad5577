"""What an account has: load balancers, server groups, firewall policies and Cloud IPs, as the API states them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from hub_provider_brightbox.shapes import Object, as_object, as_objects, ids, part_id

Kind = Literal["server_group", "firewall_policy", "load_balancer", "cloud_ip"]
KINDS: Final[tuple[Kind, ...]] = ("server_group", "firewall_policy", "load_balancer", "cloud_ip")
PATHS: Final[Mapping[Kind, str]] = {
    "load_balancer": "load_balancers",
    "server_group": "server_groups",
    "firewall_policy": "firewall_policies",
    "cloud_ip": "cloud_ips",
}
LIVE: Final = ("creating", "active", "failing")
"""Statuses of a load balancer that is there."""
HOLDERS: Final = ("load_balancer", "server", "server_group", "interface", "database_server")
"""Fields of a Cloud IP that say what it is mapped to."""
_SUFFIX: Final = re.compile(r"#type:container\s*$")


class Inventory(msgspec.Struct, frozen=True):
    """One observation.

    Attributes:
        objects: kind -> id -> the object; deleted ones are left out.
        failed: ids of load balancers that were ``failed`` in the observation before, too.
        names: DNS name -> its addresses, for names that lead somewhere.
    """

    objects: Mapping[Kind, Mapping[str, Object]]
    failed: frozenset[str] = frozenset()
    names: Mapping[str, tuple[str, ...]] = {}

    def of(self, kind: Kind) -> Mapping[str, Object]:
        """The objects of a kind by id."""
        return self.objects[kind]

    def changed(self, kind: Kind, change: Callable[[dict[str, Object]], object]) -> Inventory:
        """This inventory with a change of the objects of one kind."""
        found = dict(self.objects[kind])
        change(found)
        return msgspec.structs.replace(self, objects={**self.objects, kind: found})

    @property
    def account(self) -> str:
        """The id of the account; "" if no object names it. Every account has a default server group."""
        objects = (each for kind in KINDS for each in self.objects[kind].values())
        return next((found for each in objects if (found := part_id(each, "account"))), "")


def inventory(lists: Mapping[Kind, Iterable[Object]], before: Inventory | None) -> Inventory:
    """The inventory of complete lists."""
    objects: dict[Kind, dict[str, Object]] = {
        kind: {str(each["id"]): each for each in lists[kind] if each.get("status") != "deleted"} for kind in KINDS
    }
    failed = frozenset(id_ for id_, each in objects["load_balancer"].items() if each.get("status") == "failed")
    old = before.of("load_balancer").items() if before is not None else ()
    return Inventory(objects, failed & {id_ for id_, each in old if each.get("status") == "failed"})


def clean(name: object) -> str:
    """A name without outer blanks and the mark that Brightbox' own tools append to names of containers."""
    return _SUFFIX.sub("", name).strip() if isinstance(name, str) else ""


def mapped_to(cloud_ip: Object) -> str:
    """The id of the load balancer that a Cloud IP is mapped to, or ""."""
    return part_id(cloud_ip, "load_balancer")


def mapped(seen: Inventory, balancers: set[str]) -> list[Object]:
    """The Cloud IPs that are mapped to one of some balancers, by id."""
    return [each for _, each in sorted(seen.of("cloud_ip").items()) if mapped_to(each) in balancers]


def holder(cloud_ip: Object) -> str:
    """The id of what a Cloud IP is mapped to; "" if it is free."""
    return next((found for key in HOLDERS if (found := part_id(cloud_ip, key))), "")


def addresses(cloud_ip: Object) -> tuple[str, ...]:
    """The public addresses of a Cloud IP, IPv4 first."""
    found = [str(cloud_ip.get(key) or "") for key in ("public_ipv4", "public_ip", "public_ipv6")]
    return tuple(dict.fromkeys(filter(None, found)))


def is_secure(balancer: Object) -> bool:
    """Whether a load balancer has a listener with TLS."""
    return any(each.get("protocol") == "https" for each in as_objects(balancer.get("listeners")))


def certified(balancer: Object) -> list[str] | None:
    """The domains of a load balancer's certificates; None if they are not known, because lists do not show them."""
    if "acme" not in balancer:
        return None if is_secure(balancer) else []
    found = as_objects(as_object(balancer["acme"]).get("domains"))
    return sorted(str(each.get("identifier")) for each in found)


def rule_of(policy: Object | None, names: Iterable[str]) -> Object | None:
    """A balancer's rule in its policy: by the description, else the only one."""
    rules: list[Object] = as_objects((policy or {}).get("rules"))
    named = [each for each in rules if clean(each.get("description")) in names]
    return next(iter(named or rules), None) if named or len(rules) == 1 else None


def servers_of(group: Object | None) -> set[str]:
    """The ids of the servers in a group."""
    return ids(group, "servers")


def acme_problems(balancer: Object) -> list[tuple[str, str, str]]:
    """Domain, status and message of the certificates that are not valid."""
    found: list[Any] = as_objects(as_object(balancer.get("acme")).get("domains"))
    return [
        (str(each.get("identifier")), str(each.get("status")), str(each.get("last_message") or ""))
        for each in found
        if each.get("status") not in ("valid", None)
    ]
