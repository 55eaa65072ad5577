"""One pass over one target: the only module that knows the order of the stages.

    views of the sources ─▶ desire ─▶ guard ─▶ plan ─▶ apply

Level-based: a pass re-reads every snapshot; what woke it up does not matter. It is idempotent and returns
what it saw and did, and when it wants to run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from hub.decide.endpoints import GroupKey
from hub.decide.guard import GuardMemory, Withheld
from hub.decide.plan import Identity, Plan, plan
from hub.decide.target import Desired, Refused, Waiting, Wish, WishMemory, desire
from hub.decide.view import ViewResult
from hub.errors import HubError, NotLeader
from hub.model import ANNOTATION_LEASE, ANNOTATION_PAUSED, LABEL_OWNER, Finding, Slice, TargetKey
from hub.observe.health.board import Board
from hub.observe.local.cluster import LocalCluster
from hub.observe.remote.fleet import Fleet
from hub.reconcile.adopting import Adopting
from hub.reconcile.checking import Checking
from hub.reconcile.guarding import NO_APPROVALS, Guarding
from hub.reconcile.inputs import Inputs, Remembered
from hub.reconcile.journal import Journal
from hub.reconcile.latency import Latency
from hub.reconcile.memory import WriteMemory
from hub.reconcile.writer import Outcome, Writer
from hub.registry.removals import RegistryHeld, Removals, service_entry
from hub.registry.spec import Registry, SourceSpec, TargetSpec
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

NOT_FOLLOWED = "its namespace is none that the hub was told to follow (--target-namespace)"
RECHECK = 0.05
"""Seconds until the next pass where one is known to be needed: a conflict was read again, say."""


class Pass(msgspec.Struct, frozen=True):
    """What one pass over a target saw and decided.

    Attributes:
        target: which.
        plan: the writes it came to; None where there is nothing to decide (see ``status``).
        status: why nothing is decided, or "" .
        desired: what is wanted, for explanations.
        unknown: sources that made no statement -> why.
        findings: what an operator may want to know.
        again_after: seconds until the next pass, None = when something changes.
        withheld: what the guard holds back, by source cluster and family.
    """

    target: TargetKey
    plan: Plan | None = None
    status: str = ""
    desired: Desired | None = None
    observed: tuple[Slice, ...] = ()
    unknown: Mapping[str, str] = msgspec.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    again_after: float | None = None
    withheld: Mapping[GroupKey, Withheld] = msgspec.field(default_factory=dict)


class Listener(Protocol):
    """Who is told of passes. Neither method may wait, nor fail."""

    def decided(self, result: Pass) -> None:
        """A pass that may be written from came to this."""
        ...

    def published(self, result: Pass, done: Sequence[tuple[str, Slice]]) -> None:
        """It wrote these slices: (operation, slice)."""
        ...


class Nobody:
    """A listener that does not listen."""

    def decided(self, result: Pass) -> None:
        """Nothing."""

    def published(self, result: Pass, done: Sequence[tuple[str, Slice]]) -> None:
        """Nothing."""


class _Target(msgspec.Struct):
    """What a target carries from pass to pass."""

    memory: WishMemory = WishMemory()
    guards: dict[GroupKey, GuardMemory] = msgspec.field(default_factory=dict)
    sources: Remembered = msgspec.field(default_factory=Remembered)
    writes: WriteMemory = msgspec.field(default_factory=WriteMemory)
    orphan_since: float | None = None
    written_at: float | None = None
    last: Pass | None = None


class Reconciler:
    """Decides and writes, one target at a time.

    Args:
        lease: name of the lease that allows this hub to write, as put on every slice.
        removal_grace: seconds before slices go that the registry no longer asks for.
        approvals: the hashes that are approved now.
        warned: whether another replica withholds a removal.
        flags: what ``hub approve`` needs to find them, for messages.
        take_over: targets whose slices are ours although another lease of our owner wrote them.
        uid: of a source cluster, by name; "" where it is not known.
        adopting: slices of other controllers that ours are to replace.
        board: who probes; None = nobody does.
        listener: who is told what each pass came to.
    """

    def __init__(
        self,
        registry: Callable[[], Registry],
        fleet: Fleet,
        local: LocalCluster,
        writer: Writer,
        clock: Clock,
        *,
        lease: str,
        removal_grace: float = 60.0,
        approvals: Callable[[], Collection[str]] = lambda: NO_APPROVALS,
        warned: Callable[[], bool] = bool,
        flags: str = "",
        take_over: frozenset[TargetKey] = frozenset(),
        uid: Callable[[str], str] = lambda _: "",
        adopting: Adopting | None = None,
        board: Board | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._registry = registry
        self._checking = Checking(fleet, board)
        self._local = local
        self._take_over = take_over
        self._uid = uid
        self._removals = Removals(self._owned, approvals, flags, warned)
        self._inputs = Inputs(fleet, clock, removal_grace, self._removals)
        self._guarding = Guarding(fleet, clock, approvals, flags)
        self._writer = writer
        self._clock = clock
        self._lease = lease
        self._listener = listener or Nobody()
        self._adopting = adopting or Adopting(local.client, clock, lambda _: None)
        self._grace = removal_grace
        self._targets: dict[TargetKey, _Target] = {}
        self.journal = Journal()
        self.latency = Latency()
        self.suppressed = {"unchanged": 0, "contended": 0}
        """Passes that wrote nothing, since the start: all is as it should be; others interfere."""
        self._notes: dict[TargetKey, tuple[Finding, ...]] = {}

    def last(self, key: TargetKey) -> Pass | None:
        """The most recent pass over a target."""
        known = self._targets.get(key)
        return known.last if known is not None else None

    def problem(self, key: TargetKey) -> str:
        """Why the most recent write of a target did not succeed; "" where it did or there was none."""
        known = self._targets.get(key)
        return known.writes.problem if known is not None else ""

    def written(self, key: TargetKey) -> float | None:
        """Unix time at which this process last wrote a slice of a target; None where it has not."""
        known = self._targets.get(key)
        return known.written_at if known is not None else None

    def view(self, source: SourceSpec) -> ViewResult:
        """What a source offers now."""
        return self._inputs.view(source)

    def annotate(self, key: TargetKey, findings: tuple[Finding, ...]) -> bool:
        """Report these findings with every pass over a target; True if they are news."""
        if self._notes.get(key, ()) == findings:
            return False
        if findings:
            self._notes[key] = findings
        else:
            self._notes.pop(key, None)
        return True

    def last_withheld(self) -> RegistryHeld | None:
        """What the last pass found withheld of what the registry would remove."""
        return self._removals.found

    def withheld(self) -> RegistryHeld | None:
        """What the registry in force would remove, and may not."""
        return self._removals.judge(self._registry())

    def reread(self, *, withheld: bool) -> None:
        """This process begins to write: another one may have written until now, and withheld a removal."""
        self._removals.reread(withheld=withheld)

    def known(self) -> list[TargetKey]:
        """Targets of which something is remembered."""
        return list(self._targets)

    def forget(self, key: TargetKey) -> None:
        """A target is neither in the registry nor has it slices, or somebody else writes it."""
        self._targets.pop(key, None)
        self._notes.pop(key, None)
        self.latency.forget(key)
        self._checking.forget(key)

    # --- deciding ---------------------------------------------------------------------------------

    def decide(self, key: TargetKey) -> Pass:
        """What should happen to a target now. Reads snapshots, writes nothing."""
        state = self._targets.get(key)
        if state is None:
            state = self._targets[key] = _Target()
        registry = self._registry()
        self._removals.judge(registry)  # before anything that it adds is published
        observed = tuple(self._local.slices.of(key).values())
        ours = self._ours(observed, registry)
        spec = registry.targets.get(key)
        service = self._local.services.get(key)
        if spec is not None or key in registry.broken_targets:
            state.orphan_since = None
        if key in registry.broken_targets:
            result = Pass(key, status=f"frozen: {registry.broken_targets[key]}", observed=observed)
        elif service is not None and service.annotations.get(ANNOTATION_PAUSED) == "true":
            result = Pass(key, status="paused", observed=observed)
        elif spec is None:
            result = self._orphan(key, state, ours, registry)
        else:
            result = self._desire(key, spec, state, observed, ours, registry)
        if result.desired is None:
            self._guarding.rest(state.guards)
        if (note := registry.notes.get(key)) is not None:
            status = note.message if result.status == "gone" else result.status
            result = replace(result, status=status, findings=(*result.findings, note))
        state.last = result
        return result

    def _ours(self, observed: tuple[Slice, ...], registry: Registry) -> tuple[Slice, ...]:
        """Without those of our owner that another hub writes; slices of previous owners are adopted."""
        theirs = [each for each in observed if self._is_theirs(each, registry)]
        return tuple(each for each in observed if each not in theirs) if theirs else observed

    def _is_theirs(self, each: Slice, registry: Registry) -> bool:
        return (
            each.annotations.get(ANNOTATION_LEASE, self._lease) != self._lease
            and each.labels.get(LABEL_OWNER) == registry.owner
            and each.target not in self._take_over
        )

    def _owned(self, registry: Registry) -> Iterable[Slice]:
        """All slices that are ours to write."""
        return (each for each in self._local.slices.values() if not self._is_theirs(each, registry))

    def _orphan(self, key: TargetKey, state: _Target, ours: tuple[Slice, ...], registry: Registry) -> Pass:
        """The registry no longer asks for this target: its slices go after the grace."""
        self._checking.forget(key)
        if registry.frozen_names:
            ours = tuple(each for each in ours if each.cluster not in registry.frozen_names)
        if not ours:
            return Pass(key, status="gone")
        now = self._clock.now()
        if state.orphan_since is None:
            state.orphan_since = now
        if (held := self._removals.held(registry, service_entry(key))) is not None:
            return Pass(key, status=held.message, observed=ours, findings=(held.finding,))
        left = state.orphan_since + self._grace - now
        if left > 0:
            status = f"not in the registry: {len(ours)} slices go in {left:.0f} s"
            return Pass(key, status=status, observed=ours, again_after=left)
        return Pass(key, Plan(deletes=tuple(sorted(ours, key=lambda each: each.name))), "removing", observed=ours)

    def _desire(
        self,
        key: TargetKey,
        spec: TargetSpec,
        state: _Target,
        observed: tuple[Slice, ...],
        ours: tuple[Slice, ...],
        registry: Registry,
    ) -> Pass:
        service = self._local.services.get(key)
        sources = self._inputs.gather(spec, registry, ours, state.sources, state.memory.failover.active)
        now = self._clock.now()
        retry_in = state.writes.expire(now)
        verdicts = self._checking.verdicts()
        refused = state.writes.refused
        desired = desire(Wish(spec, service, sources.inputs, ours, now, refused, verdicts), state.memory)
        if isinstance(desired, Refused | Waiting) or service is None:
            assert isinstance(desired, Refused | Waiting)  # noqa: S101 - a missing Service waits
            self._checking.forget(key)
            message = desired.message if self._local.follows(key.namespace) else NOT_FOLLOWED
            finding = Finding(desired.reason, message)
            return Pass(key, status=message, observed=observed, unknown=sources.unknown, findings=(finding,))
        state.memory = desired.memory
        wakes = sources.wakes
        if desired.wake_at is not None:
            wakes.append(desired.wake_at - now)
        if retry_in is not None:
            wakes.append(retry_in)
        taken = {*state.writes.foreign, *(each.name for each in desired.untouched)}
        taken.update(each.name for each in ours if each.deleting)  # somebody's finalizer holds it
        checking = self._checking.follow(spec, desired)
        findings = [
            *desired.findings,
            *checking,
            *sources.findings,
            *state.writes.findings(now),
            *self._notes.get(key, ()),
        ]
        if len(ours) < len(observed):
            theirs = sorted({each.name for each in observed} - {each.name for each in ours})
            taken.update(theirs)
            findings.append(Finding("OwnerConflict", self._conflict(key, observed, theirs), tuple(theirs)))
        guarded = self._guarding.check(key, spec, desired.groups, state.guards, desired.untouched)
        findings.extend(guarded.findings)
        wakes.extend(guarded.wakes)
        views = [] if sources.unknown else [each.view for each in sources.inputs]
        adoption = self._adopting.check(spec, ours, guarded.groups, views)
        findings.extend(adoption.findings)
        if adoption.wake_at is not None:
            wakes.append(adoption.wake_at - now)
        planned = plan(
            service,
            adoption.groups,
            Identity(registry.owner, self._lease),
            limit=spec.endpoints_per_slice,
            states=guarded.states,
            uids={group.key.cluster: uid for group in guarded.groups if (uid := self._uid(group.key.cluster))},
            taken=taken,
        )
        planned = replace(planned, deletes=planned.deletes + adoption.deletes)
        ours += adoption.deletes
        again_after = max(0.0, min(wakes)) + 0.001 if wakes else None
        return Pass(key, planned, "", desired, ours, sources.unknown, tuple(findings), again_after, guarded.withheld)

    def _conflict(self, key: TargetKey, observed: tuple[Slice, ...], theirs: Collection[str]) -> str:
        leases = sorted({each.annotations.get(ANNOTATION_LEASE, "") for each in observed if each.name in theirs})
        return (
            f"{len(theirs)} slices with our owner are of the hub with the lease {', '.join(leases)} and not touched; "
            f"once that one is stopped: hub run --take-over {key}"
        )

    # --- writing ----------------------------------------------------------------------------------

    async def reconcile(self, key: TargetKey) -> float | None:
        """Decide, and write what follows from it.

        Returns:
            Seconds until the next pass; None = when something changes.

        Raises:
            HubError: the hub cluster's API is away or this process may not write: to be retried.
        """
        self.latency.begin(key)
        if self._local.slices.thin(key):  # another replica wrote it until now
            await self._local.complete(key)
        result = self.decide(key)
        self._adopting.tell(key, result.findings)
        self._listener.decided(result)
        state = self._targets[key]
        if result.plan is None or not result.plan.writes:
            state.writes.settled()
            self.latency.nothing(key)
            self.suppressed["unchanged"] += 1
            if result.status == "gone":
                self.forget(key)
            return result.again_after
        service = self._local.services.get(key)
        uid = service.uid if service is not None else ""
        held = state.writes.allow(result.plan, uid, self._clock.now())
        if held.wake_at is not None:
            result = replace(result, again_after=_sooner(result.again_after, held.wake_at - self._clock.now()))
        if not held.plan.writes:
            self.latency.nothing(key)
            self.suppressed["contended"] += 1
            return result.again_after
        try:
            outcome = await self._writer.apply(held.plan)
        except NotLeader:
            raise
        except HubError as error:
            state.writes.unanswered(str(error))
            raise
        return self._after(key, state, result, outcome, uid)

    def _after(self, key: TargetKey, state: _Target, result: Pass, outcome: Outcome, uid: str) -> float | None:
        for text in state.writes.note(outcome, uid, self._clock.now()):
            log.warning("%s: %s", key, text)
        if outcome.done:
            state.written_at = self._clock.wall()
            self.journal.note(key, len(outcome.done))
            self._adopting.wrote(self._registry().targets.get(key), outcome.done)
            self._listener.published(result, outcome.done)
        if outcome.failure is not None:
            raise outcome.failure
        if outcome.again or outcome.blocked or outcome.missing_namespace:
            return RECHECK
        self.latency.published(key, self._clock.now())
        if result.status == "removing":
            self.forget(key)
        waits = _waits_for_own_writes(result) or self._adopting.pending(key)
        return RECHECK if waits else result.again_after


def _sooner(one: float | None, other: float) -> float:
    return max(0.0, other if one is None else min(one, other)) + 0.001


def _waits_for_own_writes(result: Pass) -> bool:
    """Whether what was just written lets something else begin: own writes wake nobody.

    An address on its way to another source leaves the old one a while after it was seen at the new one;
    the sources that failover has left go a while after the new one was. Endpoints that exchange their ports
    may be in both slices.
    """
    desired = result.desired
    return desired is not None and (
        desired.memory.failover.active != ""
        or any(group.exempt or group.port_sets or (group.drop and group.endpoints) for group in desired.groups)
    )
