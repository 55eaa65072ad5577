"""Finds hosts and addresses that an API server may not have, however they are spelled: above all, cloud metadata."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
_METADATA_ADDRESSES: Final = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254"))
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)*"
)
_NUMERIC_LABEL: Final = re.compile(r"\d+|0x[0-9a-f]*")


def address_refusal(text: str) -> str | None:
    """The reason why an API server may not have this IP address, or None.

    The client also checks the addresses that a name resolves to.

    Raises:
        ValueError: not an IP address.
    """
    address = _unwrapped(ipaddress.ip_address(text))
    if address in _METADATA_ADDRESSES:
        return "a cloud metadata service"
    if address.is_link_local:
        return "a link-local address"
    if address.is_loopback:
        return None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        return "not an address of one machine"
    return None


def _unwrapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address inside a mapped, 6to4 or NAT64 address; any other address unchanged."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def same_host(host: str) -> str:
    """The canonical spelling of a host name or address, for comparisons."""
    try:
        return str(_unwrapped(ipaddress.ip_address(host)))
    except ValueError:
        return host.lower().removesuffix(".")


def host_problem(host: str) -> str | None:
    """The reason why a kubeconfig may not name this host, or None."""
    if ":" in host or _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
        if "%" in host:
            return "an address with a zone, which means a different machine on every host"
        try:
            return address_refusal(host)
        except ValueError:  # for example 2852039166 or 0xa9fea9fe, which the resolver would accept as an address
            return "not a canonical IP address"
    if not DNS_NAME.fullmatch(host):
        return "not a host name (international names: in their xn-- form)"
    if host in _METADATA_NAMES:
        return "a cloud metadata service"
    return None


def is_address(text: str) -> bool:
    """Whether ``text`` is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
