"""What the hub remembers about a Service's balancer, as JSON in an annotation of the Service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import msgspec

from hub.cloud.balancers import Done, Intent, Record, Step
from hub.controller.services import Names

ANNOTATION: Final = "endpointslice-hub/load-balancer"
LONGEST: Final = 2048
"""Most bytes of a record."""
VERSION: Final = 1


class _Stored(msgspec.Struct, omit_defaults=True):
    v: int
    provider: str
    cluster: Annotated[str, msgspec.Meta(min_length=1)]
    uid: str
    ids: dict[str, str] = {}
    made: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    intent: Intent | None = None


_decode = msgspec.json.Decoder(_Stored).decode


class Kept(NamedTuple):
    """What the annotation of a Service says.

    Attributes:
        record: the record; :func:`empty` if there is no valid one.
        cluster: the clusterName under which it was written; "" without a valid record.
        ignored: why the annotation does not count; "" if it does, or if there is none.
    """

    record: Record
    cluster: str = ""
    ignored: str = ""

    @property
    def valid(self) -> bool:
        """Whether there is a record."""
        return bool(self.cluster)

    def full(self, recent: Iterable[tuple[Step, Done]]) -> Record:
        """The record with what steps created since it was written; without a record names find everything."""
        ids = {kind: id_ for _, done in recent for kind, id_ in done.ids.items()} if self.valid else {}
        return msgspec.structs.replace(self.record, ids={**self.record.ids, **ids}) if ids else self.record


def empty(named: Names) -> Record:
    """The record of a Service about which nothing is remembered."""
    return Record(named.name, named.marker, named.former)


def read(text: str, named: Names, provider: str) -> Kept:
    """The record in an annotation.

    Args:
        text: the annotation's value; "" without one.
        named: the names of the balancer's objects.
        provider: the cloud's name.
    """
    nothing = Kept(empty(named))
    if not text:
        return nothing
    if len(text) > LONGEST:
        return nothing._replace(ignored=f"it is longer than {LONGEST} characters")
    try:
        found = _decode(text.encode())
    except (msgspec.DecodeError, ValueError, RecursionError):
        return nothing._replace(ignored="it cannot be read")
    if found.v != VERSION:
        return nothing._replace(ignored=f"it has version {found.v}")
    if found.uid != named.marker.service:
        return nothing._replace(ignored="it is of another Service, or of an earlier one of this name")
    if found.provider != provider:
        return nothing._replace(ignored=f"it is of the cloud {found.provider[:40]!r}")
    # What was about to be created may exist, and is then ours.
    made = tuple(dict.fromkeys((*found.made, *(found.intent.make if found.intent is not None else ()))))
    record = Record(named.name, named.marker, named.former, found.ids, made, found.set, found.intent)
    return Kept(record, found.cluster)


def write(record: Record, cluster_name: str, provider: str) -> str:
    """The annotation's value, at most 2 KiB: names and markers find what it leaves out."""
    stored = _Stored(
        VERSION, provider, cluster_name, record.marker.service, dict(record.ids), record.made, record.set, record.intent
    )
    found = msgspec.json.encode(stored, order="sorted")
    if len(found) > LONGEST:
        found = msgspec.json.encode(msgspec.structs.replace(stored, ids={}, set=()), order="sorted")
    return found.decode()
