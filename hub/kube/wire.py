"""Decodes the API's JSON into the small values of hub.model, and encodes EndpointSlices as JSON.

The msgspec structs declare only the fields in use; the decoder skips all others (8 µs for a Node of 12 KB). Label keys
and values are interned, since a fleet repeats the same few hundred strings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import intern
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from hub.errors import BadAnswer
from hub.kube import protobuf
from hub.kube.client import Status
from hub.model import (
    ConfigMap,
    Endpoint,
    Node,
    NodeAddress,
    ObjectKey,
    OwnerReference,
    Port,
    Service,
    ServicePort,
    Slice,
    Taint,
)

T = TypeVar("T")
K = TypeVar("K")

Page = tuple[dict[Any, T], str, str]
"""One page of a list: the objects by key, the resourceVersion of the list, and the continue token ("" = last page)."""
KindOfPage = tuple[str, dict[Any, T], str, str]
"""A page before its kind was checked: the kind of the list, then the items of ``Page``."""

UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""The errors that the decoder raises: its own, for invalid UTF-8, and for nesting that is too deep."""


def fault(error: Exception) -> str:
    """What an error of ``UNDECODABLE`` says about a body, without the decoder's own words and the body's values."""
    if isinstance(error, msgspec.ValidationError):
        _, _, place = str(error).partition(" - at `$")
        where = f" at {place.strip('.`')}" if place else ""
        return f"a field is missing or has another type{where}"
    if isinstance(error, msgspec.DecodeError):
        return "it is not JSON"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


class Resource(NamedTuple, Generic[T]):
    """How to list, watch and decode the objects of one kind.

    Attributes:
        path: the path of the collection, such as ``/api/v1/nodes``.
        name: the plural name, for messages, such as ``nodes``.
        list_page: decodes the body of a page of a list: (objects by key, resourceVersion, continue token).
        event: decodes a line of a watch.
        rule: the RBAC rule that is missing after a 403, for messages.
        peek: decodes only (key, resourceVersion) of a line of a watch; None for kinds where that would not pay off.
    """

    path: str
    name: str
    list_page: Callable[[bytes], Page[T]]
    event: Callable[[bytes], Event]
    rule: str
    peek: Callable[[bytes], tuple[Any, str]] | None = None


class Event(NamedTuple):
    """A decoded line of a watch. ``object`` is None for BOOKMARK, ERROR (see ``status``), and if it does not decode."""

    type: str
    key: Any
    object: Any
    resource_version: str
    status: Status | None = None


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    """None in bookmarks, where Kubernetes up to 1.33 sends null."""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _AnyEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _MetaOnly(msgspec.Struct):
    metadata: _Meta


class _RawList(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None
    kind: str = ""


class _EventMeta(msgspec.Struct):
    object: _MetaOnly


_decode_event_meta = msgspec.json.Decoder(_EventMeta).decode
_decode_any_event = msgspec.json.Decoder(_AnyEvent).decode
_decode_meta_only = msgspec.json.Decoder(_MetaOnly).decode
_decode_raw_list = msgspec.json.Decoder(_RawList).decode
_decode_status = msgspec.json.Decoder(Status).decode


def _shared(strings: dict[str, str] | None) -> dict[str, str]:
    if not strings:
        return {}
    return {intern(key): intern(value) for key, value in strings.items()}


# --- Node --------------------------------------------------------------------------------------


class _NodeSpec(msgspec.Struct, gc=False):
    provider_id: str = msgspec.field(name="providerID", default="")
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class _NodeCondition(msgspec.Struct, rename="camel", gc=False):
    type: str = ""
    status: str = "Unknown"
    last_transition_time: str | None = None


class _NodeInfo(msgspec.Struct, gc=False):
    system_uuid: str = msgspec.field(name="systemUUID", default="")


class _NodeStatus(msgspec.Struct, rename="camel", gc=False):
    addresses: tuple[NodeAddress, ...] | None = None
    conditions: list[_NodeCondition] | None = None
    node_info: _NodeInfo | None = None


class _WireNode(msgspec.Struct, gc=False):
    metadata: _Meta
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


def _node(wire: _WireNode) -> Node:
    meta, spec, status = wire.metadata, wire.spec or _NodeSpec(), wire.status or _NodeStatus()
    ready, since = "Unknown", ""
    for condition in status.conditions or ():
        if condition.type == "Ready":
            ready, since = intern(condition.status), condition.last_transition_time or ""
            break
    return Node(
        meta.name,
        ready,
        since,
        intern(meta.creation_timestamp or ""),
        {intern(key): meta.name if value == meta.name else intern(value) for key, value in (meta.labels or {}).items()},
        tuple([NodeAddress(intern(a.type), a.address) for a in status.addresses or ()]),
        spec.provider_id,
        status.node_info.system_uuid if status.node_info else "",
        spec.unschedulable,
        meta.deletion_timestamp is not None,
        spec.taints or (),
    )


# --- EndpointSlice -----------------------------------------------------------------------------


class _WireSlice(msgspec.Struct, rename="camel"):
    metadata: _Meta
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None


def _slice(wire: _WireSlice) -> Slice:
    meta = wire.metadata
    return Slice(
        meta.namespace,
        meta.name,
        wire.address_type,
        wire.endpoints or (),
        wire.ports or (),
        _shared(meta.labels),
        _shared(meta.annotations),
        meta.owner_references or (),
        meta.uid,
        meta.resource_version,
        meta.deletion_timestamp is not None,
    )


class _OutMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str
    namespace: str
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    managed_fields: tuple[dict[str, str], ...] = ()


class _OutSlice(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    metadata: _OutMeta
    address_type: str
    endpoints: tuple[Endpoint, ...]
    ports: tuple[Port, ...]


_encode = msgspec.json.Encoder().encode


def encode_slice(value: Slice) -> bytes:
    """The JSON body of a POST (no resourceVersion) or PUT; a PUT ends the tracking of managedFields (docs/adr/0016)."""
    return _encode(
        _OutSlice(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            _OutMeta(
                value.name,
                value.namespace,
                value.uid,
                value.resource_version,
                value.labels,
                value.annotations,
                value.owners,
                ({},) if value.resource_version else (),
            ),
            value.address_type,
            value.endpoints,
            value.ports,
        )
    )


# --- Service -----------------------------------------------------------------------------------


class _WireServicePort(msgspec.Struct, rename="camel", gc=False):
    port: int
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    target_port: int | str | None = None
    node_port: int | None = None


class _WireServiceSpec(msgspec.Struct, rename="camel", gc=False):
    type: str = "ClusterIP"
    selector: dict[str, str] | None = None
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    cluster_ips: tuple[str, ...] | None = msgspec.field(name="clusterIPs", default=None)
    ip_families: tuple[str, ...] | None = None
    publish_not_ready_addresses: bool = False
    ports: tuple[_WireServicePort, ...] | None = None
    health_check_node_port: int | None = None
    external_traffic_policy: str = ""
    internal_traffic_policy: str | None = None


class _WireService(msgspec.Struct):
    metadata: _Meta
    spec: _WireServiceSpec | None = None


def _service(wire: _WireService) -> Service:
    meta, spec = wire.metadata, wire.spec or _WireServiceSpec()
    return Service(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        kind=spec.type,
        selector=bool(spec.selector),
        headless=spec.cluster_ip == "None",
        publish_not_ready=spec.publish_not_ready_addresses,
        families=spec.ip_families or ("IPv4",),
        cluster_ips=tuple(ip for ip in spec.cluster_ips or () if ip != "None"),
        ports=tuple(
            ServicePort(p.port, p.name, p.protocol, p.app_protocol, p.target_port, p.node_port)
            for p in spec.ports or ()
        ),
        labels=_shared(meta.labels),
        annotations=dict(meta.annotations or {}),
        health_check_node_port=spec.health_check_node_port,
        deleting=meta.deletion_timestamp is not None,
        resource_version=meta.resource_version,
        local_policies=_local_policies(spec),
    )


def _local_policies(spec: _WireServiceSpec) -> tuple[str, ...]:
    policies = {
        "externalTrafficPolicy": spec.external_traffic_policy,
        "internalTrafficPolicy": spec.internal_traffic_policy,
    }
    return tuple(name for name, policy in policies.items() if policy == "Local")


# --- ConfigMap ---------------------------------------------------------------------------------


class _WireConfigMap(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


def _config_map(wire: _WireConfigMap) -> ConfigMap:
    return ConfigMap(wire.metadata.namespace, wire.metadata.name, wire.data or {})


# --- Secret ------------------------------------------------------------------------------------


class SecretData(msgspec.Struct, frozen=True):
    """The version and data of a Secret. ``repr`` leaves the data out. ``data`` is base64, as in the API; read-only."""

    version: str
    data: dict[str, str]

    def __repr__(self) -> str:
        return f"SecretData({self.version})"


class _WireSecret(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


def _secret(wire: _WireSecret) -> SecretData:
    return SecretData(wire.metadata.resource_version, wire.data or {})


# --- resources ---------------------------------------------------------------------------------


def _namespaced(meta: _Meta) -> ObjectKey:
    return ObjectKey(meta.namespace, meta.name)


def named(meta: _Meta) -> str:
    """The key of an object without a namespace."""
    return meta.name


def resource(
    path: str,
    kind: str,
    wire: type[Any],
    reduce: Callable[[Any], T],
    key: Callable[[_Meta], Any],
    rule: str,
    peek: Callable[[bytes], tuple[Any, str]] | None = None,
) -> Resource[T]:
    """How to list, watch and decode one kind.

    Args:
        path: the path of the collection.
        kind: the kind of its objects.
        wire: the struct to decode; it has ``metadata``.
        reduce: turns a decoded struct into the value that is kept.
        key: the key of an object.
        rule: the RBAC rule for messages.
        peek: see :class:`Resource`.
    """
    name, list_kind = path.rpartition("/")[2], f"{kind}List"
    kinds = msgspec.defstruct(
        "List",
        [("items", list[wire] | None), ("metadata", _ListMeta), ("kind", str, "")],  # type: ignore[valid-type]
    )
    events = msgspec.defstruct("Event", [("type", str), ("object", wire)], gc=False)
    decode_list: Callable[[bytes], Any] = msgspec.json.Decoder(kinds).decode
    decode_event: Callable[[bytes], Any] = msgspec.json.Decoder(events).decode

    def read(body: bytes) -> KindOfPage[T]:
        page = decode_list(body)
        items = page.items or () if page.kind == list_kind else ()
        objects = {key(item.metadata): reduce(item) for item in items}
        return page.kind, objects, page.metadata.resource_version, page.metadata.continue_

    def event(line: bytes) -> Event:
        try:
            decoded = decode_event(line)
            kind = decoded.type
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                meta = decoded.object.metadata
                return Event(kind, key(meta), reduce(decoded.object), meta.resource_version)
        except UNDECODABLE:
            pass
        return _odd_event(line, key)

    list_page = partial(_list_page, path, list_kind, read)
    return Resource(path, name, list_page, event, rule, peek)


def _list_page(path: str, kind: str, read: Callable[[bytes], KindOfPage[T]], body: bytes) -> Page[T]:
    """Decode a page of a list.

    Raises:
        BadAnswer: the page does not decode, has another kind or lacks a resourceVersion.
    """
    try:
        found, objects, version, token = read(body)
    except UNDECODABLE as error:
        name = path.rpartition("/")[2]
        raise BadAnswer(200, "", f"a list of {name} that does not decode ({fault(error)})", what=path) from error
    if found != kind:
        raise BadAnswer(200, "", f"{found or 'something without a kind'} instead of a {kind}", what=path)
    if not version:
        raise BadAnswer(200, "", f"a {kind} without a resourceVersion", what=path)
    return objects, version, token


def _odd_event(line: bytes, key: Callable[[_Meta], Any]) -> Event:
    """Decode a bookmark, an error, or an event whose object does not decode.

    Raises:
        BadAnswer: the line is not a watch event at all.
    """
    try:
        decoded = _decode_any_event(line)
        if decoded.type == "ERROR":
            return Event("ERROR", None, None, "", _decode_status(decoded.object))
        meta = _decode_meta_only(decoded.object).metadata
    except UNDECODABLE as error:
        raise BadAnswer(200, "", "a line of a watch that is not an event in JSON") from error
    return Event(decoded.type, key(meta), None, meta.resource_version)


NODES: Resource[Node] = resource("/api/v1/nodes", "Node", _WireNode, _node, named, "nodes: get, list, watch")


def _controlled_node(wire: _WireNode) -> Node:
    """As :func:`_node`, with the fields that a cloud controller needs."""
    provided = (wire.metadata.annotations or {}).get("alpha.kubernetes.io/provided-node-ip", "")
    return msgspec.structs.replace(_node(wire), uid=wire.metadata.uid, provided_ips=provided)


_decode_node = msgspec.json.Decoder(_WireNode).decode


def controlled_node(body: bytes) -> tuple[Node, str]:
    """One Node with the fields that a cloud controller needs, and its resourceVersion.

    Raises:
        BadAnswer: the body is not a Node.
    """
    try:
        wire = _decode_node(body)
    except UNDECODABLE as error:
        raise BadAnswer(200, "", "the answer is not a Node in JSON") from error
    return _controlled_node(wire), wire.metadata.resource_version


CONTROLLED_NODES: Resource[Node] = resource(NODES.path, "Node", _WireNode, _controlled_node, named, NODES.rule)
"""As ``NODES``, for a cluster whose cloud controller is this hub."""


def _peek_slice(line: bytes) -> tuple[ObjectKey, str]:
    """The key and resourceVersion of a slice in a watch event; empty ones if the line does not decode.

    Most events on the hub's slices are echoes of its own writes. Recognizing them takes 8 µs, decoding them 60.
    """
    try:
        meta = _decode_event_meta(line).object.metadata
    except UNDECODABLE:
        return ObjectKey("", ""), ""
    return _namespaced(meta), meta.resource_version


SLICE_LIST = "EndpointSliceList"
SLICES: Resource[Slice] = resource(
    "/apis/discovery.k8s.io/v1/endpointslices",
    "EndpointSlice",
    _WireSlice,
    _slice,
    _namespaced,
    "endpointslices.discovery.k8s.io: get, list, watch, create, update, delete",
    _peek_slice,
)
SERVICES: Resource[Service] = resource(
    "/api/v1/services", "Service", _WireService, _service, _namespaced, "services: get, list, watch"
)

CONFIG_MAPS: Resource[ConfigMap] = resource(
    "/api/v1/configmaps", "ConfigMap", _WireConfigMap, _config_map, _namespaced, "configmaps: get, list, watch"
)

SECRETS: Resource[SecretData] = resource(
    "/api/v1/secrets", "Secret", _WireSecret, _secret, _namespaced, "secrets: get, list, watch"
)

_decode_slice = msgspec.json.Decoder(_WireSlice).decode
_decode_config_map = msgspec.json.Decoder(_WireConfigMap).decode
_decode_secret = msgspec.json.Decoder(_WireSecret).decode


def slices_reusing(known: Callable[[ObjectKey, str, str], Slice | None]) -> Resource[Slice]:
    """:data:`SLICES` for a caller that already has most slices: only new and changed slices of a list are decoded.

    Decoding all slices again, in addition to those in the store, would be the hub's largest use of memory.

    Args:
        known: returns the caller's slice if it can be used instead of decoding it, else None. The arguments are the
            key, the resourceVersion of the slice and that of the list.
    """

    def read(body: bytes) -> KindOfPage[Slice]:
        page = _decode_raw_list(body)
        version = page.metadata.resource_version
        objects: dict[Any, Slice] = {}
        for raw in page.items or () if page.kind == SLICE_LIST else ():
            meta = _decode_meta_only(raw).metadata
            key = _namespaced(meta)
            objects[key] = known(key, meta.resource_version, version) or _slice(_decode_slice(raw))
        return page.kind, objects, version, page.metadata.continue_

    return SLICES._replace(list_page=partial(_list_page, SLICES.path, SLICE_LIST, read))


def decode_identity(body: bytes) -> protobuf.Identity:
    """The uid and resourceVersion of the object in an answer, in JSON or protobuf.

    Raises:
        BadAnswer: the answer does not decode or has no resourceVersion.
    """
    try:
        if body.startswith(protobuf.MAGIC):
            found = protobuf.identity(body)
        else:
            meta = _decode_meta_only(body).metadata
            found = protobuf.Identity(meta.uid, meta.resource_version)
    except UNDECODABLE as error:
        raise BadAnswer(200, "", f"an object that does not decode ({fault(error)})") from error
    if not found.resource_version:
        raise BadAnswer(200, "", "an object without a resourceVersion")
    return found


def decode_slice(body: bytes) -> Slice:
    """Decode one EndpointSlice, as returned by GET, POST and PUT.

    Raises:
        BadAnswer: the body does not decode.
    """
    try:
        return _slice(_decode_slice(body))
    except UNDECODABLE as error:
        raise BadAnswer(200, "", f"an EndpointSlice that does not decode ({fault(error)})") from error


def decode_config_map(body: bytes) -> ConfigMap:
    """Decode one ConfigMap, as returned by GET.

    Raises:
        BadAnswer: the body does not decode.
    """
    try:
        return _config_map(_decode_config_map(body))
    except UNDECODABLE as error:
        raise BadAnswer(200, "", f"a ConfigMap that does not decode ({fault(error)})") from error


def decode_secret(body: bytes) -> SecretData:
    """Decode one Secret, as returned by GET. The error does not quote the body.

    Raises:
        BadAnswer: the body does not decode.
    """
    try:
        return _secret(_decode_secret(body))
    except UNDECODABLE:
        raise BadAnswer(200, "", "a Secret that does not decode") from None
