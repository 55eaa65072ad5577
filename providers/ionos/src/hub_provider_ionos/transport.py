"""The SDK's HTTP transport: no redirects, no repetitions, limits of the time and size of an answer.

It replaces ``ionoscloud.rest.RESTClientObject``, which waits as long as bytes trickle in and reads any size; no setting
of the SDK changes that (docs/adr/0020-ionos-transport.md). It blocks: call it in a thread.
"""

from __future__ import annotations

import base64
import copy
import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import unquote, urlencode, urlsplit

import certifi
import urllib3
from ionoscloud.exceptions import ApiException  # pyright: ignore[reportMissingTypeStubs]

MAX_BODY: Final = 64 * 1024 * 1024
"""The largest answer in bytes; a page of 1,000 servers with two NICs each has 2 MiB."""

CONNECT, READ, TOTAL = 5.0, 15.0, 22.0
"""Seconds for the connection, between two reads, and for the whole answer: within the hub's 30 s for a resolve."""


class LimitExceeded(Exception):
    """The answer takes too long or is too large; the message says which."""


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a deadline.

    A read timeout restarts with every byte, so it never ends an answer whose headers trickle in; the deadline does.

    Args:
        sock: The socket.
        ends: The deadline on the monotonic clock, in seconds.
    """

    def __init__(self, sock: socket.socket, ends: float) -> None:
        self._raw = sock.makefile("rb", buffering=0)
        self._sock = sock
        self._between = sock.gettimeout() or READ
        self._ends = ends

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise _too_slow()
        self._sock.settimeout(min(left, self._between))
        try:
            return self._raw.readinto(buffer)
        except TimeoutError:
            if left < self._between:
                raise _too_slow() from None
            raise

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response that must be complete within :data:`TOTAL` seconds."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_DeadlineReader(sock, time.monotonic() + TOTAL))


class _Admission(threading.local):
    """What the present thread asks before it sends a part of its request."""

    check: Callable[[], None] | None = None


def _bounded(pool: Any, admission: _Admission) -> Any:
    """Returns a subclass of a connection pool class: responses are limited by :data:`TOTAL`, requests are admitted.

    Args:
        pool: The class.
        admission: Asked once the connection stands, before each part of a request.
    """

    def send(self: Any, data: Any) -> None:
        if self.sock is None:
            self.connect()  # takes time, so it comes before the question
        if admission.check is not None:
            admission.check()
        usual.send(self, data)

    usual = pool.ConnectionCls
    connection = type(usual.__name__, (usual,), {"response_class": _Response, "send": send})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


class Answer:
    """A response with the interface that the SDK's client needs."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str], data: bytes) -> None:
        self.status = status
        self.reason = reason
        self.data: bytes | str = data
        """The body: bytes, or text after the SDK has replaced it with the decoded text."""
        self._headers = headers

    def getheaders(self) -> Mapping[str, str]:
        """Returns all headers."""
        return self._headers

    def getheader(self, name: str, default: str | None = None) -> str | None:
        """Returns one header; its name may be in any case."""
        return self._headers.get(name, default)


class Transport:
    """Sends requests.

    Args:
        ca: PEM text of the certificate authorities to trust; "" = the public ones.
        connections: The most connections that are kept open.
        proxy: The URL of an http or https proxy, with user and password if it wants them; None = no proxy.
    """

    def __init__(self, ca: str, connections: int, proxy: str | None = None) -> None:
        context = ssl.create_default_context(cadata=ca) if ca else ssl.create_default_context(cafile=certifi.where())
        options: dict[str, Any] = {"num_pools": 1, "maxsize": connections, "retries": False, "ssl_context": context}
        self._pool = _proxied(proxy, options) if proxy else urllib3.PoolManager(**options)
        self._admission = _Admission()
        pools: Any = {
            "http": _bounded(urllib3.HTTPConnectionPool, self._admission),
            "https": _bounded(urllib3.HTTPSConnectionPool, self._admission),
        }
        self._pool.pool_classes_by_scheme = pools
        self._admit: Callable[[], None] | None = None

    def admitting(self, admit: Callable[[], None] | None) -> Self:
        """Returns this transport for one request.

        Args:
            admit: Called immediately before the request is sent; what it raises prevents that. None = nothing is asked.
        """
        made = copy.copy(self)
        made._admit = admit  # noqa: SLF001 - of the same class
        return made

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.clear()

    def GET(  # noqa: N802 - the SDK's name
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        query_params: Sequence[tuple[str, str]] | None = None,
        _preload_content: bool = True,
        _request_timeout: tuple[float, float] = (CONNECT, READ),
    ) -> Answer:
        """Sends a GET request and reads the answer to its end.

        Raises:
            ApiException: The status is not 2xx.
            LimitExceeded: The answer does not end in time, or is too large.
            urllib3.exceptions.HTTPError: There is no answer, or it was cut short.
        """
        return self._send("GET", url, headers, query_params, _request_timeout)

    def PATCH(  # noqa: N802 - the SDK's name
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        query_params: Sequence[tuple[str, str]] | None = None,
        post_params: object = None,  # noqa: ARG002 - the SDK's signature
        _preload_content: bool = True,
        _request_timeout: tuple[float, float] = (CONNECT, READ),
        body: object = None,
    ) -> Answer:
        """Sends a PATCH request with a JSON body, like :meth:`GET`."""
        return self._send("PATCH", url, headers, query_params, _request_timeout, json.dumps(body).encode())

    def POST(  # noqa: N802 - the SDK's name
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        query_params: Sequence[tuple[str, str]] | None = None,
        post_params: object = None,  # noqa: ARG002 - the SDK's signature
        _preload_content: bool = True,
        _request_timeout: tuple[float, float] = (CONNECT, READ),
        body: object = None,
    ) -> Answer:
        """Sends a POST request with a JSON body, like :meth:`GET`. It is never repeated."""
        return self._send("POST", url, headers, query_params, _request_timeout, json.dumps(body).encode())

    def DELETE(  # noqa: N802 - the SDK's name
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        query_params: Sequence[tuple[str, str]] | None = None,
        _preload_content: bool = True,
        _request_timeout: tuple[float, float] = (CONNECT, READ),
        body: object = None,  # noqa: ARG002 - the SDK's signature
    ) -> Answer:
        """Sends a DELETE request, like :meth:`GET`."""
        return self._send("DELETE", url, headers, query_params, _request_timeout)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        query: Sequence[tuple[str, str]] | None,
        timeout: tuple[float, float],
        body: bytes | None = None,
    ) -> Answer:
        connect, read = timeout
        self._admission.check = self._admit
        try:
            response = self._pool.urlopen(
                method,
                f"{url}?{urlencode(query)}" if query else url,
                body=body,
                headers=dict(headers or {}),
                preload_content=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=connect, read=read),
            )
        finally:
            self._admission.check = None
        try:
            body = _read(response)
        except BaseException:
            response.close()
            raise
        response.release_conn()
        answer = Answer(response.status, response.reason or "", response.headers, body)
        if not 200 <= response.status <= 299:
            raise ApiException(http_resp=answer)
        return answer


def _proxied(url: str, options: dict[str, Any]) -> urllib3.ProxyManager:
    """Returns a pool manager that reaches https hosts through a tunnel of the proxy."""
    parts = urlsplit(url)
    headers: dict[str, str] = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return urllib3.ProxyManager(place, proxy_headers=headers, proxy_ssl_context=ssl.create_default_context(), **options)


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(65_536):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY:
            raise LimitExceeded(f"the answer is larger than {MAX_BODY} bytes")
    return b"".join(pieces)


def _too_slow() -> LimitExceeded:
    return LimitExceeded(f"the answer does not end within {TOTAL:g} s")
