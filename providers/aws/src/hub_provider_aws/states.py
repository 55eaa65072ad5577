"""What the records of EC2 mean to the hub."""

from __future__ import annotations

from collections.abc import Mapping

from hub.plugin.addresses import (
    AddressState,
    Elsewhere,
    Free,
    Gone,
    Held,
    InstanceState,
    NotReserved,
    Present,
    Unknown,
    Unsupported,
)
from hub_provider_aws.answers import Address, Instance


def is_free(record: Address) -> bool:
    """Whether nothing has the address."""
    return not (record.association or record.instance or record.interface)


def is_primary(record: Address, instance: Instance) -> bool:
    """Whether an instance has the address on the primary private address of its primary interface."""
    return bool(record.association) and (record.interface, record.private) == (instance.interface, instance.private)


def address_state(record: Address | None, instances: Mapping[str, Instance], region: str) -> AddressState:
    """Returns the state of an address.

    Args:
        record: The address; None if a complete answer does not have it.
        instances: At least the holder, if it exists.
        region: The account's region.
    """
    if record is None:
        return NotReserved(f"it is no Elastic IP of the account in {region}")
    # The hub compares this with the region of an instance: an address of a local zone's group stays in that group.
    region = record.group or region
    if not record.allocation:
        return Unknown("DescribeAddresses shows no allocationId")
    if is_free(record):
        return Free(region)
    if not record.association:
        return Unknown("DescribeAddresses shows a holder without an associationId")
    if not record.instance:
        return Elsewhere(f"network interface {record.interface}, which belongs to no instance")
    if record.instance not in instances:
        return Unknown(f"DescribeInstances does not show its holder {record.instance}")
    if not is_primary(record, instances[record.instance]):
        return Elsewhere(f"network interface {record.interface}, address {record.private}, of {record.instance}")
    return Held(record.instance, record.association, region)


def instance_state(instance: Instance | None, region: str) -> InstanceState:
    """Returns the state of an instance.

    Args:
        instance: The instance; None if a complete answer does not have it.
        region: The account's region.
    """
    if instance is None:
        return Gone(f"it is no instance of the account in {region}")
    group = instance.zone[:-1] if instance.zone[-1:].isalpha() else instance.zone or region
    if instance.state not in ("pending", "running"):
        return Present(running=False, region=group, zone=instance.zone, room=False, why=f"it is {instance.state}")
    if not instance.interface:
        return Unsupported("it has no network interface with device index 0")
    if not instance.private:
        return Unsupported(f"its primary network interface {instance.interface} has no private IPv4 address")
    # A second association would silently replace the first one.
    why = f"it has the Elastic IP {instance.static}" if instance.static else ""
    if instance.state == "pending":
        why = "it is still starting"
    return Present(running=True, region=group, zone=instance.zone, room=not why, why=why)
