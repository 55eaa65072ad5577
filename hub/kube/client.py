"""Transport to one Kubernetes API server: a few kept connections, typed errors, a limit on everything that is read.

The client sends and receives bytes and does not know the kinds of objects. It retries in two cases only: after a 401 it
reloads the credentials and tries once more, and a GET whose kept connection was closed gets one new connection. All
other retries are up to the reflector and the queue. Answers are uncompressed: a list is read once per start,
compression costs the API server CPU, and decompression bombs are impossible.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import quote, urlsplit

import msgspec

from hub import __version__, errors
from hub.kube import protobuf
from hub.kube.http1 import ERROR_LIMIT, Connection, Head, ProtocolError
from hub.kube.proxy import Proxy
from hub.kube.resolver import LookupPool
from hub.kube.route import Route
from hub.kube.tunnel import TunnelError
from hub.runtime.protowire import ProtobufError

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""For a list of which only the metadata of the objects is needed."""
JSON_PATCH = "application/json-patch+json"
CONNECT_TIMEOUT = 10.0
"""Seconds for the name look-up, TCP, proxy and TLS of a new connection."""
REQUEST_TIMEOUT = 30.0
"""Seconds for a whole request, unless the caller gives another timeout."""
SILENCE_TIMEOUT = 80.0
"""Seconds without a byte after which a watch has failed. Bookmarks arrive every 60 s (measured 59.6-61.0). Including
the connect timeout that follows, a frozen server is noticed within 90 s."""
LIST_LIMIT = 64 << 20
"""The largest page of a list, in bytes."""
LINE_LIMIT = 8 << 20
"""The largest watch event, in bytes."""
MAX_RETRY_AFTER = 1 << 53
"""The longest Retry-After accepted from a Status, in seconds: a number in JSON may not fit a float. Callers have limits
of their own."""
KEEP_IDLE = 30.0
"""Seconds that an unused connection is kept; kube-apiserver keeps them for 90."""


class Access(Protocol):
    """Address, TLS and credentials of one API server (hub.kube.credentials)."""

    @property
    def server(self) -> str:
        """https://host[:port][/path]."""
        ...

    @property
    def server_hostname(self) -> str | None:
        """The name to verify in the server's certificate instead of the host; None = the host."""
        ...

    @property
    def proxy(self) -> Proxy | None:
        """The proxy that leads to the server; None = it is contacted directly."""
        ...

    @property
    def generation(self) -> int:
        """A number that grows when the TLS context changes, so that connections must be replaced."""
        ...

    async def headers(self) -> Mapping[str, str]:
        """The Authorization header, or no header if a client certificate is the credential."""
        ...

    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context; available after ``headers`` has succeeded once."""
        ...

    def proxy_context(self) -> ssl.SSLContext | None:
        """The TLS context for an https proxy; available after ``headers`` has succeeded once."""
        ...

    async def reload(self, used: Mapping[str, str] | None = None) -> bool:
        """Read all credentials again after a 401 for the headers ``used``; True = a retry may succeed."""
        ...


class _Cause(msgspec.Struct):
    field: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct):
    """The parts of the API's ``Status`` object that errors need."""

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
    """The typed error for an unsuccessful answer.

    Args:
        code: the HTTP status.
        body: a Status in JSON or protobuf; a body of any other kind is not quoted.
        what: the request, for the message.
        phrase: the message if the body has none.
        retry_after: the Retry-After header. Only seconds are understood; the Status counts if there is no such header.
    """
    status = _status(body)
    wait: float | None = None
    if retry_after and retry_after.isdecimal():
        wait = float(retry_after)
    elif status.details and status.details.retry_after_seconds:
        wait = float(min(status.details.retry_after_seconds, MAX_RETRY_AFTER))
    kind = _BY_CODE.get(code, errors.ServerFault if code >= 500 else errors.ApiError)
    if code == 409 and status.reason == "AlreadyExists":
        kind = errors.AlreadyExists
    causes = tuple((c.field, c.message) for c in (status.details.causes or ())) if status.details else ()
    return kind(code, status.reason, status.message or phrase, what=what, retry_after=wait, causes=causes)


def _status(body: bytes) -> Status:
    """The Status in a body of JSON or protobuf; an empty Status for any other body."""
    if body.startswith(protobuf.MAGIC):
        with suppress(ProtobufError):
            parts = protobuf.status(body)
            causes = [_Cause(field, message) for field, message in parts.causes]
            return Status("Status", "", parts.message, parts.reason, parts.code, _Details(causes, parts.retry_after))
    with suppress(ValueError, RecursionError):  # not JSON or not UTF-8; thousands of nested brackets
        parsed = _decode_status(body)
        if parsed.kind == "Status":
            return parsed
    return Status()


def connection_error(error: Exception, server: str) -> errors.HubError:
    """The error for a failure below HTTP."""
    if isinstance(error, ProtocolError):
        return errors.BadAnswer(0, "", f"not an acceptable answer: {error}", what=server)
    if isinstance(error, TunnelError):
        return errors.ClusterUnreachable(f"{server}: {error}", error.kind)
    if isinstance(error, TimeoutError):
        return errors.ClusterUnreachable(f"{server}: no answer in time", "timeout")
    if isinstance(error, ssl.SSLCertVerificationError):
        return errors.CertificateRejected(f"{server}: its certificate is not accepted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return errors.CertificateRejected(f"{server}: TLS failed: {error.reason or error}")
    if isinstance(error, socket.gaierror):
        return errors.ClusterUnreachable(f"{server}: the name does not resolve ({error.strerror})", "dns")
    if isinstance(error, ConnectionRefusedError):
        return errors.ClusterUnreachable(f"{server}: connection refused", "refused")
    if isinstance(error, ConnectionError):
        return errors.ClusterUnreachable(f"{server}: connection lost", "reset")
    strerror = error.strerror if isinstance(error, OSError) else ""
    return errors.ClusterUnreachable(f"{server}: {strerror or error}", "network")


class Stream:
    """An open watch: a stream of JSON lines that lasts until the server ends it."""

    def __init__(self, connection: Connection, server: str) -> None:
        self._connection = connection
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(SILENCE_TIMEOUT, self._check_silence)

    def close(self) -> None:
        """Stop the timer that detects silence."""
        self._timer.cancel()

    def _check_silence(self) -> None:
        """Fail the stream if it has been silent for too long; otherwise set the timer again."""
        left = self._connection.heard_at + SILENCE_TIMEOUT - self._loop.time()
        if left <= 0:
            self._connection.fail_silent()
        else:
            self._timer = self._loop.call_later(left + 0.01, self._check_silence)

    def end(self) -> None:
        """End the stream from this side; its reader sees a regular end."""
        self._connection.end()

    async def line(self) -> bytes:
        """The next line, or b"" at the end of the stream.

        Raises:
            ClusterUnreachable: the stream was silent for too long (kind ``timeout``), or the connection broke.
            BadAnswer: a line is longer than LINE_LIMIT, or the bytes are not valid HTTP.
        """
        try:
            return await self._connection.line()
        except (ProtocolError, OSError) as error:
            raise connection_error(error, self._server) from error

    async def follow(self, take: Callable[[bytes], None]) -> None:
        """Hand each line to ``take`` as it arrives, until the end of the stream.

        Raises:
            ClusterUnreachable, BadAnswer: as :meth:`line`.
            Exception: the error that ``take`` raised; it ends the stream.
        """
        try:
            await self._connection.follow(take)
        except (ProtocolError, OSError) as error:
            raise connection_error(error, self._server) from error


class Client:
    """A client of one API server. Creating it is cheap, since connections are opened on demand.

    Args:
        access: the server's address, TLS context and credentials.
        pool: the threads for name look-ups.
    """

    def __init__(self, access: Access, pool: LookupPool) -> None:
        self.access = access
        self.server = access.server.rstrip("/")
        parts = urlsplit(self.server)
        self._host = parts.hostname or ""
        self._port = parts.port or 443
        self._prefix = parts.path
        self._shown = f"{self.server} through {access.proxy}" if access.proxy is not None else self.server
        """The server, and its proxy if it has one, for errors."""
        self._route = Route(self.server, self._host, self._port, access.proxy, pool)
        self._idle: list[Connection] = []
        self._tidying: asyncio.TimerHandle | None = None
        self._open: dict[Connection, int] = {}
        """Each open connection, with the credential generation that it was opened with."""
        self._generation = -1
        self._closed = False
        fixed = f"Host: {parts.netloc}\r\nUser-Agent: endpointslice-hub/{__version__}\r\nAccept: "
        self._fixed = {kind: f"{fixed}{kind}\r\n" for kind in (JSON, protobuf.CONTENT_TYPE, METADATA_LIST)}
        self._fixed[MERGE_PATCH] = self._fixed[JSON_PATCH] = self._fixed[JSON]  # a patch is answered in JSON

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        for connection in list(self._open):
            connection.abort()
        self._open.clear()
        self._idle.clear()
        await self._route.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109 - raises ClusterUnreachable
        limit: int = LIST_LIMIT,
        content_type: str = JSON,
        admit: Callable[[], object] | None = None,
    ) -> bytes:
        """Make one request and return the whole body of a successful answer.

        Args:
            method: GET, POST, PUT, PATCH or DELETE; only a GET is sent again if a kept connection was closed.
            path: the path below the server's own path.
            params: the query.
            body: the body to send.
            timeout: seconds for the whole request: credentials, connection, and the second try after a 401.
            limit: the largest body of a successful answer, in bytes; of an error's body, ERROR_LIMIT bytes are read.
            content_type: JSON or protobuf.CONTENT_TYPE, for the body and for the answer; MERGE_PATCH or JSON_PATCH,
                for a body that is answered in JSON; METADATA_LIST, for the answer.
            admit: called right before each sending; if it raises, nothing is sent and its error ends the request.

        Raises:
            ApiError: the server refused the request, or its answer is not acceptable.
            ClusterUnreachable, CertificateRejected, CredentialError: the server could not be asked or did not answer.
        """
        try:
            async with asyncio.timeout(timeout):
                for attempt in (1, 2):
                    credentials = await self.access.headers()
                    raw = self._raw(method, path, params, body, content_type, credentials)
                    head, answer = await self._exchange(raw, limit, admit, again=method == "GET")
                    if head.status == 401 and attempt == 1 and await self.access.reload(credentials):
                        continue
                    break
        except (ProtocolError, OSError) as error:  # TimeoutError is an OSError
            raise connection_error(error, self._shown) from error
        if 200 <= head.status < 300:
            return answer
        raise api_error(head.status, answer, f"{method} {path}", phrase=head.reason[:64], retry_after=head.retry_after)

    async def reach(self, timeout: float = REQUEST_TIMEOUT) -> None:  # noqa: ASYNC109 - as in request
        """Load the credentials and open a connection, so that both are ready for the next request.

        Raises:
            ClusterUnreachable, CertificateRejected, CredentialError: no connection, or no credentials.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.access.headers()
                self._keep(await self._connection())
        except (ProtocolError, OSError) as error:
            raise connection_error(error, self._shown) from error

    @asynccontextmanager
    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Stream]:
        """Open a watch; the caller reads its lines until the end of the stream.

        Raises:
            HubError: as :meth:`request`.
        """
        try:
            connection = await self._open_watch(path, params)
        except (ProtocolError, OSError) as error:
            raise connection_error(error, self._shown) from error
        stream = Stream(connection, self._shown)
        try:
            yield stream
        finally:
            stream.close()
            self._discard(connection)

    async def _open_watch(self, path: str, params: Mapping[str, str]) -> Connection:
        """Request a watch; returns the connection once the head of a successful answer has arrived."""
        for attempt in (1, 2):
            credentials = await self.access.headers()
            raw = self._raw("GET", path, params, None, JSON, credentials)
            connection = await self._connection(fresh=True)
            try:
                async with asyncio.timeout(SILENCE_TIMEOUT):
                    head = await connection.start(raw, LINE_LIMIT, lines=True)
                if 200 <= head.status < 300:
                    return connection
                answer = await self._error_body(connection)
            except BaseException:
                self._discard(connection)
                raise
            self._discard(connection)
            if head.status != 401 or attempt == 2 or not await self.access.reload(credentials):
                break
        raise api_error(head.status, answer, f"watch {path}", phrase=head.reason[:64], retry_after=head.retry_after)

    async def _error_body(self, connection: Connection) -> bytes:
        """The first ERROR_LIMIT bytes of the body of a refused watch."""
        body = b""
        with suppress(ProtocolError, OSError):
            async with asyncio.timeout(REQUEST_TIMEOUT):
                while len(body) < ERROR_LIMIT and (line := await connection.line()):
                    body += line + b"\n"
        return (body + connection.unfinished)[:ERROR_LIMIT]

    def _raw(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        credentials: Mapping[str, str],
    ) -> bytes:
        query = "?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in params.items()) if params else ""
        lines = "".join([f"{name}: {value}\r\n" for name, value in credentials.items()])
        fixed = self._fixed[content_type]
        if body is None:
            return f"{method} {self._prefix}{path}{query} HTTP/1.1\r\n{fixed}{lines}\r\n".encode("latin-1")
        lines += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        return f"{method} {self._prefix}{path}{query} HTTP/1.1\r\n{fixed}{lines}\r\n".encode("latin-1") + body

    async def _exchange(
        self, raw: bytes, limit: int, admit: Callable[[], object] | None, *, again: bool
    ) -> tuple[Head, bytes]:
        """Send a request on a kept or new connection and read the answer.

        With ``again``, the request is sent once more on a new connection if a kept connection had been closed.
        """
        connection = await self._connection()
        kept = connection.served > 0
        try:
            if admit is not None:
                admit()
            head = await connection.start(raw, limit)
            body = await connection.body()
        except ConnectionError:
            self._discard(connection)
            if not (kept and again):
                raise
            connection = await self._connection(fresh=True)
            try:
                if admit is not None:
                    admit()
                head = await connection.start(raw, limit)
                body = await connection.body()
            except BaseException:
                self._discard(connection)
                raise
        except BaseException:  # cancelled or timed out: nothing would read the answer that may still arrive
            self._discard(connection)
            self._drop_idle()  # if the network is down, each kept connection would take the same timeout again
            raise
        self._keep(connection)
        return head, body

    def _keep(self, connection: Connection) -> None:
        """Keep a connection for the next request if it is still usable; otherwise close it."""
        if connection.usable and self._open.get(connection) == self.access.generation:
            self._idle.append(connection)
            if self._tidying is None:
                self._tidying = asyncio.get_running_loop().call_later(KEEP_IDLE, self._tidy)
        else:
            self._discard(connection)

    def _tidy(self) -> None:
        """Close connections that have been idle for a while: each holds up to half a megabyte for TLS."""
        loop = asyncio.get_running_loop()
        stale = [kept for kept in self._idle if not kept.usable or loop.time() - kept.idle_since >= KEEP_IDLE]
        for connection in stale:
            self._idle.remove(connection)
            self._discard(connection)
        self._tidying = loop.call_later(KEEP_IDLE, self._tidy) if self._idle else None

    def _drop_idle(self) -> None:
        for connection in self._idle:
            self._discard(connection)
        self._idle.clear()

    def _discard(self, connection: Connection) -> None:
        connection.abort()
        connection.forget()
        self._open.pop(connection, None)

    async def _connection(self, *, fresh: bool = False) -> Connection:
        """A kept connection, or a new one; always a new one if ``fresh``."""
        self._check_open()
        generation = self.access.generation
        if self._generation != generation:  # kept connections use a replaced certificate or CA
            self._drop_idle()
            self._generation = generation
        now = asyncio.get_running_loop().time()
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < KEEP_IDLE:
                return connection
            self._discard(connection)
        name = self.access.server_hostname or self._host
        contexts = self.access.ssl_context(), self.access.proxy_context()
        connection = await self._route.open(contexts[0], name, contexts[1], CONNECT_TIMEOUT)
        try:
            self._check_open()  # the client may have been closed meanwhile
        except ConnectionAbortedError:
            connection.abort()
            raise
        self._open[connection] = generation
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the client is closed")
