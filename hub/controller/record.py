"""What the hub remembers about a Service's balancer, as JSON in an annotation of the Service."""

from __future__ import annotations

from typing import Final

import msgspec

from hub.cloud.balancers import Intent, Record
from hub.controller.services import Names

ANNOTATION: Final = "endpointslice-hub/load-balancer"
LONGEST: Final = 2048
"""Most bytes of a record."""
VERSION: Final = 1


class _Stored(msgspec.Struct, omit_defaults=True):
    v: int
    provider: str
    cluster: str
    uid: str
    ids: dict[str, str] = {}
    made: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    intent: Intent | None = None


_decode = msgspec.json.Decoder(_Stored).decode


def empty(named: Names) -> Record:
    """The record of a Service about which nothing is remembered."""
    return Record(named.name, named.marker, named.former)


def read(text: str, named: Names, provider: str) -> tuple[Record, str]:
    """The record in an annotation, and why there is none in it; "" if there is one, or no annotation.

    Args:
        text: the annotation's value; "" without one.
        named: the names of the balancer's objects.
        provider: the cloud's name.
    """
    if not text:
        return empty(named), ""
    try:
        found = _decode(text[: LONGEST + 1].encode())
    except (msgspec.DecodeError, ValueError, RecursionError):
        return empty(named), "it cannot be read"
    if found.v != VERSION:
        return empty(named), f"it has version {found.v}"
    if found.uid != named.marker.service:
        return empty(named), "it is of another Service, or of an earlier one of this name"
    if found.provider != provider:
        return empty(named), f"it is of the cloud {found.provider[:40]}"
    # What was about to be created may exist, and is then ours.
    made = tuple(dict.fromkeys((*found.made, *(found.intent.make if found.intent is not None else ()))))
    return Record(named.name, named.marker, named.former, found.ids, made, found.set, found.intent), ""


def write(record: Record, cluster_name: str, provider: str) -> str:
    """The annotation's value."""
    stored = _Stored(
        VERSION, provider, cluster_name, record.marker.service, dict(record.ids), record.made, record.set, record.intent
    )
    return msgspec.json.encode(stored, order="sorted").decode()
