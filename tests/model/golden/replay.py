"""Asks the code of today for the decision that a moment calls for. The only part that knows how that code is shaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from hub.decide.checks import Verdicts, Watch
from hub.decide.endpoints import EndpointSet
from hub.decide.ports import PortReading
from hub.decide.view import ViewResult
from hub.model import Endpoint, Finding, GuardDefaults, Slice, SourceView, TargetKey
from hub.observe.local.cluster import LocalCluster
from hub.observe.remote.fleet import Fleet, SourceKey
from hub.observe.remote.status import State
from hub.reconcile.adopting import Adopting
from hub.reconcile.memory import WriteMemory
from hub.reconcile.reconciler import Pass, Reconciler, _Target
from hub.registry.removals import RegistryHeld
from hub.registry.spec import ClusterSpec, NodePortRef, Registry
from tests.model.golden.moments import HeldBack, Moment, Outcome, Probed, SourceMoment


class Replay:
    """One target, from its first decision on.

    Args:
        deltas: tell each endpoint mapping from which one it was made, as the views of a running hub are.
    """

    def __init__(self, *, deltas: bool = True) -> None:
        self.moment: Moment
        self._deltas = deltas
        self._watches: Sequence[Watch] = ()
        self._asked: list[str] = []
        self._latest: dict[tuple[str, str], EndpointSet] = {}
        self._made: dict[tuple[int, ...], tuple[object, Any]] = {}
        """Ids of what a value was made from -> that, and the value: the same parts give the same object."""
        self._fleet = SimpleNamespace(sources={}, clusters={}, twins={}, suspended=False, node_port=self._node_port)
        self._reconciler: Reconciler | None = None

    def decide(self, moment: Moment) -> Outcome:
        """The outcome of the next decision."""
        self.moment = moment
        if self._reconciler is None:
            self._reconciler = self._begin(moment)
        reconciler = self._reconciler
        self._asked = []
        self._watches = ()
        fleet = self._fleet
        fleet.suspended = moment.suspended
        fleet.twins = {name: source.twins for name, source in moment.sources.items() if source.twins}
        fleet.clusters = {name: _Cluster(source, name, self._asked) for name, source in moment.sources.items()}
        fleet.sources = {
            SourceKey(spec.cluster, spec.provider): self._unit(moment.sources[spec.cluster])
            for spec in (moment.target.sources if moment.target is not None else ())
            if spec.cluster in moment.sources
        }
        reconciler.annotate(moment.key, moment.notes)
        if moment.deleted:
            gone = [("delete", Slice("", uid, "", uid=uid, labels=self._their_labels())) for uid in moment.deleted]
            reconciler._adopting.wrote(moment.target, gone)
        return self._outcome(reconciler.decide(moment.key))

    def _begin(self, moment: Moment) -> Reconciler:
        clock = SimpleNamespace(now=lambda: self.moment.now, wall=lambda: self.moment.wall)
        local = SimpleNamespace(
            slices=SimpleNamespace(of=lambda _: {slice_.name: slice_ for slice_ in self.moment.observed}),
            services=SimpleNamespace(get=lambda _: self.moment.service),
            follows=lambda _: self.moment.namespace_followed,
            client=None,
        )
        adopting = Adopting(cast("Any", None), cast("Any", clock), lambda _: None)
        adopting._stores = {("", ""): cast("Any", self)}
        reconciler = Reconciler(
            self._registry,
            cast("Fleet", self._fleet),
            cast("LocalCluster", local),
            cast("Any", None),
            cast("Any", clock),
            lease=moment.hub.lease,
            removal_grace=moment.hub.grace,
            approvals=lambda: self.moment.approvals,
            flags=moment.hub.flags,
            take_over=frozenset({moment.key}) if moment.hub.take_over else frozenset(),
            uid=lambda name: self.moment.uids.get(name, ""),
            adopting=adopting,
            board=cast("Any", _Board(self)) if moment.hub.probes else None,
        )
        removals = _Removals(self)
        reconciler._removals = reconciler._inputs._removals = cast("Any", removals)
        reconciler._targets[moment.key] = _Target(writes=cast("WriteMemory", _Writes(self)))
        return reconciler

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

    def _unit(self, source: SourceMoment) -> Any:
        view = self._known((source.view, source.kept), lambda: self._view(source))
        result = ViewResult(view, {}, source.wake_at, (), source.findings)
        guard = GuardDefaults(source.empty_results, cast("Any", source.max_removal))
        return SimpleNamespace(view=lambda _: result, guard=guard, answers=source.answers, addresses=None)

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

    def _node_port(self, cluster: str, ref: NodePortRef) -> PortReading:
        return PortReading(*self.moment.sources[cluster].node_ports[ref])

    # --- as a store of slices of another controller ----------------------------------------------------

    @property
    def lists(self) -> int:
        """How often they were listed."""
        return 0 if self.moment.theirs is None else 1

    def of(self, key: TargetKey) -> Mapping[str, Slice]:
        """Those of the target."""
        assert key == self.moment.key
        return {slice_.name: slice_ for slice_ in self.moment.theirs or ()}

    def _their_labels(self) -> dict[str, str]:
        adopt = self.moment.target.adopt if self.moment.target is not None else ""
        if adopt == "endpoint-copier":
            return {"endpoint-copier/source": "edge/other"}
        return {"endpointslice.kubernetes.io/managed-by": adopt}

    # --- the outcome ---------------------------------------------------------------------------------

    def _outcome(self, result: Pass) -> Outcome:
        planned = result.plan
        return Outcome(
            result.status,
            None if planned is None else (planned.creates, planned.updates, planned.deletes),
            0 if planned is None else planned.unchanged,
            tuple(
                HeldBack(*key, held.kind, held.hash, held.addresses, held.since, held.message)
                for key, held in sorted(result.withheld.items())
            ),
            result.findings,
            dict(result.unknown),
            None if result.again_after is None else round(result.again_after, 6),
            tuple(
                Probed(watch.cluster, watch.family, watch.check, tuple(sorted(watch.addresses)))
                for watch in self._watches
            ),
            tuple(self._asked),
        )


class _Cluster:
    """A remote cluster as the fleet shows it."""

    def __init__(self, source: SourceMoment, name: str, asked: list[str]) -> None:
        self._source = source
        self._name = name
        self._asked = asked
        self.status = SimpleNamespace(
            state=State.WRONG_CLUSTER if source.wrong_cluster else State.READY, error=source.wrong_cluster
        )

    def unreachable_for(self) -> float | None:
        return self._source.unreachable_for

    def list_again(self, _: float) -> None:
        self._asked.append(self._name)


class _Board:
    """Verdicts of health checks."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def verdicts(self) -> Verdicts:
        return self._replay.moment.verdicts

    def follow(self, _: TargetKey, watches: Sequence[Watch], __: object) -> None:
        self._replay._watches = watches

    def findings(self, _: object) -> Iterator[Finding]:
        yield from self._replay.moment.probing


class _Removals:
    """What is withheld of what the registry would remove."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def judge(self, _: Registry) -> None:
        return None

    def held(self, _: Registry, entry: str) -> RegistryHeld | None:
        return self._replay.moment.held.get(entry)


class _Writes:
    """What is remembered of earlier writes."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def expire(self, _: float) -> float | None:
        return self._replay.moment.retry_in

    @property
    def refused(self) -> frozenset[str]:
        return self._replay.moment.refused

    @property
    def foreign(self) -> frozenset[str]:
        return self._replay.moment.foreign

    def findings(self, _: float) -> Iterable[Finding]:
        return self._replay.moment.written


def replayed(moments: Iterable[Moment], *, deltas: bool = True) -> Iterator[Outcome]:
    """The outcomes of a sequence of decisions about one target."""
    replay = Replay(deltas=deltas)
    for moment in moments:
        yield replay.decide(moment)
