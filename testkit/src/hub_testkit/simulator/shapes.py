"""Types for metadata and EndpointSlice. Like the API server's, they refuse wrong types and drop unknown fields."""

from __future__ import annotations

from typing import Any

import msgspec

from hub_testkit.simulator.answers import Refusal


class _Metadata(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[dict[str, Any]] | None = None
    finalizers: list[str] | None = None
    managed_fields: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        for field in ("labels", "annotations", "owner_references", "finalizers", "managed_fields"):
            if not getattr(self, field):
                setattr(self, field, None)


class _Conditions(msgspec.Struct, omit_defaults=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Reference(msgspec.Struct, omit_defaults=True, rename="camel"):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class _Named(msgspec.Struct):
    name: str = ""


class _Hints(msgspec.Struct, omit_defaults=True, rename="camel"):
    for_zones: list[_Named] | None = None
    for_nodes: list[_Named] | None = None


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] | None = None
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)
    hostname: str | msgspec.UnsetType | None = msgspec.UNSET
    target_ref: _Reference | msgspec.UnsetType | None = msgspec.UNSET
    deprecated_topology: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    node_name: str | msgspec.UnsetType | None = msgspec.UNSET
    zone: str | msgspec.UnsetType | None = msgspec.UNSET
    hints: _Hints | msgspec.UnsetType | None = msgspec.UNSET

    def __post_init__(self) -> None:
        for field in ("hostname", "target_ref", "deprecated_topology", "node_name", "zone", "hints"):
            if getattr(self, field) is None:
                setattr(self, field, msgspec.UNSET)


class _Port(msgspec.Struct, rename="camel"):
    name: str | None = ""
    protocol: str | None = "TCP"
    port: int | msgspec.UnsetType | None = msgspec.UNSET
    app_protocol: str | msgspec.UnsetType | None = msgspec.UNSET

    def __post_init__(self) -> None:
        self.name = self.name or ""
        self.protocol = self.protocol or "TCP"
        for field in ("port", "app_protocol"):
            if getattr(self, field) is None:
                setattr(self, field, msgspec.UNSET)


class _Slice(msgspec.Struct, rename="camel"):
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None

    def __post_init__(self) -> None:
        # Go encodes an empty slice as null in these fields, which are never omitted.
        self.endpoints = self.endpoints or None
        self.ports = self.ports or None


def canonical_metadata(meta: object, kind: str) -> dict[str, Any]:
    """Returns metadata in wire order, without empty fields.

    Raises:
        Refusal: 400: a field has the wrong type.
    """
    return _canonical(meta, _Metadata, kind)


def canonical_slice(obj: object) -> dict[str, Any]:
    """Returns ``addressType``, ``endpoints`` and ``ports`` of an EndpointSlice, with defaults and in wire order.

    Raises:
        Refusal: 400: a field has the wrong type.
    """
    return _canonical(obj, _Slice, "EndpointSlice")


def _canonical(obj: object, shape: type[msgspec.Struct], kind: str) -> dict[str, Any]:
    try:
        wire = msgspec.convert(obj, shape)
    except msgspec.ValidationError as error:
        raise Refusal(400, f'{kind} in version "v1" cannot be handled as a {kind}: json: {error}') from error
    result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(wire))
    return result
