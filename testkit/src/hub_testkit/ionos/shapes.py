"""Objects in the API's form."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

Object = dict[str, Any]


def server(identity: str, name: str, zone: str, href: str) -> Object:
    """Returns a running server without NICs, at full depth."""
    return {
        "id": identity,
        "type": "server",
        "href": href,
        "metadata": {"state": "AVAILABLE", "etag": "1"},
        "properties": {
            "name": name,
            "hostname": name,
            "availabilityZone": zone,
            "vmState": "RUNNING",
            "type": "ENTERPRISE",
            "cores": 4,
            "ram": 8192,
        },
        "entities": {"nics": {"id": f"{identity}/nics", "type": "collection", "href": f"{href}/nics", "items": []}},
    }


def nic(number: int, lan: int, ips: Sequence[str] | None, ipv6: Sequence[str]) -> Object:
    """Returns a NIC; ``number`` is its position on the server, from 0. ``ips`` may be None (``null``)."""
    properties: Object = {
        "name": f"nic{number}",
        "mac": f"02:01:00:00:00:{number + 1:02x}",
        "dhcp": True,
        "lan": lan,
        "ips": None if ips is None else list(ips),
        "ipv6Ips": list(ipv6) or None,
        "pciSlot": number + 6,
    }
    return {"id": str(uuid4()), "type": "nic", "metadata": {"state": "AVAILABLE"}, "properties": properties}


def lan(number: int, *, public: bool) -> Object:
    """Returns a LAN. Its id is the number as a string, while a NIC has the number itself."""
    return {
        "id": str(number),
        "type": "lan",
        "metadata": {"state": "AVAILABLE"},
        "properties": {"name": f"lan {number}", "public": public, "ipFailover": None},
        "entities": {"nics": {"id": f"{number}/nics", "type": "collection", "items": []}},
    }


def pool_node(identity: str, name: str, private: str, public: str) -> Object:
    """Returns a node of a node pool."""
    properties = {"name": name, "privateIP": private or None, "publicIP": public or None, "k8sVersion": "1.33.0"}
    return {"id": identity, "type": "node", "metadata": {"state": "READY"}, "properties": properties}


def expanded(item: Object, depth: int) -> Object:
    """Returns an item of a list that was requested with this depth.

    Depth 1 has the item's properties and, for its entities, references without ``items``. Depth 2 also has the
    entities' items as references, depth 3 their properties.
    """
    shown = copy.deepcopy({key: value for key, value in item.items() if key != "entities"})
    if depth < 1:
        return {key: shown[key] for key in ("id", "type") if key in shown}
    entities: Object = item.get("entities", {})
    if entities:
        shown["entities"] = {}
    for name, collection in entities.items():
        reference = {key: value for key, value in collection.items() if key != "items"}
        if depth >= 2:
            reference["items"] = [expanded(entity, depth - 2) for entity in collection["items"]]
        shown["entities"][name] = reference
    return shown


def refusal(status: int, code: str, message: str) -> Object:
    """Returns the body of an error."""
    return {"httpStatus": status, "messages": [{"errorCode": code, "message": message}]}
