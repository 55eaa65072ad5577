"""The inputs and the outcome of one decision, as plain values that do not depend on the code that decides."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hub.decide.checks import Check
from hub.model import Finding, Service, Slice, SourceView, TargetKey
from hub.registry.spec import NodePortRef, RegistryHeld, TargetSpec


class HubMoment(msgspec.Struct, frozen=True):
    """The parts of the inputs that stay the same in a sequence."""

    lease: str = "hub/one"
    grace: float = 60.0
    flags: str = ""
    take_over: bool = False
    probes: bool = True


class ClusterMoment(msgspec.Struct, frozen=True):
    """The part of a cluster's registry entry that decisions depend on."""

    state: str = "active"
    allowed_ports: tuple[tuple[int, int], ...] = ()
    formerly: tuple[str, ...] = ()


class RegistryMoment(msgspec.Struct, frozen=True):
    """The part of the registry that decisions about one target depend on."""

    owner: str = "default"
    clusters: Mapping[str, ClusterMoment] = {}
    broken_clusters: Mapping[str, str] = {}
    frozen_names: frozenset[str] = frozenset()
    broken: str | None = None
    """Why the target's own entry is broken; None if it is not."""
    note: Finding | None = None


class SourceMoment(msgspec.Struct, frozen=True):
    """One source of the target.

    Attributes:
        view: the source's view, without ``kept``.
        kept: addresses in the view whose node is not Ready.
        wake_at: Unix time at which the view changes by itself.
        answers: number of the last complete answer.
        empty_results, max_removal: the provider type's own guard defaults.
        unreachable_for: seconds; None while the cluster can be reached.
        node_ports: port -> (number, problem).
    """

    view: SourceView
    kept: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    wake_at: float | None = None
    answers: int = 0
    empty_results: int | None = None
    max_removal: float | str | None = None
    unreachable_for: float | None = None
    wrong_cluster: str = ""
    twins: tuple[str, ...] = ()
    node_ports: Mapping[NodePortRef, tuple[int | None, str]] = {}


class Moment(msgspec.Struct, frozen=True):
    """The inputs of one decision about one target.

    Attributes:
        now: monotonic time in seconds.
        wall: Unix time.
        observed: slices of the target's Service with our owner label or a former one.
        refused: addresses that the API server refused.
        foreign: names of slices that the hub does not own.
        written: findings about earlier writes.
        retry_in: seconds until a refused write is retried.
        verdicts: health verdicts, by check and address.
        probing: findings about the probes.
        held: registry entry -> the withheld removal that it is part of.
        uids: UIDs of the source clusters.
        theirs: slices of the controller that the hub replaces; None if they are not known yet.
        deleted: UIDs of those slices that were deleted since the last decision.
        notes: findings that other parts of the hub attached to the target.
    """

    hub: HubMoment
    key: TargetKey
    now: float
    wall: float
    registry: RegistryMoment
    target: TargetSpec | None = None
    service: Service | None = None
    namespace_followed: bool = True
    observed: tuple[Slice, ...] = ()
    sources: Mapping[str, SourceMoment] = {}
    suspended: bool = False
    refused: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    written: tuple[Finding, ...] = ()
    retry_in: float | None = None
    verdicts: Mapping[Check, Mapping[str, bool | None]] = {}
    probing: tuple[Finding, ...] = ()
    approvals: frozenset[str] = frozenset()
    held: Mapping[str, RegistryHeld] = {}
    uids: Mapping[str, str] = {}
    theirs: tuple[Slice, ...] | None = ()
    deleted: tuple[str, ...] = ()
    notes: tuple[Finding, ...] = ()


class HeldBack(msgspec.Struct, frozen=True):
    """The endpoints of one source and family that the guard withholds."""

    cluster: str
    family: str
    kind: str
    hash: str
    addresses: tuple[str, ...]
    since: float
    message: str


class Probed(msgspec.Struct, frozen=True):
    """The addresses of one source and family to probe, sorted."""

    cluster: str
    family: str
    check: Check
    addresses: tuple[str, ...]


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one decision.

    Attributes:
        status: why there is no decision; "" if there is one.
        planned: creates, updates, deletes; None if there is no decision.
        again_after: seconds until the next decision, to a microsecond.
        asked_again: clusters whose list is requested again.
    """

    status: str
    planned: tuple[tuple[Slice, ...], tuple[Slice, ...], tuple[Slice, ...]] | None = None
    unchanged: int = 0
    withheld: tuple[HeldBack, ...] = ()
    findings: tuple[Finding, ...] = ()
    unknown: Mapping[str, str] = {}
    again_after: float | None = None
    probed: tuple[Probed, ...] = ()
    asked_again: tuple[str, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """One decision: its inputs and its outcome."""

    moment: Moment
    outcome: Outcome
