"""A small HTTP server for probes and metrics: one request per connection, without a body.

It implements only the part of HTTP that a kubelet and Prometheus need, since aiohttp.web would take 10 MB of memory
(measured), a fifth of the hub's. Slow clients, large requests and excess connections are cut off, so that they do not
affect others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, Protocol

import msgspec

from hub.errors import HubError

log = logging.getLogger(__name__)

HEAD_LIMIT: Final = 8192
"""Most bytes of a request line and headers; a kubelet sends 200, Prometheus 600."""
PATIENCE: Final = 5.0
"""Seconds for a whole request, including sending the answer; a kubelet waits 1 s by default, Prometheus 10 s."""
AT_ONCE: Final = 32
"""Most concurrent connections; a kubelet, a load balancer and Prometheus have one each."""
BACKLOG: Final = 128
"""Most connections that wait in the kernel to be accepted."""
REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[!->@-~]*)(?:\?([!-~]*))? HTTP/1\.[01]\r\n")
"""Matches a request line: method, path, query. Like :data:`HEADER` it has no ambiguous parts, so that matching takes
linear time for every input."""
HEADER: Final = re.compile(rb"^([!-9;-~]+):([^\r\n]*)\r$", re.MULTILINE)


class Address(Protocol):
    """An address to listen on; ``host`` None = all addresses of this machine."""

    @property
    def host(self) -> str | None: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102


class Request(msgspec.Struct, frozen=True):
    """A request; ``headers`` by lower-case name."""

    path: str
    query: str
    headers: Mapping[str, str]


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: str = ""


Answer = Callable[[Request], Awaitable[Reply]]


@asynccontextmanager
async def listening(
    address: Address | None,
    answer: Answer,
    *,
    flag: str,
    what: str,
    own_names: bool = False,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Answer requests while the context is open.

    Args:
        address: the address to listen on; None = do not listen.
        answer: called for GET and HEAD; other methods are refused.
        flag: the option that the address comes from, for errors.
        what: the subject of the log line, such as ``metrics``.
        own_names: on a loopback address, refuse a Host that is neither an address nor localhost, against DNS rebinding
            from a browser.
        tls: serves TLS with its certificate; None = plain HTTP.

    Raises:
        HubError: the address cannot be listened on.
    """
    if address is None:
        yield
        return
    connections = _Connections(answer, check_host=own_names and is_loopback(address.host))
    sockets = await bind(address, flag=flag, what=what)
    handshake = PATIENCE if tls is not None else None
    servers = [
        await asyncio.start_server(
            connections.serve, sock=socket_, limit=HEAD_LIMIT, ssl=tls, ssl_handshake_timeout=handshake
        )
        for socket_ in sockets
    ]
    log.info("serving %s on %s", what, ", ".join(sorted(map(host_and_port, sockets))))
    try:
        yield
    finally:
        for server in servers:
            server.close()
        connections.abort()


async def bind(address: Address, *, flag: str, what: str) -> list[socket.socket]:
    """Open listening sockets, one for each IP address of the host.

    Args:
        address: the address to listen on.
        flag: the option that the address comes from, for errors.
        what: the service on the address, for errors.

    Raises:
        HubError: the address cannot be listened on.
    """
    loop = asyncio.get_running_loop()
    bound: list[socket.socket] = []
    try:
        infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, proto, _, where in dict.fromkeys(infos):
            try:
                bound.append(_bound(family, kind, proto, where))
            except OSError as error:
                # The host name may resolve to IPv4 and IPv6 although this machine supports only one of them.
                missing = error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
                if not missing or (not bound and where == infos[-1][4]):
                    raise
    except OSError as error:
        for socket_ in bound:
            socket_.close()
        reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise HubError(f"{flag} {address}: {reason}; give another HOST:PORT, or 0 for no {what}") from error
    return bound


def _bound(family: int, kind: int, proto: int, where: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, kind, proto)
    try:
        made.setblocking(False)  # noqa: FBT003 - the socket's own signature
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def host_and_port(bound: socket.socket) -> str:
    """The address of a listening socket, as in a URL."""
    host, port, *_ = bound.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Connections:
    def __init__(self, answer: Answer, *, check_host: bool) -> None:
        self._answer = answer
        self._check_host = check_host
        self._open: dict[asyncio.StreamWriter, bool] = {}
        """Open connections, the oldest first -> whether the request has arrived."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        try:
            # Without room, the connection is closed at once instead of waiting.
            if self._make_room():
                self._open[writer] = False
                async with asyncio.timeout(PATIENCE):
                    writer.write(await self._respond(reader, writer))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            log.debug("a client closed its connection before the answer")
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def abort(self) -> None:
        """Close all connections at once."""
        for writer in self._open:
            writer.transport.abort()

    def _make_room(self) -> bool:
        """Whether another connection can be served; if necessary, close the oldest one without a request."""
        if len(self._open) < AT_ONCE:
            return True
        silent = next((writer for writer, requested in self._open.items() if not requested), None)
        if silent is None:
            return False
        del self._open[silent]
        silent.transport.abort()
        return True

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(Reply(431, b"too large\n"))
        self._open[writer] = True
        found = REQUEST.match(head)
        if found is None:
            return _response(Reply(400, b"not a request\n"))
        method, path, query = (part.decode("ascii") for part in found.groups(b""))
        if method not in ("GET", "HEAD"):
            return _response(Reply(405, b"only GET\n", headers="Allow: GET, HEAD\r\n"))
        headers = {
            name.lower().decode(): value.strip(b" \t").decode("latin-1")
            for name, value in HEADER.findall(head[found.end() :])
        }
        if self._check_host and not _is_own(headers.get("host", "")):
            return _response(Reply(421, b"not a name of this server\n"))
        try:
            reply = await self._answer(Request(path, query, headers))
        except Exception:
            log.exception("%s was not answered", path)
            reply = Reply(500, b"internal error; see the log\n")
        return _response(reply, body=method == "GET")


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can reach an address; False for names other than localhost."""
    if host is None:
        return False
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_own(host: str) -> bool:
    name = re.sub(r":\d{1,5}$", "", host)
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return name.lower() in ("", "localhost")
    return True


def _response(reply: Reply, *, body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\nContent-Type: {reply.content_type}\r\n"
        f"X-Content-Type-Options: nosniff\r\nContent-Length: {len(reply.body)}\r\n{reply.headers}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (reply.body if body else b"")
