"""Choose the owner of each address: an address appears once per Service, across slices and clusters.

If two sources claim an address, the source that already publishes it keeps it; otherwise the first source in order
gets it. When an address moves, the new owner publishes it with equal conditions, and the old owner removes it
:data:`SETTLE` seconds after it was observed at the new owner. The address is published throughout.

While the sources' addresses are disjoint, which is the normal state, this module inspects no endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from hub.decide.claims import Claim
from hub.decide.endpoints import EndpointSet
from hub.decide.failover import SETTLE
from hub.model import Endpoint, Finding


class Move(msgspec.Struct, frozen=True):
    """A move of an address to another source: ``owner`` has been publishing it since ``since``."""

    owner: str
    since: float


Moves = Mapping[tuple[str, str], Move]
"""(family, address) -> move."""

Disjoint = Mapping[str, tuple[EndpointSet, ...]]
"""Family -> claimed endpoints per source when they last had no address in common."""


class Settled(msgspec.Struct, frozen=True):
    """The settled claims.

    Attributes:
        claims: the claims, reduced to the addresses that each source owns; in the same order.
        moves: unfinished moves.
        conflicts: addresses with more than one claimant, sorted within each family.
        wakes: times at which moves end, by the clock of ``now``.
        disjoint: for the next decision, which then only compares the claims that changed.
    """

    claims: tuple[Claim, ...]
    moves: Moves
    conflicts: tuple[str, ...] = ()
    wakes: tuple[float, ...] = ()
    disjoint: Disjoint = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """A finding about conflicts, if there are any."""
        if not self.conflicts:
            return ()
        some = f"{len(self.conflicts)} addresses are offered by more than one source, such as {self.conflicts[0]}"
        return (Finding("AddressConflict", some, self.conflicts),)


def settle(claims: Sequence[Claim], moves: Moves, disjoint: Disjoint, now: float) -> Settled:
    """Settle the claims of a target.

    Args:
        claims: of all sources in their order, then of clusters that are no longer sources.
        moves: unfinished moves from earlier decisions.
        disjoint: from the last decision.
        now: seconds of a monotonic clock.
    """
    families: dict[str, list[int]] = {}
    for i, claim in enumerate(claims):
        families.setdefault(claim.key.family, []).append(i)
    settled = list(claims)
    unfinished: dict[tuple[str, str], Move] = {}
    conflicts: list[str] = []
    wakes: list[float] = []
    still_disjoint: dict[str, tuple[EndpointSet, ...]] = {}
    for family, members in families.items():
        if len(members) < 2:
            continue
        contested, still_disjoint[family] = _contested([claims[i] for i in members], disjoint.get(family, ()))
        if not contested:
            continue
        settlement = _Settlement([claims[i] for i in members], moves, now)
        for address in sorted(contested):
            settlement.place(address)
        for i, claim in zip(members, settlement.settled(), strict=True):
            settled[i] = claim
        unfinished.update(settlement.unfinished)
        conflicts.extend(settlement.conflicts)
        wakes.extend(settlement.wakes)
    return Settled(tuple(settled), unfinished, tuple(conflicts), tuple(wakes), still_disjoint)


class _Settlement:
    """Settles the contested addresses of one family."""

    def __init__(self, claims: Sequence[Claim], moves: Moves, now: float) -> None:
        self._claims = claims
        self._moves = moves
        self._now = now
        self._changes: list[dict[str, Endpoint | None]] = [{} for _ in claims]
        self._exempt: list[set[str]] = [set() for _ in claims]
        self.unfinished: dict[tuple[str, str], Move] = {}
        self.conflicts: list[str] = []
        self.wakes: list[float] = []

    def settled(self) -> list[Claim]:
        """The claims, reduced to the addresses that each source owns."""
        return [
            replace(
                claim,
                wanted=claim.wanted if claim.role == "untouched" else claim.wanted.overlay(changes),
                exempt=claim.with_exempt(exempt).exempt,
            )
            for claim, changes, exempt in zip(self._claims, self._changes, self._exempt, strict=True)
        ]

    def place(self, address: str) -> None:
        """Give an address to its owner, and remove it from the other sources once it has moved."""
        claims = self._claims
        claimants = [i for i, claim in enumerate(claims) if not claim.leaving and address in claim.wanted]
        publishers = [i for i, claim in enumerate(claims) if address in claim.current]
        if len(claimants) > 1:
            self.conflicts.append(address)
        owner = _owner(claims, claimants, publishers)
        endpoint = _best(claims, owner, claimants, address)
        for i in claimants:
            self._changes[i][address] = None
        self._changes[owner][address] = endpoint
        leaving = [i for i in publishers if i != owner and claims[i].role != "untouched"]
        if leaving:
            over = self._moved(claims[owner], address)
            for i in leaving:
                self._exempt[i].add(address)
                self._changes[i][address] = None if over else _with_conditions_of(claims[i].current[address], endpoint)

    def _moved(self, owner: Claim, address: str) -> bool:
        """Whether the owner has published the address for long enough to remove it from the other sources."""
        if address not in owner.current:
            return False
        key = (owner.key.family, address)
        move = self._moves.get(key)
        if move is None or move.owner != owner.key.cluster:
            move = Move(owner.key.cluster, self._now)
        self.unfinished[key] = move
        if self._now >= move.since + SETTLE:
            return True
        self.wakes.append(move.since + SETTLE)
        return False


def _contested(claims: Sequence[Claim], disjoint: tuple[EndpointSet, ...]) -> tuple[set[str], tuple[EndpointSet, ...]]:
    """Addresses wanted by two claims, or wanted by one claim while another claim that publishes them drops them.

    Returns:
        The contested addresses, and the claims' wanted endpoints if these are disjoint (else an empty tuple).
    """
    claiming = [claim for claim in claims if not claim.leaving]
    wanted = tuple([claim.wanted for claim in claiming])
    contested = _shared(wanted, disjoint)
    still_disjoint = () if contested else wanted
    for claim in claims:
        letting_go = claim.current if claim.leaving else claim.difference.removed
        if letting_go:
            for rival in claiming:
                if rival is not claim:
                    contested.update(letting_go.keys() & rival.wanted.keys())
    return contested, still_disjoint


def _shared(sets: tuple[EndpointSet, ...], disjoint: tuple[EndpointSet, ...]) -> set[str]:
    """Addresses in more than one set. If the sets were disjoint before, only the addresses they gained are compared."""
    if len(disjoint) == len(sets):
        gained = [now.changed_since(before) & now.keys() for now, before in zip(sets, disjoint, strict=True)]
        if not any(
            address in rival
            for i, addresses in enumerate(gained)
            for address in addresses
            for j, rival in enumerate(sets)
            if i != j
        ):
            return set()
    shared: set[str] = set()
    seen: set[str] = set()
    for addresses in sets:
        shared.update(seen & addresses.keys())
        seen.update(addresses)
    return shared


def _owner(claims: Sequence[Claim], claimants: Sequence[int], publishers: Sequence[int]) -> int:
    """Index of the owner: a claimant that publishes the address (an untouched one if possible), else the first one."""
    keepers = [i for i in claimants if i in publishers]
    return next((i for i in keepers if claims[i].role == "untouched"), (keepers or claimants)[0])


def _best(claims: Sequence[Claim], owner: int, claimants: Sequence[int], address: str) -> Endpoint:
    """The owner's endpoint; ready if the endpoint of any claimant is ready."""
    endpoint = claims[owner].wanted[address]
    if endpoint.conditions.ready or claims[owner].role == "untouched":
        return endpoint
    ready = (claims[i].wanted[address] for i in claimants)
    return next((_with_conditions_of(endpoint, claimed) for claimed in ready if claimed.conditions.ready), endpoint)


def _with_conditions_of(endpoint: Endpoint, model: Endpoint) -> Endpoint:
    if endpoint.conditions == model.conditions:
        return endpoint
    return replace(endpoint, conditions=model.conditions)
