"""The inputs and the outcome of one decision, as plain values that know nothing of the code that decides."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hub.decide.checks import Check
from hub.model import Finding, Service, Slice, SourceView, TargetKey
from hub.registry.spec import NodePortRef, RegistryHeld, TargetSpec


class HubMoment(msgspec.Struct, frozen=True):
    """What stays the same for a whole sequence."""

    lease: str = "hub/one"
    grace: float = 60.0
    flags: str = ""
    take_over: bool = False
    probes: bool = True


class ClusterMoment(msgspec.Struct, frozen=True):
    """A cluster's registry entry, as far as decisions read it."""

    state: str = "active"
    allowed_ports: tuple[tuple[int, int], ...] = ()
    formerly: tuple[str, ...] = ()


class RegistryMoment(msgspec.Struct, frozen=True):
    """The registry, as far as decisions about one target read it."""

    owner: str = "default"
    clusters: Mapping[str, ClusterMoment] = {}
    broken_clusters: Mapping[str, str] = {}
    frozen_names: frozenset[str] = frozenset()
    broken: str | None = None
    """Why the target's own entry is broken; None where it is not."""
    note: Finding | None = None


class SourceMoment(msgspec.Struct, frozen=True):
    """One source of the target.

    Attributes:
        view: as the source offers it, without ``kept``.
        kept: addresses in the view whose node is not Ready.
        wake_at: Unix time.
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
        now: seconds that only move forward.
        wall: Unix time.
        observed: slices with the target's Service name and our owner, or a former one.
        refused: addresses that the API server refused.
        foreign: names of slices that are not ours.
        written: findings about earlier writes.
        retry_in: seconds until a refusal ends.
        verdicts: of health checks, by check and address.
        probing: findings about the probes.
        held: registry entry -> the withheld removal it is part of.
        uids: of source clusters.
        theirs: slices of the controller that is to be replaced; None where they are not known yet.
        deleted: UIDs of those slices that were deleted since the last decision.
        notes: findings that others attached to the target.
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
    """What the guard withholds of one source and family."""

    cluster: str
    family: str
    kind: str
    hash: str
    addresses: tuple[str, ...]
    since: float
    message: str


class Probed(msgspec.Struct, frozen=True):
    """What is to be probed of one source and family; the addresses are sorted."""

    cluster: str
    family: str
    check: Check
    addresses: tuple[str, ...]


class Outcome(msgspec.Struct, frozen=True):
    """What was decided.

    Attributes:
        status: why nothing is decided; "" where something is.
        planned: creates, updates, deletes; None where there is nothing to decide.
        again_after: seconds, to a microsecond.
        asked_again: clusters that are asked for their list once more.
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
    """One decision."""

    moment: Moment
    outcome: Outcome
