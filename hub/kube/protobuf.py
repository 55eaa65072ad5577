"""Encodes EndpointSlices in the API's protobuf, since writes are the hub's hot path.

Writing a slice of 100 endpoints takes about a third of the CPU that JSON takes, in the API server and in the hub. An
endpoint is encoded once for all slices that contain it. Of answers, only the identity of an object (uid,
resourceVersion) and the ``Status`` of an error are decoded.

Source of the field numbers: generated.proto of k8s.io/api/discovery/v1, core/v1 and
k8s.io/apimachinery (meta/v1, runtime: ``Unknown``), stable by Kubernetes' API guarantees.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final, NamedTuple

from hub.model import Conditions, Endpoint, OwnerReference, Port, Slice
from hub.runtime.protowire import ProtobufError, bytes_field, fields, varint
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


# --- writing -----------------------------------------------------------------------------------


def _text(number: int, value: str | None) -> bytes:
    """A string field; absent for "" and None."""
    return bytes_field(number, value.encode()) if value else b""


_KIND: Final = bytes_field(1, _text(1, "discovery.k8s.io/v1") + _text(2, "EndpointSlice"))
"""The ``TypeMeta`` of an EndpointSlice, as the first field of an ``Unknown``."""


def _int(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


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
    return bytes_field(number, bytes_field(1, key.encode()) + bytes_field(2, value.encode()))


_known_entry: Final = lru_cache(CACHED_PARTS)(_entry)


@lru_cache(CACHED_PARTS)
def _owner(owner: OwnerReference) -> bytes:
    return bytes_field(
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
    return bytes_field(2, _bool(1, conditions.ready) + _bool(2, conditions.serving) + _bool(3, conditions.terminating))


def _endpoint(endpoint: Endpoint) -> bytes:
    reference, hints = endpoint.target_ref, endpoint.hints
    parts = [bytes_field(1, address.encode()) for address in endpoint.addresses]
    parts.append(_conditions(endpoint.conditions))
    parts.append(_text(3, endpoint.hostname))
    if reference is not None:
        parts.append(
            bytes_field(
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
        zones = b"".join([bytes_field(1, _text(1, zone.name)) for zone in hints.for_zones])
        nodes = b"".join([bytes_field(2, _text(1, node.name)) for node in hints.for_nodes])
        parts.append(bytes_field(8, zones + nodes))
    return bytes_field(2, b"".join(parts))


@lru_cache(CACHED_PARTS)
def _port(port: Port) -> bytes:
    number = b"" if port.port is None else _int(3, port.port)
    return bytes_field(
        3, bytes_field(1, port.name.encode()) + _text(2, port.protocol) + number + _text(4, port.app_protocol)
    )


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
                bytes_field(17, b"") if value.resource_version else b"",
            )
        )
        raw = b"".join(
            (
                bytes_field(1, meta),
                self._content(value.endpoints),
                *map(_port, value.ports),
                _text(4, value.address_type),
            )
        )
        return MAGIC + _KIND + bytes_field(2, raw)

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


def _first(data: bytes, number: int) -> bytes:
    """The first length-delimited field with that number; b"" if there is none."""
    for found, value in fields(data):
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
    for number, value in fields(_first(_raw(body), 1)):
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
    for number, value in fields(_raw(body)):
        if number == 6 and isinstance(value, int):
            code = value
        elif isinstance(value, bytes):
            if number == 3:
                message = value.decode(errors="replace")
            elif number == 4:
                reason = value.decode(errors="replace")
            elif number == 5:
                for inner, detail in fields(value):
                    if inner == 4 and isinstance(detail, bytes):
                        causes.append(
                            (_first(detail, 3).decode(errors="replace"), _first(detail, 2).decode(errors="replace"))
                        )
                    elif inner == 5 and isinstance(detail, int):
                        retry_after = detail
    return StatusParts(message, reason, code, retry_after, tuple(causes))
