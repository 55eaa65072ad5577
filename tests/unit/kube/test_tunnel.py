"""The client behind real proxy processes, good ones and bad ones."""

from __future__ import annotations

import asyncio
import base64
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hub import __version__, errors
from hub.kube import client as client_module
from hub.kube.client import Client
from hub.kube.cluster_access import Auth, ClientCertificate, ClusterAccess, Token
from hub.kube.credentials import Credentials
from hub.kube.http1 import HEAD_LIMIT, MAX_INFORMATIONAL, Connection
from hub.kube.proxy import parse_proxy
from hub.kube.resolver import LookupPool
from hub.kube.secret import Secret
from hub.kube.tls import client_context
from hub.kube.tls_stream import TlsStream
from hub.kube.tunnel import Passage, Tunnel
from hub.runtime.clock import SystemClock
from tests.support.apiserver.pki import Authority
from tests.support.forward_proxy import ForwardProxy
from tests.support.garbage import garbage
from tests.support.transport import Wire
from tests.support.waiting import until
from tests.unit.kube.test_client import AUTHORITY, NODES, OTHER, STREAM, RawServer, chunk, ok, then_hang

PROXY = AUTHORITY.server("127.0.0.1")
CANARY = "hunter2-canary"
LOGIN = f"joe:{CANARY}"
HELLO = "160301"
"""The first bytes of a TLS handshake."""
KINDS = [("http", "http"), ("https", "https"), ("socks5", "socks5"), ("socks5", "socks5h")]
"""Kind of the proxy, scheme of its URL."""


def proxy_of(kind: str, folder: Path, **more: Any) -> ForwardProxy:
    """A proxy; an https one has a certificate for 127.0.0.1."""
    certificate = folder / "proxy.pem"
    certificate.write_text(PROXY.pem + PROXY.key_pem + AUTHORITY.pem)
    return ForwardProxy(kind, certificate=certificate, **more)


@asynccontextmanager
async def through(url: str, server: str, ca: Authority = AUTHORITY, auth: Auth | None = None) -> AsyncIterator[Client]:
    """A client of a server, behind the proxy with this URL."""
    access = ClusterAccess(
        server,
        auth or Token(Secret("secret-token")),
        "a test",
        ca.pem.encode(),
        tls_server_name="api.test",
        proxy=parse_proxy(url),
    )
    pool = LookupPool(2)
    try:
        async with Client(Credentials(access, SystemClock()), pool) as client:
            yield client
    finally:
        pool.close()
    await asyncio.sleep(0.01)


@contextmanager
def failing(kind: str, *words: str) -> Iterator[None]:
    """Expect ClusterUnreachable of this kind, with these words and no password in it or in any error that it keeps."""
    with pytest.raises(errors.ClusterUnreachable) as caught:
        yield
    assert caught.value.kind == kind, caught.value
    assert all(word in str(caught.value) for word in words), caught.value
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert CANARY not in shown
    assert base64.b64encode(LOGIN.encode()).decode() not in shown


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    """An API server."""
    async with RawServer() as raw:
        yield raw


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 0.5)


# --- good proxies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("login", ["", LOGIN])
@pytest.mark.parametrize(("kind", "scheme"), KINDS)
def test_requests_and_watches_pass(
    kind: str,
    scheme: str,
    login: str,
    run: Callable[[Coroutine[Any, Any, None]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection is kept behind a proxy; the proxy sees host, port, login and TLS, and nothing of the request."""
    looked_up: list[str] = []

    def here(host: str, port: int, *_: object) -> list[Any]:
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", here)

    async def scenario(proxy: ForwardProxy) -> None:
        async with RawServer() as server:
            async with through(proxy.url(scheme), f"https://api.test:{server.port}") as client:
                await client.reach()
                assert await client.request("GET", NODES) == b"{}"
                big = b"x" * 3_000_000
                server.script = [ok(big), then_hang(STREAM, chunk(b'{"type":"ADDED"}\n'))]
                assert await client.request("GET", NODES) == big
                async with client.watch(NODES, {}) as stream:
                    assert await stream.line() == b'{"type":"ADDED"}'
            assert server.connections == 2
            first, second = proxy.awaits(2)
            host = "127.0.0.1" if scheme == "socks5" else "api.test"
            assert first["asked"] == second["asked"] == f"{host}:{server.port}"
            assert (first["login"], first["first"]) == (login, HELLO)
            assert "secret-token" not in first["head"]

    with proxy_of(kind, tmp_path, login=login) as proxy:
        run(scenario(proxy))
    assert set(looked_up) == ({"api.test"} if scheme == "socks5" else set())


async def test_connect_asks_for_host_and_port_only(server: RawServer, tmp_path: Path) -> None:
    """The request line and Host name the API server; the path and the token of the request are in the tunnel."""
    with proxy_of("http", tmp_path, login=LOGIN) as proxy:
        async with through(proxy.url(), f"https://127.0.0.1:{server.port}/k8s/c-1") as client:
            await client.request("GET", NODES)
        (seen,) = proxy.awaits(1)
    line, host, agent, login, *rest = seen["head"].split("\r\n")
    assert line == f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"
    assert host == f"Host: 127.0.0.1:{server.port}"
    assert agent.startswith("User-Agent: endpointslice-hub/")
    assert login == f"Proxy-Authorization: Basic {base64.b64encode(LOGIN.encode()).decode()}"
    assert rest == ["", ""]


@pytest.mark.parametrize("kind", ["http", "https", "socks5"])
async def test_the_server_is_verified_behind_a_proxy(server: RawServer, kind: str, tmp_path: Path) -> None:
    """A certificate of another authority is refused, as without a proxy; the error names the proxy."""
    certificate = tmp_path / "proxy.pem"
    other = OTHER.server("127.0.0.1")
    certificate.write_text(other.pem + other.key_pem)
    with ForwardProxy(kind, certificate=certificate, login=LOGIN) as proxy:
        async with through(proxy.url(), server.url, ca=OTHER) as client:
            with pytest.raises(errors.CertificateRejected, match=f"{server.url} through {proxy.url(login='')}: "):
                await client.request("GET", NODES)
        assert server.requests == []


async def test_an_https_proxy_is_verified(server: RawServer, tmp_path: Path) -> None:
    """A proxy with a certificate of another authority gets neither the login nor the name of the server."""
    certificate = tmp_path / "proxy.pem"
    other = OTHER.server("127.0.0.1")
    certificate.write_text(other.pem + other.key_pem)
    with ForwardProxy("https", certificate=certificate, login=LOGIN) as proxy:
        async with through(proxy.url(), server.url) as client:
            with failing("proxy", "the proxy's certificate is not accepted", "certificate-authority-data"):
                await client.request("GET", NODES)
        assert all(not seen["head"] for seen in proxy.seen)


async def test_an_https_proxy_sees_no_client_certificate(tmp_path: Path) -> None:
    """The client certificate is for the API server only, even if the proxy asks for one too."""
    mine = AUTHORITY.client("hub")
    auth = ClientCertificate(mine.pem.encode(), Secret(mine.key_pem))
    async with RawServer(trusts=AUTHORITY) as server:
        with proxy_of("https", tmp_path) as proxy:
            async with through(proxy.url(), server.url, auth=auth) as client:
                await client.request("GET", NODES)
            assert server.peers == ["hub"]
            assert [seen["certificate"] for seen in proxy.awaits(1)] == [False]


async def test_an_ended_tunnel_is_replaced(server: RawServer, tmp_path: Path) -> None:
    """A proxy that dies ends its tunnels; once it is back, the same client works again."""
    with proxy_of("http", tmp_path, login=LOGIN) as proxy:
        async with through(proxy.url(), server.url) as client:
            await client.request("GET", NODES)
            server.script = [then_hang(STREAM, chunk(b"{}\n"))]
            async with client.watch(NODES, {}) as stream:
                assert await stream.line() == b"{}"
                proxy.kill()
                with failing("reset", f"{server.url} through {proxy.url(login='')}: connection lost"):
                    await stream.line()
            with failing("proxy", "the proxy refuses the connection; check that it runs"):
                await client.request("GET", NODES)
            proxy.start()
            assert await client.request("GET", NODES) == b"{}"


async def test_closed_client_leaves_no_connection(server: RawServer, tmp_path: Path) -> None:
    """Closing the client ends its tunnels at the server too."""
    for kind in ("http", "https", "socks5"):
        with proxy_of(kind, tmp_path) as proxy:
            async with through(proxy.url(), server.url) as client:
                await client.request("GET", NODES)
                await until(lambda: server.open == 1)
            await until(lambda: server.open == 0)


# --- byte by byte --------------------------------------------------------------------------------------


class Talk:
    """A tunnel through a proxy whose answers a test writes."""

    def __init__(self, url: str, host: str) -> None:
        context = client_context(AUTHORITY.pem.encode())
        self.stream = TlsStream(Connection(asyncio.get_running_loop()), context, "api.test")
        self.tunnel = Tunnel(Passage(parse_proxy(url), host, 6443))
        self.tunnel.lead_to(self.stream)
        self.line = Wire()
        self.tunnel.connection_made(self.line)

    def hear(self, answer: bytes) -> bytes:
        """Answer byte by byte; returns the bytes that were sent before, none of which may follow a part of it."""
        sent, self.line.sent = self.line.sent, b""
        for at in range(len(answer)):
            assert (self.line.sent, self.tunnel.open) == (b"", False)
            self.tunnel.data_received(answer[at : at + 1])
        return sent

    def problem(self) -> str:
        """The error of the tunnel."""
        assert self.line.aborted
        return str(self.stream.secured.exception())


@pytest.mark.parametrize(
    ("url", "host", "talk"),
    [
        (
            "socks5h://proxy",
            "api.test",
            [(b"\x05\x01\x00", b"\x05\x00"), (b"\x05\x01\x00\x03\x08api.test\x19\x2b", b"\x05\x00\x00\x01" + bytes(6))],
        ),
        (
            "socks5://joe:pw@proxy",
            "10.0.0.1",
            [
                (b"\x05\x02\x00\x02", b"\x05\x02"),
                (b"\x01\x03joe\x02pw", b"\x01\x00"),
                (b"\x05\x01\x00\x01\x0a\x00\x00\x01\x19\x2b", b"\x05\x00\x00\x04" + bytes(18)),
            ],
        ),
        (
            "socks5://joe:pw@proxy",
            "2001:db8::1",
            [
                (b"\x05\x02\x00\x02", b"\x05\x00"),
                (
                    b"\x05\x01\x00\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01\x19\x2b",
                    b"\x05\x00\x00\x03\x05proxy" + bytes(2),
                ),
            ],
        ),
        (
            "http://proxy",
            "2001:db8::1",
            [
                (
                    b"CONNECT [2001:db8::1]:6443 HTTP/1.1\r\nHost: [2001:db8::1]:6443\r\n"
                    + f"User-Agent: endpointslice-hub/{__version__}\r\n\r\n".encode(),
                    b"HTTP/1.1 199 Wait\r\n\r\n" * MAX_INFORMATIONAL + b"HTTP/1.1 299 Odd\r\nX: y\r\n\r\n",
                )
            ],
        ),
    ],
)
async def test_tunnel_opens_with_the_last_byte_of_the_answer(
    url: str, host: str, talk: list[tuple[bytes, bytes]]
) -> None:
    """The proxy gets exactly these bytes; TLS begins when its answer is complete."""
    through_it = Talk(url, host)
    assert [through_it.hear(answer) for _, answer in talk] == [said for said, _ in talk]
    assert through_it.tunnel.open
    assert through_it.line.protocol is through_it.stream
    assert through_it.line.sent[:3].hex() == HELLO


@pytest.mark.parametrize(("more", "opens"), [(0, True), (1, False)])
async def test_headers_of_a_proxy_have_a_limit(more: int, opens: bool) -> None:
    """Headers of exactly the limit are accepted, and one byte more is refused."""
    talk = Talk("http://proxy", "api.test")
    talk.tunnel.data_received(b"HTTP/1.1 200 OK\r\nX: ".ljust(HEAD_LIMIT + more, b"y") + b"\r\n\r\n")
    assert talk.tunnel.open is opens
    if not opens:
        assert "headers above 64 KiB" in talk.problem()


@pytest.mark.parametrize(
    ("url", "answer", "says"),
    [
        ("http://proxy", b"HTTP/1.1 199 Wait\r\n\r\n" * (MAX_INFORMATIONAL + 1), "1xx announcements"),
        ("http://proxy", b"HTTP/1.1 300 Odd\r\n\r\n", "answers 300 Multiple Choices: check that it is a proxy"),
        ("http://proxy", b"HTTP/1.1 502 Odd\r\n\r\n", "api.test:6443 cannot be reached from there"),
        ("socks5h://proxy", b"\x05\x02", "wants a login: write socks5h://USER:PASSWORD@proxy:1080"),
        ("socks5h://proxy", b"\x05\x00\x04\x00\x00\x01", "the proxy's answer is not SOCKS5"),
        ("socks5h://proxy", b"\x05\x00\x05\x07\x00\x01", "answers 7 to api.test:6443: it does not support CONNECT"),
        ("socks5h://proxy", b"\x05\x00\x05\x08\x00\x01", "it does not support this kind of address"),
    ],
)
async def test_refusal_of_a_proxy_is_explained(url: str, answer: bytes, says: str) -> None:
    """The error comes with the last byte that it needs."""
    talk = Talk(url, "api.test")
    for at in range(len(answer)):
        assert not talk.line.aborted
        talk.tunnel.data_received(answer[at : at + 1])
    assert says in talk.problem()


# --- bad proxies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "scheme"), KINDS)
async def test_wrong_or_missing_login_is_said(server: RawServer, kind: str, scheme: str, tmp_path: Path) -> None:
    """The error says whether a login is missing or wrong, and where it belongs; it never has the password."""
    with proxy_of(kind, tmp_path, login="joe:other") as proxy:
        async with through(proxy.url(scheme, LOGIN), server.url) as client:
            with failing("proxy", f"through {scheme}://{proxy.place}: ", "does not accept the user and password"):
                await client.request("GET", NODES)
        async with through(proxy.url(scheme, ""), server.url) as client:
            with failing("proxy", f"write {scheme}://USER:PASSWORD@{proxy.place}"):
                await client.request("GET", NODES)
    assert server.requests == []


@pytest.mark.parametrize(("kind", "scheme"), KINDS)
async def test_server_that_the_proxy_cannot_reach_is_unreachable(
    kind: str, scheme: str, tmp_path: Path, unused_tcp_port: int
) -> None:
    """If the proxy says that the server is away, the cluster is unreachable, and not only its proxy."""
    with proxy_of(kind, tmp_path) as proxy:
        async with through(proxy.url(scheme), f"https://127.0.0.1:{unused_tcp_port}") as client:
            expected = ("refused", "answers 5 ", "refuses") if kind == "socks5" else ("network", "502 Bad Gateway")
            with failing(expected[0], *expected[1:], f"127.0.0.1:{unused_tcp_port}"):
                await client.request("GET", NODES)


def head(line: str, *more: str) -> bytes:
    """An answer to CONNECT."""
    return "\r\n".join((line, *more, "", "")).encode()


HTTP: dict[str, tuple[bytes, str, str]] = {
    "403": (head("HTTP/1.1 403 " + LOGIN), "proxy", "answers 403 Forbidden: allow CONNECT to"),
    "404": (head("HTTP/1.1 404 " + CANARY), "proxy", "answers 404 Not Found: check that it is a proxy"),
    "407": (head("HTTP/1.0 407 " + CANARY, f"X: {CANARY}"), "proxy", "407 Proxy Authentication Required"),
    "503": (head("HTTP/1.1 503 x"), "network", "answers 503 Service Unavailable"),
    "504": (head("HTTP/1.1 504 x"), "timeout", "answers 504 Gateway Timeout"),
    "599": (head("HTTP/1.1 599 x"), "proxy", "answers 599: check"),
    "redirect": (head("HTTP/1.1 302 x", "Location: https://evil.test/"), "proxy", "answers 302 Found"),
    "upgrade": (head("HTTP/1.1 101 x"), "proxy", "closes the connection without an answer"),
    "1xx for ever": (head("HTTP/1.1 100 x") * 9, "proxy", "1xx announcements"),
    "nothing": (b"", "proxy", "closes the connection without an answer; check that it runs, and that its scheme"),
    "half a line": (b"HTTP/1.1 20", "proxy", "closes the connection without an answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nX: y\r\n", "proxy", "closes the connection without an answer"),
    "no HTTP": (f"SSH-2.0-{CANARY}\r\n\r\n".encode(), "proxy", "no HTTP/1.1 status line; check that it is a proxy"),
    "HTTP/2": (head("HTTP/2 200"), "proxy", "no HTTP/1.1 status line"),
    "bare line feeds": (b"HTTP/1.1 200 OK\nX: y\n\r\n\r\n", "proxy", "bare line feed"),
    "folded header": (head("HTTP/1.1 200 OK", "A: b", f" {CANARY}"), "proxy", "malformed header"),
    "long head": (head("HTTP/1.1 200 OK", "A: " + "b" * 70_000), "proxy", "headers above 64 KiB"),
    "bytes after the head": (head("HTTP/1.1 200 OK") + CANARY.encode(), "proxy", "cannot have sent"),
}

SOCKS: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "proxy", "closes the connection without an answer"),
    "half": (b"\x05", "proxy", "closes the connection without an answer"),
    "SOCKS4": (b"\x04\x5a", "proxy", "does not speak SOCKS5; check its scheme and port"),
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "proxy", "does not speak SOCKS5"),
    "no method": (b"\x05\xff", "proxy", "offers no usable authentication: it does not accept the user"),
    "unknown method": (b"\x05\x01", "proxy", "offers no usable authentication"),
    "refused login": (b"\x05\x02\x01\x01", "proxy", "refuses the login"),
    "failure": (b"\x05\x00\x05\x01\x00\x01", "proxy", "it failed, see its log"),
    "rules": (b"\x05\x00\x05\x02\x00\x01", "proxy", "its rules forbid this server: allow it there"),
    "network": (b"\x05\x00\x05\x03\x00\x01", "network", "network is unreachable from there"),
    "host": (b"\x05\x00\x05\x04\x00\x01", "network", "the server is unreachable from there"),
    "ttl": (b"\x05\x00\x05\x06\x00\x01", "timeout", "does not answer it in time"),
    "unknown reply": (b"\x05\x00\x05\xfe\x00\x01", "proxy", "answers 254 to"),
    "wrong version": (b"\x05\x00\x04\x00\x00\x01", "proxy", "is not SOCKS5"),
    "unknown address": (b"\x05\x00\x05\x00\x00\x07", "proxy", "is not SOCKS5"),
    "bytes after it": (b"\x05\x00\x05\x00\x00\x01" + bytes(6) + CANARY.encode(), "proxy", "cannot have sent"),
}


@pytest.mark.parametrize("case", HTTP)
async def test_bad_answer_of_an_http_proxy_is_an_error(case: str, tmp_path: Path) -> None:
    """The error names server, proxy and problem; it quotes nothing that the proxy wrote."""
    answer, kind, words = HTTP[case]
    with proxy_of("http", tmp_path, answer=answer) as proxy:
        async with through(proxy.url(login=LOGIN), "https://api.test:6443") as client:
            with failing(kind, f"https://api.test:6443 through http://{proxy.place}: ", words):
                await client.request("GET", NODES)


@pytest.mark.parametrize("case", SOCKS)
async def test_bad_answer_of_a_socks_proxy_is_an_error(case: str, tmp_path: Path) -> None:
    """As for HTTP."""
    answer, kind, words = SOCKS[case]
    with proxy_of("socks5", tmp_path, answer=answer) as proxy:
        async with through(proxy.url("socks5h", LOGIN), "https://api.test:6443") as client:
            with failing(kind, f"https://api.test:6443 through socks5h://{proxy.place}: ", words):
                await client.request("GET", NODES)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000, b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200]
)
async def test_endless_answer_is_cut(answer: bytes, tmp_path: Path) -> None:
    """No more than the limit is kept of headers that never end; buffers of both sockets come on top."""
    with proxy_of("http", tmp_path, answer=answer, then="flood") as proxy:
        async with through(proxy.url(), "https://api.test:6443") as client:
            with failing("proxy", "headers above 64 KiB"):
                await client.request("GET", NODES)
        (seen,) = proxy.awaits(1)
    assert seen["flooded"] < 8 << 20


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(
    ("scheme", "answer"), [("http", b""), ("http", b"HTTP/1.1 200"), ("socks5h", b"\x05"), ("https", None)]
)
async def test_silent_proxy_times_out(scheme: str, answer: bytes | None, tmp_path: Path) -> None:
    """A proxy that never finishes its answer, or its handshake, takes the time of a connection and no more."""
    told = {"answer": b"", "then": "wait"} if answer is None else {"answer": answer, "then": "wait"}
    kind = {"socks5h": "socks5"}.get(scheme, "http")
    with proxy_of(kind, tmp_path, **told) as proxy:
        async with through(proxy.url(scheme), "https://api.test:6443") as client:
            started = asyncio.get_running_loop().time()
            with failing("proxy", f"{scheme}://{proxy.place}: the proxy does not answer in time"):
                await client.request("GET", NODES)
            assert asyncio.get_running_loop().time() - started < 2


@pytest.mark.usefixtures("_short")
async def test_server_that_is_silent_behind_a_proxy_is_unreachable(tmp_path: Path) -> None:
    """Once the tunnel is open, a timeout is the server's."""
    with socket.create_server(("127.0.0.1", 0)) as silent, proxy_of("http", tmp_path) as proxy:
        server = f"https://127.0.0.1:{silent.getsockname()[1]}"
        async with through(proxy.url(), server) as client:
            with failing("timeout", f"{server} through {proxy.url()}: no answer in time"):
                await client.request("GET", NODES)


async def test_https_to_a_plain_proxy_is_named(tmp_path: Path) -> None:
    """The scheme https for a proxy without TLS gives an error that says so."""
    with proxy_of("http", tmp_path, answer=b"HTTP/1.1 400 Bad Request\r\n\r\n") as proxy:
        async with through(proxy.url("https"), "https://api.test:6443") as client:
            with failing("proxy", "TLS with the proxy failed", "check that it is an https:// proxy"):
                await client.request("GET", NODES)


async def test_name_of_a_proxy_must_resolve_to_an_allowed_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy's name that leads to cloud metadata is refused; one that does not resolve is an error of the proxy."""

    def metadata(host: str, port: int, *_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    def nothing(*_: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", metadata)
    async with through(f"http://{LOGIN}@proxy.test", "https://api.test") as client:
        with pytest.raises(
            errors.KubeconfigError, match=r"the proxy's name leads to 169.254.169.254, a cloud metadata"
        ):
            await client.request("GET", NODES)
    monkeypatch.setattr(socket, "getaddrinfo", nothing)
    async with through(f"http://{LOGIN}@proxy.test", "https://api.test") as client:
        with failing("proxy", "https://api.test through http://proxy.test:80: the proxy's name does not resolve"):
            await client.request("GET", NODES)


async def test_socks5_tries_every_address_of_the_server(
    server: RawServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    """With socks5 the hub resolves the name; a connection that fails leads to the next address."""

    def two(host: str, port: int, *_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 1)]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    names = {f"127.0.0.2:{server.port}": unused_tcp_port}
    with proxy_of("socks5", tmp_path, names=names) as proxy:
        async with through(proxy.url(), f"https://api.test:{server.port}") as client:
            with failing("refused"):
                await client.request("GET", NODES)
            assert await client.request("GET", NODES) == b"{}"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(
    ("kind", "scheme", "answer"),
    [
        ("http", "http", b"HTTP/1.1 403 no\r\n\r\n"),
        ("https", "https", b"HTTP/1.1 403 no\r\n\r\n"),
        ("http", "http", b""),
        ("http", "https", b"HTTP/1.1 400 no TLS\r\n\r\n"),
        ("socks5", "socks5h", b"\x05\xff"),
    ],
)
def test_failed_tunnel_leaves_no_garbage(
    kind: str, scheme: str, answer: bytes, run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    """A failed connection is freed at once, without the garbage collector."""

    async def scenario(url: str) -> None:
        async with through(url, "https://api.test:6443") as client:
            for _ in range(2):
                with garbage() as found:
                    with pytest.raises(errors.ClusterUnreachable):
                        await client.request("GET", NODES)
                    await asyncio.sleep(0.05)
        assert not {"Tunnel", "TlsStream", "Connection", "TunnelError"} & found.keys(), found

    with proxy_of(kind, tmp_path, answer=answer) as proxy:
        run(scenario(proxy.url(scheme)))


async def test_cancelled_connection_is_closed(tmp_path: Path) -> None:
    """A caller that is cancelled while the proxy is silent leaves no connection."""
    with proxy_of("http", tmp_path, answer=b"", then="wait") as proxy:
        async with through(proxy.url(), "https://api.test:6443") as client:
            request = asyncio.create_task(client.request("GET", NODES))
            await asyncio.sleep(0.3)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await asyncio.to_thread(proxy.awaits, 1)  # its connection has ended
