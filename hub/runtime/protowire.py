"""Protobuf's wire format: what :mod:`hub.kube.protobuf` and gRPC health checks have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final


class ProtobufError(ValueError):
    """Bytes that do not decode as the expected message."""


def varint(value: int) -> bytes:
    """A number of at least 0."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, value: bytes) -> bytes:
    """A length-delimited field: string, bytes or message."""
    size = len(value)
    if size < 0x80 and number < 16:  # nearly all fields
        return _SHORT_FIELD_HEADS[number][size] + value
    return varint(number << 3 | 2) + varint(len(value)) + value


_SHORT_FIELD_HEADS: Final = [[bytes((number << 3 | 2, size)) for size in range(0x80)] for number in range(16)]
"""The encoded key and length of every short field, by field number and size."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Iterate over the fields of a message: their numbers and values (an int, or the bytes of a string or message).

    Raises:
        ProtobufError: the message ends early or has a wire type other than varint and length-delimited.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _read_varint(data, at)
        match key & 7:
            case 0:
                value, at = _read_varint(data, at)
                yield key >> 3, value
            case 2:
                size, at = _read_varint(data, at)
                if at + size > end:
                    raise ProtobufError("a field that ends outside its message")
                yield key >> 3, data[at : at + size]
                at += size
            case _:
                raise ProtobufError("an unexpected wire type")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``at``, and the position after it.

    Raises:
        ProtobufError: the number does not end or is longer than 64 bits.
    """
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ProtobufError("a number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
