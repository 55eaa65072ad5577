"""The state of a fake project of Google Cloud, without HTTP: addresses, instances, and operations that take time."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

API: Final = "https://www.googleapis.com/compute/v1"
"""The beginning of the URLs in answers: Google's, whatever host the request was sent to."""


class Problem(Exception):
    """The API refuses a request.

    Args:
        status: the HTTP status.
        reason: the API's reason.
        message: the API's message.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass
class Address:
    """A reserved external address.

    Attributes:
        foreign: paths below the project of users that are not instances.
    """

    address: str
    name: str
    region: str
    tier: str = "PREMIUM"
    foreign: list[str] = field(default_factory=list[str])


@dataclass
class Vm:
    """An instance, with its interfaces as the API shows them."""

    name: str
    zone: str
    nics: list[dict[str, Any]]
    status: str = "RUNNING"

    @property
    def path(self) -> str:
        """The path below the project."""
        return f"zones/{self.zone}/instances/{self.name}"

    @property
    def access(self) -> dict[str, Any] | None:
        """The access config of nic0."""
        return next(iter(self.nics[0]["accessConfigs"]), None)


@dataclass
class Operation:
    """An accepted change; its effect happens when it ends."""

    name: str
    zone: str
    ends: float
    effect: Callable[[], object]
    error: dict[str, str] | None = None
    done: bool = False


class Cloud:
    """One project.

    Args:
        project: its id.

    Attributes:
        changes: accepted changes, without repetitions of a requestId.
        seconds: length of the operations from now on; ``inf`` = they never end.
        code: the error that operations end with from now on; "" = they succeed.
    """

    def __init__(self, project: str) -> None:
        self.project = project
        self.addresses: dict[str, Address] = {}
        self.vms: dict[str, Vm] = {}
        self.operations: dict[str, Operation] = {}
        self.changes = 0
        self.seconds = 0.0
        self.code = ""
        self._numbers = itertools.count(1)
        self._replays: dict[str, Operation] = {}

    # --- setting the scene -----------------------------------------------------------------------

    def reserve(self, region: str = "us-west1", tier: str = "PREMIUM") -> str:
        """Reserves an address; region "" = a global one."""
        number = next(self._numbers)
        address = f"203.0.113.{number}"
        self.addresses[address] = Address(address, f"ip-{number}", region, tier)
        return address

    def add_vm(
        self, name: str, zone: str = "us-west1-a", *, ephemeral: str = "", tier: str = "PREMIUM", nics: int = 1
    ) -> Vm:
        """Creates a running instance.

        Args:
            name: its name.
            zone: its zone.
            ephemeral: the name of the access config with an ephemeral address on nic0; "" = none.
            tier: the network tier of the ephemeral address.
            nics: how many interfaces; those after nic0 have ephemeral addresses.
        """
        vm = self.vms[name] = Vm(name, zone, [_nic(index) for index in range(nics)])
        for nic in vm.nics[1:]:
            nic["accessConfigs"] = [self._config("External NAT", tier)]
        if ephemeral:
            vm.nics[0]["accessConfigs"] = [self._config(ephemeral, tier)]
        return vm

    def hold(self, address: str, name: str, nic: int = 0) -> None:
        """Attaches an address to an interface at once, whatever has it or stands in its place."""
        self.release(address)
        config = self._config("External NAT", self.addresses[address].tier, address)
        self.vms[name].nics[nic]["accessConfigs"] = [config]

    def hold_elsewhere(self, address: str, user: str = "") -> None:
        """Gives an address to something other than an instance."""
        self.release(address)
        entry = self.addresses[address]
        entry.foreign.append(user or f"regions/{entry.region}/forwardingRules/web")

    def release(self, address: str) -> None:
        """Takes an address at once from whatever has it."""
        self.addresses[address].foreign.clear()
        for vm in self.vms.values():
            for nic in vm.nics:
                nic["accessConfigs"] = [row for row in nic["accessConfigs"] if row.get("natIP") != address]

    def _config(self, name: str, tier: str, address: str = "") -> dict[str, Any]:
        address = address or f"198.51.100.{next(self._numbers)}"
        return {
            "kind": "compute#accessConfig",
            "type": "ONE_TO_ONE_NAT",
            "name": name,
            "natIP": address,
            "networkTier": tier,
        }

    # --- what the API shows ----------------------------------------------------------------------

    def users(self, address: str) -> list[str]:
        """Paths below the project of what has an address."""
        holders = [vm.path for vm in self.vms.values() for nic in vm.nics if address in _addresses(nic)]
        return holders + self.addresses[address].foreign

    def show_address(self, entry: Address) -> dict[str, Any]:
        """An address as the API shows it."""
        users = [f"{API}/projects/{self.project}/{user}" for user in self.users(entry.address)]
        return {
            "kind": "compute#address",
            "name": entry.name,
            "address": entry.address,
            "addressType": "EXTERNAL",
            "networkTier": entry.tier,
            "status": "IN_USE" if users else "RESERVED",
            **({"region": f"{API}/projects/{self.project}/regions/{entry.region}"} if entry.region else {}),
            **({"users": users} if users else {}),
        }

    def show_vm(self, zone: str, name: str) -> dict[str, Any]:
        """An instance as the API shows it; empty lists are left out."""
        vm = self.find(zone, name)
        nics = [{key: value for key, value in nic.items() if value != []} for nic in vm.nics]
        return {"kind": "compute#instance", "name": name, "status": vm.status, "networkInterfaces": copy.deepcopy(nics)}

    def show_operation(self, zone: str, name: str) -> dict[str, Any]:
        """An operation as the API shows it."""
        found = self.operations.get(name)
        if found is None or found.zone != zone:
            raise missing(self.project, f"zones/{zone}/operations/{name}")
        return {
            "kind": "compute#operation",
            "name": name,
            "status": "DONE" if found.done else "RUNNING",
            **({"error": {"errors": [found.error]}} if found.done and found.error else {}),
        }

    def find(self, zone: str, name: str) -> Vm:
        """Returns an instance; raises Problem if it does not exist."""
        vm = self.vms.get(name)
        if vm is None or vm.zone != zone:
            raise missing(self.project, f"zones/{zone}/instances/{name}")
        return vm

    # --- changes -----------------------------------------------------------------------------------

    def write(self, zone: str, name: str, verb: str, query: Mapping[str, str], body: Mapping[str, Any]) -> str:
        """Accepts addAccessConfig or deleteAccessConfig and returns the operation's name.

        Raises:
            Problem: the instance is not as the request needs it.
        """
        request_id = query.get("requestId", "")
        if request_id in self._replays:
            return self._replays[request_id].name
        vm = self.find(zone, name)
        if query.get("networkInterface") != "nic0":
            raise Problem(400, "invalid", "Invalid value for field 'networkInterface'")
        if verb == "deleteAccessConfig":
            effect = self._deletion(vm, query.get("accessConfig", ""))
        else:
            effect = self._addition(vm, body)
        self.changes += 1
        number = f"operation-{next(self._numbers)}"
        error = {"code": self.code, "message": f"{self.code} for {vm.path}"} if self.code else None
        operation = Operation(number, zone, time.monotonic() + self.seconds, effect, error)
        self.operations[number] = operation
        if request_id:
            self._replays[request_id] = operation
        self.settle()
        return number

    def settle(self) -> None:
        """Ends the operations whose time is over."""
        for operation in self.operations.values():
            if not operation.done and operation.ends <= time.monotonic():
                operation.done = True
                if operation.error is None:
                    try:
                        operation.effect()
                    except Problem as problem:
                        operation.error = {"code": problem.reason, "message": problem.message}

    def _deletion(self, vm: Vm, name: str) -> Callable[[], object]:
        if vm.access is None or vm.access["name"] != name:
            raise Problem(400, "invalid", f"Invalid value for field 'accessConfig': '{name}'. No such access config.")

        def effect() -> None:
            vm.nics[0]["accessConfigs"] = [row for row in vm.nics[0]["accessConfigs"] if row["name"] != name]

        return effect

    def _addition(self, vm: Vm, body: Mapping[str, Any]) -> Callable[[], object]:
        address = body.get("natIP", "")
        tier = body.get("networkTier", "PREMIUM")
        entry = self.addresses.get(address)
        if vm.access is not None:
            raise Problem(400, "invalid", "At most one access config currently supported.")
        if address and (entry is None or entry.region != vm.zone.rpartition("-")[0]):
            raise Problem(400, "invalid", f"Invalid value for field 'natIP': '{address}'. Not reserved in the region.")
        if entry is not None and entry.tier != tier:
            raise Problem(400, "invalid", f"The network tier of {address} does not match {tier}.")
        if address and self.users(address):
            raise Problem(400, "resourceInUseByAnotherResource", f"External IP address: {address} is already in-use.")

        def effect() -> None:
            if address and self.users(address):
                raise Problem(400, "IP_IN_USE_BY_ANOTHER_RESOURCE", f"IP '{address}' is already being used.")
            vm.nics[0]["accessConfigs"] = [self._config(body.get("name", "External NAT"), tier, address)]
            vm.nics[0]["fingerprint"] = str(next(self._numbers))

        return effect


def missing(project: str, path: str) -> Problem:
    """Returns the API's 404 for a resource."""
    return Problem(404, "notFound", f"The resource 'projects/{project}/{path}' was not found")


def _addresses(nic: Mapping[str, Any]) -> list[str]:
    return [row.get("natIP", "") for row in nic["accessConfigs"]]


def _nic(index: int) -> dict[str, Any]:
    return {
        "kind": "compute#networkInterface",
        "name": f"nic{index}",
        "networkIP": f"10.{index}.0.2",
        "subnetwork": f"{API}/projects/p/regions/us-west1/subnetworks/net{index}",
        "aliasIpRanges": [{"ipCidrRange": f"10.{index}.8.0/24"}],
        "stackType": "IPV4_IPV6",
        "ipv6AccessConfigs": [{"name": "external-ipv6", "externalIpv6": f"2001:db8::{index}"}],
        "accessConfigs": [],
        "fingerprint": "0",
    }
