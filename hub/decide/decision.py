"""Decide about one target: from a snapshot and the state of the last decision to a decision and the next state.

    sources ─▶ wanted endpoints ─▶ guard ─▶ draining ─▶ adoption of another controller's slices ─▶ writes

Pure and level-based: a decision depends only on its arguments, not on the event that triggered it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from hub.decide.adopt import Adoption, AdoptMemory, adopt
from hub.decide.checks import Watch
from hub.decide.drain import NONE, Draining, decided, drain
from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.decide.guard import GuardMemory, Withheld
from hub.decide.guarding import guard_groups, pause_all
from hub.decide.inputs import Inputs, SourceMemory, inputs_of
from hub.decide.plan import Identity, Plan, plan
from hub.decide.snapshot import HubIdentity, TargetSnapshot
from hub.decide.target import Desired, DesiredMemory, Refused, TargetInput, Waiting, desired_endpoints
from hub.model import ANNOTATION_LEASE, ANNOTATION_PAUSED, LABEL_OWNER, Finding, Slice, TargetKey
from hub.registry.spec import ENDPOINT_COPIER, TargetSpec, service_entry

NOT_WATCHED: Final = "namespace not watched; add --target-namespace"


class TargetState(msgspec.Struct, frozen=True):
    """The state of a target between decisions; empty after a restart.

    Attributes:
        sources: memory of its sources.
        desired: memory of moving addresses, failover and panic mode.
        guards: memory of the guard, by group.
        draining: since when endpoints drain.
        adoption: memory of the adoption of another controller's slices; None if there is none.
        orphan_since: when the target's registry entry was first seen missing; None if the target has one.
    """

    sources: SourceMemory = SourceMemory()
    desired: DesiredMemory = DesiredMemory()
    guards: Mapping[GroupKey, GuardMemory] = {}
    draining: Draining = NONE
    adoption: AdoptMemory | None = None
    orphan_since: float | None = None


class Reason(NamedTuple):
    """Why an address is or is not published.

    Attributes:
        stage: ``guard`` or ``service``.
        outcome: one or two words.
        why: the explanation.
    """

    stage: str
    outcome: str
    why: str


class Decision(msgspec.Struct, frozen=True):
    """The decision about a target, and the reasons for it.

    Attributes:
        target: the target.
        plan: the writes; None if the slices stay unchanged for the reason in ``status``.
        status: why the target is not published normally, for example "paused" or "removing"; "" if it is.
        desired: the wanted endpoints before the guard; None if ``status`` is set.
        observed: the slices that the decision is about.
        unknown: unknown source -> why it is unknown.
        findings: facts that an operator may want to know.
        again_after: seconds until the next decision; None = when something changes.
        withheld: removals that the guard withholds, by source cluster and family.
        list_again: clusters whose Nodes should be listed again.
        held: whether the last decision stays in force, probes included, because the Service is paused or its registry
            entry is broken.
        draining: (source and family, address) -> Unix time at which the endpoint has drained and is removed.
    """

    target: TargetKey
    plan: Plan | None = None
    status: str = ""
    desired: Desired | None = None
    observed: tuple[Slice, ...] = ()
    unknown: Mapping[str, str] = {}
    findings: tuple[Finding, ...] = ()
    again_after: float | None = None
    withheld: Mapping[GroupKey, Withheld] = {}
    list_again: tuple[str, ...] = ()
    held: bool = False
    draining: Mapping[tuple[GroupKey, str], float] = {}

    @property
    def watches(self) -> tuple[Watch, ...]:
        """The addresses to probe."""
        return self.desired.watches if self.desired is not None else ()

    @property
    def groups(self) -> tuple[EndpointGroup, ...]:
        """The wanted endpoints, before the guard."""
        return self.desired.groups if self.desired is not None else ()

    def why_still_published(self, key: GroupKey, address: str) -> tuple[Reason, ...]:
        """Why a published address that is not wanted stays or leaves; empty if the address is simply wanted.

        Computed on demand, so that a decision about a thousand nodes need not build a thousand reasons.
        """
        withheld = self.withheld.get(key)
        group = next((group for group in self.groups if group.key == key), None)
        if withheld is not None and address in withheld.addresses:
            held = Reason("guard", "withheld", f"{withheld.kind}: {withheld.message}")
            return (held, Reason("guard", "approve with", withheld.approve))
        if self.status:
            return (Reason("service", "kept", self.status),)
        if key.cluster in self.unknown:
            return (Reason("service", "kept", f"{key.cluster} is unknown: {self.unknown[key.cluster]}"),)
        if group is not None and address in group.removed:
            why = "its node exists, but does not offer it" if address in group.filtered else "its node is gone"
            end = self.draining.get((key, address))
            when = "goes with the next write" if end is None else f"published as terminating until {_hour(end)}"
            return (Reason("service", "leaving" if end is None else "draining", f"{why}; {when}"),)
        return ()

    def why_not_published(self, key: GroupKey, address: str, *, kept_only: bool) -> Reason:
        """Why an address that a source offers is not published.

        Args:
            key: the source and the family.
            address: the address.
            kept_only: whether its node is not Ready, so that the address is only kept where it is published.
        """
        name = f"{address} of {key.cluster}"
        if self.status:
            return Reason("service", "not published", self.status)
        if any(group.key == key and address in group.endpoints for group in self.groups):
            return Reason("service", "arriving", f"{name}: published with the next write")
        if kept_only:
            why = "its node is not Ready: its address is kept if it is published, but not added"
        else:
            other = "not of a family of the Service, not the active source, or another source has it"
            why = next((found.message for found in self.findings if key.cluster in found.objects), other)
        return Reason("service", "not published", f"{name}: {why}")

    @property
    def waits_for_own_writes(self) -> bool:
        """Whether the target must be decided again after its own writes, which normally trigger no decision.

        A moving address leaves the old source some seconds after it was observed at the new one, and after a failover
        the endpoints of the other sources leave in the same way. Endpoints that exchange their ports may be in two
        slices for a moment.
        """
        return self.desired is not None and (
            self.desired.memory.failover.active != ""
            or any(group.exempt or group.port_sets or (group.drop and group.endpoints) for group in self.groups)
        )


def decide(snapshot: TargetSnapshot, state: TargetState) -> tuple[Decision, TargetState]:
    """Decide what should happen to a target.

    Args:
        snapshot: everything that the hub observed for the target.
        state: from the last decision about this target.

    Returns:
        The decision, and the state for the next one.
    """
    key, registry, target = snapshot.key, snapshot.registry, snapshot.target
    ours = tuple([slice_ for slice_ in snapshot.observed if is_ours(slice_, registry.owner, snapshot.hub)])
    if state.orphan_since is not None and (target is not None or key in registry.broken_targets):
        state = replace(state, orphan_since=None)
    if key in registry.broken_targets:
        status = f"frozen: {registry.broken_targets[key]}"
        decision = Decision(key, status=status, observed=snapshot.observed, held=True)
    elif snapshot.service is not None and snapshot.service.annotations.get(ANNOTATION_PAUSED) == "true":
        decision = Decision(key, status="paused", observed=snapshot.observed, held=True)
    elif target is None:
        decision, state = _without_entry(snapshot, state, ours)
    else:
        decision, state = _with_entry(snapshot, state, target, ours)
    if decision.desired is None:
        state = replace(state, guards=pause_all(state.guards, snapshot.now))
    if (note := registry.notes.get(key)) is not None:
        status = note.message if decision.status == "gone" else decision.status
        decision = replace(decision, status=status, findings=(*decision.findings, note))
    return decision, state


def is_ours(slice_: Slice, owner: str, hub: HubIdentity) -> bool:
    """Whether this hub may write a slice.

    Slices of previous owners are adopted. Slices that another hub with the same owner wrote under another Lease are
    not, unless the target is in ``take_over``.
    """
    return (
        slice_.annotations.get(ANNOTATION_LEASE, hub.lease) == hub.lease
        or slice_.labels.get(LABEL_OWNER) != owner
        or slice_.target in hub.take_over
    )


def _without_entry(
    snapshot: TargetSnapshot, state: TargetState, ours: tuple[Slice, ...]
) -> tuple[Decision, TargetState]:
    """Decide about a target without a registry entry: its slices are deleted after the removal grace."""
    key, now = snapshot.key, snapshot.now
    ours = tuple(slice_ for slice_ in ours if slice_.cluster not in snapshot.registry.frozen_names)
    if not ours:
        return Decision(key, status="gone"), state
    since = state.orphan_since if state.orphan_since is not None else now
    state = replace(state, orphan_since=since)
    if (held := snapshot.held.get(service_entry(key))) is not None:
        return Decision(key, status=held.message, observed=ours, findings=(held.finding,)), state
    left = since + snapshot.hub.removal_grace - now
    if left > 0:
        status = f"not in the registry: {len(ours)} slices go in {left:.0f} s"
        return Decision(key, status=status, observed=ours, again_after=left), state
    deletes = tuple(sorted(ours, key=lambda slice_: slice_.name))
    return Decision(key, Plan(deletes=deletes), "removing", observed=ours), state


def _with_entry(
    snapshot: TargetSnapshot, state: TargetState, target: TargetSpec, ours: tuple[Slice, ...]
) -> tuple[Decision, TargetState]:
    """Decide about a target with a registry entry: all stages in order."""
    key, service, now, writes = snapshot.key, snapshot.service, snapshot.now, snapshot.writes

    # 1. Read the sources.
    inputs = inputs_of(snapshot, target, ours, state.sources, state.desired.failover.active)

    # 2. Decide which endpoints are wanted.
    target_input = TargetInput(
        target, service, inputs.sources, ours, now, writes.refused, snapshot.verdicts, snapshot.hub_zones
    )
    desired = desired_endpoints(target_input, state.desired)
    if isinstance(desired, Refused | Waiting) or service is None:
        assert isinstance(desired, Refused | Waiting)  # noqa: S101 - a missing Service waits
        message = desired.message if snapshot.namespace_watched else NOT_WATCHED
        finding = Finding(desired.reason, message)
        waiting = Decision(key, None, message, None, snapshot.observed, inputs.unknown, (finding,))
        return waiting, replace(state, sources=inputs.memory)

    # 3. Let the guard withhold removals.
    guarded = guard_groups(snapshot, decided(desired.groups, state.draining), state.guards, desired.untouched)

    # 4. Keep leaving endpoints for a while.
    drained = drain(
        guarded.groups,
        target.drain,
        service,
        inputs.sources,
        desired.watches,
        snapshot.verdicts,
        state.draining,
        now,
    )
    desired = replace(desired, watches=drained.watches)

    # 5. Choose the slices of another controller that are replaced.
    adoption, adopting = _adoption(snapshot, state.adoption, target, ours, drained.groups, inputs)
    state = TargetState(inputs.memory, desired.memory, guarded.memories, drained.since, adopting)

    # 6. Plan the writes.
    theirs: list[str] = []
    if len(ours) < len(snapshot.observed):
        theirs = sorted({slice_.name for slice_ in snapshot.observed} - {slice_.name for slice_ in ours})
    taken = {*writes.foreign, *(slice_.name for slice_ in desired.untouched), *theirs}
    taken.update([slice_.name for slice_ in ours if slice_.deleting])  # a finalizer delays the deletion
    planned = plan(
        service,
        adoption.groups,
        Identity(snapshot.registry.owner, snapshot.hub.lease),
        limit=target.endpoints_per_slice,
        states=guarded.states,
        uids=snapshot.uids,
        taken=taken,
    )
    findings = [*desired.findings, *inputs.findings, *writes.findings, *snapshot.notes]
    if theirs:
        findings.append(Finding("OwnerConflict", _conflict(snapshot, theirs), tuple(theirs)))
    wakes = [*inputs.wakes, *guarded.wakes]
    ends = {place: since + target.drain - now for place, since in drained.since.items()}
    wakes += ends.values()
    wakes += [at - now for at in (desired.wake_at, adoption.wake_at) if at is not None]
    wakes += [writes.retry_in] if writes.retry_in is not None else []
    decision = Decision(
        key,
        replace(planned, deletes=planned.deletes + adoption.deletes),
        "",
        desired,
        ours + adoption.deletes,
        inputs.unknown,
        (*findings, *guarded.findings, *adoption.findings),
        max(0.0, min(wakes)) + 0.001 if wakes else None,
        guarded.withheld,
        guarded.list_again,
        draining={place: snapshot.wall + left for place, left in ends.items()},
    )
    return decision, state


def _adoption(
    snapshot: TargetSnapshot,
    memory: AdoptMemory | None,
    target: TargetSpec,
    ours: tuple[Slice, ...],
    groups: tuple[EndpointGroup, ...],
    inputs: Inputs,
) -> tuple[Adoption, AdoptMemory | None]:
    """Choose the slices of another controller that are replaced; none until they have been listed."""
    if not target.adopt:
        return Adoption(groups), None
    if snapshot.theirs is None:
        return Adoption(groups), memory
    # endpoint-copier builds its slices from the same source: an address that the source dropped need not stay.
    same_source = target.adopt == ENDPOINT_COPIER and not inputs.unknown
    views = tuple(source.view for source in inputs.sources) if same_source else ()
    memory = memory if memory is not None else AdoptMemory()
    found = adopt(target.adopt, snapshot.theirs, ours, groups, memory, snapshot.now, sources=views)
    return found, found.memory


def _hour(wall: float) -> str:
    return f"{datetime.fromtimestamp(wall, UTC):%H:%M:%S} UTC"


def _conflict(snapshot: TargetSnapshot, theirs: Collection[str]) -> str:
    slices = [slice_ for slice_ in snapshot.observed if slice_.name in theirs]
    leases = sorted({slice_.annotations.get(ANNOTATION_LEASE, "") for slice_ in slices})
    return (
        f"{len(theirs)} slices with our owner belong to the hub with Lease {', '.join(leases)} and are not changed; "
        f"after stopping that hub: hub run --take-over {snapshot.key}"
    )
