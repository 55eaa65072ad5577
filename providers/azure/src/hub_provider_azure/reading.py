"""Reads addresses, virtual machines and network interfaces, and states what they mean. Changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from hub.plugin import HubContext, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import (
    AddressState,
    Changing,
    Elsewhere,
    Free,
    Gone,
    Held,
    InstanceState,
    NotReserved,
    Present,
    QuotaExceeded,
    Unknown,
    Unsupported,
)
from hub_provider_azure.arm import COMPUTE, NETWORK, Arm, Reply
from hub_provider_azure.config import AzureConfig
from hub_provider_azure.failures import NotFound
from hub_provider_azure.ids import (
    ADDRESS,
    INTERFACE,
    UNIFORM_INSTANCE,
    VIRTUAL_MACHINE,
    checked,
    interface_of,
    title,
)
from hub_provider_azure.shapes import Interface, Machine, PublicAddress, read

PARALLEL: Final = 8
"""Requests at a time of one call."""

REMEMBERED: Final = 300.0
"""Seconds for which ``describe`` does not read again which machine has an interface.

An interface changes its machine only while the machine is stopped, and every write checks it.
"""

T = TypeVar("T")


class _Holder(NamedTuple):
    """What ``describe`` remembers of a network interface."""

    machine: str
    configuration: str
    until: float


class Reader:
    """The resources of one account.

    Args:
        hub: the hub's context.
        arm: the API.
        config: the account's configuration.
    """

    def __init__(self, hub: HubContext, arm: Arm, config: AzureConfig) -> None:
        self._now = hub.clock.now
        self._arm = arm
        self._subscription = config.subscription
        root = f"/subscriptions/{config.subscription}"
        groups = [f"{root}/resourceGroups/{group}" for group in config.resource_groups] or [root]
        self._lists = [f"{group}/providers/Microsoft.Network/publicIPAddresses" for group in groups]
        self._ids: dict[str, str] = {}
        self._holders: dict[str, _Holder] = {}

    async def describe(self, addresses: Iterable[str]) -> Mapping[str, AddressState]:
        """Lists the public IP addresses, and reads the network interfaces that it does not remember."""
        listed = await self._listed()

        async def state(address: str) -> AddressState:
            found = listed.get(address)
            if found is None:
                return NotReserved(f"{self._arm.account} has no public IP address {address}")
            return await self._state(found)

        return await _each(addresses, state)

    async def inspect(self, instances: Iterable[str]) -> Mapping[str, InstanceState]:
        """Reads machines and their primary network interfaces."""
        return await _each(instances, self._instance)

    async def id_of(self, address: str) -> str:
        """Returns the resource id of an address; "" if the account does not have it."""
        if address not in self._ids:
            await self._listed()
        return self._ids.get(address, "")

    async def address(self, resource: str) -> PublicAddress:
        """Reads a public IP address; raises NotFound if there is none."""
        return read(PublicAddress, (await self._get(resource, ADDRESS)).document, self._about(resource))

    async def interface(self, resource: str) -> tuple[Interface, Reply]:
        """Reads a network interface, also as JSON; raises NotFound if there is none."""
        reply = await self._get(resource, INTERFACE)
        found = read(Interface, reply.document, self._about(resource))
        if not found.configuration:
            raise TransientProviderError(f"{self._about(resource)}: the answer has no primary IP configuration")
        configuration = "" if found.properties.primary is False else found.configuration
        self._holders = {key: kept for key, kept in self._holders.items() if kept.until > self._now()}
        self._holders[resource] = _Holder(found.machine, configuration, self._now() + REMEMBERED)
        return found, reply

    async def machine(self, resource: str) -> Machine:
        """Reads a virtual machine; raises NotFound if there is none."""
        if not checked(resource, VIRTUAL_MACHINE, self._subscription):
            raise TransientProviderError(f"{self._about(resource)}: not a virtual machine of the subscription")
        reply = await self._arm.get(resource, COMPUTE, **{"$expand": "instanceView"})
        return read(Machine, reply.document, self._about(resource))

    async def _get(self, resource: str, kind: re.Pattern[str]) -> Reply:
        if not checked(resource, kind, self._subscription):
            raise TransientProviderError(f"{self._about(resource)}: not an id of this kind in the subscription")
        return await self._arm.get(resource, NETWORK)

    async def _listed(self) -> dict[str, PublicAddress]:
        found: dict[str, PublicAddress] = {}
        for path in self._lists:
            try:
                items = await self._arm.items(path, NETWORK)
            except NotFound as error:
                raise TerminalProviderError(f"{error}; correct subscription and resourceGroups") from None
            listed = [read(PublicAddress, item, f"{self._arm.account}: GET {path}") for item in items]
            found |= {address.value: address for address in listed if address.value}
        self._ids = {value: address.id for value, address in found.items()}
        return found

    async def _state(self, address: PublicAddress) -> AddressState:
        if address.unfit:
            return NotReserved(f"public IP address {address.value}: {address.unfit}")
        if address.properties.busy:
            return Changing()
        if not address.holder:
            return Free(address.location)
        resource = interface_of(address.holder, self._subscription)
        if not resource:
            return Elsewhere(title(address.holder))
        holder = self._holders.get(resource)
        if holder is None or holder.until <= self._now():
            try:
                await self.interface(resource)
            except NotFound as error:
                return Unknown(f"{address.value}: {error}")
            holder = self._holders[resource]
        if not checked(holder.machine, VIRTUAL_MACHINE, self._subscription):
            return Elsewhere(f"{title(resource)}, an interface without a virtual machine")
        if holder.configuration != address.holder:
            return Elsewhere(f"{title(resource)}, on another than the primary IP configuration of the machine")
        return Held(holder.machine, address.holder, address.location)

    async def _instance(self, instance: str) -> InstanceState:
        if checked(instance, UNIFORM_INSTANCE, self._subscription):
            return Unsupported("an instance of a uniform scale set has no network interface of its own")
        try:
            machine = await self.machine(instance)
        except NotFound as error:
            gone = error.code in ("ResourceNotFound", "ResourceGroupNotFound")
            return Gone("the virtual machine does not exist") if gone else Unknown(str(error))
        if not machine.interface:
            return Unsupported("the virtual machine has no primary network interface")
        if not machine.power:
            return Unknown("Azure does not say whether the virtual machine runs")
        try:
            interface, _ = await self.interface(machine.interface)
            there = await self.address(interface.address) if interface.address else None
        except NotFound as error:
            return Unknown(str(error))
        fixed = there is not None and not there.dynamic
        return Present(
            running=machine.running,
            region=machine.location,
            zone=machine.zone,
            room=not fixed,
            why=f"its network interface has the static address {there.value}" if there and fixed else "",
            before=there.id if there and not fixed else "",
        )

    def _about(self, resource: str) -> str:
        return f"{self._arm.account}: {title(resource)}"


async def _each(keys: Iterable[str], call: Callable[[str], Awaitable[T]]) -> dict[str, T | Unknown]:
    """Calls a function for each key; a transient error makes only its key Unknown."""
    free = asyncio.Semaphore(PARALLEL)

    async def one(key: str) -> T | Unknown:
        async with free:
            try:
                return await call(key)
            except QuotaExceeded:
                raise
            except TransientProviderError as error:
                return Unknown(str(error))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {key: group.create_task(one(key), name=f"azure: {key[-100:]}") for key in dict.fromkeys(keys)}
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}
