"""The HTTP server of the status page, the API and ``/metrics``. Read-only.

Every request passes checks of its Host header (against DNS rebinding), its method and its caller; every answer has the
same security headers. Error texts describe the request's mistake, never an internal problem. :func:`application` has
all routes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from hub.report import api, page
from hub.report.auth import Reviews, Unauthenticated, Unauthorized, Unavailable
from hub.report.listener import is_loopback
from hub.report.server import spelled
from hub.report.site import Site
from hub.report.stream import Broadcaster
from hub.report.values import Problem
from hub.views.stream import PATH, handler

if TYPE_CHECKING:
    from hub.report.certificate import Certificate
    from hub.report.hub_state import HubState
    from hub.report.server import Listen

log = logging.getLogger(__name__)

CONNECTIONS: Final = 2048
"""Most concurrent connections: an open page has two, one of them for events; a reader of endpoint views has one."""
IDLE: Final = 10.0
"""Seconds for an idle connection, and for receiving a request."""
HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
LINE_LIMIT: Final = 4096
"""Most bytes of a request line."""
FIELD_LIMIT: Final = 16384
"""Most bytes of a header: a token has about 1,000, a browser's cookies for localhost may have more."""
PATIENCE: Final = 20.0
"""Seconds each for checking the caller, for computing the answer, and for sending it."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Server": "endpointslice-hub",
}
CHALLENGE: Final = 'Bearer realm="endpointslice-hub", Basic realm="a token of the hub cluster as password"'
INVALID_PATH: Final = re.compile(r"%|\\|//|/\.")
"""Matches parts of a path that no route of this server has: escapes, backslashes, double slashes, dot segments."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(hub: HubState, listen: Listen) -> web.Application:
    """The application with all routes."""
    site = Site(hub)
    live = Broadcaster(page.Changes(site).next_event, hub.clock.sleep)
    reviews = Reviews(hub.client, hub.clock) if listen.authenticate else None
    app = web.Application(middlewares=[_guarded(listen.allowed_hosts, reviews)], client_max_size=1)
    app.add_routes([*page.routes(site, live), *api.routes(site), web.get(PATH, handler(lambda: hub.views))])

    async def close(_: web.Application) -> None:
        await live.close()
        await site.close()

    app.on_shutdown.append(close)
    app.on_response_prepare.append(_add_headers)
    return app


async def serve(sockets: Sequence[socket.socket], listen: Listen, hub: HubState, tls: Certificate | None) -> None:
    """Answer requests on these sockets until cancelled."""
    app = application(hub, listen)
    # handler_cancellation: stop computing an answer when its connection is closed.
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    made = runner.server
    assert made is not None  # noqa: S101 - setup() makes it

    def accept() -> asyncio.BaseProtocol:
        if len(made.connections) >= CONNECTIONS:
            return _Refused()
        return _Connection(
            made,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None disables the log, also in aiohttp's own runner
            keepalive_timeout=IDLE,
            lingering_time=1.0,
            max_line_size=LINE_LIMIT,
            max_field_size=FIELD_LIMIT,
        )

    loop = asyncio.get_running_loop()
    servers = []
    try:
        for socket_ in sockets:
            servers += [
                await loop.create_server(
                    accept,
                    sock=socket_.dup(),
                    ssl=tls.context if tls is not None else None,
                    ssl_handshake_timeout=HANDSHAKE if tls is not None else None,
                )
            ]
        await asyncio.Event().wait()
    finally:
        for server in servers:
            server.close()
        await runner.cleanup()


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


class _Connection(web.RequestHandler):
    """A connection whose errors have the same form and headers as other answers."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Limit the write buffer, so that an answer counts as sent only when the kernel has all of it."""
        super().connection_made(transport)
        assert self.transport is not None  # noqa: S101 - the base class has set it
        self.transport.set_write_buffer_limits(1)  # 0 would make asyncio's TLS pause writing at an empty buffer, too

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; if the client does not read it, close the connection to free the answer's memory.

        A TLS connection buffers the whole answer. If the client does not read it, the connection is closed later: when
        it has been idle and the TLS shutdown has taken 30 s.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            log.debug("an answer was not read")
            if self.transport is not None:
                self.transport.abort()
            return resp, True

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's signature
    ) -> web.StreamResponse:
        """The answer to a request that cannot be parsed.

        It is logged at debug level, so that clients cannot flood the log; only an internal error is logged as an error.
        """
        ours = status == HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(exc, ConnectionError)
        level = logging.ERROR if ours else logging.DEBUG  # a client that closes its connection is not an error
        log.log(level, "an answer failed: %s", type(exc).__name__, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is already sent")
        response = problem(status, "not a valid HTTP request")
        response.headers.update(HEADERS)
        response.force_close()
        return response


class _Refused(asyncio.Protocol):
    """A connection beyond the limit; it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection at once."""
        cast("asyncio.Transport", transport).abort()  # not isinstance: uvloop's transports are no subclasses


def _guarded(allowed: frozenset[str], reviews: Reviews | None) -> Middleware:
    names = set(map(spelled, ("localhost", socket.gethostname(), *allowed)))

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await _answered(request, handler, names, reviews)
        except web.HTTPException as error:
            return problem(error.status, headers={"Allow": "GET, HEAD"} if error.status == 405 else {})
        except TimeoutError:
            return problem(503, "this took too long; try again")
        except ConnectionError:
            raise  # the client has closed the connection, so an answer cannot be sent
        except Exception:
            log.exception("GET %s: no answer", request.path[:200])
            return problem(500)

    return guard


async def _answered(
    request: web.Request, handler: Handler, names: set[str], reviews: Reviews | None
) -> web.StreamResponse:
    if not is_own(request.headers.get("Host", ""), names, _own_address(request)):
        return problem(421, "the Host header does not name this server; see --allowed-host")
    if request.method not in ("GET", "HEAD"):
        return problem(405, "only GET and HEAD are allowed", {"Allow": "GET, HEAD"})
    if request.can_read_body:
        refused = problem(413, "the request must have no body")
        refused.force_close()
        return refused
    target = request.raw_path.partition("?")[0]
    if not target.startswith("/") or INVALID_PATH.search(target):
        return problem(404)
    if reviews is not None:
        try:
            async with asyncio.timeout(PATIENCE):
                await reviews.check(request.headers.get("Authorization", ""), request.path)
        except Unauthenticated as error:
            return problem(401, str(error), {"WWW-Authenticate": CHALLENGE})
        except Unauthorized as error:
            return problem(403, str(error))
        except Unavailable as error:
            return problem(503, str(error))
    if getattr(request.match_info.handler, "endless", False):
        return await handler(request)
    async with asyncio.timeout(PATIENCE):
        return await handler(request)


def problem(status: int, detail: str = "", headers: dict[str, str] | None = None) -> web.Response:
    """An error in the format of RFC 9457."""
    body = msgspec.json.encode(Problem(status, HTTPStatus(status).phrase, detail))
    return web.Response(status=status, body=body, content_type="application/problem+json", headers=headers)


def _own_address(request: web.Request) -> str:
    """This machine's address that the connection was made to."""
    transport = request.transport
    name = transport.get_extra_info("sockname") if transport is not None else None
    return spelled(str(name[0])) if name else ""


def is_own(host: str, names: set[str], own: str) -> bool:
    """Whether a Host header names this server.

    Args:
        host: as sent, with or without a port.
        names: names of this server, normalized by :func:`spelled`.
        own: the address that the connection was made to, normalized.
    """
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?", host)
    if found is None:
        return False
    name = spelled(found[1])
    return name in names or name == own or is_loopback(name)
