"""The bytes of an HTTP probe: the request, and as much of the answer as decides. Pure.

The status line and a complete head of at most :data:`HEAD_LIMIT` bytes make an answer. The body is not read:
one that never ends costs nothing, and a head that never ends meets the probe's timeout or the limit.
"""

from __future__ import annotations

import re
from typing import Final

from hub.decide.checks import Check

HEAD_LIMIT: Final = 16_384
"""Most bytes that are read of an answer; proxies accept 8 to 16 KiB by default."""

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
_INTERIM: Final = (100, 102, 103)
"""Statuses that a final answer follows (RFC 9110 15.2); not 101, since the request asks for no other protocol."""


def request(check: Check, address: str) -> bytes:
    """The request to one address."""
    host = check.host or (f"[{address}]" if ":" in address else address) + f":{check.port}"
    lines = [f"{check.method} {check.path} HTTP/1.1", f"Host: {host}"]
    written = {name.lower() for name, _ in check.headers}
    lines += [line for name, line in _OURS if name not in written]
    lines += [f"{name}: {value}" for name, value in check.headers]
    return "\r\n".join((*lines, "", "")).encode("ascii")


_OURS: Final = (
    ("user-agent", "User-Agent: endpointslice-hub"),
    ("accept", "Accept: */*"),
    ("connection", "Connection: close"),
)


def status_of(received: bytes | bytearray) -> int | None:
    """The status of an answer; None while its head is not complete.

    Raises:
        ValueError: it is no HTTP/1 answer, or its head is too long.
    """
    start = 0
    while True:
        end = received.find(b"\r\n\r\n", start)
        if end < 0:
            break
        found = _STATUS.match(received, start)
        if found is None:
            raise ValueError("not an HTTP answer")
        status = int(found[1])
        if status not in _INTERIM:
            return status
        start = end + 4
    if len(received) >= HEAD_LIMIT:
        raise ValueError(f"a head of more than {HEAD_LIMIT} bytes")
    head = received[start : start + 13]
    if len(head) == 13 and not _STATUS.match(head):
        raise ValueError("not an HTTP answer")
    return None


def accepted(check: Check, status: int) -> bool:
    """Whether a status passes."""
    return any(first <= status <= last for first, last in check.status)
