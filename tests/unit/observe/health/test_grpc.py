"""gRPC probes against an HTTP/2 server on loopback: the possible answers, and servers of other protocols."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from hub_testkit.simulator.identity import AUTHORITY
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, SettingsFrame
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.checks import Check
from hub.observe.health.board import exchanges
from hub.observe.health.flights import Flight, StreamFlight, TlsFlight
from hub.observe.health.grpc import GrpcExchange
from hub.observe.health.tls import context, trust_of
from tests.support.grpc_health import (
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    UNKNOWN,
    Answer,
    HealthServer,
    grpc_tls,
    message,
    reply,
)
from tests.unit.observe.health.test_prober import HOST, Serve, outcome, replying, resetting, serving, silent


async def grpc(port: int, timeout: float = 0.5, **more: object) -> str:  # noqa: ASYNC109 - the probe's
    """The outcome of one gRPC probe."""
    check = Check("grpc", port, timeout=timeout, **more)  # type: ignore[arg-type]
    exchange = exchanges(check)
    return await outcome(check, lambda sock, address: StreamFlight(sock, exchange(address)))


STATUSES = [
    pytest.param("", "", id="the server as a whole"),
    pytest.param("shop.v1.Cart", "", id="a service that serves"),
    pytest.param("x" * 200, "", id="a long name"),
    pytest.param("shop.v1.Search", "NOT_SERVING", id="NOT_SERVING"),
    pytest.param("shop.v1.New", "UNKNOWN", id="UNKNOWN"),
    pytest.param("shop.v1.Odd", "SERVICE_UNKNOWN", id="SERVICE_UNKNOWN"),
    pytest.param("shop.v1.Later", "code 9", id="a status of a later version"),
    pytest.param("shop.v1.Other", "NOT_FOUND: the server does not know the service", id="no such service"),
]


@pytest.mark.parametrize(("service", "expected"), STATUSES)
async def test_only_serving_passes(service: str, expected: str) -> None:
    """A service passes while it serves; otherwise its status is the reason."""
    server = HealthServer(
        {
            "": SERVING,
            "shop.v1.Cart": SERVING,
            "x" * 200: SERVING,
            "shop.v1.Search": NOT_SERVING,
            "shop.v1.New": UNKNOWN,
            "shop.v1.Odd": SERVICE_UNKNOWN,
            "shop.v1.Later": 9,
        }
    )
    async with serving(server.serve) as port:
        assert await grpc(port, grpc_service=service) == expected


async def test_the_request_is_one_of_grpc() -> None:
    """The headers are those that gRPC requires; the authority is the address and port, or the check's host."""
    server = HealthServer()
    async with serving(server.serve) as port:
        assert await grpc(port) == ""
        assert await grpc(port, host="cart.example.com") == ""
    assert server.seen[0] == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": f"127.0.0.1:{port}",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "endpointslice-hub",
    }
    assert server.seen[1] == {**server.seen[0], ":authority": "cart.example.com"}


async def test_settings_and_pings_are_acknowledged() -> None:
    """A slow server gets the acknowledgements that HTTP/2 requires; it may close the connection without them."""
    server = HealthServer(pause=0.1, ping=True)
    async with serving(server.serve) as port:
        assert await grpc(port, timeout=2.0) == ""
    assert server.acknowledged == ["settings", "ping"]


def reset(code: ErrorCodes) -> Answer:
    """Reset the stream of the request."""
    return lambda connection, stream: connection.reset_stream(stream, code)


def goaway(code: ErrorCodes, last: int) -> Answer:
    """Announce the end of the connection without an answer."""
    return lambda connection, _: connection.close_connection(code, last_stream_id=last)


def graceful(connection: H2Connection, stream: int) -> None:
    """Announce the end of the connection after this request, then answer it."""
    farewell = GoAwayFrame(0, last_stream_id=stream).serialize()
    connection._data_to_send += farewell
    reply(connection, stream, message(SERVING))


def oversized(connection: H2Connection, stream: int) -> None:
    """Announce a frame that is larger than the client's settings allow."""
    connection._data_to_send += (20_000).to_bytes(3, "big") + b"\0\0" + stream.to_bytes(4, "big")


def foreign(connection: H2Connection, stream: int) -> None:
    """Send data of a stream that the client did not open."""
    connection._data_to_send += DataFrame(stream + 2, b"x").serialize()


def broken_headers(connection: H2Connection, stream: int) -> None:
    """Send headers that refer to an entry outside the table."""
    connection._data_to_send += HeadersFrame(stream, b"\xff\x7f", flags=["END_HEADERS"]).serialize()


def bad_padding(connection: H2Connection, stream: int) -> None:
    """Send a frame whose padding is longer than the frame."""
    connection._data_to_send += b"\0\0\x02\0\x08" + stream.to_bytes(4, "big") + b"\xff\0"


def endless(connection: H2Connection, stream: int) -> None:
    """Send more than a check reads."""
    connection.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    for _ in range(3):
        connection.send_data(stream, b"x" * 8000)


def continued(connection: H2Connection, stream: int) -> None:
    """Spread the headers over two frames."""
    block = connection.encoder.encode([(":status", "200"), ("content-type", "application/grpc+proto")])
    connection._data_to_send += HeadersFrame(stream, block[:3]).serialize()
    continuation = (len(block) - 3).to_bytes(3, "big") + b"\x09\x04" + stream.to_bytes(4, "big") + block[3:]
    connection._data_to_send += continuation + DataFrame(stream, message(SERVING)).serialize()
    trailers = connection.encoder.encode([("grpc-status", "0")])
    connection._data_to_send += HeadersFrame(stream, trailers, flags=["END_HEADERS", "END_STREAM"]).serialize()


def interim(connection: H2Connection, stream: int) -> None:
    """Send an interim answer first."""
    connection.send_headers(stream, [(":status", "103")])
    reply(connection, stream, message(SERVING))


def repeating(connection: H2Connection, stream: int) -> None:
    """Repeat a header in the trailers, which refer to it by its index."""
    connection.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc"), ("x-trace", "a1b2")])
    connection.send_data(stream, message(SERVING))
    connection.send_headers(stream, [("x-trace", "a1b2"), ("grpc-status", "0")], end_stream=True)


def trailers_only(code: str) -> Answer:
    """An error, whose headers and trailers are one block."""
    headers = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", code)]
    return lambda connection, stream: connection.send_headers(stream, headers, end_stream=True)


def body(data: bytes, code: str | None = "0", **headers: str) -> Answer:
    """A whole answer with this body."""
    return lambda connection, stream: reply(connection, stream, data, code, **headers)


ANSWERS = [
    pytest.param(body(message(SERVING)), "", id="serving"),
    pytest.param(body(b"\0\0\0\0\x07\x12\x03abc\x08\x01"), "", id="an unknown field before the status"),
    pytest.param(continued, "", id="headers in two frames"),
    pytest.param(repeating, "", id="trailers that repeat a header"),
    pytest.param(interim, "", id="an interim answer"),
    pytest.param(graceful, "", id="GOAWAY that lets the request finish"),
    pytest.param(reset(ErrorCodes.REFUSED_STREAM), "stream reset: REFUSED_STREAM", id="RST_STREAM"),
    pytest.param(goaway(ErrorCodes.ENHANCE_YOUR_CALM, 0), "GOAWAY: ENHANCE_YOUR_CALM", id="GOAWAY with an error"),
    pytest.param(goaway(ErrorCodes.NO_ERROR, 0), "GOAWAY: NO_ERROR", id="GOAWAY that drops the request"),
    pytest.param(goaway(ErrorCodes.INTERNAL_ERROR, 1), "GOAWAY: INTERNAL_ERROR", id="GOAWAY for a fault"),
    pytest.param(trailers_only("12"), "UNIMPLEMENTED: the server has no grpc.health.v1.Health", id="UNIMPLEMENTED"),
    pytest.param(trailers_only("14"), "UNAVAILABLE", id="UNAVAILABLE"),
    pytest.param(trailers_only("17"), "code 17", id="a code of a later version"),
    pytest.param(trailers_only("-1"), "an unknown status", id="no code at all"),
    pytest.param(body(message(SERVING), "13"), "INTERNAL", id="an error after the message"),
    pytest.param(body(message(SERVING), None), "no grpc-status in the answer", id="no trailers"),
    pytest.param(body(b"ok", None, status="404"), "status 404", id="status 404"),
    pytest.param(body(b"ok", content_type="text/html"), "not a gRPC answer: its content-type is another", id="a page"),
    pytest.param(body(b""), "a broken message", id="no message"),
    pytest.param(body(b"\1\0\0\0\2\x08\1"), "a broken message", id="a compressed message"),
    pytest.param(body(b"\0\0\0\0\3\x08\1"), "a broken message", id="half a message"),
    pytest.param(body(b"\0\0\0\0\2\x08\xff"), "a broken message", id="no protobuf"),
    pytest.param(body(b"\0\0\0\0\3\x0a\1\1"), "UNKNOWN", id="a status that is text"),
    pytest.param(oversized, "a frame of more than 16384 bytes", id="a frame too large"),
    pytest.param(endless, "an answer of more than 16384 bytes", id="an answer too large"),
    pytest.param(foreign, "DataFrame of stream 3, which was not opened", id="another stream"),
    pytest.param(broken_headers, "broken HTTP/2", id="broken headers"),
    pytest.param(bad_padding, "broken HTTP/2", id="broken padding"),
    pytest.param(lambda *_: None, "timed out", id="no answer"),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
async def test_answers_of_a_grpc_server(answer: Answer, expected: str) -> None:
    """A complete answer with SERVING passes; every other answer fails in time, with a clear reason."""
    async with serving(HealthServer(answer=answer).serve) as port:
        assert await grpc(port) == expected


OTHERS = [
    pytest.param(silent, "timed out", id="silent"),
    pytest.param(resetting, "connection reset by peer", id="reset"),
    pytest.param(replying(), "closed without an answer", id="closed"),
    pytest.param(replying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP/1 server, not HTTP/2", id="HTTP/1"),
    pytest.param(replying(b"HTTP/1.0 505 No\r\n\r\n", then=9), "an HTTP/1 server, not HTTP/2", id="HTTP/1.0, open"),
    pytest.param(replying(b"SSH-2.0-OpenSSH_9.2\r\n", then=9), "not an HTTP/2 answer", id="SSH"),
    pytest.param(replying(b"\x15\x03\x01\x00\x02\x02\x46", then=9), "not an HTTP/2 answer", id="TLS"),
    pytest.param(replying(*(bytes([byte]) for byte in b"\0\0\0\x01"), pause=0.01), "not an HTTP/2 answer", id="slowly"),
]


@pytest.mark.parametrize(("serve", "expected"), OTHERS)
async def test_servers_of_other_protocols(serve: Serve, expected: str) -> None:
    """A server that does not speak HTTP/2 fails in time, with a clear reason."""
    async with serving(serve) as port:
        assert await grpc(port) == expected


async def test_a_closed_port_refuses_the_connection() -> None:
    """A port where nothing listens fails at once."""
    async with serving(silent) as port:
        pass
    assert await grpc(port) == "connection refused"


async def grpcs(port: int, folder: Path, **more: object) -> str:
    """The outcome of one gRPC probe with TLS that trusts the test authority unless ``more`` says otherwise."""
    (folder / "ca.pem").write_text(AUTHORITY)
    given = {"ca": str(folder / "ca.pem"), "server_name": "localhost", **more}
    check = Check("grpcs", port, timeout=2.0, **given)  # type: ignore[arg-type]
    made, exchange = context(trust_of(check), str(folder)), exchanges(check)

    def opener(sock: socket.socket, address: str) -> Flight:
        return TlsFlight(sock, exchange(address), check.server_name or address, made)

    return await outcome(check, opener)


async def test_tls_verifies_the_certificate_and_negotiates_http2(tmp_path: Path) -> None:
    """Only a trusted certificate with the right name passes; the server is asked for HTTP/2."""
    server = HealthServer()
    async with serving(server.serve, grpc_tls()) as port:
        assert await grpcs(port, tmp_path) == ""
        assert (await grpcs(port, tmp_path, server_name="other.example")).startswith("certificate: hostname mismatch")
        assert (await grpcs(port, tmp_path, ca="")).startswith("certificate: ")
        assert await grpcs(port, tmp_path, ca="", insecure=True) == ""
    assert [seen[":scheme"] for seen in server.seen] == ["https", "https"]


async def test_tls_probe_of_an_http1_server_fails(tmp_path: Path) -> None:
    """A TLS server that offers only HTTP/1.1 refuses the handshake or answers with HTTP/1.1."""
    tls = grpc_tls()
    tls.set_alpn_protocols(["http/1.1"])
    async with serving(replying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), tls) as port:
        assert await grpcs(port, tmp_path) == "an HTTP/1 server, not HTTP/2"
    async with serving(HealthServer().serve) as port:
        assert await grpcs(port, tmp_path) == "TLS: wrong version number"


def test_libraries_are_loaded_with_the_first_grpc_check() -> None:
    """A hub without grpc checks does not load hpack and hyperframe."""
    code = (
        "import sys; from hub.app.hub import Hub; from hub.observe.health.board import exchanges; "
        "from hub.decide.checks import Check; exchanges(Check('http', 80)); "
        "assert not {'hpack', 'hyperframe', 'h2'} & sys.modules.keys(); exchanges(Check('grpc', 80)); "
        "assert {'hpack', 'hyperframe'} <= sys.modules.keys() and 'h2' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


START = SettingsFrame(0).serialize()


@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_any_bytes_give_an_outcome_or_wait(pieces: list[bytes], settings: bool) -> None:
    """Whatever a server sends, the exchange fails or waits for more; it never raises or passes."""
    exchange = GrpcExchange(b"")
    for piece in ([START] if settings else []) + pieces:
        outcome_ = exchange.receive(piece)
        assert outcome_ != ""
        if outcome_ is not None:
            break


def test_an_answer_may_be_cut_anywhere() -> None:
    """The outcome does not depend on how the bytes arrive."""
    server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
    server.initiate_connection()
    server.receive_data(exchanges(Check("grpc", 80))(HOST).unsent)
    reply(server, 1, message(NOT_SERVING))
    answer = server.data_to_send()
    for cut in range(1, len(answer)):
        exchange = GrpcExchange(b"")
        assert exchange.receive(answer[:cut]) is None
        assert exchange.receive(answer[cut:]) == "NOT_SERVING"
