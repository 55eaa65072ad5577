"""TLS for one connection, on top of a plain TCP transport.

uvloop's own TLS keeps a read buffer of 256 KiB for each connection: 500 clusters with a watch each would take an eighth
of a GiB for buffers. Here all connections of a thread share one buffer.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from contextlib import suppress
from typing import Final

from hub.runtime.rounds import in_own_round

CHUNK: Final = 64 << 10
"""Decrypted bytes above which they are handed to the protocol before more are decrypted."""
RECORD: Final = 16 << 10
"""The longest TLS record, in decrypted bytes. After the handshake, OpenSSL also gets this many encrypted bytes at a
time, since its input buffer of each connection never shrinks."""


class _Shared(threading.local):
    """The buffer that all connections of a thread decrypt into. Each call copies its bytes out before it returns."""

    def __init__(self) -> None:
        self.decrypted = memoryview(bytearray(CHUNK + RECORD))


_shared: Final = _Shared()


class TlsStream(asyncio.Protocol, asyncio.Transport):
    """The TLS layer: a protocol for the TCP transport below, and a transport for the protocol above.

    The protocol above gets ``connection_made`` when the handshake is complete.

    Args:
        above: the protocol that gets the decrypted bytes.
        context: the TLS context that verifies the peer.
        server_hostname: the name or address that the peer's certificate must have.

    Attributes:
        secured: done when the handshake is complete; if the handshake failed, its exception is the reason.

    Raises:
        ValueError: ``server_hostname`` is not a valid name.
    """

    def __init__(self, above: asyncio.Protocol, context: ssl.SSLContext, server_hostname: str) -> None:
        super().__init__()
        self.above = above
        self.secured: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._transport: asyncio.Transport | None = None
        self._plain = _shared.decrypted
        self._handshake_done = False
        self._round_requested = False
        """Whether bytes of the handshake have arrived and wait for their round of the event loop."""
        self._close_notified = False
        """Whether the peer has sent close_notify, so that the data before it is complete."""
        self._error: Exception | None = None

    # --- towards the network ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection is open: start the handshake."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is not a subclass of asyncio's
        self._handshake_step()

    def data_received(self, data: bytes) -> None:
        """Process encrypted bytes."""
        if self._handshake_done:
            self._read(data)
            return
        self._incoming.write(data)
        if not self._round_requested:
            self._round_requested = True
            in_own_round(self._continue_handshake)

    def eof_received(self) -> bool:
        """The peer has closed its side: close the transport."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The TCP connection was closed by either side, or broke."""
        if exc is not None:
            self._read_socket()
        if not self._handshake_done:  # the last bytes may be an alert with the peer's reason
            self._continue_handshake()
        elif exc is not None:
            self._read()
        self._transport = None
        error = self._error or exc
        if error is None and not self._close_notified:
            error = ConnectionResetError("connection closed by the peer")
        elif error is not None:  # the traceback would be a cycle of this object and the error
            self._error = None
            error = error.with_traceback(None)
        if self._handshake_done:
            self.above.connection_lost(error)
        elif not self.secured.done():
            self.secured.set_exception(error or ConnectionResetError("connection closed by the peer"))
            self.secured.exception()  # marks the error as retrieved, which a cancelled caller would not do

    def _read_socket(self) -> None:
        """Read the bytes that the transport has left in the socket after a write failed.

        They often tell the peer's reason: in TLS 1.3, the server refuses a client certificate after the handshake, and
        a reset may follow at once.
        """
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None:
            return
        with suppress(OSError):
            self._incoming.write(os.read(sock.fileno(), RECORD))

    def _continue_handshake(self) -> None:
        """Continue the handshake with the bytes that have arrived; application data may follow them."""
        self._round_requested = False
        if self._error is None and self._transport is not None and self._incoming.pending and self._handshake_step():
            self._read()

    def _handshake_step(self) -> bool:
        """Do the next step of the handshake; True once it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._flush()
        if self.secured.done():  # the caller was cancelled
            self.abort()
            return False
        self._handshake_done = True
        self.above.connection_made(self)
        self.secured.set_result(None)
        return True

    def _read(self, data: bytes = b"") -> None:
        """Decrypt the bytes that are waiting and ``data``, and hand the result to the protocol above.

        Bytes that arrived together are handed over together, up to about ``CHUNK`` bytes.
        """
        taken = at = 0
        while True:
            self._incoming.write(data[taken : taken + RECORD])
            taken += RECORD
            at = self._decrypt(at)
            if self._close_notified or self._error is not None:
                break
            if at > CHUNK:
                self.above.data_received(bytes(self._plain[:at]))
                at = 0
                if self.is_closing():
                    break
            elif taken >= len(data):
                break
        if at:
            self.above.data_received(bytes(self._plain[:at]))
        if self._outgoing.pending:
            self._flush()  # messages of TLS itself, such as key updates
        if self._close_notified or self._error is not None:
            self.close()

    def _decrypt(self, at: int) -> int:
        """Decrypt waiting bytes into the buffer from position ``at``; returns the position after them."""
        read, plain, incoming = self._tls.read, self._plain, self._incoming
        try:
            while incoming.pending and at <= CHUNK:
                count: int = read(RECORD, plain[at:])  # type: ignore[assignment]  # returns a count if given a buffer
                if not count:
                    self._close_notified = True
                    break
                at += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._error = self._error or error
        return at

    def _flush(self) -> None:
        """Send the encrypted bytes that TLS has produced."""
        if self._transport is not None:
            self._transport.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        """Record an error, send the TLS alert for it, if any, and close."""
        self._error = error
        self._flush()
        self.close()

    # --- towards the protocol above ------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send data. After an error nothing is sent; ``connection_lost`` gets the error."""
        if self._error is not None:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]  # writes one record at a time
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol above."""
        self.above = protocol  # type: ignore[assignment]  # the base class allows protocols that are not streams

    def pause_reading(self) -> None:
        """Pause reading from the network. Bytes that were already read are still delivered."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the network."""
        if self._transport is not None:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection after the waiting bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; waiting bytes are dropped."""
        if self._transport is not None:
            self._transport.abort()
