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
from hub.desired.failover import FAILED_OVER, FailoverMemory, choose
from hub.desired.health import Judge, NoPort, check_for, findings, panics, passing
from hub.desired.memo import Memo
from hub.desired.ports import NO_READINGS, PortProblem, PortReading, Ports, named, of_published, ports
from hub.desired.published import Index, Published
from hub.desired.shape import Shaper
from hub.groups import EndpointGroup, GroupKey, same_objects
from hub.health.spec import NO_VERDICTS, Verdicts, Watch
from hub.model import DRAINING, Endpoint, Finding, Port, Service, Slice, SourceView
from hub.registry.spec import ClusterState, NodePortRef, SourceSpec, TargetSpec

EPSILON: Final = 1e-6
"""Seconds by which sums of floats may be off: without it a timer could be due a moment before it is over."""

NO_PORTS: Final[tuple[Port, ...]] = ()
EMPTY_SETS: Final[Mapping[str, tuple[Port, ...]]] = {}


class SourceInput(msgspec.Struct, frozen=True):
    """One source of a target at this moment.

    Attributes:
        spec: as the registry has it.
        view: what it offers.
        state: the cluster's.
        unreachable_for: seconds without a connection, since the last complete answer; None while there
            is one, or where the ``unreachable`` policy is suspended.
        allowed_ports: the cluster's allowedPorts; None = any (the hub cluster itself).
        formerly: the cluster's old names, whose slices it adopts.
        node_ports: what is known of the ports that the registry entry reads in this cluster.
    """

    spec: SourceSpec
    view: SourceView
    state: ClusterState = "active"
    unreachable_for: float | None = None
    allowed_ports: tuple[tuple[int, int], ...] | None = None
    formerly: tuple[str, ...] = ()
    node_ports: Mapping[NodePortRef, PortReading] = msgspec.field(default_factory=lambda: NO_READINGS)


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """What a target remembers between two passes; a new one after a restart.

    Attributes:
        moves: addresses on their way from one source to another.
        failover: timers of strategy failover.
        panic: the verdicts were not believed at the last pass.
    """

    moves: Moves = field(default_factory=dict)
    failover: FailoverMemory = field(default_factory=FailoverMemory)
    panic: bool = False
    cache: Cache = field(default_factory=lambda: Cache(), compare=False, repr=False)


class Desired(msgspec.Struct, frozen=True):
    """What should be published.

    Attributes:
        groups: per source cluster and family; in source order, then what is no source any more.
        untouched: observed slices that must not be written (frozen clusters, a source without ports).
        findings: in a fixed order.
        memory: for the next pass.
        wake_at: when to pass again at the latest, by the clock of ``now``.
        watches: what should be probed for it.
    """

    groups: tuple[EndpointGroup, ...]
    untouched: tuple[Slice, ...]
    findings: tuple[Finding, ...]
    memory: TargetMemory
    wake_at: float | None = None
    watches: tuple[Watch, ...] = ()


class Refused(msgspec.Struct, frozen=True):
    """The Service cannot be a target as it is; what is published stays. ``reason`` is an Event's."""

    reason: str
    message: str


class Waiting(msgspec.Struct, frozen=True):
    """There is nothing to publish for yet (or any more): the Service is missing or being deleted."""

    reason: str
    message: str


MISSING: Final = Waiting("ServiceMissing", "the Service does not exist")


class Cache:
    """Things that cost something to compute, by the identity of what they were computed from."""

    __slots__ = ("index", "judge", "kept", "last", "overlaps", "ports", "shaper")

    def __init__(self) -> None:
        self.index = Index()
        self.shaper = Shaper()
        self.judge = Judge()
        self.overlaps: dict[str, Overlaps] = {}
        self.ports: Memo[str, Ports | PortProblem] = Memo()
        self.kept: Memo[GroupKey, Mapping[str, Endpoint]] = Memo()
        self.last: _Pass | None = None

    def sweep(self) -> None:
        """Forget what a pass had no use for: of a source that is not silent any more, or none at all."""
        self.ports.sweep()
        self.kept.sweep()
        self.judge.sweep()


class _Pass(msgspec.Struct, frozen=True):
    """The arguments of a pass and its outcome."""

    target: TargetSpec
    service: Service
    sources: tuple[SourceInput, ...]
    observed: tuple[Slice, ...]
    refused: frozenset[str]
    verdicts: tuple[object, ...]
    """Those that it looked at."""
    desired: Desired

    def holds(
        self,
        target: TargetSpec,
        service: Service,
        sources: Sequence[SourceInput],
        observed: Sequence[Slice],
        memory: TargetMemory,
        refused: frozenset[str],
        verdicts: Verdicts,
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
            and same_objects(_looked_at(self.desired, verdicts), self.verdicts)
        )


def _looked_at(desired: Desired, verdicts: Verdicts) -> tuple[object, ...]:
    return tuple([verdicts.get(each.check) for each in desired.watches])


def _same_source(one: SourceInput, other: SourceInput) -> bool:
    return one is other or (
        one.view is other.view
        and one.spec is other.spec
        and one.state == other.state
        and one.unreachable_for is None
        and other.unreachable_for is None
        and one.allowed_ports == other.allowed_ports
        and one.formerly == other.formerly
        and one.node_ports == other.node_ports
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
    verdicts: Verdicts = NO_VERDICTS,
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
        verdicts: of health checks; an address without one stands as its slice says.
    """
    problem = unfit(service)
    if service is None or problem is not None:
        return problem or MISSING
    last = memory.cache.last
    if last is not None and last.holds(target, service, sources, observed, memory, refused, verdicts, now):
        return last.desired
    decision = _Decision(target, service, sources, observed, memory, now, refused, verdicts)
    desired = decision.desired()
    looked_at = _looked_at(desired, verdicts)
    outcome = desired
    if any(each.reason == FAILED_OVER for each in desired.findings):  # once, however long it takes to be written
        lasting = tuple(each for each in desired.findings if each.reason != FAILED_OVER)
        outcome = msgspec.structs.replace(desired, findings=lasting)
    memory.cache.last = _Pass(target, service, tuple(sources), tuple(observed), refused, looked_at, outcome)
    return desired


def unfit(service: Service | None) -> Refused | Waiting | None:
    """Why a Service cannot be a target; None where it can."""
    if service is None:
        return MISSING
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
        verdicts: Verdicts,
    ) -> None:
        self._target = target
        self._service = service
        self._sources = sources
        self._memory = memory
        self._cache = memory.cache
        self._now = now
        self._refused = refused
        self._verdicts = verdicts
        self._watches: list[Watch] = []
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
            failover = self._fail_over(by_source, claims)
        panic = self._believe(claims)
        moves = self._settle(claims)
        self._cache.sweep()
        self._findings.extend(self._families())
        self._findings.extend(self._local(claims))
        memory = self._memory
        if moves != memory.moves or failover != memory.failover or panic != memory.panic:
            memory = TargetMemory(moves, failover, panic, self._cache)
        return Desired(
            groups=tuple(group for claim in claims if (group := self._group(claim)) is not None),
            untouched=tuple(each.slice for claim in claims if claim.untouched for each in claim.published.slices),
            findings=tuple(self._findings),
            memory=memory,
            wake_at=min(self._wakes, default=None),
            watches=tuple(self._watches),
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
        self._findings.extend(Finding("NodePortUnknown", f"{cluster}: {text}", (cluster,)) for text in found.unread)
        claims = [self._claim(source, GroupKey(cluster, family), found) for family in self._service.families]
        return claims + [self._orphan(key) for key in mine if key.family not in self._service.families]

    def _ports(self, source: SourceInput) -> Ports | PortProblem:
        cluster = source.spec.cluster
        view = source.view
        reads = any(port.node_port is not None for port in self._target.ports or ())
        last = self._last_ports(cluster) if reads or view.unknown is not None else NO_PORTS
        sets = view.port_sets or None
        inputs = (self._target, self._service, source.allowed_ports, view.ports, sets, last)
        if not reads and (known := self._cache.ports.get(cluster, inputs)) is not None:
            return known
        found = ports(self._target, self._service, source.allowed_ports, view.ports, sets, source.node_ports, last)
        return self._cache.ports.put(cluster, inputs, found)

    def _last_ports(self, cluster: str) -> tuple[Port, ...]:
        """What is published of a source, of whatever family."""
        mine = (self._published[key] for key in sorted(self._published) if key.cluster == cluster)
        return next((each.slices[0].slice.ports for each in mine if each.slices), NO_PORTS)

    def _claim(self, source: SourceInput, key: GroupKey, found: Ports) -> Claim:
        published = self._published[key] if key in self._published else Published()
        view = source.view
        if view.unknown is not None:
            wanted = self._last_known(published, view.endpoints.get(key.family, EMPTY))
            claim = Claim(key, published, wanted, found.ports, view, known=False, sets=found.sets)
            return self._unknown(source, claim)
        base = view.endpoints.get(key.family, EMPTY)
        wanted = self._with_kept(key, published, base, view)
        claim = Claim(key, published, wanted, found.ports, view, sets=found.sets)
        watch = self._watch(source, claim)
        if watch is not None:
            self._judge(source, claim, watch)
        return claim

    def _port_sets(self, claim: Claim) -> Mapping[str, tuple[Port, ...]]:
        """Ports by address where they are not all the same.

        What is published and the source says nothing about now (it is unknown, or the guard may hold it back)
        keeps the ports it has: only the source could say what a name means.
        """
        if self._target.ports is not None or not named(self._service):
            return EMPTY_SETS
        others = [each for each in claim.published.slices if each.slice.ports != claim.ports]
        if not claim.sets and not others:
            return EMPTY_SETS
        view = claim.view if claim.view is not None and not claim.view.adopted else None
        stated = view.endpoints.get(claim.key.family, EMPTY) if view is not None else EMPTY
        found = {address: numbers for address, numbers in claim.sets.items() if address in claim.wanted}
        for each in others:
            numbers = of_published(self._service, each.slice.ports)
            if numbers != claim.ports:
                found.update({address: numbers for address in each.addresses if address not in stated})
        return found

    def _last_known(self, published: Published, good: Mapping[str, Endpoint]) -> Mapping[str, Endpoint]:
        """What is published, as it is; and what was last known good and is not there.

        So a target that is new, or whose slices or Service were deleted, has its endpoints also while the
        source makes no statement.
        """
        there = published.endpoints
        missing = good.keys() - there.keys() - self._refused
        return {**there, **{address: good[address] for address in sorted(missing)}} if missing else there

    def _unknown(self, source: SourceInput, claim: Claim) -> Claim:
        """A source without a statement: what is published stays, unless verdicts or its policy say otherwise."""
        checked = source.spec.health.mode != "off"
        stated = EMPTY if source.view.adopted else source.view.endpoints.get(claim.key.family, EMPTY)
        self._cache.judge.base(claim, stated, checked=checked)
        watch = self._watch(source, claim)
        if watch is not None and checked:
            self._judge(source, claim, watch)
        policy = source.spec.unreachable
        if source.unreachable_for is None or policy.policy == "keep":
            return claim
        if source.unreachable_for < policy.after - EPSILON:
            self._wakes.append(self._now + policy.after - source.unreachable_for)
            return claim
        claim.exempt_all = True
        answering = passing(watch, self._verdicts) if watch is not None else frozenset()
        # With failover it is left first, if there is another one to turn to: never away before that is there.
        remove = policy.policy == "remove" and self._target.policy == "sync" and self._target.strategy == "merge"
        claim.wanted = _given_up(claim.wanted, answering, remove=remove)
        claim.plain = _given_up(claim.plain, answering, remove=remove)
        return claim

    # --- what the verdicts say ----------------------------------------------------------------------

    def _watch(self, source: SourceInput, claim: Claim) -> Watch | None:
        """Have the addresses of a claim probed; None where nobody asks for it."""
        unreachable = not claim.known and source.unreachable_for is not None
        check = check_for(source.spec, claim.ports, source.node_ports, unreachable=unreachable)
        if check is None:
            return None
        cluster, family = claim.key
        if isinstance(check, NoPort):
            self._findings.append(Finding("CheckWithoutPort", check.message, (cluster,)))
            return None
        watch = Watch(cluster, family, check, claim.wanted, claim.current)
        self._watches.append(watch)
        return watch

    def _judge(self, source: SourceInput, claim: Claim, watch: Watch) -> None:
        remove = source.spec.health.on_fail == "remove" and self._target.policy == "sync"
        self._cache.judge.judge(claim, watch, self._verdicts, remove=remove)

    def _believe(self, claims: Sequence[Claim]) -> bool:
        """Let the verdicts stand, or none of them; whether this is a panic."""
        if not self._watches:
            return False
        panic = panics(claims, before=self._memory.panic)
        if panic:
            for claim in claims:
                if claim.judged is not None and not claim.yielding:
                    claim.wanted = claim.plain
            self._cache.shaper.shape(self._service, claims)
        for claim in claims:
            if claim.judged is not None:
                out = (*claim.judged.failing, *claim.judged.pending)
                claim.exempt.update(address for address in out if address not in claim.wanted)
        self._findings.extend(findings(claims, panic=panic))
        return panic

    def _with_kept(
        self, key: GroupKey, published: Published, base: Mapping[str, Endpoint], view: SourceView
    ) -> Mapping[str, Endpoint]:
        """What the view offers, and what is published and must not go for want of a statement about it."""
        upsert_only = self._target.policy == "upsert-only"
        if not (upsert_only or view.unknown_nodes or not view.complete or self._refused):
            return base
        inputs = (published, base, view, self._target, self._refused)
        if (known := self._cache.kept.get(key, inputs)) is not None:
            return known
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
            there = published.endpoints
            old = {address: there[address] for address in refused if address in there}
            wanted = {**{address: each for address, each in base.items() if address not in refused}, **old, **kept}
        return self._cache.kept.put(key, inputs, wanted)

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

    def _fail_over(self, by_source: Mapping[str, list[Claim]], everything: Iterable[Claim]) -> FailoverMemory:
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
        if choice.memory.waiting_since is not None:  # until there is a source, what is to go is all there is
            for claim in everything:
                if claim.drop:
                    claim.wanted = claim.current
        return choice.memory

    # --- whose address it is ------------------------------------------------------------------------

    def _settle(self, claims: Iterable[Claim]) -> Moves:
        families: dict[str, list[Claim]] = {}
        for claim in claims:
            families.setdefault(claim.key.family, []).append(claim)
        moves: dict[tuple[str, str], Move] = {}
        conflicts: list[str] = []
        known = self._cache.overlaps
        shared = {family: members for family, members in families.items() if len(members) > 1}
        self._cache.overlaps = {family: known.get(family) or Overlaps() for family in shared}
        for family, members in shared.items():
            settled = settle(members, self._memory.moves, self._cache.overlaps[family], self._now)
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
            self._port_sets(claim),
        )

    def _local(self, claims: Iterable[Claim]) -> Iterable[Finding]:
        """kube-proxy sends a Local Service's traffic to endpoints of its own node only: ours are on none."""
        policies = self._service.local_policies
        if not policies or self._service.headless:
            return
        nodes = [each.node_name for claim in claims for each in claim.wanted.values()]
        nowhere = sum(1 for name in nodes if not name)
        if nowhere:
            yield Finding(
                "LocalTrafficPolicy",
                f"{' and '.join(policies)} of the Service is Local: kube-proxy sends nothing to the {nowhere} of "
                f"{len(nodes)} endpoints that are on no node of the hub cluster; Cluster is what is needed",
                policies,
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


def _given_up(wanted: Mapping[str, Endpoint], answering: frozenset[str], *, remove: bool) -> Mapping[str, Endpoint]:
    """What an ``unreachable`` policy leaves of a source: what answers is left alone."""
    if remove:
        return {address: each for address, each in wanted.items() if address in answering}
    return {address: each if address in answering else _draining(each) for address, each in wanted.items()}


def _draining(endpoint: Endpoint) -> Endpoint:
    if not endpoint.conditions.ready:
        return endpoint
    return msgspec.structs.replace(endpoint, conditions=DRAINING)
