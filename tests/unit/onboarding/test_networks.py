"""Networks are proposed that hold all addresses, as narrow as somebody can still look at."""

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
    """Narrow while there are few of them; loopback, link-local and names are none."""
    assert proposed(addresses) == networks


@given(st.lists(st.ip_addresses(network="10.0.0.0/8"), max_size=40))
def test_every_address_lies_in_a_proposed_network(addresses: list[ipaddress.IPv4Address]) -> None:
    """And wider ones are taken only where there would be too many."""
    networks = [ipaddress.ip_network(each) for each in proposed(map(str, addresses))]
    assert all(any(address in network for network in networks) for address in addresses)
    assert len(networks) <= FEW or {network.prefixlen for network in networks} == {16}
