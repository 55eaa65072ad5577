"""Asks a proxy for a tunnel to an API server: HTTP CONNECT (RFC 9110 9.3.6) or SOCKS5 (RFC 1928, 1929).

The tunnel carries the TLS connection to the API server, so the proxy sees a host name and a port, and no more. All
input from the proxy has a limit, and none of its text is quoted: it could repeat the password that it was sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Generator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from hub import __version__
from hub.kube.http1 import HEAD_LIMIT, MAX_INFORMATIONAL, Head, ProtocolError
from hub.kube.proxy import Proxy, authority
from hub.kube.tls_stream import TlsStream

Talk = Generator[bytes, None, None]
"""Yields the bytes to send to the proxy, or b"" to wait for more of its bytes; ends when the tunnel is open."""

_REPLIES: Final = {
    2: "its rules forbid this server: allow it there",
    3: "the server's network is unreachable from there",
    4: "the server is unreachable from there",
    5: "the server refuses its connections",
    6: "the server does not answer it in time",
    7: "it does not support CONNECT",
    8: "it does not support this kind of address",
}
"""SOCKS5 replies (RFC 1928 6)."""
_AWAY: Final = {3: "network", 4: "network", 5: "refused", 6: "timeout"}
"""SOCKS5 replies that say that the server does not answer the proxy, with the kind of ClusterUnreachable."""
_GATEWAY: Final = {502: "network", 503: "network", 504: "timeout"}
"""The same for HTTP."""


class TunnelError(OSError):
    """There is no tunnel.

    Attributes:
        kind: as in :class:`~hub.errors.ClusterUnreachable`: ``proxy`` if this says nothing about the API server.
    """

    def __init__(self, message: str, kind: str = "proxy") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Passage:
    """A way through a proxy.

    Attributes:
        host: the API server's name, which the proxy resolves, or its address.
        context: the TLS context for an https proxy.
    """

    proxy: Proxy
    host: str
    port: int
    context: ssl.SSLContext | None = None


class Tunnel(asyncio.Protocol):
    """The protocol of a connection to a proxy, until the tunnel is open.

    Attributes:
        passage: the proxy and the API server.
        open: whether the proxy has opened the tunnel.
    """

    def __init__(self, passage: Passage) -> None:
        self.passage = passage
        self.open = False
        self._received = bytearray()
        talk = _socks5 if passage.proxy.scheme.startswith("socks") else _connect
        self._talk = talk(passage, self._received)
        self._above: TlsStream | None = None
        self._transport: asyncio.Transport | None = None

    def lead_to(self, above: TlsStream) -> Tunnel | TlsStream:
        """The protocol for the connection to the proxy.

        Args:
            above: TLS to the API server, which takes the transport over once the tunnel is open. If there is no tunnel,
                its ``secured`` gets the error.
        """
        self._above = above
        if self.passage.proxy.scheme != "https":
            return self
        assert self.passage.context is not None  # noqa: S101 - else the login would not be encrypted
        outer = TlsStream(self, self.passage.context, self.passage.proxy.host)
        outer.secured.add_done_callback(self._entered)
        return outer

    def _entered(self, secured: asyncio.Future[None]) -> None:
        """TLS with the proxy is ready, or failed."""
        if not secured.cancelled() and (error := secured.exception()) is not None:
            self._fail(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The proxy accepts the connection: send the request."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is not a subclass of asyncio's
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Bytes of the proxy's answer."""
        self._received += data
        self._go_on()

    def eof_received(self) -> bool:
        """The proxy has closed its side: close the transport."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended before the tunnel was open."""
        self._fail(exc or ConnectionResetError("connection closed by the proxy"))
        self._transport = None

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _go_on(self) -> None:
        """Send what comes next, until the proxy's bytes are used up."""
        above, transport = self._above, self._transport
        if above is None or transport is None or above.secured.done():  # failed already, or the caller was cancelled
            self.abort()
            return
        try:
            while said := next(self._talk):
                transport.write(said)
        except StopIteration:
            self._opened(above, transport)
        except ProtocolError as error:
            self._fail(TunnelError(f"the proxy's answer is not acceptable: {error}; check that it is a proxy"))
        except TunnelError as error:
            self._fail(error.with_traceback(None))

    def _opened(self, above: TlsStream, transport: asyncio.Transport) -> None:
        if self._received:  # a TLS server waits for the client's first message
            self._fail(TunnelError("the proxy sends bytes that the API server cannot have sent"))
            return
        self.open = True
        self._above = None
        transport.set_protocol(above)
        above.connection_made(transport)

    def _fail(self, error: BaseException) -> None:
        above, self._above = self._above, None  # breaks the cycle of the error's traceback -> this object -> error
        if above is not None and not above.secured.done():
            above.secured.set_exception(error)
            above.secured.exception()  # marks the error as retrieved, which a cancelled caller would not do
        self.abort()


def before_tunnel(error: OSError, proxy: Proxy) -> TunnelError:
    """The error for a failure before the tunnel was open, which says nothing about the API server."""
    if isinstance(error, TunnelError):
        return error
    if isinstance(error, TimeoutError):
        return TunnelError("the proxy does not answer in time; check that it runs")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TunnelError(
            f"the proxy's certificate is not accepted: {error.verify_message}; add its authority to the kubeconfig's "
            "certificate-authority-data"
        )
    if isinstance(error, ssl.SSLError):
        return TunnelError(f"TLS with the proxy failed: {error.reason or error}; check that it is an https:// proxy")
    if isinstance(error, socket.gaierror):
        return TunnelError(f"the proxy's name does not resolve ({error.strerror})")
    if isinstance(error, ConnectionRefusedError):
        return TunnelError("the proxy refuses the connection; check that it runs")
    if isinstance(error, ConnectionError):
        hint = "" if proxy.scheme == "https" else "; check that it runs, and that its scheme is right"
        return TunnelError(f"the proxy closes the connection without an answer{hint}")
    return TunnelError(f"the proxy cannot be reached: {error.strerror or error}")


# --- the two protocols ---------------------------------------------------------------------------------


def _connect(passage: Passage, received: bytearray) -> Talk:
    proxy, place = passage.proxy, authority(passage.host, passage.port)
    login = f"Proxy-Authorization: Basic {proxy.login.basic()}\r\n" if proxy.login is not None else ""
    agent = f"User-Agent: endpointslice-hub/{__version__}\r\n"
    yield f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{agent}{login}\r\n".encode()
    for _ in range(MAX_INFORMATIONAL + 1):
        while (end := received.find(b"\r\n\r\n")) < 0 and len(received) <= HEAD_LIMIT:
            yield b""
        if not 0 <= end <= HEAD_LIMIT:
            raise ProtocolError(f"headers above {HEAD_LIMIT >> 10} KiB")
        status = Head(bytes(received[:end])).status
        if 200 <= status < 300:
            del received[: end + 4]
            return
        if status >= 200:
            raise _refused(status, proxy, place)
        del received[: end + 4]
    raise ProtocolError("1xx announcements without a final answer")


def _refused(status: int, proxy: Proxy, place: str) -> TunnelError:
    try:
        said = f"the proxy answers {status} {HTTPStatus(status).phrase}"
    except ValueError:
        said = f"the proxy answers {status}"
    if status in _GATEWAY:
        return TunnelError(f"{said}: {place} cannot be reached from there", _GATEWAY[status])
    if status == 407:
        return TunnelError(f"{said}: {_login_hint(proxy)}")
    if status == 403:
        return TunnelError(f"{said}: allow CONNECT to {place} there")
    return TunnelError(f"{said}: check that it is a proxy that allows CONNECT to {place}")


def _login_hint(proxy: Proxy) -> str:
    if proxy.login is not None:
        return "it does not accept the user and password of its URL"
    return f"it wants a login: write {proxy.scheme}://USER:PASSWORD@{authority(proxy.host, proxy.port)}"


def _socks5(passage: Passage, received: bytearray) -> Talk:
    proxy, login = passage.proxy, passage.proxy.login
    yield b"\x05\x02\x00\x02" if login is not None else b"\x05\x01\x00"
    version, method = yield from _take(received, 2)
    if version != 5:
        raise TunnelError("the proxy does not speak SOCKS5; check its scheme and port")
    if method == 2 and login is not None:
        pair = [part.reveal().encode() for part in (login.user, login.password)]
        yield b"\x01" + b"".join(bytes([len(part)]) + part for part in pair)
        _, refused = yield from _take(received, 2)
        if refused:
            raise TunnelError(f"the proxy refuses the login: {_login_hint(proxy)}")
    elif method:
        raise TunnelError(f"the proxy offers no usable authentication: {_login_hint(proxy)}")
    yield b"\x05\x01\x00" + _socks_address(passage.host) + passage.port.to_bytes(2, "big")
    version, reply, _, kind = yield from _take(received, 4)
    if version != 5:
        raise TunnelError("the proxy's answer is not SOCKS5")
    if reply:
        raise TunnelError(
            f"the proxy answers {reply} to {authority(passage.host, passage.port)}: "
            f"{_REPLIES.get(reply, 'it failed, see its log')}",
            _AWAY.get(reply, "proxy"),
        )
    size = {1: 4, 4: 16}.get(kind)
    if kind == 3:
        (size,) = yield from _take(received, 1)
    if size is None:
        raise TunnelError("the proxy's answer is not SOCKS5")
    yield from _take(received, size + 2)  # the proxy's own address and port, which are not used


def _socks_address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode()
        return b"\x03" + bytes([len(name)]) + name
    return (b"\x01" if address.version == 4 else b"\x04") + address.packed


def _take(received: bytearray, count: int) -> Generator[bytes, None, bytes]:
    """Take so many bytes off the received ones, once they are there."""
    while len(received) < count:
        yield b""
    taken = bytes(received[:count])
    del received[:count]
    return taken
