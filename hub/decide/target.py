"""What one target should publish: the sources' views, the Service, the registry entry and what is there.

Six stages, each a function of frozen values: what each source claims; what the Service asks of every endpoint;
which source is active; whether the verdicts of health checks are believed; whose address it is; how that differs
from what is published. First of all: may this Service be a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from hub.decide.checks import NO_VERDICTS, Verdicts, Watch
from hub.decide.claims import Claim, filtered, standing, step_aside
from hub.decide.endpoints import EMPTY, EndpointGroup, GroupKey, Published, published_groups
from hub.decide.failover import FailoverMemory, choose
from hub.decide.health import believe, findings, panics
from hub.decide.ports import named, of_published
from hub.decide.settle import Disjoint, Moves, settle
from hub.decide.shape import shape
from hub.decide.sources import Asking, Claimed, SourceInput, claims_of, dropped
from hub.model import Finding, Port, Service, Slice
from hub.registry.spec import TargetSpec

EMPTY_SETS: Final[Mapping[str, tuple[Port, ...]]] = {}


class Wish(msgspec.Struct, frozen=True):
    """What a target is to publish follows from this.

    Attributes:
        target: the registry entry.
        service: the hub Service; None while it does not exist.
        sources: in the registry's order.
        observed: the slices of this target that are ours to write.
        now: seconds that only move forward.
        refused: addresses the API server will not take: not published anew, not changed.
        verdicts: of health checks; an address without one stands as its slice says.
    """

    target: TargetSpec
    service: Service | None
    sources: Sequence[SourceInput]
    observed: Sequence[Slice]
    now: float
    refused: frozenset[str] = frozenset()
    verdicts: Verdicts = NO_VERDICTS


class Seen(msgspec.Struct, frozen=True):
    """What was worked out at the last decision. It saves work where nothing changed, and decides nothing.

    Attributes:
        published: what was published.
        claimed: what each source claimed, by cluster.
        disjoint: claims that had no address in common, by family.
    """

    published: Mapping[GroupKey, Published] = {}
    claimed: Mapping[str, Claimed] = {}
    disjoint: Disjoint = {}


class WishMemory(msgspec.Struct, frozen=True):
    """What is remembered between two decisions; empty after a restart.

    Attributes:
        moves: addresses on their way from one source to another.
        failover: timers of strategy failover.
        panic: the verdicts were not believed at the last decision.
        seen: a shortcut.
    """

    moves: Moves = {}
    failover: FailoverMemory = FailoverMemory()
    panic: bool = False
    seen: Seen = Seen()

    def same(self, other: WishMemory) -> bool:
        """Whether both lead to the same decisions."""
        return (self.moves, self.failover, self.panic) == (other.moves, other.failover, other.panic)


class Desired(msgspec.Struct, frozen=True):
    """What should be published.

    Attributes:
        groups: per source cluster and family; in source order, then what is no source any more.
        untouched: observed slices that must not be written (frozen clusters, a source without ports).
        findings: in a fixed order.
        memory: for the next decision.
        wake_at: when to decide again at the latest, by the clock of ``now``.
        watches: what should be probed for it.
    """

    groups: tuple[EndpointGroup, ...]
    untouched: tuple[Slice, ...]
    findings: tuple[Finding, ...]
    memory: WishMemory
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


def desire(wish: Wish, memory: WishMemory) -> Desired | Refused | Waiting:
    """Decide what one target should publish.

    Args:
        wish: everything it follows from.
        memory: from the last decision.
    """
    target, service, now = wish.target, wish.service, wish.now
    problem = unfit(service)
    if service is None or problem is not None:
        return problem or MISSING
    published = published_groups(wish.observed, _renames(wish.sources), memory.seen.published)
    found: list[Finding] = []
    wakes: list[float] = []

    # 1. What each source claims, and what is published of clusters that are not sources any more.
    asking = Asking(target, service, published, wish.refused)
    claimed: dict[str, Claimed] = {}
    for source in wish.sources:
        cluster = source.spec.cluster
        if cluster in claimed:
            message = f"{cluster} is a source twice; only the first counts"
            found.append(Finding("DuplicateSource", message, (cluster,)))
            continue
        claimed[cluster] = claims_of(source, asking, wish.verdicts, memory.seen.claimed.get(cluster))
        found += claimed[cluster].outcome.findings
        if (seconds := claimed[cluster].outcome.unreachable_in) is not None:
            wakes.append(now + seconds)
    claims = tuple(claim for source_claims in claimed.values() for claim in source_claims.outcome.claims)
    covered = {claim.key for claim in claims}
    claims += tuple(dropped(target, key, published[key]) for key in sorted(published) if key not in covered)
    watches = tuple(watch for source_claims in claimed.values() for watch in source_claims.outcome.watches)

    # 2. What the Service asks of every endpoint.
    claims = shape(service, claims)

    # 3. Which source is active.
    failover = memory.failover
    if target.strategy == "failover":
        candidates = [source.spec.cluster for source in wish.sources if source.state != "standby"]
        claims, failover = _fail_over(target, candidates, claims, failover, now, found, wakes)

    # 4. Whether the verdicts of health checks are believed.
    panic = bool(watches) and panics(claims, before=memory.panic)
    if watches:
        claims = believe(claims, panic=panic)
        if panic:
            claims = shape(service, claims)
        found += findings(claims, panic=panic)

    # 5. Whose address it is.
    settled = settle(claims, memory.moves, memory.seen.disjoint, now)
    claims = settled.claims
    found += settled.findings
    wakes += settled.wakes
    found += _families(wish.sources, service)
    found += _local(service, claims)

    # 6. How that differs from what is published.
    groups = (group for claim in claims if (group := _group(claim, target, service)) is not None)
    return Desired(
        groups=tuple(groups),
        untouched=tuple(
            slice_.slice for claim in claims if claim.role == "untouched" for slice_ in claim.published.slices
        ),
        findings=tuple(found),
        memory=WishMemory(settled.moves, failover, panic, Seen(published, claimed, settled.disjoint)),
        wake_at=min(wakes, default=None),
        watches=watches,
    )


def _renames(sources: Sequence[SourceInput]) -> Mapping[str, str]:
    """A cluster's former name -> today's, unless that name is a source itself."""
    today = {source.spec.cluster for source in sources}
    return {old: source.spec.cluster for source in sources for old in source.formerly if old not in today}


def _fail_over(
    target: TargetSpec,
    candidates: Sequence[str],
    claims: tuple[Claim, ...],
    memory: FailoverMemory,
    now: float,
    found: list[Finding],
    wakes: list[float],
) -> tuple[tuple[Claim, ...], FailoverMemory]:
    """Have all sources but the active one step aside."""
    of: dict[str, list[Claim]] = {cluster: [] for cluster in candidates}
    for claim in claims:
        if not claim.yielding and claim.key.cluster in of:
            of[claim.key.cluster].append(claim)
    policy = target.failover
    standings = [standing(cluster, mine, policy.min_ready) for cluster, mine in of.items()]
    choice = choose(policy, standings, memory, now)
    found += choice.findings
    if choice.wake_at is not None:
        wakes.append(choice.wake_at)
    settled = []
    for claim in claims:
        if not claim.yielding and claim.key.cluster in of and claim.key.cluster != choice.active:
            claim = step_aside(claim, healthy=choice.healthy, remove=choice.remove_others)
        elif claim.role == "dropped" and choice.memory.waiting_since is not None:
            claim = replace(claim, wanted=claim.current)  # until there is a source, what is to go is all there is
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
        filtered=filtered(claim),
        exempt=frozenset((*found.removed, *found.changed)) if claim.exempt is None else claim.exempt,
        drop=claim.role == "dropped",
        port_sets=_port_sets(claim, target, service),
    )


def _port_sets(claim: Claim, target: TargetSpec, service: Service) -> Mapping[str, tuple[Port, ...]]:
    """Ports by address where they are not all the same.

    What is published and the source says nothing about now (it is unknown, or the guard may hold it back)
    keeps the ports it has: only the source could say what a name means.
    """
    if target.ports is not None or not named(service):
        return EMPTY_SETS
    numbers, sets = claim.ports.ports, claim.ports.sets
    others = [slice_ for slice_ in claim.published.slices if slice_.slice.ports != numbers]
    if not sets and not others:
        return EMPTY_SETS
    view = claim.view if claim.view is not None and not claim.view.adopted else None
    stated = view.endpoints.get(claim.key.family, EMPTY) if view is not None else EMPTY
    found = {address: own for address, own in sets.items() if address in claim.wanted}
    for slice_ in others:
        own = of_published(service, slice_.slice.ports)
        if own != numbers:
            found.update({address: own for address in slice_.addresses if address not in stated})
    return found


def _local(service: Service, claims: Iterable[Claim]) -> Iterator[Finding]:
    """kube-proxy sends a Local Service's traffic to endpoints of its own node only: ours are on none."""
    policies = service.local_policies
    if not policies or service.headless:
        return
    nodes = [endpoint.node_name for claim in claims for endpoint in claim.wanted.values()]
    nowhere = sum(1 for name in nodes if not name)
    if nowhere:
        yield Finding(
            "LocalTrafficPolicy",
            f"{' and '.join(policies)} of the Service is Local: kube-proxy sends nothing to the {nowhere} of "
            f"{len(nodes)} endpoints that are on no node of the hub cluster; Cluster is what is needed",
            policies,
        )


def _families(sources: Iterable[SourceInput], service: Service) -> Iterator[Finding]:
    """Sources whose addresses are all of a family that the Service does not have."""
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
