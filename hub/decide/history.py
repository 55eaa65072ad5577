"""The history of a Service: what was added, removed, withheld and released, when, and why.

Entries are made from a decision and the writes of its pass that succeeded. A state that lasts (a withheld removal, a
pause, a panic) makes one entry when it begins and one when it ends. Which states last is read from the entries
themselves, so a hub that restarts continues the history of the last one. Changes of conditions by health checks are
not recorded, because a flapping check would displace everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from hub.decide.claims import node_of
from hub.decide.decision import Decision
from hub.decide.endpoints import GroupKey
from hub.decide.failover import FAILED_OVER
from hub.decide.guard import digest
from hub.decide.snapshot import SourceReading, TargetSnapshot
from hub.model import LABEL_MANAGED_BY, MANAGED_BY, Endpoint, Finding, Slice, TargetKey
from hub.registry.spec import REGISTRY_HELD

PER_SERVICE: Final = 100
"""Maximum number of entries of one Service."""
TOTAL: Final = 20_000
"""Maximum number of entries of all Services. Entries of many Services about one node are one object."""
LISTED: Final = 50
"""Maximum number of endpoints that one entry names; it counts the others."""
LONGEST: Final = 400
"""Maximum length of an explanation."""

Kind = Literal[
    "added",
    "removed",
    "moved",
    "draining",
    "restored",
    "withheld",
    "returned",
    "released",
    "approved",
    "failed over",
    "panic",
    "panic over",
    "paused",
    "resumed",
    "adopted",
]

NAME_LENGTH: Final = 253
Name = Annotated[str, Meta(max_length=NAME_LENGTH)]
"""A name of Kubernetes, or an address."""


class Named(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An endpoint: its address, and the node or record behind it, "" if there is none."""

    address: Name
    node: Name = ""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event in the history of a Service.

    Attributes:
        at: Unix time in seconds.
        kind: what happened.
        why: the reason in words.
        cluster: the source cluster; "" if the entry is about the whole Service.
        family: the address family; "" if the entry is about the whole Service.
        endpoints: the first :data:`LISTED` endpoints, sorted by address.
        count: number of endpoints.
        hash: of a withheld removal.
    """

    at: Annotated[int, Meta(ge=0, le=253402300799)]
    kind: Kind
    why: Annotated[str, Meta(max_length=LONGEST)]
    cluster: Name = ""
    family: Name = ""
    endpoints: Annotated[tuple[Named, ...], Meta(max_length=LISTED)] = ()
    count: Annotated[int, Meta(ge=0)] = 0
    hash: Name = ""


Entries = Mapping[TargetKey, tuple[Entry, ...]]
"""The entries of each Service, oldest first."""

WHOLE: Final = GroupKey("", "")
"""Stands for all groups of a Service: a removal of its registry entry is withheld."""


class LastingStates(msgspec.Struct, frozen=True):
    """The states that last.

    Attributes:
        withheld: group -> hash of its withheld removal.
        paused: whether the Service is paused.
        panic: whether health checks are ignored.
    """

    withheld: Mapping[GroupKey, str] = {}
    paused: bool = False
    panic: bool = False


NOTHING: Final = LastingStates()


def lasting_states(entries: Iterable[Entry]) -> LastingStates:
    """The states that last after these entries, oldest first."""
    withheld: dict[GroupKey, str] = {}
    flags = {"paused": False, "panic": False}
    for entry in entries:
        if entry.kind == "withheld":
            withheld[GroupKey(entry.cluster, entry.family)] = entry.hash
        elif entry.kind in ("returned", "released", "approved"):
            withheld.pop(GroupKey(entry.cluster, entry.family), None)
        elif entry.kind in ("paused", "resumed"):
            flags["paused"] = entry.kind == "paused"
        elif entry.kind in ("panic", "panic over"):
            flags["panic"] = entry.kind == "panic"
    return LastingStates(withheld, **flags) if withheld or any(flags.values()) else NOTHING


# --- entries of a decision -----------------------------------------------------------------------

ENDS: Final[Mapping[str, Kind]] = {
    "ApprovalUsed": "approved",
    "PlanReleased": "released",
    "EmptyResultAccepted": "released",
}
"""Findings of the guard that end a withholding -> kind of the entry."""


def of_decision(
    decision: Decision, snapshot: TargetSnapshot, before: LastingStates, approvers: Mapping[str, str]
) -> tuple[Entry, ...]:
    """Entries about what a decision began or ended, apart from its writes.

    Args:
        decision: the decision.
        snapshot: the snapshot that it is about.
        before: the states that lasted before.
        approvers: hash -> who approved it.
    """
    if before is NOTHING and not (decision.findings or decision.held):
        return ()  # nearly every pass
    return tuple(_Transitions(decision, snapshot, before, approvers).entries())


class _Transitions:
    """What one decision began or ended."""

    def __init__(
        self, decision: Decision, snapshot: TargetSnapshot, before: LastingStates, approvers: Mapping[str, str]
    ) -> None:
        self._decision = decision
        self._snapshot = snapshot
        self._before = before
        self._approvers = approvers
        self._at = int(snapshot.wall)
        self._groups = {group.key: group for group in decision.groups}

    def entries(self) -> Iterator[Entry]:
        before, decision = self._before, self._decision
        paused = decision.status == "paused"
        if paused and not before.paused:
            yield self._entry("paused", "by the annotation endpointslice-hub/paused of the Service")
        elif before.paused and not decision.held:
            yield self._entry("resumed", "the annotation endpointslice-hub/paused is gone")
        yield from self._of_registry()
        if decision.desired is None:
            return
        found = {finding.reason: finding for finding in decision.findings}
        if (switch := found.get(FAILED_OVER)) is not None:
            yield self._entry("failed over", switch.message, GroupKey(switch.objects[-1], ""))
        panic = found.get("PanicMode")
        if panic is not None and not before.panic:
            yield self._entry("panic", panic.message)
        elif before.panic and panic is None:
            yield self._entry("panic over", "health checks count again")
        yield from self._of_guard()

    def _of_registry(self) -> Iterator[Entry]:
        """A mass removal from the registry that is withheld, or is no more."""
        before = self._before.withheld.get(WHOLE)
        held = next((found for found in self._decision.findings if found.reason == REGISTRY_HELD), None)
        if held is not None:
            name = next((held.hash for held in self._snapshot.held.values()), "")
            if name != before:
                yield self._entry("withheld", held.message, WHOLE, name=name)
        elif before is not None and (self._snapshot.target is None or self._decision.desired is not None):
            if (by := self._approvers.get(before)) is not None:
                yield self._entry("approved", f"by {by}", WHOLE, name=before)
            else:
                yield self._entry("returned", "the registry has the entries again", WHOLE, name=before)

    def _of_guard(self) -> Iterator[Entry]:
        decision, before = self._decision, self._before.withheld
        ended: set[GroupKey] = set()
        for finding in decision.findings:
            kind = ENDS.get(finding.reason)
            key = next(
                (key for key in self._groups if finding.message.startswith(f"{key.cluster} ({key.family}):")), None
            )
            if kind is not None and key is not None and key not in ended:
                ended.add(key)
                why = f"by {self._approver(key, finding)}" if kind == "approved" else finding.message
                yield self._entry(kind, why, key, finding.objects, before.get(key, ""))
        for key, name in before.items():
            group = self._groups.get(key)  # None if the source is not decided about now, for example for its ports
            if group is None or not group.known or key in decision.withheld or key in ended:
                continue
            if going := tuple(sorted(group.removed)):
                yield self._entry("released", "no longer more than the guard allows at once", key, going, name)
            else:
                yield self._entry("returned", "its source offers the endpoints again", key, name=name)
        for key, held in sorted(decision.withheld.items()):
            if before.get(key) != held.hash or key in ended:
                yield self._entry("withheld", f"{held.kind}: {held.message}", key, held.addresses, held.hash)

    def _approver(self, key: GroupKey, finding: Finding) -> str:
        exact = digest(self._decision.target, key, finding.objects)
        names = (exact, self._before.withheld.get(key, ""))
        return next((self._approvers[name] for name in names if name in self._approvers), "an operator")

    def _entry(
        self, kind: Kind, why: str, key: GroupKey = WHOLE, addresses: Sequence[str] = (), name: str = ""
    ) -> Entry:
        group = self._groups.get(key)
        gone: Mapping[str, Endpoint] = group.removed if group is not None else {}
        named = [_named(address, gone.get(address)) for address in addresses[:LISTED]]
        return Entry(self._at, kind, why[:LONGEST], *key, tuple(named), len(addresses), name)


# --- entries of writes ---------------------------------------------------------------------------


def of_writes(decision: Decision, snapshot: TargetSnapshot, done: Iterable[tuple[str, Slice]]) -> tuple[Entry, ...]:
    """Entries about the endpoints that the writes of a pass added, removed, drained and restored.

    Args:
        decision: the decision that was carried out.
        snapshot: the snapshot that it is about.
        done: (operation, slice) of the writes that succeeded.
    """
    done = tuple(done)
    names = {slice_.name for _, slice_ in done}
    ours = [slice_ for slice_ in decision.observed if slice_.labels.get(LABEL_MANAGED_BY) == MANAGED_BY]
    renames = _renames(snapshot)
    before = _endpoints((slice_ for slice_ in ours if slice_.name in names), renames)
    after = _endpoints((slice_ for operation, slice_ in done if operation != "delete"), renames)
    changed = before.keys() ^ after.keys()
    changed |= {place for place, old in before.items() if place in after and _ends(old) != _ends(after[place])}
    addresses = {address for _, address in changed}
    rest = _endpoints((slice_ for slice_ in ours if slice_.name not in names), renames, addresses)
    old_owners, new_owners = _owners((*before, *rest)), _owners((*after, *rest))
    reasons = _Reasons(decision, snapshot)
    found: dict[tuple[Kind, GroupKey, str], list[Named]] = {}

    def note(kind: Kind, key: GroupKey, address: str, endpoint: Endpoint, why: str) -> None:
        found.setdefault((kind, key, why), []).append(_named(address, endpoint))

    for key, address in sorted(changed):
        old, new = before.get((key, address)), after.get((key, address))
        place = (key.family, address)
        if old is not None and new is not None:
            ends = _ends(new)
            if (key, address) in decision.draining:
                why = reasons.of_removal(key, address, old)
            else:
                why = reasons.of_condition(key, draining=ends)
            note("draining" if ends else "restored", key, address, new, why)
        elif (key, address) in rest:
            continue  # it moves from one slice to another
        elif new is not None:
            note("added", key, address, new, reasons.of_addition(key, sorted(old_owners.get(place, ()))))
        elif old is not None and (owners := new_owners.get(place)):
            note("moved", key, address, old, f"{', '.join(sorted(owners))} publishes it now")
        elif old is not None:
            note("removed", key, address, old, reasons.of_removal(key, address, old))
    at = int(snapshot.wall)
    entries = [
        Entry(at, kind, why[:LONGEST], *key, tuple(named[:LISTED]), len(named))
        for (kind, key, why), named in found.items()
    ]
    return (*entries, *_adopted(at, done))


def _adopted(at: int, done: Iterable[tuple[str, Slice]]) -> Iterator[Entry]:
    """Slices of another controller that were replaced."""
    theirs = [slice_ for operation, slice_ in done if operation == "delete" and _manager(slice_) != MANAGED_BY]
    for slice_ in theirs:
        why = f"slice {slice_.name} of {_manager(slice_) or 'another controller'} is replaced"
        named = [_named(endpoint.address, endpoint) for endpoint in slice_.endpoints[:LISTED]]
        yield Entry(at, "adopted", why[:LONGEST], "", slice_.address_type, tuple(named), len(slice_.endpoints))


def _manager(slice_: Slice) -> str:
    return slice_.labels.get(LABEL_MANAGED_BY, "")


class _Reasons:
    """Why the endpoints of one decision come and go."""

    def __init__(self, decision: Decision, snapshot: TargetSnapshot) -> None:
        self._decision = decision
        self._groups = {group.key: group for group in decision.groups}
        self._readings = {reading.spec.cluster: reading for reading in snapshot.sources}
        self._failing = {
            address
            for finding in decision.findings
            if finding.reason in ("EndpointsUnhealthy", "EndpointsUnproven")
            for address in finding.objects
        }

    def of_addition(self, key: GroupKey, rivals: Sequence[str]) -> str:
        """Why an endpoint is published."""
        if rivals:
            return f"moves here from {', '.join(rivals)}"
        if key.cluster in self._decision.unknown:
            return f"its last known state; {self._unknown(key)}"
        if self._active() == key.cluster:
            return f"offered by the active source{self._provider(key)}"
        return f"offered by its source{self._provider(key)}"

    def of_condition(self, key: GroupKey, *, draining: bool) -> str:
        """Why an endpoint begins to terminate, or no longer does."""
        if key.cluster in self._decision.unknown:
            return f"unreachable.policy: {self._unknown(key)}"
        if draining:
            return f"its node is cordoned, or its source says that it ends{self._provider(key)}"
        return f"offered by its source as before{self._provider(key)}"

    def of_removal(self, key: GroupKey, address: str, endpoint: Endpoint) -> str:
        """Why an endpoint is no longer published."""
        decision, group, reading = self._decision, self._groups.get(key), self._readings.get(key.cluster)
        if decision.desired is None:
            return "the Service is no longer in the registry"
        if reading is None:
            return f"{key.cluster} is no longer a source of the Service"
        if group is None or group.drop:
            return f"the Service no longer has the family {key.family}"
        if (active := self._active()) not in ("", key.cluster):
            return f"failed over to {active}"
        if key.cluster in decision.unknown:
            return f"unreachable.policy: {self._unknown(key)}"
        if address in self._failing:
            return "its health check fails"
        return f"{self._departure(reading, address, endpoint, filtered=address in group.filtered)}{self._provider(key)}"

    def _departure(self, reading: SourceReading, address: str, endpoint: Endpoint, *, filtered: bool) -> str:
        """Why a complete answer lacks the endpoint."""
        view, node = reading.result.view, _node(endpoint)
        if not filtered:
            return "its source no longer has it" if view.addresses_complete is not None else "its node is gone"
        report = reading.result.reports.get(node)
        if report is None:
            rejected = {text: why for _, text, why in reading.result.rejected}
            return rejected.get(address, "its source no longer offers it")
        if report.addresses:
            return f"its node has another address: {', '.join(report.addresses)}"
        return report.message or report.reason or "its source no longer offers it"

    def _active(self) -> str:
        """The source that failover has chosen; "" without failover."""
        desired = self._decision.desired
        return desired.memory.failover.active if desired is not None else ""

    def _unknown(self, key: GroupKey) -> str:
        return f"{key.cluster} is unknown ({self._decision.unknown[key.cluster]})"

    def _provider(self, key: GroupKey) -> str:
        reading = self._readings.get(key.cluster)
        return f" (provider {reading.spec.provider.name})" if reading is not None else ""


def _node(endpoint: Endpoint | None) -> str:
    return (node_of(endpoint) or "") if endpoint is not None else ""


def _ends(endpoint: Endpoint) -> bool:
    return bool(endpoint.conditions.terminating)


def _named(address: str, endpoint: Endpoint | None) -> Named:
    return Named(address[:NAME_LENGTH], _node(endpoint)[:NAME_LENGTH])


def _renames(snapshot: TargetSnapshot) -> Mapping[str, str]:
    """Former name of a source cluster -> its name."""
    target, clusters = snapshot.target, snapshot.registry.clusters
    names = [source.cluster for source in target.sources] if target is not None else []
    return {old: name for name in names if name in clusters for old in clusters[name].formerly if old not in names}


Addressed = tuple[GroupKey, str]


def _endpoints(
    slices: Iterable[Slice], renames: Mapping[str, str], wanted: Container[str] | None = None
) -> dict[Addressed, Endpoint]:
    """The endpoints of slices by group and address; only those with a wanted address if ``wanted`` is given."""
    return {
        (key, endpoint.addresses[0]): endpoint
        for slice_ in slices
        for key in (GroupKey(renames.get(slice_.cluster, slice_.cluster), slice_.address_type),)
        for endpoint in slice_.endpoints
        if endpoint.addresses and (wanted is None or endpoint.addresses[0] in wanted)
    }


def _owners(endpoints: Iterable[Addressed]) -> Mapping[tuple[str, str], set[str]]:
    """(family, address) -> the clusters that publish it."""
    found: dict[tuple[str, str], set[str]] = {}
    for key, address in endpoints:
        found.setdefault((key.family, address), set()).add(key.cluster)
    return found


# --- many entries --------------------------------------------------------------------------------


def merged(one: Entries, other: Entries) -> dict[TargetKey, tuple[Entry, ...]]:
    """The entries of both, each once and oldest first, within the limits.

    A state that lasts already makes no second entry: a hub may have begun to write before it knew the stored history.
    """
    found = dict(one)
    for key, entries in other.items():
        known = one.get(key, ())
        if known != entries:
            found[key] = _tidy(sorted((*known, *_without(entries, known)), key=lambda entry: entry.at))
    return newest(found, TOTAL)


def _without(entries: Iterable[Entry], known: Iterable[Entry]) -> list[Entry]:
    there = set(known)
    return [entry for entry in entries if entry not in there]


def _tidy(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    kept: list[Entry] = []
    for entry in entries:
        if entry.kind in ("withheld", "paused", "panic"):
            last = lasting_states(kept)
            key = GroupKey(entry.cluster, entry.family)
            if {"withheld": last.withheld.get(key) == entry.hash, "paused": last.paused, "panic": last.panic}[
                entry.kind
            ]:
                continue
        kept.append(entry)
    return tuple(kept[-PER_SERVICE:])


def newest(entries: Entries, most: int) -> dict[TargetKey, tuple[Entry, ...]]:
    """At most this many entries of all Services: the newest."""
    if sum(map(len, entries.values())) <= most:
        return dict(entries)
    ages = sorted((entry.at, key) for key, ring in entries.items() for entry in ring)
    counts = Counter(key for _, key in ages[-most:])
    return {key: ring[-counts[key] :] for key, ring in entries.items() if counts[key]}
