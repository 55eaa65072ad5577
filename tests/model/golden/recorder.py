"""Records what the hubs of a simulated world decide (:mod:`tests.model.machine`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from hub.decide.view import ViewBuilder, ViewResult
from hub.model import Endpoint, Finding, SourceView, TargetKey
from hub.observe.health.board import Board
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.fleet import SourceKey, node_ports
from hub.observe.remote.status import State
from hub.reconcile.reconciler import Pass, Reconciler
from hub.registry.removals import RegistryHeld, Removals
from hub.registry.spec import Registry, TargetSpec
from tests.model.golden.moments import (
    ClusterMoment,
    HeldBack,
    HubMoment,
    Moment,
    Outcome,
    Probed,
    RegistryMoment,
    SourceMoment,
    Step,
)
from tests.model.machine import HubMachine


class Recorder:
    """Notes the inputs and the outcome of each decision, by process and target."""

    def __init__(self) -> None:
        self.sequences: list[list[Step]] = []
        self._current: dict[tuple[int, TargetKey], list[Step]] = {}
        self._hubs: list[Reconciler] = []
        """Those that were seen, so that their ids stay theirs."""
        self._kept: dict[int, tuple[Mapping[str, Any], frozenset[str]]] = {}
        """Id of a view's endpoints -> them, and the addresses whose node is not Ready."""
        self._held: dict[str, RegistryHeld] = {}
        self._probing: tuple[Finding, ...] = ()
        self._asked: list[str] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs."""
        decide, forget, build = Reconciler.decide, Reconciler.forget, ViewBuilder.build
        held, findings, list_again = Removals.held, Board.findings, RemoteCluster.list_again
        recorder = self

        def recorded(self: Reconciler, key: TargetKey) -> Pass:
            moment = recorder._moment(self, key)
            recorder._held, recorder._probing, recorder._asked = {}, (), []
            result = decide(self, key)
            recorder._note(self, moment, result)
            return result

        def forgotten(self: Reconciler, key: TargetKey) -> None:
            recorder._current.pop((id(self), key), None)
            forget(self, key)

        def built(self: ViewBuilder, *args: Any) -> ViewResult:
            result = build(self, *args)
            recorder._note_view(self, result.view)
            return result

        def judged(self: Removals, registry: Registry, entry: str) -> RegistryHeld | None:
            found = held(self, registry, entry)
            if found is not None:
                recorder._held[entry] = found
            return found

        def probed(self: Board, watches: Any) -> Iterator[Finding]:
            recorder._probing = tuple(findings(self, watches))
            return iter(recorder._probing)

        def asked(self: RemoteCluster, seconds: float) -> None:
            recorder._asked.append(self.spec.name)
            list_again(self, seconds)

        with (
            mock.patch.object(Reconciler, "decide", recorded),
            mock.patch.object(Reconciler, "forget", forgotten),
            mock.patch.object(ViewBuilder, "build", built),
            mock.patch.object(Removals, "held", judged),
            mock.patch.object(Board, "findings", probed),
            mock.patch.object(RemoteCluster, "list_again", asked),
        ):
            yield

    def _note_view(self, builder: ViewBuilder, view: SourceView) -> None:
        kept = frozenset(address for address, names in builder._claims.items() if builder._judged[names[0]].not_ready)
        self._kept[id(view.endpoints)] = view.endpoints, kept

    def _moment(self, hub: Reconciler, key: TargetKey) -> Moment:
        registry = hub._registry()
        target = registry.targets.get(key)
        state = hub._targets.get(key)
        writes = state.writes if state is not None else None
        now = hub._clock.now()
        retry_in = writes.expire(now) if writes is not None else None
        return Moment(
            HubMoment(hub._lease, hub._grace, hub._guarding._flags, key in hub._take_over),
            key,
            now,
            hub._clock.wall(),
            RegistryMoment(
                registry.owner,
                {
                    name: ClusterMoment(cluster.state, cluster.allowed_ports, cluster.formerly)
                    for name, cluster in registry.clusters.items()
                },
                dict(registry.broken_clusters),
                registry.frozen_names,
                registry.broken_targets.get(key),
                registry.notes.get(key),
            ),
            target,
            hub._local.services.get(key),
            hub._local.follows(key.namespace),
            tuple(hub._local.slices.of(key).values()),
            self._sources(hub, target),
            hub._inputs._fleet.suspended,
            writes.refused if writes is not None else frozenset(),
            writes.foreign if writes is not None else frozenset(),
            tuple(writes.findings(now)) if writes is not None else (),
            retry_in,
            hub._checking.verdicts(),
            approvals=frozenset(hub._guarding._approvals()),
            uids={name: uid for name in registry.clusters if (uid := hub._uid(name))},
            notes=hub._notes.get(key, ()),
        )

    def _sources(self, hub: Reconciler, target: TargetSpec | None) -> dict[str, SourceMoment]:
        found = {}
        fleet = hub._inputs._fleet
        for spec in target.sources if target is not None else ():
            unit = fleet.sources.get(SourceKey(spec.cluster, spec.provider))
            if unit is None:
                continue
            result = unit.view(spec.nodes)
            view, name = result.view, spec.cluster
            cluster = fleet.clusters.get(name)
            wrong = cluster is not None and cluster.status.state is State.WRONG_CLUSTER
            assert target is not None
            found[name] = SourceMoment(
                _plain(view),
                self._kept.get(id(view.endpoints), ({}, frozenset()))[1],
                result.findings,
                result.wake_at,
                unit.answers,
                unit.guard.empty_results,
                unit.guard.max_removal,
                cluster.unreachable_for() if cluster is not None else None,
                cluster.status.error if wrong and cluster is not None else "",
                fleet.twins.get(name, ()),
                {ref: tuple(fleet.node_port(name, ref)) for ref in node_ports(target, spec)},
            )
        return found

    def _note(self, hub: Reconciler, moment: Moment, result: Pass) -> None:
        place = id(hub), moment.key
        if place not in self._current:
            self._hubs.append(hub)
            self._current[place] = []
            self.sequences.append(self._current[place])
        moment = _with(moment, held=self._held, probing=self._probing)
        planned = result.plan
        outcome = Outcome(
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
                for watch in (result.desired.watches if result.desired is not None else ())
            ),
            tuple(self._asked),
        )
        self._current[place].append(Step(moment, outcome))


def _plain(view: SourceView) -> SourceView:
    """A view that the golden file can hold: mappings of the hub's own kinds become dicts."""
    endpoints: dict[str, dict[str, Endpoint]] = {family: dict(found) for family, found in view.endpoints.items()}
    return _with(view, endpoints=endpoints, hostnames=dict(view.hostnames), port_sets=dict(view.port_sets))


def _with(value: Any, **changes: Any) -> Any:
    return type(value)(**{name: getattr(value, name) for name in value.__struct_fields__} | changes)


def world_sequences(histories: int, length: int) -> list[list[Step]]:
    """What the hubs of simulated worlds decide; the same in every run.

    Args:
        histories: how many worlds.
        length: steps of each.
    """
    recorder = Recorder()
    with recorder.recording():
        run_state_machine_as_test(
            HubMachine,
            settings=settings(
                max_examples=histories,
                stateful_step_count=length,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return recorder.sequences
