"""One pass over one target: the only module that knows the order of the stages.

    views of the sources ─▶ desire ─▶ plan ─▶ apply

Level-based: a pass re-reads every snapshot; what woke it up does not matter. It is idempotent and returns
what it saw and did, and when it wants to run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hub.aio.clock import Clock
from hub.apply.writer import Outcome, Writer
from hub.desired.target import Desired, Refused, SourceInput, TargetMemory, Waiting, desire
from hub.desired.view import ViewResult
from hub.local import LocalCluster
from hub.model import ANNOTATION_LEASE, ANNOTATION_PAUSED, LOCAL, Finding, Slice, SourceView, TargetKey
from hub.plan.plan import Identity, Plan, plan
from hub.registry.spec import ClusterSpec, Registry, SourceSpec, TargetSpec
from hub.remote.fleet import Fleet, SourceKey

log = logging.getLogger(__name__)

BURST = 10.0
RATE = 2.0
"""Passes that write: burst and per second, for each target. A lone change never waits; a storm is batched."""

RECHECK = 0.05
"""Seconds until the next pass after a conflict was re-read."""
CONTENDED_FIRST, CONTENDED_CAP = 1.0, 60.0
"""Seconds between repairs of a slice that somebody else keeps changing."""


@dataclass(slots=True)
class Tokens:
    """A token bucket."""

    tokens: float = BURST
    at: float = 0.0

    def take(self, now: float) -> float:
        """Take one; 0.0 if there was one, else seconds until there is."""
        self.tokens = min(BURST, self.tokens + (now - self.at) * RATE) if self.at else BURST
        self.at = now
        if self.tokens >= 1.0:
            self.tokens -= 1.0
            return 0.0
        return (1.0 - self.tokens) / RATE


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over a target saw and decided.

    Attributes:
        target: which.
        plan: the writes it came to; None where there is nothing to decide (see ``status``).
        status: why nothing is decided, or "" .
        desired: what is wanted, for explanations.
        unknown: sources that made no statement -> why.
        findings: what an operator may want to know.
        again_after: seconds until the next pass, None = when something changes.
    """

    target: TargetKey
    plan: Plan | None = None
    status: str = ""
    desired: Desired | None = None
    observed: tuple[Slice, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    again_after: float | None = None


@dataclass(slots=True)
class _Target:
    """What a target carries from pass to pass."""

    memory: TargetMemory = field(default_factory=TargetMemory)
    tokens: Tokens = field(default_factory=Tokens)
    refused: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    blocked: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    orphan_since: float | None = None
    last: Pass | None = None


class Reconciler:
    """Decides and writes, one target at a time.

    Args:
        lease: name of the lease that allows this hub to write, as put on every slice.
        removal_grace: seconds before slices go that the registry no longer asks for.
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
    ) -> None:
        self._registry = registry
        self._fleet = fleet
        self._local = local
        self._writer = writer
        self._clock = clock
        self._lease = lease
        self._grace = removal_grace
        self._targets: dict[TargetKey, _Target] = {}

    def last(self, key: TargetKey) -> Pass | None:
        """The most recent pass over a target."""
        known = self._targets.get(key)
        return known.last if known is not None else None

    def problem(self, key: TargetKey) -> str:
        """Why the most recent write of a target did not succeed; "" where it did or there was none."""
        known = self._targets.get(key)
        return known.problem if known is not None else ""

    def forget(self, key: TargetKey) -> None:
        """A target is neither in the registry nor has it slices."""
        self._targets.pop(key, None)

    # --- deciding ---------------------------------------------------------------------------------

    def decide(self, key: TargetKey) -> Pass:
        """What should happen to a target now. Reads snapshots, writes nothing."""
        state = self._targets.setdefault(key, _Target())
        registry = self._registry()
        observed = tuple(self._local.slices.of(key).values())
        ours = tuple(each for each in observed if each.annotations.get(ANNOTATION_LEASE, self._lease) == self._lease)
        spec = registry.targets.get(key)
        service = self._local.services.get(key)
        if key in registry.broken_targets:
            result = Pass(key, status=f"frozen: {registry.broken_targets[key]}", observed=observed)
        elif service is not None and service.annotations.get(ANNOTATION_PAUSED) == "true":
            result = Pass(key, status="paused", observed=observed)
        elif spec is None:
            result = self._orphan(key, state, ours)
        else:
            state.orphan_since = None
            result = self._desire(key, spec, state, observed, ours, registry)
        state.last = result
        return result

    def _orphan(self, key: TargetKey, state: _Target, ours: tuple[Slice, ...]) -> Pass:
        """The registry no longer asks for this target: its slices go after the grace."""
        if not ours:
            return Pass(key, status="gone")
        now = self._clock.now()
        if state.orphan_since is None:
            state.orphan_since = now
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
        inputs, views, unknown = self._inputs(spec, registry)
        now = self._clock.now()
        desired = desire(spec, service, inputs, ours, state.memory, now, refused=frozenset(state.refused))
        if isinstance(desired, Refused | Waiting) or service is None:
            assert isinstance(desired, Refused | Waiting)  # noqa: S101 - a missing Service waits
            finding = Finding(desired.reason, desired.message)
            return Pass(key, status=desired.message, observed=observed, unknown=unknown, findings=(finding,))
        state.memory = desired.memory
        wakes = [desired.wake_at - now] if desired.wake_at is not None else []
        wakes += [each.wake_at - self._clock.wall() for each in views if each.wake_at is not None]
        taken = {each.name for each in observed if each not in ours} | state.foreign
        taken |= {each.name for each in desired.untouched}
        planned = plan(
            service,
            desired.groups,
            Identity(registry.owner, self._lease),
            limit=spec.endpoints_per_slice,
            taken=taken,
        )
        findings = list(desired.findings)
        if len(ours) < len(observed):
            foreign = tuple(sorted(each.name for each in observed if each not in ours))
            findings.append(Finding("OwnerConflict", "another hub writes slices with our owner", foreign))
        if state.refused:
            some = min(state.refused)
            message = f"the API server refuses {len(state.refused)} addresses, such as {some}: {state.refused[some]}"
            findings.append(Finding("InvalidAddressSkipped", message, tuple(sorted(state.refused))))
        if state.foreign:
            findings.append(Finding("ForeignSlice", "names taken by slices of others", tuple(sorted(state.foreign))))
        return Pass(
            key, planned, "", desired, ours, unknown, tuple(findings), max(0.0, min(wakes)) + 0.001 if wakes else None
        )

    def _inputs(
        self, spec: TargetSpec, registry: Registry
    ) -> tuple[tuple[SourceInput, ...], list[ViewResult], dict[str, str]]:
        inputs: list[SourceInput] = []
        views: list[ViewResult] = []
        unknown: dict[str, str] = {}
        for source in spec.sources:
            cluster = registry.clusters.get(source.cluster)
            result = self.view(source)
            view = result.view
            if cluster is None or cluster.state == "frozen":
                state = "frozen"
                unknown[source.cluster] = registry.broken_clusters.get(source.cluster, "frozen")
            else:
                state = cluster.state
                if view.unknown is not None:
                    unknown[source.cluster] = view.unknown
            views.append(result)
            inputs.append(_input(source, view, state, cluster, self._unreachable_for(source.cluster)))
        return tuple(inputs), views, unknown

    def view(self, source: SourceSpec) -> ViewResult:
        """What a source offers now."""
        unit = self._fleet.sources.get(SourceKey(source.cluster, source.provider))
        if unit is None:
            return ViewResult(SourceView(source.cluster, "not followed", {}), {})
        return unit.view(source.nodes)

    def _unreachable_for(self, cluster: str) -> float | None:
        unit = self._fleet.clusters.get(cluster)
        if unit is None or self._fleet.suspended():
            return None
        return unit.unreachable_for()

    # --- writing ----------------------------------------------------------------------------------

    async def reconcile(self, key: TargetKey) -> float | None:
        """Decide, and write what follows from it.

        Returns:
            Seconds until the next pass; None = when something changes.

        Raises:
            HubError: the hub cluster's API is away or this process may not write: to be retried.
        """
        result = self.decide(key)
        if result.plan is None or not result.plan.writes:
            self._targets[key].problem = ""
            if result.status == "gone":
                self.forget(key)
            return result.again_after
        state = self._targets[key]
        if _counts(result):
            wait = state.tokens.take(self._clock.now())
            if wait > 0:
                return wait
        outcome = await self._writer.apply(result.plan)
        return self._after(key, state, result, outcome)

    def _after(self, key: TargetKey, state: _Target, result: Pass, outcome: Outcome) -> float | None:
        if outcome.written:
            planned = result.plan or Plan()
            log.debug(
                "%s: %d created, %d updated, %d deleted",
                key,
                len(planned.creates),
                len(planned.updates),
                len(planned.deletes),
            )
        state.refused.update(outcome.refused_addresses)
        for address, message in outcome.refused_addresses.items():
            log.warning("%s: the API server refuses %s: %s; it is left out", key, address, message)
        new = outcome.foreign - state.foreign
        state.foreign |= outcome.foreign
        for name in sorted(new):
            log.warning("%s: slice %s is not ours; another name is used", key, name)
        for name, message in outcome.blocked.items():
            if state.blocked.get(name) != message:
                log.warning("%s: slice %s is refused: %s", key, name, message)
        state.blocked = dict(outcome.blocked)
        state.problem = "; ".join(f"slice {name} is refused: {why}" for name, why in sorted(outcome.blocked.items()))
        if outcome.missing_namespace:
            state.problem = f"namespace {key.namespace} does not exist or is being deleted"
            log.warning("%s: %s", key, state.problem)
            return 60.0
        if outcome.error:
            state.problem = outcome.error
            log.warning("%s: %s", key, outcome.error)
            return max(CONTENDED_FIRST, outcome.retry_after or 0.0)
        if outcome.blocked:
            return 60.0
        if outcome.again:
            return RECHECK
        return result.again_after


def _input(
    source: SourceSpec, view: SourceView, state: str, cluster: ClusterSpec | None, unreachable_for: float | None
) -> SourceInput:
    return SourceInput(
        source,
        view,
        state,  # type: ignore[arg-type]
        unreachable_for,
        None if source.cluster == LOCAL or cluster is None else cluster.allowed_ports,
        cluster.formerly if cluster is not None else (),
    )


def _counts(result: Pass) -> bool:
    """Whether a pass takes a token: not a first publication, an adoption or a mere deletion."""
    planned = result.plan or Plan()
    return bool(result.observed) and bool(planned.creates or planned.updates)
