"""The protobuf encoding of slices and the decoding of answers; integration tests use a real API server."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.kube import protobuf
from hub.kube.protobuf import CACHED_ENDPOINTS, CACHED_LISTS, CACHED_VALUE_LENGTH, MAGIC, ProtobufError, SliceEncoder
from hub.model import PUBLISHED, Endpoint, Slice
from tests.support import build


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """A protobuf message of these fields."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def varint(value: int) -> bytes:
    """The protobuf encoding of a number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def test_identity_is_read_past_everything_else() -> None:
    """The uid and resourceVersion of an object are found among its other fields."""
    meta = message((1, b"name"), (5, b"uid-1"), (6, b"4711"), (11, b"labels"))
    body = MAGIC + message((1, b"type"), (2, message((1, meta), (2, b"endpoint"))))
    assert protobuf.identity(body) == ("uid-1", "4711")


def test_status_is_read_with_its_causes() -> None:
    """Message, reason, code, causes and Retry-After of a Status are decoded."""
    cause = message((1, b"FieldValueInvalid"), (2, b"must be valid"), (3, b"endpoints[3].addresses[0]"))
    details = message((1, b"x"), (4, cause), (5, 7))
    body = MAGIC + message((2, message((2, b"Failure"), (3, b"no"), (4, b"Invalid"), (5, details), (6, 422))))
    assert protobuf.status(body) == ("no", "Invalid", 422, 7, (("endpoints[3].addresses[0]", "must be valid"),))


def test_an_endpoint_is_encoded_once_however_many_slices_hold_it() -> None:
    """The encoding of an endpoint is cached and reused for other slices."""
    shared = Endpoint(("10.0.0.1",), PUBLISHED)
    encoder = SliceEncoder()
    one = encoder.encode(Slice("edge", "a", "IPv4", (shared,)))
    other = encoder.encode(Slice("edge", "b", "IPv4", (shared,)))
    assert one.replace(b"\x0a\x01a", b"\x0a\x01b") == other
    assert len(encoder._encoded) == 1


def test_a_content_is_put_together_once_however_many_slices_hold_it() -> None:
    """The encoding of a tuple of endpoints is cached, for a limited number of tuples."""
    encoder = SliceEncoder()
    content = tuple(Endpoint((build.address(number),), PUBLISHED) for number in range(100))
    one = encoder.encode(Slice("edge", "a", "IPv4", content))
    ((_, known),) = encoder._contents.values()
    assert encoder.encode(Slice("edge", "b", "IPv4", content)) == one.replace(b"\x0a\x01a", b"\x0a\x01b")
    assert [encoded for _, encoded in encoder._contents.values()] == [known]
    for number in range(3 * CACHED_LISTS):
        encoder.encode(Slice("edge", "a", "IPv4", (Endpoint((build.address(number),), PUBLISHED),)))
        assert len(encoder._contents) <= CACHED_LISTS


def test_long_values_are_encoded_and_not_remembered() -> None:
    """Long annotation values are not cached, since they may change all the time."""
    remembered = protobuf._known_entry.cache_info().currsize
    for number in range(10):
        text = f"{number}" * (CACHED_VALUE_LENGTH + 1)
        assert text.encode() in SliceEncoder().encode(Slice("edge", "a", "IPv4", annotations={"theirs": text}))
    assert protobuf._known_entry.cache_info().currsize == remembered


def test_a_bounded_number_of_endpoints_is_remembered() -> None:
    """The cache of endpoints has a limit, even if nodes are replaced again and again."""
    encoder = SliceEncoder()
    for number in range(3 * CACHED_ENDPOINTS):
        encoder.encode(Slice("edge", "a", "IPv4", (Endpoint((build.address(number),), PUBLISHED),)))
    assert len(encoder._encoded) <= 2 * CACHED_ENDPOINTS


def test_an_endpoint_that_cannot_be_encoded_hurts_no_other_slice() -> None:
    """An endpoint that cannot be encoded fails only its own slice, and is not cached."""
    encoder = SliceEncoder()
    bad = Endpoint(("10.0.0.1",), PUBLISHED, hostname="\ud800")
    with pytest.raises(UnicodeEncodeError):
        encoder.encode(Slice("edge", "a", "IPv4", (bad,)))
    for number in range(200):
        encoder.encode(Slice("edge", "b", "IPv4", (Endpoint((build.address(number),), PUBLISHED),)))


def test_long_fields_have_long_lengths() -> None:
    """Fields of more than 127 bytes have a length of two bytes or more."""
    name = "n" * 200
    assert b"\x0a" + varint(200) + name.encode() in SliceEncoder().encode(Slice("edge", name, "IPv4"))


@pytest.mark.parametrize(
    "body", [b"", b"{}", MAGIC + b"\x12", MAGIC + b"\x12\x05ab", MAGIC + b"\x0d1234", MAGIC + b"\xff" * 12]
)
def test_invalid_protobuf_is_refused(body: bytes) -> None:
    """Truncated bytes, other encodings and unused wire types are refused."""
    with pytest.raises(ProtobufError):
        protobuf.status(body)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    """Any bytes give a ProtobufError or text, never another error."""
    for read in (protobuf.identity, protobuf.status):
        with suppress(ProtobufError, UnicodeDecodeError):
            read(MAGIC + data)
