"""One HTTP request with the limits that all requests of this provider have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import aiohttp

from hub.plugin import TransientProviderError

MAX_BODY: Final = 16 * 1024 * 1024
"""The largest answer in bytes; a page of 500 addresses has about 400 KB."""

CONNECT, TOTAL = 5.0, 15.0
"""Seconds for the connection, and for the whole answer."""


class Answer(NamedTuple):
    """An answer with any status; google-auth reads these attributes, too."""

    status: int
    headers: Mapping[str, str]
    data: bytes


async def fetch(http: aiohttp.ClientSession, method: str, url: str, what: str, **request: Any) -> Answer:
    """Sends one request. Follows no redirect and repeats nothing.

    Args:
        http: the hub's session.
        method: the HTTP method.
        url: the URL.
        what: the account and the request, for errors.
        **request: parameters, headers and body as in aiohttp.

    Raises:
        TransientProviderError: there is no complete answer.
    """
    timeout = aiohttp.ClientTimeout(total=TOTAL, sock_connect=CONNECT)
    try:
        async with http.request(method, url, timeout=timeout, allow_redirects=False, **request) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    raise TransientProviderError(f"{what}: the answer has more than {MAX_BODY} bytes")
            return Answer(response.status, response.headers, bytes(body))
    except TimeoutError:
        raise TransientProviderError(f"{what}: no answer within {TOTAL:.0f} s") from None
    except (aiohttp.ClientError, OSError) as error:
        # The library's own text could quote a part of the request or of the answer.
        raise TransientProviderError(f"{what}: no complete answer ({type(error).__name__})") from None
