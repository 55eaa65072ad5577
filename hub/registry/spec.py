"""The content of clusters.yaml for the rest of the hub: frozen and complete, with all layers merged.

Only ``hub.registry`` knows how the file is loaded (YAML, pydantic, positions). Equal specs have the same effect, so a
reload touches only specs that differ. Durations are in seconds, percentages are fractions (0.5), and networks are
:mod:`ipaddress` objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Literal

import msgspec

from hub.model import LOCAL, Finding, ObjectKey, TargetKey, join_first

Network = IPv4Network | IPv6Network

HEALTH_CHECK: Final = 0
"""Value of ``NodePortRef.port`` that means the Service's healthCheckNodePort; no real port has the number 0."""
ENDPOINT_COPIER: Final = "endpoint-copier"
"""Value of ``adopt`` for the slices of endpoint-copier-operator, which have no managed-by label."""
LABEL_COPIER_SOURCE: Final = "endpoint-copier/source"
"""The label that identifies the slices of endpoint-copier-operator."""
ClusterState = Literal["active", "standby", "frozen"]


@dataclass(frozen=True, slots=True)
class KubeconfigPath:
    """A kubeconfig file.

    Attributes:
        path: absolute (resolved against the registry's folder).
        context: None = the file's current context.
        written: file, line, column, key and value in the registry, for messages; "" if not from a file. Not compared.
    """

    path: str
    context: str | None = None
    written: str = field(default="", compare=False)


class KubeconfigInCluster(msgspec.Struct, frozen=True):
    """The hub cluster itself, with the hub's own account."""


class KubeconfigSecret(msgspec.Struct, frozen=True):
    """A kubeconfig in a Secret of the hub's ``--secrets-namespace``."""

    secret: str
    key: str = "kubeconfig"
    context: str | None = None


class SelectorTerm(msgspec.Struct, frozen=True):
    """One requirement of a label selector (kubectl syntax: =, ==, !=, in, notin, exists, !exists)."""

    key: str
    operator: Literal["in", "notin", "exists", "absent"]
    values: frozenset[str] = frozenset()


class NodePolicy(msgspec.Struct, frozen=True):
    """``nodes:`` and ``zoneMap:``: which nodes of a source are eligible, and their zones.

    Attributes:
        zones: (zone of the source cluster, zone of the hub cluster), sorted; empty = zones stay, without hints.
    """

    selector: tuple[SelectorTerm, ...] = ()
    control_plane: bool = False
    cordoned: Literal["keep", "not-ready", "drop"] = "keep"
    not_ready_grace: float = 30.0
    max_not_ready: float = 0.5
    exclude_nodes: frozenset[str] = frozenset()
    exclude_addresses: frozenset[str] = frozenset()
    zones: tuple[tuple[str, str], ...] = ()


class GuardPolicy(msgspec.Struct, frozen=True):
    """``guard:``: how much may be removed. ``max_removal`` None = off; ``max_removal_hold`` None = never."""

    empty_results: int = 3
    max_removal: float | None = 0.5
    max_removal_window: float = 600.0
    max_removal_hold: float | None = 300.0


class UnreachablePolicy(msgspec.Struct, frozen=True):
    """``unreachable:``: what happens to the endpoints of a cluster that cannot be reached."""

    after: float = 600.0
    policy: Literal["keep", "not-ready", "remove"] = "keep"
    probe: Literal["off", "tcp"] = "off"


class HealthPolicy(msgspec.Struct, frozen=True):
    """``health:``: active checks. In the default ``mode`` "off" the other keys have their defaults.

    Attributes:
        port: None = the first TCP port that is published.
        service: the Service whose healthCheckNodePort is probed; None = probe ``port``.
        host: the Host header, or :authority of grpc; "" = the address.
        headers: (name, value) pairs, sorted.
        status: ranges (first, last) of accepted HTTP statuses, sorted.
        server_name: for SNI and the certificate; "" = the address.
        ca: absolute path of a file with trusted certificates; "" = the system's.
        grpc_service: the service that is asked for; "" = the server as a whole.
    """

    mode: Literal["off", "tcp", "http", "https", "grpc", "grpcs"] = "off"
    port: int | None = None
    interval: float = 5.0
    timeout: float = 3.0
    rise: int = 2
    fall: int = 3
    on_fail: Literal["not-ready", "remove"] = "not-ready"
    path: str = "/"
    method: Literal["GET", "HEAD", "OPTIONS"] = "GET"
    host: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    status: tuple[tuple[int, int], ...] = ((200, 399),)
    server_name: str = ""
    ca: str = ""
    insecure: bool = False
    service: TargetKey | None = None
    grpc_service: str = ""


class ProviderRef(msgspec.Struct, frozen=True):
    """A provider by the name of its entry point, with the provider's own configuration (plain JSON values)."""

    name: str
    config: str = "{}"
    """The configuration as canonical JSON (sorted keys): hashable and comparable."""


class CloudNodesSpec(msgspec.Struct, frozen=True):
    """``cloud.nodes``. Times in seconds.

    Attributes:
        delete: whether Nodes whose machine is gone are deleted.
        max_delete: most deletions within ``delete_window``: a fraction of the cluster's Nodes, at least one Node.
        refresh: time between two questions about all Nodes.
        monitor: time between two questions about Nodes that are not Ready.
    """

    initialize: bool = True
    addresses: bool = True
    shutdown_taint: bool = True
    delete: Literal["guarded", "never"] = "guarded"
    delete_after: float = 60.0
    max_delete: float = 0.1
    delete_window: float = 600.0
    refresh: float = 300.0
    monitor: float = 20.0


class CloudBalancersSpec(msgspec.Struct, frozen=True):
    """``cloud.loadBalancers``. Times in seconds.

    Attributes:
        class_: the ``spec.loadBalancerClass`` of the Services; "" = those without a class.
        namespaces: the Services' namespaces; () = all.
        settle: time without a change of the nodes after which balancers follow; None = the cloud's own.
        settle_max: the longest time after the first change, see :func:`hub.controller.services.follow_at`; None = the
            cloud's own.
        resync: time between two observations while nothing changes.
        orphans: what happens to objects under this cluster's name that no Service needs.
        concurrent: Services whose balancers are changed at once.
    """

    class_: str = ""
    namespaces: tuple[str, ...] = ()
    settle: float | None = None
    settle_max: float | None = None
    resync: float = 600.0
    orphans: Literal["report", "delete"] = "report"
    concurrent: int = 8


class CloudSpec(msgspec.Struct, frozen=True):
    """``clusters[].cloud``: the cloud controller of one cluster.

    Attributes:
        manage: whether anything is written; False = ``mode: observe``.
        cluster_name: the last part of every object's name.
        former_names: earlier values of ``cluster_name``.
        nodes: None = off.
        balancers: None = off.
    """

    provider: ProviderRef
    cluster_name: str
    manage: bool = True
    former_names: tuple[str, ...] = ()
    nodes: CloudNodesSpec | None = CloudNodesSpec()
    balancers: CloudBalancersSpec | None = CloudBalancersSpec()


class ClusterSpec(msgspec.Struct, frozen=True):
    """One entry of ``clusters:``, or the built-in cluster ``local``.

    Attributes:
        cloud: the cluster's cloud controller; None = this hub is not its cloud controller.
    """

    name: str
    provider: ProviderRef | None
    kubeconfig: KubeconfigPath | KubeconfigSecret | KubeconfigInCluster | None = None
    formerly: tuple[str, ...] = ()
    state: ClusterState = "active"
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    allowed_cidrs: tuple[Network, ...] = ()
    allowed_ports: tuple[tuple[int, int], ...] = ()
    max_endpoints: int = 5000
    cloud: CloudSpec | None = None


class SourceSpec(msgspec.Struct, frozen=True):
    """One source of a target, with all layers merged.

    Attributes:
        provider: its name is "" if neither the source nor a valid cluster entry names a provider, which happens only
            if the cluster's entry is broken; such a source is unknown.
        guard_set: fields of ``guard`` that are written in the file; the provider type's defaults apply to the others.
    """

    cluster: str
    provider: ProviderRef
    nodes: NodePolicy = NodePolicy()
    guard: GuardPolicy = GuardPolicy()
    unreachable: UnreachablePolicy = UnreachablePolicy()
    guard_set: frozenset[str] = frozenset()
    health: HealthPolicy = HealthPolicy()


class NodePortRef(msgspec.Struct, frozen=True):
    """The nodePort of a Service's port in the source cluster; the port is given by name or number.

    ``HEALTH_CHECK`` as the port means the Service's healthCheckNodePort.
    """

    service: TargetKey
    port: int | str


class PortSpec(msgspec.Struct, frozen=True):
    """A port written in the registry entry.

    Attributes:
        port: 0 if ``node_port`` gives the number.
        name: None = the name of the Service's only port.
        node_port: where to read the number; None = the number is ``port``.
    """

    port: int
    name: str | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    app_protocol: str | None = None
    node_port: NodePortRef | None = None


class FailoverPolicy(msgspec.Struct, frozen=True):
    """``failover:``: details of strategy failover."""

    min_ready: int = 1
    after: float = 30.0
    failback: Literal["auto", "manual"] = "auto"
    failback_after: float = 300.0


class TargetSpec(msgspec.Struct, frozen=True):
    """One entry of ``services:``. ``ports`` None = from the Service; ``adopt`` "" = adopt no slices."""

    key: TargetKey
    sources: tuple[SourceSpec, ...]
    strategy: Literal["merge", "failover"] = "merge"
    failover: FailoverPolicy = FailoverPolicy()
    ports: tuple[PortSpec, ...] | None = None
    policy: Literal["sync", "upsert-only"] = "sync"
    endpoints_per_slice: int = 100
    drain: float = 0.0
    adopt: str = ""


class CopyRule(msgspec.Struct, frozen=True):
    """A rule that allows the Services ``to`` to copy the Services ``from_``.

    All are patterns of ``namespace/name``, in which ``*`` stands for any run of characters.
    """

    from_: str
    to: tuple[str, ...]


class AnnotationPolicy(msgspec.Struct, frozen=True):
    """``annotations:``: copies that Services ask for by annotation.

    Attributes:
        enabled: whether Services may ask for copies.
        allow: the allowed copies; empty = a Service may copy Services of its own namespace only.
        source: the template of every copy's source: the hub cluster with the file's ``defaults``. Each copy sets its
            own provider.
    """

    enabled: bool = False
    allow: tuple[CopyRule, ...] = ()
    source: SourceSpec = SourceSpec(LOCAL, ProviderRef(""))


VIEW_ANNOTATION: Final = "dcontroller.io/endpointslice-controller-enabled"
"""Default annotation of Services that get endpoint views; its value does not matter."""


class ViewsSpec(msgspec.Struct, frozen=True):
    """``views:``: which Services get endpoint views, and which consumers are called.

    Attributes:
        clusters: names, without repetition, in file order.
        annotation: Services with this annotation get views.
        select: a CEL expression that is used instead of the annotation; "" = use the annotation.
        hooks: names of the consumers' entry points.
    """

    clusters: tuple[str, ...] = (LOCAL,)
    annotation: str = VIEW_ANNOTATION
    select: str = ""
    hooks: tuple[str, ...] = ()


class AccountSpec(msgspec.Struct, frozen=True):
    """One entry of ``allocations.clouds``.

    Attributes:
        provider: the provider with the account's configuration.
        addresses: nothing outside of these networks may be claimed.
        clusters: whose nodes may hold addresses.
        interval: seconds between descriptions.
    """

    name: str
    provider: ProviderRef
    addresses: tuple[Network, ...]
    clusters: tuple[str, ...] = (LOCAL,)
    interval: float = 15.0


class AllocationLimits(msgspec.Struct, frozen=True):
    """``allocations.limits`` and ``ownNode``. Seconds and fractions."""

    concurrent: int = 5
    moves: float = 0.5
    window: float = 600.0
    per_address: int = 3
    per_address_window: float = 3600.0
    dwell: float = 300.0
    max_not_ready: float = 0.5
    own_node: Literal["last", "never", "allow"] = "last"


class AllocationsSpec(msgspec.Struct, frozen=True):
    """``allocations:``.

    Attributes:
        accounts: by name.
        broken: account name -> text of the problems, for accounts whose entries are broken and therefore frozen.
        enforce: whether addresses and labels are changed.
        interlock: the Lease of another controller, or None.
        cordoned_hold: seconds; None = never, but 5 minutes for DaemonSets; ``inf`` = never, also for these.
        eviction: the most that an allocation may ask for.
    """

    accounts: Mapping[str, AccountSpec]
    broken: Mapping[str, str] = msgspec.field(default_factory=dict)
    enforce: bool = False
    interlock: ObjectKey | None = None
    not_ready_grace: float = 30.0
    cordoned_hold: float | None = None
    eviction: Literal["None", "Evict", "ForceDelete"] = "Evict"
    limits: AllocationLimits = AllocationLimits()


class Registry(msgspec.Struct, frozen=True):
    """A whole accepted clusters.yaml.

    Attributes:
        clusters: by name, ``local`` included.
        targets: by key.
        broken_clusters: name -> text of the problems, for clusters whose entries are broken and therefore frozen.
        broken_targets: the same for services, by key.
        digest: hex digest of the file's bytes.
        frozen_names: cluster names whose slices must not be touched: names and former names of broken clusters.
        folder: the registry's folder, absolute; relative paths of providers start there.
        annotations: whether Services may ask for copies, and for which.
        notes: findings on Services that are always reported, such as why a Service is not a target.
        withdrawn: Services that no longer ask for a copy; the removal of their slices does not count as a removal by
            the file.
        views: None = no endpoint views.
        allocations: None = no addresses are attached to nodes.
    """

    owner: str
    clusters: Mapping[str, ClusterSpec]
    targets: Mapping[TargetKey, TargetSpec]
    previous_owners: tuple[str, ...] = ()
    denied_cidrs: tuple[Network, ...] = ()
    broken_clusters: Mapping[str, str] = msgspec.field(default_factory=dict)
    broken_targets: Mapping[TargetKey, str] = msgspec.field(default_factory=dict)
    digest: str = ""
    frozen_names: frozenset[str] = frozenset()
    folder: str = ""
    annotations: AnnotationPolicy = AnnotationPolicy()
    notes: Mapping[TargetKey, Finding] = msgspec.field(default_factory=dict)
    withdrawn: frozenset[TargetKey] = frozenset()
    views: ViewsSpec | None = None
    allocations: AllocationsSpec | None = None


REGISTRY_HELD: Final = "RegistryRemovalWithheld"
"""Reason of the finding about a withheld mass removal."""
NAMED: Final = 5
"""Most entries that the message of a withheld removal names."""


def service_entry(key: TargetKey) -> str:
    """The text that names a Service's entry in :class:`RegistryHeld`."""
    return f"service {key}"


def cluster_entry(name: str) -> str:
    """The text that names a cluster's entry in :class:`RegistryHeld`."""
    return f"cluster {name}"


class RegistryHeld(msgspec.Struct, frozen=True):
    """A mass removal that is withheld.

    Attributes:
        hash: identifies the removal in an approval.
        entries: the entries that the registry lacks and whose slices stay; sorted.
        endpoints: number of endpoints that the removal would remove.
        total: number of all endpoints in this hub's slices.
        approve: the command that approves the removal.
    """

    hash: str
    entries: tuple[str, ...]
    endpoints: int
    total: int
    approve: str

    @property
    def message(self) -> str:
        """One sentence with what is withheld and the command that approves it."""
        return (
            f"the registry lacks {len(self.entries)} entries ({join_first(self.entries, NAMED)}) with "
            f"{self.endpoints} of {self.total} endpoints; withheld until: {self.approve}"
        )

    @property
    def finding(self) -> Finding:
        """The finding for the targets concerned."""
        return Finding(REGISTRY_HELD, self.message, self.entries)
