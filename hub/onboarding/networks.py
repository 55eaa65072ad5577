"""Proposes ``allowedCIDRs`` for a cluster from the addresses of its nodes. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

WIDTHS: Final = {4: (24, 20, 16), 6: (64, 56, 48)}
"""Prefix lengths by IP version, narrow to wide. A whole subnet is proposed, since new nodes mostly come from it."""
FEW: Final = 8
"""A proposal of more networks per IP version is hard to review; the next wider prefix is tried."""


def proposed(addresses: Iterable[str]) -> list[str]:
    """Networks that contain all of these addresses, for the user to review.

    For each IP version they have the narrowest of WIDTHS that gives at most FEW networks, or the widest one, which may
    give more. Texts that are not addresses, and loopback, link-local and multicast addresses are ignored.
    """
    found = sorted({address for text in addresses if (address := _address(text)) is not None}, key=str)
    return list(
        chain.from_iterable(
            _covering([address for address in found if address.version == version]) for version in (4, 6)
        )
    )


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if address.is_loopback or address.is_link_local or address.is_multicast else address


def _covering(addresses: Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> list[str]:
    networks: list[str] = []
    for width in WIDTHS[addresses[0].version] if addresses else ():
        nets = {ipaddress.ip_network((address, width), strict=False) for address in addresses}
        networks = [str(net) for net in sorted(nets, key=lambda net: net.network_address.packed)]
        if len(networks) <= FEW:
            break
    return networks
