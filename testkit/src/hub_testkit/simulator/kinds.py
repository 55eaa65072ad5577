"""The kinds that the simulated API server serves, and how each behaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hub_testkit.simulator import defaults, validation
from hub_testkit.simulator.answers import Cause, bad
from hub_testkit.simulator.defaults import Shape

Json = dict[str, Any]
Causes = Callable[[Json, Json | None], Iterable[Cause]]


def _no_causes(_obj: Json, _old: Json | None) -> Iterable[Cause]:
    return ()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind and how it behaves.

    Attributes:
        shape: Sets defaults and normalises an object in place; ``old`` is the object that it replaces.
        causes: Returns what is invalid in an object with defaults, besides its metadata.
        status: Whether it has a status subresource.
        counts_generations: Whether ``metadata.generation`` is maintained.
        deletion_returns_object: Whether a DELETE answers with the object instead of a Status.
        empty: The fields of an empty object besides its metadata, as in a bookmark.
        name_1035, name_label: Whether names must be DNS-1035 or RFC 1123 labels.
        version: The API version that is served.
        fields: What field selectors may name, besides namespace and name: ``part.field``.
    """

    group: str
    kind: str
    resource: str
    namespaced: bool = True
    shape: Shape = defaults.no_defaults
    causes: Causes = _no_causes
    status: bool = False
    counts_generations: bool = False
    deletion_returns_object: bool = False
    atomic_lists: bool = False
    empty: Json = field(default_factory=dict[str, Any])
    name_1035: bool = False
    name_label: bool = False
    version: str = "v1"
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """``resource`` or ``resource.group``, as in error messages."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def key(self, namespace: str, name: str) -> str:
        """Returns the key by which lists are sorted."""
        return f"{namespace}/{name}" if self.namespaced else name


def _service_causes(obj: Json, old: Json | None) -> Iterable[Cause]:
    yield from validation.service_causes(obj)
    if old is not None and old["spec"].get("clusterIP") != obj["spec"].get("clusterIP") and "clusterIP" in old["spec"]:
        yield bad("spec.clusterIPs[0]", obj["spec"].get("clusterIP", ""), "may not change once set")


NODES = Kind("", "Node", "nodes", namespaced=False, shape=defaults.node, status=True, empty=defaults.EMPTY_NODE)
NAMESPACES = Kind(
    "",
    "Namespace",
    "namespaces",
    namespaced=False,
    shape=defaults.namespace,
    status=True,
    deletion_returns_object=True,
    empty={"spec": {}, "status": {}},
    name_label=True,
)
SERVICES = Kind(
    "",
    "Service",
    "services",
    shape=defaults.service,
    causes=_service_causes,
    status=True,
    deletion_returns_object=True,
    empty={"spec": {}, "status": {"loadBalancer": {}}},
    name_1035=True,
)
SLICES = Kind(
    "discovery.k8s.io",
    "EndpointSlice",
    "endpointslices",
    shape=defaults.endpoint_slice,
    causes=validation.slice_causes,
    counts_generations=True,
    atomic_lists=True,
    empty={"addressType": "", "endpoints": None, "ports": None},
)
LEASES = Kind(
    "coordination.k8s.io",
    "Lease",
    "leases",
    shape=defaults.lease,
    causes=lambda obj, _: validation.lease_causes(obj),
    empty={"spec": {}},
)
EVENTS = Kind(
    "events.k8s.io",
    "Event",
    "events",
    shape=defaults.event,
    causes=lambda obj, old: validation.event_causes(obj) if old is None else (),
    empty={
        "eventTime": None,
        "regarding": {},
        "deprecatedSource": {},
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
    },
)
CONFIG_MAPS = Kind("", "ConfigMap", "configmaps", shape=defaults.config_map)
SECRETS = Kind("", "Secret", "secrets", shape=defaults.secret)
PODS = Kind("", "Pod", "pods", status=True, fields=("spec.nodeName",))
"""Neither defaulted nor validated; they are deleted at once and cannot be evicted."""
STATEFUL_SETS = Kind("apps", "StatefulSet", "statefulsets", status=True, counts_generations=True)
"""Neither defaulted nor validated; no controller makes their Pods."""
ALLOCATIONS = Kind(
    "netinfra.darkbrains.com",
    "NetIPAllocation",
    "netipallocations",
    namespaced=False,
    status=True,
    counts_generations=True,
    version="v1alpha1",
)
"""As if its CustomResourceDefinition were installed; the objects are not validated."""

KINDS = (
    *(NODES, NAMESPACES, SERVICES, SLICES, LEASES, EVENTS, CONFIG_MAPS, SECRETS),
    *(PODS, STATEFUL_SETS, ALLOCATIONS),
)
"""All kinds that are served. Events exist only as events.k8s.io/v1, not as core/v1."""
