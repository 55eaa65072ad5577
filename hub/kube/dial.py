"""Opens a connection to an API server: TCP to the first address that answers, then TLS, then HTTP/1.1.

If there is a proxy, the addresses are the proxy's, and TLS begins once the proxy has opened a tunnel.

The traceback of an error refers to the frames that it passed through. These frames delete their own references to the
error: otherwise the cycle would keep the error and its connection in memory until the garbage collector runs.
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
from hub.kube.tunnel import Passage, Tunnel, before_tunnel
from hub.runtime.rounds import own_round

ADDRESS_TIMEOUT: Final = 3.0
"""The longest time for one of several addresses, in seconds; the last address has all the remaining time."""


async def connect(
    addresses: Sequence[Address],
    context: ssl.SSLContext,
    server_hostname: str,
    within: float,
    *,
    passage: Passage | None = None,
) -> tuple[Connection, Address]:
    """Connect to the first address that answers; returns the connection and that address.

    The addresses are tried one after the other. An address that does not answer gets an equal share of the remaining
    time at most, so that every address after it is tried too.

    Args:
        addresses: the addresses of the server, or of its proxy.
        context: the TLS context.
        server_hostname: the name to verify in the server's certificate.
        within: seconds for all addresses together.
        passage: the way through the proxy; None = the server is contacted directly.

    Raises:
        OSError, ssl.SSLError: no address gave a connection. The error is the last TLS error, else the last error of any
            kind: a refused certificate says more than another address that is dead.
    """
    last: OSError = OSError("the name has no address")
    now = asyncio.get_running_loop().time
    end = now() + within
    try:
        for others, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            share = (end - now()) / (others + 1)
            tunnel = Tunnel(passage) if passage is not None else None
            try:
                async with asyncio.timeout(min(share, ADDRESS_TIMEOUT) if others else share):
                    return await _connect(*address, context, server_hostname, tunnel), address
            except OSError as error:  # TimeoutError is one
                if tunnel is not None and not tunnel.open:
                    last = before_tunnel(error, tunnel.passage.proxy)
                elif isinstance(error, ssl.SSLError) or not isinstance(last, ssl.SSLError):
                    last = error
        raise last
    finally:
        del last  # breaks the cycle of the error's traceback -> this frame -> error


async def _connect(
    family: socket.AddressFamily,
    host: str,
    port: int,
    context: ssl.SSLContext,
    server_hostname: str,
    tunnel: Tunnel | None,
) -> Connection:
    loop = asyncio.get_running_loop()
    await own_round()
    connection = Connection(loop)
    stream = TlsStream(connection, context, server_hostname)
    lowest = stream if tunnel is None else tunnel.lead_to(stream)
    sock = _socket(family)
    try:
        await loop.sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    # From here on the socket belongs to a transport. If its creation were cancelled half-way, the event loop could keep
    # watching a closed descriptor whose number another socket gets. Therefore the creation always completes, and the
    # transport is closed afterwards.
    made = asyncio.ensure_future(loop.create_connection(partial(_return_protocol, lowest), sock=sock))
    inode = os.fstat(sock.fileno()).st_ino
    made.add_done_callback(lambda _: _detach_if_closed(sock, inode))
    try:
        await asyncio.shield(made)
        await stream.secured
    except asyncio.CancelledError:
        made.add_done_callback(partial(_abort, lowest))
        raise
    finally:
        del made, stream, lowest  # breaks the cycle of an error's traceback -> this frame -> future -> error
    return connection


def _return_protocol(protocol: TlsStream | Tunnel) -> TlsStream | Tunnel:
    return protocol


def _abort(protocol: TlsStream | Tunnel, _: object) -> None:
    protocol.abort()


def _detach_if_closed(sock: socket.socket, inode: int) -> None:
    """Detach a socket object whose descriptor the transport has already closed.

    uvloop closes the descriptor if a RST arrives while the transport is set up. The socket object would close the same
    number once more when it is freed, and by then another connection may have that number.
    """
    try:
        kept = os.fstat(sock.fileno()).st_ino == inode
    except OSError:
        kept = False
    if not kept:
        sock.detach()


def _socket(family: socket.AddressFamily) -> socket.socket:
    """A TCP socket with keepalive, so that the system detects a dead peer even if the read timeout does not."""
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
