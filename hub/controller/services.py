"""Services of type LoadBalancer: which of them the hub serves, and what they want."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from hub.approval import approval_hash
from hub.cloud.balancers import Annotation, Balancer, BalancerNode, BalancerPort, Ingress, Marker, Setting
from hub.controller.annotations import read
from hub.model import ANNOTATION_PAUSED, LABEL_EXCLUDE_LB, Finding, Node, join_first
from hub.registry.spec import CloudBalancersSpec

FINALIZER: Final = "service.kubernetes.io/load-balancer-cleanup"
"""Kubernetes' own finalizer of load balancers."""
OWN_FINALIZER: Final = "endpointslice-hub/load-balancer-cleanup"
"""The hub's finalizer of Services with a class. Other controllers delete the balancer of every Service with Kubernetes'
own finalizer that is being deleted, whatever its class. They find it in the cloud by its name, also if the hub made it.
Source: k8s.io/cloud-provider 0.35.4, controllers/service, needsCleanup.
"""
LEAVING: Final = "ToBeDeletedByClusterAutoscaler"
"""Taint of the cluster autoscaler on a node that it is about to delete."""
_FALSE: Final = ("false", "False", "FALSE", "f", "F", "0")

PATIENCE: Final = 3
MANY: Final = 4
"""See :func:`follow_at`."""
MAX_REMOVAL: Final = 0.5
WINDOW: Final = 600.0
HOLD: Final = 300.0
"""A removal of more than this share of the nodes within the window waits so many seconds, as in the guard of slices."""

Role = Literal["ensure", "delete", "foreign", "none"]


class BalancedService(msgspec.Struct, frozen=True):
    """The parts of a Service that its load balancer depends on.

    Attributes:
        kind: ``spec.type``.
        class_: ``spec.loadBalancerClass``.
        address: ``spec.loadBalancerIP``.
        ingress: ``status.loadBalancer.ingress``.
        record: the value of the hub's annotation; "" without one.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    kind: str = "LoadBalancer"
    class_: str = ""
    deleting: bool = False
    annotations: Mapping[str, str] = {}
    finalizers: tuple[str, ...] = ()
    ports: tuple[BalancerPort, ...] = ()
    address: str = ""
    local: bool = False
    health_port: int = 0
    client_affinity: bool = False
    families: tuple[str, ...] = ("IPv4",)
    source_ranges: tuple[str, ...] = ()
    ingress: tuple[Ingress, ...] = ()
    record: str = ""

    @property
    def finalizer(self) -> str:
        """The finalizer that the hub sets; a Service that is no load balancer any more has no class."""
        return OWN_FINALIZER if self.class_ or OWN_FINALIZER in self.finalizers else FINALIZER

    @property
    def held(self) -> bool:
        """Whether the finalizer is there."""
        return self.finalizer in self.finalizers

    @property
    def paused(self) -> bool:
        """Whether its owner asks the hub to change nothing."""
        return self.annotations.get(ANNOTATION_PAUSED) == "true"

    @property
    def asked(self) -> BalancedService:
        """What its owner asks for: the Service without what the hub writes."""
        return msgspec.structs.replace(self, resource_version="", finalizers=(), ingress=(), record="")

    @property
    def relevant(self) -> bool:
        """Whether the hub must know it."""
        return self.kind == "LoadBalancer" or self.held or bool(self.record)


def role(service: BalancedService, spec: CloudBalancersSpec) -> Role:
    """What the hub does for a Service; :func:`hub.controller.course.remove` leaves what another class has."""
    if spec.namespaces and service.namespace not in spec.namespaces:
        return "none"
    if service.kind == "LoadBalancer" and service.class_ != spec.class_:
        return "foreign"
    if service.kind == "LoadBalancer" and not service.deleting:
        return "ensure"
    ours = service.finalizer == (OWN_FINALIZER if spec.class_ else FINALIZER)
    return "delete" if service.held and ours else "none"


class Names(NamedTuple):
    """The names of one balancer's objects."""

    name: str
    former: tuple[str, ...]
    marker: Marker


def names(service: BalancedService, cluster_name: str, former: Sequence[str], cluster_uid: str) -> Names:
    """How the objects of a Service's balancer are called."""
    base = f"{service.name}.{service.namespace}"
    return Names(f"{base}.{cluster_name}", tuple(f"{base}.{old}" for old in former), Marker(cluster_uid, service.uid))


class Wanted(NamedTuple):
    """What a Service wants.

    Attributes:
        balancer: also for a Service with a mistake, with ``nodes_only``.
        findings: what an operator should know.
        refused: reason and message of the mistake; None if there is none.
    """

    balancer: Balancer
    findings: tuple[Finding, ...] = ()
    refused: tuple[str, str] | None = None


def wanted(
    service: BalancedService,
    named: Names,
    nodes: Collection[BalancerNode],
    declared: Sequence[Annotation],
    prefix: str,
) -> Wanted:
    """What a Service wants of its balancer."""
    found = read(service.annotations, declared, prefix)
    refused: tuple[str, str] | None = None
    if found.refused:
        refused = "AnnotationInvalid", found.refused
    elif not service.ports:
        refused = "NoPorts", "the Service has no ports"
    elif missing := [str(port.port) for port in service.ports if not port.node_port]:
        text = f"port {missing[0]} has no nodePort: set allocateLoadBalancerNodePorts, or name one"
        refused = "NodePortMissing", text
    chosen, findings = _chosen(nodes, found.settings, declared), found.findings
    if nodes and not chosen and not refused:
        text = "no node has the labels that the Service asks for: its load balancer keeps the last nodes"
        findings = (*findings, Finding("UnAvailableLoadBalancer", text))
    balancer = Balancer(
        named.name,
        named.marker,
        service.ports,
        chosen if not found.refused else (),  # the mistake may concern the nodes' labels
        service.address,
        service.local,
        service.health_port,
        service.client_affinity,
        service.families,
        service.source_ranges,
        found.settings,
        named.former,
        nodes_only=refused is not None,
    )
    return Wanted(balancer, findings, refused)


def _chosen(
    nodes: Iterable[BalancerNode], settings: Mapping[str, Setting], declared: Sequence[Annotation]
) -> tuple[BalancerNode, ...]:
    """The nodes that have the labels which annotations ask for, sorted by name."""
    values = (settings.get(each.name) for each in declared if each.kind == "labels")
    asked = {label for value in values if isinstance(value, tuple) for label in value}
    return tuple(
        sorted((node for node in nodes if all(label in node.labels for label in asked)), key=lambda node: node.name)
    )


def unbalanced(node: Node, pattern: re.Pattern[str]) -> str:
    """Why a Node takes no traffic of balancers; "" if it does. Readiness does not count: the cloud checks it itself."""
    if node.deleting:
        return "it is being deleted"
    if not pattern.fullmatch(node.provider_id):
        return "it has no provider ID of this cloud"
    if node.labels.get(LABEL_EXCLUDE_LB, "false") not in _FALSE:
        return f"label {LABEL_EXCLUDE_LB}"
    return f"taint {LEAVING}" if any(taint.key == LEAVING for taint in node.taints) else ""


def balanced(
    nodes: Iterable[Node], pattern: re.Pattern[str], declared: Sequence[Annotation] = ()
) -> dict[str, BalancerNode]:
    """The Nodes that take the traffic of balancers; with their labels, if an annotation asks for labels."""
    labelled = any(each.kind == "labels" for each in declared)
    return {
        node.name: BalancerNode(
            node.name,
            node.provider_id,
            node.addresses,
            tuple(sorted(map("=".join, node.labels.items()))) if labelled else (),
        )
        for node in nodes
        if not unbalanced(node, pattern)
    }


def follow_at(
    changed: tuple[float, float],
    settle: tuple[float, float],
    now: float,
    before: Mapping[str, BalancerNode],
    there: Mapping[str, BalancerNode],
) -> float:
    """When balancers follow the nodes, if these do not change again.

    While nodes only join, and are less than ``MANY`` times as many as balancers have, these wait ``PATIENCE`` times as
    long: a cluster that grows node by node then costs a few rounds of requests, and no traffic waits for a new node.

    Args:
        changed: when the nodes changed for the first and the last time since balancers followed.
        settle: seconds without a change, and the most seconds after the first one.
        now: the time.
        before: the nodes that balancers have.
        there: the nodes that are there.
    """
    (first, last), (quiet, longest) = changed, settle
    if first + longest <= now and before.items() <= there.items() and len(there) < MANY * len(before):
        longest *= PATIENCE
    return min(last + quiet, first + longest)


class Guard:
    """Holds back a mass removal of nodes, and never lets the set become empty.

    Nodes that have left within ``WINDOW`` count, so that a removal in small parts is held back, too.

    Args:
        cluster: the cluster's name.

    Attributes:
        held: the nodes that are gone and still in use; () if none is.
        empty: whether no node is there.
        digest: the hash that approves their removal.
    """

    def __init__(self, cluster: str) -> None:
        self.held: tuple[str, ...] = ()
        self.empty = False
        self.digest = ""
        self._cluster = cluster
        self._used: dict[str, BalancerNode] = {}
        self._left: dict[str, float] = {}
        self._since = 0.0

    def accept(
        self, nodes: Mapping[str, BalancerNode], now: float, approved: Callable[[str], bool]
    ) -> dict[str, BalancerNode]:
        """The nodes to use, for those that there are now."""
        self.empty = not nodes
        self._left = {name: at for name, at in self._left.items() if now - at < WINDOW and name not in nodes}
        going = sorted(self._used.keys() - nodes.keys())
        gone = {*going, *self._left}
        massive = going and len(gone) > 1 and len(gone) > len(self._used.keys() | gone) * MAX_REMOVAL
        if massive or not nodes:
            if not set(going) <= set(self.held):
                self._since = now
            self.held = tuple(going)
            self.digest = approval_hash("cloud-nodes", self._cluster, going) if going else ""
            if not nodes or not (now - self._since >= HOLD or approved(self.digest)):
                return {**{name: self._used[name] for name in going}, **nodes}
            self._left, going = {}, []
        self.held, self.digest = (), ""
        self._left.update(dict.fromkeys(going, now))
        self._used = dict(nodes)
        return dict(nodes)

    def finding(self) -> Finding | None:
        """What an operator should know."""
        if self.empty:
            text = f"cluster {self._cluster} has no node that can take traffic: its load balancers keep the last ones"
            return Finding("UnAvailableLoadBalancer", text)
        if not self.held:
            return None
        text = (
            f"cluster {self._cluster}: {len(self.held)} nodes of its load balancers are gone at once: "
            f"{join_first(self.held, 5)}; they stay until that has lasted {HOLD:.0f} s; hub approve "
            f"cloud/{self._cluster} {self.digest} removes them now"
        )
        return Finding("NodeRemovalWithheld", text, self.held)
