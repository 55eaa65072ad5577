"""Builders of values for tests; every argument has a default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

import msgspec

from hub.decide.checks import Verdicts, Watch
from hub.decide.decision import Decision
from hub.decide.endpoints import EndpointGroup, EndpointSet, GroupKey
from hub.decide.guard import GuardMemory, GuardVerdict, guard
from hub.decide.plan import Identity, Plan, apply_plan, plan, state_of
from hub.decide.record import decode, encode
from hub.decide.sources import SourceInput
from hub.decide.target import Desired, DesiredMemory, TargetInput, desired_endpoints
from hub.model import (
    ANNOTATION_LEASE,
    LABEL_MANAGED_BY,
    LABEL_OWNER,
    LABEL_SERVICE_NAME,
    LABEL_SOURCE_CLUSTER,
    MANAGED_BY,
    PUBLISHED,
    Conditions,
    Endpoint,
    Node,
    NodeAddress,
    ObjectReference,
    OwnerReference,
    Port,
    Service,
    ServicePort,
    Slice,
    SourceView,
    Taint,
    TargetKey,
)
from hub.registry.spec import GuardPolicy, Network, ProviderRef, SourceSpec, TargetSpec

READY_SINCE = "2026-01-01T00:00:00Z"
READY_SINCE_WALL = 1767225600.0
PORT = Port("https", 30443, "TCP")
UID = "0b6a1d3e-0000-4000-8000-000000000001"


def fresh_copies(observed: Iterable[Slice]) -> list[Slice]:
    """Copies of the slices whose endpoint tuples are new objects, so that no cache knows them."""
    return [msgspec.structs.replace(slice_, endpoints=(*slice_.endpoints,)) for slice_ in observed]


def node(
    name: str = "n1",
    *addresses: str,
    ready: bool | str = True,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[str] = (),
    zone: str = "",
    ready_since: str = READY_SINCE,
    **more: Any,
) -> Node:
    """A Node; ``addresses`` become its InternalIPs."""
    every = dict(labels or {})
    if zone:
        every["topology.kubernetes.io/zone"] = zone
    return Node(
        name=name,
        ready=str(ready) if isinstance(ready, bool) else ready,
        ready_since=ready_since,
        labels=every,
        addresses=tuple(NodeAddress("InternalIP", address) for address in addresses),
        taints=tuple(Taint(key, "NoSchedule") for key in taints),
        **more,
    )


def endpoint(
    address: str = "10.0.0.1", node: str | None = None, conditions: Conditions = PUBLISHED, **more: Any
) -> Endpoint:
    """An endpoint; ``node`` sets its targetRef."""
    reference = ObjectReference(kind="Node", name=node) if node is not None else None
    return Endpoint((address,), conditions, target_ref=reference, **more)


def endpoints(count: int, start: int = 0) -> dict[str, Endpoint]:
    """``count`` endpoints of nodes n0, n1, …, by address and in order."""
    made = [endpoint(address(i), f"n{i}") for i in range(start, start + count)]
    return {endpoint.address: endpoint for endpoint in sorted(made, key=lambda endpoint: endpoint.address)}


def address(number: int) -> str:
    """The IPv4 address for a number."""
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def service(
    name: str = "payments",
    namespace: str = "edge",
    *,
    ports: Sequence[ServicePort] = (ServicePort(443, "https", target_port=30443),),
    uid: str = UID,
    **more: Any,
) -> Service:
    """A selector-less Service."""
    return Service(namespace, name, uid, ports=tuple(ports), **more)


def slice(  # noqa: A001 - always read as build.slice
    name: str = "payments-00000000-0",
    endpoints: Iterable[Endpoint] | Mapping[str, Endpoint] = (),
    *,
    cluster: str = "eu",
    family: str = "IPv4",
    namespace: str = "edge",
    service: str = "payments",
    ports: Sequence[Port] = (PORT,),
    owner: str = "default",
    lease: str = "hub/one",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    uid: str = UID,
    resource_version: str = "1",
    **more: Any,
) -> Slice:
    """A slice of the hub, as observed."""
    content = endpoints.values() if isinstance(endpoints, Mapping) else endpoints
    return Slice(
        namespace,
        name,
        family,
        tuple(content),
        tuple(ports),
        {
            LABEL_SERVICE_NAME: service,
            LABEL_MANAGED_BY: MANAGED_BY,
            LABEL_SOURCE_CLUSTER: cluster,
            LABEL_OWNER: owner,
            **(labels or {}),
        },
        {ANNOTATION_LEASE: lease, **(annotations or {})},
        (OwnerReference("v1", "Service", service, uid),),
        uid=f"uid-{name}",
        resource_version=resource_version,
        **more,
    )


def view(
    cluster: str = "eu",
    ipv4: Mapping[str, Endpoint] | Iterable[Endpoint] = (),
    ipv6: Mapping[str, Endpoint] | Iterable[Endpoint] = (),
    *,
    unknown: str | None = None,
    nodes: Iterable[str] | None = None,
    unknown_nodes: Iterable[str] = (),
    **more: Any,
) -> SourceView:
    """A source's view; ``nodes`` (all that exist) defaults to the nodes of the endpoints."""
    families = {"IPv4": by_address(ipv4), "IPv6": by_address(ipv6)}
    behind = {
        endpoint.target_ref.name for family in families.values() for endpoint in family.values() if endpoint.target_ref
    }
    pending = frozenset(unknown_nodes)
    return SourceView(
        cluster, unknown, families, pending, frozenset(behind | pending if nodes is None else nodes), **more
    )


def by_address(content: Mapping[str, Endpoint] | Iterable[Endpoint]) -> EndpointSet:
    """Endpoints by address; an EndpointSet is returned as it is."""
    if isinstance(content, Mapping):
        return EndpointSet.of(content)
    return EndpointSet(
        (endpoint.address, endpoint) for endpoint in sorted(content, key=lambda endpoint: endpoint.address)
    )


def source(cluster: str = "eu", **more: Any) -> SourceSpec:
    """A source of a target."""
    return SourceSpec(cluster, ProviderRef("node-addresses"), **more)


def target(*clusters: str, name: str = "payments", namespace: str = "edge", **more: Any) -> TargetSpec:
    """A registry entry with these clusters as sources."""
    more.setdefault("sources", tuple(source(cluster) for cluster in clusters or ("eu",)))
    return TargetSpec(TargetKey(namespace, name), **more)


def networks(*texts: str) -> tuple[Network, ...]:
    """Networks from text."""
    return tuple(map(ip_network, texts))


def decision(groups: Sequence[EndpointGroup] = (), watches: Sequence[Watch] = (), **more: Any) -> Decision:
    """A decision about edge/payments with these groups and health checks."""
    desired = Desired(tuple(groups), (), (), DesiredMemory(), watches=tuple(watches))
    return Decision(TargetKey("edge", "payments"), desired=desired, **more)


_target, _service = target, service


class Pipeline:
    """Runs one target through all pure stages, in passes: each pass observes the slices that the previous one planned.

    Attributes:
        slices: the published slices.
        now: the time in seconds; tests set it.
        hub_zones: the zones of the hub cluster's Nodes; None = not known.
        desired, planned, verdicts: results of the last pass.
    """

    def __init__(
        self, target: TargetSpec | None = None, service: Service | None = None, *, guarded: bool = False
    ) -> None:
        self.target = target if target is not None else _target()
        self.service = service if service is not None else _service()
        self.guarded = guarded
        self.identity = Identity("default", "hub/one")
        self.slices: tuple[Slice, ...] = ()
        self.now = 1000.0
        self.wall = 1.8e9
        self.answer = 0
        self.approvals: set[str] = set()
        self.health: Verdicts = {}
        self.hub_zones: frozenset[str] | None = None
        self.memory = DesiredMemory()
        self.guards: dict[GroupKey, GuardMemory] = {}
        self.verdicts: dict[GroupKey, GuardVerdict] = {}
        self.desired: Desired | None = None
        self.planned = Plan()

    def restart(self) -> None:
        """Forget everything except the published slices, which become new objects, as after a restart."""
        self.slices = tuple(fresh_copies(self.slices))
        self.memory = DesiredMemory()
        self.guards = {}

    def plan(self, *offers: SourceView | SourceInput) -> Plan:
        """Decide and plan; applies nothing."""
        specs = {source.cluster: source for source in self.target.sources}
        sources = [
            offer if isinstance(offer, SourceInput) else SourceInput(specs[offer.cluster], offer) for offer in offers
        ]
        desired = desired_endpoints(
            TargetInput(
                self.target,
                self.service,
                sources,
                self.slices,
                self.now,
                verdicts=self.health,
                hub_zones=self.hub_zones,
            ),
            self.memory,
        )
        assert isinstance(desired, Desired), desired
        self.desired, self.memory = desired, desired.memory
        groups, states = [], {}
        for group in desired.groups:
            if self.guarded:
                group = self._guard(group)
                states[group.key] = encode(self.verdicts[group.key].record)
            groups.append(group)
        self.planned = plan(
            self.service,
            groups,
            self.identity,
            limit=self.target.endpoints_per_slice,
            states=states,
            taken=[slice_.name for slice_ in desired.untouched],
        )
        return self.planned

    def _guard(self, group: EndpointGroup) -> EndpointGroup:
        policy = next((s.guard for s in self.target.sources if s.cluster == group.key.cluster), GuardPolicy())
        verdict = guard(
            self.target.key,
            group,
            policy,
            decode(state_of(group)),
            self.guards.get(group.key),
            answer=self.answer,
            approvals=self.approvals,
            now=self.now,
            wall=self.wall,
        )
        self.guards[group.key] = verdict.memory
        self.verdicts[group.key] = verdict
        return verdict.group

    def run(self, *offers: SourceView | SourceInput, after: float = 0.0) -> dict[str, set[str]]:
        """Run a pass ``after`` seconds later and apply its plan; returns the published addresses by cluster."""
        self.now += after
        self.wall += after
        self.slices = apply_plan(self.slices, self.plan(*offers))
        return self.published()

    def published(self) -> dict[str, set[str]]:
        """The published addresses by cluster, for clusters that have any."""
        found: dict[str, set[str]] = {}
        for slice_ in self.slices:
            for endpoint in slice_.endpoints:
                found.setdefault(slice_.cluster, set()).add(endpoint.address)
        return found

    def reasons(self) -> list[str]:
        """The reasons of the last pass's findings."""
        assert self.desired is not None
        return [finding.reason for finding in self.desired.findings]

    def endpoint(self, address: str) -> Endpoint:
        """The published endpoint with an address. Fails unless there is exactly one."""
        (found,) = [endpoint for slice_ in self.slices for endpoint in slice_.endpoints if endpoint.address == address]
        return found
