"""Structs of the EndpointSlice fields that the harness reads. They share no code with the hub."""

from __future__ import annotations

import msgspec


class Conditions(msgspec.Struct, gc=False):
    """Conditions of an endpoint. A missing ``ready`` means ready, as the API defines."""

    ready: bool | None = None


class Endpoint(msgspec.Struct, gc=False):
    """One endpoint."""

    addresses: list[str]
    conditions: Conditions = msgspec.field(default_factory=Conditions)


class Port(msgspec.Struct, gc=False):
    """One port."""

    port: int | None = None


class Meta(msgspec.Struct, rename="camel", gc=False):
    """Metadata of a slice or a list; empty for the Status of an ERROR event."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}

    @property
    def service(self) -> str:
        """The Service of a slice, or ""."""
        return self.labels.get("kubernetes.io/service-name", "")


class Slice(msgspec.Struct, gc=False):
    """One slice. A list that is ``null`` in JSON is None."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None

    def ready(self) -> list[str]:
        """The addresses of ready endpoints, in order."""
        ready = [endpoint for endpoint in self.endpoints or () if endpoint.conditions.ready is not False]
        return [address for endpoint in ready for address in endpoint.addresses]


class Event(msgspec.Struct, gc=False):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: Slice


class SliceList(msgspec.Struct, gc=False):
    """All slices, with the resourceVersion to watch from."""

    metadata: Meta
    items: list[Slice]


decode_event = msgspec.json.Decoder(Event).decode
decode_list = msgspec.json.Decoder(SliceList).decode
