"""Tests of the proxy on loopback: a client sees each fault, and other requests are not affected."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver.pki import Authority
from tests.support.faults.proxy import (
    EVERYTHING,
    Door,
    Fault,
    Kind,
    Proxy,
    ProxyThread,
    Where,
    answer,
    parse,
    where,
)
from tests.support.waiting import eventually

SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
LONG = b"x" * 5000
AUTHORITY, OTHER = Authority("proxy-ca"), Authority("other-ca")


class Api(BaseHTTPRequestHandler):
    """A server like an API server: kept connections, lists, writes, and a watch with an event every 0.1 s."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer a watch or a list."""
        if "watch=true" in self.path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(100):
                try:
                    self.wfile.write(b"a\r\n123456789\n\r\n")
                except OSError:
                    return
                time.sleep(0.1)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(LONG)))
        self.end_headers()
        self.wfile.write(LONG)

    def do_PUT(self) -> None:
        """Store a write, then answer."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.written.append(body)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")


class Server(ThreadingHTTPServer):
    """The server. It logs no broken connections."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.written: list[bytes] = []

    def handle_error(self, *_: Any) -> None:
        """Log nothing: clients break connections on purpose."""


def serving(authority: Authority, folder: Path) -> ssl.SSLContext:
    """A TLS context with a certificate for loopback."""
    made = authority.server("127.0.0.1")
    file = folder / f"{id(made)}.pem"
    file.write_text(made.pem + made.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server behind the proxy."""
    made = Server()
    context = serving(AUTHORITY, tmp_path_factory.mktemp("server"))
    made.socket = context.wrap_socket(made.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.shutdown()
    thread.join(10)
    made.server_close()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The proxy's certificate."""
    return serving(AUTHORITY, tmp_path_factory.mktemp("proxy"))


@pytest.fixture
def proxy(server: Server, usual: ssl.SSLContext) -> Iterator[Proxy]:
    """A proxy for the server."""
    with ProxyThread() as thread:
        client = ssl.create_default_context(cadata=AUTHORITY.pem)
        yield thread.proxy(server.server_address[1], client, usual)


def connect(proxy: Proxy, timeout: float = 5.0) -> http.client.HTTPSConnection:
    """A connection to the proxy."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    return http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=timeout, context=context)


def get(proxy: Proxy, path: str = SLICES, timeout: float = 5.0) -> bytes:
    """Send a GET on a new connection."""
    connection = connect(proxy, timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def put(proxy: Proxy, body: bytes, timeout: float = 5.0) -> bytes:
    """Send a PUT on a new connection."""
    connection = connect(proxy, timeout)
    try:
        connection.request("PUT", f"{SLICES}/one", body)
        return connection.getresponse().read()
    finally:
        connection.close()


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "verb", "resource"),
    [
        ("GET /api/v1/nodes?limit=500", "list", "nodes"),
        ("GET /api/v1/nodes?watch=true&resourceVersion=1", "watch", "nodes"),
        ("GET /api/v1/namespaces/kube-system", "get", "namespaces"),
        (f"GET {SLICES}", "list", "endpointslices"),
        (f"PUT {SLICES}/one", "update", "endpointslices"),
        (f"POST {SLICES}", "create", "endpointslices"),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/default/leases/x", "update", "leases"),
        ("GET /cloudapi/v6/datacenters", "get", ""),
    ],
)
def test_requests_are_classified_by_verb_and_resource(line: str, verb: str, resource: str) -> None:
    """A request's verb and resource follow from its method, path and query."""
    found = parse(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (found.verb, found.resource) == (verb, resource)


def test_fault_applies_only_to_selected_requests(proxy: Proxy, server: Server) -> None:
    """While writes are reset, lists pass; after the fault writes pass too."""
    with proxy.broken(Fault(Kind.RESET, where("update"))):
        assert get(proxy) == LONG
        with pytest.raises(ConnectionResetError):
            put(proxy, b"reset")
    assert put(proxy, b"after") == b"ok"
    assert (b"reset" in server.written, b"after" in server.written) == (False, True)


def test_fault_applies_the_given_number_of_times(proxy: Proxy) -> None:
    """A fault with ``times=2`` affects two requests."""
    proxy.inject(Fault(Kind.RESET, EVERYTHING, times=2))
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            get(proxy)
    assert get(proxy) == LONG


def test_a_kept_connection_is_struck_with_its_next_request_only(proxy: Proxy) -> None:
    """A fault affects the next request on a kept connection, but not the one that was answered before."""
    connection = connect(proxy)
    connection.request("GET", SLICES)
    assert connection.getresponse().read() == LONG
    with proxy.broken(Fault(Kind.RESET, EVERYTHING)):
        pass
    connection.request("GET", SLICES)
    assert connection.getresponse().read() == LONG
    connection.close()


# --- one fault after the other -------------------------------------------------------------------------------------


def test_latency_delays(proxy: Proxy) -> None:
    """Latency delays both the request and the answer."""
    with proxy.broken(Fault(Kind.LATENCY, EVERYTHING, 0.2)):
        began = time.monotonic()
        assert get(proxy) == LONG
        assert time.monotonic() - began >= 0.4


def test_bandwidth_is_a_limit(proxy: Proxy) -> None:
    """5,000 bytes at 10,000 bytes a second take half a second."""
    with proxy.broken(Fault(Kind.BANDWIDTH, EVERYTHING, 10_000)):
        began = time.monotonic()
        assert get(proxy) == LONG
        assert time.monotonic() - began >= 0.5


def test_blackhole_delivers_held_data_when_it_ends(proxy: Proxy, server: Server) -> None:
    """Nothing arrives while the fault lasts; then everything does, even data whose sender has given up."""
    with proxy.broken(Fault(Kind.BLACKHOLE, EVERYTHING)):
        with pytest.raises(TimeoutError):
            put(proxy, b"held", timeout=0.5)
        assert b"held" not in server.written
    eventually(lambda: b"held" in server.written)


def test_silent_connection_does_not_affect_new_ones(proxy: Proxy) -> None:
    """A silenced connection carries no more data; a new one does."""
    connection = connect(proxy, timeout=0.5)
    connection.request("GET", SLICES)
    connection.getresponse().read()
    proxy.silence()
    connection.request("GET", SLICES)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    proxy.heal()
    with pytest.raises((TimeoutError, OSError)):
        connection.sock.recv(1)
    connection.close()
    assert get(proxy) == LONG


@pytest.mark.parametrize("kind", [Kind.HALF_CLOSE, Kind.TLS_CUT])
def test_cut_connection_ends_without_an_answer(proxy: Proxy, kind: Kind) -> None:
    """The connection ends without an answer and without an RST."""
    with proxy.broken(Fault(kind, EVERYTHING)), pytest.raises((http.client.RemoteDisconnected, ssl.SSLEOFError)):
        get(proxy)


def test_a_truncated_answer_ends_early(proxy: Proxy) -> None:
    """The answer ends after the given number of bytes."""
    with proxy.broken(Fault(Kind.TRUNCATE, EVERYTHING, 1000)), pytest.raises(http.client.IncompleteRead) as caught:
        get(proxy)
    assert 0 < len(caught.value.partial) < 1000


def test_lost_answer_follows_a_completed_write(proxy: Proxy, server: Server) -> None:
    """The client gets an RST, but the server has processed the write."""
    with proxy.broken(Fault(Kind.LOSE_ANSWER, where("update"))), pytest.raises(ConnectionResetError):
        put(proxy, b"committed")
    assert b"committed" in server.written


def test_proxy_answer_keeps_the_connection_open(proxy: Proxy) -> None:
    """The proxy answers instead of the server, and the connection then carries the next request."""
    connection = connect(proxy)
    with proxy.broken(Fault(Kind.ANSWER, EVERYTHING, body=answer(503, "Away", b"later"))):
        connection.request("GET", SLICES)
        found = connection.getresponse()
        assert (found.status, found.read()) == (503, b"later")
    connection.request("GET", SLICES)
    assert connection.getresponse().read() == LONG
    connection.close()


def test_a_watch_under_way_is_struck(proxy: Proxy) -> None:
    """A fault affects a watch at once; an inserted line comes between its own lines."""
    connection = connect(proxy)
    connection.request("GET", f"{SLICES}?watch=true")
    found = connection.getresponse()
    assert found.readline() == b"123456789\n"
    proxy.inject(Fault(Kind.INSERT, where("watch"), body=b"mine\n", times=1))
    assert b"mine\n" in [found.readline() for _ in range(5)]
    proxy.inject(Fault(Kind.TRUNCATE, where("watch"), 3))
    with pytest.raises(http.client.IncompleteRead):
        found.read()
    connection.close()


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.HALF_CLOSE, Kind.TLS_CUT])
def test_how_a_connection_ends(proxy: Proxy, kind: Kind) -> None:
    """A reset is an RST and the other faults are a FIN; TLS does not show the difference, so TCP is checked."""
    connection = connect(proxy)
    connection.request("GET", f"{SLICES}?watch=true")
    connection.getresponse()
    with socket.socket(fileno=os.dup(connection.sock.fileno())) as tcp:
        tcp.settimeout(5)
        proxy.inject(Fault(kind, where("watch")))
        met = "data"
        while met == "data":
            try:
                met = "data" if tcp.recv(1000) else "FIN"
            except ConnectionResetError:
                met = "RST"
    assert met == ("RST" if kind is Kind.RESET else "FIN")
    connection.close()


# --- the door --------------------------------------------------------------------------------------------------------


def test_a_refused_connection(proxy: Proxy) -> None:
    """Connections are refused, and accepted on the same port afterwards."""
    proxy.door(Door.REFUSED)
    with pytest.raises(ConnectionRefusedError):
        get(proxy)
    proxy.heal()
    assert get(proxy) == LONG


def test_a_dropped_syn(proxy: Proxy) -> None:
    """Not even a TCP connection is made."""
    proxy.door(Door.DROPPED)
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=0.5)
    proxy.heal()
    assert get(proxy) == LONG


def test_tcp_connects_but_tls_does_not(proxy: Proxy) -> None:
    """A TCP connection is made, but no TLS connection."""
    proxy.door(Door.SILENT)
    with pytest.raises(TimeoutError):
        get(proxy, timeout=0.5)
    proxy.heal()
    assert get(proxy) == LONG


def test_connection_ends_during_the_tls_handshake(proxy: Proxy) -> None:
    """The connection ends during the TLS handshake."""
    proxy.door(Door.SLAMMED)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get(proxy)
    proxy.heal()
    assert get(proxy) == LONG


def test_wrong_certificate_is_rejected_until_restored(proxy: Proxy, tmp_path: Path) -> None:
    """A client rejects the wrong certificate, and accepts the usual one afterwards."""
    proxy.certificate(serving(OTHER, tmp_path))
    with pytest.raises(ssl.SSLCertVerificationError):
        get(proxy)
    proxy.certificate(None)
    assert get(proxy) == LONG


def test_a_dead_server_is_a_reset(usual: ssl.SSLContext) -> None:
    """If the server is dead, the proxy resets connections."""
    with socket.socket() as unused, ProxyThread() as thread:
        unused.bind(("127.0.0.1", 0))
        client = ssl.create_default_context(cadata=AUTHORITY.pem)
        broken = thread.proxy(unused.getsockname()[1], client, usual)
        with pytest.raises(ConnectionResetError):
            get(broken)


def test_where_matches_verb_resource_and_path() -> None:
    """A Where selects requests by verb, resource and part of the path."""
    request = parse(f"PUT {SLICES}/one-1 HTTP/1.1\r\n\r\n".encode())
    assert Where().holds(request)
    assert where("update", "create", resource="endpointslices", path="/one-").holds(request)
    assert not where("create").holds(request)
    assert not where(resource="leases").holds(request)
    assert not where(path="/two-").holds(request)
