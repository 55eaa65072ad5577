"""The client against a TLS server that sends exactly the bytes that a test gives it."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop

from hub import errors
from hub.kube import client as client_module
from hub.kube import dial, http1
from hub.kube.client import Client, api_error, connection_error
from hub.kube.cluster_access import Auth, ClientCertificate, ClusterAccess, Token, TokenFile
from hub.kube.credentials import CHECK_INTERVAL, Credentials
from hub.kube.resolver import LookupPool
from hub.kube.secret import Secret
from hub.kube.tunnel import TunnelError
from hub.runtime.clock import SystemClock
from tests.support.apiserver.pki import Authority, Certificate
from tests.support.clocks import AheadClock
from tests.support.garbage import garbage
from tests.support.waiting import until

AUTHORITY = Authority("test-ca")
OTHER = Authority("other-ca")
SERVER = AUTHORITY.server("127.0.0.1", "api.test")
CLIENTS = {name: AUTHORITY.client(name) for name in ("one", "two")}
NODES = "/api/v1/nodes"

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def ok(body: bytes = b"{}") -> bytes:
    """A complete successful answer."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def status(code: int, message: str = "no", *, reason: str = "", header: str = "", **details: Any) -> bytes:
    """An error with a Status, as the API server sends it."""
    parts = {"kind": "Status", "metadata": {}, "message": message, "reason": reason, "code": code, "details": details}
    body = json.dumps(parts).encode() + b"\n"
    head = f"HTTP/1.1 {code} Refused\r\n{header}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def close(writer: asyncio.StreamWriter) -> None:
    """Close the connection instead of answering."""
    writer.transport.abort()


async def hang(_: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def reset(first: bytes = b"") -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Send the beginning of an answer, then a RST."""

    async def act(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return act


def then_hang(*pieces: bytes, pause: float = 0.0) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Send some bytes, then nothing more."""

    async def act(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        await asyncio.Event().wait()

    return act


def server_context(certificate: Certificate, trusts: Authority | None = None) -> ssl.SSLContext:
    """A server's context with ``certificate``; with ``trusts``, it requires a client certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(certificate.pem + certificate.key_pem)
        file.flush()
        context.load_cert_chain(file.name)
    if trusts is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=trusts.pem)
    return context


class RawServer:
    """A server that answers the n-th request with the n-th answer of its script, and all later requests with ``{}``.

    Attributes:
        requests: head and body of each request.
        peers: the common names of the client certificates, one per connection.
    """

    def __init__(self, certificate: Certificate = SERVER, *, trusts: Authority | None = None) -> None:
        self._tls = server_context(certificate, trusts)
        self.script: list[Answer] = []
        self.requests: list[bytes] = []
        self.peers: list[str] = []
        self.port = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    @property
    def open(self) -> int:
        """The number of connections that are still open."""
        return sum(not (reader.at_eof() or writer.transport.is_closing()) for reader, writer in self._streams)

    @property
    def connections(self) -> int:
        """The number of handshakes so far."""
        return len(self.peers)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"https://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close in the loop's next rounds

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._streams.append((reader, writer))
        shown = writer.get_extra_info("peercert") or {"subject": ()}
        self.peers.append("".join(value for part in shown["subject"] for _, value in part))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0
                )
                self.requests.append(head + await reader.readexactly(length))
                answer = self.script.pop(0) if self.script else ok()
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    """A server with a good certificate."""
    async with RawServer() as raw:
        yield raw


@pytest.fixture
def pool() -> Iterator[LookupPool]:
    """Threads for name look-ups."""
    lookups = LookupPool(4)
    yield lookups
    lookups.close()


def made(
    url: str,
    pool: LookupPool,
    auth: Auth | None = None,
    *,
    ca: Authority = AUTHORITY,
    clock: SystemClock | None = None,
    name: str | None = None,
) -> Client:
    """A client with real credentials."""
    auth = auth or Token(Secret("secret-token"))
    access = ClusterAccess(url, auth, "kubeconfig test", ca_data=ca.pem.encode(), tls_server_name=name)
    return Client(Credentials(access, clock or SystemClock()), pool)


@pytest.fixture
async def client(server: RawServer, pool: LookupPool) -> AsyncIterator[Client]:
    """A client of the server."""
    async with made(server.url, pool) as client:
        yield client
    await asyncio.sleep(0.01)


@contextmanager
def unreachable(kind: str, *words: str) -> Iterator[None]:
    """Expect ClusterUnreachable of this kind, with these words in the message."""
    with pytest.raises(errors.ClusterUnreachable) as caught:
        yield
    assert caught.value.kind == kind
    assert all(word in str(caught.value) for word in words), caught.value


@asynccontextmanager
async def silent_listener() -> AsyncIterator[int]:
    """A port on which the kernel accepts connections and nothing is ever sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# --- what is asked -------------------------------------------------------------------------------


async def test_get_is_a_plain_request(server: RawServer, client: Client) -> None:
    """A GET has Host, User-Agent, Accept and credentials, and does not ask for compression."""
    assert await client.request("GET", NODES, params={"limit": "5", "continue": "a/b+c=="}) == b"{}"
    line, *headers = server.requests[0].decode().split("\r\n")
    assert line == "GET /api/v1/nodes?limit=5&continue=a%2Fb%2Bc%3D%3D HTTP/1.1"
    assert sorted(header.partition(":")[0] for header in headers if header) == [
        "Accept",
        "Authorization",
        "Host",
        "User-Agent",
    ]
    assert f"Host: 127.0.0.1:{server.port}" in headers
    assert "Authorization: Bearer secret-token" in headers


async def test_body_is_sent_with_its_length_and_type(server: RawServer, client: Client) -> None:
    """A POST sends its body with Content-Length and Content-Type."""
    await client.request("POST", NODES, body=b'{"kind":"Node"}')
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body == b'{"kind":"Node"}'
    assert b"Content-Type: application/json\r\nContent-Length: 15" in head


async def test_the_port_of_https_is_443(pool: LookupPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server address without a port means port 443."""
    asked: list[int] = []

    async def connect(_: socket.socket, address: tuple[str, int]) -> None:
        asked.append(address[1])
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
    async with made("https://127.0.0.1", pool) as client:
        with unreachable("refused"):
            await client.request("GET", NODES)
    assert asked == [443]


async def test_error_without_status_uses_the_reason_phrase(server: RawServer, client: Client) -> None:
    """The message is the reason phrase, cut to 64 characters: a proxy may write a page into it."""
    server.script = [f"HTTP/1.1 502 {'x' * 200}\r\nContent-Length: 0\r\n\r\n".encode()]
    with pytest.raises(errors.ServerFault) as caught:
        await client.request("GET", NODES)
    assert caught.value.message == "x" * 64


async def test_path_of_the_server_comes_first(server: RawServer, pool: LookupPool) -> None:
    """The path of a server address, such as that of a proxy for many clusters, precedes every request path."""
    async with made(f"{server.url}/k8s/clusters/c-1", pool) as client:
        await client.request("GET", NODES)
    assert server.requests[0].startswith(b"GET /k8s/clusters/c-1/api/v1/nodes HTTP/1.1\r\n")


# --- kept connections ----------------------------------------------------------------------------


async def test_connection_is_kept(server: RawServer, client: Client) -> None:
    """Consecutive requests share one connection."""
    for method in ("GET", "POST", "PUT", "DELETE", "GET"):
        await client.request(method, NODES, body=b"{}" if method in ("POST", "PUT") else None)
    assert (len(server.requests), server.connections) == (5, 1)


async def test_concurrent_requests_have_separate_connections(server: RawServer, client: Client) -> None:
    """Concurrent requests have separate connections, and all of them are kept."""
    for _ in range(2):
        await asyncio.gather(*(client.request("GET", NODES) for _ in range(3)))
    assert (len(server.requests), server.connections) == (6, 3)


async def test_connection_idle_for_too_long_is_not_used(
    server: RawServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that the server may be about to close is closed and replaced."""
    monkeypatch.setattr(client_module, "KEEP_IDLE", 0.0)
    await client.request("GET", NODES)
    await client.request("POST", NODES, body=b"{}")
    assert server.connections == 2


async def test_idle_connections_are_closed(server: RawServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are closed after a while, which frees their buffers."""
    monkeypatch.setattr(client_module, "KEEP_IDLE", 0.2)
    for _ in range(2):
        await asyncio.gather(*(client.request("GET", NODES) for _ in range(3)))
        await until(lambda: server.open == 3)
        async with asyncio.timeout(10):
            while server.open:  # noqa: ASYNC110 - a state, not an event
                await asyncio.sleep(0.02)


async def test_connection_closed_while_idle_is_replaced(server: RawServer, client: Client) -> None:
    """A write does not fail if the server closed the kept connection before."""

    async def answer_and_close(writer: asyncio.StreamWriter) -> None:
        writer.write(ok())
        await writer.drain()
        writer.transport.abort()

    server.script = [answer_and_close]
    await client.request("GET", NODES)
    await asyncio.sleep(0.02)
    assert await client.request("POST", NODES, body=b"{}") == b"{}"
    assert (len(server.requests), server.connections) == (2, 2)


@pytest.mark.parametrize("gone", [close, reset(), reset(b"HTTP/1.1 200 OK\r\nContent-Le"), reset(ok(b"long")[:-1])])
async def test_read_on_a_connection_just_closed_is_sent_once_more(
    server: RawServer, client: Client, gone: Answer
) -> None:
    """If the server closes a kept connection during a GET, the GET is sent again on a new one."""
    server.script = [ok(), gone, ok(b"second")]
    await client.request("GET", NODES)
    assert await client.request("GET", NODES) == b"second"
    assert (len(server.requests), server.connections) == (3, 2)


async def test_read_is_sent_once_more_only_once(server: RawServer, client: Client) -> None:
    """If the server closes the second connection too, the GET fails."""
    server.script = [ok(), close, close]
    await client.request("GET", NODES)
    with unreachable("reset", "connection lost"):
        await client.request("GET", NODES)
    assert len(server.requests) == 3


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_write_on_a_connection_just_closed_is_never_sent_again(
    server: RawServer, client: Client, method: str
) -> None:
    """A write may have been carried out, so it is not sent again; the caller has to check."""
    server.script = [ok(), close]
    await client.request("GET", NODES)
    with unreachable("reset"):
        await client.request(method, NODES, body=b"{}")
    assert len(server.requests) == 2


async def test_request_that_is_not_admitted_is_not_sent(server: RawServer, client: Client) -> None:
    """``admit`` is called after the connection is made; if it raises, nothing is sent."""

    def refuse() -> None:
        raise errors.NotLeader("too late")

    with pytest.raises(errors.NotLeader):
        await client.request("PUT", NODES, body=b"{}", admit=refuse)
    await until(lambda: server.connections == 1)  # it was there when it was asked
    assert server.requests == []
    await client.request("PUT", NODES, body=b"{}", admit=lambda: None)
    assert len(server.requests) == 1


async def test_read_that_is_sent_again_is_admitted_again(server: RawServer, client: Client) -> None:
    """``admit`` is called before every sending."""
    asked: list[str] = []
    server.script = [ok(), close]
    await client.request("GET", NODES)
    await client.request("GET", NODES, admit=lambda: asked.append("now"))
    assert asked == ["now", "now"]
    assert server.connections == 2


async def test_read_on_a_new_connection_is_not_sent_again(server: RawServer, client: Client) -> None:
    """A GET is not sent again if the server closes a new connection."""
    server.script = [close]
    with unreachable("reset"):
        await client.request("GET", NODES)
    assert len(server.requests) == 1


async def test_bytes_on_an_idle_connection_are_never_an_answer(server: RawServer, client: Client) -> None:
    """Unrequested bytes close the connection and are not taken for the next answer."""

    async def push(writer: asyncio.StreamWriter) -> None:
        writer.write(ok(b"asked"))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(ok(b"pushed"))

    server.script = [push, ok(b"second")]
    assert await client.request("GET", NODES) == b"asked"
    await asyncio.sleep(0.5)
    assert await client.request("GET", NODES) == b"second"
    assert server.connections == 2


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", ok(b"late")[:-2]])
async def test_connection_of_a_cancelled_request_is_not_used_again(
    server: RawServer, client: Client, sent: bytes
) -> None:
    """The late answer to a cancelled request is not taken for the next one's answer."""
    server.script = [then_hang(sent), ok(b"mine")]
    task = asyncio.create_task(client.request("GET", NODES))
    await until(lambda: len(server.requests) == 1)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await client.request("GET", NODES) == b"mine"
    assert server.connections == 2


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", ok(b"late")[:-2]])
async def test_connection_of_a_timed_out_request_is_not_used_again(
    server: RawServer, client: Client, sent: bytes
) -> None:
    """A timeout is a clear error, and the connection is closed."""
    server.script = [then_hang(sent), ok(b"mine")]
    with unreachable("timeout", server.url, "no answer in time"):
        await client.request("GET", NODES, timeout=0.05)
    assert await client.request("GET", NODES) == b"mine"
    assert server.connections == 2


async def test_connections_kept_before_a_timeout_are_not_used_after_it(server: RawServer, client: Client) -> None:
    """After a timeout all kept connections are dropped: on a dead network, each would cost another timeout."""
    await asyncio.gather(*(client.request("GET", NODES) for _ in range(3)))
    server.script = [hang]
    with unreachable("timeout"):
        await client.request("GET", NODES, timeout=0.05)
    await client.request("GET", NODES)
    assert server.connections == 4


async def test_timeout_covers_a_dripping_answer(server: RawServer, client: Client) -> None:
    """The timeout holds even if the server sends a byte now and then."""
    server.script = [then_hang(*[b"%c" % byte for byte in ok(b"x" * 99)], pause=0.01)]
    with unreachable("timeout"):
        await client.request("GET", NODES, timeout=0.1)


async def test_close_ends_requests_under_way(server: RawServer, client: Client) -> None:
    """Closing the client fails current requests, and they are not sent again."""
    server.script = [ok(), hang]
    await client.request("GET", NODES)
    task = asyncio.create_task(client.request("GET", NODES))
    await until(lambda: len(server.requests) == 2)
    await client.close()
    with unreachable("reset"):
        await task
    assert server.connections == 1


async def test_closed_client_asks_nothing(server: RawServer, client: Client) -> None:
    """A closed client sends no requests."""
    await client.close()
    with unreachable("reset"):
        await client.request("GET", NODES)
    assert server.connections == 0


async def test_client_closed_while_connecting_leaves_no_connection(server: RawServer, client: Client) -> None:
    """A connection whose handshake ends after the close is closed."""
    task = asyncio.create_task(client.request("GET", NODES))
    await asyncio.sleep(0)
    await client.close()
    with unreachable("reset"):
        await task
    await until(lambda: server.open == 0)


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        STREAM + b"zz\r\n",
        ok() + b"more",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * (65 << 10) + b"\r\n\r\n",
    ],
    ids=["ssh", "two lengths", "gzip", "chunk size", "more", "headers"],
)
async def test_invalid_http_is_a_bad_answer(server: RawServer, client: Client, answer: bytes) -> None:
    """Invalid HTTP is a BadAnswer that names the server, and the connection is closed."""
    server.script = [answer]
    with pytest.raises(errors.BadAnswer, match="not an acceptable answer") as caught:
        await client.request("GET", NODES)
    assert server.url in str(caught.value)
    assert await client.request("GET", NODES) == b"{}"
    assert server.connections == 2


@pytest.mark.parametrize("chunked", [True, False])
async def test_endless_error_body_is_cut(server: RawServer, client: Client, *, chunked: bool) -> None:
    """Of an endless error page only the beginning is read; status and Retry-After are kept."""
    sent = 0

    async def page(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 60000000"
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n" + length + b"\r\n\r\n")
        with suppress(ConnectionError):
            while sent < 60_000_000:
                data = b"x" * 100_000
                writer.write(chunk(data) if chunked else data)
                await writer.drain()
                sent += len(data)

    server.script = [page]
    with pytest.raises(errors.ServerFault) as caught:
        await client.request("GET", NODES)
    assert (caught.value.status, caught.value.retry_after, caught.value.message) == (503, 7.0, "Busy")
    assert sent < 60_000_000
    assert await client.request("GET", NODES) == b"{}"
    assert server.connections == 2


async def test_body_above_the_limit_is_a_bad_answer(server: RawServer, client: Client) -> None:
    """A body above the caller's limit is refused."""
    server.script = [ok(b"x" * 101), ok(b"x" * 100)]
    with pytest.raises(errors.BadAnswer, match="a body above 100 bytes"):
        await client.request("GET", NODES, limit=100)
    assert len(await client.request("GET", NODES, limit=100)) == 100


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(server: RawServer, client: Client, code: int) -> None:
    """A redirect is an error, so that credentials are sent to the kubeconfig's server only."""
    async with RawServer() as elsewhere:
        where = f"HTTP/1.1 {code} Moved\r\nLocation: {elsewhere.url}/steal\r\nContent-Length: 0\r\n\r\n"
        server.script = [where.encode()]
        with pytest.raises(errors.ApiError) as caught:
            await client.request("GET", NODES)
        assert (caught.value.status, len(server.requests), elsewhere.connections) == (code, 1, 0)


async def test_no_content_is_an_empty_body(server: RawServer, client: Client) -> None:
    """204 is a success without a body."""
    server.script = [b"HTTP/1.1 204 No Content\r\n\r\n"]
    assert await client.request("DELETE", NODES) == b""


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.ApiError),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Expired),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerFault),
        (504, "Timeout", errors.ServerFault),
    ],
)
async def test_refusal_is_typed(
    server: RawServer, client: Client, code: int, reason: str, kind: type[errors.ApiError]
) -> None:
    """Status code and reason determine the error class; the message has the request and the server's words."""
    server.script = [status(code, "no because", reason=reason)]
    with pytest.raises(errors.ApiError) as caught:
        await client.request("GET", NODES)
    assert type(caught.value) is kind
    assert str(caught.value) == f"GET {NODES}: {code} {reason}: no because"


@pytest.mark.parametrize(
    ("code", "phrase", "retry_after", "body", "expected"),
    [
        (499, "Odd", None, b"", errors.ApiError(499, "", "Odd", what="GET /x")),
        (500, "Oops", "0", b"", errors.ServerFault(500, "", "Oops", what="GET /x", retry_after=0.0)),
        (
            409,
            "",
            None,
            b'{"kind":"Status","reason":"AlreadyExists"}',
            errors.AlreadyExists(409, "AlreadyExists", what="GET /x"),
        ),
        (
            422,
            "",
            None,
            b'{"kind":"Status","reason":"AlreadyExists"}',
            errors.Invalid(422, "AlreadyExists", what="GET /x"),
        ),
        (
            429,
            "Busy",
            "7",
            b'{"kind":"Status","message":"wait","details":{"retryAfterSeconds":3}}',
            errors.TooManyRequests(429, "", "wait", what="GET /x", retry_after=7.0),
        ),
        (
            429,
            "Busy",
            "soon",
            b'{"kind":"Status","details":{"retryAfterSeconds":3,"causes":[{"message":"m"}]}}',
            errors.TooManyRequests(429, "", "Busy", what="GET /x", retry_after=3.0, causes=(("", "m"),)),
        ),
        (
            503,
            "",
            None,
            b'{"kind":"Status","details":{"retryAfterSeconds":%d}}' % (1 << 60),
            errors.ServerFault(503, "", "", what="GET /x", retry_after=float(1 << 53)),
        ),
        (503, "Busy", None, b'{"kind":"Status","details":{}}', errors.ServerFault(503, "", "Busy", what="GET /x")),
        (404, "Gone", None, b'{"kind":"Pod","message":"secret"}', errors.NotFound(404, "", "Gone", what="GET /x")),
    ],
)
def test_error_of_an_answer_has_all_its_parts(
    code: int, phrase: str, retry_after: str | None, body: bytes, expected: errors.ApiError
) -> None:
    """The header counts before the Status, and the Status before the reason phrase."""
    found = api_error(code, body, "GET /x", phrase=phrase, retry_after=retry_after)
    assert (type(found), str(found), vars(found)) == (type(expected), str(expected), vars(expected))


def verification_error() -> ssl.SSLCertVerificationError:
    """A refused certificate."""
    error = ssl.SSLCertVerificationError("refused")
    error.verify_message = "self-signed certificate"
    return error


def tls_error(reason: str) -> ssl.SSLError:
    """A failed handshake."""
    error = ssl.SSLError(1, "odd")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (TimeoutError(), "timeout", "no answer in time"),
        (TunnelError("no tunnel", "refused"), "refused", "no tunnel"),
        (verification_error(), "", "its certificate is not accepted: self-signed certificate"),
        (tls_error("WRONG_VERSION_NUMBER"), "", "TLS failed: WRONG_VERSION_NUMBER"),
        (tls_error(""), "", "TLS failed: odd"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "dns", "the name does not resolve (unknown)"),
        (ConnectionRefusedError(), "refused", "connection refused"),
        (ConnectionResetError(), "reset", "connection lost"),
        (BrokenPipeError(), "reset", "connection lost"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "network", "Network is unreachable"),
        (OSError("the name has no address"), "network", "the name has no address"),
        (RuntimeError("odd"), "network", "odd"),
    ],
    ids=repr,
)
def test_failure_below_http_has_a_kind(error: Exception, kind: str, says: str) -> None:
    """The error names the server and the problem; refused certificates and failed handshakes are told from others."""
    found = connection_error(error, "https://api")
    assert str(found) == f"https://api: {says}"
    assert type(found) is (errors.ClusterUnreachable if kind else errors.CertificateRejected)
    assert getattr(found, "kind", "") == kind


def test_malformed_http_is_a_bad_answer_without_a_status() -> None:
    """No status was understood, so it is 0."""
    found = connection_error(http1.ProtocolError("a chunk without a size"), "https://api")
    assert isinstance(found, errors.BadAnswer)
    assert (found.status, str(found)) == (0, "https://api: 0 : not an acceptable answer: a chunk without a size")


async def test_refusal_keeps_the_connection(server: RawServer, client: Client) -> None:
    """A connection is kept after a 404."""
    server.script = [status(404)]
    with pytest.raises(errors.NotFound):
        await client.request("GET", NODES)
    await client.request("GET", NODES)
    assert server.connections == 1


async def test_causes_of_a_422_are_kept(server: RawServer, client: Client) -> None:
    """The error has the field paths and messages of an invalid object."""
    causes = [{"field": "endpoints[0].addresses[0]", "message": "must be a valid IP", "reason": "FieldValueInvalid"}]
    server.script = [status(422, causes=causes)]
    with pytest.raises(errors.Invalid) as caught:
        await client.request("POST", NODES, body=b"{}")
    assert caught.value.causes == (("endpoints[0].addresses[0]", "must be a valid IP"),)


async def test_429_in_plain_text_has_its_retry_after(server: RawServer, client: Client) -> None:
    """The API server's own 429 is plain text; its wait is in the header."""
    text = b"Too many requests, please try again later.\n"
    head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(text)
    server.script = [head + text]
    with pytest.raises(errors.TooManyRequests) as caught:
        await client.request("GET", NODES)
    assert (caught.value.retry_after, caught.value.message) == (7.0, "Too Many Requests")


async def test_retry_after_of_a_status_counts_without_the_header(server: RawServer, client: Client) -> None:
    """Without the header, the wait is taken from the details of the Status, as in the API server's 504."""
    server.script = [status(504, retryAfterSeconds=1)]
    with pytest.raises(errors.ServerFault) as caught:
        await client.request("GET", NODES)
    assert caught.value.retry_after == 1.0


@pytest.mark.parametrize("value", ["Fri, 31 Dec 1999 23:59:59 GMT", "-1", "1.5", "\xb2", "1_0", ""])
async def test_invalid_retry_after_is_ignored(server: RawServer, client: Client, value: str) -> None:
    """A Retry-After that is a date or invalid is ignored."""
    server.script = [f"HTTP/1.1 503 Busy\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")]
    with pytest.raises(errors.ServerFault) as caught:
        await client.request("GET", NODES)
    assert caught.value.retry_after is None


@pytest.mark.parametrize(
    "body",
    [
        b"<html>secret page</html>",
        b'{"kind":"Pod","message":"secret page"}',
        b'{"kind":"Status","message":"secret page \xff"}',
        b'{"kind":"Status","message":"secret page","x":' + b"[" * 50_000,
        b"",
    ],
    ids=["html", "other kind", "no utf-8", "brackets", "empty"],
)
async def test_only_status_bodies_are_quoted(server: RawServer, client: Client, body: bytes) -> None:
    """Only a Status is quoted in messages; any other body is ignored."""
    server.script = [b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)]
    with pytest.raises(errors.ServerFault, match=r"502 : Bad Gateway$"):
        await client.request("GET", NODES)


async def test_message_of_a_status_is_cut(server: RawServer, client: Client) -> None:
    """The message of a Status is cut to 256 characters, since it may quote a whole object."""
    server.script = [status(500, "x" * 9999)]
    with pytest.raises(errors.ServerFault) as caught:
        await client.request("GET", NODES)
    assert len(caught.value.message) == 256


# --- credentials ---------------------------------------------------------------------------------


async def test_401_reloads_the_credentials_once(server: RawServer, pool: LookupPool, tmp_path: Path) -> None:
    """After a 401, the second try of the same request uses the token that was rotated on disk."""
    file = tmp_path / "token"
    file.write_text("old")
    async with made(server.url, pool, TokenFile(file)) as client:
        await client.request("GET", NODES)
        file.write_text("new")
        server.script = [status(401), ok(b"fine")]
        assert await client.request("PUT", NODES, body=b"{}") == b"fine"
    sent = [request.partition(b"Bearer ")[2].partition(b"\r\n")[0] for request in server.requests]
    assert sent == [b"old", b"old", b"new"]


async def test_401_again_is_the_callers(server: RawServer, pool: LookupPool, tmp_path: Path) -> None:
    """If the new token is refused too, there is no third try."""
    file = tmp_path / "token"
    file.write_text("old")
    async with made(server.url, pool, TokenFile(file)) as client:
        await client.request("GET", NODES)
        file.write_text("new")
        server.script = [status(401), status(401)]
        with pytest.raises(errors.Unauthorized):
            await client.request("GET", NODES)
    assert len(server.requests) == 3


async def test_401_without_other_credentials_is_not_tried_again(server: RawServer, client: Client) -> None:
    """If the credentials have not changed, there is no second try."""
    server.script = [status(401)]
    with pytest.raises(errors.Unauthorized):
        await client.request("GET", NODES)
    assert len(server.requests) == 1


async def test_401_of_a_watch_reloads_the_credentials_once(server: RawServer, pool: LookupPool, tmp_path: Path) -> None:
    """A watch also reloads the credentials after a 401, and closes the refused connection."""
    file = tmp_path / "token"
    file.write_text("old")
    async with made(server.url, pool, TokenFile(file)) as client:
        await client.request("GET", NODES)
        file.write_text("new")
        server.script = [status(401), STREAM + chunk(b"event\n")]
        async with client.watch(NODES, {"watch": "true"}) as stream:
            assert await stream.line() == b"event"
            await until(lambda: server.open == 2)
    assert b"Bearer new" in server.requests[-1]


def write_pair(folder: Path, pair: Certificate) -> ClientCertificate:
    """A client certificate in files."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_text(pair.pem)
    key.write_text(pair.key_pem)
    return ClientCertificate(certificate, key)


async def test_rotated_certificate_opens_new_connections(pool: LookupPool, tmp_path: Path) -> None:
    """After a rotation, no request uses a connection with the old certificate, even one that was busy."""
    clock = AheadClock()
    async with RawServer(trusts=AUTHORITY) as server:
        auth = write_pair(tmp_path, CLIENTS["one"])
        async with made(server.url, pool, auth, clock=clock) as client:
            await asyncio.gather(client.request("GET", NODES), client.request("GET", NODES))
            release = asyncio.Event()

            async def later(writer: asyncio.StreamWriter) -> None:
                await release.wait()
                writer.write(ok())

            server.script = [later]
            busy = asyncio.create_task(client.request("GET", NODES))
            await until(lambda: len(server.requests) == 3)
            write_pair(tmp_path, CLIENTS["two"])
            clock.ahead += CHECK_INTERVAL + 1
            await client.request("GET", NODES)
            release.set()
            await busy
            await asyncio.gather(client.request("GET", NODES), client.request("GET", NODES))
            assert server.peers == ["one", "one", "two", "two"]
            await until(lambda: server.open == 2)


async def test_refused_client_certificate_is_certificate_rejected(pool: LookupPool, tmp_path: Path) -> None:
    """A refused client certificate is CertificateRejected, although TLS 1.3 tells only after the handshake."""
    tls = server_context(SERVER, trusts=OTHER)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            accepted, _ = listener.accept()
            with accepted, suppress(ssl.SSLError):  # blocking: asyncio's server would not send its alert
                tls.wrap_socket(accepted, server_side=True)

        port, auth = listener.getsockname()[1], write_pair(tmp_path, CLIENTS["one"])
        async with made(f"https://127.0.0.1:{port}", pool, auth) as client, asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(refuse))
            with pytest.raises(errors.CertificateRejected, match="TLS failed: TLSV1_ALERT_UNKNOWN_CA"):
                await client.request("GET", NODES, timeout=2)


# --- no answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("certificate", "ca", "name", "words"),
    [
        (SERVER, OTHER, None, "unable to get local issuer certificate"),
        (AUTHORITY.server("127.0.0.1", lifetime=timedelta(hours=-1)), AUTHORITY, None, "certificate has expired"),
        (AUTHORITY.server("other.test"), AUTHORITY, None, "IP address mismatch"),
        (SERVER, AUTHORITY, "other.test", "Hostname mismatch"),
    ],
    ids=["authority", "expired", "address", "name"],
)
async def test_wrong_server_certificate_is_certificate_rejected(
    pool: LookupPool, certificate: Certificate, ca: Authority, name: str | None, words: str
) -> None:
    """A wrong authority, date or name is CertificateRejected with the reason, and no request is sent."""
    async with RawServer(certificate) as server, made(server.url, pool, ca=ca, name=name) as client:
        with pytest.raises(errors.CertificateRejected, match=words) as caught:
            await client.request("GET", NODES)
        assert server.url in str(caught.value)
        assert server.requests == []


async def test_tls_server_name_is_verified_instead_of_the_host(server: RawServer, pool: LookupPool) -> None:
    """``tls-server-name`` is verified instead of the host."""
    async with made(server.url, pool, name="api.test") as client:
        assert await client.request("GET", NODES) == b"{}"


async def test_plain_http_port_is_a_tls_error(pool: LookupPool) -> None:
    """A plain HTTP port gives a clear TLS error."""

    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server, made(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", pool) as client:
        with pytest.raises(errors.CertificateRejected, match="TLS failed"):
            await client.request("GET", NODES)


async def test_refused_connection_has_kind_refused(pool: LookupPool) -> None:
    """A port without a listener gives kind ``refused``."""
    async with silent_listener() as port:
        pass
    async with made(f"https://127.0.0.1:{port}", pool) as client:
        with unreachable("refused", f"https://127.0.0.1:{port}: connection refused"):
            await client.request("GET", NODES)


@pytest.mark.parametrize("sent", [b"", ok(b"long")[:-1], STREAM + chunk(b"{")])
async def test_broken_connection_has_kind_reset(server: RawServer, client: Client, sent: bytes) -> None:
    """A connection that breaks anywhere in an answer gives kind ``reset``."""
    server.script = [reset(sent)]
    with unreachable("reset", f"{server.url}: connection lost"):
        await client.request("GET", NODES)


async def test_connection_closed_in_the_handshake_has_kind_reset(pool: LookupPool) -> None:
    """A server that closes the connection during the handshake gives kind ``reset``."""

    async def gone(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(gone, "127.0.0.1", 0)
    async with server, made(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", pool) as client:
        with unreachable("reset"):
            await client.request("GET", NODES)


@pytest.mark.parametrize("watch", [False, True])
async def test_server_that_never_shakes_hands_is_a_timeout(
    pool: LookupPool, monkeypatch: pytest.MonkeyPatch, watch: bool
) -> None:
    """A server that accepts and sends nothing fails requests and watches after the connect timeout."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 0.05)
    async with silent_listener() as port, made(f"https://127.0.0.1:{port}", pool) as client:
        with unreachable("timeout", "no answer in time"):
            if watch:
                async with client.watch(NODES, {}):
                    pass
            else:
                await client.request("GET", NODES)


# --- names ---------------------------------------------------------------------------------------


class Names:
    """Replaces name resolution; a name without addresses does not exist."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.asked: list[str] = []
        real = socket.getaddrinfo

        def resolve(host: Any, port: Any, *args: Any, **more: Any) -> Any:
            if host not in self.addresses:
                return real(host, port, *args, **more)
            self.asked.append(host)
            if not self.addresses[host]:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [
                (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
                for address in self.addresses[host]
            ]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Names for one test."""
    return Names(monkeypatch)


async def test_failed_lookup_has_kind_dns(pool: LookupPool, names: Names) -> None:
    """A failed look-up names the server and has kind ``dns``."""
    names.addresses["api.test"] = []
    async with made("https://api.test", pool) as client:
        with unreachable("dns", "https://api.test: the name does not resolve (Name or service not known)"):
            await client.request("GET", NODES)


async def test_name_is_verified_as_it_is_written(server: RawServer, pool: LookupPool, names: Names) -> None:
    """For a server given by name, the certificate must have that name."""
    names.addresses["api.test"] = ["127.0.0.1"]
    async with made(f"https://api.test:{server.port}", pool) as client:
        await client.request("GET", NODES)
    assert f"Host: api.test:{server.port}".encode() in server.requests[0]


@pytest.mark.parametrize("first", ["127.0.0.2", "::1"])
async def test_next_address_is_tried_where_one_refuses(
    server: RawServer, pool: LookupPool, names: Names, first: str
) -> None:
    """If one address of a name refuses, the next one is tried."""
    names.addresses["api.test"] = [first, "127.0.0.1"]
    async with made(f"https://api.test:{server.port}", pool) as client:
        assert await client.request("GET", NODES) == b"{}"


async def test_next_address_is_tried_after_a_silent_one(
    server: RawServer, pool: LookupPool, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that does not answer leaves time for the next one."""
    monkeypatch.setattr(dial, "ADDRESS_TIMEOUT", 0.05)
    names.addresses["api.test"] = ["127.0.0.2", "127.0.0.1"]
    with socket.create_server(("127.0.0.2", server.port)):
        async with made(f"https://api.test:{server.port}", pool) as client:
            assert await client.request("GET", NODES, timeout=2) == b"{}"


@pytest.mark.parametrize("addresses", [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]])
@pytest.mark.parametrize("silent", [False, True])
async def test_refused_certificate_is_not_reported_as_unreachable(
    server: RawServer,
    pool: LookupPool,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str],
    *,
    silent: bool,
) -> None:
    """A refused certificate is reported as such, not as unreachable, which might remove endpoints."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 1.0)
    names.addresses["other.test"] = addresses
    with ExitStack() as listening:
        if silent:
            listening.enter_context(socket.create_server(("127.0.0.2", server.port)))
        async with made(f"https://other.test:{server.port}", pool) as client:
            with pytest.raises(errors.CertificateRejected, match="is not accepted: Hostname mismatch"):
                await client.request("GET", NODES)


async def test_last_of_many_addresses_is_tried(
    server: RawServer, pool: LookupPool, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each address gets a share of the time, so that the last of many is tried too."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 2.0)
    monkeypatch.setattr(dial, "ADDRESS_TIMEOUT", 0.6)
    silent = [f"127.0.0.{number}" for number in range(2, 8)]
    names.addresses["api.test"] = [*silent, "127.0.0.1"]
    with ExitStack() as listening:
        for address in silent:
            listening.enter_context(socket.create_server((address, server.port)))
        async with made(f"https://api.test:{server.port}", pool) as client:
            assert await client.request("GET", NODES) == b"{}"


async def test_the_address_that_answered_last_is_tried_first(
    server: RawServer, pool: LookupPool, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with a short timeout, such as a Lease's, benefits from an earlier one that found the right address."""
    monkeypatch.setattr(dial, "ADDRESS_TIMEOUT", 0.5)
    monkeypatch.setattr(client_module, "KEEP_IDLE", 0.0)
    names.addresses["api.test"] = ["127.0.0.2", "127.0.0.1"]
    with socket.create_server(("127.0.0.2", server.port)):
        async with made(f"https://api.test:{server.port}", pool) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.4):
                    await client.request("GET", NODES)
            assert await client.request("GET", NODES) == b"{}"
            async with asyncio.timeout(0.4):
                assert await client.request("GET", NODES) == b"{}"


async def test_address_of_a_family_without_sockets_is_passed_over(server: RawServer) -> None:
    """A host without IPv6 skips IPv6 addresses."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    strange = (socket.AF_ASH, "127.0.0.1", server.port)
    living = (socket.AF_INET, "127.0.0.1", server.port)
    connection, address = await dial.connect([strange, living], context, "127.0.0.1", 10)
    assert (connection.usable, address) == (True, living)
    connection.abort()


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "0.0.0.0"])
async def test_name_that_leads_to_a_forbidden_address_is_refused(pool: LookupPool, names: Names, address: str) -> None:
    """A name that resolves to a metadata service or link-local address is refused."""
    names.addresses["api.test"] = ["127.0.0.1", address]
    async with made("https://api.test", pool) as client:
        with pytest.raises(errors.KubeconfigError, match=f"leads to {address}"):
            await client.request("GET", NODES)


# --- watches -------------------------------------------------------------------------------------


async def test_watch_gives_lines_until_the_end(server: RawServer, client: Client) -> None:
    """A watch returns its lines one by one, and b"" at the end."""
    server.script = [STREAM + chunk(b"one\ntwo\nth") + chunk(b"ree\n") + b"0\r\n\r\n"]
    async with client.watch(NODES, {"watch": "true", "resourceVersion": "5"}) as stream:
        assert [await stream.line() for _ in range(4)] == [b"one", b"two", b"three", b""]
    assert server.requests[0].startswith(b"GET /api/v1/nodes?watch=true&resourceVersion=5 HTTP/1.1\r\n")


async def test_watch_opens_a_separate_connection(server: RawServer, client: Client) -> None:
    """A watch opens a new connection and closes it at the end of its context."""
    server.script = [ok(), then_hang(STREAM, chunk(b"one\n"))]
    await client.request("GET", NODES)
    async with client.watch(NODES, {}) as stream:
        assert await stream.line() == b"one"
        assert server.connections == 2
    await until(lambda: server.open == 1)
    await client.request("GET", NODES)
    assert server.connections == 2


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("indent", [None, 2])
async def test_refused_watch_is_a_typed_error(server: RawServer, client: Client, indent: int | None, end: str) -> None:
    """The Status of a refused watch is read in any JSON layout."""
    body = json.dumps({"kind": "Status", "message": "too old", "reason": "Expired"}, indent=indent) + end
    server.script = [f"HTTP/1.1 410 Gone\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()]
    with pytest.raises(errors.Expired, match="410 Expired: too old"):
        async with client.watch(NODES, {}):
            pass
    await until(lambda: server.open == 0)


async def test_refused_watch_in_plain_text_has_its_retry_after(server: RawServer, client: Client) -> None:
    """The error of a 429 in plain text has the wait but does not quote the text."""
    server.script = [b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nContent-Length: 5\r\n\r\nwait\n"]
    with pytest.raises(errors.TooManyRequests, match=r": Slow$") as caught:
        async with client.watch(NODES, {}):
            pass
    assert caught.value.retry_after == 3.0


async def test_refused_watch_whose_body_never_ends_is_still_an_error(server: RawServer, client: Client) -> None:
    """Of an endless body of a refused watch, only the beginning is read."""
    page = STREAM.replace(b"200 OK", b"503 Busy") + chunk(b"x\n" * 40_000)
    server.script = [then_hang(page)]
    with pytest.raises(errors.ServerFault):
        async with asyncio.timeout(2), client.watch(NODES, {}):
            pass


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", STREAM, STREAM + chunk(b"half a li")])
async def test_silent_stream_times_out(
    server: RawServer, client: Client, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A watch that is silent for too long fails: before its head, after it, or within a line."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 0.1)
    server.script = [then_hang(sent)]
    with unreachable("timeout"):
        async with asyncio.timeout(2), client.watch(NODES, {}) as stream:
            await stream.line()
    await until(lambda: server.open == 0)


async def test_any_byte_keeps_a_watch_alive(server: RawServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any bytes, such as parts of a long line, keep a watch alive."""
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 1.0)
    server.script = [then_hang(STREAM, *[chunk(b"x")] * 8, chunk(b"\n"), pause=0.2)]
    async with client.watch(NODES, {}) as stream:
        assert await stream.line() == b"x" * 8


@pytest.mark.parametrize(
    "end",
    [reset(STREAM + chunk(b"one\n") + chunk(b"tw")), then_hang(STREAM + chunk(b"one\n") + b"xyz\r\n")],
    ids=["reset", "garbage"],
)
async def test_broken_watch_gives_its_lines_first(server: RawServer, client: Client, end: Answer) -> None:
    """Complete lines are delivered before the error of a broken connection."""
    server.script = [end]
    async with client.watch(NODES, {}) as stream:
        assert await stream.line() == b"one"
        with pytest.raises((errors.ClusterUnreachable, errors.BadAnswer)):
            await stream.line()


async def test_line_above_the_limit_is_a_bad_answer(
    server: RawServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than LINE_LIMIT is refused."""
    monkeypatch.setattr(client_module, "LINE_LIMIT", 100)
    server.script = [then_hang(STREAM + chunk(b"x" * 101))]
    async with client.watch(NODES, {}) as stream:
        with pytest.raises(errors.BadAnswer, match="a line above 100 bytes"):
            await stream.line()


async def test_reader_timeout_is_not_a_silent_server(server: RawServer, client: Client) -> None:
    """A timeout in the reader's own code is not taken for a silent server."""
    server.script = [then_hang(STREAM)]
    with pytest.raises(TimeoutError):
        async with client.watch(NODES, {}) as stream, asyncio.timeout(0.05):
            await stream.line()
    await until(lambda: server.open == 0)


LINE = b"x" * 999


async def slow_reader(server: RawServer, client: Client) -> None:
    """The server sends 32 MB at once, and the client does not read at first."""
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM)
        for _ in range(320):
            writer.write(chunk((LINE + b"\n") * 100))
            await writer.drain()
            sent += 100_000
        writer.write(b"0\r\n\r\n")

    server.script = [flood]
    async with client.watch(NODES, {}) as stream:
        assert await stream.line() == LINE
        await until(lambda: sent > 1_000_000)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)
        held = sum(map(len, stream._connection._lines or ()))
        assert held < 2 * http1.PAUSE_ABOVE
        assert sent < 24_000_000  # the rest is in the sockets' buffers
        count = 1
        while line := await stream.line():
            assert line == LINE
            count += 1
        assert count == 32_000


async def test_slow_reader_holds_up_the_server_and_not_our_memory(server: RawServer, client: Client) -> None:
    """While lines are not read, reading from the socket pauses; later everything arrives."""
    await slow_reader(server, client)


def test_transport_works_on_uvloop() -> None:
    """Keeping, replacing, pausing and aborting connections also works on uvloop."""

    async def main() -> None:
        pool = LookupPool(1)
        async with RawServer() as server, made(server.url, pool) as client:
            server.script = [ok(), close, ok(b"second"), then_hang(ok(b"late")[:-2])]
            await client.request("GET", NODES)
            assert await client.request("GET", NODES) == b"second"
            with unreachable("timeout"):
                await client.request("GET", NODES, timeout=0.05)
            await slow_reader(server, client)
            server.script = [reset(STREAM + chunk(b"one\n"))]
            async with client.watch(NODES, {}) as stream:
                assert await stream.line() == b"one"
                with unreachable("reset"):
                    await stream.line()
            async with made(server.url, pool, ca=OTHER) as stranger:
                with pytest.raises(errors.CertificateRejected):
                    await stranger.request("GET", NODES)
        with unreachable("refused"):
            async with made(server.url, pool) as client:
                await client.request("GET", NODES)
        pool.close()
        await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_handshake_that_is_given_up_keeps_its_socket_to_its_end(
    server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket of a cancelled connect stays open until its transport is complete, so its number is not reused."""
    loop = asyncio.get_running_loop()
    create, sockets, made = loop.create_connection, list[socket.socket](), list[Any]()
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any, sock: socket.socket, **more: Any) -> Any:
        sockets.append(sock)
        begun.set()
        await go_on.wait()
        try:
            made.append(await create(*arguments, sock=sock, **more))
            return made[0]
        finally:
            ended.set()

    monkeypatch.setattr(loop, "create_connection", slow)
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    attempt = asyncio.create_task(dial.connect([(socket.AF_INET, "127.0.0.1", server.port)], context, "127.0.0.1", 10))
    await begun.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert sockets[0].fileno() != -1

    go_on.set()
    await asyncio.wait_for(ended.wait(), 10)
    await until(lambda: sockets[0].fileno() == -1)
    assert made[0][0].is_closing()  # and nothing is connected


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_handshake_that_is_given_up_ends_at_once(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """After a timeout during the handshake, the connection is closed at once."""

    async def main() -> None:
        ended = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read(-1)  # until our side has gone
            ended.set()
            writer.close()

        pool = LookupPool(1)
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with listener, made(f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}", pool) as client:
            with unreachable("timeout"):
                await client.request("GET", NODES, timeout=0.1)
            async with asyncio.timeout(2):
                await ended.wait()
        pool.close()
        await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


class Late(asyncio.SelectorEventLoop):
    """An event loop that blocks after the connect, so that a RST arrives before the handshake."""

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await super().sock_connect(sock, address)
        time.sleep(0.05)  # noqa: ASYNC251 - the loop is to see it together with what comes next


class LateUvloop(uvloop.Loop):
    """The same for uvloop."""

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await super().sock_connect(sock, address)
        time.sleep(0.05)  # noqa: ASYNC251


@pytest.mark.parametrize("loop_factory", [Late, LateUvloop])
def test_a_reset_before_tls_closes_no_other_connection(
    monkeypatch: pytest.MonkeyPatch, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """After a RST right after the connect, no socket object keeps a descriptor that another connection may get."""
    made: list[socket.socket] = []
    real = dial._socket

    def remembered(family: socket.AddressFamily) -> socket.socket:
        made.append(real(family))
        return made[-1]

    monkeypatch.setattr(dial, "_socket", remembered)

    def slam(listener: socket.socket) -> None:
        for _ in range(10):
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()

    async def connect_again_and_again(port: int) -> None:
        context = ssl.create_default_context()
        for _ in range(10):
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await dial.connect([(socket.AF_INET, "127.0.0.1", port)], context, "server", 10)
            await asyncio.sleep(0)

    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=loop_factory) as runner:
        slamming = threading.Thread(target=slam, args=(listener,))
        slamming.start()
        runner.run(connect_again_and_again(listener.getsockname()[1]))
        slamming.join(10)
    assert [sock.fileno() for sock in made] == [-1] * 10


async def failed(client: Client, expected: type[Exception], timeout: float = 5.0) -> None:  # noqa: ASYNC109
    """Make a request that must fail; unlike ``pytest.raises``, this does not keep the traceback."""
    try:
        await client.request("GET", NODES, timeout=timeout)
    except expected:
        return
    raise AssertionError("answered")


async def refused(_: RawServer, pool: LookupPool) -> None:
    """A port without a listener."""
    async with silent_listener() as port:
        pass
    async with made(f"https://127.0.0.1:{port}", pool) as client:
        await failed(client, errors.ClusterUnreachable)


async def nameless(_: RawServer, pool: LookupPool) -> None:
    """A name that does not resolve."""
    async with made("https://-.invalid", pool) as client:
        for _ in range(3):
            await failed(client, errors.ClusterUnreachable)


async def stranger(server: RawServer, pool: LookupPool) -> None:
    """A certificate of an unknown authority."""
    async with made(server.url, pool, ca=OTHER) as client:
        await failed(client, errors.CertificateRejected)


async def mute(_: RawServer, pool: LookupPool) -> None:
    """A server that does not answer the handshake."""
    async with silent_listener() as port, made(f"https://127.0.0.1:{port}", pool) as client:
        await failed(client, errors.ClusterUnreachable, 0.05)


async def broken_request(server: RawServer, pool: LookupPool) -> None:
    """A reset before and within the answer, invalid HTTP, and a timeout."""
    async with made(server.url, pool) as client:
        for answer in (reset(), reset(ok(b"long")[:-1]), b"SSH-2.0\r\n\r\n", hang):
            server.script = [answer]
            await failed(client, errors.HubError, 0.1)


async def broken_watch(server: RawServer, pool: LookupPool) -> None:
    """A reset, a close, a refusal, and a line that the reader rejects."""

    def dislike(_: bytes) -> None:
        raise errors.BadAnswer(200, "", "not like this", what=NODES)

    async with made(server.url, pool) as client:
        for answer in (reset(STREAM), close, status(410), then_hang(STREAM, chunk(b"{}\n"), pause=0.02)):
            server.script = [answer]
            try:
                async with client.watch(NODES, {}) as stream:
                    await stream.follow(dislike)
            except errors.HubError:
                continue
            raise AssertionError("followed")


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("end_badly", [refused, nameless, stranger, mute, broken_request, broken_watch])
def test_a_connection_that_ended_badly_is_gone_with_its_error(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], end_badly: Callable[[RawServer, LookupPool], Awaitable[None]]
) -> None:
    """Failed connections are freed without the garbage collector: a dead cluster causes thousands in a day."""

    async def main() -> None:
        pool = LookupPool(1)
        async with RawServer() as server:
            with garbage() as found:
                await end_badly(server, pool)
                await asyncio.sleep(0.05)
        pool.close()
        assert not found.keys() & {"Connection", "TlsStream", "Client", "Stream"}, found

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_a_frozen_server_is_noticed_within_90_seconds() -> None:
    """docs/reliability.md states 90 s; a watch is silent for up to 61 s between bookmarks."""
    assert 61.0 < client_module.SILENCE_TIMEOUT <= 90.0 - client_module.CONNECT_TIMEOUT
