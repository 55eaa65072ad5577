"""HTTP transport to one Kubernetes API server: one aiohttp session, typed errors, limits everywhere.

It speaks bytes and knows no kinds. Nothing here retries, but for one reload of the credentials after a
401: waiting and trying again is the business of the reflector and of the queue. No proxy or netrc from
the environment, no redirects, no cookies, no compression (a list is read once per start; identity costs
the API server no CPU and leaves no decompression bomb), no answer larger than its cap.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp.client_exceptions import ClientConnectorDNSError
from yarl import URL

from hub import __version__, errors
from hub.kube.resolver import ClusterResolver, LookupPool

CONNECT_TIMEOUT = 10.0
REQUEST_TIMEOUT = 30.0
SILENCE_TIMEOUT = 80.0
"""Seconds without a byte on a watch. Bookmarks arrive every 60 s (measured 59.6-61.0); with the connect
timeout after it, a frozen server is noticed within 90 s."""
LIST_LIMIT = 64 << 20
"""Bytes of one page of a list."""
LINE_LIMIT = 8 << 20
"""Bytes of one watch event."""
ERROR_LIMIT = 64 << 10
"""Bytes of an error's body that are read."""
READ_BUFFER = 1 << 20


class Access(Protocol):
    """How to reach and convince one API server (hub.kube.credentials)."""

    @property
    def server(self) -> str: ...
    @property
    def server_hostname(self) -> str | None: ...
    @property
    def generation(self) -> int: ...
    async def headers(self) -> Mapping[str, str]: ...
    def ssl_context(self) -> ssl.SSLContext: ...
    async def reload(self) -> bool: ...


class _Cause(msgspec.Struct):
    field: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct):
    """The API's ``Status`` object, as far as errors need it."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(Status).decode
_BY_CODE: dict[int, type[errors.ApiError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Expired,
    422: errors.Invalid,
    429: errors.TooManyRequests,
}


def api_error(
    code: int, body: bytes, what: str, *, phrase: str = "", retry_after: str | None = None
) -> errors.ApiError:
    """The typed error for an unsuccessful answer; a body that is no Status is not quoted."""
    status = Status()
    with suppress(msgspec.DecodeError):
        parsed = _decode_status(body)
        if parsed.kind == "Status":
            status = parsed
    wait: float | None = None
    if retry_after and retry_after.isdigit():
        wait = float(retry_after)
    elif status.details and status.details.retry_after_seconds:
        wait = float(status.details.retry_after_seconds)
    kind = _BY_CODE.get(code, errors.ServerFault if code >= 500 else errors.ApiError)
    if code == 409 and status.reason == "AlreadyExists":
        kind = errors.AlreadyExists
    causes = tuple((c.field, c.message) for c in (status.details.causes or ())) if status.details else ()
    return kind(code, status.reason, status.message or phrase, what=what, retry_after=wait, causes=causes)


def connection_error(error: BaseException, server: str) -> errors.HubError:
    """What went wrong below HTTP, in plain words."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return errors.CertificateRejected(f"{server}: certificate not accepted: {error.certificate_error}")
    if isinstance(error, ClientConnectorDNSError):
        return errors.ClusterUnreachable(f"{server}: the name does not resolve ({error.os_error.strerror})", "dns")
    cause = error.__cause__ or error
    if isinstance(error, aiohttp.ClientConnectorSSLError) or isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "reason", None) or getattr(error, "os_error", None) or cause
        return errors.CertificateRejected(f"{server}: TLS failed: {reason}")
    if isinstance(error, TimeoutError):
        return errors.ClusterUnreachable(f"{server}: no answer in time", "timeout")
    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error.os_error, ConnectionRefusedError):
            return errors.ClusterUnreachable(f"{server}: connection refused", "refused")
        return errors.ClusterUnreachable(f"{server}: {error.os_error.strerror or error.os_error}", "network")
    if isinstance(
        error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | OSError
    ):
        return errors.ClusterUnreachable(f"{server}: connection lost", "reset")
    if isinstance(error, aiohttp.InvalidURL):
        return errors.KubeconfigError(f"{server}: not a usable server URL")
    return errors.BadAnswer(0, "", f"not an HTTP answer ({type(error).__name__})", what=server)


def _keepalive_socket(info: Any) -> socket.socket:
    """A TCP socket that notices a dead peer by itself, as a second net under the read timeout."""
    family, kind, proto, _, _ = info
    sock = socket.socket(family, kind, proto)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


class Stream:
    """An open watch: lines of JSON until the server ends it."""

    def __init__(self, response: aiohttp.ClientResponse, server: str) -> None:
        self._content = response.content
        self._server = server

    async def line(self) -> bytes:
        """The next line, b"" at the end of the stream.

        Raises:
            ClusterUnreachable: silence (kind ``timeout``) or a broken connection.
            BadAnswer: a line above LINE_LIMIT.
        """
        try:
            return await self._content.readline(max_line_length=LINE_LIMIT)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(error, self._server) from error
        except ValueError as error:  # LineTooLong
            raise errors.BadAnswer(200, "", f"a watch event above {LINE_LIMIT >> 20} MiB", what=self._server) from error


class Client:
    """One API server. Cheap to create: the session opens with the first request.

    Args:
        access: server, TLS and credentials.
        pool: threads for name look-ups.
        connections: upper limit of simultaneous connections; 0 = none.
    """

    def __init__(self, access: Access, pool: LookupPool, *, connections: int = 0) -> None:
        self.access = access
        self.server = access.server.rstrip("/")
        self._pool = pool
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._generation = -1

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float = REQUEST_TIMEOUT,
        limit: int = LIST_LIMIT,
        content_type: str = "application/json",
    ) -> bytes:
        """One request, its whole successful body.

        Raises:
            ApiError: the server said no, or said something that is not an answer.
            ClusterUnreachable, CertificateRejected, CredentialError: there was no answer.
        """
        what = f"{method} {path}"
        try:
            async with asyncio.timeout(timeout), self._send(method, path, params, body, content_type, None) as response:
                return await self._read(response, limit, what)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(error, self.server) from error

    @asynccontextmanager
    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Stream]:
        """Open a watch; the caller reads lines until b"".

        Raises:
            As :meth:`request`.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=SILENCE_TIMEOUT)
        try:
            async with self._send("GET", path, params, None, "", timeout) as response:
                yield Stream(response, self.server)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(error, self.server) from error

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send with the current credentials, once more with reloaded ones after a 401; yields a 2xx."""
        url = URL(self.server + path, encoded=True)
        if params:
            url = url.with_query(params)
        for attempt in (1, 2):
            headers = dict(await self.access.headers())
            if body is not None:
                headers["Content-Type"] = content_type
            session = await self._current_session()
            async with session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                server_hostname=self.access.server_hostname,
                timeout=timeout or aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
            ) as response:
                if response.status == 401 and attempt == 1 and await self.access.reload():
                    continue
                if not 200 <= response.status < 300:
                    await self._refuse(response, f"{method} {path}")
                yield response
                return

    async def _refuse(self, response: aiohttp.ClientResponse, what: str) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                body = await response.content.read(ERROR_LIMIT)
        except (aiohttp.ClientError, TimeoutError, OSError):
            body = b""  # the status says enough
        phrase = (response.reason or "")[:64]
        raise api_error(response.status, body, what, phrase=phrase, retry_after=response.headers.get("Retry-After"))

    async def _read(self, response: aiohttp.ClientResponse, limit: int, what: str) -> bytes:
        length = response.content_length
        if length is not None and length <= limit:
            return await response.read()
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > limit:
                raise errors.BadAnswer(response.status, "", f"an answer above {limit >> 20} MiB", what=what)
            chunks.append(chunk)
        return b"".join(chunks)

    async def _current_session(self) -> aiohttp.ClientSession:
        if self._session is not None and self._generation == self.access.generation:
            return self._session
        old = self._session
        context = self.access.ssl_context()
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            ssl=context,
            resolver=ClusterResolver(self._pool),
            use_dns_cache=False,
            socket_factory=_keepalive_socket,
        )
        self._generation = self.access.generation
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=READ_BUFFER,
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": f"endpointslice-hub/{__version__}",
            },
            auto_decompress=False,
        )
        if old is not None:  # rotated certificate: running requests finish on the old session's connections
            asyncio.get_running_loop().call_later(REQUEST_TIMEOUT, lambda: asyncio.ensure_future(old.close()))
        return self._session
