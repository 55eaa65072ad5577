"""What each source of a target lays claim to, as a frozen value that one stage hands to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Literal

import msgspec
from msgspec.structs import replace

from hub.decide.endpoints import EMPTY, Difference, EndpointSet, GroupKey, Published
from hub.decide.failover import Standing
from hub.decide.ports import Ports
from hub.model import Endpoint, SourceView

Role = Literal["claims", "aside", "dropped", "untouched"]


class Judged(msgspec.Struct, frozen=True):
    """What the verdicts of health checks say of a claim.

    Attributes:
        unchecked: what it would want if nothing were checked.
        failing: unhealthy addresses, sorted.
        pending: addresses never seen before and not judged yet, sorted.
    """

    unchecked: EndpointSet
    failing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True):
    """What one source lays claim to in one family.

    Attributes:
        key: cluster and family.
        published: what is published of it.
        wanted: what it wants to have published.
        ports: for its slices.
        view: what its source offers; None where it is not a source of the target any more.
        known: False where ``wanted`` is what is published, since the source makes no statement.
        role: ``claims`` in the ordinary case. ``aside``: what it publishes is on its way out, and whatever another
            source claims goes to that one. ``dropped``: likewise, and no empty slice stays. ``untouched``: its slices
            must not be written at all, and it keeps what it publishes.
        exempt: addresses that the guard is not to look at; None = it is not to look at any.
        judged: what the verdicts say; None where nothing is checked.
    """

    key: GroupKey
    published: Published
    wanted: EndpointSet
    ports: Ports = Ports(())
    view: SourceView | None = None
    known: bool = True
    role: Role = "claims"
    exempt: frozenset[str] | None = frozenset()
    judged: Judged | None = None

    @property
    def yielding(self) -> bool:
        """Whether what it publishes is on its way out."""
        return self.role in ("aside", "dropped")

    @property
    def current(self) -> EndpointSet:
        """What is published of it, by address."""
        return self.published.endpoints

    @property
    def difference(self) -> Difference:
        """From what is published to what is wanted."""
        return self.published.difference(self.wanted)

    def excusing(self, addresses: Iterable[str]) -> Claim:
        """The claim with further addresses that the guard is not to look at."""
        if self.exempt is None:
            return self
        exempt = self.exempt.union(addresses)
        return self if exempt == self.exempt else replace(self, exempt=exempt)


def standing(cluster: str, claims: Sequence[Claim], min_ready: int) -> Standing:
    """How a source stands, over its families: ready where any of them is."""
    return Standing(
        cluster,
        known=all(
            claim.known and (claim.wanted or not _unresolved(claim)) and not _unproven(claim) for claim in claims
        ),
        offers=any(claim.wanted for claim in claims),
        ready=any(ready(claim.wanted.values(), min_ready) for claim in claims),
        published=any(claim.published for claim in claims),
        serving=any(ready(_published(claim), min_ready) for claim in claims),
    )


def _published(claim: Claim) -> Iterable[Endpoint]:
    """What is published of it, each address once."""
    published = claim.published
    if published.duplicates:
        return claim.current.values()
    return chain.from_iterable(slice_.endpoints for slice_ in published.slices)


def _unresolved(claim: Claim) -> bool:
    """Nodes are there, and where they are is not known yet: with nothing to offer, that is no statement."""
    return claim.view is not None and bool(claim.view.unknown_nodes)


def _unproven(claim: Claim) -> bool:
    """Its addresses are new, and no check has said yet which of them are ready."""
    judged = claim.judged
    return judged is not None and bool(judged.pending) and not ready(claim.wanted.values(), 1)


def ready(endpoints: Iterable[Endpoint], count: int) -> bool:
    """Whether at least ``count`` are ready; looks at no more than it must."""
    ready = (None for endpoint in endpoints if endpoint.conditions.ready)
    return sum(1 for _ in islice(ready, count)) >= count


def step_aside(claim: Claim, *, healthy: bool, remove: bool) -> Claim:
    """The claim of a source that is not the active one: published no more than it is, no longer than it must be.

    Until it may go the guard judges it like any other: the active one may not be published yet.
    """
    if claim.role == "untouched":
        return claim
    if remove:
        return replace(claim, role="aside", exempt=None if healthy else claim.exempt, wanted=EMPTY)
    published = claim.current
    wanted = claim.wanted.without([address for address in claim.wanted if address not in published])
    return replace(claim, role="aside", wanted=wanted)


def node_of(endpoint: Endpoint) -> str | None:
    """The Node an endpoint stands for."""
    reference = endpoint.target_ref
    return reference.name if reference is not None and reference.kind == "Node" else None


def filtered(claim: Claim) -> frozenset[str]:
    """The departures whose node, or record, still exists; and those that cannot be told."""
    view, removed = claim.view, claim.difference.removed
    if view is None or not removed:
        return frozenset()
    if view.addresses_complete is not None:
        return frozenset(removed.keys() & view.addresses_complete)
    gone = {
        address
        for address, endpoint in removed.items()
        if (name := node_of(endpoint)) is not None and name not in view.gone_complete
    }
    return frozenset(removed.keys() - gone)
