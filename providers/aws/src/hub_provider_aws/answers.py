"""Reads the XML answers of EC2. An answer that is not complete is an :class:`IncompleteAnswer`, never a smaller one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from xml.etree import ElementTree

AMAZON: Final = "amazon"
"""``ipOwnerId`` of an auto-assigned public address; an Elastic IP has its owner's account number."""


class IncompleteAnswer(Exception):
    """A part of the answer is missing; the message says which."""


class Address(NamedTuple):
    """An Elastic IP as DescribeAddresses shows it; a text is "" where the answer has none.

    Attributes:
        allocation: The id of the reservation.
        association: The id of the connection with a private address; new for each connection.
        instance: The instance that the interface belongs to.
        interface: The network interface that has the address.
        private: The private address that it is mapped to.
        group: The network border group: the region, or a local zone's group.
    """

    allocation: str
    association: str = ""
    instance: str = ""
    interface: str = ""
    private: str = ""
    group: str = ""


class Instance(NamedTuple):
    """An instance and its primary network interface, the one with device index 0.

    Attributes:
        state: pending, running, shutting-down, terminated, stopping or stopped.
        zone: The availability zone.
        interface: The interface's id; "" without a primary interface.
        private: The interface's primary private IPv4 address; "" if it has none.
        static: The Elastic IP that this private address has, "" if none; an auto-assigned address does not count.
    """

    state: str
    zone: str = ""
    interface: str = ""
    private: str = ""
    static: str = ""


class Instances(NamedTuple):
    """A page of instances by id.

    Attributes:
        found: The instances.
        next: The token of the next page; "" on the last.
    """

    found: dict[str, Instance]
    next: str


def parse(body: bytes) -> ElementTree.Element | None:
    """Returns the root of a body, without namespaces; None if it is not XML."""
    try:
        # The body is bounded, and expat limits how much entities may expand.
        root = ElementTree.fromstring(body)  # noqa: S314  # nosec B314
    except ElementTree.ParseError:
        return None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def text(element: ElementTree.Element, path: str) -> str:
    """Returns the text at a path below an element, "" if there is none."""
    return (element.findtext(path) or "").strip()


def addresses(root: ElementTree.Element) -> dict[str, Address]:
    """Returns the addresses of a DescribeAddresses answer by public address.

    Raises:
        IncompleteAnswer: The answer has no set of addresses, or an entry cannot be read, or there are more pages.
    """
    if text(root, "nextToken"):
        raise IncompleteAnswer("there is another page of addresses, although DescribeAddresses has no pages")
    found: dict[str, Address] = {}
    for item in _items(root, "addressesSet"):
        public = text(item, "publicIp")
        if not public or public in found:
            raise IncompleteAnswer("an address has no publicIp, or is there twice")
        found[public] = Address(
            allocation=text(item, "allocationId"),
            association=text(item, "associationId"),
            instance=text(item, "instanceId"),
            interface=text(item, "networkInterfaceId"),
            private=text(item, "privateIpAddress"),
            group=text(item, "networkBorderGroup"),
        )
    return found


def instances(root: ElementTree.Element) -> Instances:
    """Returns one page of a DescribeInstances answer.

    Raises:
        IncompleteAnswer: The answer has no set of reservations, or an entry cannot be read.
    """
    found: dict[str, Instance] = {}
    for reservation in _items(root, "reservationSet"):
        for item in _items(reservation, "instancesSet"):
            name, state = text(item, "instanceId"), text(item, "instanceState/name")
            if not name or not state:
                raise IncompleteAnswer("an instance has no instanceId or no state")
            found[name] = Instance(state, text(item, "placement/availabilityZone"), *_primary(item, state))
    return Instances(found, text(root, "nextToken"))


def association(root: ElementTree.Element) -> str:
    """Returns the new association's id of an AssociateAddress answer.

    Raises:
        IncompleteAnswer: The answer does not name it.
    """
    found = text(root, "associationId")
    if not found:
        raise IncompleteAnswer("the element associationId is missing")
    return found


def _primary(item: ElementTree.Element, state: str) -> tuple[str, str, str]:
    """Returns the primary interface's id, its primary private address, and the Elastic IP on that."""
    if state in ("shutting-down", "terminated"):
        return "", "", ""
    for interface in _items(item, "networkInterfaceSet"):
        # A further network card has an interface with device index 0, too.
        if text(interface, "attachment/deviceIndex") == "0" and text(interface, "attachment/networkCardIndex") in (
            "",
            "0",
        ):
            for entry in _items(interface, "privateIpAddressesSet"):
                if text(entry, "primary") == "true":
                    auto = text(entry, "association/ipOwnerId") == AMAZON
                    public = "" if auto else text(entry, "association/publicIp")
                    return text(interface, "networkInterfaceId"), text(entry, "privateIpAddress"), public
            return text(interface, "networkInterfaceId"), "", ""
    return "", "", ""


def _items(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    found = element.find(name)
    if found is None:
        raise IncompleteAnswer(f"the element {name} is missing")
    return iter(found.findall("item"))
