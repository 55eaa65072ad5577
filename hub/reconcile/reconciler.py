"""One pass over one target: gather a snapshot, decide, write, remember the outcome.

Passes are level-based and idempotent: a pass gathers the whole state, whatever change caused it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from hub.decide import guarding
from hub.decide.adopt import with_deleted
from hub.decide.decision import Decision, TargetState, decide
from hub.decide.snapshot import SourceReading, TargetSnapshot
from hub.decide.view import ViewResult
from hub.errors import HubError, NotLeader
from hub.model import Finding, Slice, TargetKey
from hub.reconcile.gather import Gather
from hub.reconcile.history import Historian
from hub.reconcile.journal import Journal
from hub.reconcile.latency import Latency
from hub.reconcile.memory import WriteMemory
from hub.reconcile.writer import Outcome, Writer
from hub.registry.spec import RegistryHeld, SourceSpec
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

RECHECK: Final = 0.05
"""Seconds until the next pass if one is certainly needed, for example after a conflict."""


class Listener(Protocol):
    """Receives the decisions of passes. Its methods neither wait nor raise."""

    def decided(self, decision: Decision) -> None:
        """Receive the decision of a pass, before its plan is written."""
        ...

    def published(self, decision: Decision, done: Sequence[tuple[str, Slice]]) -> None:
        """Receive a decision and the writes of its pass that succeeded, as (operation, slice)."""
        ...


class _Target(msgspec.Struct):
    """The memory of a target between passes.

    Attributes:
        state: for the next decision.
        writes: the memory of its writes.
        notes: findings that other parts of the hub attached.
        written_at: see :meth:`Reconciler.written_at`.
        last: the last decision.
    """

    state: TargetState = TargetState()
    writes: WriteMemory = msgspec.field(default_factory=WriteMemory)
    notes: tuple[Finding, ...] = ()
    written_at: float | None = None
    last: Decision | None = None


class Reconciler:
    """Makes passes over targets. Passes over different targets may run at the same time; two over one target must not.

    Args:
        gather: gathers snapshots.
        writer: carries plans out.
        clock: where time comes from.
        listeners: receive the decisions.
        historian: keeps the history of the decisions; None = there is no history.

    Attributes:
        journal: logs the numbers of slices written and deleted.
        latency: times from a change to its publication.
        suppressed: number of passes without a write since the start: ``unchanged`` = nothing differs; ``contended`` =
            the writes wait, since another client keeps changing the slices or the namespace is missing.
    """

    def __init__(
        self, gather: Gather, writer: Writer, clock: Clock, *listeners: Listener, historian: Historian | None = None
    ) -> None:
        self._gather = gather
        self._writer = writer
        self._clock = clock
        self._listeners = listeners
        self._historian = historian
        self._targets: dict[TargetKey, _Target] = {}
        self.journal = Journal()
        self.latency = Latency()
        self.suppressed = {"unchanged": 0, "contended": 0}

    # --- what is remembered --------------------------------------------------------------------------

    def last(self, key: TargetKey) -> Decision | None:
        """The most recent decision about a target."""
        known = self._targets.get(key)
        return known.last if known is not None else None

    def problem(self, key: TargetKey) -> str:
        """Why the most recent write of a target failed; "" if it succeeded, or there was none."""
        known = self._targets.get(key)
        return known.writes.problem if known is not None else ""

    def written_at(self, key: TargetKey) -> float | None:
        """Unix time at which this process last wrote a slice of a target; None if it has not."""
        known = self._targets.get(key)
        return known.written_at if known is not None else None

    def view(self, source: SourceSpec) -> ViewResult:
        """The endpoints that a source offers now."""
        return self._gather.view(source)

    def annotate(self, key: TargetKey, findings: tuple[Finding, ...]) -> bool:
        """Attach findings to every further decision about a target, instead of the previous ones; True if changed."""
        target = self._targets.get(key)
        if (target.notes if target is not None else ()) == findings:
            return False
        self._target(key).notes = findings
        return True

    def last_withheld(self) -> RegistryHeld | None:
        """The mass removal that the last judgement withheld; judges nothing."""
        return self._gather.removals.found

    def withheld(self) -> RegistryHeld | None:
        """The mass removal that is withheld under the registry in force; judges the registry if necessary."""
        return self._gather.removals.judge(self._gather.registry())

    def reread(self, *, withheld: bool) -> None:
        """Judge removals again; called when this process begins to write, as another one may have written before.

        Args:
            withheld: the other process withheld a removal.
        """
        self._gather.removals.reread(withheld=withheld)

    def remembered(self) -> list[TargetKey]:
        """Targets of which this object remembers anything."""
        return list(self._targets)

    def forget(self, key: TargetKey) -> None:
        """Forget a target, and stop its probes; for one that another process writes, or without entry and slices."""
        self._targets.pop(key, None)
        self.latency.forget(key)
        self._probe(Decision(key))

    def _target(self, key: TargetKey) -> _Target:
        if (known := self._targets.get(key)) is None:
            known = self._targets[key] = _Target()
        return known

    # --- one pass ----------------------------------------------------------------------------------------

    def decide(self, key: TargetKey) -> Decision:
        """Decide about a target, and remember the state for the next decision. Writes no slice."""
        return self._decide(key)[0]

    def _decide(self, key: TargetKey) -> tuple[Decision, TargetSnapshot]:
        target = self._target(key)
        snapshot = self._gather.snapshot(key, target.writes, target.notes)
        decision, target.state = decide(snapshot, target.state)
        self._list_again(decision)
        target.last = decision = self._probe(decision, snapshot.sources)
        return decision, snapshot

    async def reconcile(self, key: TargetKey) -> float | None:
        """Decide about a target, and carry the plan out.

        Returns:
            Seconds until the next pass; None if the next pass waits for a change.

        Raises:
            HubError: the API of the hub cluster failed, or this process may not write the target; try again later.
        """
        self.latency.begin(key)
        if self._gather.local.slices.thin(key):  # another replica wrote the target until now
            await self._gather.local.read_thin_slices(key)
        decision, snapshot = self._decide(key)
        target = self._targets[key]
        self._report(target, decision, snapshot)
        if decision.plan is None or not decision.plan.writes:
            target.writes.settled()
            self._nothing_written(key, "unchanged")
            if decision.status == "gone":
                self.forget(key)
            return decision.again_after
        service = self._gather.local.services.get(key)
        uid = service.uid if service is not None else ""
        held = target.writes.allow(decision.plan, uid, self._clock.now())
        if held.wake_at is not None:
            again_after = _sooner(decision.again_after, held.wake_at - self._clock.now())
            decision = replace(decision, again_after=again_after)
        if not held.plan.writes:
            self._nothing_written(key, "contended")
            return decision.again_after
        try:
            outcome = await self._writer.apply(held.plan)
        except NotLeader:
            raise
        except HubError as error:
            target.writes.unanswered(str(error))
            raise
        return self._commit(target, decision, snapshot, outcome, uid)

    def _report(self, target: _Target, decision: Decision, snapshot: TargetSnapshot) -> None:
        """Report a decision before its plan is written."""
        if target.state.adoption is not None:
            self._gather.adopting.log_obstacles(decision.target, decision.findings)
        for listener in self._listeners:
            listener.decided(decision)
        if self._historian is not None:
            self._historian.decided(decision, snapshot)

    def _commit(
        self, target: _Target, decision: Decision, snapshot: TargetSnapshot, outcome: Outcome, uid: str
    ) -> float | None:
        """Remember the outcome of a plan's writes; return the seconds until the next pass.

        Raises:
            ApiError: the answer that ended the writes early.
        """
        key = decision.target
        for text in target.writes.note(outcome, uid, self._clock.now()):
            log.warning("%s: %s", key, text)
        if outcome.done:
            target.written_at = self._clock.wall()
            self.journal.note(key, [operation for operation, _ in outcome.done])
            self._adopted(target, key, outcome)
            for listener in self._listeners:
                listener.published(decision, outcome.done)
            if self._historian is not None:
                self._historian.wrote(decision, snapshot, outcome.done)
        if outcome.failure is not None:
            raise outcome.failure
        if outcome.again or outcome.blocked or outcome.missing_namespace:
            return RECHECK
        self.latency.published(key, self._clock.now())
        if decision.status == "removing":
            self.forget(key)
        adoption = target.state.adoption
        waits = decision.waits_for_own_writes or (adoption is not None and adoption.seen)
        return RECHECK if waits else decision.again_after

    def _adopted(self, target: _Target, key: TargetKey, outcome: Outcome) -> None:
        """Remember which slices of the controller that the target adopts from were deleted."""
        adoption, spec = target.state.adoption, self._gather.registry().targets.get(key)
        if adoption is None or spec is None or not spec.adopt:
            return
        if uids := self._gather.adopting.log_deleted(spec, outcome.done):
            target.state = replace(target.state, adoption=with_deleted(adoption, uids))

    def _nothing_written(self, key: TargetKey, why: str) -> None:
        self.latency.wrote_nothing(key)
        self.suppressed[why] += 1

    def _list_again(self, decision: Decision) -> None:
        """List the Nodes of clusters again whose answer was empty while their endpoints are still published."""
        for name in decision.list_again:
            if (cluster := self._gather.fleet.clusters.get(name)) is not None:
                cluster.list_again(guarding.ASK_AGAIN)

    def _probe(self, decision: Decision, sources: Sequence[SourceReading] = ()) -> Decision:
        """Probe the addresses that a decision wants probed; return the decision with findings about the prober added.

        Only addresses that the policy of their source allows are contacted, even if a slice contains others.
        """
        board, watches = self._gather.board, decision.watches
        if board is None or decision.held:
            return decision
        policies = {reading.spec.cluster: reading.addresses for reading in sources if reading.addresses is not None}
        board.follow(decision.target, watches, policies)
        if decision.desired is None or not watches:
            return decision
        first = len(decision.desired.findings)
        findings = (*decision.findings[:first], *board.findings(watches), *decision.findings[first:])
        return replace(decision, findings=findings)


def _sooner(one: float | None, other: float) -> float:
    """The shorter of two delays, plus 1 ms so that the timer does not fire just before its deadline."""
    return max(0.0, other if one is None else min(one, other)) + 0.001
