"""Probes under way: each flight handles the events of its socket.

Sockets are non-blocking and watched edge-triggered, so every ``step`` must continue until the kernel would block.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Final, Protocol

PASSED: Final = ""
RECEIVE: Final = 16_384
"""Bytes that are read at a time; the largest record of TLS."""

_FLAGS: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""Probes close their connection with a reset: 1,000 regularly closed connections a second would leave 60,000 of them in
TIME_WAIT, on this machine or in a NAT on the way."""


class Flight(Protocol):
    """One connection. ``step`` returns "" for a pass, the reason of a failure, or None to continue."""

    sock: socket.socket

    def step(self) -> str | None:
        """Do everything that is possible without waiting."""
        ...


class Exchange(Protocol):
    """The bytes of one request and its answer, without a socket.

    Attributes:
        unsent: what is to be sent next; the flight removes what it has sent.
    """

    unsent: bytes

    def receive(self, data: bytes) -> str | None:
        """Take received bytes; returns "" for a pass, the reason of a failure, or None to continue."""
        ...


Opener = Callable[[socket.socket, str], Flight | None]
"""Makes a flight from a connecting socket and its address; None if the check is not possible at the moment."""


def connection(address: str, port: int) -> tuple[socket.socket, int]:
    """A socket that connects to an IP address, and the error number of the attempt (usually EINPROGRESS).

    Raises:
        OSError: the system cannot open another socket.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, _FLAGS, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    return sock, sock.connect_ex((address, port))


def in_words(number: int) -> str:
    """The text of an error number: ``connection refused``."""
    return os.strerror(number).lower()


class TcpFlight:
    """A tcp check: passes when the connection is established."""

    __slots__ = ("sock",)

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def step(self) -> str | None:
        """Return the result of the connection attempt, which the first event of the socket announces."""
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return in_words(error) if error else PASSED


class StreamFlight:
    """A check that sends a request and decides by the answer."""

    __slots__ = ("_connected", "_exchange", "sock")

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self.sock = sock
        self._exchange = exchange
        self._connected = False

    def step(self) -> str | None:
        """Send the rest of the request and read the available bytes."""
        try:
            if not self._connected:
                error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    return in_words(error)
                self._connected = True
            return self._send_and_receive()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLCertVerificationError as error:
            return f"certificate: {error.verify_message}".lower()
        except ssl.SSLError as error:
            return f"TLS: {(error.reason or 'failed').replace('_', ' ').lower()}"
        except OSError as error:
            return in_words(error.errno) if error.errno else "connection failed"

    def _send_and_receive(self) -> str | None:
        exchange = self._exchange
        while True:
            while exchange.unsent:
                exchange.unsent = exchange.unsent[self.sock.send(exchange.unsent) :]
            data = self.sock.recv(RECEIVE)
            if not data:
                return "closed without an answer"
            outcome = exchange.receive(data)
            if outcome is not None:
                return outcome


class TlsFlight(StreamFlight):
    """A :class:`StreamFlight` inside TLS.

    Args:
        sock: a connecting socket.
        exchange: what to send and how to decide.
        name: for SNI and in the certificate.
        context: with the trusted certificates.
    """

    __slots__ = ("_context", "_handshake_done", "_name", "_wrapped")

    def __init__(self, sock: socket.socket, exchange: Exchange, name: str, context: ssl.SSLContext) -> None:
        super().__init__(sock, exchange)
        self._context = context
        self._name = name
        self._wrapped: ssl.SSLSocket | None = None
        self._handshake_done = False

    def _send_and_receive(self) -> str | None:
        if self._wrapped is None:
            self._wrapped = self._context.wrap_socket(
                self.sock, server_hostname=self._name, do_handshake_on_connect=False
            )
            self.sock = self._wrapped
        if not self._handshake_done:
            self._wrapped.do_handshake()
            self._handshake_done = True
        return super()._send_and_receive()
