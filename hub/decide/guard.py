"""The guard: what may be taken away from consumers, and when.

It looks at sets of endpoints of one (target, source cluster, family), before anything is packed into
slices. Additions and changes always go through; what would take too much away, or all of it, is withheld
as a whole until the same answer has stood for long enough, or somebody approves it. It never learns why a
source said what it said: what is unknown never gets here as a removal.

What must survive a restart is a :class:`~hub.decide.record.GuardRecord`, kept in an annotation; what
follows from the slices or starts anew is a :class:`GuardMemory`. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace

from hub.approval import Issued, approval_hash, approved_of, issue
from hub.decide.endpoints import EndpointGroup, GroupKey, PublishedSlice, by_address
from hub.decide.record import NO_RECORD, GuardRecord
from hub.model import Endpoint, Finding, TargetKey
from hub.registry.spec import GuardPolicy

Kind = Literal["EmptyResultHeld", "FilteredEmpty", "RemovalWithheld"]


class GuardMemory(msgspec.Struct, frozen=True):
    """What the guard remembers of one group while the process lives.

    Attributes:
        record: as last decided; what is on the slices may still be older.
        counted: the last answer that was counted as empty.
        level: endpoints published at the last pass, without those that may go.
        levels: (valid until, level) of earlier passes within the window.
        withheld: of the addresses that ``record.hash`` stands for, those that have been at stake ever since.
        since: since when they are withheld, by the clock of ``now``.
        paused: since when the source is unknown, or nobody looks; that time does not count.
        issued: what was withheld lately, for approvals.
        granted: addresses that may go, and are still published.
        forgiven: exempt addresses that the level does not contain any more, and are still published.
        allowed: what the last verdict allowed; None where there was none.
        slices: what was published then.
        drift: addresses that somebody else put there since, or made ready: neither published nor allowed
            by the last verdict. Taking them away again takes nothing away.
    """

    record: GuardRecord = NO_RECORD
    counted: int | None = None
    level: int | None = None
    levels: tuple[tuple[float, int], ...] = ()
    withheld: frozenset[str] = frozenset()
    since: float = 0.0
    paused: float | None = None
    issued: Issued = ()
    granted: frozenset[str] = frozenset()
    forgiven: frozenset[str] = frozenset()
    allowed: Mapping[str, Endpoint] | None = None
    slices: tuple[PublishedSlice, ...] = ()
    drift: frozenset[str] = frozenset()


class Withheld(msgspec.Struct, frozen=True):
    """What is held back.

    Attributes:
        kind: why; also the Event's reason.
        hash: what an approval names.
        addresses: that would go, or turn not ready; sorted.
        since: Unix time.
        message: one sentence that says what ends it.
        approve: the command that lets it happen.
    """

    kind: Kind
    hash: str
    addresses: tuple[str, ...]
    since: float
    message: str
    approve: str = ""


class GuardVerdict(msgspec.Struct, frozen=True):
    """What may be published.

    Attributes:
        group: the group with the endpoints that may be published; the same object where nothing is withheld.
        withheld: what is held back; None for nothing.
        record: to be kept on the slices.
        memory: for the next pass.
        wake_at: when to pass again at the latest, by the clock of ``now``.
        findings: what is withheld, what was released or approved in this pass.
    """

    group: EndpointGroup
    withheld: Withheld | None
    record: GuardRecord
    memory: GuardMemory
    wake_at: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """The endpoints that may be published."""
        return self.group.endpoints


def digest(target: TargetKey, key: GroupKey, addresses: Iterable[str]) -> str:
    """What an approval names: target, source, family and the addresses to go."""
    return approval_hash(str(target), key.cluster, key.family, sorted(addresses))


def guard(
    target: TargetKey,
    group: EndpointGroup,
    policy: GuardPolicy,
    record: GuardRecord,
    memory: GuardMemory | None,
    *,
    answer: int,
    approvals: Collection[str],
    now: float,
    wall: float,
    flags: str = "",
) -> GuardVerdict:
    """Decide what of a group's departures may happen.

    Args:
        target: whose group it is.
        group: what is wanted and what is published.
        policy: the source's ``guard:``.
        record: as it stands on the group's slices. Beside a memory, only whether it is a later version's counts.
        memory: from the last pass; None at first.
        answer: number of the complete answer that the group comes from; another number, another answer.
        approvals: hashes that are approved and have not expired.
        now: seconds that only move forward.
        wall: Unix time.
        flags: what ``hub approve`` needs to find the approvals of this hub, for messages.
    """
    if memory is None:
        memory = GuardMemory(record=NO_RECORD if record.foreign else record)
    if not group.known:
        paused = memory.paused if memory.paused is not None else now
        resting = replace(memory, paused=paused, allowed=group.endpoints, slices=group.slices)
        memory = memory if memory == resting else resting
        return GuardVerdict(group, None, record if record.foreign else memory.record, memory)
    if memory.paused is not None:
        memory = replace(memory, paused=None, since=memory.since + now - memory.paused)
    pass_ = _Pass(target, group, policy, memory, answer, approvals, now, wall, flags)
    verdict = pass_.calm() if not pass_.leaving else pass_.judge()
    return replace(verdict, record=record) if record.foreign else verdict


def rest(memory: GuardMemory, now: float) -> GuardMemory:
    """The memory of a group that nobody looks at from now on: whether an answer stands meanwhile is not known."""
    return memory if memory.paused is not None else replace(memory, paused=now)


def _counts(endpoint: Endpoint) -> bool:
    """Whether consumers have use of it as far as the guard is concerned; a failed probe is not its business."""
    return not endpoint.conditions.terminating


@dataclass(slots=True)
class _Pass:
    """One look at one group."""

    target: TargetKey
    group: EndpointGroup
    policy: GuardPolicy
    memory: GuardMemory
    answer: int
    approvals: Collection[str]
    now: float
    wall: float
    flags: str
    leaving: dict[str, Endpoint] = field(init=False)
    """Everything that goes, turns not ready or starts to drain: address -> as published."""

    def __post_init__(self) -> None:
        self.leaving = dict(self.group.removed)
        for address, (before, after) in self.group.changed.items():
            if _counts(before) and not _counts(after):
                self.leaving[address] = before

    # --- nothing goes ------------------------------------------------------------------------

    def calm(self) -> GuardVerdict:
        """Nothing goes, so nothing is to be withheld."""
        levels = self._levels(self.memory, level := self._published())
        memory = self.memory
        settled = replace(
            memory,
            record=NO_RECORD,
            counted=None,
            level=level,
            levels=levels,
            withheld=frozenset(),
            granted=frozenset(),
            forgiven=frozenset(),
            allowed=self.group.endpoints,
            slices=self.group.slices,
            drift=frozenset(),
        )
        return GuardVerdict(self.group, None, NO_RECORD, memory if memory == settled else settled)

    # --- something goes ------------------------------------------------------------------------

    def judge(self) -> GuardVerdict:
        """Something goes: find out what of it is at stake, and whether that may happen."""
        memory, group = self.memory, self.group
        exempt = frozenset(self.leaving.keys() & group.exempt)
        drift = self._drift()
        loss = frozenset(self.leaving.keys() - exempt - drift)
        approved = self._approved(loss)
        emptied = bool(loss) and not group.endpoints
        # What was released on the ground that it is gone does not go once its node is back.
        granted = ((memory.granted - group.filtered if emptied else memory.granted) & loss) | approved
        at_stake = loss - granted
        findings: list[Finding] = []
        if approved - memory.granted:
            findings.append(self._finding("ApprovalUsed", approved, "approved"))

        level = self._published() - self._counted(exempt | drift | granted)
        memory = self._without(memory, exempt, granted)
        levels = self._levels(memory, level)
        memory = replace(
            memory, level=level, levels=levels, granted=granted, forgiven=exempt, slices=group.slices, drift=drift
        )
        peak = max([level, *(earlier for _, earlier in levels)])

        emptied = emptied and bool(at_stake)
        memory = self._with_count(memory, at_stake, emptied=emptied)
        reason = self._reason(memory, at_stake, peak, emptied=emptied)
        if reason is None:
            findings.extend(self._accepted(memory, emptied=emptied))
            return self._pass(memory, at_stake if emptied else frozenset(), findings)
        memory = self._with_hold(memory, at_stake)
        hold = self.policy.max_removal_hold
        if reason == "RemovalWithheld" and hold is not None and self.now >= memory.since + hold:
            findings.append(self._finding("PlanReleased", at_stake, f"the same answer has stood for {hold:g} s"))
            findings.extend(self._accepted(memory, emptied=emptied))
            return self._pass(memory, at_stake, findings)
        return self._withhold(memory, at_stake, reason, peak, findings)

    def _drift(self) -> frozenset[str]:
        """What somebody else put there, or made ready, since the last verdict: repaired at once, and no loss."""
        allowed = self.memory.allowed
        if allowed is None:
            return frozenset()
        suspects = {address for address in self.leaving if address not in allowed or not _counts(allowed[address])}
        drift = self.memory.drift & suspects
        suspects -= drift
        if not suspects:
            return drift
        before = by_address(slice_ for slice_ in self.memory.slices if not suspects.isdisjoint(slice_.addresses))
        return drift | {
            address
            for address in suspects
            if (known := before.get(address) or allowed.get(address)) is None
            or (address in self.group.changed and not _counts(known))
        }

    def _accepted(self, memory: GuardMemory, *, emptied: bool) -> Iterable[Finding]:
        if emptied:
            yield Finding("EmptyResultAccepted", f"{self._who()}: empty, as {memory.record.empty} answers said")

    def _approved(self, loss: frozenset[str]) -> frozenset[str]:
        if not self.approvals or not loss:
            return frozenset()
        approved = approved_of(self.memory.issued, self.approvals)
        if digest(self.target, self.group.key, loss) in self.approvals:
            approved |= loss
        return loss & approved

    def _with_count(self, memory: GuardMemory, at_stake: frozenset[str], *, emptied: bool) -> GuardMemory:
        """Count an answer in which everything is gone; any other one starts the count anew."""
        if not emptied or at_stake & self.group.filtered:
            if memory.record.empty or memory.counted is not None:
                memory = replace(memory, counted=None, record=replace(memory.record, empty=0))
            return memory
        if memory.counted == self.answer:
            return memory
        # More than needed is not counted: each count is a write.
        empty = min(memory.record.empty + 1, max(1, self.policy.empty_results))
        return replace(memory, counted=self.answer, record=replace(memory.record, empty=empty))

    def _reason(self, memory: GuardMemory, at_stake: frozenset[str], peak: int, *, emptied: bool) -> Kind | None:
        """Why what is at stake cannot simply go; None where it can."""
        if not at_stake:
            return None
        if emptied and at_stake & self.group.filtered:
            return "FilteredEmpty"
        if emptied and not 0 < self.policy.empty_results <= memory.record.empty:
            return "EmptyResultHeld"
        if self.policy.max_removal is None:
            return None
        arriving = sum(1 for address in self.group.added if _counts(self.group.endpoints[address]))
        arriving += sum(1 for before, after in self.group.changed.values() if not _counts(before) and _counts(after))
        remaining = (memory.level or 0) - self._counted(at_stake) + arriving
        # Rounded first: 10 × (1 - 0.7) is a little more than 3.
        floor = math.ceil(round(peak * (1 - self.policy.max_removal), 6))
        return "RemovalWithheld" if remaining < floor else None

    def _with_hold(self, memory: GuardMemory, at_stake: frozenset[str]) -> GuardMemory:
        """Go on with the hold that covers what is at stake, or begin a new one.

        What comes back is not covered any more: it has not stood, should it go again.
        """
        if memory.withheld and at_stake <= memory.withheld:
            return memory if at_stake == memory.withheld else replace(memory, withheld=at_stake)
        name = digest(self.target, self.group.key, at_stake)
        record = memory.record
        since, wall = self.now, int(self.wall)
        if not memory.withheld and record.hash == name and record.since > 0:
            # After a restart: the time it stood before counts, unless the clock was set back since.
            since, wall = self.now - max(0.0, self.wall - record.since), record.since
        return replace(
            memory,
            withheld=at_stake,
            since=since,
            issued=issue(memory.issued, name, at_stake),
            record=replace(record, hash=name, since=wall),
        )

    # --- the outcome ------------------------------------------------------------------------------

    def _pass(self, memory: GuardMemory, released: frozenset[str], findings: list[Finding]) -> GuardVerdict:
        """Everything may go; what was released may go on going, and the peak starts from what is left."""
        if released:
            level = (memory.level or 0) - self._counted(released)
            memory = replace(memory, granted=memory.granted | released, level=level, levels=())
        allowed = self.group.endpoints
        memory = replace(memory, withheld=frozenset(), counted=None, record=NO_RECORD, allowed=allowed)
        return GuardVerdict(self.group, None, NO_RECORD, memory, None, tuple(findings))

    def _withhold(
        self, memory: GuardMemory, at_stake: frozenset[str], kind: Kind, peak: int, findings: list[Finding]
    ) -> GuardVerdict:
        group = self.group
        # The peak does not fall while something is withheld.
        memory = replace(memory, levels=((self.now, peak),) if peak > (memory.level or 0) else ())
        held = {address: self.leaving[address] for address in sorted(at_stake)}
        allowed = replace(
            group,
            endpoints={**group.endpoints, **held},
            removed={address: endpoint for address, endpoint in group.removed.items() if address not in at_stake},
            changed={address: change for address, change in group.changed.items() if address not in at_stake},
        )
        hold = self.policy.max_removal_hold
        wake_at = memory.since + hold if kind == "RemovalWithheld" and hold is not None else None
        withheld = Withheld(
            kind,
            memory.record.hash,
            tuple(sorted(at_stake)),
            memory.record.since,
            self._message(kind, memory, at_stake),
            self._approve(memory),
        )
        findings.append(Finding(kind, withheld.message, withheld.addresses))
        memory = replace(memory, allowed=allowed.endpoints)
        return GuardVerdict(allowed, withheld, memory.record, memory, wake_at, tuple(findings))

    def _approve(self, memory: GuardMemory) -> str:
        return f"hub approve {self.target} {memory.record.hash}{self.flags}"

    def _message(self, kind: Kind, memory: GuardMemory, at_stake: frozenset[str]) -> str:
        total = len(by_address(self.group.slices))
        what = f"{self._who()}: {len(at_stake)} of {total} endpoints would go"
        approve = self._approve(memory)
        hold = self.policy.max_removal_hold
        if kind == "FilteredEmpty":
            return f"{what} although their nodes exist; withheld until: {approve}"
        if kind == "EmptyResultHeld" and self.policy.empty_results:
            return f"{what}; withheld after {memory.record.empty} of {self.policy.empty_results} such answers"
        if kind == "EmptyResultHeld" or hold is None:
            return f"{what}; withheld until: {approve}"
        return f"{what}; withheld until the answer has stood for {hold:g} s, or: {approve}"

    def _finding(self, reason: str, addresses: Iterable[str], why: str) -> Finding:
        every = tuple(sorted(addresses))
        return Finding(reason, f"{self._who()}: {len(every)} endpoints may go: {why}", every)

    def _who(self) -> str:
        return f"{self.group.key.cluster} ({self.group.key.family})"

    # --- the peak -----------------------------------------------------------------------------------

    def _published(self) -> int:
        """Endpoints that are published and not draining; the first of duplicates counts."""
        if not self.group.duplicates:
            return sum([len(slice_.addresses) - slice_.content.draining for slice_ in self.group.slices])
        return sum(not endpoint.conditions.terminating for endpoint in by_address(self.group.slices).values())

    def _counted(self, addresses: Iterable[str]) -> int:
        return sum(1 for address in addresses if _counts(self.leaving[address]))

    def _levels(self, memory: GuardMemory, level: int) -> tuple[tuple[float, int], ...]:
        """Earlier levels that matter: within the window, and higher than any later one."""
        oldest = self.now - self.policy.max_removal_window
        levels = [entry for entry in memory.levels if entry[0] >= oldest]
        if memory.level is not None and memory.level > level:
            levels = [entry for entry in levels if entry[1] > memory.level]
            levels.append((self.now, memory.level))
        return tuple(entry for entry in levels if entry[1] > level)

    def _without(self, memory: GuardMemory, exempt: frozenset[str], granted: frozenset[str]) -> GuardMemory:
        """The memory without what may go from now on: it is not missed, so the peak forgets it."""
        if granted - memory.granted:
            return replace(memory, level=None, levels=())
        less = self._counted(exempt - memory.forgiven)
        if not less or memory.level is None:
            return memory
        levels = tuple((until, max(0, earlier - less)) for until, earlier in memory.levels)
        return replace(memory, level=max(0, memory.level - less), levels=levels)
