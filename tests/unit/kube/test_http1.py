"""The HTTP/1.1 parser: what it accepts, what it refuses, and that all input from the peer is limited."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hub.kube.http1 import (
    CHUNK_LINE_LIMIT,
    ERROR_LIMIT,
    HEAD_LIMIT,
    LINES_PER_ROUND,
    PAUSE_ABOVE,
    Connection,
    Head,
    ProtocolError,
)
from tests.support.transport import Wire

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT = 1000


class Peer:
    """A connection and its transport; its methods play the server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = LIMIT, *, lines: bool = False) -> None:
        self.loop = loop
        self.wire = Wire()
        self.connection = Connection(loop)
        self.connection.connection_made(self.wire)
        self.ask(limit, lines=lines)

    def ask(self, limit: int = LIMIT, *, lines: bool = False) -> None:
        """Start a request."""
        self.head = self.connection.start(b"GET / HTTP/1.1\r\n\r\n", limit, lines=lines)

    def send(self, *pieces: bytes) -> Peer:
        """Deliver bytes to the connection."""
        for piece in pieces:
            self.connection.data_received(piece)
        return self

    def end(self, error: Exception | None = None) -> Peer:
        """End the connection."""
        self.connection.connection_lost(error)
        return self

    def body(self) -> bytes:
        """The body of the answer; its head must have arrived."""
        self.head.result()
        return self.loop.run_until_complete(self.connection.body())

    def line(self) -> bytes:
        """The next line."""
        return self.loop.run_until_complete(self.connection.line())

    def lines(self) -> list[bytes]:
        """All lines until the end of the stream."""
        return list(iter(self.line, b""))


LOOP = asyncio.new_event_loop()


@pytest.fixture(autouse=True, scope="module")
def _loop() -> Iterator[None]:
    """One event loop for all tests, since no test waits."""
    yield
    LOOP.close()


def peer(limit: int = LIMIT, *, lines: bool = False) -> Peer:
    """A connection with a pending request."""
    return Peer(LOOP, limit, lines=lines)


def chunks(*parts: bytes) -> bytes:
    """A whole chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Split ``data`` at these positions."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


# --- the head ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.2 200 OK",
        b"http/1.1 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 099 Low",
        b"HTTP/1.1 2x0 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1200 OK",
        b" HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\n",
        b"SSH-2.0-OpenSSH_9.6",
        b'{"kind":"Status"}',
    ],
)
def test_invalid_status_line_is_refused(block: bytes) -> None:
    """Only HTTP/1.0 and 1.1 with a three-digit status are accepted."""
    with pytest.raises(ProtocolError, match=r"status line|line feed"):
        Head(block)


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        (b"HTTP/1.1 200 OK", 200, "OK"),
        (b"HTTP/1.1 200", 200, ""),
        (b"HTTP/1.1 200 ", 200, ""),
        (b"HTTP/1.0 404 Not Found", 404, "Not Found"),
        (b"HTTP/1.1 599 \xe4\xff", 599, "\xe4\xff"),
    ],
)
def test_status_line_is_read(line: bytes, status: int, reason: str) -> None:
    """The reason phrase may be missing, empty or any bytes."""
    head = Head(line)
    assert (head.status, head.reason) == (status, reason)


@pytest.mark.parametrize(
    "header",
    [
        b"no colon",
        b": no name",
        b"",
        b"Content-Length : 5",
        b"Content-Length\t: 5",
        b" folded: line",
        b"\tfolded: line",
        b"X: a\nContent-Length: 5",
    ],
)
def test_malformed_header_is_refused(header: bytes) -> None:
    """Folded lines, spaces before the colon and bare line feeds are refused: parsers interpret them differently."""
    with pytest.raises(ProtocolError):
        Head(OK + header)


@pytest.mark.parametrize("value", [b"", b"-1", b"+5", b"5,5", b"0x5", b"5 5", b"1e3", b"\xb2", b"1" * 16])
def test_invalid_content_length_is_refused(value: bytes) -> None:
    """Content-Length must be at most fifteen digits."""
    with pytest.raises(ProtocolError, match="bad Content-Length"):
        Head(OK + b"Content-Length: " + value)


def test_longest_content_length_has_fifteen_digits() -> None:
    """Fifteen digits are far more than any body, and not too large for a size."""
    assert Head(OK + b"Content-Length: " + b"9" * 15).length == 10**15 - 1


def test_content_length_twice_must_agree() -> None:
    """Content-Length may be repeated with the same value, but not with another one."""
    assert Head(OK + b"Content-Length: 5\r\ncontent-length:5").length == 5
    with pytest.raises(ProtocolError, match="bad Content-Length"):
        Head(OK + b"Content-Length: 5\r\nContent-Length: 6")


@pytest.mark.parametrize("order", [1, -1])
def test_length_and_chunks_together_are_refused(order: int) -> None:
    """An answer with both Content-Length and Transfer-Encoding is ambiguous and refused."""
    both = [b"Content-Length: 5", b"Transfer-Encoding: chunked"][::order]
    with pytest.raises(ProtocolError, match="both"):
        Head(OK + b"\r\n".join(both))


@pytest.mark.parametrize("value", [b"gzip", b"gzip, chunked", b"chunked, chunked", b"", b"identity", b"\x0bchunked"])
def test_other_transfer_encodings_are_refused(value: bytes) -> None:
    """Only the transfer encoding ``chunked`` is accepted."""
    with pytest.raises(ProtocolError, match="Transfer-Encoding"):
        Head(OK + b"Transfer-Encoding: " + value)


def test_transfer_encoding_twice_is_refused() -> None:
    """A second Transfer-Encoding header is refused."""
    with pytest.raises(ProtocolError, match="Transfer-Encoding"):
        Head(OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked")


@pytest.mark.parametrize("value", [b"gzip", b"deflate", b"br", b"GZIP", b"identity, gzip"])
def test_compressed_answer_is_refused(value: bytes) -> None:
    """Compressed answers are refused, so decompression bombs are impossible."""
    with pytest.raises(ProtocolError, match="compressed"):
        Head(OK + b"Content-Encoding: " + value)


def test_content_encoding_identity_is_accepted() -> None:
    """``Content-Encoding: identity`` is accepted."""
    assert Head(OK + b"Content-Encoding: Identity").status == 200


@pytest.mark.parametrize(
    ("block", "close"),
    [
        (b"HTTP/1.1 200 OK", False),
        (b"HTTP/1.0 200 OK", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close", True),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
    ],
)
def test_connection_is_kept_by_version_and_header(block: bytes, close: bool) -> None:
    """HTTP/1.1 stays open unless the peer says close; HTTP/1.0 never does."""
    assert Head(block).close is close


def test_retry_after_is_cut() -> None:
    """Retry-After is kept as text and cut to 64 characters."""
    assert Head(OK + b"Retry-After:  7").retry_after == "7"
    assert Head(OK + b"Retry-After: " + b"9" * 99).retry_after == "9" * 64


@pytest.mark.parametrize("name", [b"x-one", b"X-Two", b"Audit-Id"])
def test_unknown_headers_are_ignored(name: bytes) -> None:
    """Unknown headers are ignored."""
    assert Head(OK + name + b": x: y").status == 200


def test_head_at_the_limit_is_read() -> None:
    """Headers of exactly 64 KiB are accepted."""
    filler = b"X: " + b"y" * (HEAD_LIMIT - len(OK) - 3 - len(b"\r\nContent-Length: 0"))
    assert peer().send(OK + filler + b"\r\nContent-Length: 0\r\n\r\n").body() == b""


@pytest.mark.parametrize("ended", [True, False])
def test_head_above_the_limit_is_refused(ended: bool) -> None:
    """Headers of one byte more are refused, whether they are complete or not."""
    other = peer().send((OK + b"X: ").ljust(HEAD_LIMIT + 1, b"y") + b"\r\n\r\n" * ended)
    assert other.wire.aborted
    with pytest.raises(ProtocolError, match="headers above 64 KiB"):
        other.head.result()


def test_head_that_never_ends_is_refused_while_it_grows() -> None:
    """A peer that drips header lines is cut off at the limit."""
    other = peer().send(OK, *[b"X: y\r\n"] * (HEAD_LIMIT // 6))
    assert isinstance(other.head.exception(), ProtocolError)


def test_informational_answers_are_skipped() -> None:
    """1xx answers before the final one are skipped."""
    early = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 7\r\n\r\n"
    other = peer().send(b"HTTP/1.1 100 Continue\r\n\r\n" + early + OK + b"Content-Length: 2\r\n\r\nhi")
    assert (other.head.result().status, other.body()) == (200, b"hi")


def test_informational_answers_without_end_are_refused() -> None:
    """Five 1xx answers are skipped, for each request again; a sixth is refused."""
    announced = [b"HTTP/1.1 199 Wait\r\n\r\n"] * 5
    other = peer()
    for _ in range(2):
        assert other.send(*announced, OK + b"Content-Length: 2\r\n\r\nhi").body() == b"hi"
        other.ask()
    other.send(*announced)
    assert not other.wire.aborted
    other.send(announced[0])
    with pytest.raises(ProtocolError, match="announcements"):
        other.head.result()


def test_upgrade_is_refused() -> None:
    """101 is refused, since no upgrade is ever requested."""
    with pytest.raises(ProtocolError, match="upgrade"):
        peer().send(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").head.result()


# --- bodies --------------------------------------------------------------------------------------

ANSWERS = {
    "length": OK + b"Content-Length: 11\r\n\r\nhello world",
    "chunked": CHUNKED + chunks(b"hello", b" ", b"world"),
    "extensions": CHUNKED + b'5;a=b\r\nhello\r\n006 ; c="d"\r\n world\r\n0;last\r\n\r\n',
    "trailers": CHUNKED + b"B\r\nhello world\r\n0\r\nX: y\r\nZ: w\r\n\r\n",
    "until close": b"HTTP/1.1 200 OK\r\n\r\nhello world",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello world",
    "after 1xx": b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + chunks(b"hello world"),
    "line breaks": OK + b"Content-Length: 11\r\nX: y\r\n\r\nhello world",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_body_is_the_same_byte_by_byte(name: str) -> None:
    """An answer that arrives in single bytes is parsed like one that arrives at once."""
    assert peer().send(*cut(ANSWERS[name], range(999))).end().body() == b"hello world"


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 200), max_size=8))
def test_body_does_not_depend_on_where_it_is_cut(name: str, places: list[int]) -> None:
    """Packet boundaries do not matter."""
    assert peer().send(*cut(ANSWERS[name], places)).end().body() == b"hello world"


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=12), st.lists(st.integers(0, 800), max_size=8))
def test_chunked_body_is_decoded(parts: list[bytes], places: list[int]) -> None:
    """A chunked body is decoded whatever its chunks contain, including line breaks."""
    assert peer().send(*cut(CHUNKED + chunks(*parts), places)).body() == b"".join(parts)


FRAGMENTS = st.sampled_from(
    [
        OK,
        b"HTTP/1.1 204 No Content\r\n",
        b"HTTP/1.0 500 Oops\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 99999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n",
        b"\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"ffffffffffffff\r\n",
        b"hello",
        b"{}\n",
    ]
)


@example([b"HTTP/1.0 500 Oops\r\n", b"\r\n", b"HTTP/1.1 200 OK\r\n"], [])  # an error's body is cut at its limit
@given(st.lists(FRAGMENTS | st.binary(max_size=20), max_size=12), st.lists(st.integers(0, 400), max_size=4))
def test_garbage_ends_in_an_error_or_a_bounded_answer(parts: list[bytes], places: list[int]) -> None:
    """Whatever a peer sends before it closes, a request ends with ProtocolError, OSError or a small body."""
    other = peer(8).send(*cut(b"".join(parts), places)).end()
    with suppress(ProtocolError, OSError):
        assert len(other.body()) <= 8


@given(st.lists(FRAGMENTS | st.binary(max_size=20), max_size=12), st.lists(st.integers(0, 400), max_size=4))
def test_garbage_ends_a_stream_or_gives_bounded_lines(parts: list[bytes], places: list[int]) -> None:
    """Whatever a peer sends, a stream ends, and no line is empty or above the limit."""
    other = peer(8, lines=True).send(*cut(b"".join(parts), places)).end()
    with suppress(ProtocolError, OSError):
        other.head.result()
        assert all(0 < len(line) <= 8 for line in other.lines())


@pytest.mark.parametrize(
    "size", [b"", b"g", b"-1", b"+5", b"0x5", b"5 5", b" ", b";", b"\xb2", b"f" * 16, b"5\n", b"\n5"]
)
def test_bad_chunk_size_is_refused(size: bytes) -> None:
    """A chunk's size is hexadecimal digits and nothing else."""
    other = peer().send(CHUNKED + size + b"\r\nhello\r\n")
    assert other.wire.aborted
    with pytest.raises(ProtocolError, match="chunk without a size"):
        other.body()


@pytest.mark.parametrize("pieces", [1, 9999])
def test_chunk_line_above_the_limit_is_refused(pieces: int) -> None:
    """A size line may have extensions up to the limit, including its line break, however it arrives."""
    longest = b"2;".ljust(CHUNK_LINE_LIMIT - 2, b"x")
    answer = CHUNKED + longest + b"\r\nhi\r\n0\r\n\r\n"
    assert peer().send(*cut(answer, range(0, len(answer), len(answer) // pieces or 1))).body() == b"hi"
    answer = CHUNKED + longest + b"x\r\nhi\r\n0\r\n\r\n"
    with pytest.raises(ProtocolError, match="chunk without a size"):
        peer().send(*cut(answer, range(0, len(answer), len(answer) // pieces or 1))).body()


def answers_of(status: int, body: bytes) -> dict[str, bytes]:
    """An answer in every framing."""
    line = b"HTTP/1.1 %d x\r\n" % status
    return {
        "length": line + b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
        "chunked": line + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(body),
        "until close": line + b"\r\n" + body,
    }


@pytest.mark.parametrize("framing", ["length", "chunked", "until close"])
@pytest.mark.parametrize("status", [300, 404, 500])
def test_body_of_an_error_is_cut(status: int, framing: str) -> None:
    """Of an error, ERROR_LIMIT bytes are read; the connection is closed only if there are more."""
    whole, more = b"x" * ERROR_LIMIT, b"x" * (ERROR_LIMIT + 1)
    other = peer(1 << 20).send(answers_of(status, whole)[framing])
    assert other.wire.aborted is False
    assert other.end().body() == whole
    other = peer(1 << 20).send(answers_of(status, more)[framing])
    assert (other.body(), other.wire.aborted, other.connection.usable) == (whole, True, False)


@pytest.mark.parametrize("framing", ["length", "chunked", "until close"])
def test_body_of_an_error_is_cut_at_the_limit_of_the_request(framing: str) -> None:
    """A request with a lower limit reads no more of an error; a body below 300 that is too large is an error itself."""
    assert peer(10).send(answers_of(300, b"x" * 11)[framing]).body() == b"x" * 10
    assert peer(1 << 20).send(answers_of(299, b"x" * (ERROR_LIMIT + 1))[framing]).end().body() == b"x" * (
        ERROR_LIMIT + 1
    )
    other = peer(10).send(answers_of(299, b"x" * 11)[framing])
    with pytest.raises(ProtocolError, match="a body above 10 bytes"):
        other.body()


@pytest.mark.parametrize("after", [b"x\r\n", b"world\r\n"])
def test_chunk_longer_than_its_size_is_refused(after: bytes) -> None:
    """A chunk must be followed by a line break."""
    with pytest.raises(ProtocolError, match="longer than it says"):
        peer().send(CHUNKED + b"5\r\nhello" + after).body()


@pytest.mark.parametrize("start", [OK + b"Content-Length: 10\r\n\r\n", CHUNKED + b"a\r\n", OK + b"\r\n"])
def test_body_at_the_limit_is_read(start: bytes) -> None:
    """A body of exactly the limit is accepted."""
    end = b"\r\n0\r\n\r\n" if start.startswith(CHUNKED) else b""
    assert peer(10).send(start + b"x" * 10 + end).end().body() == b"x" * 10


@pytest.mark.parametrize("start", [CHUNKED + b"fffffff\r\n", OK + b"\r\n"])
def test_body_above_the_limit_is_refused(start: bytes) -> None:
    """A body without an announced length is refused when it passes the limit."""
    other = peer(10).send(start, b"x" * 10)
    assert not other.wire.aborted
    other.send(b"x")
    assert other.wire.aborted
    with pytest.raises(ProtocolError, match="body above 10 bytes"):
        other.body()


def test_announced_length_above_the_limit_is_refused_at_once() -> None:
    """A body whose Content-Length is above the limit is not read at all."""
    with pytest.raises(ProtocolError, match="body above 10 bytes"):
        peer(10).send(OK + b"Content-Length: 11\r\n\r\n").head.result()


def test_tiny_chunks_take_no_extra_memory() -> None:
    """Tiny chunks take no more memory than their bytes."""
    other = peer(1 << 20).send(CHUNKED)
    piece = b"2\r\nxx\r\n" * 1000
    tracemalloc.start()
    for _ in range(20):
        other.send(piece)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 80_000  # 40,000 bytes in 20,000 chunks


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No Content\r\n\r\n", OK + b"Content-Length: 0\r\n\r\n"])
def test_answer_without_a_body_is_complete_with_its_head(head: bytes) -> None:
    """An answer with 204 or a length of 0 is complete with its head."""
    assert peer().send(head).body() == b""


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"Content-Length: 5\r\n\r\nhell",
        OK + b"Content-Length: 5\r\n\r\n",
        CHUNKED,
        CHUNKED + b"5\r\nhello",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\nX: y\r\n",
    ],
)
def test_answer_cut_short_is_an_error(data: bytes) -> None:
    """An incomplete answer is an error."""
    with pytest.raises(ConnectionResetError):
        peer().send(data).end().body()


def test_reset_before_the_end_keeps_its_error() -> None:
    """The caller gets the system's error of the connection."""
    with pytest.raises(TimeoutError, match="user timeout"):
        peer().send(CHUNKED).end(TimeoutError("user timeout")).body()


def test_body_until_close_ended_by_a_reset_is_an_error() -> None:
    """A body that lasts until the close of the connection is incomplete if a reset ends it."""
    with pytest.raises(ConnectionResetError):
        peer().send(OK + b"\r\nhell").end(ConnectionResetError(104, "reset")).body()


def test_body_until_close_ended_by_us_is_an_error() -> None:
    """A body that lasts until the close of the connection is incomplete if this side ends it."""
    other = peer().send(OK + b"\r\nhell")
    other.connection.abort()
    with pytest.raises(ConnectionAbortedError):
        other.end().body()


@pytest.mark.parametrize(
    "answer", [OK + b"Content-Length: 2\r\n\r\nhi", CHUNKED + chunks(b"hi")], ids=["length", "chunked"]
)
def test_extra_bytes_in_the_same_packet_are_refused(answer: bytes) -> None:
    """Bytes after the end of the answer are refused."""
    other = peer().send(answer + b"x")
    assert other.wire.aborted
    with pytest.raises(ProtocolError, match=r"more bytes|bytes after"):
        other.body()


@pytest.mark.parametrize(
    "answer",
    [OK + b"Content-Length: 2\r\n\r\nhi", CHUNKED + chunks(b"hi"), b"HTTP/1.1 204 No Content\r\n\r\n"],
    ids=["length", "chunked", "204"],
)
def test_unexpected_bytes_close_an_idle_connection(answer: bytes) -> None:
    """Bytes on an idle connection close it: they would be taken for the next answer."""
    other = peer().send(answer, OK + b"Content-Length: 4\r\n\r\nevil")
    assert (other.wire.aborted, other.connection.usable) == (True, False)


def test_second_answer_behind_an_empty_one_is_dropped_with_the_connection() -> None:
    """Bytes after a 204 in the same packet are never read as an answer."""
    other = peer().send(b"HTTP/1.1 204 No Content\r\n\r\n" + OK + b"Content-Length: 4\r\n\r\nevil")
    assert (other.body(), other.connection.usable) == (b"", False)


@pytest.mark.parametrize("answer", ["length", "chunked", "trailers", "after 1xx"])
def test_complete_answer_leaves_the_connection_usable(answer: str) -> None:
    """After a complete answer, the connection carries the next request."""
    other = peer().send(ANSWERS[answer])
    assert (other.body(), other.connection.usable, other.connection.served) == (b"hello world", True, 1)
    other.ask()
    assert other.send(OK + b"Content-Length: 2\r\n\r\nhi").body() == b"hi"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_connection_the_peer_will_close_is_not_reused(answer: bytes) -> None:
    """If the peer announces that it will close, this side closes first."""
    other = peer().send(answer)
    assert (other.connection.usable, other.wire.aborted) == (False, True)


def test_peer_that_closes_an_idle_connection_makes_it_unusable() -> None:
    """An idle connection that the peer closed is not usable."""
    assert peer().send(ANSWERS["length"]).end().connection.usable is False


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
def test_request_on_a_connection_lost_after_its_handshake_fails_at_once(error: Exception | None) -> None:
    """A request on a connection that was lost before it was sent fails at once."""
    connection = Connection(LOOP)
    connection.connection_made(Wire())
    connection.connection_lost(error)
    assert isinstance(connection.start(b"GET", LIMIT).exception(), ConnectionResetError)


# --- streams -------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    st.lists(st.integers(1, 400), max_size=6),
    st.lists(st.integers(0, 800), max_size=6),
)
def test_lines_do_not_depend_on_chunks_or_packets(lines: list[bytes], chunking: list[int], places: list[int]) -> None:
    """The lines of a stream do not depend on chunks and packets; empty lines are skipped."""
    body = b"".join(line + b"\n" for line in lines)
    stream = CHUNKED + chunks(*(piece for piece in cut(body, chunking) if piece))
    assert peer(lines=True).send(*cut(stream, places)).lines() == [line for line in lines if line]


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_line_at_the_limit_is_read(pieces: int) -> None:
    """A line of exactly the limit is accepted, in one chunk or several."""
    size = 10 // pieces
    assert peer(10, lines=True).send(
        CHUNKED, *[b"%x\r\n%b\r\n" % (size, b"x" * size)] * pieces, b"1\r\n\n\r\n"
    ).line() == (b"x" * 10)


@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n", b"ok\n" + b"x" * 11, b"ok\n" + b"x" * 11 + b"\n"])
def test_line_above_the_limit_is_refused(data: bytes) -> None:
    """A line of one byte more is refused, whether it is complete or not."""
    other = peer(10, lines=True).send(CHUNKED + b"%x\r\n%b\r\n" % (len(data), data))
    assert other.wire.aborted
    with pytest.raises(ProtocolError, match="line above 10 bytes"):
        other.lines()


def test_line_above_the_limit_in_pieces_is_refused() -> None:
    """The limit also holds for a line that arrives in pieces."""
    other = peer(10, lines=True).send(CHUNKED, *[b"1\r\nx\r\n"] * 11)
    with pytest.raises(ProtocolError, match="line above 10 bytes"):
        other.line()


def test_lines_before_a_broken_end_are_delivered_first() -> None:
    """Complete lines are delivered before the error."""
    other = peer(lines=True).send(CHUNKED + b"9\r\none\ntwo\nt\r\n").end()
    assert [other.line(), other.line()] == [b"one", b"two"]
    with pytest.raises(ConnectionResetError):
        other.line()


def test_unfinished_last_line_is_not_delivered() -> None:
    """Bytes after the last line break are not delivered, but available as ``unfinished``."""
    other = peer(lines=True).send(CHUNKED + chunks(b"one\ntw", b"o"))
    assert (other.lines(), other.connection.unfinished) == ([b"one"], b"two")


def test_line_wakes_the_reader() -> None:
    """A waiting reader gets the line when it arrives."""

    async def read() -> bytes:
        other = peer(lines=True)
        LOOP.call_later(0.001, other.send, CHUNKED + b"4\r\none\n\r\n")
        return await other.connection.line()

    assert LOOP.run_until_complete(read()) == b"one"


async def followed(other: Peer, taken: list[bytes], *pieces: bytes) -> None:
    """Follow a stream, on which these packets arrive once the reader waits."""
    task = asyncio.ensure_future(other.connection.follow(taken.append))
    await asyncio.sleep(0)
    for piece in pieces:
        other.send(piece)
    await task


@given(
    st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")), max_size=200),
    st.lists(st.integers(0, 10_000), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=8),
    st.integers(0, 20),
)
def test_follower_gets_every_line_in_order(
    lines: list[bytes], chunking: list[int], places: list[int], late: int
) -> None:
    """The reader gets every line in order, however the bytes are cut, including lines that arrived before."""
    body = b"".join(line + b"\n" for line in lines)
    pieces = cut(CHUNKED + chunks(*(piece for piece in cut(body, chunking) if piece)), places)
    before = late % (len(pieces) + 1)
    taken: list[bytes] = []
    LOOP.run_until_complete(followed(peer(lines=True).send(*pieces[:before]), taken, *pieces[before:]))
    assert taken == [line for line in lines if line]


def test_a_line_is_handed_over_while_it_arrives() -> None:
    """A line is handed over within ``data_received``; a flood of lines is queued."""

    async def main() -> None:
        other, taken = peer(lines=True), list[bytes]()
        task = asyncio.ensure_future(other.connection.follow(taken.append))
        await asyncio.sleep(0)
        other.send(CHUNKED + b"4\r\none\n\r\n")
        assert taken == [b"one"]
        other.send(flood(b"x", LINES_PER_ROUND + 1), b"4\r\nend\n\r\n")
        assert taken == [b"one"]
        await asyncio.sleep(0)
        assert len(taken) == 1 + LINES_PER_ROUND
        await asyncio.sleep(0)
        assert taken[-2:] == [b"x", b"end"]
        other.send(b"5\r\nmore\n\r\n")
        assert taken[-1] == b"more"
        task.cancel()
        await asyncio.wait([task])
        other.send(b"5\r\nlost\n\r\n")
        assert taken[-1] == b"more"

    LOOP.run_until_complete(main())


@pytest.mark.parametrize(
    ("head", "packets"),
    [
        pytest.param(CHUNKED, [b"4\r\none\n\r\n", b"4\r\ntwo\n\r\n"], id="a line each"),
        pytest.param(CHUNKED, [b"8\r\none\ntwo\n\r\n"], id="two lines in a chunk"),
        pytest.param(CHUNKED, [b"4\r\none\n\r\n4\r\ntwo\n\r\n"], id="two chunks in a packet"),
        pytest.param(CHUNKED, [b"3\r\none\r\n", b"4\r\ntwo\n\r\n"], id="half a line"),
        pytest.param(CHUNKED, [b"4\r\none\n", b"\r\n", b"4\r\ntwo\n\r\n"], id="the end of a chunk late"),
        pytest.param(CHUNKED, [b"6\r\n", b"one\nto\r\n", b"4\r\ntwo\n\r\n"], id="the size alone"),
        pytest.param(CHUNKED, [b"8\r\n4\r\none\n\r\n"], id="a chunk within a chunk"),
        pytest.param(CHUNKED, [b"9\r\n", b"4\r\none\n\r\n"], id="what looks like a chunk within a chunk"),
        pytest.param(CHUNKED, [b"1\r\n\n\r\n", b"4\r\none\n\r\n"], id="an empty line"),
        pytest.param(CHUNKED, [b"a\r\nnine long\n\r\n", b"A\r\nnine long\n\r\n"], id="digits in both cases"),
        pytest.param(CHUNKED, [b"04;x=y\r\none\n\r\n"], id="an extension"),
        pytest.param(CHUNKED, [b"0x4\r\none\n\r\n"], id="no size"),
        pytest.param(CHUNKED, [b"5\r\none\n\r\n", b"4\r\ntwo\n\r\n"], id="too short"),
        pytest.param(CHUNKED, [b"3\r\none\n\r\n", b"4\r\ntwo\n\r\n"], id="too long"),
        pytest.param(CHUNKED, [b"4\r\none\nxx", b"4\r\ntwo\n\r\n"], id="no end"),
        pytest.param(CHUNKED, [b"3e9\r\n" + b"x" * 1000 + b"\n\r\n"], id="at the limit"),
        pytest.param(CHUNKED, [b"3ea\r\n" + b"x" * 1001 + b"\n\r\n"], id="above the limit"),
        pytest.param(CHUNKED, [b"0\r\n", b"4\r\none\n\r\n"], id="in the trailer"),
        pytest.param(CHUNKED, [b"0\r\n\r\n", b"4\r\none\n\r\n"], id="after the end"),
        pytest.param(OK + b"\r\n", [b"4\r\none\n\r\n"], id="no chunks at all"),
    ],
)
def test_a_line_that_arrives_as_one_chunk_is_nothing_special(head: bytes, packets: list[bytes]) -> None:
    """The shortcut for such lines gives the same lines, end and error as byte-by-byte arrival."""

    def outcome(pieces: list[bytes]) -> tuple[list[bytes], bool, str]:
        other, taken, error = peer(lines=True).send(head), list[bytes](), ""

        async def main() -> None:
            nonlocal error
            task = asyncio.ensure_future(other.connection.follow(taken.append))
            await asyncio.sleep(0)
            other.send(*pieces)
            await asyncio.sleep(0)
            task.cancel()
            (raised,) = await asyncio.gather(task, return_exceptions=True)
            error = repr(raised)

        LOOP.run_until_complete(main())
        return taken, other.wire.aborted, error

    assert outcome(packets) == outcome([bytes([byte]) for byte in b"".join(packets)])


@pytest.mark.parametrize("early", [True, False])
def test_follower_error_ends_the_stream(early: bool) -> None:
    """An error of the reader ends the stream, for queued and new lines; no further line is handed over."""
    other, taken = peer(lines=True), list[bytes]()

    def take(line: bytes) -> None:
        taken.append(line)
        raise ZeroDivisionError

    async def main() -> None:
        stream = CHUNKED + b"8\r\none\ntwo\n\r\n"
        if early:
            other.send(stream)
        task = asyncio.ensure_future(other.connection.follow(take))
        await asyncio.sleep(0)
        if not early:
            other.send(stream)
        await task

    with pytest.raises(ZeroDivisionError):
        LOOP.run_until_complete(main())
    assert (taken, other.wire.aborted) == ([b"one"], not early)


def test_lines_after_the_follower_ended_are_dropped() -> None:
    """Lines after the one at which the reader ended the stream are dropped."""
    other, taken = peer(lines=True), list[bytes]()

    def take(line: bytes) -> None:
        taken.append(line)
        other.connection.end()

    async def main() -> None:
        task = asyncio.ensure_future(other.connection.follow(take))
        await asyncio.sleep(0)
        other.send(CHUNKED + b"8\r\none\ntwo\n\r\n6\r\nthree\n\r\n")
        await task

    LOOP.run_until_complete(main())
    assert (taken, other.wire.aborted) == ([b"one"], True)


def test_a_follower_has_the_lines_before_a_broken_end() -> None:
    """The reader gets all complete lines, then the error."""
    taken: list[bytes] = []
    other = peer(lines=True).send(CHUNKED + b"9\r\none\ntwo\nt\r\n").end()
    with pytest.raises(ConnectionResetError):
        LOOP.run_until_complete(other.connection.follow(taken.append))
    assert taken == [b"one", b"two"]


def flood(line: bytes, count: int) -> bytes:
    """A chunk of many lines."""
    data = (line + b"\n") * count
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_reading_pauses_and_resumes_with_a_slow_consumer() -> None:
    """Above 1 MiB of unread lines reading pauses until half of them are consumed."""
    other = peer(1 << 16, lines=True).send(CHUNKED)
    sent = 0
    while other.wire.reading:
        other.send(flood(b"x" * 999, 10))
        sent += 10
    assert 0.8 * PAUSE_ABOVE < sent * 1000 < 1.2 * PAUSE_ABOVE
    taken = 0
    while not other.wire.reading:
        assert other.line() == b"x" * 999
        taken += 1
    assert 0.4 * sent < taken < 0.6 * sent


def test_many_tiny_lines_pause_reading() -> None:
    """Many tiny lines pause reading long before a million of them are in memory."""
    other = peer(lines=True).send(CHUNKED)
    for sent in range(1, 1000):
        other.send(flood(b"x", 100))
        if not other.wire.reading:
            assert sent * 100 < PAUSE_ABOVE // 50
            return
    pytest.fail("never paused")


def test_paused_connection_that_is_lost_is_not_resumed() -> None:
    """Lines that had arrived are delivered, and the closed transport is not resumed."""
    other = peer(lines=True).send(CHUNKED + flood(b"x" * 500, 3000)).end()
    for _ in range(3000):
        assert other.line() == b"x" * 500
    assert not other.wire.reading


def test_many_lines_in_one_packet_take_time_in_proportion() -> None:
    """Splitting takes linear time, so a flood of line breaks does not block the event loop."""
    other = peer(lines=True)
    started = time.perf_counter()
    other.send(CHUNKED + flood(b"x", 300_000))
    assert time.perf_counter() - started < 2


def test_silent_stream_times_out() -> None:
    """``fail_silent`` ends a stream with TimeoutError."""
    other = peer(lines=True).send(CHUNKED)
    other.connection.fail_silent()
    with pytest.raises(TimeoutError):
        other.line()
    assert other.wire.aborted


def test_a_kept_connection_holds_no_answer() -> None:
    """A kept connection does not hold the last body: 500 lists of 1.2 MB would take 600 MB."""
    big = b"x" * (1 << 20)
    tracemalloc.start()
    try:
        one = peer(limit=2 << 20)
        assert len(one.send(OK + b"Content-Length: %d\r\n\r\n" % len(big), big).body()) == len(big)
        assert one.connection.usable
        assert tracemalloc.get_traced_memory()[0] < 1 << 19
    finally:
        tracemalloc.stop()


def test_error_of_an_answer_that_no_caller_reads_is_dropped() -> None:
    """A connection that is closed keeps no error: its traceback can hold the connection and its TLS state."""

    class Lost(ConnectionResetError):
        """An error that can be referred to weakly."""

    error = Lost("gone")
    held = weakref.ref(error)
    other = peer().send(OK + b"Content-Length: 5\r\n\r\n").end(error)
    del error
    assert held() is not None
    other.connection.forget()
    assert held() is None


def test_lost_connection_drops_its_transport() -> None:
    """A lost connection drops its transport, so that a traceback that holds the connection does not hold TLS state."""
    other = peer(lines=True).end(ConnectionResetError("gone"))
    wire = weakref.ref(other.wire)
    with pytest.raises(ConnectionResetError):
        other.line()
    del other.wire
    assert wire() is None
    other.connection.abort()
