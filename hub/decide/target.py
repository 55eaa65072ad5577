"""Stage 2 of a decision: decide what one target should publish, before the guard.

The inputs are the sources' views, the Service, the registry entry and the published slices. A Service that cannot be a
target is refused first. Then six steps follow, each a function of frozen values: the sources' claims, the Service's
settings, failover, panic mode, the owner of each address, and the difference to the published endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from hub.decide.checks import NO_VERDICTS, Verdicts, Watch
from hub.decide.claims import Claim, deactivate, filtered_addresses, standing
from hub.decide.endpoints import EMPTY, EndpointGroup, GroupKey, Published, published_groups
from hub.decide.failover import FailoverMemory, choose
from hub.decide.health import final_claims, findings, panics
from hub.decide.ports import has_named_port, ports_of_published
from hub.decide.settle import Disjoint, Moves, settle
from hub.decide.shape import shape
from hub.decide.sources import CachedClaims, SharedInput, SourceInput, claims_of, dropped_claim
from hub.model import Finding, Port, Service, Slice
from hub.registry.spec import TargetSpec

EMPTY_SETS: Final[Mapping[str, tuple[Port, ...]]] = {}


class TargetInput(msgspec.Struct, frozen=True):
    """All inputs of :func:`desired_endpoints`, except its memory.

    Attributes:
        target: the registry entry.
        service: the hub Service; None if it does not exist.
        sources: in the registry's order.
        observed: the slices of this target that the hub may write.
        now: seconds of a monotonic clock.
        refused: addresses that the API server refuses; they are neither added nor changed.
        verdicts: verdicts of health checks; a published address without a verdict is judged by its published
            conditions.
        hub_zones: the zones of the hub cluster's Nodes; None = not known.
    """

    target: TargetSpec
    service: Service | None
    sources: Sequence[SourceInput]
    observed: Sequence[Slice]
    now: float
    refused: frozenset[str] = frozenset()
    verdicts: Verdicts = NO_VERDICTS
    hub_zones: frozenset[str] | None = None


class TargetCache(msgspec.Struct, frozen=True):
    """Intermediate results of the last decision. They only save work, and do not affect the result.

    Attributes:
        published: the published groups.
        claimed: the sources' claims, by cluster.
        disjoint: claims that had no address in common, by family.
    """

    published: Mapping[GroupKey, Published] = {}
    claimed: Mapping[str, CachedClaims] = {}
    disjoint: Disjoint = {}


class DesiredMemory(msgspec.Struct, frozen=True):
    """The state of a target's desired endpoints between two decisions; empty after a restart.

    Attributes:
        moves: unfinished moves of addresses from one source to another.
        failover: the active source and the timers of strategy failover.
        panic: whether the target was in panic at the last decision, so that verdicts were ignored.
        cache: intermediate results, which only save work.
    """

    moves: Moves = {}
    failover: FailoverMemory = FailoverMemory()
    panic: bool = False
    cache: TargetCache = TargetCache()

    def same(self, other: DesiredMemory) -> bool:
        """Whether two memories lead to the same decisions."""
        return (self.moves, self.failover, self.panic) == (other.moves, other.failover, other.panic)


class Desired(msgspec.Struct, frozen=True):
    """The endpoints that a target should publish.

    Attributes:
        groups: one group per source cluster and family, in the order of the sources, then those of clusters that are
            no longer sources.
        untouched: observed slices that must not be written, such as those of frozen clusters or of a source whose ports
            cannot be determined.
        findings: in a fixed order.
        memory: for the next decision.
        wake_at: latest time of the next decision, by the clock of ``now``; None if no timer is running.
        watches: the addresses to probe.
    """

    groups: tuple[EndpointGroup, ...]
    untouched: tuple[Slice, ...]
    findings: tuple[Finding, ...]
    memory: DesiredMemory
    wake_at: float | None = None
    watches: tuple[Watch, ...] = ()


class Refused(msgspec.Struct, frozen=True):
    """The Service cannot be a target; its slices stay unchanged. ``reason`` is the Event's reason."""

    reason: str
    message: str


class Waiting(msgspec.Struct, frozen=True):
    """The Service is missing or being deleted, so nothing is published. ``reason`` is the Event's reason."""

    reason: str
    message: str


MISSING: Final = Waiting("ServiceMissing", "the Service does not exist")


def unfit(service: Service | None) -> Refused | Waiting | None:
    """Why a Service cannot be a target; None if it can."""
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


def desired_endpoints(inputs: TargetInput, memory: DesiredMemory) -> Desired | Refused | Waiting:
    """Decide what one target should publish.

    Args:
        inputs: all inputs of the decision.
        memory: from the last decision.
    """
    target, service, now = inputs.target, inputs.service, inputs.now
    problem = unfit(service)
    if service is None or problem is not None:
        return problem or MISSING
    published = published_groups(inputs.observed, _renames(inputs.sources), memory.cache.published)
    found: list[Finding] = []
    wakes: list[float] = []

    # 1. Collect the claims of the sources, and drop what is published for clusters that are no longer sources.
    shared = SharedInput(target, service, published, inputs.refused, inputs.hub_zones)
    claimed: dict[str, CachedClaims] = {}
    for source in inputs.sources:
        cluster = source.spec.cluster
        if cluster in claimed:
            message = f"{cluster} is a source twice; only the first counts"
            found.append(Finding("DuplicateSource", message, (cluster,)))
            continue
        claimed[cluster] = claims_of(source, shared, inputs.verdicts, memory.cache.claimed.get(cluster))
        found += claimed[cluster].outcome.findings
        if (seconds := claimed[cluster].outcome.unreachable_in) is not None:
            wakes.append(now + seconds)
    claims = tuple(claim for source_claims in claimed.values() for claim in source_claims.outcome.claims)
    covered = {claim.key for claim in claims}
    claims += tuple(dropped_claim(target, key, published[key]) for key in sorted(published) if key not in covered)
    watches = tuple(watch for source_claims in claimed.values() for watch in source_claims.outcome.watches)

    # 2. Apply the Service's settings to all endpoints.
    claims = shape(service, claims)

    # 3. Choose the active source.
    failover = memory.failover
    if target.strategy == "failover":
        candidates = [source.spec.cluster for source in inputs.sources if source.state != "standby"]
        claims, failover = _fail_over(target, candidates, claims, failover, now, found, wakes)

    # 4. Apply the verdicts of health checks, or ignore them in a panic.
    panic = bool(watches) and panics(claims, before=memory.panic)
    if watches:
        claims = final_claims(claims, panic=panic)
        if panic:
            claims = shape(service, claims)
        found += findings(claims, panic=panic)

    # 5. Choose the owner of each address.
    settled = settle(claims, memory.moves, memory.cache.disjoint, now)
    claims = settled.claims
    found += settled.findings
    wakes += settled.wakes
    found += _families(inputs.sources, service)
    found += _local(service, claims)

    # 6. Compare with the published endpoints.
    groups = (group for claim in claims if (group := _group(claim, target, service)) is not None)
    return Desired(
        groups=tuple(groups),
        untouched=tuple(
            slice_.slice for claim in claims if claim.role == "untouched" for slice_ in claim.published.slices
        ),
        findings=tuple(found),
        memory=DesiredMemory(settled.moves, failover, panic, TargetCache(published, claimed, settled.disjoint)),
        wake_at=min(wakes, default=None),
        watches=watches,
    )


def _renames(sources: Sequence[SourceInput]) -> Mapping[str, str]:
    """A cluster's former name -> its current name, without former names that are sources themselves."""
    current = {source.spec.cluster for source in sources}
    return {old: source.spec.cluster for source in sources for old in source.formerly if old not in current}


def _fail_over(
    target: TargetSpec,
    candidates: Sequence[str],
    claims: tuple[Claim, ...],
    memory: FailoverMemory,
    now: float,
    found: list[Finding],
    wakes: list[float],
) -> tuple[tuple[Claim, ...], FailoverMemory]:
    """Choose the active source and deactivate the claims of all other sources. Adds to ``found`` and ``wakes``."""
    claims_by_cluster: dict[str, list[Claim]] = {cluster: [] for cluster in candidates}
    for claim in claims:
        if not claim.leaving and claim.key.cluster in claims_by_cluster:
            claims_by_cluster[claim.key.cluster].append(claim)
    policy = target.failover
    standings = [
        standing(cluster, source_claims, policy.min_ready) for cluster, source_claims in claims_by_cluster.items()
    ]
    choice = choose(policy, standings, memory, now)
    found += choice.findings
    if choice.wake_at is not None:
        wakes.append(choice.wake_at)
    settled = []
    for claim in claims:
        if not claim.leaving and claim.key.cluster in claims_by_cluster and claim.key.cluster != choice.active:
            claim = deactivate(claim, healthy=choice.healthy, remove=choice.remove_others)
        elif claim.role == "dropped" and choice.memory.waiting_since is not None:
            # No source is active yet: keep the endpoints of dropped sources, as they are the only ones.
            claim = replace(claim, wanted=claim.current)
        settled.append(claim)
    return tuple(settled), choice.memory


def _group(claim: Claim, target: TargetSpec, service: Service) -> EndpointGroup | None:
    if claim.role == "untouched" or not (claim.wanted or claim.published.slices):
        return None
    found = claim.difference
    return EndpointGroup(
        key=claim.key,
        endpoints=claim.wanted,
        ports=claim.ports.ports,
        slices=claim.published.slices,
        duplicates=claim.published.duplicates,
        removed=found.removed,
        changed=found.changed,
        added=found.added,
        known=claim.known,
        filtered=filtered_addresses(claim),
        exempt=frozenset((*found.removed, *found.changed)) if claim.exempt is None else claim.exempt,
        drop=claim.role == "dropped",
        port_sets=_port_sets(claim, target, service),
    )


def _port_sets(claim: Claim, target: TargetSpec, service: Service) -> Mapping[str, tuple[Port, ...]]:
    """Address -> ports, for addresses whose ports differ from the claim's ports.

    A published address that the source does not offer now, because the source is unknown or the guard may withhold the
    removal, keeps its published ports: only the source can resolve the name of a port.
    """
    if target.ports is not None or not has_named_port(service):
        return EMPTY_SETS
    numbers, sets = claim.ports.ports, claim.ports.sets
    others = [slice_ for slice_ in claim.published.slices if slice_.slice.ports != numbers]
    if not sets and not others:
        return EMPTY_SETS
    view = claim.view if claim.view is not None and not claim.view.adopted else None
    stated = view.endpoints.get(claim.key.family, EMPTY) if view is not None else EMPTY
    found = {address: own for address, own in sets.items() if address in claim.wanted}
    for slice_ in others:
        own = ports_of_published(service, slice_.slice.ports)
        if own != numbers:
            found.update({address: own for address in slice_.addresses if address not in stated})
    return found


def _local(service: Service, claims: Iterable[Claim]) -> Iterator[Finding]:
    """Report traffic policies that are Local, because kube-proxy then uses only endpoints on its own node.

    Remote endpoints are on no node of the hub cluster. Headless Services are not affected.
    """
    policies = service.local_policies
    if not policies or service.headless:
        return
    nodes = [endpoint.node_name for claim in claims for endpoint in claim.wanted.values()]
    nowhere = sum(1 for name in nodes if not name)
    if nowhere:
        yield Finding(
            "LocalTrafficPolicy",
            f"{' and '.join(policies)} of the Service is Local: kube-proxy sends nothing to the {nowhere} of "
            f"{len(nodes)} endpoints that are on no node of the hub cluster; set it to Cluster",
            policies,
        )


def _families(sources: Iterable[SourceInput], service: Service) -> Iterator[Finding]:
    """Findings about sources whose addresses all have a family that the Service does not have."""
    for source in sources:
        view = source.view
        offered = [family for family, endpoints in view.endpoints.items() if endpoints]
        if view.unknown is None and offered and not set(offered) & set(service.families):
            yield Finding(
                "FamilyNotInService",
                f"{source.spec.cluster} has {' and '.join(offered)} addresses only, "
                f"the Service has {' and '.join(service.families)}",
                (source.spec.cluster,),
            )
