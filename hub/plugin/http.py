"""The aiohttp session that providers get: the hub's and the test kit's are one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

TIMEOUT: Final = 25.0
"""Seconds one request may take: less than the 30 s of a whole resolve, so that the error names the request."""


class SharedHttp:
    """One session for all who share it, made when the first one asks: no cookie, no proxy, no redirect."""

    def __init__(self) -> None:
        self._session: ClientSession | None = None

    def session(self) -> ClientSession:
        """The session; must be called inside the event loop."""
        if self._session is None or self._session.closed:
            import aiohttp

            trace = aiohttp.TraceConfig()
            trace.on_request_redirect.append(_refuse_redirect)
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT, sock_connect=10.0),
                trust_env=False,
                trace_configs=[trace],
            )
        return self._session

    async def close(self) -> None:
        """Close it, if it was ever made."""
        if self._session is not None:
            await self._session.close()


async def _refuse_redirect(_session: object, _context: object, params: Any) -> None:
    """A redirect may lead to a host the flags do not allow, with the credential in the header."""
    from aiohttp import ClientError

    response: ClientResponse = params.response
    response.close()
    raise ClientError(f"{response.status} redirect refused; pass allow_redirects=False to see it")
