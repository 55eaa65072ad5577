"""Encodes EndpointSlices in the API's protobuf, since writes are the hub's hot path.

Writing a slice of 100 endpoints takes about a third of the CPU that JSON takes, in the API server and in the hub. An
endpoint is encoded once for all slices that contain it. Of answers, only the identity of an object (uid,
resourceVersion) and the ``Status`` of an error are decoded.

Source of the field numbers: generated.proto of k8s.io/api/discovery/v1, core/v1 and
k8s.io/apimachinery (meta/v1, runtime: ``Unknown``), stable by Kubernetes' API guarantees.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final, NamedTuple

from hub.model import Conditions, Endpoint, OwnerReference, Port, Slice
from hub.runtime.recent import Recent

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAGIC: Final = b"k8s\x00"
CACHED_PARTS: Final = 1024
"""Entries in each of the caches of labels, owners and ports, which are the same in most slices of a hub."""
CACHED_VALUE_LENGTH: Final = 128
"""The longest cached label or annotation value, in characters: annotations of other writers may be long and unique."""
CACHED_ENDPOINTS: Final = 10_000
"""The number of endpoints whose encoding is cached: as many as the largest tested cluster has."""
CACHED_LISTS: Final = 64
"""Entries in the cache of encoded endpoint lists. It can be small, since the Services of one cluster are written one
after the other and share their lists."""


class ProtobufError(ValueError):
    """Bytes that do not decode as the expected message."""


# --- writing -----------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, value: bytes) -> bytes:
    """A length-delimited field: string, bytes or message."""
    size = len(value)
    if size < 0x80 and number < 16:  # nearly all fields
        return _SHORT_FIELD_HEADS[number][size] + value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


_SHORT_FIELD_HEADS: Final = [[bytes((number << 3 | 2, size)) for size in range(0x80)] for number in range(16)]
"""The encoded key and length of every short field, by field number and size."""


def _text(number: int, value: str | None) -> bytes:
    """A string field; absent for "" and None."""
    return _bytes(number, value.encode()) if value else b""


_KIND: Final = _bytes(1, _text(1, "discovery.k8s.io/v1") + _text(2, "EndpointSlice"))
"""The ``TypeMeta`` of an EndpointSlice, as the first field of an ``Unknown``."""


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bool(number: int, value: bool | None) -> bytes:
    """An optional bool: absent for None, present for False."""
    return b"" if value is None else _int(number, int(value))


def _map(number: int, values: dict[str, str]) -> bytes:
    entries = [
        (_known_entry if len(value) <= CACHED_VALUE_LENGTH else _entry)(number, key, value)
        for key, value in sorted(values.items())
    ]
    return b"".join(entries)


def _entry(number: int, key: str, value: str) -> bytes:
    return _bytes(number, _bytes(1, key.encode()) + _bytes(2, value.encode()))


_known_entry: Final = lru_cache(CACHED_PARTS)(_entry)


@lru_cache(CACHED_PARTS)
def _owner(owner: OwnerReference) -> bytes:
    return _bytes(
        13,
        _text(1, owner.kind)
        + _text(3, owner.name)
        + _text(4, owner.uid)
        + _text(5, owner.api_version)
        + _bool(6, owner.controller)
        + _bool(7, owner.block_owner_deletion),
    )


@cache
def _conditions(conditions: Conditions) -> bytes:
    return _bytes(2, _bool(1, conditions.ready) + _bool(2, conditions.serving) + _bool(3, conditions.terminating))


def _endpoint(endpoint: Endpoint) -> bytes:
    reference, hints = endpoint.target_ref, endpoint.hints
    parts = [_bytes(1, address.encode()) for address in endpoint.addresses]
    parts.append(_conditions(endpoint.conditions))
    parts.append(_text(3, endpoint.hostname))
    if reference is not None:
        parts.append(
            _bytes(
                4,
                _text(1, reference.kind)
                + _text(2, reference.namespace)
                + _text(3, reference.name)
                + _text(4, reference.uid),
            )
        )
    parts.append(_text(6, endpoint.node_name))
    parts.append(_text(7, endpoint.zone))
    if hints is not None:
        zones = b"".join([_bytes(1, _text(1, zone.name)) for zone in hints.for_zones])
        nodes = b"".join([_bytes(2, _text(1, node.name)) for node in hints.for_nodes])
        parts.append(_bytes(8, zones + nodes))
    return _bytes(2, b"".join(parts))


@lru_cache(CACHED_PARTS)
def _port(port: Port) -> bytes:
    number = b"" if port.port is None else _int(3, port.port)
    return _bytes(3, _bytes(1, port.name.encode()) + _text(2, port.protocol) + number + _text(4, port.app_protocol))


class SliceEncoder:
    """Encodes slices. Endpoints and tuples of endpoints that are the same Python object are encoded once."""

    def __init__(self) -> None:
        self._encoded: Recent[int, tuple[Endpoint, bytes]] = Recent(CACHED_ENDPOINTS)
        """The encoding of endpoints, by ``id``. An id stays unique because the entry keeps its endpoint alive."""
        self._contents: dict[int, tuple[tuple[Endpoint, ...], bytes]] = {}
        """The encoding of whole tuples of endpoints, in the same way."""

    def encode(self, value: Slice) -> bytes:
        """The body of a POST (no resourceVersion) or PUT; a PUT ends the tracking of managedFields (docs/adr/0016)."""
        meta = b"".join(
            (
                _text(1, value.name),
                _text(3, value.namespace),
                _text(5, value.uid),
                _text(6, value.resource_version),
                _map(11, value.labels),
                _map(12, value.annotations),
                *map(_owner, value.owners),
                _bytes(17, b"") if value.resource_version else b"",
            )
        )
        raw = b"".join(
            (_bytes(1, meta), self._content(value.endpoints), *map(_port, value.ports), _text(4, value.address_type))
        )
        return MAGIC + _KIND + _bytes(2, raw)

    def _content(self, endpoints: tuple[Endpoint, ...]) -> bytes:
        known = self._contents.get(id(endpoints))
        if known is None:
            if len(self._contents) >= CACHED_LISTS:
                self._contents.clear()
            known = self._contents[id(endpoints)] = (endpoints, b"".join(map(self._known_endpoint, endpoints)))
        return known[1]

    def _known_endpoint(self, endpoint: Endpoint) -> bytes:
        known = self._encoded.get(id(endpoint))
        if known is None:
            known = self._encoded.put(id(endpoint), (endpoint, _endpoint(endpoint)))
        return known[1]


# --- reading -----------------------------------------------------------------------------------


class Identity(NamedTuple):
    """The identity of an object, and its version."""

    uid: str
    resource_version: str


class StatusParts(NamedTuple):
    """The parts of a ``Status`` that errors need."""

    message: str
    reason: str
    code: int
    retry_after: int | None
    causes: tuple[tuple[str, str], ...]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Iterate over the fields of a message: their numbers and values (an int, or the bytes of a string or message).

    Raises:
        ProtobufError: the message ends early or has a wire type that Kubernetes does not use.
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


def _first(data: bytes, number: int) -> bytes:
    """The first length-delimited field with that number; b"" if there is none."""
    for found, value in _fields(data):
        if found == number and isinstance(value, bytes):
            return value
    return b""


def _raw(body: bytes) -> bytes:
    """The bytes of the object in a body, which is wrapped in an ``Unknown``."""
    if not body.startswith(MAGIC):
        raise ProtobufError("not the API's protobuf")
    return _first(body[4:], 2)


def identity(body: bytes) -> Identity:
    """The uid and resourceVersion of an object of any kind.

    Raises:
        ProtobufError: the body is not an object in protobuf.
    """
    uid = version = ""
    for number, value in _fields(_first(_raw(body), 1)):
        if number == 5 and isinstance(value, bytes):
            uid = value.decode()
        elif number == 6 and isinstance(value, bytes):
            version = value.decode()
            break  # fields are in ascending order, so the uid came before
    return Identity(uid, version)


def status(body: bytes) -> StatusParts:
    """Decode a ``Status``.

    Raises:
        ProtobufError: the body is not an object in protobuf.
    """
    message = reason = ""
    code = 0
    retry_after: int | None = None
    causes: list[tuple[str, str]] = []
    for number, value in _fields(_raw(body)):
        if number == 6 and isinstance(value, int):
            code = value
        elif isinstance(value, bytes):
            if number == 3:
                message = value.decode(errors="replace")
            elif number == 4:
                reason = value.decode(errors="replace")
            elif number == 5:
                for inner, detail in _fields(value):
                    if inner == 4 and isinstance(detail, bytes):
                        causes.append(
                            (_first(detail, 3).decode(errors="replace"), _first(detail, 2).decode(errors="replace"))
                        )
                    elif inner == 5 and isinstance(detail, int):
                        retry_after = detail
    return StatusParts(message, reason, code, retry_after, tuple(causes))
