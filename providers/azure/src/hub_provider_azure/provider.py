"""The provider of one account: single steps with addresses.

A write is one PUT of the primary network interface, with all properties as they were read right before and with their
etag: Azure refuses it if the interface changed in between. Azure also refuses an address that something else has.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from hub.plugin import Node, ProviderError, TransientProviderError
from hub.plugin.addresses import (
    AccountContext,
    AddressConflict,
    AddressState,
    Done,
    Free,
    Held,
    InstanceState,
    Order,
    Pending,
    Step,
    UnsupportedInstance,
)
from hub_provider_azure.arm import NETWORK, Arm, Reply
from hub_provider_azure.config import AUTHORITY, ENDPOINT, AzureConfig, host_of
from hub_provider_azure.failures import Invalid, NotFound
from hub_provider_azure.ids import (
    ADDRESS,
    INTERFACE,
    OPERATION,
    UNIFORM_INSTANCE,
    VIRTUAL_MACHINE,
    checked,
    interface_of,
    title,
)
from hub_provider_azure.reading import Reader
from hub_provider_azure.shapes import Interface, PublicAddress, with_address


async def open_provider(context: AccountContext, config: AzureConfig) -> AzureAddresses:
    """Opens an account; see :func:`hub_provider_azure.open_account`."""
    hub, account = context.hub, f"azure account {context.name}"
    hub.check_api_host(host_of(config.endpoint), host_of(ENDPOINT))
    hub.check_api_host(host_of(config.authority), host_of(AUTHORITY))
    module = await hub.run_sync(importlib.import_module, "hub_provider_azure.login")
    arm = Arm(hub, config.endpoint, module.Login(hub, config, account), account)
    return AzureAddresses(arm, Reader(hub, arm, config), config.subscription)


class AzureAddresses:
    """An AddressProvider for one subscription.

    Args:
        arm: the API.
        reader: reads with it.
        subscription: the subscription.
    """

    def __init__(self, arm: Arm, reader: Reader, subscription: str) -> None:
        self._arm = arm
        self._reader = reader
        self._subscription = subscription

    def instance_of(self, node: Node, /) -> str | None:
        """Returns the machine's resource id in lower case, also of an instance of a uniform scale set."""
        scheme, _, resource = node.provider_id[:2048].partition("://")
        if scheme != "azure":
            return None
        kinds = (VIRTUAL_MACHINE, UNIFORM_INSTANCE)
        return next((found for kind in kinds if (found := checked(resource, kind, self._subscription))), None)

    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        """Lists the public IP addresses; one request for each page and resource group, and new interfaces."""
        return await self._reader.describe(addresses)

    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        """Reads machines and their primary network interfaces."""
        return await self._reader.inspect(instances)

    async def detach(self, order: Order, /) -> Step:
        """Takes the address off the machine's primary network interface."""
        address = await self._ordered(order)
        if not address.holder:
            return Done()
        resource = interface_of(address.holder, self._subscription)
        if not resource:
            raise self._conflict(order, f"{title(address.holder)} has it")
        interface, reply = await self._reader.interface(resource)
        # A deleted machine may leave its interface behind. Nobody uses the address there.
        if interface.machine not in (order.instance, ""):
            raise self._conflict(order, f"{title(interface.machine)} has it")
        expected = Held(order.instance, interface.configuration, address.location)
        if address.holder != interface.configuration or order.expected != expected:
            raise self._conflict(order, f"{title(resource)} has it in another way than expected")
        if interface.address != address.id:
            raise TransientProviderError(f"{self._about(order)}: address and network interface contradict each other")
        return await self._write(interface, reply, "")

    async def attach(self, order: Order, /) -> Step:
        """Puts the address on the machine's primary network interface, in the place of a dynamic one."""
        address = await self._ordered(order)
        interface, reply = await self._target(order)
        if address.holder == interface.configuration:
            return _settled(interface, order.before)
        if address.holder:
            raise self._conflict(order, f"{title(address.holder)} has it")
        if not isinstance(order.expected, Free):
            raise self._conflict(order, "it is free, which is not expected")
        if interface.location != address.location:
            raise UnsupportedInstance(f"{self._about(order)} is in {address.location}, not in {interface.location}")
        there = await self._reader.address(interface.address) if interface.address else None
        if there is not None and not there.dynamic:
            raise self._conflict(order, f"{title(order.instance)} has the static address {there.value}")
        step = await self._write(interface, reply, address.id)
        return Done(there.id) if there and isinstance(step, Done) else step

    async def restore(self, order: Order, /) -> Step:
        """Gives the machine its dynamic public IP address back, if both are free."""
        resource = checked(order.before, ADDRESS, self._subscription)
        if not resource:
            return Done()
        try:
            address = await self._reader.address(resource)
            interface, reply = await self._target(order)
        except (NotFound, AddressConflict):
            return Done()
        if interface.address or address.holder or not address.dynamic:
            return _settled(interface)
        return await self._write(interface, reply, resource)

    async def follow(self, operation: str, /) -> Step:
        """Looks at an operation, or at a network interface whose change has no operation."""
        kinds = (OPERATION, INTERFACE)
        found = next((found for kind in kinds if (found := checked(operation, kind, self._subscription))), "")
        if not found:
            return Done()
        try:
            return self._progress(found, await self._arm.get(found, NETWORK))
        except (NotFound, Invalid):  # it ended long ago, or the signature that its URL had is needed
            return Done()

    def _progress(self, operation: str, reply: Reply) -> Step:
        match reply.document:
            case {"status": str() as state} | {"properties": {"provisioningState": str() as state}}:
                pass
            case _:
                raise TransientProviderError(f"{self._arm.account}: {operation}: the answer has no state")
        if state in ("Failed", "Canceled"):
            failure = self._arm.error(reply.document, operation)
            if isinstance(failure, TransientProviderError):  # the operation has ended: looking again would not help
                raise ProviderError(str(failure))
            raise failure
        return Done() if state == "Succeeded" else Pending(operation, reply.wait)

    async def _ordered(self, order: Order) -> PublicAddress:
        """Reads the order's address again."""
        resource = await self._reader.id_of(order.address)
        if not resource:
            raise self._conflict(order, "the account has no such public IP address")
        try:
            address = await self._reader.address(resource)
        except NotFound:
            raise self._conflict(order, f"{title(resource)} does not exist any more") from None
        if address.value != order.address or address.unfit:
            raise self._conflict(order, address.unfit or f"{title(resource)} is {address.value or 'no address'} now")
        return address

    async def _target(self, order: Order) -> tuple[Interface, Reply]:
        """Reads the primary network interface of the order's instance."""
        instance = checked(order.instance, VIRTUAL_MACHINE, self._subscription)
        if not instance:
            raise UnsupportedInstance(f"{self._about(order)}: {title(order.instance)} has no interface of its own")
        try:
            machine = await self._reader.machine(instance)
            if not machine.interface:
                raise UnsupportedInstance(f"{self._about(order)}: {title(instance)} has no primary network interface")
            interface, reply = await self._reader.interface(machine.interface)
        except NotFound:
            raise self._conflict(order, f"{title(instance)} or its network interface does not exist") from None
        if interface.machine != instance:
            raise self._conflict(order, f"{title(interface.id)} is not with {title(instance)}")
        return interface, reply

    async def _write(self, interface: Interface, read: Reply, address: str) -> Step:
        if interface.properties.busy:  # perhaps by this order, whose answer was lost
            return Pending(interface.id)
        document = with_address(read.document, interface.configuration, address)
        try:
            reply = await self._arm.put(interface.id, NETWORK, document, interface.etag)
        except NotFound as error:
            raise AddressConflict(str(error)) from None
        if operation := checked(reply.operation, OPERATION, self._subscription):
            return Pending(operation, reply.wait)
        return self._progress(interface.id, reply)

    def _about(self, order: Order) -> str:
        return f"{self._arm.account}: address {order.address}"

    def _conflict(self, order: Order, why: str) -> AddressConflict:
        return AddressConflict(f"{self._about(order)}: {why}; nothing was changed")


def _settled(interface: Interface, before: str = "") -> Step:
    """Returns Done, or Pending while Azure changes the interface."""
    return Pending(interface.id) if interface.properties.busy else Done(before)
