"""How the API shows its objects, as in the public SDK's fixtures: references, embedded objects, defaults.

A list shows load balancers without ``acme``; ``url`` names a host that nothing may ever contact.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

from hub_provider_brightbox.shapes import Object, part_id

Objects = Mapping[str, Mapping[str, Object]]

SINGULAR: Final = {
    "servers": "server",
    "load_balancers": "load_balancer",
    "server_groups": "server_group",
    "firewall_policies": "firewall_policy",
    "firewall_rules": "firewall_rule",
    "cloud_ips": "cloud_ip",
    "accounts": "account",
}
URL: Final = "https://api.gb1.brightbox.test/1.0"
ACCOUNT: Final = {"id": "acc-00001", "name": "Fake", "status": "active"}
LISTENER: Final = {"timeout": 50000, "proxy_protocol": None}
HEALTHCHECK: Final = {"request": "/", "interval": 5000, "timeout": 5000, "threshold_up": 3, "threshold_down": 3}
BRIEF: Final = {
    "servers": ("name", "status", "locked", "hostname", "fqdn", "created_at", "started_at", "deleted_at"),
    "load_balancers": ("name", "status", "locked", "created_at", "deleted_at"),
    "server_groups": ("name", "description", "default", "created_at"),
    "firewall_policies": ("name", "description", "default", "created_at"),
    "cloud_ips": ("name", "status", "public_ip", "public_ipv4", "public_ipv6", "fqdn", "reverse_dns", "mode"),
    "firewall_rules": (),
}
"""Fields of an object inside another one."""


def reference(collection: str, id_: str) -> Object:
    """What every object begins with."""
    return {"id": id_, "resource_type": SINGULAR[collection], "url": f"{URL}/{collection}/{id_}"}


def account() -> Object:
    """The account."""
    return {**reference("accounts", ACCOUNT["id"]), **ACCOUNT}


def brief(objects: Objects, collection: str, id_: str) -> Object:
    """An object inside another one."""
    found = objects[collection].get(id_, {})
    return {**reference(collection, id_), **{key: found.get(key) for key in BRIEF[collection]}}


def shown(objects: Objects, collection: str, id_: str, *, detail: bool = False) -> Object:
    """An object by itself, or in a list."""
    each = {**reference(collection, id_), **copy.deepcopy(objects[collection][id_])}
    match collection:
        case "load_balancers":
            _balancer(objects, each, detail=detail)
        case "cloud_ips":
            del each["created_at"]
            for key, other in (("load_balancer", "load_balancers"), ("server", "servers")):
                each[key] = brief(objects, other, each[key]["id"]) if each[key] else None
        case "server_groups":
            each["servers"] = [brief(objects, "servers", row["id"]) for row in each["servers"]]
            policies = objects["firewall_policies"].items()
            of = [key for key, policy in policies if part_id(policy, "server_group") == id_]
            each["firewall_policy"] = brief(objects, "firewall_policies", of[0]) if of else None
        case "firewall_policies":
            rules = objects["firewall_rules"].items()
            of = [key for key, rule in rules if rule["firewall_policy"]["id"] == id_]
            each["rules"] = [shown(objects, "firewall_rules", key) for key in of]
            for rule in each["rules"]:
                del rule["firewall_policy"]
            group = each["server_group"]
            each["server_group"] = brief(objects, "server_groups", group["id"]) if group else None
        case "firewall_rules":
            each["firewall_policy"] = brief(objects, "firewall_policies", each["firewall_policy"]["id"])
        case _:
            pass
    if collection != "firewall_rules":
        each["account"] = account()
    return each


def _balancer(objects: Objects, each: Object, *, detail: bool) -> None:
    each["nodes"] = [brief(objects, "servers", node["id"]) for node in each["nodes"]]
    ips = [key for key, ip in objects["cloud_ips"].items() if part_id(ip, "load_balancer") == each["id"]]
    each["cloud_ips"] = [brief(objects, "cloud_ips", key) for key in ips]
    each["listeners"] = [{**LISTENER, **listener} for listener in each["listeners"]]
    each["healthcheck"] = {**HEALTHCHECK, **each["healthcheck"]}
    if detail:
        each |= {"ssl_minimum_version": "TLSv1.2", "certificate": None}
    else:
        del each["acme"]
