"""A small and strict HTTP/1.1 connection to one API server.

The hub's hot paths are a PUT and a watch line, and a general HTTP client takes several times as long for both (figures:
docs/adr/0002). Only the features that kube-apiserver uses are supported: requests with a known body, and answers that
have a Content-Length, are chunked, or last until the connection ends. There are no redirects, cookies, compression,
pipelining or upgrades. All input from the peer has a limit. Anything unexpected ends the connection with
:class:`ProtocolError`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable

ERROR_LIMIT = 64 << 10
"""The number of bytes that are read of the body of an unsuccessful answer."""
HEAD_LIMIT = 64 << 10
"""The largest status line and headers together, in bytes."""
CHUNK_LINE_LIMIT = 1 << 10
"""The longest size line of a chunk, in bytes, including chunk extensions."""
PAUSE_ABOVE = 1 << 20
"""Bytes of waiting watch lines above which reading pauses until half of them are consumed."""
LINES_PER_ROUND = 64
"""The number of lines that are handed over in one round of the event loop; if more arrive together, all of them are
queued, so that other work gets its turn."""
LINE_COST = 64
"""Bytes of memory of a waiting line in addition to its content, so that PAUSE_ABOVE also holds for many tiny lines."""
MAX_INFORMATIONAL = 5
"""The largest number of 1xx answers before the final one, as in Go's client."""

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d)(?: ([^\r\n]*))?")
_HEX = re.compile(rb"[0-9a-fA-F]{1,15}")


class ProtocolError(Exception):
    """The peer sent HTTP that is malformed or not supported, or exceeded a limit."""


class _ErrorLimitReached(Exception):
    """The first ERROR_LIMIT bytes of an error's body have arrived; the rest is not read."""


class Head:
    """The status of an answer and those of its headers that the connection and its callers use.

    Raises:
        ProtocolError: the head is malformed, or asks for a feature that is not supported.
    """

    __slots__ = ("chunked", "close", "length", "reason", "retry_after", "status")

    def __init__(self, block: bytes) -> None:
        lines = block.split(b"\r\n")
        if block.count(b"\n") >= len(lines):
            raise ProtocolError("a bare line feed in the headers")
        match = _STATUS_LINE.fullmatch(lines[0])
        if match is None:
            raise ProtocolError("no HTTP/1.1 status line")
        self.status = int(match[1])
        self.reason = (match[2] or b"").decode("latin-1")
        self.length: int | None = None
        self.chunked = False
        self.close = lines[0].startswith(b"HTTP/1.0")
        self.retry_after: str | None = None
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon or not name or name[-1:] in b" \t" or line[:1] in b" \t":
                raise ProtocolError("a malformed header")
            self._header(name.lower(), value.strip(b" \t"))
        if self.chunked and self.length is not None:
            raise ProtocolError("both Content-Length and Transfer-Encoding")

    def _header(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            if not value.isdigit() or len(value) > 15 or self.length not in (None, int(value)):
                raise ProtocolError("a bad Content-Length")
            self.length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or self.chunked:
                raise ProtocolError("a Transfer-Encoding other than chunked")
            self.chunked = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise ProtocolError("a compressed answer, which was not requested")
        elif name == b"connection":
            self.close = self.close or b"close" in value.lower()
        elif name == b"retry-after":
            self.retry_after = value.decode("latin-1")[:64]


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time.

    Attributes:
        heard_at: loop time at which the last bytes arrived or the last request was sent.
        usable: whether the connection can carry another request.
        served: the number of requests answered so far.
        idle_since: loop time of the end of the last answer, or of the connect if there was no request yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: Head | None = None
        self._head_waiter: asyncio.Future[Head] | None = None
        self._body_waiter: asyncio.Future[None] | None = None
        self._content = bytearray()
        self._informational = 0
        self._limit = 0
        self._left = 0
        """The bytes that are missing of the current chunk, or of a body with Content-Length."""
        self._between = False
        """Whether the line break that ends a chunk comes next."""
        self._trailer = False
        self._lines: deque[bytes] | None = None
        self._take: Callable[[bytes], None] | None = None
        """Called with each line that arrives; None while earlier lines are waiting."""
        self._partial = bytearray()
        self._queued = 0
        self._paused = False
        self._complete = True
        self._error: Exception | None = None
        self._lost_by: OSError | None = None
        self.heard_at = 0.0
        self.usable = False
        self.served = 0
        self.idle_since = 0.0

    # --- asyncio's side -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open, including TLS."""
        self._transport = transport  # type: ignore[assignment]
        self.usable = True
        self.idle_since = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side, or broke."""
        self.usable = False
        self._transport = None
        error = exc if isinstance(exc, OSError) else _reset()
        self._lost_by = error if self._complete else _reset()
        if exc is None and not self._complete and self._until_close():
            self._finish()
            return
        self._fail(error)

    def eof_received(self) -> bool:
        """The peer has closed its side: close the transport, since half-open connections are not used."""
        return False

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes of an answer."""
        self.heard_at = self._loop.time()
        if self._take is not None and self._one_line(self._take, data):
            return
        if self._complete:  # bytes without a request
            self.abort()
            return
        try:
            if self._head is None:
                self._buffer += data
                if not self._parse_head():
                    return
                data = bytes(self._buffer)
                self._buffer.clear()
            if self._head is not None and self._head.chunked:
                self._chunks(data)
            elif data:
                self._plain(data)
        except _ErrorLimitReached:
            self._finish()
        except ProtocolError as error:
            self._fail(error)
            self.abort()

    # --- parsing ------------------------------------------------------------------------------------

    def _parse_head(self) -> bool:
        """Parse the head once it is complete; True if a body follows. An answer without a body is finished here."""
        head = self._next_head()
        if head is None:
            return False
        self._head = head
        if self._refusal():
            self._limit = min(self._limit, ERROR_LIMIT)
        if head.length is not None:
            if head.length > self._limit and self._lines is None and not self._refusal():
                raise ProtocolError(f"a body above {self._limit} bytes")
            self._left = head.length
        if self._head_waiter is not None and not self._head_waiter.done():
            self._head_waiter.set_result(head)
        if head.status == 204 or head.length == 0:
            self._finish()
            return False
        return True

    def _next_head(self) -> Head | None:
        """Take the head of the final answer from the buffer and skip 1xx answers; None while it is incomplete."""
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end > HEAD_LIMIT or (end < 0 and len(self._buffer) > HEAD_LIMIT):
                raise ProtocolError(f"headers above {HEAD_LIMIT >> 10} KiB")
            if end < 0:
                return None
            head = Head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            if head.status == 101:
                raise ProtocolError("a protocol upgrade, which was not requested")
            if head.status >= 200:
                return head
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise ProtocolError("1xx announcements without a final answer")

    def _refusal(self) -> bool:
        """Whether this is an error answer. Only the beginning of its body is read."""
        return self._lines is None and self._head is not None and self._head.status >= 300

    def _until_close(self) -> bool:
        """Whether the end of the connection marks the end of the answer."""
        head = self._head
        return head is not None and not head.chunked and head.length is None

    def _plain(self, data: bytes) -> None:
        """Process bytes of a body that is not chunked."""
        if self._until_close():
            self._body(data)
            return
        if len(data) > self._left:
            raise ProtocolError("more bytes than Content-Length says")
        self._left -= len(data)
        self._body(data)
        if self._left == 0:
            self._finish()

    def _chunks(self, data: bytes) -> None:
        """Process bytes of a chunked body; an incomplete line between two chunks stays in the buffer."""
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        at = 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if piece:
                    self._body(piece)
                if self._left:
                    return
                self._between = True
            eol = data.find(b"\r\n", at, at + CHUNK_LINE_LIMIT)
            if eol < 0:
                if len(data) - at >= CHUNK_LINE_LIMIT:
                    raise ProtocolError("a chunk without a size")
                self._buffer += data[at:]
                return
            line = data[at:eol]
            at = eol + 2
            if self._last_line(line):
                if at < len(data):
                    raise ProtocolError("bytes after the end of the answer")
                self._finish()
                return

    def _one_line(self, take: Callable[[bytes], None], data: bytes) -> bool:
        """Hand over ``data`` if it is exactly one chunk that holds exactly one line; otherwise return False.

        This is a shortcut for :meth:`_chunks` and :meth:`_split`. Single watch events arrive in this form, and a hub
        with many nodes reads more of them than of anything else.
        """
        between_chunks = not (self._left or self._between or self._trailer or self._buffer or self._partial)
        if self._complete or not between_chunks or self._head is None or not self._head.chunked:
            return False
        eol = data.find(b"\r\n", 0, CHUNK_LINE_LIMIT)
        end = len(data) - 3
        if data[:eol] != b"%x" % (end - eol - 1) or data.find(b"\n", eol + 2) != end or not data.endswith(b"\r\n"):
            return False
        line = data[eol + 2 : end]
        if not line or len(line) > self._limit:
            return False
        self._hand_over(take, line)
        return True

    def _last_line(self, line: bytes) -> bool:
        """Process a line between chunks; True if it is the empty line that ends the answer."""
        if self._between:
            if line:
                raise ProtocolError("a chunk longer than it says")
            self._between = False
            return False
        if self._trailer:
            return not line
        size = line.partition(b";")[0].strip(b" \t")
        if not _HEX.fullmatch(size):
            raise ProtocolError("a chunk without a size")
        self._left = int(size, 16)
        self._trailer = self._left == 0
        return False

    def _body(self, data: bytes) -> None:
        if self._lines is not None:
            self._split(data)
            return
        self._content += data  # a list of parts would take fifty times the limit if the chunks are tiny
        if len(self._content) <= self._limit:
            return
        if not self._refusal():
            raise ProtocolError(f"a body above {self._limit} bytes")
        assert self._head is not None  # noqa: S101 - _refusal() has checked it
        del self._content[self._limit :]
        self._head.close = True
        raise _ErrorLimitReached

    def _split(self, data: bytes) -> None:
        """Split a stream into lines and hand them over, or queue them and wake the reader."""
        assert self._lines is not None  # noqa: S101 - only streams are split
        if self._complete:  # the callback has ended the stream
            return
        *ended, rest = data.split(b"\n")
        take = self._take if len(ended) <= LINES_PER_ROUND else None
        for part in ended:
            line = self._whole_line(part)
            if not line:
                continue
            if take is None:
                self._lines.append(line)
                self._queued += len(line) + LINE_COST
            elif not self._hand_over(take, line):
                return
        if rest:
            self._partial += rest
            if len(self._partial) > self._limit:
                raise ProtocolError(f"a line above {self._limit} bytes")
        if take is None:
            self._take = None
            self._pause_if_full()
            self._wake()

    def _whole_line(self, line: bytes) -> bytes:
        """The whole line that ends here; its beginning may have arrived in an earlier packet."""
        if self._partial:
            self._partial += line
            line = bytes(self._partial)
            self._partial.clear()
        if len(line) > self._limit:
            raise ProtocolError(f"a line above {self._limit} bytes")
        return line

    def _pause_if_full(self) -> None:
        """Pause reading if too many bytes are waiting."""
        if self._queued > PAUSE_ABOVE and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _hand_over(self, take: Callable[[bytes], None], line: bytes) -> bool:
        """Hand over a line; returns whether the stream continues after it."""
        try:
            take(line)
        except Exception as error:  # noqa: BLE001 - the error ends the stream, and :meth:`follow` raises it
            self._fail(error)
            self.abort()
        return not self._complete

    # --- ending ---------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._body_waiter is not None and not self._body_waiter.done():
            self._body_waiter.set_result(None)

    def _finish(self) -> None:
        self._complete = True
        self.served += 1
        self.idle_since = self._loop.time()
        if self._head is None or self._head.close or self._until_close() or self._buffer:
            self.abort()
        self._wake()

    def _fail(self, error: Exception) -> None:
        self.usable = False
        if self._complete:
            return
        self._complete = True
        if self._head_waiter is not None and not self._head_waiter.done():
            waiter, self._head_waiter = self._head_waiter, None
            waiter.set_exception(error)
            error = _reset()
        self._error = error
        self._wake()

    def _cause(self) -> Exception:
        """The error that ended the answer, for the caller to raise; later calls return a generic error.

        The traceback of a raised error refers to this object. If this object kept the error too, the cycle would keep
        the connection and its TLS state in memory until the garbage collector runs.
        """
        assert self._error is not None  # noqa: S101 - the callers have checked it
        error, self._error = self._error, _reset()
        return error

    def forget(self) -> None:
        """Drop the error of a failed answer that no caller will read any more."""
        if self._error is not None:
            self._error = _reset()

    def fail_silent(self) -> None:
        """Fail the current answer with TimeoutError, since no more bytes arrive, and close the connection."""
        self._fail(TimeoutError("silence"))
        self.abort()

    def end(self) -> None:
        """Treat the bytes that have arrived as the complete answer, and close the connection."""
        if not self._complete:
            self._complete = True
            self.abort()
            self._wake()

    def abort(self) -> None:
        """Close the connection at once; an incomplete answer fails."""
        self._fail(ConnectionAbortedError("connection closed by us"))
        if self._transport is not None:
            self._transport.abort()

    @property
    def unfinished(self) -> bytes:
        """The bytes after the last line break of a stream."""
        return bytes(self._partial)

    # --- the caller's side ----------------------------------------------------------------------------

    def start(self, request: bytes, limit: int, *, lines: bool = False) -> asyncio.Future[Head]:
        """Send a request; the result of the future is the head of the answer.

        Args:
            request: the bytes of the whole request.
            limit: the largest body, or the longest line of a stream, in bytes.
            lines: whether the body is a stream of lines.
        """
        assert self._complete  # noqa: S101 - one request at a time
        self._head = None
        self._buffer.clear()
        self._content = bytearray()
        self._left = self._queued = self._informational = 0
        self._partial = bytearray()
        self._between = self._trailer = False
        self._limit = limit
        self._lines = deque() if lines else None
        self._take = None
        self._complete = False
        self._error = None
        self._body_waiter = None
        waiter = self._head_waiter = self._loop.create_future()
        self.heard_at = self._loop.time()
        if self._lost_by is not None:  # lost between the handshake and this request: no callback would report it
            self._fail(self._lost_by)
            self._lost_by = _reset()
        else:
            assert self._transport is not None  # noqa: S101 - connection_lost would have set _lost_by
            self._transport.write(request)
        return waiter

    async def body(self) -> bytes:
        """Wait for the end of the answer and return its whole body.

        Raises:
            ProtocolError, OSError: the answer ended early or is malformed.
        """
        while not self._complete:
            self._body_waiter = self._loop.create_future()
            await self._body_waiter
        if self._error is not None:
            raise self._cause()
        content, self._content = self._content, bytearray()  # an idle connection must not keep a large list in memory
        return bytes(content)

    async def line(self) -> bytes:
        """The next line of a stream, without its line break; b"" at the regular end of the stream.

        Raises:
            ProtocolError, OSError: the answer ended early or is malformed.
        """
        lines = self._lines
        assert lines is not None  # noqa: S101 - only called for streams
        while not lines:
            if self._complete:
                if self._error is not None:
                    raise self._cause()
                return b""
            self._body_waiter = self._loop.create_future()
            await self._body_waiter
        return self._next(lines)

    async def follow(self, take: Callable[[bytes], None]) -> None:
        """Hand each line of a stream to ``take`` as it arrives, without its line break, until the regular end.

        ``take`` is called without waking a task: with few lines on each of many connections, waking would be half of
        the cost of a line.

        Raises:
            ProtocolError, OSError: the answer ended early or is malformed.
            Exception: the error that ``take`` raised; it ends the stream.
        """
        lines = self._lines
        assert lines is not None  # noqa: S101 - only called for streams
        try:
            while True:
                for _ in range(min(len(lines), LINES_PER_ROUND)):
                    take(self._next(lines))
                if lines:
                    await asyncio.sleep(0)
                elif self._complete:
                    if self._error is not None:
                        raise self._cause()
                    return
                else:
                    self._take = take
                    self._body_waiter = self._loop.create_future()
                    await self._body_waiter
        finally:
            self._take = None

    def _next(self, lines: deque[bytes]) -> bytes:
        """Remove the first waiting line; resumes reading once half of the limit is free."""
        line = lines.popleft()
        self._queued -= len(line) + LINE_COST
        if self._paused and self._queued < PAUSE_ABOVE // 2 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return line


def _reset() -> ConnectionResetError:
    return ConnectionResetError("connection closed by the peer")
