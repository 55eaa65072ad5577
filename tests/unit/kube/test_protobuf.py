"""The protobuf encoding of slices and the decoding of answers; integration tests use a real API server."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.kube import protobuf
from hub.kube.protobuf import CACHED_ENDPOINTS, CACHED_LISTS, CACHED_VALUE_LENGTH, MAGIC, SliceEncoder
from hub.model import (
    PUBLISHED,
    Conditions,
    Endpoint,
    Hints,
    NamedHint,
    ObjectReference,
    OwnerReference,
    Port,
    Slice,
)
from hub.runtime.protowire import ProtobufError
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


def test_a_slice_is_encoded_field_by_field() -> None:
    """Every field has its number of generated.proto; absent values are left out, and false and empty ones are kept."""
    full = Endpoint(
        ("10.0.0.1", "10.0.0.2"),
        Conditions(ready=True, serving=False),
        hostname="h",
        node_name="n1",
        target_ref=ObjectReference("Pod", "p", "edge", "u-p"),
        zone="z",
        hints=Hints((NamedHint("z"),), (NamedHint("n1"),)),
    )
    bare = Endpoint(("10.0.0.3",), Conditions(terminating=True))
    ports = (Port("https", 443, "TCP", "h2"), Port("", None, "UDP"), Port("high", 65535))
    owners = (OwnerReference("v1", "Service", "web", "u-s", controller=True, block_owner_deletion=False),)
    value = Slice("edge", "web-1", "IPv6", (full, bare), ports, {"b": "2", "a": "1"}, {"note": ""}, owners, "u-1", "9")
    meta = message(
        (1, b"web-1"),
        (3, b"edge"),
        (5, b"u-1"),
        (6, b"9"),
        (11, message((1, b"a"), (2, b"1"))),
        (11, message((1, b"b"), (2, b"2"))),
        (12, message((1, b"note"), (2, b""))),
        (13, message((1, b"Service"), (3, b"web"), (4, b"u-s"), (5, b"v1"), (6, 1), (7, 0))),
        (17, b""),
    )
    endpoints = (
        message(
            (1, b"10.0.0.1"),
            (1, b"10.0.0.2"),
            (2, message((1, 1), (2, 0))),
            (3, b"h"),
            (4, message((1, b"Pod"), (2, b"edge"), (3, b"p"), (4, b"u-p"))),
            (6, b"n1"),
            (7, b"z"),
            (8, message((1, message((1, b"z"))), (2, message((1, b"n1"))))),
        ),
        message((1, b"10.0.0.3"), (2, message((3, 1)))),
    )
    encoded_ports = (
        message((1, b"https"), (2, b"TCP"), (3, 443), (4, b"h2")),
        message((1, b""), (2, b"UDP")),
        message((1, b"high"), (2, b"TCP"), (3, 65535)),
    )
    raw = message(
        (1, meta), *((2, endpoint) for endpoint in endpoints), *((3, port) for port in encoded_ports), (4, b"IPv6")
    )
    kind = message((1, b"discovery.k8s.io/v1"), (2, b"EndpointSlice"))
    assert SliceEncoder().encode(value) == MAGIC + message((1, kind), (2, raw))


@pytest.mark.parametrize("length", [0x7F, 0x80, 0x81, 0x3FFF, 0x4000, 0x4001])
def test_lengths_around_those_of_one_and_two_bytes_are_encoded(length: int) -> None:
    """A length below 128 has one byte, and one below 16384 two; seven bits of each byte count."""
    name = b"n" * length
    raw = message((1, message((1, name), (3, b"edge"))), (4, b"IPv4"))
    kind = message((1, b"discovery.k8s.io/v1"), (2, b"EndpointSlice"))
    assert SliceEncoder().encode(Slice("edge", name.decode(), "IPv4")) == MAGIC + message((1, kind), (2, raw))


def test_fields_of_another_type_or_number_are_skipped() -> None:
    """A field whose wire type is not the expected one does not count, nor do fields that errors do not need."""
    meta = message((5, 7), (6, 7), (5, b"u"), (6, b"9"), (5, b"later"))
    assert protobuf.identity(MAGIC + message((2, 7), (2, message((1, 7), (1, meta))))) == ("u", "9")
    details = message((4, 7), (5, b"x"), (3, b"a"))
    status = message((6, b"x"), (3, 7), (4, 7), (5, 7), (5, details), (7, b"x"))
    assert protobuf.status(MAGIC + message((2, status))) == ("", "", 0, None, ())


@pytest.mark.parametrize(
    ("number", "code"), [(b"\x7f", 127), (b"\x80\x01", 128), (b"\xff" * 9 + b"\x01", (1 << 64) - 1)]
)
def test_numbers_of_up_to_64_bits_are_read(number: bytes, code: int) -> None:
    """A number may have ten bytes, of which seven bits each count."""
    assert protobuf.status(MAGIC + message((2, b"\x30" + number))).code == code


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
    "body",
    [
        b"",
        b"{}",
        MAGIC + b"\x12",
        MAGIC + b"\x12\x05ab",
        MAGIC + b"\x12\x03ab",
        MAGIC + b"\x0d1234",
        MAGIC + b"\xff" * 12,
        MAGIC + message((2, b"\x30" + b"\x80" * 10 + b"\x01")),
    ],
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
