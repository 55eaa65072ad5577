"""Stage 3 of a decision: apply the guard to all groups of one target.

:mod:`hub.decide.guard` judges one group. This module picks the policy that applies to the group's source and collects
the verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.decide.guard import GuardMemory, Withheld, guard, pause
from hub.decide.plan import state_of
from hub.decide.record import decode, encode
from hub.decide.snapshot import TargetSnapshot
from hub.model import Finding, GuardDefaults, Slice
from hub.registry.spec import GuardPolicy

ASK_AGAIN: Final = 10.0
"""Seconds between lists of a watched source while its answer is empty and its endpoints are still published."""


class Guarded(msgspec.Struct, frozen=True):
    """The guard's decision about a target.

    Attributes:
        groups: the groups with the endpoints that may be published.
        states: group -> encoded record for its slices, without empty records.
        withheld: withheld removals, by group.
        findings: in the order of the groups.
        wakes: seconds until the guard needs another decision.
        list_again: clusters whose Nodes should be listed again because their answer was empty.
        memories: for the next decision, by group.
    """

    groups: tuple[EndpointGroup, ...]
    states: Mapping[GroupKey, str]
    withheld: Mapping[GroupKey, Withheld]
    findings: tuple[Finding, ...]
    wakes: tuple[float, ...]
    list_again: tuple[str, ...]
    memories: Mapping[GroupKey, GuardMemory]


def guard_groups(
    snapshot: TargetSnapshot,
    groups: Iterable[EndpointGroup],
    memories: Mapping[GroupKey, GuardMemory],
    untouched: Iterable[Slice] = (),
) -> Guarded:
    """Judge each group.

    Args:
        snapshot: the snapshot of the target.
        groups: the wanted groups.
        memories: from the last decision, by group.
        untouched: slices that are not decided about, such as those of a frozen cluster; their groups' holding times
            stop.
    """
    now = snapshot.now
    readings = {reading.spec.cluster: reading for reading in snapshot.sources}
    passed: list[EndpointGroup] = []
    states: dict[GroupKey, str] = {}
    withheld: dict[GroupKey, Withheld] = {}
    findings: list[Finding] = []
    wakes: list[float] = []
    list_again: list[str] = []
    remembered: dict[GroupKey, GuardMemory] = {}
    for group in groups:
        reading = readings.get(group.key.cluster)
        if reading is None:  # no longer a source: the removal grace protects it instead of the guard
            passed.append(group)
            if group.key in memories:
                remembered[group.key] = memories[group.key]
            continue
        source = reading.spec
        verdict = guard(
            snapshot.key,
            group,
            effective(source.guard, source.guard_set, reading.guard),
            # Needed even if there is a memory: a record of another version is kept unchanged.
            decode(state_of(group)),
            memories.get(group.key),
            answer=reading.answers,
            approvals=snapshot.approvals,
            now=now,
            wall=snapshot.wall,
            flags=snapshot.hub.flags,
        )
        remembered[group.key] = verdict.memory
        passed.append(verdict.group)
        if text := encode(verdict.record):
            states[group.key] = text
        findings.extend(verdict.findings)
        if verdict.wake_at is not None:
            wakes.append(verdict.wake_at - now)
        if verdict.withheld is not None:
            withheld[group.key] = verdict.withheld
            if verdict.withheld.kind == "EmptyResultHeld":
                list_again.append(source.cluster)
                wakes.append(ASK_AGAIN)
    resting = {GroupKey(slice_.cluster, slice_.address_type) for slice_ in untouched}
    for key in (memories.keys() - remembered.keys()) & resting:
        remembered[key] = pause(memories[key], now)
    return Guarded(tuple(passed), states, withheld, tuple(findings), tuple(wakes), tuple(list_again), remembered)


def pause_all(memories: Mapping[GroupKey, GuardMemory], now: float) -> Mapping[GroupKey, GuardMemory]:
    """The memories of a target that is not decided about now, for example because it is paused."""
    return {key: pause(memory, now) for key, memory in memories.items()}


def effective(policy: GuardPolicy, written: frozenset[str], defaults: GuardDefaults) -> GuardPolicy:
    """The policy that applies, per key: the registry's value, else the provider type's default, else the hub's."""
    if defaults.empty_results is not None and "empty_results" not in written:
        policy = replace(policy, empty_results=defaults.empty_results)
    if defaults.max_removal is not None and "max_removal" not in written:
        policy = replace(policy, max_removal=None if defaults.max_removal == "off" else defaults.max_removal)
    return policy
