"""Free ports on loopback."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

LOWEST = 20_000

_given: set[int] = set()


def free_port() -> int:
    """A port on loopback on which nothing listens; never the same twice.

    It is below the range that the kernel uses for outgoing connections, so that it stays free until a process listens
    on it, and while a killed process is restarted.
    """
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    highest = ephemeral if ephemeral > LOWEST + 1000 else 32768
    while True:
        port = LOWEST + secrets.randbelow(highest - LOWEST)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
