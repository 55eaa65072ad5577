"""The complete input of one decision about one target, gathered once and frozen."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from hub.decide.addresses import AddressPolicy
from hub.decide.checks import NO_VERDICTS, Verdicts
from hub.decide.ports import NO_READINGS, PortReading
from hub.decide.view import ViewResult
from hub.model import Finding, GuardDefaults, Service, Slice, SourceView, TargetKey
from hub.registry.spec import NodePortRef, Registry, RegistryHeld, SourceSpec, TargetSpec


class HubIdentity(msgspec.Struct, frozen=True):
    """The identity of the hub that decides, and its settings that decisions depend on.

    Attributes:
        lease: ``namespace/name`` of the Lease that allows this hub to write; it is on every slice.
        removal_grace: seconds before slices are deleted that clusters.yaml no longer asks for.
        flags: options that ``hub approve`` needs to find this hub's approvals, for messages.
        take_over: targets whose slices this hub owns although another Lease of its owner wrote them.
    """

    lease: str
    removal_grace: float = 60.0
    flags: str = ""
    take_over: frozenset[TargetKey] = frozenset()


class SourceReading(msgspec.Struct, frozen=True):
    """One source of a target, as observed now.

    Attributes:
        spec: the registry entry of the source.
        result: the endpoints that the source offers.
        answers: number of the last complete answer, 1, 2, ...; a different number means a different answer.
        guard: guard defaults of the provider type.
        unreachable_for: seconds without a connection to the cluster; None while it is connected, or while the
            ``unreachable`` policies are suspended.
        node_ports: nodePorts read in the cluster.
        wrong_cluster: why the kubeconfig leads to another cluster than it should; "" if it does not.
        twins: names of the registry's clusters that are this same cluster.
        addresses: which of the source's addresses may be published or probed; None if nothing follows the source.
    """

    spec: SourceSpec
    result: ViewResult
    answers: int = 0
    guard: GuardDefaults = GuardDefaults()
    unreachable_for: float | None = None
    node_ports: Mapping[NodePortRef, PortReading] = msgspec.field(default_factory=lambda: NO_READINGS)
    wrong_cluster: str = ""
    twins: tuple[str, ...] = ()
    addresses: AddressPolicy | None = None


def not_followed(cluster: str) -> ViewResult:
    """The view of a source that nothing follows: unknown."""
    return ViewResult(SourceView(cluster, "not followed", {}), {})


class PastWrites(msgspec.Struct, frozen=True):
    """Results of earlier writes of a target.

    Attributes:
        refused: addresses that the API server refuses; they are neither added nor changed.
        foreign: names of slices that another writer owns.
        findings: problems of these writes.
        retry_in: seconds until the first refusal ends; None if there is none.
    """

    refused: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    retry_in: float | None = None


class TargetSnapshot(msgspec.Struct, frozen=True):
    """Everything that a decision about a target depends on, except :class:`~hub.decide.decision.TargetState`.

    Attributes:
        hub: the hub that decides.
        key: the target.
        now: seconds of a monotonic clock.
        wall: Unix time.
        registry: the registry in force.
        service: the hub Service; None if it does not exist.
        namespace_watched: whether the hub watches the target's namespace.
        observed: slices of the target with the hub's owner label, or that of a previous owner.
        sources: readings of the target's sources, in the registry's order.
        writes: results of earlier writes.
        verdicts: verdicts of health checks.
        approvals: hashes that are approved and have not expired.
        held: registry entry -> the withheld mass removal that it is part of.
        uids: source cluster -> its UID, if it is known.
        theirs: slices of the controller that this target adopts from; None while they have not been listed.
        notes: findings that other parts of the hub attached to the target.
        hub_zones: the zones of the hub cluster's Nodes; None = not known.
    """

    hub: HubIdentity
    key: TargetKey
    now: float
    wall: float
    registry: Registry
    service: Service | None = None
    namespace_watched: bool = True
    observed: tuple[Slice, ...] = ()
    sources: tuple[SourceReading, ...] = ()
    writes: PastWrites = PastWrites()
    verdicts: Verdicts = NO_VERDICTS
    approvals: Collection[str] = frozenset()
    held: Mapping[str, RegistryHeld] = {}
    uids: Mapping[str, str] = {}
    theirs: tuple[Slice, ...] | None = ()
    notes: tuple[Finding, ...] = ()
    hub_zones: frozenset[str] | None = None

    @property
    def target(self) -> TargetSpec | None:
        """The target's registry entry; None if there is none or it is broken."""
        return self.registry.targets.get(self.key)
