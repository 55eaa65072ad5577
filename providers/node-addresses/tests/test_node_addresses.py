"""Tests of addresses from the Node object: order of preference, families, skipped entries."""

from __future__ import annotations

import hub_provider_node_addresses
import msgspec
import pytest
from hub_provider_node_addresses import NodeAddresses, NodeAddressesConfig
from hub_testkit.conformance import ProviderConformance

from hub.plugin import Absent, Found, Node, NodeAddress, Resolution
from hub.plugin.config import validate


def node(*addresses: tuple[str, str], name: str = "n1") -> Node:
    """Builds a node that reports these (type, address) pairs."""
    return Node(name, addresses=tuple(NodeAddress(kind, address) for kind, address in addresses))


async def resolve(subject: Node, **config: object) -> Resolution:
    """Returns the provider's answer for one node."""
    provider = NodeAddresses(validate(NodeAddressesConfig, config))
    return (await provider.resolve([subject]))[subject.name]


async def test_takes_the_internal_address_of_each_family_by_default() -> None:
    """By default an answer has both families, IPv4 first, in whatever order the Node lists them."""
    subject = node(("InternalIP", "fd00::1"), ("ExternalIP", "203.0.113.1"), ("InternalIP", "10.0.0.1"))
    assert await resolve(subject) == Found(("10.0.0.1", "fd00::1"))


async def test_prefers_types_in_the_order_given() -> None:
    """Addresses of the preferred type come first in their family; those of the next type follow."""
    both = node(("InternalIP", "10.0.0.1"), ("ExternalIP", "203.0.113.1"), ("InternalIP", "fd00::1"))
    assert await resolve(both, types=["ExternalIP", "InternalIP"]) == Found(("203.0.113.1", "10.0.0.1", "fd00::1"))
    inside = node(("InternalIP", "10.0.0.1"))
    assert await resolve(inside, types=["ExternalIP", "InternalIP"]) == Found(("10.0.0.1",))


async def test_takes_only_the_families_asked_for_in_their_order() -> None:
    """``families`` selects the families and sets their order."""
    subject = node(("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"))
    assert await resolve(subject, families=["IPv6"]) == Found(("fd00::1",))
    assert await resolve(subject, families=["IPv6", "IPv4"]) == Found(("fd00::1", "10.0.0.1"))


async def test_answers_with_all_addresses_in_the_nodes_order() -> None:
    """Addresses keep the Node's order, because Kubernetes lists the primary address first; duplicates are dropped."""
    subject = node(("InternalIP", "185.9.9.9"), ("InternalIP", "10.60.0.7"), ("InternalIP", "185.9.9.9"))
    assert await resolve(subject) == Found(("185.9.9.9", "10.60.0.7"))


async def test_answers_with_a_bounded_number_of_addresses() -> None:
    """An answer has at most 50 addresses per family: the hub refuses one with more than 100 addresses for a node."""
    many = [("InternalIP", f"10.0.0.{number}") for number in range(1, 200)]
    subject = node(*many, ("InternalIP", "fd00::1"))
    assert await resolve(subject) == Found((*(address for _, address in many[:50]), "fd00::1"))


@pytest.mark.parametrize(
    ("reported", "instead"),
    [
        ((), ""),
        ((("Hostname", "n1"),), ""),
        ((("InternalIP", "not-an-address"),), ", but 'not-an-address'"),
        ((("InternalIP", ""),), ""),
        ((("InternalIP", "010.0.0.1"), ("InternalIP", "x" * 99)), f", but '010.0.0.1', '{'x' * 64}'"),
    ],
)
async def test_a_node_without_such_an_address_is_absent(reported: tuple[tuple[str, str], ...], instead: str) -> None:
    """A node with no address, a host name or a malformed address is absent, with the reason."""
    assert await resolve(node(*reported)) == Absent(f"the Node has no InternalIP address of IPv4 or IPv6{instead}")


@pytest.mark.parametrize(
    "config",
    [{"types": []}, {"types": ["internalIP"]}, {"families": []}, {"families": ["IPv5"]}, {"type": ["InternalIP"]}],
)
def test_wrong_configuration_is_refused(config: dict[str, object]) -> None:
    """Empty lists, unknown types, also those in another case, unknown families and unknown keys are refused."""
    with pytest.raises(msgspec.ValidationError):
        validate(NodeAddressesConfig, config)


class TestConformance(ProviderConformance):
    """The provider follows the rules of the plugin API."""

    plugin = hub_provider_node_addresses
    name = "node-addresses"
    config = {"types": ["ExternalIP", "InternalIP"]}
    nodes = (
        node(("InternalIP", "10.0.0.1"), name="n1"),
        node(("InternalIP", "10.0.0.2"), ("ExternalIP", "203.0.113.2"), name="n2"),
        node(("InternalIP", "fd00::3"), name="n3"),
        node(("InternalIP", "10.0.0.5"), ("InternalIP", "10.0.0.4"), name="n4"),
        node(name="n5"),
    )
    addresses = {"n2": ("203.0.113.2", "10.0.0.2"), "n3": ("fd00::3",), "n4": ("10.0.0.5", "10.0.0.4")}
