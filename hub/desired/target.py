"""What one target should publish: the sources' views, the Service, the registry entry and what is there.

``desire`` is a function of its arguments. Its memory holds the few things that are not in any snapshot
(moves under way, failover timers) and a cache that is keyed by the identity of values, which makes a pass
over a target in which nothing changed cost next to nothing, and never changes what comes out.

Order of decisions: may this Service be a target at all; what each source claims; which source is active;
what the Service asks of every endpoint; whose address it is; how that differs from what is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from hub.desired.claims import EMPTY, Claim, Move, Moves, Overlaps, filtered, node_of, settle, standing, step_aside
from hub.desired.failover import FailoverMemory, choose
from hub.desired.ports import PortProblem, Ports, ports
from hub.desired.published import Index, Published, same_objects
from hub.desired.shape import Shaper
from hub.model import (
    DRAINING,
    Endpoint,
    EndpointGroup,
    Finding,
    GroupKey,
    Port,
    Service,
    Slice,
    SourceView,
)
from hub.registry.spec import ClusterState, SourceSpec, TargetSpec

EPSILON: Final = 1e-6
"""Seconds by which sums of floats may be off: without it a timer could be due a moment before it is over."""


@dataclass(frozen=True, slots=True)
class SourceInput:
    """One source of a target at this moment.

    Attributes:
        spec: as the registry has it.
        view: what it offers.
        state: the cluster's.
        unreachable_for: seconds without a connection, since the last complete answer; None while there
            is one, or where the ``unreachable`` policy is suspended.
        allowed_ports: the cluster's allowedPorts; None = any (the hub cluster itself).
        formerly: the cluster's old names, whose slices it adopts.
    """

    spec: SourceSpec
    view: SourceView
    state: ClusterState = "active"
    unreachable_for: float | None = None
    allowed_ports: tuple[tuple[int, int], ...] | None = None
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """What a target remembers between two passes; a new one after a restart.

    Attributes:
        moves: addresses on their way from one source to another.
        failover: timers of strategy failover.
    """

    moves: Moves = field(default_factory=dict)
    failover: FailoverMemory = field(default_factory=FailoverMemory)
    cache: Cache = field(default_factory=lambda: Cache(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Desired:
    """What should be published.

    Attributes:
        groups: per source cluster and family; in source order, then what is no source any more.
        untouched: observed slices that must not be written (frozen clusters, a source without ports).
        findings: in a fixed order.
        memory: for the next pass.
        wake_at: when to pass again at the latest, by the clock of ``now``.
    """

    groups: tuple[EndpointGroup, ...]
    untouched: tuple[Slice, ...]
    findings: tuple[Finding, ...]
    memory: TargetMemory
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The Service cannot be a target as it is; what is published stays. ``reason`` is an Event's."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing to publish for yet (or any more): the Service is missing or being deleted."""

    reason: str
    message: str


class Cache:
    """Things that cost something to compute, by the identity of what they were computed from."""

    __slots__ = ("index", "kept", "last", "overlaps", "ports", "shaper")

    def __init__(self) -> None:
        self.index = Index()
        self.shaper = Shaper()
        self.overlaps: dict[str, Overlaps] = {}
        self.ports: dict[str, tuple[tuple[object, ...], Ports | PortProblem]] = {}
        self.kept: dict[GroupKey, tuple[tuple[object, ...], Mapping[str, Endpoint]]] = {}
        self.last: _Pass | None = None


@dataclass(frozen=True, slots=True)
class _Pass:
    """The arguments of a pass and its outcome."""

    target: TargetSpec
    service: Service
    sources: tuple[SourceInput, ...]
    observed: tuple[Slice, ...]
    refused: frozenset[str]
    desired: Desired

    def holds(
        self,
        target: TargetSpec,
        service: Service,
        sources: Sequence[SourceInput],
        observed: Sequence[Slice],
        memory: TargetMemory,
        refused: frozenset[str],
        now: float,
    ) -> bool:
        """Whether the outcome is still the answer: the very same values, and no timer has run out."""
        wake_at = self.desired.wake_at
        return (
            target is self.target
            and service is self.service
            and memory is self.desired.memory
            and (wake_at is None or now < wake_at)
            and refused == self.refused
            and len(sources) == len(self.sources)
            and all(map(_same_source, sources, self.sources))
            and same_objects(observed, self.observed)
        )


def _same_source(one: SourceInput, other: SourceInput) -> bool:
    return one is other or (
        one.view is other.view
        and one.spec is other.spec
        and one.state == other.state
        and one.unreachable_for is None
        and other.unreachable_for is None
        and one.allowed_ports == other.allowed_ports
        and one.formerly == other.formerly
    )


def desire(
    target: TargetSpec,
    service: Service | None,
    sources: Sequence[SourceInput],
    observed: Sequence[Slice],
    memory: TargetMemory,
    now: float,
    *,
    refused: frozenset[str] = frozenset(),
) -> Desired | Refused | Waiting:
    """Decide what one target should publish.

    Args:
        target: the registry entry.
        service: the hub Service; None while it does not exist.
        sources: in the registry's order.
        observed: the slices of this target that are ours to write.
        memory: from the last pass; a new one at first.
        now: seconds that only move forward.
        refused: addresses the API server will not take: not published anew, not changed.
    """
    problem = unfit(service)
    if service is None or problem is not None:
        return problem or Waiting("ServiceMissing", "the Service does not exist")
    last = memory.cache.last
    if last is not None and last.holds(target, service, sources, observed, memory, refused, now):
        return last.desired
    decision = _Decision(target, service, sources, observed, memory, now, refused)
    desired = decision.desired()
    memory.cache.last = _Pass(target, service, tuple(sources), tuple(observed), refused, desired)
    return desired


def unfit(service: Service | None) -> Refused | Waiting | None:
    """Why a Service cannot be a target; None where it can."""
    if service is None:
        return Waiting("ServiceMissing", "the Service does not exist")
    if service.deleting:
        return Waiting("ServiceDeleting", "the Service is being deleted")
    if service.kind == "ExternalName":
        return Refused("ExternalName", "a Service of type ExternalName has no endpoints")
    if service.selector:
        return Refused(
            "SelectorPresent", "the Service has a selector, so Kubernetes writes its endpoints: remove the selector"
        )
    return None


class _Decision:
    """One pass over one target."""

    def __init__(
        self,
        target: TargetSpec,
        service: Service,
        sources: Sequence[SourceInput],
        observed: Sequence[Slice],
        memory: TargetMemory,
        now: float,
        refused: frozenset[str],
    ) -> None:
        self._target = target
        self._service = service
        self._sources = sources
        self._memory = memory
        self._cache = memory.cache
        self._now = now
        self._refused = refused
        self._findings: list[Finding] = []
        self._wakes: list[float] = []
        today = {source.spec.cluster for source in sources}
        renames = {old: source.spec.cluster for source in sources for old in source.formerly if old not in today}
        self._published = self._cache.index.groups(observed, renames)

    def desired(self) -> Desired:
        """Decide."""
        claims: list[Claim] = []
        by_source: dict[str, list[Claim]] = {}
        for source in self._sources:
            cluster = source.spec.cluster
            if cluster in by_source:
                message = f"{cluster} is a source twice; only the first counts"
                self._findings.append(Finding("DuplicateSource", message, (cluster,)))
                continue
            by_source[cluster] = self._claims_of(source)
            claims.extend(by_source[cluster])
        covered = {claim.key for claim in claims}
        claims.extend(self._orphan(key) for key in sorted(self._published) if key not in covered)
        self._cache.shaper.shape(self._service, claims)
        failover = self._memory.failover
        if self._target.strategy == "failover":
            failover = self._fail_over(by_source)
        moves = self._settle(claims)
        self._findings.extend(self._families())
        memory = self._memory
        if moves != memory.moves or failover != memory.failover:
            memory = TargetMemory(moves, failover, self._cache)
        return Desired(
            groups=tuple(group for claim in claims if (group := self._group(claim)) is not None),
            untouched=tuple(each.slice for claim in claims if claim.untouched for each in claim.published.slices),
            findings=tuple(self._findings),
            memory=memory,
            wake_at=min(self._wakes, default=None),
        )

    # --- what each source claims ----------------------------------------------------------------

    def _claims_of(self, source: SourceInput) -> list[Claim]:
        cluster = source.spec.cluster
        mine = [key for key in sorted(self._published) if key.cluster == cluster]
        if source.state == "standby":
            return [self._orphan(key) for key in mine]
        if source.state == "frozen":
            return [self._untouched(key) for key in mine]
        found = self._ports(source)
        if isinstance(found, PortProblem):
            self._findings.append(Finding(found.reason, f"{cluster}: {found.message}", (cluster,)))
            return [self._untouched(key) for key in mine]
        claims = [self._claim(source, GroupKey(cluster, family), found.ports) for family in self._service.families]
        return claims + [self._orphan(key) for key in mine if key.family not in self._service.families]

    def _ports(self, source: SourceInput) -> Ports | PortProblem:
        cluster = source.spec.cluster
        inputs = (self._target, self._service, source.allowed_ports, source.view.ports)
        known = self._cache.ports.get(cluster)
        if known is not None and same_objects(known[0], inputs):
            return known[1]
        found = ports(self._target, self._service, source.allowed_ports, source.view.ports)
        self._cache.ports[cluster] = (inputs, found)
        return found

    def _claim(self, source: SourceInput, key: GroupKey, numbers: tuple[Port, ...]) -> Claim:
        published = self._published[key] if key in self._published else Published()
        view = source.view
        if view.unknown is not None:
            wanted = self._last_known(published, view.endpoints.get(key.family, EMPTY))
            return self._unknown(source, Claim(key, published, wanted, numbers, view, known=False))
        base = view.endpoints.get(key.family, EMPTY)
        wanted = self._with_kept(key, published, base, view)
        return Claim(key, published, wanted, numbers, view)

    def _last_known(self, published: Published, good: Mapping[str, Endpoint]) -> Mapping[str, Endpoint]:
        """What is published, as it is; and what was last known good and is not there.

        So a target that is new, or whose slices or Service were deleted, has its endpoints also while the
        source makes no statement.
        """
        there = published.endpoints
        missing = good.keys() - there.keys() - self._refused
        return {**there, **{address: good[address] for address in sorted(missing)}} if missing else there

    def _unknown(self, source: SourceInput, claim: Claim) -> Claim:
        """A source without a statement: what is published stays, unless its policy says otherwise."""
        policy = source.spec.unreachable
        if source.unreachable_for is None or policy.policy == "keep":
            return claim
        if source.unreachable_for < policy.after - EPSILON:
            self._wakes.append(self._now + policy.after - source.unreachable_for)
            return claim
        claim.exempt_all = True
        if policy.policy == "remove":
            claim.wanted = EMPTY
        else:
            claim.wanted = {address: _draining(endpoint) for address, endpoint in claim.wanted.items()}
        return claim

    def _with_kept(
        self, key: GroupKey, published: Published, base: Mapping[str, Endpoint], view: SourceView
    ) -> Mapping[str, Endpoint]:
        """What the view offers, and what is published and must not go for want of a statement about it."""
        upsert_only = self._target.policy == "upsert-only"
        if not (upsert_only or view.unknown_nodes or not view.complete or self._refused):
            return base
        inputs = (published, base, view, self._target, self._refused)
        known = self._cache.kept.get(key)
        if known is not None and same_objects(known[0], inputs):
            return known[1]
        removed = published.difference(base).removed
        everything = upsert_only or not view.complete
        kept = {
            address: removed[address]
            for address in sorted(removed)
            if everything or node_of(removed[address]) in view.unknown_nodes
        }
        refused = {address for address in self._refused if address in base}
        wanted: Mapping[str, Endpoint] = base
        if kept or refused:
            # What the API server refuses stays as it is published, and is not published anew.
            old = {address: published.endpoints[address] for address in refused if address in published.endpoints}
            wanted = {**{address: each for address, each in base.items() if address not in refused}, **old, **kept}
        self._cache.kept[key] = (inputs, wanted)
        return wanted

    def _untouched(self, key: GroupKey) -> Claim:
        published = self._published[key]
        return Claim(key, published, published.endpoints, known=False, untouched=True)

    def _orphan(self, key: GroupKey) -> Claim:
        """Published by what is no source of the target any more: the registry wants it gone."""
        if self._target.policy == "upsert-only":
            return self._untouched(key)
        published = self._published[key]
        numbers = published.slices[0].slice.ports if published.slices else ()
        return Claim(key, published, EMPTY, numbers, yielding=True, drop=True, exempt_all=True)

    # --- which source is active -------------------------------------------------------------------

    def _fail_over(self, by_source: Mapping[str, list[Claim]]) -> FailoverMemory:
        candidates = {
            source.spec.cluster: [claim for claim in by_source[source.spec.cluster] if not claim.yielding]
            for source in self._sources
            if source.state != "standby"
        }
        policy = self._target.failover
        standings = [standing(cluster, claims, policy.min_ready) for cluster, claims in candidates.items()]
        choice = choose(policy, standings, self._memory.failover, self._now)
        self._findings.extend(choice.findings)
        if choice.wake_at is not None:
            self._wakes.append(choice.wake_at)
        for cluster, claims in candidates.items():
            if cluster != choice.active:
                for claim in claims:
                    step_aside(claim, healthy=choice.healthy, remove=choice.remove_others)
        return choice.memory

    # --- whose address it is ------------------------------------------------------------------------

    def _settle(self, claims: Iterable[Claim]) -> Moves:
        families: dict[str, list[Claim]] = {}
        for claim in claims:
            families.setdefault(claim.key.family, []).append(claim)
        moves: dict[tuple[str, str], Move] = {}
        conflicts: list[str] = []
        for family, members in families.items():
            overlaps = self._cache.overlaps.setdefault(family, Overlaps())
            settled = settle(members, self._memory.moves, overlaps, self._now)
            moves.update(settled.moves)
            conflicts.extend(settled.conflicts)
            if settled.wake_at is not None:
                self._wakes.append(settled.wake_at)
        if conflicts:
            self._findings.append(
                Finding(
                    "AddressConflict",
                    f"{len(conflicts)} addresses are offered by more than one source, such as {conflicts[0]}",
                    tuple(conflicts),
                )
            )
        return moves

    # --- the outcome ----------------------------------------------------------------------------------

    def _group(self, claim: Claim) -> EndpointGroup | None:
        if claim.untouched or not (claim.wanted or claim.published.slices):
            return None
        found = claim.difference
        return EndpointGroup(
            claim.key,
            claim.wanted,
            claim.ports,
            claim.published.slices,
            claim.published.duplicates,
            found.removed,
            found.changed,
            found.added,
            claim.known,
            filtered(claim) if found.removed else frozenset(),
            frozenset((*found.removed, *found.changed)) if claim.exempt_all else frozenset(claim.exempt),
            claim.drop,
        )

    def _families(self) -> Iterable[Finding]:
        """Sources whose addresses are all of a family that the Service does not have."""
        for source in self._sources:
            view = source.view
            offered = [family for family, endpoints in view.endpoints.items() if endpoints]
            if view.unknown is None and offered and not set(offered) & set(self._service.families):
                yield Finding(
                    "FamilyNotInService",
                    f"{source.spec.cluster} has {' and '.join(offered)} addresses only, "
                    f"the Service has {' and '.join(self._service.families)}",
                    (source.spec.cluster,),
                )


def _draining(endpoint: Endpoint) -> Endpoint:
    if not endpoint.conditions.ready:
        return endpoint
    return msgspec.structs.replace(endpoint, conditions=DRAINING)
