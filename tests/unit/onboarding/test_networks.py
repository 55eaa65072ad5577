"""Proposed networks contain all addresses, and are narrow while there are few of them."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.onboarding.networks import FEW, proposed


@pytest.mark.parametrize(
    ("addresses", "networks"),
    [
        ([], []),
        (["10.7.0.1", "10.7.0.254"], ["10.7.0.0/24"]),
        (["10.7.0.1", "10.7.1.1", "fd00:7::1"], ["10.7.0.0/24", "10.7.1.0/24", "fd00:7::/64"]),
        ([f"10.7.{n}.1" for n in range(9)], ["10.7.0.0/20"]),
        ([f"10.7.{16 * n}.1" for n in range(9)], ["10.7.0.0/16"]),
        (["127.0.0.1", "169.254.1.1", "fe80::1", "worker-1", ""], []),
    ],
)
def test_networks_of_nodes(addresses: list[str], networks: list[str]) -> None:
    """Networks are as narrow as possible for at most eight; loopback, link-local and names are ignored."""
    assert proposed(addresses) == networks


@given(st.lists(st.ip_addresses(network="10.0.0.0/8"), max_size=40))
def test_every_address_is_in_a_proposed_network(addresses: list[ipaddress.IPv4Address]) -> None:
    """Every address is in a proposed network; more than FEW networks have the widest prefix."""
    networks = [ipaddress.ip_network(text) for text in proposed(map(str, addresses))]
    assert all(any(address in network for network in networks) for address in addresses)
    assert len(networks) <= FEW or {network.prefixlen for network in networks} == {16}
