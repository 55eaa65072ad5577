"""Follows the Services of one cluster that have, want or had a load balancer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from hub.cloud.balancers import BalancerPort, Ingress
from hub.controller.record import ANNOTATION
from hub.controller.services import BalancedService
from hub.errors import HubError
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import Resource, resource
from hub.model import ObjectKey
from hub.observe.local.stores import newer
from hub.observe.remote.status import in_words
from hub.runtime.clock import Clock
from hub.runtime.supervise import until_one_ends

RULE: Final = "services: get, list, watch"
UNREAD: Final = "not read yet"


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None


class _Port(msgspec.Struct, rename="camel", gc=False):
    port: int
    node_port: int | None = None
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    type: str = "ClusterIP"
    load_balancer_class: str | None = None
    load_balancer_ip: str | None = msgspec.field(name="loadBalancerIP", default=None)
    load_balancer_source_ranges: tuple[str, ...] | None = None
    ports: tuple[_Port, ...] | None = None
    ip_families: tuple[str, ...] | None = None
    external_traffic_policy: str = ""
    health_check_node_port: int | None = None
    session_affinity: str = "None"


class _LoadBalancer(msgspec.Struct):
    ingress: tuple[Ingress, ...] | None = None


class _Status(msgspec.Struct, rename="camel"):
    load_balancer: _LoadBalancer | None = None


class _Service(msgspec.Struct):
    metadata: _Meta
    spec: _Spec | None = None
    status: _Status | None = None


def _reduce(wire: _Service) -> BalancedService:
    meta, spec = wire.metadata, wire.spec or _Spec()
    balancer = wire.status.load_balancer if wire.status is not None else None
    annotations = meta.annotations or {}
    return BalancedService(
        meta.namespace,
        meta.name,
        meta.uid,
        meta.resource_version,
        spec.type,
        spec.load_balancer_class or "",
        meta.deletion_timestamp is not None,
        {key: value for key, value in annotations.items() if key != ANNOTATION},
        meta.finalizers or (),
        tuple(
            BalancerPort(port.port, port.node_port or 0, port.name, port.protocol, port.app_protocol or "")
            for port in spec.ports or ()
        ),
        spec.load_balancer_ip or "",
        spec.external_traffic_policy == "Local",
        spec.health_check_node_port or 0,
        spec.session_affinity == "ClientIP",
        spec.ip_families or ("IPv4",),
        spec.load_balancer_source_ranges or (),
        (balancer.ingress or ()) if balancer is not None else (),
        annotations.get(ANNOTATION, ""),
    )


BALANCED: Resource[BalancedService] = resource(
    "/api/v1/services", "Service", _Service, _reduce, lambda meta: ObjectKey(meta.namespace, meta.name), RULE
)
_decode = msgspec.json.Decoder(_Service).decode


def decode(body: bytes) -> BalancedService:
    """Decode one Service, as returned by PATCH."""
    return _reduce(_decode(body))


class Services:
    """The Services that matter, by key.

    Args:
        cluster: the cluster's name.
        client: returns the cluster's client.
        clock: where time comes from.
        on_change: called with the key of a changed Service.
        on_state: called when ``problem`` changed.

    Attributes:
        objects: the Services.
        problem: why they are not current; "" if they are.
    """

    def __init__(
        self,
        cluster: str,
        client: Callable[[], Awaitable[Client]],
        clock: Clock,
        on_change: Callable[[ObjectKey], None],
        on_state: Callable[[], None],
    ) -> None:
        self.objects: dict[ObjectKey, BalancedService] = {}
        self.problem = UNREAD
        self._cluster = cluster
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._on_state = on_state
        self._failed = asyncio.Event()

    async def run(self) -> None:
        """Follow until the cluster fails; the caller runs this again, with a new connection."""
        self._failed.clear()
        reflector = Reflector(f"Services of {self._cluster}", await self._client(), BALANCED, self, self, self._clock)
        await until_one_ends((asyncio.create_task(reflector.run()), asyncio.create_task(self._failed.wait())))

    def wrote(self, service: BalancedService) -> None:
        """Apply the answer to a write of this process, unless the watch was faster; ``on_change`` is not called."""
        key = ObjectKey(service.namespace, service.name)
        if key in self.objects:
            self._store(key, service)

    # --- the reflector's store and observer -------------------------------------------------------------

    def replace(self, objects: dict[Any, BalancedService], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a complete list."""
        found = {key: service for key, service in objects.items() if service.relevant}
        changed = [key for key in self.objects.keys() | found.keys() if self.objects.get(key) != found.get(key)]
        self.objects = found
        for key in sorted(changed):
            self._on_change(key)

    def upsert(self, key: Any, value: BalancedService, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: an object is new or changed."""
        before = self.objects.get(key)
        self._store(key, value)
        if before != self.objects.get(key):
            self._on_change(key)

    def _store(self, key: ObjectKey, value: BalancedService) -> None:
        known = self.objects.get(key)
        if known is not None and known.uid == value.uid and not newer(value.resource_version, known.resource_version):
            return
        if value.relevant:
            self.objects[key] = value
        else:
            self.objects.pop(key, None)

    def delete(self, key: Any, value: BalancedService, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: an object was deleted."""
        if self.objects.pop(key, None) is not None:
            self._on_change(key)

    def listing(self) -> None:
        """A list has begun."""

    def answered(self) -> None:
        """The objects are current."""
        self._set("")

    def failed(self, error: HubError) -> None:
        """An attempt failed."""
        self._set(f"Services of cluster {self._cluster}: {in_words(error, self._cluster, RULE)}")
        self._failed.set()

    def _set(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_state()
