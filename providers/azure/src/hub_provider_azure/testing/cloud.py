"""The fake's resources, and what a write does to them. No HTTP."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hub.plugin import Node

SUBSCRIPTION = "10000000-0000-4000-8000-000000000001"
NETWORK = "Microsoft.Network"
LOADBALANCER = "loadBalancers/kubernetes/frontendIPConfigurations/web"

Document = dict[str, Any]


@dataclass(slots=True)
class Request:
    """One request: read, write or login; method and path; the status of the answer, 0 if there was none."""

    kind: Literal["read", "write", "login"]
    text: str
    status: int = 0


@dataclass(slots=True)
class Operation:
    """A change of a network interface that Azure accepted.

    Attributes:
        interface: the key of the interface.
        document: what it becomes.
        end: when, by the fake's clock.
        error: the code with which it ends, without effect; "" = it ends well.
        ended: whether it has ended.
    """

    interface: str
    document: Document
    end: float
    error: str = ""
    ended: bool = False


class Refusal(Exception):
    """An error answer: its status, code and message."""

    def __init__(self, status: int, code: str, message: str = "made by the fake") -> None:
        super().__init__(code)
        self.status = status
        self.body = {"error": {"code": code, "message": message}}


class Cloud:
    """The resources of one subscription. Keys are ids in lower case; the ids in documents vary in case, as Azure's do.

    Args:
        clock: returns the time in seconds.

    Attributes:
        group: the resource group of :meth:`reserve`.
        addresses, interfaces, machines: the resources by key.
        pending: operations by id.
        changes: the number of accepted writes.
        length: how many seconds an operation takes.
        ill: the code with which operations end; "" = they end well.
        forbidden: actions that are refused with 403.
        region: of new resources.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.group = "Addresses"
        self.region = "westeurope"
        self.addresses: dict[str, Document] = {}
        self.interfaces: dict[str, Document] = {}
        self.machines: dict[str, Document] = {}
        self.pending: dict[str, Operation] = {}
        self.changes = 0
        self.length = 0.0
        self.ill = ""
        self.forbidden: set[str] = set()
        self._numbers = itertools.count(1)

    # --- the scene -------------------------------------------------------------------------------------

    def reserve(self, *, group: str = "", method: str = "Static", zones: tuple[str, ...] = ()) -> str:
        """Creates a public IP address and returns it."""
        number = len(self.addresses) + 1
        value = f"20.50.{number // 250}.{number % 250 + 1}"
        name = f"ip-{number}"
        document: Document = {
            "name": name,
            "id": _id(group or self.group, f"{NETWORK}/publicIPAddresses/{name}"),
            "etag": self._etag(),
            "location": self.region,
            "sku": {"name": "Standard", "tier": "Regional"},
            "properties": {
                "provisioningState": "Succeeded",
                "publicIPAddressVersion": "IPv4",
                "publicIPAllocationMethod": method,
                "ipAddress": value,
                "idleTimeoutInMinutes": 4,
            },
        }
        if zones:
            document["zones"] = list(zones)
        self.addresses[document["id"].lower()] = document
        return value

    def add_instance(self, name: str, *, ephemeral: bool = False, running: bool = True, zone: str = "1") -> Node:
        """Creates a virtual machine with its network interface and returns its Node."""
        machine = _id("MC_nodes", f"Microsoft.Compute/virtualMachines/{name}")
        interface = _id("mc_NODES", f"{NETWORK}/networkInterfaces/{name}-nic")
        self.machines[machine.lower()] = {
            "name": name,
            "id": machine,
            "location": self.region,
            "zones": [zone] if zone else None,
            "properties": {
                "provisioningState": "Succeeded",
                "vmId": f"20000000-0000-4000-8000-{next(self._numbers):012}",
                "networkProfile": {
                    "networkInterfaces": [
                        {"id": f"{interface}-2", "properties": {"primary": False}},
                        {"id": interface, "properties": {"primary": True}},
                    ]
                },
                "instanceView": {
                    "statuses": [
                        {"code": "ProvisioningState/succeeded"},
                        {"code": f"PowerState/{'running' if running else 'deallocated'}"},
                    ]
                },
            },
        }
        for id_, primary in ((interface, True), (f"{interface}-2", False)):
            self.interfaces[id_.lower()] = self._interface(id_, machine, primary=primary)
        if ephemeral:
            self.hold(self.reserve(group="Others", method="Dynamic"), name)
        return Node(name, ready="True", provider_id=f"azure://{machine.replace('MC_nodes', 'mc_nodes')}")

    def _interface(self, id_: str, machine: str, *, primary: bool) -> Document:
        configurations: list[Document] = []
        for name, main in (("internal", False), ("ipconfig1", True)):
            properties = {
                "provisioningState": "Succeeded",
                "privateIPAddress": f"10.224.0.{len(self.interfaces) + 4}",
                "privateIPAllocationMethod": "Dynamic",
                "subnet": {"id": _id("MC_nodes", f"{NETWORK}/virtualNetworks/net/subnets/nodes")},
                "primary": main,
                "loadBalancerBackendAddressPools": [{"id": _id("MC_nodes", f"{NETWORK}/loadBalancers/kubernetes")}],
                "futureProperty": {"deep": [1, 2.5, None]},
            }
            part = {
                "name": name,
                "id": f"{id_}/ipConfigurations/{name}",
                "etag": self._etag(),
                "properties": properties,
            }
            configurations.append(part)
        return {
            "name": id_.rpartition("/")[2],
            "id": id_,
            "etag": self._etag(),
            "location": self.region,
            "tags": {"owner": "platform"},
            "properties": {
                "provisioningState": "Succeeded",
                "ipConfigurations": configurations,
                "dnsSettings": {"dnsServers": ["10.0.0.10"], "internalDomainNameSuffix": "example.internal"},
                "enableAcceleratedNetworking": True,
                "networkSecurityGroup": {"id": _id("MC_nodes", f"{NETWORK}/networkSecurityGroups/nodes")},
                "primary": primary,
                "virtualMachine": {"id": machine},
                "auxiliaryMode": "None",
                "futureProperty": "kept",
            },
        }

    def remove_instance(self, name: str, *, keep_interface: bool = False) -> None:
        """Deletes a machine, and its interfaces unless they are kept without a machine."""
        key = self._machine(name)["id"].lower()
        del self.machines[key]
        for interface in [key for key in self.interfaces if key.rpartition("/")[2].startswith(f"{name}-nic")]:
            if keep_interface:
                del self.interfaces[interface]["properties"]["virtualMachine"]
                continue
            for configuration in self.interfaces.pop(interface)["properties"]["ipConfigurations"]:
                self._free(configuration["id"])

    def set_power(self, name: str, power: str) -> None:
        """Sets the power state, such as ``deallocated``; "" = Azure does not say."""
        statuses = [{"code": f"PowerState/{power}"}] if power else []
        self._machine(name)["properties"]["instanceView"]["statuses"] = statuses

    def hold(self, address: str, name: str, *, configuration: str = "ipconfig1", interface: str = "nic") -> None:
        """Attaches an address to an IP configuration of a machine at once; frees what was there."""
        key = next(key for key in self.interfaces if key.endswith(f"/{name}-{interface}"))
        document = copy.deepcopy(self.interfaces[key])
        part = next(part for part in document["properties"]["ipConfigurations"] if part["name"] == configuration)
        part["properties"]["publicIPAddress"] = {"id": self.find(address)["id"]}
        self._store(key, document)

    def release(self, address: str) -> None:
        """Makes an address free at once."""
        held = self.find(address)["properties"].get("ipConfiguration", {"id": ""})["id"].lower()
        key = held.partition("/ipconfigurations/")[0]
        if key in self.interfaces:
            document = copy.deepcopy(self.interfaces[key])
            for part in document["properties"]["ipConfigurations"]:
                if part["id"].lower() == held:
                    part["properties"].pop("publicIPAddress", None)
            self._store(key, document)
        self.find(address)["properties"].pop("ipConfiguration", None)

    def hold_elsewhere(self, address: str, what: str = LOADBALANCER) -> None:
        """Gives an address to something other than an instance: an IP configuration of ``what``, or a NAT gateway."""
        gateway = what.startswith("natGateways/")
        reference = {"id": _id("MC_nodes", f"{NETWORK}/{what}")}
        self.find(address)["properties"]["natGateway" if gateway else "ipConfiguration"] = reference

    def occupy(self, name: str) -> str:
        """Attaches somebody else's static address, from another resource group, and returns it."""
        address = self.reserve(group="Others")
        self.hold(address, name)
        return address

    def holder_of(self, address: str) -> str:
        """The name of the machine that has an address, "" or "elsewhere"."""
        self.settle()
        properties = self.find(address)["properties"]
        held = properties.get("ipConfiguration", {"id": ""})["id"].lower()
        if not held:
            return "elsewhere" if "natGateway" in properties else ""
        interface = self.interfaces.get(held.partition("/ipconfigurations/")[0])
        machine = interface["properties"].get("virtualMachine") if interface else None
        return machine["id"].rpartition("/")[2] if machine else "elsewhere"

    def extras_of(self, name: str) -> object:
        """All properties of the machine's interfaces, without the primary public IP address and versions."""
        self.settle()
        found = copy.deepcopy([doc for key, doc in sorted(self.interfaces.items()) if f"/{name}-nic" in key])
        for document in found:
            del document["etag"], document["properties"]["provisioningState"]
            for part in document["properties"]["ipConfigurations"]:
                del part["etag"]
                if part["properties"]["primary"]:
                    part["properties"].pop("publicIPAddress", None)
        return found

    def find(self, address: str) -> Document:
        """The public IP address with this value."""
        return next(doc for doc in self.addresses.values() if doc["properties"]["ipAddress"] == address)

    @property
    def running(self) -> int:
        """How many operations have not ended."""
        self.settle()
        return sum(not operation.ended for operation in self.pending.values())

    # --- writes ----------------------------------------------------------------------------------------

    def put(self, key: str, sent: Document, etag: str | None) -> tuple[str, Document]:
        """Accepts a new state of an interface; returns the operation's id and the answer's document.

        Raises:
            Refusal: it is not accepted.
        """
        self.settle()
        present = self.interfaces.get(key)
        if present is None:
            raise Refusal(404, "ResourceNotFound")
        self._check_rights(sent)
        if etag is not None and etag != present["etag"]:
            raise Refusal(412, "PreconditionFailed")
        if present["properties"]["provisioningState"] == "Updating":
            raise Refusal(409, "AnotherOperationInProgress")
        for part in sent["properties"]["ipConfigurations"]:
            self._check_address(present, part)
        self.changes += 1
        id_ = f"30000000-0000-4000-8000-{len(self.pending) + 1:012}"
        self.pending[id_] = Operation(key, copy.deepcopy(sent), self.clock() + self.length, self.ill)
        present["etag"] = self._etag()
        present["properties"]["provisioningState"] = "Updating"
        answer = copy.deepcopy(present)
        self.settle()
        return id_, answer

    def settle(self) -> None:
        """Ends the operations whose time has come."""
        for operation in self.pending.values():
            if operation.ended or operation.end > self.clock():
                continue
            operation.ended = True
            if operation.interface not in self.interfaces:
                operation.error = "ResourceNotFound"
            elif operation.error:
                self.interfaces[operation.interface]["properties"]["provisioningState"] = "Failed"
            else:
                operation.document["properties"]["provisioningState"] = "Succeeded"
                self._store(operation.interface, operation.document)

    def _check_rights(self, sent: Mapping[str, Any]) -> None:
        text = "The client 'x' with object id 'x' does not have authorization to perform action '{}' over scope 'x'."
        linked = (
            "The client has permission to perform action 'Microsoft.Network/networkInterfaces/write' on scope 'x'; "
            "however, it does not have permission to perform action(s) '{}' on the linked scope(s) 'x'."
        )
        if "Microsoft.Network/networkInterfaces/write" in self.forbidden:
            raise Refusal(403, "AuthorizationFailed", text.format("Microsoft.Network/networkInterfaces/write"))
        join = "Microsoft.Network/publicIPAddresses/join/action"
        if join in self.forbidden and "publicIPAddress'" in repr(sent):
            raise Refusal(403, "LinkedAuthorizationFailed", linked.format(join))

    def _check_address(self, present: Document, part: Document) -> None:
        reference = part["properties"].get("publicIPAddress")
        if reference is None:
            return
        address = self.addresses.get(reference["id"].lower())
        if address is None:
            raise Refusal(400, "InvalidResourceReference")
        held = address["properties"].get("ipConfiguration", {"id": part["id"]})["id"]
        if held.lower() != part["id"].lower() or "natGateway" in address["properties"]:
            raise Refusal(400, "PublicIPAddressInUse")
        machine = self.machines.get(present["properties"].get("virtualMachine", {"id": ""})["id"].lower())
        zones = address.get("zones")
        if machine and zones and not set(zones) & set(machine["zones"] or ()):
            raise Refusal(400, "ComputeResourceZoneConstraintDoesNotMatchPublicIPAddressZoneConstraint")

    def _store(self, key: str, document: Document) -> None:
        """Makes a document the interface's state, and the addresses follow."""
        for part in self.interfaces[key]["properties"]["ipConfigurations"]:
            self._free(part["id"])
        self.interfaces[key] = document
        document["etag"] = self._etag()
        for part in document["properties"]["ipConfigurations"]:
            part["etag"] = document["etag"]
            if reference := part["properties"].get("publicIPAddress"):
                address = self.addresses[reference["id"].lower()]
                address["etag"] = document["etag"]
                address["properties"]["ipConfiguration"] = {"id": part["id"].replace("mc_NODES", "MC_Nodes")}

    def _free(self, configuration: str) -> None:
        for address in self.addresses.values():
            held = address["properties"].get("ipConfiguration", {"id": ""})["id"]
            if held.lower() == configuration.lower():
                del address["properties"]["ipConfiguration"]

    def _machine(self, name: str) -> Document:
        return next(document for document in self.machines.values() if document["name"] == name)

    def _etag(self) -> str:
        return f'W/"{next(self._numbers):08}"'


def _id(group: str, rest: str) -> str:
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/{rest}"
