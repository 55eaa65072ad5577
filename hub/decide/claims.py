"""Claims: the endpoints that each source wants a target to publish, as frozen values passed from stage to stage."""

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

Role = Literal["normal", "inactive", "dropped", "untouched"]
"""See ``Claim.role``."""


class Judged(msgspec.Struct, frozen=True):
    """The effect of health check verdicts on a claim.

    Attributes:
        unchecked: the endpoints that would be wanted without health checks.
        failing: unhealthy addresses, sorted.
        pending: new addresses without a verdict, sorted.
    """

    unchecked: EndpointSet
    failing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True):
    """The endpoints of one source and family that a target should publish.

    Attributes:
        key: cluster and family.
        published: the published endpoints of the source.
        wanted: the endpoints that should be published.
        ports: the ports for the source's slices.
        view: the endpoints that the source offers; None if it is no longer a source of the target.
        known: False if the source is unknown, so that ``wanted`` starts from the published endpoints.
        role: ``normal``: the wanted endpoints are published. ``inactive``: failover has chosen another source, so the
            published endpoints leave, and an address that another source claims moves there. ``dropped``: the same,
            and no empty slice remains. ``untouched``: the slices must not be written, and their endpoints stay
            published.
        exempt: addresses whose removal or change the guard ignores; None = all addresses.
        judged: the effect of the verdicts; None if the addresses are not checked.
    """

    key: GroupKey
    published: Published
    wanted: EndpointSet
    ports: Ports = Ports(())
    view: SourceView | None = None
    known: bool = True
    role: Role = "normal"
    exempt: frozenset[str] | None = frozenset()
    judged: Judged | None = None

    @property
    def leaving(self) -> bool:
        """Whether the published endpoints leave, because the source is not active or no longer used."""
        return self.role in ("inactive", "dropped")

    @property
    def current(self) -> EndpointSet:
        """The published endpoints, by address."""
        return self.published.endpoints

    @property
    def difference(self) -> Difference:
        """The difference between the published and the wanted endpoints."""
        return self.published.difference(self.wanted)

    def with_exempt(self, addresses: Iterable[str]) -> Claim:
        """The claim with further addresses that the guard ignores."""
        if self.exempt is None:
            return self
        exempt = self.exempt.union(addresses)
        return self if exempt == self.exempt else replace(self, exempt=exempt)


def standing(cluster: str, claims: Sequence[Claim], min_ready: int) -> Standing:
    """The standing of a source for failover, from the claims of its families: ready if any family is ready."""
    return Standing(
        cluster,
        known=all(
            claim.known and (claim.wanted or not _unresolved(claim)) and not _unproven(claim) for claim in claims
        ),
        offers=any(claim.wanted for claim in claims),
        ready=any(enough_ready(claim.wanted.values(), min_ready) for claim in claims),
        published=any(claim.published for claim in claims),
        serving=any(enough_ready(_published(claim), min_ready) for claim in claims),
    )


def _published(claim: Claim) -> Iterable[Endpoint]:
    """The published endpoints, each address once."""
    published = claim.published
    if published.duplicates:
        return claim.current.values()
    return chain.from_iterable(slice_.endpoints for slice_ in published.slices)


def _unresolved(claim: Claim) -> bool:
    """Whether there are nodes whose address is not known: without any wanted endpoint, the source is then unknown."""
    return claim.view is not None and bool(claim.view.unknown_nodes)


def _unproven(claim: Claim) -> bool:
    """Whether new addresses wait for their first verdict and no endpoint is ready."""
    judged = claim.judged
    return judged is not None and bool(judged.pending) and not enough_ready(claim.wanted.values(), 1)


def enough_ready(endpoints: Iterable[Endpoint], count: int) -> bool:
    """Whether at least ``count`` endpoints are ready; stops counting at ``count``."""
    ready = (None for endpoint in endpoints if endpoint.conditions.ready)
    return sum(1 for _ in islice(ready, count)) >= count


def deactivate(claim: Claim, *, healthy: bool, remove: bool) -> Claim:
    """The claim of a source that is not active: it adds no endpoints, and loses all of them once ``remove`` is set.

    Until then the guard judges the claim like any other, because the active source may not be published yet.

    Args:
        claim: of a source that is not active.
        healthy: whether the active source is ready, so that the guard need not judge the removal.
        remove: whether the endpoints may be removed now.
    """
    if claim.role == "untouched":
        return claim
    if remove:
        return replace(claim, role="inactive", exempt=None if healthy else claim.exempt, wanted=EMPTY)
    published = claim.current
    wanted = claim.wanted.without([address for address in claim.wanted if address not in published])
    return replace(claim, role="inactive", wanted=wanted)


def node_of(endpoint: Endpoint) -> str | None:
    """The Node an endpoint stands for."""
    reference = endpoint.target_ref
    return reference.name if reference is not None and reference.kind == "Node" else None


def filtered_addresses(claim: Claim) -> frozenset[str]:
    """The removed addresses whose node or record still exists, or may still exist."""
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
