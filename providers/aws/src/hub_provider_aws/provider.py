"""Elastic IPs on the primary network interfaces of instances, read and changed step by step.

All writes of EC2 are synchronous, so a step is done when its call returns, and there is no operation to follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hub.plugin import Node
from hub.plugin.addresses import (
    AccountContext,
    AddressConflict,
    AddressState,
    Done,
    Free,
    Held,
    InstanceState,
    Order,
    Present,
    Step,
    Unknown,
    Unsupported,
    UnsupportedInstance,
)
from hub_provider_aws.answers import Address, Instance
from hub_provider_aws.api import Ec2
from hub_provider_aws.config import AwsConfig
from hub_provider_aws.states import address_state, instance_state, is_free, is_primary

BATCH: Final = 200
"""EC2 accepts at most 200 values of one filter."""


class ElasticIps:
    """An AddressProvider for one account and region.

    Args:
        account: The hub's services.
        config: The account's configuration.

    Raises:
        TerminalProviderError: The endpoint's host, or a reference to a credential, is not allowed.
    """

    def __init__(self, account: AccountContext, config: AwsConfig) -> None:
        self._ec2 = Ec2(account, config)
        self._account = account.name
        self._region = config.region
        # The zone begins with the region: eu-west-1a, or us-west-2-lax-1a for a local zone.
        zone = rf"{config.region}(?:[a-z]|-[a-z0-9-]{{1,40}})"
        self._provider_id = re.compile(rf"aws:///{zone}/(i-(?:[0-9a-f]{{8}}|[0-9a-f]{{17}}))", re.ASCII)
        self._known: dict[str, tuple[Address, AddressState]] = {}
        """The last record of each address, and its meaning. An equal record means the same."""

    def instance_of(self, node: Node, /) -> str | None:
        """Returns the instance's id if the providerID is ``aws:///ZONE/ID`` and the zone is in the account's region.

        A providerID does not name the AWS account. For :meth:`inspect`, an instance of another AWS account is Gone.
        """
        found = self._provider_id.fullmatch(node.provider_id)
        return found[1] if found else None

    async def describe(self, addresses: Sequence[str], /) -> Mapping[str, AddressState]:
        """Returns the state of each address.

        Sends one request for each 200 addresses, and one more for the holders of those whose record has changed.
        """
        records: dict[str, Address] = {}
        for some in _batches(addresses):
            records |= await self._ec2.addresses(some, _named(some))
        known = {name: state for name, (record, state) in self._known.items() if records.get(name) == record}
        holders = {records[name].instance for name in addresses if name in records and name not in known}
        instances = await self._instances(sorted(holders - {""}))
        states: dict[str, AddressState] = {}
        for name in addresses:
            record = records.get(name)
            states[name] = known.get(name) or address_state(record, instances, self._region)
            if record is not None and not isinstance(states[name], Unknown):
                self._known[name] = record, states[name]
        return states

    async def inspect(self, instances: Sequence[str], /) -> Mapping[str, InstanceState]:
        """Returns the state of each instance; sends one request for each 200."""
        found = await self._instances(instances)
        return {name: instance_state(found.get(name), self._region) for name in instances}

    async def detach(self, order: Order, /) -> Step:
        """Ends the association that the order names. Done without a write if the address is free."""
        record = await self._record(order)
        if is_free(record):
            return Done()
        expected = order.expected
        if not isinstance(expected, Held) or (record.instance, record.association) != (order.instance, expected.handle):
            raise self._conflict(order, record)
        await self._ec2.call("DisassociateAddress", order.address, {"AssociationId": record.association})
        return Done()

    async def attach(self, order: Order, /) -> Step:
        """Associates the free address with the instance's primary private address. Done without a write if it is there.

        Between reading and writing, another program could associate another Elastic IP with the same private address,
        which EC2 would then replace. EC2 has no condition that excludes this.
        """
        record = await self._record(order)
        if not is_free(record) and record.instance != order.instance:
            raise self._conflict(order, record)
        instance = (await self._instances([order.instance])).get(order.instance)
        if instance is not None and is_primary(record, instance):
            return Done(order.before)
        if not is_free(record) or not isinstance(order.expected, Free):
            raise self._conflict(order, record)
        instance = self._with_room(order, instance)
        parameters = {
            "AllocationId": record.allocation,
            "NetworkInterfaceId": instance.interface,
            "PrivateIpAddress": instance.private,
            "AllowReassociation": "false",
        }
        association = await self._ec2.associate(f"{order.address} on {order.instance}", parameters)
        # The next describe need not ask again whether this interface is the primary one.
        place = (order.instance, instance.interface, instance.private)
        new = Address(record.allocation, association, *place, record.group)
        self._known[order.address] = new, address_state(new, {order.instance: instance}, self._region)
        return Done(order.before)

    async def restore(self, order: Order, /) -> Step:  # noqa: ARG002 - the protocol's argument
        """Returns Done: EC2 has no call that gives an auto-assigned address back."""
        return Done()

    async def follow(self, operation: str, /) -> Step:  # noqa: ARG002 - the protocol's argument
        """Returns Done: no step is ever Pending."""
        return Done()

    async def _record(self, order: Order) -> Address:
        """Returns the address as it is now."""
        record = (await self._ec2.addresses([order.address], order.address)).get(order.address)
        if record is None or not record.allocation:
            where = f"account {self._account}: {order.address}"
            raise AddressConflict(f"{where} is no Elastic IP of the account in {self._region}; reserve it again")
        return record

    async def _instances(self, names: Sequence[str]) -> Mapping[str, Instance]:
        found: dict[str, Instance] = {}
        for some in _batches(names):
            found |= await self._ec2.instances(some, _named(some))
        return found

    def _with_room(self, order: Order, instance: Instance | None) -> Instance:
        """Returns the instance if its primary interface can take an address now."""
        where = f"account {self._account}: {order.address} cannot be attached to {order.instance}"
        state = instance_state(instance, self._region)
        if instance is not None and isinstance(state, Present) and state.room:
            return instance
        if isinstance(state, Unsupported):
            raise UnsupportedInstance(f"{where}: {state.reason}; choose another node")
        reason = state.why if isinstance(state, Present) else f"account {self._account} does not show the instance"
        raise AddressConflict(f"{where}: {reason}; choose another node")

    def _conflict(self, order: Order, record: Address) -> AddressConflict:
        holder = f"{record.instance or record.interface} has it ({record.association or 'no association'})"
        found = "it is free" if is_free(record) else holder
        where = f"account {self._account}: {order.address}"
        return AddressConflict(f"{where} is not as expected for {order.instance}: {found}; nothing was changed")


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    return (list(names[start : start + BATCH]) for start in range(0, len(names), BATCH))


def _named(names: Sequence[str]) -> str:
    """Returns one name as it is, and several as the first and a number."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
