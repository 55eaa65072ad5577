"""Adoption: decide when the slices of another controller, which the hub replaces for a target, may be deleted. Pure.

"Ours" are the hub's slices, "theirs" are the slices of the other controller. The hub publishes its slices next to
theirs with equal conditions, so consumers see no difference. It deletes theirs once every address in them has been
covered by ours for :data:`SETTLE` seconds. Addresses that the common source has dropped need not be covered.

The other controller may still be running. If it changes a slice, the hub deletes nothing until there has been no change
for :data:`QUIET` seconds. If it writes new slices after the hub deleted some, the hub leaves them all alone. The hub
reports an active old writer and never fights it.
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
"""Seconds for which both are published, so that consumers have seen ours; the same as for every move."""

QUIET: Final = 60.0
"""Seconds without a change after which an active old writer counts as stopped."""

LISTED: Final = 20
"""Maximum number of objects in a finding."""

EPSILON: Final = 1e-6
"""Seconds by which sums of floats may be off: without it, a timer could fire just before its deadline."""

Spot = tuple[str, str]
"""Address family and address."""

Served = tuple[Endpoint, tuple[Port, ...]]
"""An endpoint and its ports."""


class AdoptMemory(msgspec.Struct, frozen=True):
    """The state of a target's adoption between two passes; empty after a restart.

    Attributes:
        managed_by: managed-by value of the other controller.
        seen: uid -> resourceVersion of their slices at the last pass; None before the first pass.
        covered_since: since when ours cover every address of theirs; None if they do not.
        written_at: when the other controller was last seen to write; None if it never was.
        deleted: uids of their slices that this process deleted.
        returned: whether the other controller wrote a new slice after that.
    """

    managed_by: str = ""
    seen: Mapping[str, str] | None = None
    covered_since: float | None = None
    written_at: float | None = None
    deleted: frozenset[str] = frozenset()
    returned: bool = False


NEW: Final = AdoptMemory()


class Adoption(msgspec.Struct, frozen=True):
    """The result for one target.

    Attributes:
        groups: the wanted groups, with the conditions that their slices have for the same addresses.
        deletes: their slices to delete, exactly as observed.
        findings: for an operator.
        memory: for the next pass.
        wake_at: latest time of the next pass, by the clock of ``now``; None if no timer is running.
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
        managed_by: value of the managed-by label of the other controller's slices.
        theirs: observed slices of this target; slices that do not belong to the other controller are ignored.
        published: our slices as observed.
        groups: the wanted groups, after the guard.
        memory: from the last pass.
        now: seconds of a monotonic clock.
        sources: the views of the target's sources if the other controller builds its slices from the same sources, else
            empty. If all of them are complete and any of our endpoints is ready, ours are compared with the sources
            instead of with their slices: an address that no source offers need not be covered, and our endpoints need
            not have better conditions than the sources state.
    """
    if memory.managed_by != managed_by:
        memory = AdoptMemory(managed_by)
    known = [slice_ for slice_ in theirs if is_theirs(slice_, managed_by) and slice_.uid not in memory.deleted]
    present = sorted((slice_ for slice_ in known if not slice_.deleting), key=lambda slice_: slice_.name)
    memory = _with_slices(memory, present, now)
    if not present:
        return Adoption(groups, memory=replace(memory, covered_since=None, returned=False))
    names = tuple(slice_.name for slice_ in present)[:LISTED]
    published = tuple(published)
    stated = bool(sources) and all(map(_complete, sources))
    missing = _uncovered(present, published, groups, sources if stated and _any_ready(published) else ())
    if not stated:
        groups = _with_their_conditions(groups, present)
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


def with_deleted(memory: AdoptMemory, uids: Iterable[str]) -> AdoptMemory:
    """The memory after this process deleted some of their slices."""
    return replace(memory, deleted=memory.deleted | frozenset(uids), covered_since=None)


def _with_slices(memory: AdoptMemory, present: Sequence[Slice], now: float) -> AdoptMemory:
    """The memory with the slices of this pass; notes whether the other controller wrote since the last pass."""
    versions = {slice_.uid: slice_.resource_version for slice_ in present}
    before = memory.seen
    if before is None or versions == before:
        return memory if before is not None else replace(memory, seen=versions)
    if all(before.get(uid) == version for uid, version in versions.items()):  # slices were only deleted, none written
        return replace(memory, seen=versions)
    returned = memory.returned or (bool(memory.deleted) and any(uid not in before for uid in versions))
    return replace(memory, seen=versions, written_at=now, returned=returned)


# --- coverage -------------------------------------------------------------------------------------


def _complete(view: SourceView) -> bool:
    """Whether an address that the view does not contain is gone at the source.

    A view without any endpoint does not count: the registry may name a wrong source.
    """
    return view.unknown is None and view.complete and not view.unknown_nodes and any(view.endpoints.values())


def _any_ready(slices: Iterable[Slice]) -> bool:
    return any(conditions(endpoint).ready for slice_ in slices for endpoint in slice_.endpoints)


def _uncovered(
    theirs: Sequence[Slice],
    published: Sequence[Slice],
    groups: Sequence[EndpointGroup],
    sources: Sequence[SourceView],
) -> list[str]:
    """Addresses of theirs that ours do not cover, sorted.

    Ours cover an address if it is both published and wanted, each time with the same ports and with conditions that are
    no worse.
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
        if (to_cover := _to_cover(spot, (endpoint, slice_.ports), sources))
        and not any(all(_is_covered(*served, ours.get(spot, ())) for ours in (wanted, there)) for served in to_cover)
    }
    return sorted(missing)


def _to_cover(spot: Spot, theirs: Served, sources: Sequence[SourceView]) -> list[Served]:
    """The endpoints, with ports, of which ours must cover at least one; empty if the address need not be covered.

    With sources, these are the sources' endpoints for the address, without ports. Without sources, it is theirs.
    """
    if not sources:
        return [theirs]
    family, address = spot
    stated = (view.endpoints.get(family, {}).get(address) for view in sources)
    return [(endpoint, ()) for endpoint in stated if endpoint is not None]


def _spots(value: Slice) -> Iterator[tuple[Spot, Endpoint]]:
    for endpoint in value.endpoints:
        for address in endpoint.addresses:
            yield (value.address_type, address), endpoint


def _is_covered(theirs: Endpoint, ports: tuple[Port, ...], candidates: Iterable[Served]) -> bool:
    return any(
        not _worse(conditions(ours), conditions(theirs)) and all(_has(offered, port) for port in ports)
        for ours, offered in candidates
    )


def conditions(endpoint: Endpoint) -> Conditions:
    """An endpoint's conditions with the API's defaults for unset ones: ready, serving like ready, not terminating."""
    known = endpoint.conditions
    ready = known.ready is not False
    serving = ready if known.serving is None else known.serving
    return Conditions(ready=ready, serving=serving, terminating=bool(known.terminating))


def _worse(ours: Conditions, theirs: Conditions) -> bool:
    return bool((theirs.ready and not ours.ready) or (theirs.serving and not ours.serving))


def _has(offered: tuple[Port, ...], port: Port) -> bool:
    """Whether a port is offered. An unnamed port is compared by number only: ours has the name from the Service."""
    return any(
        candidate.port == port.port and candidate.protocol == port.protocol and port.name in ("", candidate.name)
        for candidate in offered
    )


# --- equal conditions -----------------------------------------------------------------------------


def _with_their_conditions(groups: tuple[EndpointGroup, ...], theirs: Sequence[Slice]) -> tuple[EndpointGroup, ...]:
    """Our groups with the conditions of theirs for the same address; the best of them if there are several."""
    known: dict[Spot, Conditions] = {}
    for slice_ in theirs:
        for spot, endpoint in _spots(slice_):
            found = conditions(endpoint)
            if spot not in known or _worse(known[spot], found):
                known[spot] = found
    return tuple(_with_conditions(group, known) for group in groups)


def _with_conditions(group: EndpointGroup, known: Mapping[Spot, Conditions]) -> EndpointGroup:
    adjusted = {
        address: msgspec.structs.replace(endpoint, conditions=known[group.key.family, address])
        for address, endpoint in group.endpoints.items()
        if known.get((group.key.family, address), endpoint.conditions) != endpoint.conditions
    }
    if not adjusted:
        return group
    published = {
        address: endpoint
        for slice_ in group.slices
        for address, endpoint in zip(slice_.addresses, slice_.endpoints, strict=True)
        if address in adjusted
    }
    changed = {address: change for address, change in group.changed.items() if address not in adjusted}
    changed |= {address: (published[address], adjusted[address]) for address in adjusted if address in published}
    changed = {address: change for address, change in changed.items() if change[0] != change[1]}
    return msgspec.structs.replace(group, endpoints={**group.endpoints, **adjusted}, changed=changed)


def is_theirs(slice_: Slice, managed_by: str) -> bool:
    """Whether a slice belongs to the controller with this managed-by value."""
    return labels_are_theirs(slice_.labels, managed_by)


def labels_are_theirs(labels: Mapping[str, str], managed_by: str) -> bool:
    """Whether a slice with these labels belongs to the controller; endpoint-copier sets no managed-by label."""
    if LABEL_OWNER in labels:
        return False
    if managed_by == ENDPOINT_COPIER:
        return LABEL_COPIER_SOURCE in labels and LABEL_MANAGED_BY not in labels
    return labels.get(LABEL_MANAGED_BY) == managed_by
