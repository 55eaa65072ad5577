"""The bytes of a gRPC health check: one call of grpc.health.v1.Health/Check over HTTP/2. Pure.

hyperframe and hpack read frames and headers. h2, which builds on the two, is not used: its state machine for many
streams costs five times as much as a whole http probe (docs/adr/0010-health-checks.md). Like the answer of an HTTP
probe, an answer is limited to :data:`HEAD_LIMIT` bytes.

Sources: RFC 9113 (HTTP/2); https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and health-checking.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from hub.decide.checks import Check
from hub.observe.health.http import HEAD_LIMIT, authority
from hub.runtime.protowire import ProtobufError, bytes_field, fields

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_START: Final = _PREFACE + SettingsFrame(0, {SettingsFrame.ENABLE_PUSH: 0}).serialize()
_SETTINGS_ACK: Final = SettingsFrame(0, flags=["ACK"]).serialize()
_STREAM: Final = 1
_CACHED: Final = 64
"""Entries in the cache of decoded headers: nearly all answers of a server have the same."""
_HEAD: Final = 9
"""Bytes of a frame's header."""
_MAX_FRAME: Final = 16_384
"""The largest frame that a server may send, since the client's settings allow no more (RFC 9113 6.5.2)."""
_SETTINGS: Final = b"\x04"
"""The type of the first frame of a server, SETTINGS (RFC 9113 3.4)."""

_ERRORS: Final = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)
"""HTTP/2's error codes (RFC 9113 7)."""
_CODES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""gRPC's status codes."""
_MEANINGS: Final = {
    "NOT_FOUND": "the server does not know the service",
    "UNIMPLEMENTED": "the server has no grpc.health.v1.Health",
}
_SERVING: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
"""``HealthCheckResponse.ServingStatus``."""
_SERVED: Final = b"\0\0\0\0\2\x08\1"
"""A whole message with SERVING, as nearly all are."""


class _Refused(Exception):
    """The answer is not one that a gRPC server sends; the message says why."""


def exchanges(check: Check) -> Callable[[str], GrpcExchange]:
    """A function that makes the exchange with an address; what all addresses have in common is encoded once."""
    encoder = Encoder()
    scheme = "https" if check.tls else "http"
    before = encoder.encode([(":method", "POST"), (":scheme", scheme), (":path", "/grpc.health.v1.Health/Check")])
    after = encoder.encode(
        [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "endpointslice-hub")]
    )
    call = bytes_field(1, check.grpc_service.encode()) if check.grpc_service else b""
    message = DataFrame(_STREAM, b"\0" + len(call).to_bytes(4, "big") + call, flags=["END_STREAM"]).serialize()

    def exchange(address: str) -> GrpcExchange:
        # A header that is never indexed leaves the table of the encoder as it is, so the blocks fit together.
        host = encoder.encode([NeverIndexedHeaderTuple(":authority", authority(check, address))], huffman=False)
        headers = HeadersFrame(_STREAM, before + host + after, flags=["END_HEADERS"]).serialize()
        return GrpcExchange(_START + headers + message)

    return exchange


class GrpcExchange:
    """The call of one address, and its answer; see :class:`hub.observe.health.flights.Exchange`.

    Args:
        request: everything to send.
    """

    __slots__ = ("_answered", "_block", "_blocks", "_ends", "_left", "_message", "_received", "_started", "unsent")

    def __init__(self, request: bytes) -> None:
        self.unsent = request
        self._left = HEAD_LIMIT
        self._started = False
        """Whether the first frame has come."""
        self._received = b""
        """The bytes of a frame that is not complete."""
        self._blocks: tuple[bytes, ...] = ()
        """The complete header blocks."""
        self._block = b""
        """The frames so far of a header block."""
        self._ends = False
        """Whether the stream ends with this header block."""
        self._answered = False
        """Whether the headers of the answer have come; the next header block is its trailers."""
        self._message = b""

    def receive(self, data: bytes) -> str | None:
        """Handle all complete frames, until the stream ends."""
        self._left -= len(data)
        try:
            return self._frames(self._received + data)
        except _Refused as refused:
            return str(refused)
        except (HyperframeError, HPACKError):
            return "broken HTTP/2"

    def _frames(self, received: bytes) -> str | None:
        if not self._started:
            _check_start(received)
        view, at = memoryview(received), 0
        while len(received) >= at + _HEAD:
            frame, size = Frame.parse_frame_header(view[at : at + _HEAD])
            if size > _MAX_FRAME:
                raise _Refused(f"a frame of more than {_MAX_FRAME} bytes")
            end = at + _HEAD + size
            if len(received) < end:
                break
            frame.parse_body(view[at + _HEAD : end])
            self._started, at = True, end
            outcome = self._handle(frame)
            if outcome is not None:
                return outcome
        self._received = received[at:]
        if self._left <= 0:
            raise _Refused(f"an answer of more than {HEAD_LIMIT} bytes")
        return None

    def _handle(self, frame: Frame) -> str | None:
        """Handle a frame; frames that a single call has no use for are ignored."""
        match frame:
            case HeadersFrame() | ContinuationFrame() | DataFrame() | RstStreamFrame() if frame.stream_id != _STREAM:
                raise _Refused(f"{type(frame).__name__} of stream {frame.stream_id}, which was not opened")
            case HeadersFrame() | ContinuationFrame():
                self._block += frame.data
                self._ends = self._ends or "END_STREAM" in frame.flags
                if "END_HEADERS" in frame.flags:
                    self._blocks, self._block = (*self._blocks, self._block), b""
                    return self._head(_decoded(self._blocks))
            case DataFrame():
                self._message += frame.data
                if "END_STREAM" in frame.flags:
                    raise _Refused("no grpc-status in the answer")
            case SettingsFrame() if "ACK" not in frame.flags:
                self.unsent += _SETTINGS_ACK
            case PingFrame() if "ACK" not in frame.flags:
                self.unsent += PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize()
            case RstStreamFrame():
                raise _Refused(f"stream reset: {_name(_ERRORS, frame.error_code)}")
            case GoAwayFrame() if frame.error_code or frame.last_stream_id < _STREAM:
                raise _Refused(f"GOAWAY: {_name(_ERRORS, frame.error_code)}")
            case _:
                pass
        return None

    def _head(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Handle a complete header block: the head of the answer, its trailers, or both in one."""
        if not self._answered:
            status = headers.get(b":status", b"")
            if status.startswith(b"1") and not self._ends:
                return None
            if status != b"200":
                number = status.decode() if len(status) == 3 and status.isdigit() else "unknown"
                raise _Refused(f"status {number}")
            if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
                raise _Refused("not a gRPC answer: its content-type is another")
            self._answered = True
        return self._result(headers.get(b"grpc-status")) if self._ends else None

    def _result(self, code: bytes | None) -> str:
        """The outcome of a call that is complete."""
        if code is None:
            raise _Refused("no grpc-status in the answer")
        if code != b"0":
            name = _name(_CODES, int(code)) if code.isdigit() and len(code) < 4 else "an unknown status"
            raise _Refused(": ".join(filter(None, (name, _MEANINGS.get(name)))))
        if self._message == _SERVED:
            return ""
        if self._message[:5] != b"\0" + (len(self._message) - 5).to_bytes(4, "big", signed=True):
            raise _Refused("a broken message")
        try:
            states = [value for number, value in fields(self._message[5:]) if number == 1 and isinstance(value, int)]
        except ProtobufError:
            raise _Refused("a broken message") from None
        name = _name(_SERVING, states[-1] if states else 0)
        return "" if name == "SERVING" else name


@lru_cache(_CACHED)
def _decoded(blocks: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
    """The headers of the last block; a block may refer to the headers of earlier ones."""
    decoder, headers = Decoder(), dict[bytes, bytes]()
    for block in blocks:
        headers = dict(decoder.decode(block, raw=True))
    return headers


def _check_start(received: bytes) -> None:
    """Recognise a server that speaks another protocol."""
    if received.startswith(b"HTTP/1"):
        raise _Refused("an HTTP/1 server, not HTTP/2")
    if received[3:4] not in (b"", _SETTINGS):
        raise _Refused("not an HTTP/2 answer")


def _name(names: Sequence[str], number: int) -> str:
    """The name of a number from the server."""
    return names[number] if number < len(names) else f"code {number}"
