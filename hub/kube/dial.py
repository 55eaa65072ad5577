"""Opens a connection to an API server: the first address that answers, TLS over it, HTTP/1.1 over that.

An error that is raised here leads by its traceback to the frames it went through. They let go of what keeps the error:
else each would keep the other, and a connection with it, until the garbage collector comes by.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Final

from hub.kube.http1 import Connection
from hub.kube.resolver import Address
from hub.kube.tls_stream import TlsStream
from hub.runtime.rounds import own_round

ADDRESS_TIMEOUT: Final = 3.0
"""Seconds for one of several addresses, at most; the last one has all that is left."""


async def connect(
    addresses: Sequence[Address],
    context: ssl.SSLContext,
    server_hostname: str,
    within: float,
) -> tuple[Connection, Address]:
    """Connect to the first address that answers, within so many seconds; the connection, and which one did.

    An address that does not answer leaves time for each that comes after it, however many these are.

    Raises:
        OSError, ssl.SSLError: none of them did; the last one's error, but that of TLS before all others: where a
            certificate is refused somebody is there, be it that the other addresses are dead.
    """
    last: OSError = OSError("the name has no address")
    now = asyncio.get_running_loop().time
    end = now() + within
    try:
        for others, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            share = (end - now()) / (others + 1)
            try:
                async with asyncio.timeout(min(share, ADDRESS_TIMEOUT) if others else share):
                    return await _connect(*address, context, server_hostname), address
            except OSError as error:  # TimeoutError is one
                if isinstance(error, ssl.SSLError) or not isinstance(last, ssl.SSLError):
                    last = error
        raise last
    finally:
        del last  # its traceback leads to this frame


async def _connect(
    family: socket.AddressFamily, host: str, port: int, context: ssl.SSLContext, server_hostname: str
) -> Connection:
    loop = asyncio.get_running_loop()
    await own_round()
    connection = Connection(loop)
    stream = TlsStream(connection, context, server_hostname)
    sock = _socket(family)
    try:
        await loop.sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    # From here on the socket belongs to a transport. One that is cancelled half-way can be left registered with a
    # socket that is closed, and whose number another one gets: so it is made in any case, and closed then.
    made = asyncio.ensure_future(loop.create_connection(partial(_itself, stream), sock=sock))
    inode = os.fstat(sock.fileno()).st_ino
    made.add_done_callback(lambda _: _handed_over(sock, inode))
    try:
        await asyncio.shield(made)
        await stream.secured
    except asyncio.CancelledError:
        made.add_done_callback(partial(_abort, stream))
        raise
    finally:
        del made, stream  # they keep the error that may be on its way, whose traceback leads to this frame
    return connection


def _itself(stream: TlsStream) -> TlsStream:
    return stream


def _abort(stream: TlsStream, _: object) -> None:
    stream.abort()


def _handed_over(sock: socket.socket, inode: int) -> None:
    """Let go of a socket that its transport has closed behind its back.

    uvloop does so where a RST arrives before it knows whose number it has. The socket would close that number once
    more when it is collected, and by then the number is another connection's.
    """
    try:
        kept = os.fstat(sock.fileno()).st_ino == inode
    except OSError:
        kept = False
    if not kept:
        sock.detach()


def _socket(family: socket.AddressFamily) -> socket.socket:
    """A TCP socket that notices a dead peer by itself, as a second net under the read timeout."""
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock
