"""Records the decisions of the hubs in a simulated world (:mod:`tests.model.machine`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from hub.decide.decision import Decision, TargetState, decide
from hub.decide.snapshot import SourceReading, TargetSnapshot
from hub.decide.view import ViewBuilder, ViewResult
from hub.model import Endpoint, Finding, SourceView, TargetKey
from hub.reconcile.reconciler import Reconciler
from tests.model.golden.moments import ClusterMoment, HubMoment, Moment, RegistryMoment, SourceMoment, Step
from tests.model.golden.replay import outcome_of
from tests.model.machine import HubMachine

PROBING = ("ProberSuspected", "ProbeCertificates")
"""The findings that :meth:`hub.observe.health.board.Board.findings` returns."""


class Recorder:
    """Records the inputs and the outcome of each decision, by process and target."""

    def __init__(self) -> None:
        self.sequences: list[list[Step]] = []
        self._current: dict[tuple[int, TargetKey], list[Step]] = {}
        self._hubs: list[Reconciler] = []
        """All reconcilers seen so far, kept so that their ids are not reused."""
        self._kept: dict[int, tuple[Mapping[str, Any], frozenset[str]]] = {}
        """Id of a view's endpoints -> the endpoints, and the addresses whose node is not Ready."""
        self._snapshot: TargetSnapshot | None = None
        """The snapshot of the last decision."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs."""
        pass_, forget, build = Reconciler.decide, Reconciler.forget, ViewBuilder.build
        recorder = self

        def recorded(self: Reconciler, key: TargetKey) -> Decision:
            result = pass_(self, key)
            recorder._note(self, result)
            return result

        def decided(snapshot: TargetSnapshot, state: TargetState) -> tuple[Decision, TargetState]:
            recorder._snapshot = snapshot
            return decide(snapshot, state)

        def forgotten(self: Reconciler, key: TargetKey) -> None:
            recorder._current.pop((id(self), key), None)
            forget(self, key)

        def built(self: ViewBuilder, *args: Any) -> ViewResult:
            result = build(self, *args)
            recorder._note_view(self, result.view)
            return result

        with (
            mock.patch.object(Reconciler, "decide", recorded),
            mock.patch.object(Reconciler, "forget", forgotten),
            mock.patch.object(ViewBuilder, "build", built),
            mock.patch("hub.reconcile.reconciler.decide", decided),
        ):
            yield

    def _note_view(self, builder: ViewBuilder, view: SourceView) -> None:
        kept = frozenset(address for address, names in builder._claims.items() if builder._judged[names[0]].not_ready)
        self._kept[id(view.endpoints)] = view.endpoints, kept

    def _moment(self, snapshot: TargetSnapshot, probing: tuple[Finding, ...]) -> Moment:
        registry, hub = snapshot.registry, snapshot.hub
        return Moment(
            HubMoment(hub.lease, hub.removal_grace, hub.flags, snapshot.key in hub.take_over),
            snapshot.key,
            snapshot.now,
            snapshot.wall,
            RegistryMoment(
                registry.owner,
                {
                    name: ClusterMoment(cluster.state, cluster.allowed_ports, cluster.formerly)
                    for name, cluster in registry.clusters.items()
                },
                dict(registry.broken_clusters),
                registry.frozen_names,
                registry.broken_targets.get(snapshot.key),
                registry.notes.get(snapshot.key),
            ),
            snapshot.target,
            snapshot.service,
            snapshot.namespace_watched,
            snapshot.observed,
            {reading.spec.cluster: self._source(reading) for reading in snapshot.sources},
            refused=snapshot.writes.refused,
            foreign=snapshot.writes.foreign,
            written=snapshot.writes.findings,
            retry_in=snapshot.writes.retry_in,
            verdicts=snapshot.verdicts,
            probing=probing,
            approvals=frozenset(snapshot.approvals),
            held=snapshot.held,
            uids=snapshot.uids,
            theirs=snapshot.theirs,
            notes=snapshot.notes,
        )

    def _source(self, reading: SourceReading) -> SourceMoment:
        result = reading.result
        return SourceMoment(
            _plain(result.view),
            self._kept.get(id(result.view.endpoints), ({}, frozenset()))[1],
            result.findings,
            result.wake_at,
            reading.answers,
            reading.guard.empty_results,
            reading.guard.max_removal,
            reading.unreachable_for,
            reading.wrong_cluster,
            reading.twins,
            {ref: tuple(port) for ref, port in reading.node_ports.items()},
        )

    def _note(self, hub: Reconciler, result: Decision) -> None:
        place = id(hub), result.target
        if place not in self._current:
            self._hubs.append(hub)
            self._current[place] = []
            self.sequences.append(self._current[place])
        assert self._snapshot is not None
        probing = tuple(finding for finding in result.findings if finding.reason in PROBING)
        outcome = outcome_of(result, (), result.watches)  # the decision already has the prober's findings
        self._current[place].append(Step(self._moment(self._snapshot, probing), outcome))


def _plain(view: SourceView) -> SourceView:
    """A view that the golden file can hold: the hub's own mapping types become dicts."""
    endpoints: dict[str, dict[str, Endpoint]] = {family: dict(found) for family, found in view.endpoints.items()}
    return _with(view, endpoints=endpoints, hostnames=dict(view.hostnames), port_sets=dict(view.port_sets))


def _with(value: Any, **changes: Any) -> Any:
    return type(value)(**{name: getattr(value, name) for name in value.__struct_fields__} | changes)


def world_sequences(histories: int, length: int) -> list[list[Step]]:
    """The decisions of the hubs in simulated worlds; the same in every run.

    Args:
        histories: number of worlds.
        length: steps of each world.
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
