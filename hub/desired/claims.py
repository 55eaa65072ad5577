"""Whose address it is: an address appears once per Service, across slices and clusters.

Sources lay claims; where two meet, the one that already publishes the address keeps it, else the first
in source order has it. An address that changes hands is published by the new owner with equal conditions,
and leaves the old one :data:`SETTLE` seconds after it was seen there: never a moment without it.

As long as the sources' addresses are disjoint, which is the normal state, nothing in here looks at an
endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec

from hub.desired.failover import SETTLE, Standing
from hub.desired.published import Difference, Published
from hub.groups import GroupKey
from hub.model import Endpoint, Port, SourceView

EMPTY: Final[Mapping[str, Endpoint]] = {}


class Judged(NamedTuple):
    """What verdicts leave of an endpoint mapping.

    Attributes:
        wanted: with failed ones marked, or left out; the mapping itself where all pass.
        failing: unhealthy addresses, sorted.
        pending: never seen before and not judged yet, sorted.
    """

    wanted: Mapping[str, Endpoint]
    failing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


class Claim(msgspec.Struct):
    """What one source lays claim to in one family, while a target is being decided.

    Attributes:
        key: cluster and family.
        published: what is published of it.
        wanted: what it wants to have published.
        ports: for its slices.
        sets: address -> ports, for endpoints that serve others than ``ports``.
        view: what its source offers; None where it is no source of the target any more.
        known: False where ``wanted`` is what is published, for want of a statement.
        untouched: its slices must not be written at all; it keeps what it publishes.
        yielding: what it publishes is on its way out; it keeps nothing that somebody else claims.
        drop: leave no empty slice.
        exempt: addresses that the guard is not to look at.
        exempt_all: it is not to look at any.
        judged: what the verdicts say; None where nothing is checked.
        plain: what it would want if nothing were checked; set where ``judged`` is.
    """

    key: GroupKey
    published: Published
    wanted: Mapping[str, Endpoint]
    ports: tuple[Port, ...] = ()
    view: SourceView | None = None
    known: bool = True
    untouched: bool = False
    yielding: bool = False
    drop: bool = False
    exempt: set[str] = msgspec.field(default_factory=set)
    exempt_all: bool = False
    sets: Mapping[str, tuple[Port, ...]] = msgspec.field(default_factory=dict)
    judged: Judged | None = None
    plain: Mapping[str, Endpoint] = msgspec.field(default_factory=dict)
    _current: Mapping[str, Endpoint] | None = None

    @property
    def current(self) -> Mapping[str, Endpoint]:
        """What is published of it, by address; put together once, where somebody asks."""
        if self._current is None:
            self._current = self.published.endpoints
        return self._current

    @property
    def difference(self) -> Difference:
        """From what is published to what is wanted."""
        return self.published.difference(self.wanted)


class Move(msgspec.Struct, frozen=True):
    """An address on its way to another source: seen published at ``owner`` since then."""

    owner: str
    since: float


Moves = Mapping[tuple[str, str], Move]
"""(family, address) -> move."""


class Settled(msgspec.Struct, frozen=True):
    """How the claims of one family were settled.

    Attributes:
        moves: still going on.
        conflicts: addresses with more than one claimant, sorted.
        wake_at: when the next move is over.
    """

    moves: Moves
    conflicts: tuple[str, ...] = ()
    wake_at: float | None = None


class Overlaps:
    """Finds addresses that two mappings share; remembers mappings that were disjoint."""

    __slots__ = ("_disjoint",)

    def __init__(self) -> None:
        self._disjoint: tuple[Mapping[str, Endpoint], ...] = ()

    def find(self, mappings: Sequence[Mapping[str, Endpoint]]) -> set[str]:
        """Shared addresses. Where one of many disjoint mappings changed, only what it gained is looked up."""
        last = self._disjoint
        if len(last) == len(mappings):
            pairs = zip(mappings, last, strict=True)
            gained = [new.keys() - old.keys() if new is not old else frozenset() for new, old in pairs]
            if not any(
                address in other
                for i, addresses in enumerate(gained)
                for address in addresses
                for j, other in enumerate(mappings)
                if i != j
            ):
                self._disjoint = tuple(mappings)
                return set()
        shared: set[str] = set()
        seen: set[str] = set()
        for mapping in mappings:
            shared.update(seen & mapping.keys())
            seen.update(mapping)
        self._disjoint = () if shared else tuple(mappings)
        return shared


def settle(claims: Sequence[Claim], moves: Moves, overlaps: Overlaps, now: float) -> Settled:
    """Settle the claims of one family, in source order; changes their ``wanted``.

    Args:
        claims: of all sources, those that are no sources any more last.
        moves: going on since earlier passes (of this family or any).
        overlaps: the memory of this family.
        now: seconds that only move forward.
    """
    contested = _contested(claims, overlaps)
    if not contested:
        return Settled({})
    settlement = _Settlement(claims, moves, now)
    for address in sorted(contested):
        settlement.place(address)
    for claim, content in zip(claims, settlement.wanted, strict=True):
        if not claim.untouched and content != claim.wanted:
            claim.wanted = content
    return Settled(settlement.going, tuple(settlement.conflicts), min(settlement.ends, default=None))


class _Settlement:
    """The contested addresses of one family, one by one."""

    def __init__(self, claims: Sequence[Claim], moves: Moves, now: float) -> None:
        self._claims = claims
        self._moves = moves
        self._now = now
        self.wanted = [dict(claim.wanted) for claim in claims]
        self.going: dict[tuple[str, str], Move] = {}
        self.conflicts: list[str] = []
        self.ends: list[float] = []

    def place(self, address: str) -> None:
        """Give an address to its owner and take it, in time, from all others."""
        claims = self._claims
        claimants = [i for i, claim in enumerate(claims) if not claim.yielding and address in claim.wanted]
        publishers = [i for i, claim in enumerate(claims) if address in claim.current]
        if len(claimants) > 1:
            self.conflicts.append(address)
        owner = _owner(claims, claimants, publishers)
        endpoint = _best(claims, owner, claimants, address)
        for i in claimants:
            self.wanted[i].pop(address, None)
        self.wanted[owner][address] = endpoint
        leaving = [i for i in publishers if i != owner and not claims[i].untouched]
        if leaving:
            over = self._moved(claims[owner], address)
            for i in leaving:
                claims[i].exempt.add(address)
                self.wanted[i].pop(address, None)
                if not over:
                    self.wanted[i][address] = _alike(claims[i].current[address], endpoint)

    def _moved(self, owner: Claim, address: str) -> bool:
        """Whether the address has been seen at its owner for long enough to leave the others."""
        if address not in owner.current:
            return False
        key = (owner.key.family, address)
        move = self._moves.get(key)
        if move is None or move.owner != owner.key.cluster:
            move = Move(owner.key.cluster, self._now)
        self.going[key] = move
        if self._now >= move.since + SETTLE:
            return True
        self.ends.append(move.since + SETTLE)
        return False


def _contested(claims: Sequence[Claim], overlaps: Overlaps) -> set[str]:
    """Addresses that are wanted by two, or wanted by one and published by another that lets go of them."""
    claiming = [claim for claim in claims if not claim.yielding]
    contested = overlaps.find([claim.wanted for claim in claiming])
    for claim in claims:
        letting_go = claim.current if claim.yielding else claim.difference.removed
        if not letting_go:
            continue
        for other in claiming:
            if other is not claim:
                contested.update(letting_go.keys() & other.wanted.keys())
    return contested


def _owner(claims: Sequence[Claim], claimants: Sequence[int], publishers: Sequence[int]) -> int:
    """Who publishes it keeps it (above all where nobody may take it away), else the first in order."""
    keepers = [i for i in claimants if i in publishers]
    return next((i for i in keepers if claims[i].untouched), (keepers or claimants)[0])


def _best(claims: Sequence[Claim], owner: int, claimants: Sequence[int], address: str) -> Endpoint:
    """The owner's endpoint; ready if any claimant says so."""
    endpoint = claims[owner].wanted[address]
    if endpoint.conditions.ready or claims[owner].untouched:
        return endpoint
    ready = (claims[i].wanted[address] for i in claimants)
    return next((_alike(endpoint, other) for other in ready if other.conditions.ready), endpoint)


def _alike(endpoint: Endpoint, other: Endpoint) -> Endpoint:
    if endpoint.conditions == other.conditions:
        return endpoint
    return msgspec.structs.replace(endpoint, conditions=other.conditions)


# --- what a claim says ---------------------------------------------------------------------------


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
    return chain.from_iterable(each.endpoints for each in published.slices)


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


def step_aside(claim: Claim, *, healthy: bool, remove: bool) -> None:
    """A source that is not the active one: published no more than it is, and no longer than it must be.

    Until it may go the guard judges it like any other: the active one is perhaps not published yet.
    """
    if claim.untouched:
        return
    claim.yielding = True
    if remove:
        claim.exempt_all = claim.exempt_all or healthy
        claim.wanted = EMPTY
        return
    published = claim.current
    claim.wanted = {address: claim.wanted[address] for address in published if address in claim.wanted}


def node_of(endpoint: Endpoint) -> str | None:
    """The Node an endpoint stands for."""
    reference = endpoint.target_ref
    return reference.name if reference is not None and reference.kind == "Node" else None


def filtered(claim: Claim) -> frozenset[str]:
    """The departures whose node, or record, still exists; and those that cannot be told."""
    view = claim.view
    if view is None:
        return frozenset()
    removed = claim.difference.removed
    if view.addresses_complete is not None:
        return frozenset(removed.keys() & view.addresses_complete)
    gone = {
        address
        for address, endpoint in removed.items()
        if (name := node_of(endpoint)) is not None and name not in view.gone_complete
    }
    return frozenset(removed.keys() - gone)
