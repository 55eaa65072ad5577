"""What the harness reads of EndpointSlices in lists and watches: its own structs, which share nothing with the hub."""

from __future__ import annotations

import msgspec


class Conditions(msgspec.Struct, gc=False):
    """Of an endpoint; without ``ready`` it is taken for ready, as the API says."""

    ready: bool | None = None


class Endpoint(msgspec.Struct, gc=False):
    """One endpoint."""

    addresses: list[str]
    conditions: Conditions = msgspec.field(default_factory=Conditions)


class Port(msgspec.Struct, gc=False):
    """One port."""

    port: int | None = None


class Meta(msgspec.Struct, rename="camel", gc=False):
    """Of a slice or of a list; the Status of an ERROR event has none of it."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}

    @property
    def service(self) -> str:
        """The Service that a slice belongs to; "" for none."""
        return self.labels.get("kubernetes.io/service-name", "")


class Slice(msgspec.Struct, gc=False):
    """One slice; lists that are ``null`` in JSON stay None."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None

    def ready(self) -> list[str]:
        """The addresses that are not shown as not ready, in order."""
        return [one for each in self.endpoints or () if each.conditions.ready is not False for one in each.addresses]


class Event(msgspec.Struct, gc=False):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: Slice


class SliceList(msgspec.Struct, gc=False):
    """All slices, and the version to watch from."""

    metadata: Meta
    items: list[Slice]


decode_event = msgspec.json.Decoder(Event).decode
decode_list = msgspec.json.Decoder(SliceList).decode
