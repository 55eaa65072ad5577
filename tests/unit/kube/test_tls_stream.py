"""TLS over a transport that a test holds in its hands, with a real peer: OpenSSL on the other side of two buffers."""

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
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.heard.append("made")

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(exc)


class Network(asyncio.Transport):
    """The network below, and the server at its other end."""

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
        """Until both sides are through, or one gives up."""
        self.stream.connection_made(self)
        for _ in range(4):
            with suppress(ssl.SSLWantReadError):
                self.server.do_handshake()
            self.deliver()
            await asyncio.sleep(0)

    def deliver(self, size: int = CHUNK) -> None:
        """What the server has sent arrives, in pieces of at most so many bytes, as long as anybody reads."""
        while not self.closed and (data := self.outgoing.read(size)):
            self.stream.data_received(data)

    def end(self, error: Exception | None = None) -> None:
        """The connection is no more."""
        self.stream.connection_lost(error)


@pytest.fixture
async def above() -> Above:
    """Who is told."""
    return Above()


@pytest.fixture
async def network(above: Above) -> Network:
    """A connection that is secured."""
    made = Network(above)
    await made.shake_hands()
    await made.stream.secured
    assert above.heard == ["made"]
    return made


def sent(network: Network, *pieces: bytes) -> None:
    """The server sends pieces, each in records of its own."""
    for piece in pieces:
        network.server.write(piece)


async def test_what_arrives_together_is_handed_over_at_once(network: Network, above: Above) -> None:
    """An event of three records is one piece of work."""
    sent(network, b"one ", b"two ", b"three")
    network.deliver()
    assert above.heard[1:] == [b"one two three"]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_records_may_arrive_in_any_pieces(network: Network, above: Above, size: int) -> None:
    """TCP knows no records."""
    sent(network, b"x" * 3000, b"y")
    network.deliver(size)
    assert b"".join(above.heard[1:]) == b"x" * 3000 + b"y"


@pytest.mark.parametrize("size", [CHUNK, 1 << 20])
async def test_more_than_a_buffer_at_once(network: Network, above: Above, size: int) -> None:
    """What is decrypted has bounds: a long answer comes in several pieces, and in order."""
    data = bytes(range(256)) * 1024
    for at in range(0, len(data), 16384):
        sent(network, data[at : at + 16384])
    network.deliver(size)
    assert b"".join(above.heard[1:]) == data
    assert max(map(len, above.heard[1:])) <= CHUNK + RECORD


async def test_writes_of_any_length_arrive(network: Network) -> None:
    """A request of many records is sent whole."""
    data = bytes(range(256)) * 1024
    network.stream.write(data)
    received = bytearray()
    while len(received) < len(data):
        received += network.server.read(1 << 20)
    assert received == data


async def test_end_after_a_farewell_is_an_end(network: Network, above: Above) -> None:
    """An answer that goes on until the connection ends is complete where TLS says so."""
    sent(network, b"all")
    with pytest.raises(ssl.SSLWantReadError):
        network.server.unwrap()
    network.deliver()
    assert network.closed == "closed"
    network.end()
    assert above.heard[1:] == [b"all", None]


async def test_end_without_a_farewell_is_none(network: Network, above: Above) -> None:
    """Anybody on the way can cut a connection: what came may be a part of what was sent."""
    sent(network, b"some of it")
    network.deliver()
    assert network.stream.eof_received() is False
    network.end()
    assert above.heard[1] == b"some of it"
    assert isinstance(above.heard[2], ConnectionResetError)


async def test_tampering_ends_the_connection(network: Network, above: Above) -> None:
    """What came before counts; what does not decrypt ends it, with TLS's own error."""
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


async def test_stranger_is_told_why(above: Above) -> None:
    """A certificate that is not accepted: the handshake fails with its reason, and the server gets an alert."""
    network = Network(above, Authority("other-ca"))
    with pytest.raises(ssl.SSLError, match="ALERT_UNKNOWN_CA"):
        await network.shake_hands()
    assert network.closed == "closed"
    network.end()
    with pytest.raises(ssl.SSLCertVerificationError):
        await network.stream.secured
    assert above.heard == []


async def test_refusal_and_farewell_at_once(above: Above) -> None:
    """A server that refuses and hangs up at once is heard all the same."""
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
    """Many servers that answer at once do not stop the loop for all of them together."""
    networks = [Network(Above()) for _ in range(3)]
    for each in networks:
        each.stream.connection_made(each)
        with suppress(ssl.SSLWantReadError):
            each.server.do_handshake()
        each.deliver()
    shaken = []
    for _ in range(4):
        shaken.append(sum(each.stream.secured.done() for each in networks))
        await asyncio.sleep(0)
    assert shaken == [0, 1, 2, 3]


async def test_loss_before_the_handshake_is_over(above: Above) -> None:
    """A peer that hangs up early is one that was reset."""
    network = Network(above)
    network.stream.connection_made(network)
    network.end()
    with pytest.raises(ConnectionResetError):
        await network.stream.secured
    assert above.heard == []


async def test_handshake_that_nobody_waits_for(above: Above) -> None:
    """Who gave up meanwhile gets no connection."""
    network = Network(above)
    network.stream.secured.cancel()
    await network.shake_hands()
    assert network.closed == "aborted"
    network.end()
    assert above.heard == []


async def test_reading_pauses_below(network: Network) -> None:
    """Who does not follow takes nothing off the network."""
    network.stream.pause_reading()
    assert not network.reading
    network.stream.resume_reading()
    assert network.reading


async def test_nothing_is_handed_over_after_an_abort(network: Network, above: Above) -> None:
    """Who closes while he takes a piece gets no other one."""

    def take(data: bytes) -> None:
        above.heard.append(len(data))
        network.stream.abort()

    above.data_received = take  # type: ignore[method-assign]
    for _ in range(12):
        sent(network, b"x" * 16384)
    network.deliver()
    assert len(above.heard) == 2
    assert above.heard[1] < 12 * 16384


async def test_nobody_has_to_ask_why_a_handshake_failed(above: Above) -> None:
    """Whoever connects may have been cancelled: nothing is said of it then, in nobody's name."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    network = Network(above)
    network.stream.connection_made(network)
    network.end(ConnectionResetError("by the peer"))
    del network
    gc.collect()
    assert said == []


async def test_reason_of_the_end_is_the_first_one(network: Network, above: Above) -> None:
    """A request that is sent after the peer's refusal has arrived does not hide it."""
    network.outgoing.write(b"no record at all")
    network.deliver()
    network.stream.write(b"GET / HTTP/1.1")
    network.end()
    assert isinstance(above.heard[-1], ssl.SSLError)
    assert "WRONG_VERSION_NUMBER" in str(above.heard[-1])


async def test_connections_share_what_they_decrypt_into(network: Network) -> None:
    """500 clusters do not hold 500 buffers."""
    other = Network(Above())
    assert other.stream._plain is network.stream._plain


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_refusal_is_heard_although_a_reset_follows(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """In TLS 1.3 a server looks at our certificate when we are through; by our first request it may be gone."""
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
