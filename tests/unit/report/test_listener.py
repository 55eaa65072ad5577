"""The small HTTP server of probes and metrics with misbehaving clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

import pytest

from hub.cli.options import BindAddress
from hub.errors import HubError
from hub.report.listener import HEAD_LIMIT, Reply, Request, host_and_port, is_loopback, listening
from tests.unit.report.conftest import nothing

BIG = b"x" * (8 << 20)


async def reply(request: Request) -> Reply:
    """Answer with the X-Name header; ``/big`` has a large body, ``/broken`` raises."""
    if request.path == "/broken":
        raise KeyError("secret")
    return Reply(200, BIG if request.path == "/big" else request.headers.get("x-name", "").encode())


async def ask(port: int, request: bytes) -> bytes:
    """Send a request, and return the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    found = await reader.read()
    writer.close()
    return found


async def said_until_cut_off(connection: socket.socket) -> None:
    """Send bytes until the server has closed the connection, which raises OSError."""
    while True:
        connection.send(b".")
        await asyncio.sleep(0.02)


async def test_a_defect_is_answered_without_its_text(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The traceback is logged and not sent to the client, and the next request is served."""
    async with listening(BindAddress("127.0.0.1", port), reply, flag="--x", what="x"):
        found = await ask(port, b"GET /broken HTTP/1.1\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 500 ")
        assert b"secret" not in found
        assert "/broken was not answered" in caplog.text
        assert (await ask(port, b"GET / HTTP/1.1\r\nX-Name:  eu \r\n\r\n")).endswith(b"\r\n\r\neu")


SLOW_TO_READ = [
    b"GET / HTTP/1.1\r\na:" + b" " * 8100 + b"\n\r\n\r\n",
    b"GET / HTTP/1.1\r\na:" + b" \t" * 4050 + b"x\n\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a" * 8100 + b"\r\n\r\n",
    b"GET /" + b"?" * 8100 + b"\r\n\r\n",
    b"GET /" + b"a" * 8100 + b"\r\n\r\n",
    b"GET /" + b"?a" * 4050 + b" HTTP/1.1\n\r\n\r\n",
]


@pytest.mark.parametrize("head", SLOW_TO_READ, ids=range(len(SLOW_TO_READ)))
async def test_no_head_takes_long_to_read(port: int, head: bytes) -> None:
    """Slow parsing would block the hub's event loop, even for unauthenticated clients."""
    assert len(head) <= HEAD_LIMIT
    async with listening(BindAddress("127.0.0.1", port), reply, flag="--x", what="x"):
        began = time.perf_counter()
        assert (await ask(port, head)).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 "))
        assert time.perf_counter() - began < 0.5


async def test_a_request_is_taken_apart(port: int) -> None:
    """The path ends at the first question mark; white space around a header's value is removed."""
    found: list[Request] = []

    async def note(request: Request) -> Reply:
        found.append(request)
        return Reply(200, b"")

    async with listening(BindAddress("127.0.0.1", port), note, flag="--x", what="x"):
        for target in (b"/", b"/a>b@c", b"/a?", b"/a?b=c?d"):
            await ask(
                port, b"GET " + target + b" HTTP/1.1\r\nHost: a:1 \t\r\nX:\r\nAccept: \t text/plain ; q=1\r\n\r\n"
            )
    assert [(request.path, request.query) for request in found] == [
        ("/", ""),
        ("/a>b@c", ""),
        ("/a", ""),
        ("/a", "b=c?d"),
    ]
    assert found[0].headers == {"host": "a:1", "x": "", "accept": "text/plain ; q=1"}


HEADERS = b"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nContent-Length: "
CLOSE = b"Connection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET / HTTP/1.1\r\nX-Name: eu", b"HTTP/1.1 200 OK\r\n" + HEADERS + b"2\r\n" + CLOSE + b"eu"),
        (b"HEAD / HTTP/1.0\r\nX-Name: eu", b"HTTP/1.1 200 OK\r\n" + HEADERS + b"2\r\n" + CLOSE),
        (
            b"POST / HTTP/1.1",
            b"HTTP/1.1 405 Method Not Allowed\r\n" + HEADERS + b"9\r\nAllow: GET, HEAD\r\n" + CLOSE + b"only GET\n",
        ),
        (b"nonsense", b"HTTP/1.1 400 Bad Request\r\n" + HEADERS + b"14\r\n" + CLOSE + b"not a request\n"),
    ],
)
async def test_whole_answers(port: int, request_: bytes, expected: bytes) -> None:
    """Every answer has a length and ends the connection; HEAD is answered without a body."""
    async with listening(BindAddress("127.0.0.1", port), reply, flag="--x", what="x"):
        assert await ask(port, request_ + b"\r\n\r\n") == expected


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("localhost:65535", True),
        ("127.0.0.1", True),
        ("10.1.2.3:8080", True),
        ("[::1]", True),
        ("[fd00::5]:443", True),
        ("", True),
        ("[localhost]", False),
        ("[::1", False),
        ("localhost:123456", False),
        ("example.com", False),
    ],
)
async def test_host_on_loopback_is_an_address_or_localhost(port: int, host: str, *, own: bool) -> None:
    """Web pages reach a server by their own name only, so other names are refused."""
    async with listening(BindAddress("127.0.0.1", port), reply, flag="--x", what="x", own_names=True):
        found = await ask(port, f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert found.split(b" ")[1] == (b"200" if own else b"421")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        (None, False),
        ("localhost", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("::", False),
        ("hub.example.com", False),
    ],
)
def test_loopback_is_only_this_machine(host: str | None, *, loopback: bool) -> None:
    """A name other than localhost may lead anywhere."""
    assert is_loopback(host) is loopback


async def test_sockets_are_named_as_in_a_url(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the service and its address; an IPv6 address has brackets."""
    with caplog.at_level(logging.INFO):
        async with listening(BindAddress("127.0.0.1", port), reply, flag="--x", what="probes"):
            pass
    assert caplog.messages == [f"serving probes on 127.0.0.1:{port}"]
    with socket.socket(socket.AF_INET6) as made:
        made.bind(("::1", 0))
        assert host_and_port(made) == f"[::1]:{made.getsockname()[1]}"


async def test_unknown_host_is_an_error_with_its_reason(port: int) -> None:
    """The reason of a failed lookup is that of the resolver, not of the operating system's error number."""
    with pytest.raises(HubError) as caught:
        async with listening(BindAddress("no such host", port), reply, flag="--x", what="probes"):
            pass
    text = str(caught.value)
    assert text.startswith(f"--x no such host:{port}: [Errno -")
    assert text.endswith("; give another HOST:PORT, or 0 for no probes")


async def test_a_reader_that_is_dead_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read its answer is disconnected after a while; other clients are served meanwhile."""
    monkeypatch.setattr("hub.report.listener.PATIENCE", 0.3)
    async with listening(BindAddress("127.0.0.1", port), reply, flag="--x", what="x"):
        with socket.create_connection(("127.0.0.1", port)) as dead:
            dead.sendall(b"GET /big HTTP/1.1\r\n\r\n")
            assert (await ask(port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            async with asyncio.timeout(5):
                with pytest.raises(OSError, match=r"Broken pipe|reset"):
                    await said_until_cut_off(dead)


async def test_oldest_silent_connection_is_closed_at_the_limit(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit the oldest connection without a complete request is closed, so that a new request is answered."""
    monkeypatch.setattr("hub.report.listener.AT_ONCE", 1)
    async with listening(BindAddress("127.0.0.1", port), reply, flag="--x", what="x"):
        silent, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        assert (await ask(port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        async with asyncio.timeout(2):
            assert await nothing(silent)
        writer.close()


async def test_new_connection_is_refused_while_all_requests_are_served(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection beyond the limit is refused while all others have sent their request."""
    monkeypatch.setattr("hub.report.listener.AT_ONCE", 1)
    asked, may = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Reply:
        asked.set()
        await may.wait()
        return await reply(request)

    async with listening(BindAddress("127.0.0.1", port), slow, flag="--x", what="x"):
        first = asyncio.create_task(ask(port, b"GET / HTTP/1.1\r\n\r\n"))
        await asked.wait()
        late, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await nothing(late)
        writer.close()
        may.set()
        assert (await first).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", b"421"), (None, b"200")])
async def test_names_are_refused_on_loopback_only(port: int, host: str | None, status: bytes) -> None:
    """On loopback a name may be DNS rebinding by a web page; on other addresses Services have names."""
    async with listening(BindAddress(host, port), reply, flag="--x", what="x", own_names=True):
        found = await ask(port, b"GET / HTTP/1.1\r\nHost: hub.monitoring.svc:8080\r\n\r\n")
        assert found.split()[1] == status


async def test_an_address_in_use_names_the_flag(port: int) -> None:
    """The error names the option to change."""
    async with listening(BindAddress("127.0.0.1", port), reply, flag="--metrics-bind-address", what="metrics"):
        with pytest.raises(HubError, match=r"--metrics-bind-address .* in use; give another HOST:PORT"):
            async with listening(BindAddress("127.0.0.1", port), reply, flag="--metrics-bind-address", what="metrics"):
                pass
