"""Hosts that an API server may not have; kubeconfigs with such hosts are in test_kubeconfig_hostile.py."""

from __future__ import annotations

import pytest

from hub.kube.hosts import address_refusal, host_problem, is_address, same_host

METADATA = "a cloud metadata service"
LINK_LOCAL = "a link-local address"
NOT_ONE = "not an address of one machine"
NO_NAME = "not a host name (international names: in their xn-- form)"


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "8.8.8.8", "2001:db8::1", "64:ff9b::a00:1"])
def test_ordinary_addresses_are_not_refused(address: str) -> None:
    """Private, public and loopback addresses may be API servers."""
    assert address_refusal(address) is None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("169.254.169.254", METADATA),
        ("64:ff9b::a9fe:a9fe", METADATA),
        ("2002:a9fe:a9fe::1", METADATA),
        ("::ffff:169.254.1.1", LINK_LOCAL),
        ("fe80::1", LINK_LOCAL),
        ("0.0.0.0", NOT_ONE),
        ("::", NOT_ONE),
        ("224.0.0.1", NOT_ONE),
        ("ff02::1", NOT_ONE),
        ("240.0.0.1", NOT_ONE),
        ("64:ff9b::f000:1", NOT_ONE),
    ],
)
def test_address_refusal_names_a_reason(address: str, reason: str) -> None:
    """Forbidden addresses are refused in every spelling, with a reason."""
    assert address_refusal(address) == reason


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("api.example.com", None),
        ("127.0.0.1", None),
        ("2001:db8::1", None),
        ("metadata", METADATA),
        ("169.254.169.254", METADATA),
        ("fe80::1", LINK_LOCAL),
        ("2852039166", "not a canonical IP address"),
        ("api.0x7f", "not a canonical IP address"),
        ("2001:db8::1%eth0", "an address with a zone, which means a different machine on every host"),
        ("", NO_NAME),
        ("api%eth0", NO_NAME),
        ("-api", NO_NAME),
        ("a" * 63, None),
        ("a" * 64, NO_NAME),
        (".".join(["a" * 49] * 5) + ".bcd", None),
        (".".join(["a" * 49] * 5) + ".bcde", NO_NAME),
    ],
)
def test_the_problem_of_a_host_is_named(host: str, problem: str | None) -> None:
    """Names and canonical addresses are accepted; a name whose last label is a number is read as an address."""
    assert host_problem(host) == problem


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        ("API.Example.com.", "api.example.com"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("64:ff9b::a00:1", "10.0.0.1"),
        ("64:ff9b::ffff:fffe", "255.255.255.254"),
        ("2002:a00:1::", "10.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
    ],
)
def test_spellings_of_one_host_are_the_same(host: str, canonical: str) -> None:
    """An IPv4 address inside an IPv6 address is that IPv4 address; names have no case and no final dot."""
    assert same_host(host) == canonical


def test_addresses_are_told_from_names() -> None:
    """IPv4 and IPv6 addresses are addresses, names and spellings of other parsers are not."""
    assert [is_address(text) for text in ("10.0.0.1", "::1", "api", "", "0xa9fea9fe")] == [
        True,
        True,
        False,
        False,
        False,
    ]
