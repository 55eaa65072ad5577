"""The judge of the model detects planners that break a law: each planted bug must be found in a few worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
from msgspec.structs import replace

from hub.allocations import budget, causes, claims, decide, labels, machine, observe, scene, serve
from hub.allocations.plan import plan
from hub.allocations.spec import LABEL_READY
from hub.allocations.view import Answer, Attach, Detach, Label, Plan, View
from hub.cloud.addresses import Changing, Free, Held, Unknown
from tests.model.allocations import judge, world
from tests.model.allocations.script import attempt, script

WORLDS: Final = 60
"""Seeds that are tried for each bug."""

Patch = pytest.MonkeyPatch


class Bug(NamedTuple):
    """A planted bug.

    Attributes:
        laws: invariants of which one must be named in the complaint.
        plant: plants it.
    """

    name: str
    laws: tuple[str, ...]
    plant: Callable[[Patch], None]


def _of_view(patch: Patch, change: Callable[[View, float], View]) -> None:
    """Let the planner see another view than the judge."""
    for module in (world, judge):
        patch.setattr(module, "plan", lambda view, now: plan(change(view, now), now))


def _of_plan(patch: Patch, change: Callable[[View, Plan], Plan]) -> None:
    """Change what the planner returns."""
    for module in (world, judge):
        patch.setattr(module, "plan", lambda view, now: change(view, plan(view, now)))


def _whatever_happens(store: Callable[..., bool]) -> Callable[..., bool]:
    """A conflict does not end the pass."""
    return lambda *arguments: store(*arguments) or True


def unknown_is_free(patch: Patch) -> None:
    """A missing answer counts as Free."""

    def change(view: View, now: float) -> View:
        return replace(
            view,
            answers={
                address: Answer(Free(), found.at) if isinstance(found.state, Unknown) else found
                for address, found in view.answers.items()
            },
        )

    _of_view(patch, change)


def old_answers_count(patch: Patch) -> None:
    """Answers are used however old they are."""
    patch.setattr(scene.Scene, "fresh", lambda self, address: self.view.answers.get(address))


def one_free_answer_is_enough(patch: Patch) -> None:
    """An address is attached after a single answer that says Free."""
    patch.setattr(decide, "TWICE", 0.0)


def one_inspection_is_enough(patch: Patch) -> None:
    """An instance is gone after a single inspection."""

    def gone(self: scene.Scene, instance: str) -> bool:
        found = self.view.inspections.get(instance)
        return causes.is_stopped(found) if found is not None else not self.look(instance, 60.0)

    patch.setattr(scene.Scene, "gone", gone)


def acts_before_records(patch: Patch) -> None:
    """An act begins in the pass that writes its record, even if the record could not be stored."""

    def early(view: View, now: float) -> Plan:
        found = plan(view, now)
        stored = tuple(replace(value, status=found.statuses[value.name]) for value in view.allocations)
        return replace(found, acts=plan(replace(view, allocations=stored), now).acts)

    patch.setattr(world, "plan", early)
    patch.setattr(world.World, "_store_all", _whatever_happens(world.World._store_all))


def follows_foreign_records(patch: Patch) -> None:
    """A record of an earlier process is followed without being signed."""

    def change(view: View, found: Plan) -> Plan:
        writers = {value.name: value.status.writer or view.identity for value in view.allocations}
        signed = {name: replace(status, writer=writers[name]) for name, status in found.statuses.items()}
        return replace(found, statuses=signed)

    _of_plan(patch, change)
    patch.setattr("hub.allocations.plan._may", lambda scene, act: True)


def no_budget(patch: Patch) -> None:
    """The budget of moves is ignored."""
    patch.setattr(serve, "budget", lambda stored, attached, limits, now: budget.Budget(100, 0.0))


def many_not_ready_move(patch: Patch) -> None:
    """Addresses leave for NotReady although most nodes are not Ready."""
    patch.setattr(serve, "_down", lambda scene, cluster: "")


def label_stays_until_detached(patch: Patch) -> None:
    """An address is detached while its node has the label."""
    patch.setattr(machine, "labelled", lambda scene, situation: False)


def strangers_lose(patch: Patch) -> None:
    """An instance that is no node of ours counts as a node that is gone."""
    held_by = decide._held_by

    def change(scene: scene.Scene, situation: Any, instance: str, place: int) -> Any:
        situation.stored = replace(situation.stored, instance=instance, node=situation.stored.node or "gone")
        return held_by(scene, situation, instance, place)

    patch.setattr(decide, "_held_by", change)


def two_addresses_on_a_node(patch: Patch) -> None:
    """A node that has an address is a candidate."""
    why_not = scene.Scene.why_not

    def change(self: scene.Scene, situation: Any, key: Any, *, tried: bool = False) -> str:
        self.occupied.clear()
        self.busy.clear()
        return why_not(self, situation, key, tried=tried)

    patch.setattr(scene.Scene, "why_not", change)
    patch.setattr(scene, "LABEL_READY", "another")


def one_candidate_for_two(patch: Patch) -> None:
    """Nodes of other records are candidates."""
    why_not = scene.Scene.why_not

    def change(self: scene.Scene, situation: Any, key: Any, *, tried: bool = False) -> str:
        self.busy.clear()
        return why_not(self, situation, key, tried=tried)

    patch.setattr(scene.Scene, "why_not", change)


def detached_without_candidate(patch: Patch) -> None:
    """A node need not be able to take an address."""
    patch.setattr(scene, "why_not_node", lambda machine, allocation, now: "")


def room_is_not_inspected(patch: Patch) -> None:
    """A candidate need not have room for an address."""
    patch.setattr(scene, "INSPECTION_VALID", 1e9)
    patch.setattr(scene, "why_not_instance", lambda state, region: "")


def no_grace(patch: Patch) -> None:
    """A node that is not Ready loses its address at once."""

    def change(view: View, now: float) -> View:
        return replace(view, allocations=tuple(replace(found, not_ready_grace=0.0) for found in view.allocations))

    _of_view(patch, change)


def serving_nodes_lose(patch: Patch) -> None:
    """A cordoned node loses its address although the workload runs there."""

    def change(view: View, now: float) -> View:
        return replace(view, pods={key: replace(found, workload=()) for key, found in view.pods.items()})

    _of_view(patch, change)


def unlisted_pods_are_gone(patch: Patch) -> None:
    """Pods that could not be listed count as gone."""
    drained = causes._drained
    patch.setattr(
        causes,
        "_drained",
        lambda allocation, memory, machine, pods, rested, now: drained(
            replace(allocation, workload=None) if pods is None else allocation, memory, machine, pods, rested, now
        ),
    )


def lost_clusters_are_known(patch: Patch) -> None:
    """The last known nodes of an unsynced cluster count as its present ones."""

    def change(view: View, now: float) -> View:
        return replace(view, sites={name: replace(site, problem="") for name, site in view.sites.items()})

    _of_view(patch, change)


def losing_claims_act(patch: Patch) -> None:
    """An allocation acts although an older one claims the address."""

    def change(view: View, now: float) -> View:
        younger = {
            address: found.uid
            for found in sorted(view.allocations, key=lambda found: found.order)
            for address in found.addresses
        }
        return replace(view, holders={**view.holders, **younger}, conflicts={})

    _of_view(patch, change)


def next_claim_begins_at_once(patch: Patch) -> None:
    """The label of a claim that has ended goes although another claim waits."""
    patch.setattr(claims, "HANDOVER", 0.0)
    patch.setattr(labels, "_left", lambda scene: set(scene.by_instance.values()))


def retained_addresses_are_released(patch: Patch) -> None:
    """An address that left its allocation is detached, whatever the policy says."""
    for module in (observe, decide):
        patch.setattr(module, "releases", lambda scene, situation: not situation.claimed)
    patch.setattr("hub.allocations.plan.releases", lambda scene, situation: not situation.claimed)


def paused_allocations_move(patch: Patch) -> None:
    """A pause is ignored."""

    def change(view: View, now: float) -> View:
        return replace(view, allocations=tuple(replace(found, paused=False) for found in view.allocations))

    _of_view(patch, change)


def new_leaders_act_at_once(patch: Patch) -> None:
    """A new leader does not wait for the acts of the one before."""
    _of_view(patch, lambda view, now: replace(view, settled=0.0))


def answers_from_before_an_act(patch: Patch) -> None:
    """What was described before the end of an act counts as its result."""

    def change(view: View, now: float) -> View:
        return replace(
            view, outcomes={address: replace(found, at=found.first) for address, found in view.outcomes.items()}
        )

    _of_view(patch, change)


def labels_go_without_proof(patch: Patch) -> None:
    """A label goes as soon as no address is known to be there."""
    patch.setattr(labels, "_proven", lambda scene, suspects, key: True)
    patch.setattr(labels, "unknown", lambda scene: set())


def labels_of_hands_stay(patch: Patch) -> None:
    """A label without an address is never removed."""
    patch.setattr(labels, "_proven", lambda scene, suspects, key: False)


def labels_are_not_put_back(patch: Patch) -> None:
    """A label that somebody removes is not put back."""

    def change(view: View, found: Plan) -> Plan:
        return replace(
            found,
            acts=tuple(
                act for act in found.acts if not (isinstance(act, Label) and (LABEL_READY, "true") in act.changes)
            ),
        )

    _of_plan(patch, change)


def nothing_is_attached(patch: Patch) -> None:
    """An address that is free stays free."""
    _of_plan(
        patch,
        lambda view, found: replace(found, acts=tuple(act for act in found.acts if not isinstance(act, Attach))),
    )


def nothing_is_detached(patch: Patch) -> None:
    """An address that should leave a node stays there."""
    _of_plan(
        patch,
        lambda view, found: replace(found, acts=tuple(act for act in found.acts if not isinstance(act, Detach))),
    )


def asks_without_end(patch: Patch) -> None:
    """The cloud is asked in each pass."""
    _of_plan(patch, lambda view, found: replace(found, questions=replace(found.questions, describe=True)))


def writes_without_end(patch: Patch) -> None:
    """Each description changes the status."""

    def change(view: View, found: Plan) -> Plan:
        at = max((answer.at for answer in view.answers.values()), default=0.0)
        return replace(
            found,
            statuses={name: replace(status, account=f"main {at}") for name, status in found.statuses.items()},
        )

    _of_plan(patch, change)


def order_matters(patch: Patch) -> None:
    """The plan depends on the order in which allocations come."""

    def change(view: View, now: float) -> View:
        first, *others = view.allocations or (None,)
        return view if first is None else replace(view, allocations=(replace(first, address_label="x"), *others))

    _of_view(patch, change)


def flapping_addresses_move(patch: Patch) -> None:
    """An address rests neither after a move nor after many of them."""
    patch.setattr(causes, "REST", 0.0)
    patch.setattr(causes, "FLAPPING_REST", 0.0)


def changing_is_free(patch: Patch) -> None:
    """An address that the cloud is changing counts as free."""

    def change(view: View, now: float) -> View:
        return replace(
            view,
            answers={
                address: Answer(Free(), found.at) if isinstance(found.state, Changing) else found
                for address, found in view.answers.items()
            },
        )

    _of_view(patch, change)


def wrong_node_is_attached(patch: Patch) -> None:
    """An address is attached to another node than its record says."""

    def change(view: View, found: Plan) -> Plan:
        instances = sorted(machine.instance or "" for site in view.sites.values() for machine in site.machines.values())
        acts = [
            replace(act, order=replace(act.order, instance=instances[-1]))
            if isinstance(act, Attach) and instances
            else act
            for act in found.acts
        ]
        return replace(found, acts=tuple(acts))

    _of_plan(patch, change)


def held_is_unclaimed(patch: Patch) -> None:
    """Addresses that nobody claims any more keep their nodes from others for ever."""

    def change(view: View, now: float) -> View:
        held = {
            name: Answer(Held(machine.instance or ""), now)
            for site in view.sites.values()
            for name, machine in site.machines.items()
        }
        return replace(view, answers={**held, **view.answers})

    _of_view(patch, change)


BUGS: Final = [
    Bug("unknown_is_free", ("A2", "A4"), unknown_is_free),
    Bug("old_answers_count", ("A2", "A4"), old_answers_count),
    Bug("one_free_answer_is_enough", ("A2",), one_free_answer_is_enough),
    Bug("one_inspection_is_enough", ("A2",), one_inspection_is_enough),
    Bug("acts_before_records", ("A4",), acts_before_records),
    Bug("follows_foreign_records", ("A4",), follows_foreign_records),
    Bug("no_budget", ("A8",), no_budget),
    Bug("many_not_ready_move", ("A2",), many_not_ready_move),
    Bug("label_stays_until_detached", ("A4",), label_stays_until_detached),
    Bug("strangers_lose", ("A2",), strangers_lose),
    Bug("two_addresses_on_a_node", ("A1",), two_addresses_on_a_node),
    Bug("one_candidate_for_two", ("A1",), one_candidate_for_two),
    Bug("detached_without_candidate", ("A2",), detached_without_candidate),
    Bug("room_is_not_inspected", ("A2",), room_is_not_inspected),
    Bug("no_grace", ("A2",), no_grace),
    Bug("serving_nodes_lose", ("A2",), serving_nodes_lose),
    Bug("unlisted_pods_are_gone", ("A2",), unlisted_pods_are_gone),
    Bug("lost_clusters_are_known", ("A2",), lost_clusters_are_known),
    Bug("losing_claims_act", ("A1", "A3", "A4"), losing_claims_act),
    Bug("next_claim_begins_at_once", ("A2", "A6"), next_claim_begins_at_once),
    Bug("retained_addresses_are_released", ("A2",), retained_addresses_are_released),
    Bug("paused_allocations_move", ("A2",), paused_allocations_move),
    Bug("new_leaders_act_at_once", ("A2",), new_leaders_act_at_once),
    Bug("answers_from_before_an_act", ("A1", "A4"), answers_from_before_an_act),
    Bug("labels_go_without_proof", ("A2", "A6"), labels_go_without_proof),
    Bug("labels_of_hands_stay", ("A6",), labels_of_hands_stay),
    Bug("labels_are_not_put_back", ("A6",), labels_are_not_put_back),
    Bug("nothing_is_attached", ("A5",), nothing_is_attached),
    Bug("nothing_is_detached", ("A5",), nothing_is_detached),
    Bug("asks_without_end", ("A5",), asks_without_end),
    Bug("writes_without_end", ("A5",), writes_without_end),
    Bug("order_matters", ("A5", "A9"), order_matters),
    Bug("flapping_addresses_move", ("A2",), flapping_addresses_move),
    Bug("changing_is_free", ("A2", "A4"), changing_is_free),
    Bug("wrong_node_is_attached", ("A1", "A4"), wrong_node_is_attached),
    Bug("held_is_unclaimed", ("A5",), held_is_unclaimed),
]


def caught(bug: Bug, patch: Patch) -> str:
    """The first complaint that names one of the laws that a planted bug breaks; "" if there is none."""
    bug.plant(patch)
    others: list[str] = []
    for seed in range(WORLDS):
        complaint = attempt(seed, script(seed))
        if complaint.startswith(bug.laws):
            return complaint
        others += [complaint[:120]] if complaint else []
    return f"only: {others}" if others else ""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_judge_detects_planted_bug(bug: Bug, monkeypatch: Patch) -> None:
    """A planner that breaks a law on purpose is found in at most 60 worlds, and the complaint names the law."""
    complaint = caught(bug, monkeypatch)
    assert complaint.startswith(bug.laws), complaint or "not detected"
