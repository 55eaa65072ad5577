"""The state of a fake IONOS account, without HTTP: servers, LANs, reserved blocks, and changes that take time."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

Object = dict[str, Any]

PUBLIC, PRIVATE = 1, 2
"""Numbers of the LANs of each data center."""

DATACENTER: Final = "10000000-0000-4000-8000-000000000001"


class Problem(Exception):
    """The API refuses a request.

    Args:
        status: the HTTP status.
        code: the API's code.
        message: the API's message.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Datacenter:
    """A data center, with its servers and LANs as the API shows them at full depth."""

    location: str
    servers: dict[str, Object] = field(default_factory=dict[str, Object])
    lans: dict[int, Object] = field(default_factory=dict[int, Object])
    balancers: dict[str, Object] = field(default_factory=dict[str, Object])


@dataclass
class Change:
    """An accepted request; its effect happens when it ends.

    Attributes:
        end: makes or drops it; called with the error that it fails with, or "", and returns the error.
    """

    method: str
    path: str
    end: Callable[[str], str]
    created: float
    ends: float
    error: str = ""
    status: str = "RUNNING"


class Cloud:
    """One account.

    Attributes:
        changes: accepted changes.
        seconds: length of the changes from now on; ``inf`` = they never end.
        error: the message that changes fail with from now on; "" = they succeed.
        early: whether objects show their new values before the change has ended.
        names_consumers: whether blocks list who has their addresses.
        now: the clock by which requests end.
    """

    def __init__(self) -> None:
        self.datacenters: dict[str, Datacenter] = {}
        self.blocks: dict[str, Object] = {}
        self.requests: dict[str, Change] = {}
        self.foreign: dict[str, Object] = {}
        self.changes = 0
        self.seconds = 0.0
        self.error = ""
        self.early = False
        self.names_consumers = True
        self.now: Callable[[], float] = time.monotonic
        self._numbers = itertools.count(1)
        self.add_datacenter(DATACENTER)

    # --- setting the scene -------------------------------------------------------------------------

    def add_datacenter(self, identity: str, location: str = "de/fra") -> None:
        """Creates a data center with a public and a private LAN."""
        lans = {number: _lan(number, public=number == PUBLIC) for number in (PUBLIC, PRIVATE)}
        self.datacenters[identity] = Datacenter(location, {}, lans)

    def add_server(self, name: str, datacenter: str = DATACENTER, *, lans: tuple[int, ...] = (PUBLIC, PRIVATE)) -> str:
        """Creates a running server with a NIC on each LAN, each with an address of its own, and returns its id."""
        number = next(self._numbers)
        identity = str(UUID(int=(0x2 << 124) | (0x4 << 76) | (0x8 << 60) | number))
        nics = [
            _nic(f"198.51.100.{number}" if lan == PUBLIC else f"10.7.0.{number}", lan, i) for i, lan in enumerate(lans)
        ]
        self.datacenters[datacenter].servers[identity] = {
            "id": identity,
            "type": "server",
            "metadata": {"state": "AVAILABLE", "etag": "1"},
            "properties": {"name": name, "vmState": "RUNNING", "availabilityZone": "ZONE_1", "type": "ENTERPRISE"},
            "entities": {"nics": {"id": f"{identity}/nics", "type": "collection", "items": nics}},
        }
        return identity

    def server(self, name: str) -> Object:
        """Returns a server as the API shows it; changes to it are visible in the API."""
        named = (server for one in self.datacenters.values() for server in one.servers.values())
        return next(server for server in named if server["properties"]["name"] == name)

    def nics(self, name: str) -> list[Object]:
        """Returns the NICs of a server, the public one first."""
        found: list[Object] = self.server(name)["entities"]["nics"]["items"]
        return found

    def remove_server(self, name: str) -> None:
        """Deletes a server."""
        identity = self.server(name)["id"]
        for datacenter in self.datacenters.values():
            datacenter.servers.pop(identity, None)

    def reserve(self, location: str = "de/fra") -> str:
        """Reserves an address in a block of its own and returns it."""
        number = next(self._numbers)
        address, identity = f"203.0.113.{number}", str(uuid4())
        properties = {"name": f"ip-{number}", "location": location, "size": 1, "ips": [address], "ipConsumers": None}
        self.blocks[identity] = {
            "id": identity,
            "type": "ipblock",
            "metadata": {"state": "AVAILABLE"},
            "properties": properties,
        }
        return address

    def hold(self, address: str, name: str) -> None:
        """Adds an address to the public NIC of a server at once, whatever has it."""
        self.release(address)
        self.nics(name)[0]["properties"]["ips"].append(address)

    def hold_elsewhere(self, address: str) -> None:
        """Gives an address to something other than a server."""
        self.release(address)
        self.foreign[address] = {"ip": address, "nicId": str(uuid4()), "datacenterId": DATACENTER}

    def add_failover(self, address: str, name: str, datacenter: str = DATACENTER) -> None:
        """Makes a failover group of an address and a server's public NIC, which has to have the address."""
        group = {"ip": address, "nicUuid": self.nics(name)[0]["id"]}
        self.datacenters[datacenter].lans[PUBLIC]["properties"]["ipFailover"] = [group]

    def release(self, address: str) -> None:
        """Takes an address from whatever has it."""
        self.foreign.pop(address, None)
        for _, _, nic in self._all_nics():
            ips = nic["properties"]["ips"]
            nic["properties"]["ips"] = ips and [ip for ip in ips if ip != address]

    def consumers(self, address: str) -> list[Object]:
        """Returns what has an address, as a block shows it."""
        balancers = [
            {"ip": address, "nicId": None, "serverId": None, "datacenterId": identity}
            for identity, datacenter in self.datacenters.items()
            for balancer in datacenter.balancers.values()
            if address in (balancer["properties"].get("ips") or ())
        ]
        found = [
            {"ip": address, "nicId": nic["id"], "serverId": server["id"], "datacenterId": datacenter}
            for datacenter, server, nic in self._all_nics()
            if address in (nic["properties"]["ips"] or ())
        ]
        return [*found, *balancers, *([self.foreign[address]] if address in self.foreign else [])]

    def _all_nics(self) -> list[tuple[str, Object, Object]]:
        return [
            (identity, server, nic)
            for identity, datacenter in self.datacenters.items()
            for server in datacenter.servers.values()
            for nic in server["entities"]["nics"]["items"]
        ]

    # --- what the API shows --------------------------------------------------------------------------

    def show_blocks(self) -> list[Object]:
        """Returns all blocks, with their consumers."""
        found = copy.deepcopy(list(self.blocks.values()))
        for block in found if self.names_consumers else ():
            block["properties"]["ipConsumers"] = [
                row for ip in block["properties"]["ips"] or () for row in self.consumers(ip)
            ]
        return found

    def show_request(self, identity: str) -> Object:
        """Returns a request with its status."""
        change = self.requests[identity]
        return {
            "id": identity,
            "type": "request",
            "metadata": {"createdDate": change.created, "requestStatus": self.show_status(identity)},
            "properties": {"method": change.method, "url": f"https://api.ionos.com/cloudapi/v6{change.path}?depth=0"},
        }

    def show_status(self, identity: str) -> Object:
        """Returns the status of a request."""
        change = self.requests.get(identity)
        if change is None:
            raise missing()
        metadata: Object = {
            "status": change.status,
            "message": change.error if change.status == "FAILED" else "",
            "targets": [],
        }
        return {"id": f"{identity}/status", "type": "request-status", "metadata": metadata}

    def find_nic(self, datacenter: str, server: str, nic: str) -> Object:
        """Returns a NIC; raises Problem if it does not exist."""
        for found in self._all_nics():
            if (found[0], found[1]["id"], found[2]["id"]) == (datacenter, server, nic):
                return found[2]
        raise missing()

    # --- changes -------------------------------------------------------------------------------------

    def patch_nic(self, path: str, nic: Object, body: Mapping[str, Any]) -> str:
        """Accepts a change of a NIC and returns the id of its request.

        Raises:
            Problem: the NIC is being changed, or an address is not reserved or in use.
        """
        if nic["metadata"]["state"] == "BUSY":
            raise Problem(422, "200", "[VDC-5-1] Operation cannot be executed since this NIC is busy")
        ips = body["ips"]
        if not ips:  # null and [] let the API choose an address
            ips = [f"198.51.100.{next(self._numbers)}"]
        old: list[str] = nic["properties"]["ips"] or []
        for ip in ips:
            if ip not in old and not any(ip in block["properties"]["ips"] for block in self.blocks.values()):
                raise Problem(422, "100", f"[VDC-5-2] IP {ip} is not reserved in this location")
            if ip not in old and self.consumers(ip):
                raise Problem(422, "100", f"[VDC-5-3] IP {ip} is already in use")
        nic["metadata"]["state"] = "BUSY"
        if self.early:
            nic["properties"]["ips"] = list(ips)

        def end(error: str) -> str:
            nic["properties"]["ips"] = old
            used = [ip for ip in ips if ip not in old and self.consumers(ip)]
            error = error or (f"IP {used[0]} is already in use" if used else "")
            if not error:
                nic["properties"].update({**body, "ips": list(ips)})
            nic["metadata"]["state"] = "AVAILABLE"
            return error

        return self.accept("PATCH", path, end)

    def accept(self, method: str, path: str, end: Callable[[str], str]) -> str:
        """Accepts a request and returns its id; its effect happens after :attr:`seconds`."""
        now, identity = self.now(), str(uuid4())
        self.requests[identity] = Change(method, path, end, now, now + self.seconds, self.error)
        self.changes += 1
        self.settle()
        return identity

    def settle(self) -> None:
        """Ends the requests whose time is over."""
        for change in self.requests.values():
            if change.status == "RUNNING" and change.ends <= self.now():
                change.error = change.end(change.error)
                change.status = "FAILED" if change.error else "DONE"


def expanded(item: Object, depth: int) -> Object:
    """Returns an item at a depth: 0 = its id, 1 = properties, 2 = ids of its entities, 3 = their properties."""
    if depth < 1:
        return {"id": item["id"], "type": item["type"]}
    shown = {key: value for key, value in item.items() if key != "entities"}
    for name, collection in item.get("entities", {}).items():
        listed = {"items": [expanded(entity, depth - 2) for entity in collection["items"]]} if depth > 1 else {}
        shown.setdefault("entities", {})[name] = {"id": collection["id"], "type": "collection", **listed}
    return copy.deepcopy(shown)


def missing() -> Problem:
    """Returns the API's 404."""
    return Problem(404, "309", "Resource does not exist")


def _nic(address: str, lan: int, index: int) -> Object:
    properties: Object = {
        "name": f"nic{index}",
        "mac": f"02:01:00:00:00:{index:02x}",
        "ips": [address],
        "ipv6Ips": [f"2001:db8::{lan}"],
        "dhcp": False,
        "lan": lan,
        "firewallActive": True,
        "firewallType": "INGRESS",
        "pciSlot": 6 + index,
        "vnet": f"net-{lan}",
    }
    return {
        "id": str(uuid4()),
        "type": "nic",
        "metadata": {"state": "AVAILABLE", "etag": "1"},
        "properties": properties,
    }


def _lan(number: int, *, public: bool) -> Object:
    properties: Object = {"name": f"lan {number}", "public": public, "ipFailover": []}
    return {"id": str(number), "type": "lan", "metadata": {"state": "AVAILABLE"}, "properties": properties}
