"""Compares our HTTP/1.1 parser with httptools (llhttp in C), on typical answers of an API server.

``pip install httptools && python -m benchmarks.http1`` prints the median time of each parser, both measured in
one run (docs/adr/0002-own-transport.md). ``HttptoolsConnection`` parses the head and the chunks with httptools.
Everything else is that of ``hub.kube.http1``: limits, lines, the end of an answer.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from hub.kube.http1 import HEAD_LIMIT, Connection, Head, ProtocolError

ROUNDS = 15
HEADERS = (
    b"HTTP/1.1 200 OK\r\nAudit-Id: 5d1dbb4f-1b8e-4c4f-9f0a-0a8a4bb0e6a3\r\nCache-Control: no-cache, private\r\n"
    b"Content-Type: application/json\r\nDate: Tue, 24 Nov 2026 03:22:58 GMT\r\n"
    b"X-Kubernetes-Pf-Flowschema-Uid: 23f2f0e8-9f13-4be0-8ad8-6d55cb7c1cf1\r\n"
    b"X-Kubernetes-Pf-Prioritylevel-Uid: 96f9b1a6-1b3c-4d3c-b9d1-9d6a0c3f0f4e\r\n"
)
CHUNKED = HEADERS + b"Transfer-Encoding: chunked\r\n\r\n"


class HttptoolsConnection(Connection):
    """A connection of ``hub.kube.http1`` whose head and chunks httptools parses."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._httptools = importlib.import_module("httptools")
        self._parser: Any = self._httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._fields: list[tuple[bytes, bytes]] = []

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self.heard_at = self._loop.time()
        if self._complete:
            self.abort()
            return
        if self._head is None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT + 262_144:
                self._broken(ProtocolError("headers above the limit"))
                return
        try:
            self._parser.feed_data(data)
        except self._httptools.HttpParserCallbackError as error:
            self._broken(error.__context__ or error)
        except self._httptools.HttpParserError as error:
            self._broken(ProtocolError(str(error)))

    def _broken(self, error: BaseException) -> None:
        self._fail(error if isinstance(error, Exception) else ProtocolError(str(error)))
        self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools."""
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by httptools."""
        status = self._parser.get_status_code()
        if status < 200:
            return
        head = Head(b"HTTP/1.1 %d OK" % status)
        for name, value in self._fields:
            head._header(name.lower(), value)  # noqa: SLF001 - replaces the parser that calls it
        self._fields.clear()
        self._head_bytes = 0
        self._head = head
        if head.length is not None and head.length > self._limit and self._lines is None:
            raise ProtocolError(f"a body above {self._limit} bytes")
        if self._head_waiter is not None and not self._head_waiter.done():
            self._head_waiter.set_result(head)

    def on_body(self, data: bytes) -> None:
        """Called by httptools."""
        self._body(data)

    def on_message_complete(self) -> None:
        """Called by httptools."""
        if self._head is not None:
            self._finish()


class NullTransport(asyncio.Transport):
    """A transport without a peer."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Discard the data."""

    def abort(self) -> None:
        """Nothing to close."""

    def pause_reading(self) -> None:
        """Nothing to pause."""


def chunk(data: bytes) -> bytes:
    """Encode data as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def watch(size: int, number: int) -> list[bytes]:
    """Return watch events, each in its own chunk."""
    line = json.dumps({"type": "MODIFIED", "object": "x" * (size - 40)}).encode() + b"\n"
    return [chunk(line)] * number


def reads(body: bytes, size: int) -> list[bytes]:
    """Encode a body in chunks of 4 KiB, the size of Go's write buffer, and cut it into reads of ``size`` bytes."""
    stream = b"".join(chunk(body[at : at + 4096]) for at in range(0, len(body), 4096)) + b"0\r\n\r\n"
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def follow(kind: type[Connection], loop: asyncio.AbstractEventLoop, packets: list[bytes]) -> float:
    """Return the seconds that a connection takes for a stream of lines."""

    async def run() -> float:
        connection = kind(loop)
        connection.connection_made(NullTransport())
        connection.start(b"", 8 << 20, lines=True)
        connection.data_received(CHUNKED)
        lengths: list[int] = []
        following = asyncio.ensure_future(connection.follow(lambda line: lengths.append(len(line))))
        await asyncio.sleep(0)
        start = time.perf_counter()
        for packet in packets:
            connection.data_received(packet)
        seconds = time.perf_counter() - start
        connection.end()
        await following
        assert lengths
        return seconds

    return loop.run_until_complete(run())


def answer(kind: type[Connection], loop: asyncio.AbstractEventLoop, packets: list[bytes]) -> float:
    """Return the seconds that a connection takes for a whole answer."""
    connection = kind(loop)
    connection.connection_made(NullTransport())
    start = time.perf_counter()
    connection.start(b"", 64 << 20)
    for packet in packets:
        connection.data_received(packet)
    body = loop.run_until_complete(connection.body())
    seconds = time.perf_counter() - start
    assert body
    return seconds


Run = Callable[[type[Connection], asyncio.AbstractEventLoop, list[bytes]], float]


def main() -> None:
    """Measure both parsers and print a table."""
    loop = asyncio.new_event_loop()
    small, large = watch(1_500, 5_000), watch(12_000, 2_000)
    burst = b"".join(watch(1_500, 4_000))
    bursts = [burst[at : at + 65_536] for at in range(0, len(burst), 65_536)]
    body = json.dumps({"items": ["x" * 100] * 60_000}).encode()
    put = HEADERS + b"Content-Length: 9000\r\n\r\n" + b"x" * 9000
    rows: list[tuple[str, Run, list[bytes], int]] = [
        ("watch line of 1.5 KB, one packet each", follow, small, len(small)),
        ("watch line of 12 KB, one packet each", follow, large, len(large)),
        ("watch lines of 1.5 KB, 64 KiB at once", follow, bursts, 4_000),
        ("list of 6 MB in reads of 16 KiB", answer, [CHUNKED, *reads(body, 16_384)], 1),
        ("answer to a PUT, 9 KB", answer, [put], 1),
    ]
    print(f"{'median of ' + str(ROUNDS):42} {'own µs':>10} {'httptools µs':>13}")
    for name, run, packets, number in rows:
        times: dict[type[Connection], list[float]] = {Connection: [], HttptoolsConnection: []}
        for _ in range(ROUNDS):
            for kind, seconds in times.items():
                repeat = 200 if len(packets) == 1 else 1
                seconds.append(sum(run(kind, loop, packets) for _ in range(repeat)) / repeat)
        own, other = (statistics.median(seconds) / number * 1e6 for seconds in times.values())
        print(f"{name:42} {own:10.2f} {other:13.2f}")


if __name__ == "__main__":
    main()
