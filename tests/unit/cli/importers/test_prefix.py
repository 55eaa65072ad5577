"""The conversion of a text prefix of addresses into networks."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.cli.importers.prefix import networks
from hub.errors import HubError


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", ["0.0.0.0/0"]),
        ("10.", ["10.0.0.0/8"]),
        ("10.0.", ["10.0.0.0/16"]),
        ("10.0.0.", ["10.0.0.0/24"]),
        ("10.0.0", ["10.0.0.0/24"]),
        ("10.0.0.7", ["10.0.0.7/32", "10.0.0.70/31", "10.0.0.72/29"]),
        ("10.0.26", ["10.0.26.0/24"]),
        ("10.7.25", ["10.7.25.0/24", "10.7.250.0/23", "10.7.252.0/22"]),
    ],
)
def test_a_prefix_is_these_networks(prefix: str, expected: list[str]) -> None:
    """A number that is cut off stands for all numbers that begin with its digits."""
    assert networks(prefix) == expected


@pytest.mark.parametrize(
    "prefix", ["10.0.0.0.", "256.", "10.0.300", "10.01.", "10..", "fd00:", "10.0.0.0/24", "x", " 10."]
)
def test_a_prefix_of_no_address_is_a_mistake(prefix: str) -> None:
    """A prefix that no IPv4 address has is refused."""
    with pytest.raises(HubError, match=r"no IPv4 address starts with .*write allowedCIDRs by hand"):
        networks(prefix)


ADDRESSES = st.one_of(
    st.integers(0, 2**32 - 1),
    st.tuples(*[st.sampled_from([0, 1, 2, 10, 19, 25, 100, 199, 250, 255])] * 4).map(
        lambda octets: int.from_bytes(bytes(octets))
    ),
).map(IPv4Address)


@given(ADDRESSES, ADDRESSES, st.integers(0, 15))
def test_networks_match_exactly_the_addresses_with_the_prefix(one: IPv4Address, other: IPv4Address, cut: int) -> None:
    """An address is in the networks if and only if its text starts with the prefix."""
    prefix = str(one)[:cut]
    found = [ip_network(each) for each in networks(prefix)]

    for address in (one, other):
        inside = any(address in network for network in found if isinstance(network, IPv4Network))
        assert inside == str(address).startswith(prefix)
