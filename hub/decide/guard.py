"""The guard: decide which endpoints may be taken away from consumers, and when.

The guard judges the endpoints of one (target, source cluster, family) before they are packed into slices. Additions and
changes always pass. A removal of too many endpoints, or of all endpoints, is withheld as a whole until the same answer
has stood for long enough, or an operator approves it. A change that makes an endpoint drain counts as a removal. An
unknown source never causes a removal, so the guard does not need to know why a source gave its answer.

State that must survive a restart is a :class:`~hub.decide.record.GuardRecord`, stored in an annotation. All other state
is a :class:`GuardMemory`, which can be rebuilt from the slices or started from scratch. All functions are pure.
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
    """The guard's state for one group between two passes; lost in a restart.

    Attributes:
        record: the record of the last decision; the slices may still carry an older one.
        counted: number of the last answer that was counted as empty; None if this process has not counted one.
        level: number of endpoints published at the last pass, without those that may go.
        levels: (when it ended, level) of earlier levels within the window.
        withheld: the withheld addresses. ``record.hash`` may name a larger set: addresses that came back since are not
            in here.
        since: since when these addresses are withheld, by the clock of ``now``.
        paused: since when the source is unknown or the group is not decided about; this time does not count as holding
            time. None if neither is the case.
        issued: recently withheld sets, for approvals.
        granted: addresses that may go and are still published.
        forgiven: exempt addresses that are still published but no longer counted in ``level``.
        allowed: the endpoints that the last verdict allowed; None if there was no verdict.
        slices: the slices that were published at the last verdict.
        drift: addresses that another writer added or made ready since the last verdict, against that verdict. Removing
            them takes nothing away from consumers.
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
    """A removal that the guard withholds.

    Attributes:
        kind: why it is withheld; also the Event's reason.
        hash: the hash by which an operator approves it.
        addresses: addresses that would be removed or start to drain, sorted.
        since: Unix time at which the guard began to withhold it.
        message: one sentence, including what ends the withholding.
        approve: the command that approves the removal.
    """

    kind: Kind
    hash: str
    addresses: tuple[str, ...]
    since: float
    message: str
    approve: str = ""


class GuardVerdict(msgspec.Struct, frozen=True):
    """The guard's decision about one group.

    Attributes:
        group: the group with the endpoints that may be published; the same object if nothing is withheld.
        withheld: the withheld removal; None if there is none.
        record: the record to store on the slices.
        memory: for the next pass.
        wake_at: latest time of the next pass, by the clock of ``now``; None if no timer is running.
        findings: removals that are withheld, and removals that were released or approved in this pass.
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
    """The hash that an approval names, computed from target, source, family and the addresses to remove."""
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
    """Decide which removals of a group may happen.

    Args:
        target: the target that the group belongs to.
        group: the wanted and the published endpoints.
        policy: the source's ``guard:``.
        record: the record on the group's slices. If there is a memory, the record only matters if another version of
            the hub wrote it: it is then kept unchanged.
        memory: from the last pass; None at first.
        answer: number of the complete answer that the group comes from; a different number means a different answer.
        approvals: hashes that are approved and have not expired.
        now: seconds of a monotonic clock.
        wall: Unix time.
        flags: options that ``hub approve`` needs to find this hub's approvals, for messages.
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
    verdict = pass_.without_removal() if not pass_.leaving else pass_.with_removal()
    return replace(verdict, record=record) if record.foreign else verdict


def pause(memory: GuardMemory, now: float) -> GuardMemory:
    """The memory of a group that is not decided about for now: holding times stop, as its answers are not observed."""
    return memory if memory.paused is not None else replace(memory, paused=now)


def _counts(endpoint: Endpoint) -> bool:
    """Whether the guard counts an endpoint as available: it is not draining. Failed probes do not matter here."""
    return not endpoint.conditions.terminating


@dataclass(slots=True)
class _Pass:
    """The decision about one group at one moment."""

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
    """Address -> published endpoint, for endpoints that would be removed or start to drain."""

    def __post_init__(self) -> None:
        self.leaving = dict(self.group.removed)
        for address, (before, after) in self.group.changed.items():
            if _counts(before) and not _counts(after):
                self.leaving[address] = before

    # --- without a removal -------------------------------------------------------------------

    def without_removal(self) -> GuardVerdict:
        """The verdict if there is no removal: nothing is withheld, and the record is cleared."""
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

    # --- with a removal ------------------------------------------------------------------------

    def with_removal(self) -> GuardVerdict:
        """The verdict if there is a removal.

        Addresses are *at stake* if their removal needs a decision: they are neither exempt, nor drift, nor granted.
        """
        memory, group = self.memory, self.group
        exempt = frozenset(self.leaving.keys() & group.exempt)
        drift = self._drift()
        loss = frozenset(self.leaving.keys() - exempt - drift)
        approved = self._approved(loss)
        emptied = bool(loss) and not group.endpoints
        # Addresses were released because their nodes were gone. A node that exists again ends this.
        granted = ((memory.granted - group.filtered if emptied else memory.granted) & loss) | approved
        at_stake = loss - granted
        findings: list[Finding] = []
        if approved - memory.granted:
            findings.append(self._finding("ApprovalUsed", approved, "approved"))

        level = self._published() - self._counted(exempt | drift | granted)
        memory = self._lowered(memory, exempt, granted)
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
            return self._release(memory, at_stake if emptied else frozenset(), findings)
        memory = self._with_hold(memory, at_stake)
        hold = self.policy.max_removal_hold
        if reason == "RemovalWithheld" and hold is not None and self.now >= memory.since + hold:
            findings.append(self._finding("PlanReleased", at_stake, f"the same answer has stood for {hold:g} s"))
            findings.extend(self._accepted(memory, emptied=emptied))
            return self._release(memory, at_stake, findings)
        return self._withhold(memory, at_stake, reason, peak, findings)

    def _drift(self) -> frozenset[str]:
        """Leaving addresses that another writer added or made ready since the last verdict: no loss to consumers."""
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
            yield Finding(
                "EmptyResultAccepted", f"{self._group_name()}: empty, confirmed by {memory.record.empty} answers"
            )

    def _approved(self, loss: frozenset[str]) -> frozenset[str]:
        if not self.approvals or not loss:
            return frozenset()
        approved = approved_of(self.memory.issued, self.approvals)
        if digest(self.target, self.group.key, loss) in self.approvals:
            approved |= loss
        return loss & approved

    def _with_count(self, memory: GuardMemory, at_stake: frozenset[str], *, emptied: bool) -> GuardMemory:
        """Count an answer in which all endpoints are gone; any other answer resets the count."""
        if not emptied or at_stake & self.group.filtered:
            if memory.record.empty or memory.counted is not None:
                memory = replace(memory, counted=None, record=replace(memory.record, empty=0))
            return memory
        if memory.counted == self.answer:
            return memory
        # Stop at the number that is needed, because every count is an API write.
        empty = min(memory.record.empty + 1, max(1, self.policy.empty_results))
        return replace(memory, counted=self.answer, record=replace(memory.record, empty=empty))

    def _reason(self, memory: GuardMemory, at_stake: frozenset[str], peak: int, *, emptied: bool) -> Kind | None:
        """Why the addresses at stake cannot be removed now; None if they can."""
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
        # Round before ceil: as a float, 10 * (1 - 0.7) is slightly more than 3.
        floor = math.ceil(round(peak * (1 - self.policy.max_removal), 6))
        return "RemovalWithheld" if remaining < floor else None

    def _with_hold(self, memory: GuardMemory, at_stake: frozenset[str]) -> GuardMemory:
        """Continue the hold that covers the addresses at stake, or begin a new one.

        An address that came back is dropped from the hold: if it leaves again, its removal has not stood all the time.
        """
        if memory.withheld and at_stake <= memory.withheld:
            return memory if at_stake == memory.withheld else replace(memory, withheld=at_stake)
        name = digest(self.target, self.group.key, at_stake)
        record = memory.record
        since, wall = self.now, int(self.wall)
        if not memory.withheld and record.hash == name and record.since > 0:
            # After a restart, the time before it counts, unless the clock was set back since.
            since, wall = self.now - max(0.0, self.wall - record.since), record.since
        return replace(
            memory,
            withheld=at_stake,
            since=since,
            issued=issue(memory.issued, name, at_stake),
            record=replace(record, hash=name, since=wall),
        )

    # --- the outcome ------------------------------------------------------------------------------

    def _release(self, memory: GuardMemory, released: frozenset[str], findings: list[Finding]) -> GuardVerdict:
        """The verdict that lets all removals happen.

        Released addresses stay granted until they are no longer published, and the peak starts from the remaining ones.
        """
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
        # The peak does not fall while a removal is withheld.
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
        what = f"{self._group_name()}: {len(at_stake)} of {total} endpoints would go"
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
        affected = tuple(sorted(addresses))
        return Finding(reason, f"{self._group_name()}: {len(affected)} endpoints may go: {why}", affected)

    def _group_name(self) -> str:
        return f"{self.group.key.cluster} ({self.group.key.family})"

    # --- the peak -----------------------------------------------------------------------------------

    def _published(self) -> int:
        """Number of published endpoints that are not draining; of duplicates, only the first one counts."""
        if not self.group.duplicates:
            return sum([len(slice_.addresses) - slice_.content.draining for slice_ in self.group.slices])
        return sum(not endpoint.conditions.terminating for endpoint in by_address(self.group.slices).values())

    def _counted(self, addresses: Iterable[str]) -> int:
        return sum(1 for address in addresses if _counts(self.leaving[address]))

    def _levels(self, memory: GuardMemory, level: int) -> tuple[tuple[float, int], ...]:
        """The earlier levels that can be the peak: within the window, and higher than all later ones."""
        oldest = self.now - self.policy.max_removal_window
        levels = [entry for entry in memory.levels if entry[0] >= oldest]
        if memory.level is not None and memory.level > level:
            levels = [entry for entry in levels if entry[1] > memory.level]
            levels.append((self.now, memory.level))
        return tuple(entry for entry in levels if entry[1] > level)

    def _lowered(self, memory: GuardMemory, exempt: frozenset[str], granted: frozenset[str]) -> GuardMemory:
        """The memory whose levels no longer count addresses that may go from now on, so that the peak excludes them."""
        if granted - memory.granted:
            return replace(memory, level=None, levels=())
        less = self._counted(exempt - memory.forgiven)
        if not less or memory.level is None:
            return memory
        levels = tuple((ended, max(0, earlier - less)) for ended, earlier in memory.levels)
        return replace(memory, level=max(0, memory.level - less), levels=levels)
