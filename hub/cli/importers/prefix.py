"""Turns a text prefix of addresses into networks: ``10.0.0.`` is 10.0.0.0/24, ``10.0.1`` is several networks."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, collapse_addresses

from hub.errors import HubError

EVERYTHING = "0.0.0.0/0"


def networks(prefix: str) -> list[str]:
    """The IPv4 networks that hold exactly the addresses whose text starts with ``prefix``.

    A prefix that does not end with a dot may end inside a number: ``10.0.1`` also covers 10.0.10.0 to 10.0.19.255 and
    10.0.100.0 to 10.0.199.255, since prefixes are compared as text.

    Raises:
        HubError: no IPv4 address starts like this.
    """
    parts = prefix.split(".")
    done, cut = parts[:-1], parts[-1]
    if len(parts) > 4 or not all(_octet(part) for part in done):
        raise _none(prefix)
    last = [number for number in range(256) if str(number).startswith(cut)]
    if not last or not (cut == "" or cut.isdecimal()):
        raise _none(prefix)
    if cut == "":
        return [_network(done)]
    return [
        str(network) for network in collapse_addresses(IPv4Network(_network([*done, str(number)])) for number in last)
    ]


def _octet(part: str) -> bool:
    return part.isascii() and part.isdecimal() and str(int(part)) == part and int(part) < 256


def _network(octets: Sequence[str]) -> str:
    return ".".join([*octets, *["0"] * (4 - len(octets))]) + f"/{8 * len(octets)}"


def _none(prefix: str) -> HubError:
    return HubError(f"no IPv4 address starts with {prefix[:64]!r}: write allowedCIDRs by hand")
