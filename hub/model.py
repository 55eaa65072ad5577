"""The vocabulary: plain frozen values that stages take and return.

Nothing here knows how a value is fetched, stored or written. EndpointSlice parts carry the API's own
field names on the wire (``rename``), so that an observed slice decodes into the very values that the
desired one is made of and "equal" means equal bytes. Values are shared, not copied: the thousand
endpoints of a cluster exist once, however many Services publish them. Never mutate the dicts in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

MANAGED_BY: Final = "endpointslice-hub"
"""Value of the managed-by label on everything this product writes."""

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
"""Of a Lease, and of the last accepted registry: hash of the removal that is withheld; who comes after goes by it."""
ANNOTATION_CLUSTER_UID: Final = "endpointslice-hub/cluster-uid"
"""Of the source cluster: its kube-system Namespace's UID."""

LOCAL: Final = "local"
"""Name of the built-in cluster: the hub cluster itself."""


class TargetKey(NamedTuple):
    """A target: the hub Service whose slices we own."""

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
    """One entry of a Node's ``status.addresses``: ``type`` is InternalIP, ExternalIP, Hostname."""

    type: str
    address: str


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A Node's taint."""

    key: str
    effect: str = ""
    value: str = ""


class Node(msgspec.Struct, frozen=True, gc=False):
    """What the hub keeps of a remote Node (about 1 KB of the 12 KB on the wire).

    Attributes:
        name: the Node's name; unique in its cluster.
        ready: status of the Ready condition: ``True``, ``False`` or ``Unknown`` (also when absent).
        ready_since: when ``ready`` last changed, RFC 3339 in the remote cluster's time, or "".
        created: creationTimestamp, RFC 3339; compares as a string.
        labels: all labels; read-only.
        addresses: as reported, unchecked: a remote kubelet may report anything.
        provider_id: ``spec.providerID``, unchecked.
        system_uuid: ``status.nodeInfo.systemUUID``, unchecked.
        unschedulable: cordoned.
        deleting: has a deletionTimestamp.
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


# --- resolutions: what a provider says of one node ---------------------------------------------


class Found(msgspec.Struct, frozen=True, gc=False):
    """The provider knows the node; ``addresses`` are IP addresses as strings, any family, unchecked.

    Attributes:
        addresses: all that are the node's own, in order of preference; the first of each family that the cluster
            allows is published.
        zone: overrides the node's topology label where set.
    """

    addresses: tuple[str, ...]
    zone: str = ""


class Absent(msgspec.Struct, frozen=True, gc=False):
    """A complete answer says there is no address for this node."""

    reason: str


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """No statement: something that was asked was broken or is not ready. Removes nothing."""

    reason: str


AMBIGUOUS: Final = "ambiguous"
"""What the reason of an Unknown begins with where there are several candidates: somebody has to tidy up."""

Resolution = Found | Absent | Unknown


# --- EndpointSlice parts, in the API's own shape -----------------------------------------------


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """Endpoint conditions; the hub always sets all three."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


PUBLISHED: Final = Conditions(ready=True, serving=True, terminating=False)
DRAINING: Final = Conditions(ready=False, serving=True, terminating=True)
"""Leaving, cordoned or unreachable with a policy: consumers fall back on it when nothing is ready."""
FAILED: Final = Conditions(ready=False, serving=False, terminating=False)
"""The probe says no."""


class ObjectReference(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What an endpoint stands for."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class NamedHint(msgspec.Struct, frozen=True, gc=False):
    """A zone or node that should consume an endpoint."""

    name: str


class Hints(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Topology hints; only a copied endpoint of the same cluster carries them."""

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
    """Owner of a slice: the Service, without blockOwnerDeletion."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Slice(msgspec.Struct, frozen=True):
    """An EndpointSlice, observed or desired.

    Attributes:
        resource_version: "" for one that does not exist yet.
        address_type: ``IPv4`` or ``IPv6`` (an observed one may also be ``FQDN``).
        labels: read-only.
        annotations: read-only.
        endpoints: never None; an absent list reads as empty.
        ports: sorted as published; never None.
        deleting: has a deletionTimestamp.
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
        """The Service this slice is of, by its service-name label."""
        return TargetKey(self.namespace, self.labels.get(LABEL_SERVICE_NAME, ""))

    @property
    def cluster(self) -> str:
        """The source cluster, by label."""
        return self.labels.get(LABEL_SOURCE_CLUSTER, "")


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """A port of a Service. ``target_port`` is an int, or a str where the Service names a port."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None
    target_port: int | str | None = None
    node_port: int | None = None


class Service(msgspec.Struct, frozen=True):
    """What the hub keeps of a Service.

    Attributes:
        families: ``spec.ipFamilies`` in order: ``IPv4``, ``IPv6``; one entry at least.
        selector: True where the Service selects Pods itself.
        kind: ``spec.type``.
        headless: clusterIP is None.
        local_policies: of ``externalTrafficPolicy`` and ``internalTrafficPolicy``, those that are Local.
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
    """One (service, service-port, endpoint) of a cluster, for whoever routes traffic himself.

    Attributes:
        name: of the view, unique in its cluster and namespace; the same for the same Service, port and address.
        kind: the Service's ``spec.type``.
        port: the Service's port.
        port_name: its name; "" where it has none.
        target_port: as the Service says it: a number or a name.
        addresses: one; all of them, sorted, where views are gathered per port.
        resolved_port: where the endpoint listens, as its slice says; None where it does not, or not one for all.
        serving, terminating: the endpoint's conditions; only endpoints that are ready are shown.
        node_name: as the slice says; "" where it does not, and where views are gathered.
        zone: likewise.
        stale: the cluster gives no answers at present: this is the last known good.
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
    """What the hub keeps of a ConfigMap. ``data`` is read-only."""

    namespace: str
    name: str
    data: dict[str, str] = {}


# --- snapshots ---------------------------------------------------------------------------------


class SourceView(msgspec.Struct, frozen=True):
    """What one source cluster offers right now, after eligibility, resolution and address policy.

    One value is shared by every target with the same source and node policy; a change makes a new one.

    Attributes:
        cluster: the source cluster's name.
        unknown: None where ``endpoints`` is a complete statement; otherwise why it is not. An unknown
            view removes and changes nothing; its ``endpoints`` are the last known good, where there are
            any, and are published where they are missing (a new target, a recreated Service).
        endpoints: family -> address -> endpoint, both deterministic in order.
        unknown_nodes: nodes that exist and are eligible but whose address is not known: what is
            published for them (by targetRef) stays as it is.
        gone_complete: names of all nodes in the complete list, eligible or not: a published endpoint
            whose node is not in here is *gone*, any other departure is *filtered*.
    """

    cluster: str
    unknown: str | None
    endpoints: Mapping[str, Mapping[str, Endpoint]]
    unknown_nodes: frozenset[str] = frozenset()
    gone_complete: frozenset[str] = frozenset()
    addresses_complete: frozenset[str] | None = None
    """For sources without Nodes (a copied Service): every address in the complete answer, whatever the
    address policy made of it. A departure is *gone* when its address is not in here. None: by Node name."""
    complete: bool = True
    """False: parts are missing; may add and change, removes nothing."""
    hostnames: Mapping[str, str] = {}
    """Address -> hostname, where the source brings its own; endpoints in here never carry one."""
    ports: tuple[Port, ...] | None = None
    """Ports a source brings; they resolve a Service's named targetPort."""
    port_sets: Mapping[str, tuple[Port, ...]] = {}
    """Address -> ports, for endpoints that serve others than ``ports``."""
    copied: bool = False
    """The endpoints are another Service's and carry their hostnames themselves."""
    kept_only: frozenset[str] = frozenset()
    """Addresses in ``endpoints`` whose node is not Ready: a target that publishes one of them keeps it, no target adds
    it."""
    adopted: bool = False
    """Unknown, and ``endpoints`` are what a target published, verdicts and all: no word of the source's."""


class Finding(msgspec.Struct, frozen=True):
    """Something an operator may want to know, found while deciding; holds as long as it is reported.

    Attributes:
        reason: the Event's reason, CamelCase.
        message: one sentence.
        objects: the nodes, addresses or slices it is about, sorted.
    """

    reason: str
    message: str
    objects: tuple[str, ...] = ()


def few(names: Sequence[str], most: int) -> str:
    """The first so many of some names for a message, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


# --- what an endpoint provider offers, and what a provider type says of the guard -----------------


@dataclass(frozen=True, slots=True)
class SnapshotEndpoint:
    """One endpoint as an EndpointProvider knows it.

    Attributes:
        name: what stands behind it (a node, a record), unique in the snapshot.
        addresses: all of its IP addresses, unchecked, in order of preference; the first of each family that the
            cluster allows is published.
        ready, serving, terminating: as in an EndpointSlice.
        ports: what this one serves, where that differs from the snapshot's ``ports``; None = it does not.
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
    """Everything an EndpointProvider offers at one moment.

    Attributes:
        endpoints: order does not matter.
        complete: False when parts are missing (rejected rows): may add and change, removes nothing.
        ports: where the source brings its own ports; None otherwise. A Service's named targetPort is looked
            up in here, by the port's name.
        problems: one line for each thing that was left out.
        copied: the endpoints are another Service's and published as they stand, hostnames included.
    """

    endpoints: tuple[SnapshotEndpoint, ...]
    complete: bool = True
    ports: tuple[Port, ...] | None = None
    problems: tuple[str, ...] = ()
    copied: bool = False


@dataclass(frozen=True, slots=True)
class GuardDefaults:
    """A provider type's own guard defaults; None keeps the hub's."""

    empty_results: int | None = None
    max_removal: float | Literal["off"] | None = None
