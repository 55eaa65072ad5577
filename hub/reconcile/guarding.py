"""The guard at work: its memory, its policies and its answers, for the groups of one target.

:mod:`hub.decide.guard` decides; here is what it needs from around it: which policy holds for a source (the
registry's, else the provider type's own, else the default), which complete answer a group comes from, and
the question to ask again while an empty answer is held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from hub.decide.endpoints import EndpointGroup, GroupKey
from hub.decide.guard import GuardMemory, Withheld, guard, rest
from hub.decide.plan import state_of
from hub.decide.record import decode, encode
from hub.model import Finding, GuardDefaults, Slice, TargetKey
from hub.observe.remote.fleet import Fleet, SourceKey
from hub.registry.spec import GuardPolicy, SourceSpec, TargetSpec
from hub.runtime.clock import Clock

ASK_AGAIN = 10.0
"""Seconds between lists of a watched source while its answer is empty and something is published."""

NO_APPROVALS: Collection[str] = frozenset()


class Guarded(msgspec.Struct, frozen=True):
    """What may be published of a target.

    Attributes:
        groups: after the guard.
        states: the encoded record of each group, for its slices.
        withheld: what is held back, by group.
        wakes: seconds until the guard wants to look again.
    """

    groups: tuple[EndpointGroup, ...]
    states: Mapping[GroupKey, str]
    withheld: Mapping[GroupKey, Withheld]
    findings: tuple[Finding, ...]
    wakes: tuple[float, ...]


class Guarding:
    """Guards all targets of one hub.

    Args:
        approvals: the hashes that are approved now.
        flags: what ``hub approve`` needs to find them.
    """

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        approvals: Callable[[], Collection[str]] = lambda: NO_APPROVALS,
        flags: str = "",
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._approvals = approvals
        self._flags = flags

    def check(
        self,
        target: TargetKey,
        spec: TargetSpec,
        groups: tuple[EndpointGroup, ...],
        memories: dict[GroupKey, GuardMemory],
        untouched: Iterable[Slice] = (),
    ) -> Guarded:
        """Let each group through, or hold back what must not go yet. Updates ``memories``.

        Args:
            target: whose groups they are.
            spec: its registry entry.
            groups: what is wanted.
            memories: from the last pass, by group.
            untouched: slices of groups that nothing is decided for, since their cluster is frozen, say.
        """
        sources = {source.cluster: source for source in spec.sources}
        now, wall, approvals = self._clock.now(), self._clock.wall(), self._approvals()
        passed: list[EndpointGroup] = []
        states: dict[GroupKey, str] = {}
        withheld: dict[GroupKey, Withheld] = {}
        findings: list[Finding] = []
        wakes: list[float] = []
        for group in groups:
            source = sources.get(group.key.cluster)
            if source is None:  # the registry dropped it: that was decided elsewhere
                passed.append(group)
                continue
            policy, answer = self._policy(source)
            known = memories.get(group.key)
            # Also beside a memory: the record of a later version is kept for as long as it stands there.
            record = decode(state_of(group))
            verdict = guard(
                target,
                group,
                policy,
                record,
                known,
                answer=answer,
                approvals=approvals,
                now=now,
                wall=wall,
                flags=self._flags,
            )
            memories[group.key] = verdict.memory
            passed.append(verdict.group)
            if text := encode(verdict.record):
                states[group.key] = text
            findings.extend(verdict.findings)
            if verdict.wake_at is not None:
                wakes.append(verdict.wake_at - now)
            if verdict.withheld is not None:
                withheld[group.key] = verdict.withheld
                if verdict.withheld.kind == "EmptyResultHeld":
                    self._ask_again(source)
                    wakes.append(ASK_AGAIN)
        resting = {GroupKey(each.cluster, each.address_type) for each in untouched}
        for key in memories.keys() - {group.key for group in groups}:
            if key in resting:
                memories[key] = rest(memories[key], now)
            else:
                del memories[key]
        return Guarded(tuple(passed), states, withheld, tuple(findings), tuple(wakes))

    def rest(self, memories: dict[GroupKey, GuardMemory]) -> None:
        """Nothing is decided for a target now, since it is paused, say. Updates ``memories``."""
        now = self._clock.now()
        memories.update({key: rest(memory, now) for key, memory in memories.items()})

    def _policy(self, source: SourceSpec) -> tuple[GuardPolicy, int]:
        """The policy in force for a source, and the number of its last complete answer."""
        unit = self._fleet.sources.get(SourceKey(source.cluster, source.provider))
        if unit is None:
            return source.guard, 0
        return effective(source.guard, source.guard_set, unit.guard), unit.answers

    def _ask_again(self, source: SourceSpec) -> None:
        cluster = self._fleet.clusters.get(source.cluster)
        if cluster is not None:
            cluster.list_again(ASK_AGAIN)


def effective(policy: GuardPolicy, written: frozenset[str], defaults: GuardDefaults) -> GuardPolicy:
    """The registry's word counts; where it says nothing, the provider type's does; then the hub's default."""
    if defaults.empty_results is not None and "empty_results" not in written:
        policy = replace(policy, empty_results=defaults.empty_results)
    if defaults.max_removal is not None and "max_removal" not in written:
        policy = replace(policy, max_removal=None if defaults.max_removal == "off" else defaults.max_removal)
    return policy
