"""The aiohttp session that providers use, with the same settings in the hub and in the test kit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession

TIMEOUT: Final = 25.0
"""Seconds for one request: less than the 30 s that ``resolve`` may take, so that the error names the request."""


class SharedHttp:
    """A session without cookies and redirects, created at the first use.

    Args:
        proxy: returns the proxy for a URL, see :meth:`hub.plugin.HubContext.proxy`.
    """

    def __init__(self, proxy: Callable[[str], str | None] = lambda _: None) -> None:
        self._proxy = proxy
        self._session: ClientSession | None = None

    def session(self) -> ClientSession:
        """The session. Call this inside the event loop."""
        if self._session is None or self._session.closed:
            import aiohttp

            trace = aiohttp.TraceConfig()
            trace.on_request_redirect.append(_refuse_redirect)
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT, sock_connect=10.0),
                trust_env=False,
                trace_configs=[trace],
                middlewares=[self._through_proxy],
            )
        return self._session

    async def _through_proxy(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if (proxy := self._proxy(str(request.url))) is not None:
            request.update_proxy(type(request.url)(proxy), None, None)
        return await send(request)

    async def close(self) -> None:
        """Close the session if it exists."""
        if self._session is not None:
            await self._session.close()


async def _refuse_redirect(_session: object, _context: object, params: Any) -> None:
    """Fail: a redirect could carry the credential in the headers to a host that the hub's flags do not allow."""
    from aiohttp import ClientError

    response: ClientResponse = params.response
    response.close()
    raise ClientError(f"{response.status} redirect refused; pass allow_redirects=False to see it")
