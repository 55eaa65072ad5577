"""Targets: answers of API servers (objects in JSON and protobuf, HTTP, lists and watches)."""

# ruff: noqa: PT017 - one check serves accepted and refused inputs

from __future__ import annotations

import asyncio
import json
import math
import random
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

import msgspec
from hub_testkit import make_node, make_service, make_slice
from msgspec import structs

from hub.decide import record
from hub.decide.endpoints import published_groups
from hub.decide.view import ViewBuilder
from hub.errors import ApiError, BadAnswer, ClusterUnreachable, HubError
from hub.kube import protobuf, wire
from hub.kube.client import Client, api_error
from hub.kube.http1 import PAUSE_ABOVE, ProtocolError
from hub.kube.protobuf import SliceEncoder
from hub.kube.reflector import Reflector, Store
from hub.model import Conditions, Endpoint, Found, Node, ObjectReference, Port, Service, Slice
from hub.observe.local.stores import SliceStore
from hub.observe.remote.nodes import NodeStore
from hub.registry.spec import NodePolicy
from tests.fuzz.checks import ACCEPTED, ALLOWED, CANARY, NOW, REFUSED, check_encodable, check_message, check_publishable
from tests.fuzz.mutate import as_json
from tests.support.virtual import LoopClock, VirtualLoop
from tests.unit.kube.test_http1 import Peer

# answers of an API server


def _list(kind: str, items: list[Any]) -> dict[str, Any]:
    meta = {"resourceVersion": "7", "continue": "token"}
    return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": meta, "items": items}


def _objects() -> Iterator[tuple[str, list[Any]]]:
    node = make_node("n1", "10.0.0.1", labels={"topology.kubernetes.io/zone": "a"}, provider_id="ionos://1")
    node["spec"]["taints"] = [{"key": "a", "effect": "NoSchedule", "value": None}]
    node["status"]["nodeInfo"] = {"systemUUID": "0b6a"}
    yield "Node", [node, make_node("n2", "fd00::2", ready=False)]
    service = make_service("edge", "payments", ports=[{"name": "https", "port": 443, "targetPort": "https"}])
    service["metadata"] |= {"labels": {"app": "x"}, "annotations": {"endpoint-copier/enabled": "true"}}
    yield "Service", [service]
    piece = make_slice("edge", "payments-1", "payments", ["10.0.0.1"], ports=[{"name": "https", "port": 443}])
    piece["metadata"]["annotations"] = {
        "endpointslice-hub/state": '{"v":1,"empty":1,"withheld":{"hash":"x","since":1}}'
    }
    piece["endpoints"][0] |= {"targetRef": {"kind": "Node", "name": "n1"}, "hints": {"forZones": [{"name": "a"}]}}
    yield "EndpointSlice", [piece]
    meta = {"name": "approvals", "namespace": "hub", "resourceVersion": "3", "uid": "u"}
    yield "ConfigMap", [{"metadata": meta, "data": {"a": "b"}}]
    yield "Secret", [{"metadata": meta, "data": {"token": b64encode(CANARY.encode()).decode(), "other": CANARY}}]


STATUS: Final = {
    "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "Invalid", "code": 422,
    "details": {"causes": [{"field": "endpoints[1].addresses", "message": "bad"}], "retryAfterSeconds": 3},
}  # fmt: skip
LISTS: Final = [_list(kind, items) for kind, items in _objects()]
SINGLE: Final = [item for _, items in _objects() for item in items]
EVENTS: Final = [
    *({"type": kind, "object": item} for item in SINGLE for kind in ("ADDED", "DELETED")),
    {"type": "BOOKMARK", "object": {"kind": "Node", "metadata": {"resourceVersion": "9"}}},
    {"type": "ERROR", "object": STATUS},
]
RESOURCES: Final = (wire.NODES, wire.SERVICES, wire.SLICES, wire.CONFIG_MAPS, wire.SECRETS)
WIRE: Final = [*LISTS, *EVENTS, *SINGLE, STATUS]


def answer(body: bytes) -> str:
    """A body that is accepted as an object can be used; any other body is a BadAnswer that quotes no secret."""
    outcome = REFUSED
    for resource in RESOURCES:
        with suppress(BadAnswer):
            objects, version, token = decoded(lambda resource=resource: resource.list_page(body))  # type: ignore[misc]
            assert version
            assert isinstance(token, str)
            for value in objects.values():
                check_usable(value)
            outcome = ACCEPTED
        with suppress(BadAnswer):
            event = decoded(lambda resource=resource: resource.event(body))  # type: ignore[misc]
            if event.object is not None:
                check_usable(event.object)
            if event.status is not None:
                check_error(event.status.code or 500, b"", event.status.message)
            outcome = ACCEPTED
        if resource.peek is not None:
            resource.peek(body)
    for decode in (wire.decode_slice, wire.decode_config_map, wire.decode_secret, wire.decode_identity):
        with suppress(BadAnswer):
            decoded(lambda decode=decode: decode(body))  # type: ignore[misc]
            outcome = ACCEPTED
    check_error(409, body, "Conflict")
    return outcome


def decoded(decode: Callable[[], Any]) -> Any:
    """Decode a body; if that fails, the error must be one line without the secret."""
    try:
        return decode()
    except BadAnswer as error:
        assert CANARY not in check_message(str(error))
        raise


def check_error(code: int, body: bytes, phrase: str) -> None:
    """An error response becomes a typed error with a message of limited length, whatever its body is."""
    error = api_error(code, body, "PUT /x", phrase=phrase)
    assert isinstance(error, ApiError)
    assert len(check_message(str(error))) < 500
    assert error.retry_after is None or math.isfinite(error.retry_after)


def check_usable(value: Any) -> None:
    """The next stages accept a decoded object, and their results can be encoded."""
    match value:
        case Node():
            views = ViewBuilder("eu", NodePolicy(), ALLOWED, 5_000)
            addresses = tuple(address.address for address in value.addresses)
            check_publishable(views.build({value.name: value}, {value.name: Found(addresses)}, NOW))
        case Slice():
            published_groups([value], {}, {})
            check_encodable(value)
            record.decode(value.annotations.get("endpointslice-hub/state", ""))
        case Service():
            msgspec.json.encode(value)
        case wire.SecretData():
            assert CANARY not in repr(structs.replace(value, version=""))  # the version is no secret, whatever it is
        case _:
            msgspec.json.encode(value)


# --- the API's protobuf ----------------------------------------------------------------------------------


def _message(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes((number << 3 | 2, len(value))) + value


CAUSE: Final = _message(4, _message(1, b"FieldValueInvalid") + _message(2, b"bad") + _message(3, b"endpoints[1]"))
MESSAGES: Final = (
    SliceEncoder().encode(
        Slice(
            "edge",
            "payments-1",
            "IPv4",
            (Endpoint(("10.0.0.1",), Conditions(True, True, False), target_ref=ObjectReference(name="n1")),),  # noqa: FBT003
            (Port("https", 443),),
            {"a": "b"},
            uid="0b6a",
            resource_version="7",
        )
    ),
    protobuf.MAGIC
    + _message(1, _message(1, b"v1") + _message(2, b"Status"))
    + _message(2, _message(3, b"no") + _message(4, b"Invalid") + _message(5, CAUSE + b"\x28\x03") + b"\x30\xa6\x03"),
)


def message(body: bytes) -> str:
    """A protobuf body decodes to an identity or a Status, or is an error."""
    check_error(422, body, "Unprocessable")
    try:
        decoded(lambda: wire.decode_identity(body))
    except BadAnswer:
        return REFUSED
    return ACCEPTED


# --- HTTP of an API server -------------------------------------------------------------------------------


LIMIT: Final = 64 << 10
LINE: Final = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\n'
RESPONSES: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 66\r\n\r\n" + LINE,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n42\r\n"
    + LINE
    + b"\r\n"
    + b"42\r\n"
    + LINE
    + b"\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nwait",
    b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + LINE * 40,
    b"HTTP/1.1 204 No Content\r\n\r\n",
)
LOOP: Final = VirtualLoop()


async def _longest(peer: Peer) -> int:
    """Read a stream to its end; returns the bytes of its longest line."""
    longest = 0
    while line := await peer.connection.line():
        longest = max(longest, len(line))
    return longest


def response(data: bytes) -> str:
    """A request ends with a limited body or one of the transport's errors, a stream with limited lines."""
    outcome = ACCEPTED
    for lines in (False, True):
        peer = Peer(LOOP, LIMIT, lines=lines)
        for at in range(0, len(data), 4_096):
            if not peer.wire.reading:
                break  # the transport has stopped reading
            peer.send(data[at : at + 4_096])
            assert peer.connection._queued <= PAUSE_ABOVE + LARGE_PIECE
        peer.end()
        try:
            peer.head.result()
            assert (LOOP.run_until_complete(_longest(peer)) if lines else len(peer.body())) <= LIMIT
        except (ProtocolError, OSError) as error:
            check_message(str(error))
            outcome = REFUSED
    return outcome


LARGE_PIECE: Final = 65 * 4_096
"""Bytes that a piece of 4 KiB with only line breaks may add to the queue."""


# --- lists and watches -----------------------------------------------------------------------------------


class FakeClient:
    """Returns a good list, then the bodies and lines of the script; afterwards the connection fails for ever."""

    def __init__(self, first: bytes, script: Sequence[bytes]) -> None:
        self.script = deque((first, *script))
        self.said: list[bytes] = []

    def _next(self) -> bytes:
        if not self.script:
            raise ClusterUnreachable("gone")
        self.said.append(self.script.popleft())
        return self.said[-1]

    async def reach(self) -> None:
        """Succeed until the script ends."""
        if not self.script:
            raise ClusterUnreachable("gone")

    async def request(self, *_: Any, **__: Any) -> bytes:
        """The next body."""
        await asyncio.sleep(0)
        return self._next()

    @asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[FakeClient]:
        """Open a stream."""
        yield self

    async def follow(self, take: Callable[[bytes], None]) -> None:
        """Pass the next lines."""
        while True:
            await asyncio.sleep(2)
            take(self._next())

    def end(self) -> None:
        """End the script, as when the hub closes the stream."""
        self.script.clear()


class ErrorLog:
    """An observer that stores errors."""

    def __init__(self) -> None:
        self.errors: list[HubError] = []

    def listing(self) -> None:
        """Does nothing."""

    def answered(self) -> None:
        """Does nothing."""

    def failed(self, error: HubError) -> None:
        """Store an error."""
        self.errors.append(error)


def _versioned(item: dict[str, Any], version: str) -> dict[str, Any]:
    item["metadata"]["resourceVersion"] = version
    return item


def _nodes(version: str) -> list[dict[str, Any]]:
    return [_versioned(make_node(f"n{i}", f"10.0.0.{i}"), version) for i in range(3)]


def _slices(version: str) -> list[dict[str, Any]]:
    return [_versioned(make_slice("edge", f"n{i}", "payments", [f"10.0.0.{i}"]), version) for i in range(3)]


NAMES: Final = {"n0", "n1", "n2"}
FIRST: Final = {kind: as_json(_list(kind, items) | {"metadata": {"resourceVersion": "7"}})
                for kind, items in (("Node", _nodes("5")), ("EndpointSlice", _slices("5")))}  # fmt: skip
WATCH_LINES: Final = [
    *({"type": type_, "object": node} for type_ in ("ADDED", "MODIFIED", "DELETED") for node in _nodes("8")[1:]),
    *({"type": type_, "object": slice_} for type_ in ("MODIFIED", "DELETED") for slice_ in _slices("8")[1:]),
    *(_list(kind, items) for kind, items in (("Node", _nodes("9")), ("EndpointSlice", _slices("9")))),
    EVENTS[-1],
    EVENTS[-2],
]


def reflected(script: Sequence[bytes]) -> str:
    """A reflector that reads a list and then these watch lines never ends, and forgets only objects that are gone."""
    seen = {LOOP.run_until_complete(_reflected(kind, script)) for kind in FIRST}
    return ACCEPTED if ACCEPTED in seen else REFUSED


async def _reflected(kind: str, script: Sequence[bytes]) -> str:
    client, log = FakeClient(FIRST[kind], script), ErrorLog()
    nodes, slices = NodeStore(lambda *_: None), SliceStore(lambda _: None)
    resource: wire.Resource[Any] = wire.NODES if kind == "Node" else wire.SLICES
    store = cast("Store[Any]", nodes if kind == "Node" else slices)
    reflector = Reflector("fuzz", cast("Client", client), resource, store, log, LoopClock(), rng=random.Random(1))
    task = asyncio.create_task(reflector.run())
    await asyncio.sleep(300)
    if task.done():
        task.result()  # raises the error that ended it
    task.cancel()
    await asyncio.wait({task}, timeout=1)
    assert task.cancelled()
    kept = set(nodes.nodes) if kind == "Node" else {key.name for key, _ in slices.items()}
    for name in NAMES - kept:
        assert any(_is_gone(name, kind, said) for said in client.said), (name, client.said)
    for error in log.errors:
        check_message(str(error))
    return ACCEPTED if reflector.events or reflector.relists > 1 else REFUSED


def _is_gone(name: str, kind: str, text: bytes) -> bool:
    """Whether a body says that an object is gone: a DELETED event, or a list without it. Uses no code of the hub."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        said = json.loads(text)
        if said.get("type") == "DELETED":
            return bool(said["object"]["metadata"]["name"] == name)
        if said.get("kind") == f"{kind}List":
            return name not in [item["metadata"].get("name", "") for item in said.get("items") or ()]
    return False
