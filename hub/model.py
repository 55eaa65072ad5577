"""The shared data types: plain frozen values that the stages take and return.

This module does not fetch, store or write anything. The parts of an EndpointSlice use the API's field names on the wire
(``rename``), so an observed slice decodes into the same types that a desired slice is built from, and equal values
encode to equal bytes. Values are shared, not copied: the thousand endpoints of a cluster exist once, however many
Services publish them. The dicts in these values must never be mutated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

MANAGED_BY: Final = "endpointslice-hub"
"""Value of the managed-by label on everything that the hub writes."""

LABEL_SERVICE_NAME: Final = "kubernetes.io/service-name"
LABEL_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
LABEL_SOURCE_CLUSTER: Final = "multicluster.kubernetes.io/source-cluster"
LABEL_OWNER: Final = "endpointslice-hub/owner"
LABEL_HEADLESS: Final = "service.kubernetes.io/headless"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
LABEL_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
LABEL_EXCLUDE_LB: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
ANNOTATION_LEASE: Final = "endpointslice-hub/lease"
ANNOTATION_STATE: Final = "endpointslice-hub/state"
ANNOTATION_PAUSED: Final = "endpointslice-hub/paused"
ANNOTATION_WITHHELD: Final = "endpointslice-hub/removals-withheld"
"""Set on a Lease and on the last accepted registry: hash of the withheld removal, read by the next leader."""
ANNOTATION_CLUSTER_UID: Final = "endpointslice-hub/cluster-uid"
"""UID of the source cluster, which is the UID of its kube-system Namespace."""

LOCAL: Final = "local"
"""Name of the built-in cluster: the hub cluster itself."""


class TargetKey(NamedTuple):
    """A target: a hub Service whose slices the hub owns."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ObjectKey(NamedTuple):
    """A namespaced object of any kind."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """One entry of a Node's ``status.addresses``; ``type`` is, for example, InternalIP, ExternalIP or Hostname."""

    type: str
    address: str


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A Node's taint."""

    key: str
    effect: str = ""
    value: str = ""


class Node(msgspec.Struct, frozen=True, gc=False):
    """The parts of a remote Node that the hub keeps (about 1 KB of the 12 KB on the wire).

    Attributes:
        name: the Node's name; unique in its cluster.
        ready: status of the Ready condition: ``True``, ``False`` or ``Unknown``; ``Unknown`` if there is no condition.
        ready_since: when ``ready`` last changed, RFC 3339 by the remote cluster's clock, or "".
        created: creationTimestamp, RFC 3339; can be compared as a string.
        labels: all labels; read-only.
        addresses: as reported and unchecked: a remote kubelet may report anything.
        provider_id: ``spec.providerID``, unchecked.
        system_uuid: ``status.nodeInfo.systemUUID``, unchecked.
        unschedulable: whether the node is cordoned.
        deleting: whether the node has a deletionTimestamp.
        uid: the Node's UID; "" unless its cluster has a cloud controller in this hub.
        provided_ips: the annotation ``alpha.kubernetes.io/provided-node-ip``; "" as for ``uid``.
    """

    name: str
    ready: str = "Unknown"
    ready_since: str = ""
    created: str = ""
    labels: dict[str, str] = {}
    addresses: tuple[NodeAddress, ...] = ()
    provider_id: str = ""
    system_uuid: str = ""
    unschedulable: bool = False
    deleting: bool = False
    taints: tuple[Taint, ...] = ()
    uid: str = ""
    provided_ips: str = ""


# --- resolutions: a provider's answer for one node ---------------------------------------------


class Found(msgspec.Struct, frozen=True, gc=False):
    """The provider knows the node.

    Attributes:
        addresses: all IP addresses of the node, as unchecked strings of any family, in order of preference. The hub
            publishes the first address of each family that the cluster's policy allows.
        zone: overrides the node's topology label if set.
    """

    addresses: tuple[str, ...]
    zone: str = ""


class Absent(msgspec.Struct, frozen=True, gc=False):
    """The provider gave a complete answer, and it contains no address for this node."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """The provider could not tell, for example because a backend is down or not ready. Removes nothing."""

    reason: str


AMBIGUOUS: Final = "ambiguous"
"""Prefix of the reason of an :class:`Unknown` if a node has several candidates and an operator must remove some."""

Resolution = Found | Absent | Unknown


# --- EndpointSlice parts, in the API's own shape -----------------------------------------------


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """Endpoint conditions; the hub always sets all three."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


PUBLISHED: Final = Conditions(ready=True, serving=True, terminating=False)
DRAINING: Final = Conditions(ready=False, serving=True, terminating=True)
"""For endpoints that leave, are cordoned, or are unreachable and drained by policy.

Consumers use them only if no endpoint is ready.
"""
FAILED: Final = Conditions(ready=False, serving=False, terminating=False)
"""For endpoints whose health check fails."""


class ObjectReference(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The object that an endpoint stands for, such as a Node or a Pod."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class NamedHint(msgspec.Struct, frozen=True, gc=False):
    """A zone or node that should consume an endpoint."""

    name: str


class Hints(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Topology hints, of endpoints that are copied within the hub cluster, or whose zone the registry maps."""

    for_zones: tuple[NamedHint, ...] = ()
    for_nodes: tuple[NamedHint, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """One endpoint of a slice. The hub publishes one address per endpoint."""

    addresses: tuple[str, ...]
    conditions: Conditions = Conditions()
    hostname: str | None = None
    node_name: str | None = None
    target_ref: ObjectReference | None = None
    zone: str | None = None
    hints: Hints | None = None

    @property
    def address(self) -> str:
        """The endpoint's sole address."""
        return self.addresses[0]


class Port(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """A port of a slice, as consumers connect to it."""

    name: str = ""
    port: int | None = None
    protocol: str = "TCP"
    app_protocol: str | None = None


class OwnerReference(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Owner of a slice. The hub sets the Service as the owner, without blockOwnerDeletion."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Slice(msgspec.Struct, frozen=True):
    """An EndpointSlice, observed or desired.

    Attributes:
        resource_version: "" if the slice does not exist yet.
        address_type: ``IPv4`` or ``IPv6``; an observed slice may also be ``FQDN``.
        labels: read-only.
        annotations: read-only.
        endpoints: empty if the API object has no list.
        ports: in the order in which they are published; empty if the API object has no list.
        deleting: whether the slice has a deletionTimestamp.
    """

    namespace: str
    name: str
    address_type: str
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[Port, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owners: tuple[OwnerReference, ...] = ()
    uid: str = ""
    resource_version: str = ""
    deleting: bool = False

    @property
    def target(self) -> TargetKey:
        """The Service that this slice belongs to, by its service-name label."""
        return TargetKey(self.namespace, self.labels.get(LABEL_SERVICE_NAME, ""))

    @property
    def cluster(self) -> str:
        """The source cluster, by the source-cluster label; "" if the label is missing."""
        return self.labels.get(LABEL_SOURCE_CLUSTER, "")


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """A port of a Service. ``target_port`` is a number, or a port name as a str."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    target_port: int | str | None = None
    node_port: int | None = None


class Service(msgspec.Struct, frozen=True):
    """The parts of a Service that the hub keeps.

    Attributes:
        families: ``spec.ipFamilies`` in order: ``IPv4``, ``IPv6``; at least one entry.
        selector: whether the Service has a selector.
        kind: ``spec.type``.
        headless: whether ``spec.clusterIP`` is "None".
        local_policies: which of ``externalTrafficPolicy`` and ``internalTrafficPolicy`` are Local.
    """

    namespace: str
    name: str
    uid: str = ""
    kind: str = "ClusterIP"
    selector: bool = False
    headless: bool = False
    publish_not_ready: bool = False
    families: tuple[str, ...] = ("IPv4",)
    cluster_ips: tuple[str, ...] = ()
    ports: tuple[ServicePort, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    health_check_node_port: int | None = None
    deleting: bool = False
    resource_version: str = ""
    local_policies: tuple[str, ...] = ()

    @property
    def key(self) -> TargetKey:
        """The Service as a target."""
        return TargetKey(self.namespace, self.name)


class EndpointView(msgspec.Struct, frozen=True):
    """One (Service, Service port, endpoint) combination of a cluster, for proxies that route traffic themselves.

    Views can be gathered: one view per Service port then lists the addresses of all endpoints.

    Attributes:
        name: the view's name, unique in its cluster and namespace; the same Service, port and address give the same
            name.
        kind: the Service's ``spec.type``.
        port: the Service's port.
        port_name: the name of the Service's port; "" if it has none.
        target_port: the Service's targetPort, a number or a name.
        addresses: one address; in a gathered view, all addresses, sorted.
        resolved_port: the port that the endpoint listens on, from its slice; None if the slice has none, or if the
            endpoints of a gathered view have different ports.
        serving, terminating: the endpoint's conditions; only ready endpoints have views.
        node_name: from the slice; "" if the slice has none, and in a gathered view.
        zone: from the slice; "" if the slice has none, and in a gathered view.
        stale: whether the cluster gives no answers now, so that the view shows the last known good state.
    """

    cluster: str
    namespace: str
    name: str
    service: str
    kind: str
    port: int
    port_name: str
    target_port: int | str
    protocol: str
    addresses: tuple[str, ...]
    resolved_port: int | None = None
    serving: bool = True
    terminating: bool = False
    node_name: str = ""
    zone: str = ""
    stale: bool = False


class ConfigMap(msgspec.Struct, frozen=True):
    """The parts of a ConfigMap that the hub keeps. ``data`` is read-only."""

    namespace: str
    name: str
    data: dict[str, str] = {}


# --- snapshots ---------------------------------------------------------------------------------


class SourceView(msgspec.Struct, frozen=True):
    """The endpoints that one source cluster offers now, after eligibility, resolution and address policy.

    All targets with the same source and node policy share one value. A change produces a new value.

    Attributes:
        cluster: the source cluster's name.
        unknown: None if ``endpoints`` is a complete statement, else the reason why it is not. An unknown view neither
            removes nor changes published endpoints. Its ``endpoints`` are the last known good ones, if there are any,
            and are published if they are missing (for a new target or a recreated Service).
        endpoints: family -> address -> endpoint, both in a deterministic order.
        unknown_nodes: names of existing, eligible nodes whose address is not known: published endpoints with a
            targetRef to them stay unchanged.
        gone_complete: names of all nodes in the complete list, eligible or not. A departing endpoint is *gone* if its
            node is not among them, and *filtered* otherwise.
    """

    cluster: str
    unknown: str | None
    endpoints: Mapping[str, Mapping[str, Endpoint]]
    unknown_nodes: frozenset[str] = frozenset()
    gone_complete: frozenset[str] = frozenset()
    addresses_complete: frozenset[str] | None = None
    """For sources without Nodes (such as a copied Service): all addresses in the complete answer, whether or not the
    address policy accepts them. A departing endpoint is *gone* if its address is not among them. None: departures are
    judged by ``gone_complete``."""
    complete: bool = True
    """Whether the answer has all parts. An incomplete view adds and changes endpoints, but removes none."""
    hostnames: Mapping[str, str] = {}
    """Address -> hostname, if the source provides hostnames; the endpoints themselves have none unless ``copied``."""
    ports: tuple[Port, ...] | None = None
    """Ports that the source provides; they resolve a Service's named targetPort."""
    port_sets: Mapping[str, tuple[Port, ...]] = {}
    """Address -> ports, for endpoints whose ports differ from ``ports``."""
    copied: bool = False
    """Whether the endpoints are copies of another Service's endpoints, which carry their own hostnames."""
    kept_only: frozenset[str] = frozenset()
    """Addresses in ``endpoints`` whose node is not Ready: a target that publishes such an address keeps it, and no
    target adds it."""
    adopted: bool = False
    """Whether the source is unknown and ``endpoints`` are what a target published, including conditions set by health
    verdicts, instead of an answer of the source."""


class Finding(msgspec.Struct, frozen=True):
    """A fact about a decision that an operator may want to know; true as long as decisions report it.

    Attributes:
        reason: the Event's reason, in CamelCase.
        message: one sentence.
        objects: the nodes, addresses, slices or clusters that the finding is about, usually sorted.
    """

    reason: str
    message: str
    objects: tuple[str, ...] = ()


def join_first(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, joined by commas for a message, and the number of the other names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


# --- an endpoint provider's answer, and a provider type's guard defaults --------------------------


@dataclass(frozen=True, slots=True)
class SnapshotEndpoint:
    """One endpoint as an EndpointProvider knows it.

    Attributes:
        name: name of the node or record behind the endpoint, unique in the snapshot.
        addresses: all of its IP addresses, unchecked, in order of preference. The hub publishes the first address of
            each family that the cluster's policy allows.
        ready, serving, terminating: conditions as in an EndpointSlice.
        ports: the endpoint's ports if they differ from the snapshot's ``ports``, else None.
    """

    name: str
    addresses: tuple[str, ...]
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zone: str = ""
    hostname: str = ""
    node_name: str = ""
    target_ref: ObjectReference | None = None
    hints: Hints | None = None
    ports: tuple[Port, ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All endpoints that an EndpointProvider offers at one moment.

    Attributes:
        endpoints: in any order.
        complete: False if parts are missing, for example rejected rows. An incomplete snapshot adds and changes
            endpoints, but removes none.
        ports: the source's own ports, if it has any, else None. They resolve a Service's named targetPort.
        problems: one line for each part that was left out.
        copied: whether the endpoints are copies of another Service's endpoints, published with their hostnames.
    """

    endpoints: tuple[SnapshotEndpoint, ...]
    complete: bool = True
    ports: tuple[Port, ...] | None = None
    problems: tuple[str, ...] = ()
    copied: bool = False


@dataclass(frozen=True, slots=True)
class GuardDefaults:
    """Guard defaults of a provider type; None keeps the hub's default."""

    empty_results: int | None = None
    max_removal: float | Literal["off"] | None = None
