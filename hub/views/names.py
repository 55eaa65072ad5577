"""Names of views: the hub's own names, and the exact names of dcontroller's endpointslice-controller. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
WIDTH: Final = 25
"""Digits of an MD5 in base 36, zero-padded."""
OWN_LENGTH: Final = 10
"""Digits of the hash in the hub's own names: 50 bits, so that about one in 300,000 Services with 100,000 endpoints has
a collision."""
COMPAT_LENGTH: Final = 6
"""Digits of the hash in dcontroller's names."""


def digest(value: object) -> str:
    """The MD5 of the compact JSON with sorted keys, as a big-endian number in base 36, padded to :data:`WIDTH`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    number = int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest(), "big")
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = DIGITS[rest] + digits
    return digits.zfill(WIDTH)


def own_name(cluster: str, service: str, protocol: str, port: int, address: str) -> str:
    """``<service>-<hash>``, where the hash is of values that do not change while the endpoint exists."""
    return f"{service}-{digest([cluster, service, protocol, port, address])[:OWN_LENGTH]}"


def compat_name(service: str, spec: Mapping[str, object]) -> str:
    """``<service>-<hash>``, where the hash is of the whole spec."""
    return f"{service}-{digest(spec)[:COMPAT_LENGTH]}"


def gathered_name(service: str, protocol: str, port: int) -> str:
    """``<service>-<PROTOCOL>-<port>``."""
    return f"{service}-{protocol}-{port}"
