"""The bytes of an HTTP probe: its request, and the status of the answer. Pure.

An answer is complete with its head: the status line and headers, at most :data:`HEAD_LIMIT` bytes. The body is not
read, so an endless body costs nothing; an endless head ends at the limit or at the probe's timeout.
"""

from __future__ import annotations

import re
from typing import Final

from hub.decide.checks import Check

HEAD_LIMIT: Final = 16_384
"""Maximum bytes that are read of an answer; proxies accept 8 to 16 KiB by default."""

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
_INTERIM: Final = (100, 102, 103)
"""Interim statuses: a final answer follows (RFC 9110 15.2). Without 101, since the request asks for no upgrade."""


def authority(check: Check, address: str) -> str:
    """The host that a request names, by default the address and its port."""
    return check.host or (f"[{address}]" if ":" in address else address) + f":{check.port}"


def request(check: Check, address: str) -> bytes:
    """The request to one address; headers of the check replace the hub's own."""
    lines = [f"{check.method} {check.path} HTTP/1.1", f"Host: {authority(check, address)}"]
    written = {name.lower() for name, _ in check.headers}
    lines += [line for name, line in _OURS if name not in written]
    lines += [f"{name}: {value}" for name, value in check.headers]
    return "\r\n".join((*lines, "", "")).encode("ascii")


class HttpExchange:
    """The request to one address, and its answer; see :class:`hub.observe.health.flights.Exchange`."""

    __slots__ = ("_check", "_received", "unsent")

    def __init__(self, check: Check, address: str) -> None:
        self.unsent = request(check, address)
        self._check = check
        self._received = b""

    def receive(self, data: bytes) -> str | None:
        """Return the outcome once the head is complete."""
        self._received = (self._received + data)[:HEAD_LIMIT]
        try:
            status = status_of(self._received)
        except ValueError as wrong:
            return str(wrong)
        if status is None:
            return None
        return "" if accepted(self._check, status) else f"status {status}"


_OURS: Final = (
    ("user-agent", "User-Agent: endpointslice-hub"),
    ("accept", "Accept: */*"),
    ("connection", "Connection: close"),
)


def status_of(received: bytes | bytearray) -> int | None:
    """The status of an answer; None while its head is not complete.

    Raises:
        ValueError: the answer is not HTTP/1, or its head is too long.
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
    """Whether the check accepts a status."""
    return any(first <= status <= last for first, last in check.status)
