"""The aiohttp server: clients that do not read, excess connections, and the server's own address."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import aiohttp.web
import pytest
import uvloop

from hub.report import web
from hub.report.server import Listen
from tests.unit.report.conftest import Where, nothing


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, size: int) -> AsyncIterator[tuple[str, int]]:
    """A server whose answers have ``size`` bytes and whose kernel buffers are small; yields its address."""

    async def answer(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(body=b"x" * size)

    app = aiohttp.web.Application()
    app.add_routes([aiohttp.web.get("/", answer)])
    monkeypatch.setattr(web, "application", lambda *_: app)
    with socket.socket() as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        here.bind(("127.0.0.1", 0))
        here.listen()
        task = asyncio.create_task(web.serve([here], Listen(Where()), cast("Any", None), None))
        try:
            yield here.getsockname()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("size", [48 << 10, 4 << 20])
async def test_client_that_does_not_read_is_disconnected(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read is disconnected, even if the answer fits into the transport's buffer."""
    monkeypatch.setattr(web, "PATIENCE", 0.1)
    monkeypatch.setattr(web, "IDLE", 0.1)
    loop = asyncio.get_running_loop()
    async with serving(monkeypatch, size) as address:
        with socket.socket() as asleep:
            asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asleep.settimeout(0.0)
            await loop.sock_connect(asleep, address)
            await loop.sock_sendall(asleep, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = len(await loop.sock_recv(asleep, 1))
            await asyncio.sleep(0.3)
            while found := await loop.sock_recv(asleep, 1 << 16):
                received += len(found)
    assert received < size


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_connection_too_many_is_closed(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excess connections are closed with asyncio and with uvloop, whose transports are no subclasses of asyncio's."""
    monkeypatch.setattr(web, "CONNECTIONS", 0)

    async def refused() -> bool:
        async with asyncio.timeout(5), serving(monkeypatch, 1) as address:
            reader, writer = await asyncio.open_connection(*address)
            try:
                return await nothing(reader)
            finally:
                writer.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(refused())


def test_a_link_local_address_of_ours_is_known_without_its_zone() -> None:
    """The zone is removed, since Host headers have none."""
    transport = SimpleNamespace(get_extra_info=lambda _: ("fe80::1%eth0", 8080, 0, 2))
    own = web._own_address(cast("Any", SimpleNamespace(transport=transport)))
    assert web.is_own("[fe80::1]:8080", set(), own)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((404,), (404, {"status": 404, "title": "Not Found", "detail": ""}, None)),
        (
            (405, "only GET", {"Allow": "GET"}),
            (405, {"status": 405, "title": "Method Not Allowed", "detail": "only GET"}, "GET"),
        ),
    ],
)
def test_whole_problem(given: Any, expected: tuple[int, dict[str, Any], str | None]) -> None:
    """An error is a document of RFC 9457, with its own headers."""
    response = web.problem(*given)
    assert isinstance(response.body, bytes)
    assert (response.status, json.loads(response.body), response.headers.get("Allow")) == expected
    assert response.content_type == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "valid"),
    [
        ("/", True),
        ("/services/a.b/c-d", True),
        ("/a%20b", False),
        ("/a\\b", False),
        ("/a//b", False),
        ("/.a", False),
        ("/a/..", False),
    ],
)
def test_unusual_paths_are_recognized(path: str, *, valid: bool) -> None:
    """Escapes, backslashes, double slashes and dot segments are in no path of this server."""
    assert (web.INVALID_PATH.search(path) is None) is valid
