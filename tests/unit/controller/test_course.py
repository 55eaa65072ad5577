"""What comes next for one Service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hub.cloud.balancers import Balancer, Done, Ingress, Intent, Marker, Notice, Planned, Refused, Step, Wait
from hub.controller import record
from hub.controller.course import (
    LAG,
    WINDOW,
    Act,
    Hold,
    Memory,
    Observe,
    Perform,
    Publish,
    Release,
    Rest,
    Scene,
    ensure,
    remove,
    summaries,
)
from hub.controller.record import Kept
from hub.controller.services import FINALIZER, BalancedService, Names

NOW = 5000.0
NAMED = Names("web.edge.eu", (), Marker("c1", "uid-1"))
NOTHING = Kept(record.empty(NAMED))
FOUND = {"address": "a-1", "balancer": "b-1"}
DONE = Kept(replace(NOTHING.record, ids=FOUND, made=("address", "balancer")), "eu")
INGRESS = (Ingress(ip="203.0.113.1"),)
NEW = BalancedService("edge", "web", "uid-1", "7")
HELD = replace(NEW, finalizers=("other", FINALIZER))
READY = replace(HELD, ingress=(Ingress(ip="203.0.113.1", ip_mode="VIP"),))
ADDRESS = Step("create-address", "create the address", {"name": "web"}, creates="address")
BALANCER = Step("create-balancer", "create the balancer", {"name": "web"}, creates="balancer")
CHANGE = Step("change-balancer", "change balancer b-1", {"id": "b-1", "nodes": ["n1"]})
DELETE = Step("delete-balancer", "delete balancer b-1", {"id": "b-1"}, destroys="balancer")


def intending(*kinds: str) -> Kept:
    """A record with an intent."""
    return Kept(replace(NOTHING.record, made=kinds, intent=Intent(1.0, kinds)), "eu")


def scene(service: BalancedService = NEW, kept: Kept = NOTHING, planned: Sequence[Planned] = (), **more: Any) -> Scene:
    """A scene in which nothing is in the way, observed just now."""
    usual: dict[str, Any] = {
        "cluster": "eu",
        "cluster_name": "eu",
        "former_names": (),
        "ingress": (),
        "found": {},
        "begun": NOW,
        "creates_after": 0.0,
        "settings": (),
        "refused": None,
        "class_": "",
        "now": NOW,
        "wall": 1.8e9,
        "approved": lambda _: False,
    }
    return Scene(service=service, kept=kept, planned=planned, **usual | more)


def memory(**more: Any) -> Memory:
    """What a process remembers that has been running for a while."""
    return Memory("uid-1", 0.0, **more)


def state(act: Act) -> tuple[str, str]:
    """State and reason of a rest."""
    assert isinstance(act, Rest), act
    return act.state, act.finding.reason if act.finding is not None else ""


# --- creation --------------------------------------------------------------------------------------------


def test_a_creation_begins_with_the_finalizer_and_the_intent() -> None:
    """The record names all kinds that will be created, before the first of them is."""
    act = ensure(scene(planned=(ADDRESS, CHANGE, BALANCER)), memory())
    assert isinstance(act, Hold)
    assert act.record.intent == Intent(1.8e9, ("address", "balancer"))
    assert act.record.made == ("address", "balancer")
    assert act.adds == {"address", "balancer"}


def test_a_creation_needs_an_observation_after_the_intent() -> None:
    """An observation that began before the finalizer was written does not count (4.5)."""
    known = memory(held_at=NOW - 1, intends=frozenset(("address",)))
    before = scene(HELD, intending("address"), (ADDRESS,), begun=NOW - 2)
    assert ensure(before, known) == Observe(NOW - 1)
    assert ensure(before._replace(begun=NOW - 1), known) == Perform(ADDRESS)


def test_a_further_kind_is_added_to_the_intent() -> None:
    """What is intended already stays in the intent, and so does what was created a moment ago."""
    known = memory(held_at=NOW - 1, intends=frozenset(("address",)), uncertain={"group": NOW - 1})
    act = ensure(scene(HELD, intending("address"), (BALANCER,)), known)
    assert isinstance(act, Hold)
    assert act.record.intent is not None
    assert act.record.intent.make == ("address", "group", "balancer")
    assert act.adds == {"group", "balancer"}


def test_a_creation_without_an_answer_is_waited_for() -> None:
    """For 30 s it is not made again, and then only from an observation that began afterwards (row 36)."""
    known = memory(held_at=NOW - 60, intends=frozenset(("address",)))
    known.failed(ADDRESS, NOW - 20, uncertain=True)
    view = scene(HELD, intending("address"), (ADDRESS,))
    act = ensure(view, known)
    assert isinstance(act, Rest)
    assert (act.state, act.after) == ("waiting", 10.0)
    later = view._replace(now=NOW + 10, begun=NOW + 9)
    assert ensure(later, known) == Observe(NOW + 10)
    assert ensure(later._replace(begun=NOW + 10), known) == Perform(ADDRESS)


@pytest.mark.parametrize(
    ("service", "kept", "found"),
    [
        (HELD, intending("address"), {}),
        (HELD, DONE, {"balancer": "b-1"}),
        (HELD, NOTHING, {}),
    ],
    ids=["its intent", "its object is not listed", "held without a record"],
)
def test_a_new_process_waits_for_what_an_earlier_one_may_have_made(
    service: BalancedService, kept: Kept, found: dict[str, str]
) -> None:
    """For 30 s from its beginning nothing is created that the last process may have created."""
    young = Memory("uid-1", NOW - 5)
    act = ensure(scene(service, kept, (ADDRESS,), found=found), young)
    assert isinstance(act, Rest)
    assert (act.state, act.after) == ("waiting", LAG - 5)


def test_an_object_that_was_deleted_by_this_process_is_not_waited_for() -> None:
    """A replaced balancer is created at once."""
    young = Memory("uid-1", NOW - 5, held_at=NOW - 5, intends=frozenset(("balancer",)))
    young.performed(DELETE, Done(), NOW - 1)
    kept = Kept(replace(DONE.record, intent=Intent(1.0, ("balancer",))), "eu")
    assert ensure(scene(HELD, kept, (BALANCER,), found={"address": "a-1"}), young) == Perform(BALANCER)


def test_another_object_of_the_kind_that_was_deleted_says_nothing() -> None:
    """A list may still show the last Service's balancer: the recorded one is waited for until lists must show it."""
    young = Memory("uid-1", NOW - 5)
    young.performed(replace(DELETE, request={"path": "addresses/a-1"}, destroys="address"), Done(), NOW - 1)
    young.performed(replace(DELETE, request={"id": "b-10"}), Done(), NOW - 1)
    act = remove(scene(HELD, DONE), young)
    assert isinstance(act, Rest)
    assert (act.state, act.after) == ("waiting", LAG - 5)
    young.performed(DELETE, Done(), NOW - 1)
    assert remove(scene(HELD, DONE), young) == Release()


@pytest.mark.parametrize(
    ("kept", "known", "left"),
    [
        (intending("address", "balancer"), Memory("uid-1", NOW - 5), ("address", "balancer")),
        (intending("address", "balancer"), Memory("uid-1", NOW - 5, intends=frozenset(("address",))), ("balancer",)),
        (intending("address", "balancer"), Memory("uid-1", NOW - LAG), ()),
        (
            intending("balancer"),
            memory(intends=frozenset(("balancer",)), uncertain={"balancer": NOW + 1}),
            ("balancer",),
        ),
        (Kept(replace(DONE.record, ids={**FOUND, "balancer": "b-0"}), "eu"), Memory("uid-1", NOW - 5), ("balancer",)),
    ],
    ids=["another's", "partly another's", "visible by now", "without an answer", "not the recorded one"],
)
def test_an_intent_outlives_a_publish_until_its_objects_must_be_visible(
    kept: Kept, known: Memory, left: tuple[str, ...]
) -> None:
    """What was found may be older objects of the name, so the next process must still look for the intended ones."""
    act = ensure(scene(HELD, kept, found=FOUND, ingress=INGRESS), known)
    assert isinstance(act, Publish)
    assert (act.record.intent.make if act.record.intent else ()) == left


def test_nothing_is_created_soon_after_a_takeover() -> None:
    """``creates_after`` holds creations back, and observations that began before it do not count (2.4)."""
    known = memory(intends=frozenset(("address",)))
    view = scene(HELD, intending("address"), (ADDRESS,), creates_after=NOW + 15)
    act = ensure(view, known)
    assert isinstance(act, Rest)
    assert act.after == 15
    later = view._replace(now=NOW + 16)
    assert ensure(later, known) == Observe(NOW + 15)
    assert ensure(view._replace(planned=(CHANGE,), found=FOUND), known) == Perform(CHANGE)


def test_a_change_needs_no_intent() -> None:
    """With the finalizer there, a change is made at once; without it, the finalizer comes first."""
    assert ensure(scene(READY, DONE, (CHANGE,), found=FOUND), memory()) == Perform(CHANGE)
    act = ensure(scene(NEW, DONE, (CHANGE,), found=FOUND), memory())
    assert isinstance(act, Hold)
    assert (act.record.ids, act.record.intent) == (FOUND, None)


def test_a_step_that_was_just_made_is_not_made_again() -> None:
    """A plan that still shows the last step waits for the cloud."""
    known = memory()
    known.performed(CHANGE, Done(), NOW - 1)
    view = scene(READY, DONE, (CHANGE,), found=FOUND)
    assert state(ensure(view, known)) == ("waiting", "")
    assert state(remove(view._replace(planned=(CHANGE,)), known)) == ("waiting", "")
    assert ensure(view._replace(now=NOW + LAG), known) == Perform(CHANGE)


# --- who else has it -------------------------------------------------------------------------------------


def test_a_balancer_of_another_controller_is_left_alone() -> None:
    """An ingress without record and objects: nothing is made until an operator approves it."""
    view = scene(READY, NOTHING, (ADDRESS,))
    act = ensure(view, memory())
    assert state(act) == ("withheld", "ForeignLoadBalancer")
    assert isinstance(act, Rest)
    digest = act.message.split("cloud/eu ")[1].split()[0]
    assert isinstance(ensure(view._replace(approved=lambda asked: asked == digest), memory()), Hold)


def test_a_balancer_of_which_several_objects_vanish_is_not_made_again() -> None:
    """Lists that lack them may be wrong: an operator approves that they are made anew. A single one is made at once."""
    view = scene(READY, DONE, (ADDRESS, BALANCER))
    act = ensure(view, memory())
    assert state(act) == ("withheld", "LoadBalancerVanished")
    assert isinstance(act, Rest)
    assert act.after is not None
    assert "address a-1, balancer b-1" in act.message
    digest = act.message.split("cloud/eu ")[1].split()[0]
    for other in (
        view._replace(approved=lambda asked: asked == digest),
        view._replace(found={"address": "a-1"}, planned=(BALANCER,)),
        view._replace(service=HELD),
    ):
        assert isinstance(ensure(other, memory()), Hold)


def test_what_this_process_deleted_has_not_vanished() -> None:
    """A failed balancer that was deleted, and an address that is not needed any more, are no reason to wait."""
    known = memory()
    known.performed(DELETE, Done(), NOW - 1)
    assert isinstance(ensure(scene(READY, DONE, (ADDRESS, BALANCER)), known), Hold)


@pytest.mark.parametrize("service", [READY, HELD, replace(READY, finalizers=())])
def test_a_balancer_that_is_found_is_adopted_with_one_write(service: BalancedService) -> None:
    """What the original made needs no write to the cloud, and may be deleted with the Service."""
    act = ensure(scene(service, NOTHING, (), found=FOUND, ingress=INGRESS), memory())
    assert isinstance(act, Publish)
    assert (act.record.ids, act.record.made) == (FOUND, ("address", "balancer"))


def test_an_object_that_was_there_before_is_not_made() -> None:
    """A new Service finds an address of its name: it is used, and stays when the Service goes."""
    act = ensure(scene(NEW, NOTHING, (BALANCER,), found={"address": "a-1"}), memory())
    assert isinstance(act, Hold)
    assert act.record.made == ("balancer",)


def test_another_cluster_name_withholds_everything() -> None:
    """A record under an unknown clusterName: no step, no release; a former name goes on (4.5)."""
    view = scene(READY, DONE._replace(cluster="old"), (ADDRESS,))
    for act in (ensure(view, memory()), remove(view, memory()), remove(view._replace(planned=()), memory())):
        assert state(act) == ("withheld", "ClusterNameChanged")
    assert isinstance(ensure(view._replace(former_names=("old",), found=FOUND, planned=(CHANGE,)), memory()), Perform)


def test_a_former_cluster_name_is_replaced_in_the_record() -> None:
    """Once everything is renamed, the record has the new clusterName."""
    view = scene(READY, DONE._replace(cluster="old"), (), former_names=("old",), found=FOUND, ingress=INGRESS)
    assert isinstance(ensure(view, memory()), Publish)


def test_a_write_that_others_undo_is_not_repeated_for_ever() -> None:
    """After three times within ten minutes it rests, until time has passed or the Service wants something else."""
    known = memory(want=Balancer(NAMED.name, NAMED.marker))
    for number in range(3):
        known.performed(CHANGE, Done(), NOW - 200 + 60 * number)
    known.made = []
    view = scene(READY, DONE, (CHANGE,), found=FOUND)
    act = ensure(view, known)
    assert state(act) == ("withheld", "Contended")
    assert isinstance(act, Rest)
    assert act.after == WINDOW - 200
    assert ensure(view._replace(now=NOW + WINDOW - 200), known) == Perform(CHANGE)
    known.wants(Balancer(NAMED.name, NAMED.marker, address="203.0.113.9"))
    assert ensure(view, known) == Perform(CHANGE)


# --- mistakes and waiting --------------------------------------------------------------------------------


def test_a_mistake_stops_a_service_without_a_balancer() -> None:
    """Nothing is created, and nothing happens before the Service changes."""
    act = ensure(scene(planned=(ADDRESS,), refused=("NodePortMissing", "port 80 has no nodePort")), memory())
    assert state(act) == ("failing", "NodePortMissing")
    assert isinstance(act, Rest)
    assert act.after is None
    assert "change the Service edge/web" in act.message


def test_the_nodes_of_a_balancer_follow_in_spite_of_a_mistake() -> None:
    """A change of an existing balancer goes on; a creation does not (row 1)."""
    view = scene(READY, DONE, (CHANGE,), found=FOUND, refused=("AnnotationInvalid", "policy"))
    assert ensure(view, memory()) == Perform(CHANGE)
    assert state(ensure(view._replace(planned=(ADDRESS,)), memory())) == ("failing", "AnnotationInvalid")
    assert state(ensure(view._replace(planned=()), memory())) == ("failing", "AnnotationInvalid")


def test_a_refusal_of_the_plugin_is_the_services_state() -> None:
    """Notices aside, the first thing in a plan counts."""
    planned = (Notice("DuplicateCloudObject", "there are two"), Refused("CloudIPNotFound", "no address cip-1"))
    assert state(ensure(scene(planned=planned), memory())) == ("failing", "CloudIPNotFound")


def test_the_ingress_is_published_before_the_cloud_is_waited_for() -> None:
    """A pending certificate does not hold the ingress back (row 10)."""
    wait = Wait("CertificatePending", "the certificate is pending", 60.0)
    view = scene(HELD, DONE, (wait,), found=FOUND, ingress=INGRESS)
    assert isinstance(ensure(view, memory()), Publish)
    act = ensure(view._replace(service=READY), memory())
    assert state(act) == ("waiting", "CertificatePending")
    assert isinstance(act, Rest)
    assert act.after == 60.0


@pytest.mark.parametrize(
    "change",
    [
        {"service": replace(READY, finalizers=())},
        {"service": replace(READY, ingress=())},
        {"found": {**FOUND, "balancer": "b-2"}},
        {"settings": ("policy",)},
        {"kept": Kept(replace(DONE.record, intent=Intent(1.0, ("address",))), "eu")},
    ],
    ids=["finalizer", "ingress", "ids", "settings", "intent"],
)
def test_a_ready_balancer_is_published_only_if_something_differs(change: dict[str, Any]) -> None:
    """Finalizer, ingress and record are written together; the mode that the API server fills in is no difference."""
    view = scene(READY, DONE, (), found=FOUND, ingress=INGRESS)
    assert ensure(view, memory()) == Rest("ready")
    assert isinstance(ensure(view._replace(**change), memory()), Publish)


def test_a_balancer_without_an_address_is_not_ready() -> None:
    """It is looked at again, and the ingress that is published stays."""
    act = ensure(scene(READY, DONE, (), found=FOUND), memory())
    assert state(act) == ("waiting", "")
    assert isinstance(act, Rest)
    assert act.after == 15.0


def test_what_a_new_process_built_on_listed_objects_is_looked_at_again() -> None:
    """Objects that the last process deleted may still be listed for 30 s."""
    young = Memory("uid-1", NOW - 10)
    young.published(Publish(DONE.record, INGRESS), NOW - 5)
    view = scene(READY, DONE, (), found=FOUND, ingress=INGRESS)
    assert ensure(view, young) == Rest("ready", "", 20.0)
    for born in (NOW - 10, NOW - 19):
        young.born = born
        assert ensure(view, young) == Rest("ready", "", 20.0)  # both at the same time
    young.born = NOW - 10
    assert ensure(view._replace(now=NOW + 20), young) == Observe(NOW + 20)
    assert ensure(view._replace(now=NOW + 20, begun=NOW + 20), young) == Rest("ready")


# --- deletion --------------------------------------------------------------------------------------------


def test_a_deletion_makes_its_steps_and_then_releases() -> None:
    """The finalizer goes once an observation that began after the last step shows nothing."""
    known = memory()
    view = scene(READY, DONE, (DELETE,), found=FOUND)
    assert remove(view, known) == Perform(DELETE)
    known.performed(DELETE, Done(), NOW + 1)
    empty = view._replace(planned=(), found={}, now=NOW + 2)
    assert remove(empty, known) == Observe(NOW + 1)
    assert remove(empty._replace(begun=NOW + 1), known) == Release()


@pytest.mark.parametrize("planned", [Wait("Leaving", "it is being deleted", 5.0), Refused("Locked", "it is locked")])
def test_a_deletion_that_cannot_go_on_keeps_the_finalizer(planned: Wait | Refused) -> None:
    """A wait and a refusal both hold it, and an operator gets to know of both."""
    act = remove(scene(READY, DONE, (planned,), found=FOUND), memory())
    assert isinstance(act, Rest)
    assert act.finding is not None
    assert act.finding.reason == planned.reason


def test_an_id_of_what_was_not_made_is_not_waited_for() -> None:
    """A plugin may record more ids, such as that of the account: nothing of it can become visible."""
    young = Memory("uid-1", NOW - 5)
    young.performed(replace(DELETE, request={"path": "addresses/a-1"}, destroys="address"), Done(), NOW - 1)
    young.performed(DELETE, Done(), NOW - 1)
    kept = Kept(replace(DONE.record, ids={**DONE.record.ids, "account": "acc-1"}), "eu")
    assert remove(scene(HELD, kept), young) == Release()


@pytest.mark.parametrize(
    ("kept", "changes"),
    [
        (intending("address"), {}),
        (DONE, {}),
        (NOTHING, {}),
        (DONE, {"uncertain": {"balancer": NOW + 25}, "born": 0.0}),
    ],
    ids=["intent of another process", "recorded objects are not listed", "no record", "no answer"],
)
def test_a_finalizer_stays_while_something_may_become_visible(kept: Kept, changes: dict[str, Any]) -> None:
    """What was created seconds ago may be missing in the lists: 25 s later it would not be."""
    known = replace_memory(Memory("uid-1", NOW - 5), changes)
    act = remove(scene(HELD, kept), known)
    assert isinstance(act, Rest)
    assert (act.state, act.after) == ("waiting", 25.0)
    later = scene(HELD, kept, now=NOW + 25, begun=NOW + 25)
    assert remove(later, known) == Release()


def replace_memory(found: Memory, changes: dict[str, Any]) -> Memory:
    """A memory with other values."""
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_the_finalizer_of_another_class_s_controller_stays() -> None:
    """With a class configured, a Service without record and objects is another controller's (4.1)."""
    assert remove(scene(HELD, NOTHING, class_="hub"), memory()) == Rest("foreign")
    assert remove(scene(HELD, DONE, class_="hub"), memory()) == Release()
    assert remove(scene(HELD, NOTHING, (DELETE,), found=FOUND, class_="hub"), memory()) == Perform(DELETE)


# --- memory ----------------------------------------------------------------------------------------------


def test_steps_are_remembered_until_an_observation_must_show_them() -> None:
    """An observation that began 30 s after a step needs it no more."""
    known = memory()
    known.performed(CHANGE, Done(), NOW)
    assert [step for step, _ in known.recent(NOW + LAG - 1)] == [CHANGE]
    assert known.recent(NOW + LAG) == []


def test_a_service_that_is_created_again_inherits_the_steps_only() -> None:
    """The lists may still show what was deleted for the Service before; its intent is another's."""
    known = memory(intends=frozenset(("address",)), uncertain={"address": NOW})
    known.performed(DELETE, Done(), NOW)
    new = known.of("uid-2", NOW + 1)
    assert (new.made, new.born, new.intends, new.uncertain) == (known.made, NOW + 1, frozenset(), {})
    assert known.of("uid-1", NOW + 1) is known


def test_a_failed_step_asks_for_a_new_observation() -> None:
    """Whatever failed, the next pass looks first; only a lost answer counts as a write."""
    known = memory()
    known.failed(CHANGE, NOW, uncertain=False)
    assert (known.stale, known.written_at < 0, known.uncertain) == (NOW, True, {})
    known.failed(ADDRESS, NOW, uncertain=True)
    assert (known.written_at, known.uncertain) == (NOW, {"address": NOW + LAG})


FIRST, LAST = "write the Service's finalizer and record", "write the Service's ingress and record"
GONE = "remove the Service's finalizer, record and ingress"
MADE = (ADDRESS, BALANCER, Wait("Slow", "it is being made"))
STEPS = ("create the address", "create the balancer", "wait: it is being made")


@pytest.mark.parametrize(
    ("act", "planned", "removing", "expected"),
    [
        (Hold(NOTHING.record), MADE, False, (FIRST, *STEPS, LAST)),
        (Perform(ADDRESS), MADE, False, (*STEPS, LAST)),
        (Perform(CHANGE), (CHANGE,), False, ("change balancer b-1",)),
        (Publish(NOTHING.record, INGRESS), (MADE[2],), False, (LAST, "wait: it is being made")),
        (Rest("waiting"), MADE, False, STEPS),
        (None, (Notice("A", "x"), Refused("B", "y")), False, ()),
        (Perform(DELETE), (DELETE,), True, ("delete balancer b-1", GONE)),
        (Release(), (), True, (GONE,)),
        (Rest("waiting"), (DELETE,), True, ("delete balancer b-1",)),
    ],
)
def test_a_summary_has_steps_and_writes_in_order(
    act: Act | None, planned: Sequence[Planned], removing: bool, expected: tuple[str, ...]
) -> None:
    """The writes to the Service are shown before and after the steps between which they are made."""
    assert summaries(act, planned, removing=removing) == expected
