"""A small HTTP server on each node, all in one process: it answers the node's name.

Reads commands as JSON lines: ``{"up": "n1", "netns": "/proc/…", "port": 30080}``, ``{"down": "n1"}``. Answers each with
one line: ``ok``, or what failed. Ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import sys
from typing import Any, cast

import uvloop

CLONE_NEWNET = 0x40000000


class Backend(asyncio.Protocol):
    """Answers one request and closes the connection."""

    def __init__(self, name: str) -> None:
        self._answer = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(name)}\r\nConnection: close\r\n\r\n{name}"
        ).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        self._transport.write(self._answer)
        self._transport.close()


def listening_socket(netns: str, port: int) -> socket.socket:
    """A socket that listens in another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        with open(path, "rb") as file:
            if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"{path}: {os.strerror(ctypes.get_errno())}")

    enter(netns)
    try:
        made = socket.create_server(("0.0.0.0", port), backlog=1024)
    finally:
        enter(f"/proc/{os.getppid()}/ns/net")
    made.setblocking(False)  # noqa: FBT003
    return made


async def serve() -> None:
    """Carry out the commands."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    servers: dict[str, asyncio.Server] = {}

    async def carry_out(command: dict[str, Any]) -> None:
        if name := command.get("up"):
            made = listening_socket(command["netns"], command["port"])
            servers[name] = await loop.create_server(lambda: Backend(name), sock=made, backlog=1024)
        elif server := servers.pop(command["down"], None):
            server.close()

    while line := await commands.readline():
        try:
            await carry_out(json.loads(line))
            print("ok", flush=True)
        except OSError as error:
            print(error, flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
