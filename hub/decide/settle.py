"""Whose address it is: an address appears once per Service, across slices and clusters.

Where the claims of two sources meet, the one that already publishes the address keeps it, else the first
in source order has it. An address that changes hands is published by the new owner with equal conditions,
and leaves the old one :data:`SETTLE` seconds after it was seen there: never a moment without it.

As long as the sources' addresses are disjoint, which is the normal state, nothing in here looks at an
endpoint.
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
    """An address on its way to another source: seen published at ``owner`` since then."""

    owner: str
    since: float


Moves = Mapping[tuple[str, str], Move]
"""(family, address) -> move."""

Disjoint = Mapping[str, tuple[EndpointSet, ...]]
"""Family -> what its sources claimed when that was last found to have no address in common."""


class Settled(msgspec.Struct, frozen=True):
    """How claims were settled.

    Attributes:
        claims: with what each may have; in the same order.
        moves: still going on.
        conflicts: addresses with more than one claimant; by family, sorted.
        wakes: when moves are over.
        disjoint: for the next pass, which then looks only at what changed.
    """

    claims: tuple[Claim, ...]
    moves: Moves
    conflicts: tuple[str, ...] = ()
    wakes: tuple[float, ...] = ()
    disjoint: Disjoint = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What an operator may want to know."""
        if not self.conflicts:
            return ()
        some = f"{len(self.conflicts)} addresses are offered by more than one source, such as {self.conflicts[0]}"
        return (Finding("AddressConflict", some, self.conflicts),)


def settle(claims: Sequence[Claim], moves: Moves, disjoint: Disjoint, now: float) -> Settled:
    """Settle the claims of a target.

    Args:
        claims: of all sources in their order, those that are not sources any more last.
        moves: going on since earlier passes.
        disjoint: from the last pass.
        now: seconds that only move forward.
    """
    families: dict[str, list[int]] = {}
    for i, claim in enumerate(claims):
        families.setdefault(claim.key.family, []).append(i)
    settled = list(claims)
    going: dict[tuple[str, str], Move] = {}
    conflicts: list[str] = []
    wakes: list[float] = []
    apart: dict[str, tuple[EndpointSet, ...]] = {}
    for family, members in families.items():
        if len(members) < 2:
            continue
        contested, apart[family] = _contested([claims[i] for i in members], disjoint.get(family, ()))
        if not contested:
            continue
        settlement = _Settlement([claims[i] for i in members], moves, now)
        for address in sorted(contested):
            settlement.place(address)
        for i, claim in zip(members, settlement.settled(), strict=True):
            settled[i] = claim
        going.update(settlement.going)
        conflicts.extend(settlement.conflicts)
        wakes.extend(settlement.wakes)
    return Settled(tuple(settled), going, tuple(conflicts), tuple(wakes), apart)


class _Settlement:
    """The contested addresses of one family, one by one."""

    def __init__(self, claims: Sequence[Claim], moves: Moves, now: float) -> None:
        self._claims = claims
        self._moves = moves
        self._now = now
        self._changes: list[dict[str, Endpoint | None]] = [{} for _ in claims]
        self._exempt: list[set[str]] = [set() for _ in claims]
        self.going: dict[tuple[str, str], Move] = {}
        self.conflicts: list[str] = []
        self.wakes: list[float] = []

    def settled(self) -> list[Claim]:
        """The claims with what each may have."""
        return [
            replace(
                claim,
                wanted=claim.wanted if claim.role == "untouched" else claim.wanted.overlay(changes),
                exempt=claim.excusing(exempt).exempt,
            )
            for claim, changes, exempt in zip(self._claims, self._changes, self._exempt, strict=True)
        ]

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
            self._changes[i][address] = None
        self._changes[owner][address] = endpoint
        leaving = [i for i in publishers if i != owner and claims[i].role != "untouched"]
        if leaving:
            over = self._moved(claims[owner], address)
            for i in leaving:
                self._exempt[i].add(address)
                self._changes[i][address] = None if over else _alike(claims[i].current[address], endpoint)

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
        self.wakes.append(move.since + SETTLE)
        return False


def _contested(claims: Sequence[Claim], disjoint: tuple[EndpointSet, ...]) -> tuple[set[str], tuple[EndpointSet, ...]]:
    """Addresses that two claims want, or that one wants and another, which publishes them, lets go of.

    Returns:
        Them, and what the claims want if that is disjoint.
    """
    claiming = [claim for claim in claims if not claim.yielding]
    wanted = tuple([claim.wanted for claim in claiming])
    contested = _shared(wanted, disjoint)
    apart = () if contested else wanted
    for claim in claims:
        letting_go = claim.current if claim.yielding else claim.difference.removed
        if letting_go:
            for other in claiming:
                if other is not claim:
                    contested.update(letting_go.keys() & other.wanted.keys())
    return contested, apart


def _shared(sets: tuple[EndpointSet, ...], disjoint: tuple[EndpointSet, ...]) -> set[str]:
    """Addresses that are in two sets. Where sets that were disjoint changed, only what they gained is looked up."""
    if len(disjoint) == len(sets):
        gained = [now.changed_since(before) & now.keys() for now, before in zip(sets, disjoint, strict=True)]
        if not any(
            address in other
            for i, addresses in enumerate(gained)
            for address in addresses
            for j, other in enumerate(sets)
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
    """The source that publishes it keeps it (above all where nobody may take it away), else the first in order."""
    keepers = [i for i in claimants if i in publishers]
    return next((i for i in keepers if claims[i].role == "untouched"), (keepers or claimants)[0])


def _best(claims: Sequence[Claim], owner: int, claimants: Sequence[int], address: str) -> Endpoint:
    """The owner's endpoint; ready if any claimant says so."""
    endpoint = claims[owner].wanted[address]
    if endpoint.conditions.ready or claims[owner].role == "untouched":
        return endpoint
    ready = (claims[i].wanted[address] for i in claimants)
    return next((_alike(endpoint, other) for other in ready if other.conditions.ready), endpoint)


def _alike(endpoint: Endpoint, other: Endpoint) -> Endpoint:
    if endpoint.conditions == other.conditions:
        return endpoint
    return replace(endpoint, conditions=other.conditions)
