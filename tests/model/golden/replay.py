"""Replays moments with today's code. Only this module depends on that code's structure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from hub.decide.adopt import AdoptMemory, with_deleted
from hub.decide.checks import Watch
from hub.decide.decision import Decision, TargetState, decide
from hub.decide.endpoints import EndpointSet
from hub.decide.ports import PortReading
from hub.decide.snapshot import HubIdentity, PastWrites, SourceReading, TargetSnapshot, not_followed
from hub.decide.view import ViewResult
from hub.model import Endpoint, Finding, GuardDefaults, SourceView
from hub.registry.spec import ClusterSpec, Registry, SourceSpec
from tests.model.golden.moments import HeldBack, Moment, Outcome, Probed, SourceMoment


class Replay:
    """Replays one target, from its first decision on.

    Args:
        deltas: tell each endpoint mapping from which one it was derived, like the views of a running hub.
    """

    def __init__(self, *, deltas: bool = True) -> None:
        self.moment: Moment
        self._deltas = deltas
        self._state = TargetState()
        self._latest: dict[tuple[str, str], EndpointSet] = {}
        self._made: dict[tuple[int, ...], tuple[object, Any]] = {}
        """Ids of the parts of a value -> the parts, and the value: equal parts give the same object."""

    def decide(self, moment: Moment) -> Outcome:
        """The outcome of the next decision."""
        self.moment = moment
        if moment.deleted:
            adoption = with_deleted(self._state.adoption or AdoptMemory(), moment.deleted)
            self._state = replace(self._state, adoption=adoption)
        decision, self._state = decide(self._snapshot(moment), self._state)
        watches = decision.watches if moment.hub.probes else ()
        return outcome_of(decision, moment.probing if watches else (), watches)

    def _snapshot(self, moment: Moment) -> TargetSnapshot:
        hub = moment.hub
        take_over = frozenset({moment.key}) if hub.take_over else frozenset()
        return TargetSnapshot(
            HubIdentity(hub.lease, hub.grace, hub.flags, take_over),
            moment.key,
            moment.now,
            moment.wall,
            self._registry(),
            moment.service,
            moment.namespace_followed,
            moment.observed,
            tuple(self._reading(spec) for spec in (moment.target.sources if moment.target is not None else ())),
            PastWrites(moment.refused, moment.foreign, moment.written, moment.retry_in),
            moment.verdicts,
            moment.approvals,
            moment.held,
            moment.uids,
            moment.theirs,
            moment.notes,
        )

    def _reading(self, spec: SourceSpec) -> SourceReading:
        source = self.moment.sources.get(spec.cluster)
        if source is None:
            return SourceReading(spec, not_followed(spec.cluster))
        return SourceReading(
            spec,
            ViewResult(
                self._known((source.view, source.kept), lambda: self._view(source)),
                {},
                source.wake_at,
                (),
                source.findings,
            ),
            source.answers,
            GuardDefaults(source.empty_results, cast("Any", source.max_removal)),
            None if self.moment.suspended else source.unreachable_for,
            {ref: PortReading(*reading) for ref, reading in source.node_ports.items()},
            source.wrong_cluster,
            source.twins,
        )

    def _known(self, parts: tuple[object, ...], make: Any) -> Any:
        key = tuple(map(id, parts))
        if key not in self._made:
            self._made[key] = parts, make()
        return self._made[key][1]

    def _registry(self) -> Registry:
        moment = self.moment
        known = moment.registry

        def make() -> Registry:
            clusters = {
                name: ClusterSpec(
                    name,
                    None,
                    state=cast("Any", cluster.state),
                    allowed_ports=cluster.allowed_ports,
                    formerly=cluster.formerly,
                )
                for name, cluster in known.clusters.items()
            }
            return Registry(
                known.owner,
                clusters,
                {moment.key: moment.target} if moment.target is not None else {},
                broken_clusters=known.broken_clusters,
                broken_targets={} if known.broken is None else {moment.key: known.broken},
                frozen_names=known.frozen_names,
                notes={} if known.note is None else {moment.key: known.note},
            )

        return cast("Registry", self._known((known, moment.target), make))

    def _view(self, source: SourceMoment) -> SourceView:
        view = source.view
        return SourceView(
            **{
                **{name: getattr(view, name) for name in view.__struct_fields__},
                "kept_only": source.kept,
                "endpoints": {
                    family: self._endpoints(view.cluster, family, content) for family, content in view.endpoints.items()
                },
            }
        )

    def _endpoints(self, cluster: str, family: str, content: Mapping[str, Endpoint]) -> Mapping[str, Endpoint]:
        return cast(
            "Mapping[str, Endpoint]", self._known((content,), lambda: self._with_delta(cluster, family, content))
        )

    def _with_delta(self, cluster: str, family: str, content: Mapping[str, Endpoint]) -> Mapping[str, Endpoint]:
        if not self._deltas:
            return content
        before = self._latest.get((cluster, family))
        if before is None:
            made = EndpointSet(content)
        else:
            changed = {address for address in {*before, *content} if before.get(address) is not content.get(address)}
            made = EndpointSet(content, before, frozenset(changed))
        self._latest[cluster, family] = made
        return made


def outcome_of(decision: Decision, probing: tuple[Finding, ...], watches: Sequence[Watch]) -> Outcome:
    """A decision as plain values; the prober's findings are added where the reconciler adds them."""
    planned = decision.plan
    first = len(decision.desired.findings) if decision.desired is not None else 0
    return Outcome(
        decision.status,
        None if planned is None else (planned.creates, planned.updates, planned.deletes),
        0 if planned is None else planned.unchanged,
        tuple(
            HeldBack(*key, held.kind, held.hash, held.addresses, held.since, held.message)
            for key, held in sorted(decision.withheld.items())
        ),
        (*decision.findings[:first], *probing, *decision.findings[first:]),
        dict(decision.unknown),
        None if decision.again_after is None else round(decision.again_after, 6),
        tuple(Probed(watch.cluster, watch.family, watch.check, tuple(sorted(watch.addresses))) for watch in watches),
        decision.list_again,
    )


def replayed(moments: Iterable[Moment], *, deltas: bool = True) -> Iterator[Outcome]:
    """The outcomes of a sequence of decisions about one target."""
    replay = Replay(deltas=deltas)
    for moment in moments:
        yield replay.decide(moment)
