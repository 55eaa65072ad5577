"""Which addresses may be published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.addresses import REMEMBERED, Accepted, AddressPolicy, Rejected
from tests.support import build

ANYWHERE = build.networks("0.0.0.0/0", "::/0")

DENIED = [
    ("127.0.0.1", "loopback"),
    ("127.255.0.9", "loopback"),
    ("::1", "loopback"),
    ("169.254.1.1", "link-local"),
    ("fe80::1", "link-local"),
    ("224.0.0.5", "multicast"),
    ("239.1.2.3", "multicast"),
    ("ff02::1", "multicast"),
    ("255.255.255.255", "broadcast"),
    ("240.0.0.1", "reserved (240.0.0.0/4)"),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "this network (0.0.0.0/8)"),
    ("::", "unspecified"),
    ("::ffff:10.0.0.1", "IPv4-mapped"),
    ("::ffff:a00:1", "IPv4-mapped"),
    ("::10.0.0.1", "IPv4-compatible"),
    ("2002:7f00:1::", "6to4"),
    ("64:ff9b::a9fe:a9fe", "NAT64"),
    ("64:ff9b:1::1", "NAT64"),
    ("2001:0:1::1", "Teredo"),
    ("169.254.169.254", "cloud metadata"),
    ("100.100.100.200", "cloud metadata"),
    ("168.63.129.16", "cloud metadata"),
    ("fd00:ec2::254", "cloud metadata"),
    ("fd20:ce::254", "cloud metadata"),
]

NO_ADDRESSES = [
    ("010.0.0.1", "written with leading zeros"),
    ("10.0.0.01", "written with leading zeros"),
    ("::ffff:010.0.0.1", "written with leading zeros"),
    ("fe80::1%eth0", "an address with a zone"),
    ("2001:db8::1%1", "an address with a zone"),
    ("", "not an IP address"),
    ("metadata.google.internal", "not an IP address"),
    ("10.0.0.1/32", "not an IP address"),
    (" 10.0.0.1", "not an IP address"),
    ("10.0.0.1\n", "not an IP address"),
    ("0x0a000001", "not an IP address"),
    ("167772161", "not an IP address"),
    ("10.1", "not an IP address"),
    ("1" * 5000, "not an IP address"),
    ("١٠.0.0.1", "not an IP address"),
]


@pytest.mark.parametrize(("text", "reason"), DENIED)
def test_check_denies_even_where_everything_is_allowed(text: str, reason: str) -> None:
    """Always-denied addresses are denied even if 0.0.0.0/0 is allowed."""
    assert AddressPolicy(allowed=ANYWHERE).check(text) == Rejected(reason)


@pytest.mark.parametrize(("text", "reason"), NO_ADDRESSES)
@pytest.mark.parametrize("local", [False, True])
def test_check_refuses_ambiguous_address_text(text: str, reason: str, local: bool) -> None:
    """Text that parsers could read differently is never published, not even in a local copy."""
    assert AddressPolicy(allowed=ANYWHERE, local=local).check(text) == Rejected(reason)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", Accepted("10.0.0.1", "IPv4")),
        ("2001:0DB8:0000::0001", Accepted("2001:db8::1", "IPv6")),
        ("fd00::10", Accepted("fd00::10", "IPv6")),
        ("8.8.8.8", Accepted("8.8.8.8", "IPv4")),
        ("2a01:1111:2222:3333:4444:5555:255.255.255.255", Accepted("2a01:1111:2222:3333:4444:5555:ffff:ffff", "IPv6")),
    ],
)
def test_check_accepts_in_normal_form(text: str, expected: Accepted) -> None:
    """An accepted address is returned in the form in which the API server writes it."""
    assert AddressPolicy(allowed=ANYWHERE).check(text) == expected


def test_check_refuses_outside_allowed() -> None:
    """An address outside allowedCIDRs is refused."""
    assert AddressPolicy(allowed=build.networks("10.7.0.0/16")).check("10.8.0.1") == Rejected("outside allowedCIDRs")


def test_check_allows_nothing_without_allowed() -> None:
    """A remote cluster without allowedCIDRs publishes nothing."""
    assert AddressPolicy().check("10.0.0.1") == Rejected("outside allowedCIDRs")


def test_check_knows_families_apart() -> None:
    """An IPv4 network allows no IPv6 address."""
    assert isinstance(AddressPolicy(allowed=build.networks("0.0.0.0/0")).check("2001:db8::1"), Rejected)


def test_check_denied_wins_over_allowed() -> None:
    """A Service CIDR inside an allowed network stays denied."""
    policy = AddressPolicy(allowed=build.networks("10.0.0.0/8"), denied=build.networks("10.96.0.0/12"))
    assert policy.check("10.96.0.1") == Rejected("in a denied CIDR")


def test_check_names_the_hub_cluster_network_of_an_address() -> None:
    """The reason names which network of the hub cluster contains the address; neighbours are unaffected."""
    own = tuple((network, "the hub cluster's API server") for network in build.networks("10.0.0.7/32"))
    policy = AddressPolicy(build.networks("10.0.0.0/8"), build.networks("10.0.0.7/32"), own=own)
    assert policy.check("10.0.0.7") == Rejected("the hub cluster's API server")
    assert AddressPolicy(own=own).check("10.0.0.7") == Rejected("the hub cluster's API server")
    assert isinstance(policy.check("10.0.0.8"), Accepted)


@pytest.mark.parametrize("text", ["10.0.0.1", "240.0.0.1", "2002:a00:1::", "64:ff9b::a00:1"])
def test_check_local_needs_no_allow_list(text: str) -> None:
    """A copy within the hub cluster is accepted without allowedCIDRs."""
    assert isinstance(AddressPolicy(local=True).check(text), Accepted)


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "ff02::1", "100.100.100.200", "::ffff:127.0.0.1"]
)
def test_check_local_denies_dangerous_addresses(text: str) -> None:
    """Loopback, link-local, multicast and metadata addresses are also denied for local copies."""
    assert isinstance(AddressPolicy(local=True).check(text), Rejected)


@pytest.mark.parametrize("text", ["64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:1:1::5601:5601"])
def test_check_local_sees_through_disguises(text: str) -> None:
    """A transition address that contains a metadata or loopback address is denied for local copies."""
    assert isinstance(AddressPolicy(local=True).check(text), Rejected)


def test_check_local_honours_denied() -> None:
    """Denied CIDRs also apply to local copies."""
    policy = AddressPolicy(local=True, denied=build.networks("10.0.0.0/24"))
    assert policy.check("10.0.0.1") == Rejected("in a denied CIDR")


def test_check_remembers() -> None:
    """Checking the same text again returns the same object from the cache."""
    policy = AddressPolicy(allowed=ANYWHERE)
    assert policy.check("10.0.0.1") is policy.check("10.0.0.1")


def test_policies_compare_by_their_rules() -> None:
    """The cache of a policy does not affect equality or hash."""
    one, other = AddressPolicy(allowed=ANYWHERE), AddressPolicy(allowed=ANYWHERE)
    one.check("10.0.0.1")
    assert one == other
    assert hash(one) == hash(other)


def test_address_cache_stays_bounded_when_nodes_are_replaced() -> None:
    """The cache stays bounded in a cluster whose nodes are replaced again and again."""
    policy = AddressPolicy(allowed=ANYWHERE)
    for number in range(3 * REMEMBERED):
        policy.check(build.address(number))
    assert len(policy._memo) <= 2 * REMEMBERED


def test_address_result_is_cached() -> None:
    """The result for an address is still cached after hundreds of other addresses."""
    policy = AddressPolicy(allowed=ANYWHERE)
    first = policy.check("10.0.0.1")
    for number in range(2, 500):
        policy.check(build.address(number))
    assert policy.check("10.0.0.1") is first


def test_an_endpoint_keeps_the_decision_on_its_address() -> None:
    """A Node that reports its address as a new string uses the cached result while its endpoint exists."""
    policy = AddressPolicy(allowed=ANYWHERE)
    found = policy.check(build.address(1))
    assert isinstance(found, Accepted)
    address = found.address
    for number in range(2, 1000):
        policy.check(build.address(number))
    assert policy.check(build.address(1)) is found
    assert policy.check(address) is found


@given(st.text() | st.ip_addresses().map(str))
def test_check_never_raises_and_is_idempotent(text: str) -> None:
    """Any text gives a result, and an accepted address is accepted unchanged."""
    policy = AddressPolicy(allowed=ANYWHERE)
    answer = policy.check(text)
    if isinstance(answer, Accepted):
        assert policy.check(answer.address) == answer
