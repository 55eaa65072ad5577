"""Lists of Nodes in the API's protobuf, read without a library: only the fields in use.

For a list the API server needs half as long in protobuf as in JSON, and sends half the bytes; that outweighs that
Python reads it more slowly than msgspec reads JSON (docs/adr/0017). Field numbers: generated.proto of
k8s.io/api/core/v1 and of k8s.io/apimachinery (meta/v1, runtime: ``Unknown``).
"""

from __future__ import annotations

import time
from sys import intern
from typing import Final

from hub.kube.protobuf import MAGIC, ProtobufError, read_varint
from hub.model import Node, NodeAddress, Taint

CACHED_LABELS: Final = 2000
"""Labels whose strings are found by their bytes; beyond, the table starts over.

A fleet repeats a few hundred; the others, such as the hostname, are those of one node, which may be gone.
"""
CACHED_TIMES: Final = 2000

Found = tuple[int, int, int]
"""Field number, where the value begins and ends; of a number: field number, the number, -1."""
_labels: dict[bytes, tuple[str, str]] = {}
_times: dict[int, str] = {}


def list_page(body: bytes) -> tuple[str, dict[str, Node], str, str]:
    """A page of a list.

    Returns:
        kind, Nodes by name, resourceVersion, continue token.

    Raises:
        ValueError: it is none (:class:`ProtobufError`, or no UTF-8).
    """
    kind = version = token = ""
    nodes: dict[str, Node] = {}
    for number, at, end in _pick(body, len(MAGIC), len(body), _UNKNOWN):
        if number == 1:
            kind = _text(body, at, end, 2)
            continue
        for inner, start, stop in _pick(body, at, end, _LIST):
            if inner == 1:
                version, token = _text(body, start, stop, 2), _text(body, start, stop, 3)
            else:
                node = _node(body, start, stop)
                nodes[node.name] = node
    return kind, nodes, version, token


def _pick(data: bytes, at: int, end: int, wanted: frozenset[int]) -> list[Found]:  # noqa: C901 - one loop, inlined
    """The wanted fields of the message in ``data[at:end]``, in order.

    Raises:
        ProtobufError: it ends elsewhere, or has a wire type that Kubernetes does not use.
    """
    found: list[Found] = []
    try:
        while at < end:
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = read_varint(data, at - 1)
            if key & 7 == 2:
                size = data[at]
                at += 1
                if size >= 0x80:
                    more = data[at]
                    if more < 0x80:  # nearly always
                        size += (more - 1) << 7
                        at += 1
                    else:
                        size, at = read_varint(data, at - 1)
                if key in wanted:
                    found.append((key >> 3, at, at + size))
                at += size
            elif key & 7 == 0:
                value, at = read_varint(data, at)
                if key in wanted:
                    found.append((key >> 3, value, -1))
            else:
                raise ProtobufError("an unexpected wire type")
    except IndexError:
        raise ProtobufError("a message that ends early") from None
    if at != end:
        raise ProtobufError("a field that ends outside its message")
    return found


def _keys(*, numbers: tuple[int, ...] = (), messages: tuple[int, ...] = ()) -> frozenset[int]:
    """The keys of fields as they stand before the values: numbers, and what has a length (messages and strings)."""
    return frozenset((*(each << 3 for each in numbers), *(each << 3 | 2 for each in messages)))


_UNKNOWN: Final = _keys(messages=(1, 2))
_LIST: Final = _keys(messages=(1, 2))
_OBJECT: Final = _keys(messages=(1, 2, 3))
_META: Final = _keys(messages=(1, 8, 9, 11))
_SPEC: Final = _keys(messages=(3, 5), numbers=(4,))
_STATUS: Final = _keys(messages=(4, 5, 7))
_CONDITION: Final = _keys(messages=(1, 2, 4))
_TIME: Final = _keys(numbers=(1,))
_STRINGS: Final = [_keys(messages=(number,)) for number in range(4)]
_FIRST_TWO: Final = _keys(messages=(1, 2))
_FIRST_THREE: Final = _keys(messages=(1, 2, 3))


def _text(data: bytes, at: int, end: int, number: int) -> str:
    """A string field; "" where it is absent."""
    found = _pick(data, at, end, _STRINGS[number])
    return data[found[-1][1] : found[-1][2]].decode() if found else ""


def _texts(data: bytes, at: int, end: int, wanted: frozenset[int]) -> dict[int, str]:
    return {number: data[start:stop].decode() for number, start, stop in _pick(data, at, end, wanted)}


def _time(data: bytes, at: int, end: int) -> str:
    """A ``Time`` as JSON has it: RFC 3339 in whole seconds, UTC; "" for none."""
    found = _pick(data, at, end, _TIME)
    if not found:
        return ""
    seconds = found[-1][1]
    text = _times.get(seconds)
    if text is None:
        if len(_times) >= CACHED_TIMES:
            _times.clear()
        try:
            text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
        except (OverflowError, OSError) as error:
            raise ProtobufError("a time outside the calendar") from error
        _times[seconds] = text
    return text


def _label(data: bytes) -> tuple[str, str]:
    """Key and value of a map's entry."""
    known = _labels.get(data)
    if known is None:
        if len(_labels) >= CACHED_LABELS:
            _labels.clear()
        key, value = _entry(data)
        known = _labels[data] = (intern(key), intern(value))
    return known


def _entry(data: bytes) -> tuple[str, str]:
    entry = _texts(data, 0, len(data), _FIRST_TWO)
    return entry.get(1, ""), entry.get(2, "")


def _address(data: bytes, at: int, end: int) -> NodeAddress:
    entry = _texts(data, at, end, _FIRST_TWO)
    return NodeAddress(intern(entry.get(1, "")), entry.get(2, ""))


def _taint(data: bytes, at: int, end: int) -> Taint:
    entry = _texts(data, at, end, _FIRST_THREE)
    return Taint(entry.get(1, ""), entry.get(3, ""), entry.get(2, ""))


def _ready(data: bytes, at: int, end: int) -> tuple[str, str] | None:
    """Status and time of last transition, if this is the condition Ready."""
    if data.startswith(b"\n", at, end) and not data.startswith(
        b"Ready", at + 2, end
    ):  # another one, in the usual order
        return None
    kind, status, since = "", "", ""
    for number, start, stop in _pick(data, at, end, _CONDITION):
        if number == 4:
            since = _time(data, start, stop)
        elif number == 1:
            kind = data[start:stop].decode()
        else:
            status = data[start:stop].decode()
    return (intern(status), since) if kind == "Ready" else None


def _meta(data: bytes, at: int, end: int) -> tuple[str, str, dict[str, str], bool]:
    """Name, creation, labels, and whether it is being deleted."""
    name, written, created, deleting = "", b"", "", False
    labels: dict[str, str] = {}
    for number, start, stop in _pick(data, at, end, _META):
        if number == 11:
            if written and data.endswith(written, start, stop):  # no other Node has this one: kubernetes.io/hostname
                key, value = _entry(data[start:stop])
                labels[intern(key)] = name if value == name else value
            else:
                key, value = _label(data[start:stop])
                labels[key] = value
        elif number == 1:
            written = data[start:stop]
            name = written.decode()
        elif number == 8:
            created = intern(_time(data, start, stop))
        else:
            deleting = True
    return name, created, labels, deleting


def _spec(data: bytes, at: int, end: int) -> tuple[str, bool, tuple[Taint, ...]]:
    """providerID, whether it is cordoned, taints."""
    provider, unschedulable = "", False
    taints: list[Taint] = []
    for number, start, stop in _pick(data, at, end, _SPEC):
        if number == 3:
            provider = data[start:stop].decode()
        elif number == 4:
            unschedulable = bool(start)
        else:
            taints.append(_taint(data, start, stop))
    return provider, unschedulable, tuple(taints)


def _status(data: bytes, at: int, end: int) -> tuple[str, str, tuple[NodeAddress, ...], str]:
    """Ready, since when, addresses, systemUUID."""
    ready: tuple[str, str] | None = None
    addresses: list[NodeAddress] = []
    uuid = ""
    for number, start, stop in _pick(data, at, end, _STATUS):
        if number == 4:
            ready = ready or _ready(data, start, stop)
        elif number == 5:
            addresses.append(_address(data, start, stop))
        else:
            uuid = _text(data, start, stop, 2)
    return *(ready or ("Unknown", "")), tuple(addresses), uuid


def _node(data: bytes, at: int, end: int) -> Node:
    spans = {part: (start, stop) for part, start, stop in _pick(data, at, end, _OBJECT)}
    nothing = (at, at)
    name, created, labels, deleting = _meta(data, *spans.get(1, nothing))
    provider, unschedulable, taints = _spec(data, *spans.get(2, nothing))
    ready, since, addresses, uuid = _status(data, *spans.get(3, nothing))
    return Node(name, ready, since, created, labels, addresses, provider, uuid, unschedulable, deleting, taints)
