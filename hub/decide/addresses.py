"""Decide which addresses may be published.

The API server accepts ClusterIPs, broadcast addresses and disguised cloud metadata addresses in slices, and a
compromised node can report any address. This module rejects them. It is called before probing and before publishing,
so each policy caches its results. It must never turn an invalid address into a valid one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from hub.registry.spec import Network
from hub.runtime.recent import Recent

IPV4: Final = "IPv4"
IPV6: Final = "IPv6"

REMEMBERED: Final = 10_000
"""Cached results per policy: the addresses of the largest tested cluster in both families. A miss costs 5 µs."""

OUTSIDE: Final = "outside allowedCIDRs"
"""The reason for an address that is in no network of the cluster's allowedCIDRs."""
LONGEST_ADDRESS: Final = 45
"""Characters of the longest textual IP address, an IPv6 address that ends in dotted decimal."""

_METADATA: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        "169.254.169.254",  # AWS, GCP, Azure, OpenStack, IONOS
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's wire server
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # GCP
        "fd00:42::42",  # Scaleway
    )
)

OwnNetwork = tuple[Network, str]
"""A network of the hub cluster itself, and the :class:`Rejected` reason for addresses inside it."""

_DENIED_ALWAYS: Final[tuple[tuple[Network, str], ...]] = (
    *((network, "cloud metadata") for network in _METADATA),
    (ip_network("127.0.0.0/8"), "loopback"),
    (ip_network("::1"), "loopback"),
    (ip_network("169.254.0.0/16"), "link-local"),
    (ip_network("fe80::/10"), "link-local"),
    (ip_network("224.0.0.0/4"), "multicast"),
    (ip_network("ff00::/8"), "multicast"),
    # An IPv4 address in disguise. The API server refuses these, so copies never contain one.
    (ip_network("::ffff:0:0/96"), "IPv4-mapped"),
)
"""Denied for all sources, including copies within the hub cluster."""

_DENIED_REMOTE: Final[tuple[tuple[Network, str], ...]] = (
    (ip_network("0.0.0.0/32"), "unspecified"),
    (ip_network("::"), "unspecified"),
    (ip_network("0.0.0.0/8"), "this network (0.0.0.0/8)"),
    (ip_network("255.255.255.255"), "broadcast"),
    (ip_network("240.0.0.0/4"), "reserved (240.0.0.0/4)"),
    (ip_network("::/96"), "IPv4-compatible"),
    (ip_network("2002::/16"), "6to4"),
    (ip_network("64:ff9b::/96"), "NAT64"),
    (ip_network("64:ff9b:1::/48"), "NAT64"),
    (ip_network("2001::/32"), "Teredo"),
)
"""Denied only for remote clusters."""


_Table = tuple[tuple[int, int, str], ...]


def _compiled(table: Sequence[tuple[Network, str]]) -> Mapping[int, _Table]:
    """(mask, network, reason) with integers, by IP version: ten times as fast as ``address in network``."""
    return {
        version: tuple(
            (int(network.netmask), int(network.network_address), reason)
            for network, reason in table
            if network.version == version
        )
        for version in (4, 6)
    }


_BY_VERSION: Final = _compiled(_DENIED_ALWAYS + _DENIED_REMOTE)
_BY_VERSION_LOCAL: Final = _compiled(_DENIED_ALWAYS)


@dataclass(frozen=True, slots=True)
class Accepted:
    """An address that may be published. ``address`` is its normal form, ``family`` is ``IPv4`` or ``IPv6``."""

    address: str
    family: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An address that must not be published; ``reason`` completes "it is …" and never quotes the address."""

    reason: str


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The addresses that one source may publish.

    Attributes:
        allowed: the cluster's allowedCIDRs; ignored if ``local``.
        denied: the registry's deniedCIDRs.
        local: whether the source is a copy within the hub cluster. Such a source has no allow-list, and besides
            ``denied`` only loopback, link-local, multicast, cloud metadata and IPv4-mapped addresses are denied.
        own: the hub cluster's own networks, denied for remote clusters; empty for copies.
    """

    allowed: tuple[Network, ...] = ()
    denied: tuple[Network, ...] = ()
    local: bool = False
    own: tuple[OwnNetwork, ...] = ()
    _memo: Recent[str, Accepted | Rejected] = field(
        default_factory=lambda: Recent(REMEMBERED), init=False, repr=False, compare=False, hash=False
    )

    def check(self, text: str) -> Accepted | Rejected:
        """Normalise ``text`` and decide; never raises, whatever the text is."""
        known = self._memo.get(text)
        if known is None:
            known = self._memo.put(text, self._decide(text))
        return known

    def accepts(self, text: str) -> bool:
        """Whether ``text`` may be published and is in normal form."""
        found = self.check(text)
        return isinstance(found, Accepted) and found.address == text

    def _decide(self, text: str) -> Accepted | Rejected:
        address = parse(text)
        if isinstance(address, Rejected):
            return address
        reason = _denied_reason(address, _BY_VERSION_LOCAL if self.local else _BY_VERSION)
        if reason is None and self.local:
            inner = _embedded(address)
            reason = _denied_reason(inner, _BY_VERSION_LOCAL) if inner is not None else None
        if reason is not None:
            return Rejected(reason)
        for network, what in self.own:
            if address in network:
                return Rejected(what)
        if _inside(address, self.denied):
            return Rejected("in a denied CIDR")
        if not self.local and not _inside(address, self.allowed):
            return Rejected(OUTSIDE)
        normal = str(address)
        return Accepted(text if normal == text else normal, IPV4 if address.version == 4 else IPV6)


def parse(text: str) -> IPv4Address | IPv6Address | Rejected:
    """Parse one address strictly: without zone, leading zeros, surrounding space or prefix length."""
    if len(text) > LONGEST_ADDRESS:
        return Rejected("not an IP address")
    if "%" in text:
        return Rejected("an address with a zone")
    try:
        return ip_address(text)
    except ValueError:
        return Rejected("written with leading zeros" if _leading_zeros(text) else "not an IP address")


def _leading_zeros(text: str) -> bool:
    decimals = text.rpartition(":")[2].split(".")
    return len(decimals) == 4 and any(len(part) > 1 and part.startswith("0") for part in decimals)


def _inside(address: IPv4Address | IPv6Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _denied_reason(address: IPv4Address | IPv6Address, tables: Mapping[int, _Table]) -> str | None:
    number = int(address)
    for mask, network, reason in tables[address.version]:
        if number & mask == network:
            return reason
    return None


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside a 6to4, Teredo or NAT64 address; None for other addresses."""
    if isinstance(address, IPv4Address):
        return None
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


_NAT64: Final = IPv6Network("64:ff9b::/96")
