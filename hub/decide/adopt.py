"""Taking over from another controller: when its slices of a target may go. Pure.

Ours are published beside theirs, with equal conditions, so that no consumer sees a difference. Theirs go
when every address in them has been covered by ours for :data:`SETTLE` seconds; one that the source of both has let
go of needs no cover. Whoever wrote them may still run: a slice that changes meanwhile is left alone until it has been
quiet, and one that comes back after it was deleted is left alone for good. An old writer is reported, never fought.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from hub.decide.endpoints import EndpointGroup
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, Conditions, Endpoint, Finding, Port, Slice, SourceView
from hub.registry.spec import ENDPOINT_COPIER, LABEL_COPIER_SOURCE

SETTLE: Final = 5.0
"""Seconds for which both are published: consumers have seen ours by then, as with every move (DESIGN.md)."""

QUIET: Final = 60.0
"""Seconds without a change after which an old writer that was seen at work counts as stopped."""

LISTED: Final = 20
"""Objects in a finding."""

EPSILON: Final = 1e-6
"""Seconds by which sums of floats may be off."""

Spot = tuple[str, str]
"""Address family and address."""

Served = tuple[Endpoint, tuple[Port, ...]]
"""An endpoint and its ports."""


class AdoptMemory(msgspec.Struct, frozen=True):
    """What a target remembers of its adoption between two passes; a new one after a restart.

    Attributes:
        managed_by: whose slices it is about.
        seen: uid -> resourceVersion of theirs at the last pass; None before the first.
        covered_since: since when every address of theirs is covered by ours.
        written_at: when their writer was last seen at work.
        deleted: uids of theirs that this process deleted.
        returned: their writer wrote a new slice after that.
    """

    managed_by: str = ""
    seen: Mapping[str, str] | None = None
    covered_since: float | None = None
    written_at: float | None = None
    deleted: frozenset[str] = frozenset()
    returned: bool = False


NEW: Final = AdoptMemory()


class Adoption(msgspec.Struct, frozen=True):
    """What follows for one target.

    Attributes:
        groups: what is wanted of ours, with the conditions theirs have.
        deletes: slices of theirs that go, exactly as observed.
        findings: for an operator.
        memory: for the next pass.
        wake_at: when to look again at the latest, by the clock of ``now``.
    """

    groups: tuple[EndpointGroup, ...]
    deletes: tuple[Slice, ...] = ()
    findings: tuple[Finding, ...] = ()
    memory: AdoptMemory = NEW
    wake_at: float | None = None


def adopt(
    managed_by: str,
    theirs: Iterable[Slice],
    published: Iterable[Slice],
    groups: tuple[EndpointGroup, ...],
    memory: AdoptMemory,
    now: float,
    *,
    sources: Sequence[SourceView] = (),
) -> Adoption:
    """Decide about the slices of another controller.

    Args:
        managed_by: the value of the managed-by label they must carry.
        theirs: slices of this target as observed; those that are not exactly theirs are left out here.
        published: ours, as observed.
        groups: what is wanted of ours, after the guard.
        memory: from the last pass.
        now: seconds that only move forward.
        sources: what theirs was made from, as ours is; none where that is something else. While each makes a complete
            statement and something of ours is ready, their word counts, not theirs: what none of them states is
            gone and need not be covered, and ours need be no better than they say.
    """
    if memory.managed_by != managed_by:
        memory = AdoptMemory(managed_by)
    known = [slice_ for slice_ in theirs if is_theirs(slice_, managed_by) and slice_.uid not in memory.deleted]
    present = sorted((slice_ for slice_ in known if not slice_.deleting), key=lambda slice_: slice_.name)
    memory = _watched(memory, present, now)
    if not present:
        return Adoption(groups, memory=replace(memory, covered_since=None, returned=False))
    names = tuple(slice_.name for slice_ in present)[:LISTED]
    published = tuple(published)
    stated = bool(sources) and all(map(_complete, sources))
    missing = _uncovered(present, published, groups, sources if stated and _any_ready(published) else ())
    if not stated:
        groups = _alike(groups, present)
    working = memory.written_at is not None and now < memory.written_at + QUIET - EPSILON
    if memory.returned or working:
        since = " again after they were deleted" if memory.returned else ""
        message = f"{managed_by} still writes slices of this Service{since}; they stay. Stop it" + (
            ", then delete them" if memory.returned else ""
        )
        wake_at = None if memory.returned or memory.written_at is None else memory.written_at + QUIET
        finding = Finding("OldWriterActive", message, names)
        return Adoption(groups, findings=(finding,), memory=replace(memory, covered_since=None), wake_at=wake_at)
    if missing:
        some = f"{len(missing)} of their endpoints are not covered by ours, such as {missing[0]}"
        message = f"slices of {managed_by} stay: {some}"
        finding = Finding("AdoptionWaiting", message, tuple(missing[:LISTED]))
        return Adoption(groups, findings=(finding,), memory=replace(memory, covered_since=None))
    since_when = now if memory.covered_since is None else memory.covered_since
    memory = replace(memory, covered_since=since_when)
    if now < since_when + SETTLE - EPSILON:
        return Adoption(groups, memory=memory, wake_at=since_when + SETTLE)
    return Adoption(groups, tuple(present), memory=memory)


def deleted(memory: AdoptMemory, uids: Iterable[str]) -> AdoptMemory:
    """These slices of theirs are gone, by our hand."""
    return replace(memory, deleted=memory.deleted | frozenset(uids), covered_since=None)


def _watched(memory: AdoptMemory, present: Sequence[Slice], now: float) -> AdoptMemory:
    """Whether their writer was at work since the last pass."""
    versions = {slice_.uid: slice_.resource_version for slice_ in present}
    before = memory.seen
    if before is None or versions == before:
        return memory if before is not None else replace(memory, seen=versions)
    if all(before.get(uid) == version for uid, version in versions.items()):  # some were deleted, by whomever
        return replace(memory, seen=versions)
    returned = memory.returned or (bool(memory.deleted) and any(uid not in before for uid in versions))
    return replace(memory, seen=versions, written_at=now, returned=returned)


# --- what covers what -----------------------------------------------------------------------------


def _complete(view: SourceView) -> bool:
    """Whether what a source does not state is gone there; one that states nothing may be another than is meant."""
    return view.unknown is None and view.complete and not view.unknown_nodes and any(view.endpoints.values())


def _any_ready(slices: Iterable[Slice]) -> bool:
    return any(conditions(endpoint).ready for slice_ in slices for endpoint in slice_.endpoints)


def _uncovered(
    theirs: Sequence[Slice],
    published: Sequence[Slice],
    groups: Sequence[EndpointGroup],
    sources: Sequence[SourceView],
) -> list[str]:
    """Addresses of theirs that ours do not stand in for, sorted.

    Ours does where it is published and wanted, with the same ports, both times with conditions that are not worse.
    """
    there: dict[Spot, list[Served]] = {}
    for slice_ in published:
        for spot, endpoint in _spots(slice_):
            there.setdefault(spot, []).append((endpoint, slice_.ports))
    wanted: dict[Spot, list[Served]] = {}
    for group in groups:
        for address, endpoint in group.endpoints.items():
            ports = group.port_sets.get(address, group.ports)
            wanted.setdefault((group.key.family, address), []).append((endpoint, ports))
    missing = {
        spot[1]
        for slice_ in theirs
        for spot, endpoint in _spots(slice_)
        if (asked := _asked(spot, (endpoint, slice_.ports), sources))
        and not any(all(_stands_in(*one, ours.get(spot, ())) for ours in (wanted, there)) for one in asked)
    }
    return sorted(missing)


def _asked(spot: Spot, theirs: Served, sources: Sequence[SourceView]) -> list[Served]:
    """What ours must be no worse than: what a source says of it, whatever the ports are; without sources, theirs."""
    if not sources:
        return [theirs]
    family, address = spot
    stated = (view.endpoints.get(family, {}).get(address) for view in sources)
    return [(endpoint, ()) for endpoint in stated if endpoint is not None]


def _spots(value: Slice) -> Iterator[tuple[Spot, Endpoint]]:
    for endpoint in value.endpoints:
        for address in endpoint.addresses:
            yield (value.address_type, address), endpoint


def _stands_in(theirs: Endpoint, ports: tuple[Port, ...], candidates: Iterable[Served]) -> bool:
    return any(
        not _worse(conditions(ours), conditions(theirs)) and all(_has(offered, port) for port in ports)
        for ours, offered in candidates
    )


def conditions(endpoint: Endpoint) -> Conditions:
    """An endpoint's conditions as the API defines unset ones: ready, serving as ready, not terminating."""
    known = endpoint.conditions
    ready = known.ready is not False
    serving = ready if known.serving is None else known.serving
    return Conditions(ready=ready, serving=serving, terminating=bool(known.terminating))


def _worse(ours: Conditions, theirs: Conditions) -> bool:
    return bool((theirs.ready and not ours.ready) or (theirs.serving and not ours.serving))


def _has(offered: tuple[Port, ...], port: Port) -> bool:
    """A port without a name is found by its number: ours bears the Service's name for it."""
    return any(
        candidate.port == port.port and candidate.protocol == port.protocol and port.name in ("", candidate.name)
        for candidate in offered
    )


# --- equal conditions -----------------------------------------------------------------------------


def _alike(groups: tuple[EndpointGroup, ...], theirs: Sequence[Slice]) -> tuple[EndpointGroup, ...]:
    """Ours with the conditions that theirs has for the same address; the best where there are several."""
    known: dict[Spot, Conditions] = {}
    for slice_ in theirs:
        for spot, endpoint in _spots(slice_):
            found = conditions(endpoint)
            if spot not in known or _worse(known[spot], found):
                known[spot] = found
    return tuple(_with_conditions(group, known) for group in groups)


def _with_conditions(group: EndpointGroup, known: Mapping[Spot, Conditions]) -> EndpointGroup:
    other = {
        address: msgspec.structs.replace(endpoint, conditions=known[group.key.family, address])
        for address, endpoint in group.endpoints.items()
        if known.get((group.key.family, address), endpoint.conditions) != endpoint.conditions
    }
    if not other:
        return group
    published = {
        address: endpoint
        for slice_ in group.slices
        for address, endpoint in zip(slice_.addresses, slice_.endpoints, strict=True)
        if address in other
    }
    changed = {address: change for address, change in group.changed.items() if address not in other}
    changed |= {address: (published[address], other[address]) for address in other if address in published}
    changed = {address: change for address, change in changed.items() if change[0] != change[1]}
    return msgspec.structs.replace(group, endpoints={**group.endpoints, **other}, changed=changed)


def is_theirs(slice_: Slice, managed_by: str) -> bool:
    """Whether a slice belongs to the controller with this managed-by value; endpoint-copier sets no such label."""
    labels = slice_.labels
    if LABEL_OWNER in labels:
        return False
    if managed_by == ENDPOINT_COPIER:
        return LABEL_COPIER_SOURCE in labels and LABEL_MANAGED_BY not in labels
    return labels.get(LABEL_MANAGED_BY) == managed_by
