"""The HTTP session of providers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hub.plugin.http import SharedHttp


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    """A server that answers with the request's target, and redirects requests for /old."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/old":
            return web.Response(status=302, headers={"Location": "/new"})
        return web.Response(text=f"{request.headers['Host']} {request.path}", headers={"Set-Cookie": "a=b"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    started = TestServer(app)
    async with started:
        yield started


async def test_session_is_shared_until_it_is_closed() -> None:
    """Every call returns the same session; after ``close`` there is a new one. Closing an unused one does nothing."""
    http = SharedHttp()
    await http.close()
    session = http.session()
    assert http.session() is session

    await http.close()

    assert session.closed
    assert http.session() is not session
    await http.close()


async def test_only_the_given_proxy_is_used(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of a URL is used if there is one; the environment is not."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    proxies = {"http://far.test/a": str(server.make_url("/"))}
    http = SharedHttp(proxies.get)

    async with http.session().get("http://far.test/a") as through:
        assert await through.text() == "far.test /a"
    async with http.session().get(server.make_url("/b")) as direct:
        assert await direct.text() == f"127.0.0.1:{server.port} /b"
    assert len(http.session().cookie_jar) == 0
    await http.close()


async def test_redirect_is_refused(server: TestServer) -> None:
    """A redirect is an error unless the caller asks for it as a response."""
    http = SharedHttp()

    with pytest.raises(aiohttp.ClientError, match=r"^302 redirect refused; pass allow_redirects=False to see it$"):
        await http.session().get(server.make_url("/old"))
    async with http.session().get(server.make_url("/old"), allow_redirects=False) as answer:
        assert answer.status == 302
    await http.close()
