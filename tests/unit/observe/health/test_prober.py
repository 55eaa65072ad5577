"""The prober on real sockets of 127.0.0.0/8: the possible answers of an endpoint, and the limits of sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from hub_testkit.simulator.identity import AUTHORITY, server_tls

from hub.decide.checks import Check
from hub.observe.health import prober as engine
from hub.observe.health.flights import Opener, StreamFlight, TcpFlight, TlsFlight
from hub.observe.health.http import HttpExchange
from hub.observe.health.prober import CLUSTER, Kind, Lane, Probe, Prober
from hub.observe.health.tls import Trust, context
from hub.runtime.clock import SystemClock
from tests.support.clocks import AheadClock

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HOST = "127.0.0.1"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server on 127.0.0.1 that handles every connection with ``serve``; yields its port."""
    writers: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with suppress(ConnectionError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(connected, HOST, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()
        await asyncio.sleep(0)


async def outcome(check: Check, opener: Opener, address: str = HOST) -> str:
    """The outcome of the first probe of an address."""
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def answered(_: Probe, text: str, __: float) -> None:
        if not first.done():
            first.set_result(text)

    prober = Prober(SystemClock(), answered)
    prober.add(Probe(address, check, Lane("eu"), opener, verdict=True), within=0.0)
    task = asyncio.create_task(prober.run())
    try:
        async with asyncio.timeout(10):
            return await first
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def http(port: int, timeout: float = 0.5, **more: object) -> str:  # noqa: ASYNC109 - the probe's
    """The outcome of one HTTP probe."""
    check = Check("http", port, timeout=timeout, **more)  # type: ignore[arg-type]
    return await outcome(check, lambda sock, address: StreamFlight(sock, HttpExchange(check, address)))


def replying(*pieces: bytes, pause: float = 0.0, then: float = 0.0) -> Serve:
    """A handler that reads a request, sends these pieces, and closes after ``then`` seconds."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        await asyncio.sleep(then)

    return serve


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a chunked body that never ends."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0)


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the request and reset the connection."""
    await reader.readuntil(b"\r\n\r\n")
    transport_socket: socket.socket = writer.get_extra_info("socket")
    transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


async def early(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer before the request."""
    writer.write(OK)
    await writer.drain()
    await asyncio.sleep(1.0)


async def half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send half of the answer and close the sending side."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    writer.write_eof()
    await asyncio.Event().wait()


ANSWERS = [
    pytest.param(replying(OK), "", id="ok"),
    pytest.param(replying(b"HTTP/1.1 204 No Content\r\n\r\n"), "", id="204 without a body"),
    pytest.param(replying(b"HTTP/1.1 302 Found\r\nLocation: http://10.7.0.9/\r\n\r\n"), "", id="redirect, as it is"),
    pytest.param(replying(b"HTTP/1.1 100 Continue\r\n\r\n", OK, pause=0.02), "", id="interim answer"),
    pytest.param(replying(*(bytes([byte]) for byte in OK), pause=0.001), "", id="byte by byte"),
    pytest.param(early, "", id="before it is asked"),
    pytest.param(endless, "", id="a body without end"),
    pytest.param(replying(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx", then=9), "", id="a body never sent"),
    pytest.param(replying(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), "status 503", id="503"),
    pytest.param(replying(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), "status 101", id="101"),
    pytest.param(resetting, "connection reset by peer", id="reset"),
    pytest.param(replying(), "closed without an answer", id="closed"),
    pytest.param(half_closed, "closed without an answer", id="half closed"),
    pytest.param(silent, "timed out", id="silent"),
    pytest.param(replying(*[b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 500], pause=0.01), "timed out", id="slow head"),
    pytest.param(
        replying(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 9000), "a head of more than 16384 bytes", id="huge head"
    ),
    pytest.param(replying(b"SSH-2.0-OpenSSH_9.2\r\n", then=9), "not an HTTP answer", id="another protocol"),
]


@pytest.mark.parametrize(("serve", "expected"), ANSWERS)
async def test_http_answers(serve: Serve, expected: str) -> None:
    """A complete head with an accepted status passes; every other answer fails in time, with a clear reason."""
    async with serving(serve) as port:
        assert await http(port) == expected


async def test_http_accepts_only_the_configured_status() -> None:
    """A redirect fails if the check accepts only status 200."""
    async with serving(replying(b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n")) as port:
        assert await http(port, status=((200, 200),)) == "status 302"


async def test_tcp_passes_when_the_connection_stands() -> None:
    """A tcp check passes once connected, without any data; a refused connection fails."""
    async with serving(silent) as port:
        assert await outcome(Check("tcp", port), lambda sock, _: TcpFlight(sock)) == ""
    assert await outcome(Check("tcp", port), lambda sock, _: TcpFlight(sock)) == "connection refused"


async def https(port: int, folder: Path, **more: object) -> str:
    """The outcome of one HTTPS probe that trusts the test authority unless ``more`` says otherwise."""
    (folder / "ca.pem").write_text(AUTHORITY)
    given = {"ca": str(folder / "ca.pem"), "server_name": "localhost", **more}
    check = Check("https", port, timeout=2.0, **given)  # type: ignore[arg-type]
    made = context(Trust("" if check.insecure else check.ca, check.insecure), str(folder))

    def opener(sock: socket.socket, address: str) -> TlsFlight:
        return TlsFlight(sock, HttpExchange(check, address), check.server_name or address, made)

    return await outcome(check, opener)


async def test_https_verifies_the_certificate_and_its_name(tmp_path: Path) -> None:
    """A wrong name and an unknown authority fail; ``insecure`` accepts every certificate."""
    async with serving(replying(OK), server_tls()) as port:
        assert await https(port, tmp_path) == ""
        assert await https(port, tmp_path, server_name="") == ""  # the certificate also names 127.0.0.1
        assert (await https(port, tmp_path, server_name="other.example")).startswith("certificate: hostname mismatch")
        assert (await https(port, tmp_path, ca="")).startswith("certificate: ")
        assert await https(port, tmp_path, ca="", insecure=True, server_name="other.example") == ""


@pytest.mark.parametrize(
    ("serve", "expected"),
    [
        pytest.param(silent, "timed out", id="silent"),
        pytest.param(early, "TLS: ", id="plain HTTP"),
        pytest.param(resetting, "timed out", id="never a request"),
    ],
)
async def test_https_probe_of_a_plain_port_fails(tmp_path: Path, serve: Serve, expected: str) -> None:
    """A server that does not speak TLS fails in time."""
    async with serving(serve) as port:
        assert (await https(port, tmp_path)).startswith(expected)


async def test_server_name_is_sent(tmp_path: Path) -> None:
    """The SNI extension contains the server name of the check."""
    seen: list[str | None] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.sni_callback = lambda _, name, __: seen.append(name)  # type: ignore[assignment,misc]
    async with serving(replying(OK), tls) as port:  # the server has no certificate, so the handshake fails after SNI
        assert (await https(port, tmp_path, server_name="shop.example.com")).startswith("TLS: ")
    assert seen == ["shop.example.com"]


async def test_too_many_open_files_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many open files are no answer about an address, and are logged once."""
    answers: list[str] = []
    tried = asyncio.Event()

    def none_left(_: str, __: int) -> tuple[socket.socket, int]:
        if len(caplog.records) and not tried.is_set():
            tried.set()
        raise OSError(errno.EMFILE, "no more")

    monkeypatch.setattr(engine, "connection", none_left)
    prober = Prober(SystemClock(), lambda _, text, __: answers.append(text))
    prober.add(Probe(HOST, Check("tcp", 9, interval=0.1), Lane("eu"), lambda sock, _: TcpFlight(sock)), 0.0)
    task = asyncio.create_task(prober.run())
    async with asyncio.timeout(5):
        await tried.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert answers == []
    assert [record.message for record in caplog.records] == [
        "no sockets for health checks: too many open files; verdicts stay as they are"
    ]


# --- limits of sockets ----------------------------------------------------------------------------


@asynccontextmanager
async def dead_end() -> AsyncIterator[int]:
    """A port where connections stay incomplete: its queue is full, and they are never accepted."""
    with closing(socket.socket()) as server, closing(socket.socket()) as first, closing(socket.socket()) as second:
        server.bind(("0.0.0.0", 0))
        server.listen(0)
        port: int = server.getsockname()[1]
        for sock in (first, second):
            sock.settimeout(0)
            sock.connect_ex((HOST, port))
        await asyncio.sleep(0.05)
        yield port


async def test_unhealthy_addresses_use_at_most_16_sockets() -> None:
    """Unhealthy addresses use at most 16 sockets of a cluster, so healthy ones are probed on time."""
    counts: Counter[str] = Counter()
    most = 0

    def answered(probe: Probe, text: str, _: float) -> None:
        nonlocal most
        counts[text] += 1
        most = max(most, prober.sockets)
        if counts[""] >= 100:
            enough.set()

    enough = asyncio.Event()
    prober = Prober(SystemClock(), answered)
    lane = Lane("eu")
    async with dead_end() as dead, serving(silent) as port:
        for number in range(100):
            check = Check("tcp", dead, interval=0.1, timeout=2.0)
            prober.add(Probe(f"127.1.0.{number}", check, lane, lambda sock, _: TcpFlight(sock), verdict=False), 0.0)
        live = Probe(HOST, Check("tcp", port, interval=0.1), lane, lambda sock, _: TcpFlight(sock), verdict=True)
        prober.add(live, 0.0)
        for _ in range(9):
            probe = Probe(HOST, live.check, lane, live.open, verdict=True)
            prober.add(probe, 0.1)
        task = asyncio.create_task(prober.run())
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(10):
            await enough.wait()
        elapsed = asyncio.get_running_loop().time() - began
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert elapsed < 2.0  # ten rounds of 0.1 s
    assert CLUSTER[Kind.DEAD] <= most <= CLUSTER[Kind.DEAD] + 10
    assert lane.held == [0, 0, 0]


async def test_waiting_probe_gets_a_freed_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """If connecting fails at once, the next waiting probe gets the socket."""
    answered: set[int] = set()
    prober = Prober(SystemClock(), lambda probe, _, __: answered.add(id(probe)))
    connect = engine.connection
    async with dead_end() as dead:
        check, lane = Check("tcp", dead, interval=0.2, timeout=0.2), Lane("eu")
        for _ in range(3 * CLUSTER[0]):
            prober.add(Probe(HOST, check, lane, lambda sock, _: TcpFlight(sock), verdict=True, passing=True), 0.0)
        task = asyncio.create_task(prober.run())
        async with asyncio.timeout(5):
            while prober.sockets < CLUSTER[0]:  # noqa: ASYNC110 - a state of the subject
                await asyncio.sleep(0.005)
            monkeypatch.setattr(engine, "connection", lambda *where: (connect(*where)[0], errno.ENETUNREACH))
            while len(answered) < 3 * CLUSTER[0]:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_waiting_probe_keeps_its_place_when_another_socket_is_freed() -> None:
    """An unhealthy address that waits for a socket keeps its place when the probe of a healthy address ends."""
    answered: set[str] = set()
    prober = Prober(SystemClock(), lambda probe, _, __: answered.add(probe.address))
    lane = Lane("eu")
    async with dead_end() as dead, serving(silent) as port:
        check = Check("tcp", dead, interval=60.0, timeout=0.5)
        for number in range(CLUSTER[Kind.DEAD] + 1):
            prober.add(Probe(f"127.1.0.{number}", check, lane, lambda sock, _: TcpFlight(sock), verdict=False), 0.0)
        live = Check("tcp", port, interval=60.0)
        prober.add(Probe(HOST, live, lane, lambda sock, _: TcpFlight(sock), verdict=True), 0.0)
        task = asyncio.create_task(prober.run())
        async with asyncio.timeout(5):
            while HOST not in answered:  # noqa: ASYNC110 - a state of the subject
                await asyncio.sleep(0.005)
            while len(answered) < CLUSTER[Kind.DEAD] + 2:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_stall_of_the_hub_extends_the_probe() -> None:
    """A probe whose answer could not be read because the hub stalled gets that time again."""
    clock, answered = AheadClock(), asyncio.Event()
    prober = Prober(clock, lambda *_: answered.set())
    async with dead_end() as dead:
        check = Check("tcp", dead, interval=60.0, timeout=0.5)
        prober.add(Probe(HOST, check, Lane("eu"), lambda sock, _: TcpFlight(sock)), 0.0)
        task = asyncio.create_task(prober.run())
        async with asyncio.timeout(5):
            while not prober.sockets:  # noqa: ASYNC110 - a state of the subject
                await asyncio.sleep(0.005)
            clock.ahead += 30.0
            began = clock.now()
            await answered.wait()
        assert clock.now() - began >= 0.45
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_removed_probes_are_not_reported() -> None:
    """The outcome of a probe that was removed while under way is not reported."""
    answers: list[str] = []
    prober = Prober(SystemClock(), lambda _, text, __: answers.append(text))
    async with dead_end() as dead:
        check = Check("tcp", dead, interval=0.1, timeout=0.2)
        probe = Probe(HOST, check, Lane("eu"), lambda sock, _: TcpFlight(sock))
        prober.add(probe, 0.0)
        task = asyncio.create_task(prober.run())
        async with asyncio.timeout(5):
            while not prober.sockets:  # noqa: ASYNC110 - a state of the subject
                await asyncio.sleep(0.005)
            prober.remove(probe)
            while prober.sockets:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert answers == []


async def test_an_address_is_probed_again_after_its_socket_was_closed_by_tls() -> None:
    """Probing continues after a flight has closed its own socket, as ssl does after an early reset."""

    class Closed(TcpFlight):
        def step(self) -> str | None:
            self.sock.close()
            return "connection reset by peer"

    answers: list[str] = []
    prober = Prober(SystemClock(), lambda _, text, __: answers.append(text))
    async with serving(replying(OK)) as port:
        check, lane = Check("https", port, interval=0.1, timeout=1.0), Lane("eu")
        prober.add(Probe(HOST, check, lane, lambda sock, _: Closed(sock), verdict=True), 0.0)
        task = asyncio.create_task(prober.run())
        try:
            async with asyncio.timeout(5):
                while len(answers) < 3:  # noqa: ASYNC110 - a state of the subject
                    await asyncio.sleep(0.005)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert (set(answers), lane.held) == ({"connection reset by peer"}, [0, 0, 0])


async def test_ipv6_addresses_are_probed() -> None:
    """An IPv6 address is probed like an IPv4 address."""
    try:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with server:
        check = Check("tcp", server.sockets[0].getsockname()[1], timeout=1.0)
        assert await outcome(check, lambda sock, _: TcpFlight(sock), "::1") == ""
