"""Stores the election's records in a coordination.k8s.io/v1 Lease."""

from __future__ import annotations

import random

import msgspec

from hub.election.elector import LeaseRecord
from hub.errors import BadAnswer
from hub.kube.client import Client
from hub.kube.wire import fault

PREFIX = "endpointslice-hub/"
"""Prefix of the annotations that belong to the election; updates do not keep other annotations."""

WATCH_SECONDS = (300, 600)
"""A standby's watch ends after a random number of seconds in this range, so that not all end together."""
REQUEST_SECONDS = 5.0
"""Timeout of one request; the elector's own timeout (``Timing.call``) is shorter."""


def lease_of(name: str, shard: int) -> str:
    """The name of a shard's Lease in a hub whose first Lease is called ``name``.

    It never equals the first Lease of another hub: such names, whether from the owner or from
    ``--leader-elect-resource-name``, have no dot or begin with ``endpointslice-hub-``.
    """
    return f"shard-{shard}.{name}" if shard else name


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Lease(msgspec.Struct, rename="camel"):
    metadata: _Meta
    spec: _Spec
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class _Answer(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    kind: str = ""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_decode = msgspec.json.Decoder(_Answer).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class KubeLease:
    """One Lease in the hub cluster.

    Args:
        client: of the hub cluster.
        namespace: of the Lease.
        name: of the Lease.
    """

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def get(self) -> LeaseRecord:
        """Read the Lease.

        Raises:
            NotFound: the Lease does not exist.
        """
        return _record(await self._client.request("GET", f"{self._collection}/{self._name}", timeout=REQUEST_SECONDS))

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Create the Lease.

        Raises:
            AlreadyExists: another process created it first.
        """
        body = self._body(record)
        return _record(await self._client.request("POST", self._collection, body=body, timeout=REQUEST_SECONDS))

    async def update(self, record: LeaseRecord) -> LeaseRecord:
        """Replace the Lease if it still has the version in ``record``.

        Raises:
            Conflict: the Lease has changed.
        """
        path = f"{self._collection}/{self._name}"
        body = self._body(record)
        return _record(await self._client.request("PUT", path, body=body, timeout=REQUEST_SECONDS))

    async def wait_until_free(self) -> None:
        """Watch the Lease until it has no holder; return early if the server ends the watch.

        Raises:
            ApiError, ClusterUnreachable: the watch was refused or broke off.
        """
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._name}",
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),
        }
        async with self._client.watch(self._collection, params) as stream:
            while line := await stream.line():
                try:
                    event = _decode_event(line)
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    raise BadAnswer(200, "", f"an event of the Lease that does not decode ({fault(error)})") from error
                if event.type == "ERROR":
                    raise BadAnswer(200, "", "the watch of the Lease ended with an error")
                if event.type in ("ADDED", "MODIFIED") and not _record(bytes(event.object)).holder:
                    return

    def _body(self, record: LeaseRecord) -> bytes:
        return msgspec.json.encode(
            _Lease(
                _Meta(self._name, self._namespace, record.version, dict(record.notes) or None),
                _Spec(record.holder, record.duration, record.acquired, record.renewed, record.transitions),
            )
        )


def _record(body: bytes) -> LeaseRecord:
    try:
        lease = _decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadAnswer(200, "", f"a Lease that does not decode ({fault(error)})") from error
    if lease.kind != "Lease" or not lease.metadata.resource_version:
        # An update without a resourceVersion would overwrite another holder.
        found = lease.kind or "something without a kind"
        raise BadAnswer(200, "", f"{found} instead of a Lease with a resourceVersion")
    spec = lease.spec
    return LeaseRecord(
        spec.holder_identity or "",
        spec.lease_duration_seconds or 0,
        spec.acquire_time or "",
        spec.renew_time or "",
        spec.lease_transitions or 0,
        lease.metadata.resource_version,
        {key: value for key, value in (lease.metadata.annotations or {}).items() if key.startswith(PREFIX)},
    )
