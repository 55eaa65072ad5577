"""From the addresses of nodes to a proposal for ``allowedCIDRs``. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

WIDTHS: Final = {4: (24, 20, 16), 6: (64, 56, 48)}
"""Prefix lengths by family, narrow to wide: new nodes mostly come from the same subnet."""
FEW: Final = 8
"""Most networks of a proposal, so that a person can review it."""


def proposed(addresses: Iterable[str]) -> list[str]:
    """Networks that contain all of these addresses, with the narrowest width that gives at most FEW per family.

    What is no address is passed over. A proposal, for somebody to look at: the widest width may make more.
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
