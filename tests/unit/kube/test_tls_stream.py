"""The TLS layer between a simulated transport and a real peer: OpenSSL with two memory buffers."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from hub.kube.dial import connect
from hub.kube.tls_stream import CHUNK, RECORD, TlsStream
from tests.support.apiserver.pki import Authority
from tests.unit.kube.test_client import server_context

AUTHORITY = Authority("test-ca")
SERVER = AUTHORITY.server("127.0.0.1")


class Above(asyncio.Protocol):
    """A protocol that records its calls."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.heard.append("made")

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(exc)


class Network(asyncio.Transport):
    """The transport below the TLS layer, and the server at the other end."""

    def __init__(self, above: Above, authority: Authority = AUTHORITY) -> None:
        super().__init__()
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server_context(SERVER).wrap_bio(self.incoming, self.outgoing, server_side=True)
        context = ssl.create_default_context(cadata=authority.pem)
        self.stream = TlsStream(above, context, "127.0.0.1")
        self.closed = ""
        self.reading = True

    def write(self, data: Any) -> None:
        self.incoming.write(data)

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = self.closed or "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    async def shake_hands(self) -> None:
        """Do the handshake until both sides are done or one fails."""
        self.stream.connection_made(self)
        for _ in range(4):
            with suppress(ssl.SSLWantReadError):
                self.server.do_handshake()
            self.deliver()
            await asyncio.sleep(0)

    def deliver(self, size: int = CHUNK) -> None:
        """Deliver the server's bytes in pieces of at most ``size`` bytes, until the transport is closed."""
        while not self.closed and (data := self.outgoing.read(size)):
            self.stream.data_received(data)

    def end(self, error: Exception | None = None) -> None:
        """End the connection."""
        self.stream.connection_lost(error)


@pytest.fixture
async def above() -> Above:
    """The protocol above the TLS layer."""
    return Above()


@pytest.fixture
async def network(above: Above) -> Network:
    """A connection after a complete handshake."""
    made = Network(above)
    await made.shake_hands()
    await made.stream.secured
    assert above.heard == ["made"]
    return made


def sent(network: Network, *pieces: bytes) -> None:
    """Make the server send these pieces, each in its own record."""
    for piece in pieces:
        network.server.write(piece)


async def test_records_that_arrive_together_are_delivered_together(network: Network, above: Above) -> None:
    """Three records that arrive together are handed over in one call."""
    sent(network, b"one ", b"two ", b"three")
    network.deliver()
    assert above.heard[1:] == [b"one two three"]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_records_may_arrive_in_any_pieces(network: Network, above: Above, size: int) -> None:
    """Records may be split over TCP packets in any way."""
    sent(network, b"x" * 3000, b"y")
    network.deliver(size)
    assert b"".join(above.heard[1:]) == b"x" * 3000 + b"y"


@pytest.mark.parametrize("size", [CHUNK, 1 << 20])
async def test_more_than_a_buffer_at_once(network: Network, above: Above, size: int) -> None:
    """A long answer is handed over in order, in pieces of limited size."""
    data = bytes(range(256)) * 1024
    for at in range(0, len(data), 16384):
        sent(network, data[at : at + 16384])
    network.deliver(size)
    assert b"".join(above.heard[1:]) == data
    assert max(map(len, above.heard[1:])) <= CHUNK + RECORD


async def test_writes_of_any_length_arrive(network: Network) -> None:
    """A request longer than one record is sent completely."""
    data = bytes(range(256)) * 1024
    network.stream.write(data)
    received = bytearray()
    while len(received) < len(data):
        received += network.server.read(1 << 20)
    assert received == data


async def test_end_after_a_farewell_is_an_end(network: Network, above: Above) -> None:
    """After close_notify, the end of the connection is a regular end."""
    sent(network, b"all")
    with pytest.raises(ssl.SSLWantReadError):
        network.server.unwrap()
    network.deliver()
    assert network.closed == "closed"
    network.end()
    assert above.heard[1:] == [b"all", None]


async def test_end_without_close_notify_is_an_error(network: Network, above: Above) -> None:
    """Without close_notify, the end of the connection is an error: the data may have been cut off."""
    sent(network, b"some of it")
    network.deliver()
    assert network.stream.eof_received() is False
    network.end()
    assert above.heard[1] == b"some of it"
    assert isinstance(above.heard[2], ConnectionResetError)


async def test_tampering_ends_the_connection(network: Network, above: Above) -> None:
    """Data before a manipulated record is delivered; the record ends the connection with an SSLError."""
    sent(network, b"good")
    network.deliver()
    sent(network, b"changed on the way")
    record = bytearray(network.outgoing.read())
    record[-1] ^= 1
    network.outgoing.write(bytes(record))
    network.deliver()
    assert network.closed
    network.end()
    assert above.heard[1] == b"good"
    assert isinstance(above.heard[2], ssl.SSLError)


async def test_refused_server_gets_an_alert(above: Above) -> None:
    """A refused server certificate fails the handshake with its reason, and the server gets an alert."""
    network = Network(above, Authority("other-ca"))
    with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
        await network.shake_hands()
    assert network.closed == "closed"
    network.end()
    with pytest.raises(ssl.SSLCertVerificationError):
        await network.stream.secured
    assert above.heard == []


async def test_refusal_and_farewell_at_once(above: Above) -> None:
    """The alert of a server that refuses and closes at once is still read."""
    network = Network(above)
    network.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_bio(
        network.incoming, network.outgoing, server_side=True
    )
    network.stream.connection_made(network)
    with pytest.raises(ssl.SSLError):  # it has no certificate
        network.server.do_handshake()
    network.deliver()
    network.end()
    with pytest.raises(ssl.SSLError, match="ALERT_HANDSHAKE_FAILURE"):
        await network.stream.secured
    assert above.heard == []


async def test_handshakes_take_turns() -> None:
    """Handshakes of several connections continue in separate rounds of the event loop."""
    networks = [Network(Above()) for _ in range(3)]
    for network in networks:
        network.stream.connection_made(network)
        with suppress(ssl.SSLWantReadError):
            network.server.do_handshake()
        network.deliver()
    shaken = []
    for _ in range(4):
        shaken.append(sum(network.stream.secured.done() for network in networks))
        await asyncio.sleep(0)
    assert shaken == [0, 1, 2, 3]


async def test_loss_before_the_handshake_is_over(above: Above) -> None:
    """A connection that is lost during the handshake is a ConnectionResetError."""
    network = Network(above)
    network.stream.connection_made(network)
    network.end()
    with pytest.raises(ConnectionResetError):
        await network.stream.secured
    assert above.heard == []


async def test_handshake_of_a_cancelled_caller_is_aborted(above: Above) -> None:
    """If the caller was cancelled, the connection is aborted after the handshake."""
    network = Network(above)
    network.stream.secured.cancel()
    await network.shake_hands()
    assert network.closed == "aborted"
    network.end()
    assert above.heard == []


async def test_reading_pauses_below(network: Network) -> None:
    """Pausing and resuming are passed on to the transport below."""
    network.stream.pause_reading()
    assert not network.reading
    network.stream.resume_reading()
    assert network.reading


async def test_nothing_is_handed_over_after_an_abort(network: Network, above: Above) -> None:
    """After an abort within ``data_received``, no more data is handed over."""

    def take(data: bytes) -> None:
        above.heard.append(len(data))
        network.stream.abort()

    above.data_received = take  # type: ignore[method-assign]
    for _ in range(12):
        sent(network, b"x" * 16384)
    network.deliver(1 << 20)
    assert len(above.heard) == 2
    assert above.heard[1] < 12 * 16384


async def test_handshake_failure_without_a_caller_is_not_unhandled(above: Above) -> None:
    """A failed handshake whose caller is gone is not reported as an unhandled error."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    network = Network(above)
    network.stream.connection_made(network)
    network.end(ConnectionResetError("by the peer"))
    del network
    gc.collect()
    assert said == []


async def test_reason_of_the_end_is_the_first_one(network: Network, above: Above) -> None:
    """A write after the first error does not replace that error."""
    network.outgoing.write(b"no record at all")
    network.deliver()
    network.stream.write(b"GET / HTTP/1.1")
    network.end()
    assert isinstance(above.heard[-1], ssl.SSLError)
    assert "WRONG_VERSION_NUMBER" in str(above.heard[-1])


async def test_connections_share_the_decryption_buffer(network: Network) -> None:
    """All connections decrypt into the same buffer."""
    other = Network(Above())
    assert other.stream._plain is network.stream._plain


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_refusal_is_heard_although_a_reset_follows(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """In TLS 1.3 a server may refuse the client certificate and close before the first request; its reason is read."""
    context = server_context(SERVER, trusts=Authority("other-ca"))
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        accepted, _ = listener.accept()
        with accepted, suppress(ssl.SSLError):
            context.wrap_socket(accepted, server_side=True)

    async def ask() -> None:
        ours = ssl.create_default_context(cadata=AUTHORITY.pem)
        connection, _ = await connect([(socket.AF_INET, "127.0.0.1", port)], ours, "127.0.0.1", 10)
        server.join()  # nothing is read meanwhile: the refusal and the end of the connection are both there
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await connection.start(b"GET / HTTP/1.1\r\n\r\n", 1000)

    port = listener.getsockname()[1]
    with listener:
        server = threading.Thread(target=refuse)
        server.start()
        run(ask())
