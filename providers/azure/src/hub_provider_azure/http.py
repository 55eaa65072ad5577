"""One HTTP request with the limits that all requests of this provider have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple

import aiohttp

from hub.plugin import TransientProviderError

MAX_BODY: Final = 16 * 1024 * 1024
"""The largest answer in bytes; a page of 100 addresses has about 100 KB."""

CONNECT, TOTAL = 5.0, 15.0


class Answer(NamedTuple):
    """An answer with any status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def fetch(
    session: aiohttp.ClientSession, method: str, url: str, what: str, *, headers: Mapping[str, str], data: Any = None
) -> Answer:
    """Sends one request. Follows no redirect and repeats nothing.

    Args:
        session: the hub's session.
        method: the HTTP method.
        url: the URL.
        what: the account and the request, in words.
        headers: of the request.
        data: its body: bytes, or a dict of form fields.

    Raises:
        TransientProviderError: there is no complete answer.
    """
    if isinstance(data, bytes):
        headers = {**headers, "Content-Length": str(len(data))}
        data = _once(data)
    timeout = aiohttp.ClientTimeout(total=TOTAL, sock_connect=CONNECT)
    try:
        async with session.request(
            method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    raise TransientProviderError(f"{what}: the answer has more than {MAX_BODY} bytes")
            return Answer(response.status, response.headers, bytes(body))
    except TimeoutError:
        raise TransientProviderError(f"{what}: no answer within {TOTAL:.0f} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise TransientProviderError(f"{what}: {_reason(error)}") from None


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    """Yields a body that cannot be sent twice: aiohttp repeats a PUT whose connection breaks, if it has the body."""
    yield body


def _reason(error: Exception) -> str:
    """Describes a failed connection without the library's text, which may quote parts of an answer."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name does not resolve"
    if isinstance(error, aiohttp.ClientSSLError):
        return "its certificate is not accepted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "cannot connect"
    return f"the connection broke or the answer is broken ({type(error).__name__})"
