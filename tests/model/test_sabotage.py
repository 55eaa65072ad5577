"""Tests of the judge: hubs that break one promise each are detected by the same machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from hub.decide.addresses import Accepted
from hub.decide.claims import deactivate
from hub.decide.guard import GuardMemory, GuardVerdict
from hub.decide.guarding import effective
from hub.decide.plan import Plan, plan
from hub.decide.record import NO_RECORD
from hub.decide.view import ViewResult
from hub.model import LABEL_OWNER, Absent, ObjectKey, Slice, SourceView
from hub.observe.remote.source import Source
from hub.observe.remote.status import State
from hub.reconcile.writer import Outcome, Writer
from tests.model import world
from tests.model.loop import FOREVER
from tests.model.machine import HubMachine, check_end, check_least_work

LENGTH = 60
STEPS = 1200
"""The most steps until a sabotage must be detected."""

Patches = Mapping[str, Any]
"""Dotted name -> its replacement."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A hub that is broken on purpose.

    Attributes:
        patches: the changes that break it.
        says: a regular expression for the judge's message.
        script: a script that leads to the message, starting with three nodes in every cluster.
    """

    patches: Patches
    says: str
    script: Callable[[HubMachine], None]


def _no_guard(_target: Any, group: Any, _policy: Any, _record: Any, memory: Any, **_: Any) -> GuardVerdict:
    return GuardVerdict(group, None, NO_RECORD, memory or GuardMemory())


def _policy(**changes: Any) -> Callable[..., Any]:
    def changed(*args: Any) -> Any:
        return msgspec.structs.replace(effective(*args), **changes)

    return changed


def _knows_less(self: Source, policy: Any, _why: str) -> ViewResult:
    good = self._good.get(policy, SourceView(self.spec.name, None, {}))
    less = {family: dict(list(known.items())[1:]) for family, known in good.endpoints.items()}
    return ViewResult(msgspec.structs.replace(good, endpoints=less), {})


async def _sleep_forever(_self: Any) -> None:
    await asyncio.sleep(FOREVER)


async def _twice(self: Writer, wanted: Plan) -> Outcome:
    outcome = await _apply(self, wanted)
    for operation, value in outcome.done:
        if operation != "delete":
            local: Any = self._api
            written: Slice = local.slices.get(ObjectKey(value.namespace, value.name))
            annotations = {**written.annotations, "written": str(written.resource_version)}
            await local.update(msgspec.structs.replace(written, annotations=annotations), 5.0)
    return outcome


_apply = Writer.apply


def _nobodys(*args: Any, **more: Any) -> Plan:
    made = plan(*args, **more)
    creates = (
        msgspec.structs.replace(
            slice_, labels={name: text for name, text in slice_.labels.items() if name != LABEL_OWNER}
        )
        for slice_ in made.creates
    )
    return msgspec.structs.replace(made, creates=tuple(creates))


def _any(_self: Any, text: str) -> Accepted:
    return Accepted(text, "IPv6" if ":" in text else "IPv4")


def _leave(claim: Any, **_: Any) -> Any:
    return deactivate(claim, healthy=True, remove=True)


def _thawed(content: bytes, path: Any) -> Any:
    return _checked(content.replace(b'"frozen"', b'"active"'), path)


_checked = world._checked


def _at_once(source: Any, _view: Any, seconds: float | None, _given_up: Any) -> float | None:
    return None if seconds is None else max(seconds, source.unreachable.after)


# scripts


def _nodes_go(machine: HubMachine) -> None:
    for node in ("n0", "n1"):
        machine.a_node_goes(cluster="a", node=node)
    machine.time_goes_by(seconds=12.0)


def _cluster_becomes_empty(machine: HubMachine) -> None:
    machine.all_nodes_go(cluster="a")
    machine.time_goes_by(seconds=12.0)


def _cluster_dies(machine: HubMachine) -> None:
    machine.a_cluster_breaks(cluster="a", how="dead")
    machine.time_goes_by(seconds=40.0)


def _cluster_refuses(machine: HubMachine) -> None:
    machine.the_registry_sets_a_policy(cluster="a", policy="remove")
    machine.time_goes_by(seconds=6.0)
    machine.a_cluster_breaks(cluster="a", how="503")
    machine.time_goes_by(seconds=130.0)


def _cluster_dies_under_a_policy(machine: HubMachine) -> None:
    machine.the_registry_sets_a_policy(cluster="a", policy="remove")
    machine.time_goes_by(seconds=6.0)
    _cluster_dies(machine)


def _cloud_answers_partially(machine: HubMachine) -> None:
    machine.world.clouds["a"].addresses["n4"] = "10.1.0.5"
    machine.a_cloud_answers_so(cluster="a", mode="partial")
    machine.a_hub_crashes(wait=1.0)
    machine.time_goes_by(seconds=40.0)


def _lease_moves(machine: HubMachine) -> None:
    machine.a_replica_is_started()
    machine.the_lease_moves()
    machine.time_goes_by(seconds=40.0)
    machine.a_node_comes(cluster="a", node="n5", number=5, kind="own")
    machine.time_goes_by(seconds=12.0)


def _one_node_more(machine: HubMachine) -> None:
    check_least_work(machine.world)


def _address_outside(machine: HubMachine) -> None:
    machine.a_node_comes(cluster="a", node="n5", number=9, kind="any")
    machine.time_goes_by(seconds=12.0)


def _source_is_dropped(machine: HubMachine) -> None:
    machine.the_registry_toggles_a_source(service="one", cluster="a")
    machine.time_goes_by(seconds=12.0)


def _address_moves(machine: HubMachine) -> None:
    machine.a_node_comes(cluster="a", node="n5", number=0, kind="any")
    machine.time_goes_by(seconds=12.0)
    machine.world.clouds["b"].addresses["n5"] = machine.world.clouds["a"].addresses["n5"]
    machine.world.set_node("b", "n5")
    machine.time_goes_by(seconds=12.0)
    machine.a_node_goes(cluster="a", node="n5")
    machine.time_goes_by(seconds=12.0)


def _unready_address_moves(machine: HubMachine) -> None:
    machine.the_registry_sets_a_policy(cluster="a", policy="not-ready")
    machine.a_node_comes(cluster="a", node="n5", number=0, kind="any")
    machine.time_goes_by(seconds=12.0)
    machine.a_cluster_breaks(cluster="a", how="dead")
    machine.time_goes_by(seconds=130.0)
    machine.world.clouds["b"].addresses["n5"] = machine.world.clouds["a"].addresses["n5"]
    machine.world.set_node("b", "n5")
    machine.time_goes_by(seconds=12.0)
    machine.the_registry_sets_a_state(cluster="a", state="standby")
    machine.time_goes_by(seconds=12.0)


def _strategy_changes(machine: HubMachine) -> None:
    machine.the_registry_sets_a_strategy(service="one")
    machine.time_goes_by(seconds=12.0)
    machine.all_nodes_go(cluster="a")
    machine.time_goes_by(seconds=40.0)


def _frozen_cluster_loses_a_node(machine: HubMachine) -> None:
    machine.the_registry_sets_a_state(cluster="a", state="frozen")
    machine.time_goes_by(seconds=25.0)
    machine.a_node_goes(cluster="a", node="n0")
    machine.time_goes_by(seconds=12.0)


def _backup_is_restored(machine: HubMachine) -> None:
    machine.world.drop_node("a", "n2")
    machine.time_goes_by(seconds=12.0)
    machine.etcd_is_restored(cluster="a")
    machine.time_goes_by(seconds=130.0)
    check_end(machine.world)


SABOTAGES: Mapping[str, Sabotage] = {
    "the guard is off": Sabotage({"hub.decide.guarding.guard": _no_guard}, "became empty|fell to", _nodes_go),
    "half and more may go at once": Sabotage(
        {"hub.decide.guarding.effective": _policy(max_removal=None)}, "fell to", _nodes_go
    ),
    "one answer is enough to be empty": Sabotage(
        {"hub.decide.guarding.effective": _policy(empty_results=1, max_removal=None)},
        "became empty|fell to",
        _cluster_becomes_empty,
    ),
    "a cluster that is silent has less": Sabotage(
        {"hub.observe.remote.source.Source._unknown_view": _knows_less}, "nobody said", _cluster_dies
    ),
    "what an answer leaves out is gone": Sabotage(
        {"hub.observe.providers.memory.LEFT_OUT": Absent("left out")}, "nobody said", _cloud_answers_partially
    ),
    "a leader stays leader": Sabotage(
        {
            "hub.election.elector.Elector._hold": _sleep_forever,
            "hub.election.elector.Elector.check": lambda _self: 10.0,
        },
        "holds the Lease|after its lease was renewed",
        _lease_moves,
    ),
    "every slice is written twice": Sabotage(
        {"hub.reconcile.writer.Writer.apply": _twice}, "slices were written|times", _one_node_more
    ),
    "slices carry no owner": Sabotage(
        {"hub.decide.decision.plan": _nobodys},
        "without our labels",
        lambda machine: machine.time_goes_by(seconds=1.1),
    ),
    "any address is published": Sabotage(
        {"hub.decide.addresses.AddressPolicy.check": _any}, "no allowedCIDRs has", _address_outside
    ),
    "nobody waits for the removal grace": Sabotage(
        {"tests.model.world.GRACE": 0.0}, "after the registry did", _source_is_dropped
    ),
    "a move takes no time": Sabotage({"hub.decide.settle.SETTLE": 0.0}, "after it came elsewhere", _address_moves),
    "a switch removes first": Sabotage(
        {"hub.decide.target.deactivate": _leave}, "nobody said|became empty", _strategy_changes
    ),
    "a frozen cluster is not": Sabotage(
        {"tests.model.world._checked": _thawed}, "which is frozen", _frozen_cluster_loses_a_node
    ),
    "a refusal is no connection": Sabotage(
        {"hub.observe.remote.cluster.state_after": lambda _error: State.UNREACHABLE},
        "nobody said|no policy says so",
        _cluster_refuses,
    ),
    "unreachable takes effect at once": Sabotage(
        {"hub.decide.inputs.unreachable_seconds": _at_once},
        "nobody said|no policy says so",
        _cluster_dies_under_a_policy,
    ),
    "a restored backup goes unnoticed": Sabotage(
        {"hub.kube.reflector._older": lambda *_: False}, "lacks|still has|is there", _backup_is_restored
    ),
    "an address that moves keeps its conditions": Sabotage(
        {"hub.decide.settle._with_conditions_of": lambda endpoint, _other: endpoint},
        "unequal conditions",
        _unready_address_moves,
    ),
}


@contextmanager
def _sabotaged(patches: Patches) -> Iterator[None]:
    with ExitStack() as stack:
        for name, instead in patches.items():
            stack.enter_context(mock.patch(name, instead))
        yield


def _act(script: Callable[[HubMachine], None]) -> None:
    machine = HubMachine()
    try:
        machine.begin(seed=3, size=3)
        script(machine)
        machine.world.judge.verdict()
    finally:
        machine.world.close()


@pytest.mark.parametrize("name", SABOTAGES)
def test_judge_reports_a_scripted_sabotage(name: str) -> None:
    """A script of a few steps makes the judge report the sabotage."""
    sabotage = SABOTAGES[name]
    with _sabotaged(sabotage.patches), pytest.raises(AssertionError, match=sabotage.says):
        _act(sabotage.script)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SABOTAGES)
def test_judge_does_not_report_an_unchanged_hub(name: str) -> None:
    """The same script with an unchanged hub is not reported."""
    _act(SABOTAGES[name].script)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SABOTAGES)
def test_random_histories_detect_a_sabotaged_hub(name: str) -> None:
    """Random histories detect each sabotage soon, with the expected message."""
    sabotage = SABOTAGES[name]
    HubMachine.steps = 0
    with _sabotaged(sabotage.patches), pytest.raises(AssertionError, match=sabotage.says):
        run_state_machine_as_test(
            HubMachine,
            settings=settings(
                max_examples=STEPS // LENGTH,
                stateful_step_count=LENGTH,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(f"{name}: detected within {HubMachine.steps} steps")  # noqa: T201 - the number of steps
