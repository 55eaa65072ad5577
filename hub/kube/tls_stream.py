"""TLS of one connection, over a plain transport.

uvloop's own TLS keeps 256 KiB for each connection to read into, which soon are memory in use: 500 clusters with a watch
each would hold an eighth of a GiB for nothing. Here all connections of a thread share what they read into.
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
"""Decrypted bytes that are handed over at once."""
RECORD: Final = 16 << 10
"""Bytes of the longest TLS record, decrypted; also what OpenSSL is given at once after the handshake, since what it
keeps them in stays as large as it ever was, in each connection."""


class _Shared(threading.local):
    """The buffer that all connections of a thread decrypt into; nothing stays in it from one call to the next."""

    def __init__(self) -> None:
        self.decrypted = memoryview(bytearray(CHUNK + RECORD))


_shared: Final = _Shared()


class TlsStream(asyncio.Protocol, asyncio.Transport):
    """A protocol towards the network, a transport towards the protocol above it, which hears of it once it is secured.

    Args:
        above: gets what arrives, decrypted.
        context: verifies the peer.
        server_hostname: the name or address that its certificate must have.

    Attributes:
        secured: done once the handshake is; its exception says why it failed.

    Raises:
        ValueError: the name cannot be one.
    """

    def __init__(self, above: asyncio.Protocol, context: ssl.SSLContext, server_hostname: str) -> None:
        super().__init__()
        self.above = above
        self.secured: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._transport: asyncio.Transport | None = None
        self._plain = _shared.decrypted
        self._shaken = False
        self._due = False
        """More of the handshake has arrived, and waits for its round of the loop."""
        self._said_farewell = False
        """The peer has, as TLS wants it: what came before is complete."""
        self._error: Exception | None = None

    # --- towards the network ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected: shake hands."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio's
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        """Something has arrived."""
        if self._shaken:
            self._read(data)
            return
        self._incoming.write(data)
        if not self._due:
            self._due = True
            in_own_round(self._go_on)

    def eof_received(self) -> bool:
        """The peer sends no more: close the transport."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Ended by either side."""
        if exc is not None:
            self._take_rest()
        if not self._shaken:  # perhaps the peer has said why
            self._go_on()
        elif exc is not None:
            self._read()
        self._transport = None
        error = self._error or exc
        if error is None and not self._said_farewell:
            error = ConnectionResetError("connection closed by the peer")
        elif error is not None:  # kept here with its traceback, it and this object would wait for the garbage collector
            self._error = None
            error = error.with_traceback(None)
        if self._shaken:
            self.above.connection_lost(error)
        elif not self.secured.done():
            self.secured.set_exception(error or ConnectionResetError("connection closed by the peer"))
            self.secured.exception()  # retrieved here, since a caller that was cancelled does not

    def _take_rest(self) -> None:
        """Take what had arrived when writing failed, which the transport leaves where it is: often the peer's reason.

        A certificate of ours is refused after the handshake in TLS 1.3, and a reset may follow at once.
        """
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None:
            return
        with suppress(OSError):
            self._incoming.write(os.read(sock.fileno(), RECORD))

    def _go_on(self) -> None:
        """Continue the handshake with new bytes; application data may follow in them."""
        self._due = False
        if self._error is None and self._transport is not None and self._incoming.pending and self._shake_hands():
            self._read()

    def _shake_hands(self) -> bool:
        """Go on with the handshake; True once it is over."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._flush()
        if self.secured.done():  # the caller does not wait any more
            self.abort()
            return False
        self._shaken = True
        self.above.connection_made(self)
        self.secured.set_result(None)
        return True

    def _read(self, data: bytes = b"") -> None:
        """Decrypt what is there and ``data``, and hand over what arrived together at once."""
        taken = at = 0
        while True:
            self._incoming.write(data[taken : taken + RECORD])
            taken += RECORD
            at = self._decrypt(at)
            if self._said_farewell or self._error is not None:
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
            self._flush()  # TLS has something to say of its own
        if self._said_farewell or self._error is not None:
            self.close()

    def _decrypt(self, at: int) -> int:
        """Decrypt what is there, behind the first ``at`` bytes; where it ends."""
        read, plain, incoming = self._tls.read, self._plain, self._incoming
        try:
            while incoming.pending and at <= CHUNK:
                count: int = read(RECORD, plain[at:])  # type: ignore[assignment]  # into a buffer: a number
                if not count:
                    self._said_farewell = True
                    break
                at += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._error = self._error or error
        return at

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        """Tell the peer why, as far as TLS does, and close."""
        self._error = error
        self._flush()
        self.close()

    # --- towards the protocol above ------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, or keep until the network takes it; once it has failed, ``connection_lost`` says why."""
        if self._error is not None:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]  # a record at a time
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def pause_reading(self) -> None:
        """Pause reading from the network; bytes that were read already are still delivered."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Send the waiting bytes, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
