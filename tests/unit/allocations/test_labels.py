"""Labels of nodes with an address, and the evictions from nodes that an address has left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hub.allocations.plan import plan
from hub.allocations.spec import LABEL_READY, Allocation, WorkloadRef, stamp
from hub.allocations.view import Evict, Label, Machine, Memories, NodeKey, Pod, Pods, View
from hub.model import LOCAL
from tests.support.address_views import A1, A2, LABELLED, NOW, allocation, at, entry, machine, planned, site, view

ON = ((LABEL_READY, "true"),)


def moved(number: int) -> tuple[Allocation, list[Machine], tuple[NodeKey, WorkloadRef]]:
    """An allocation whose address moved from ``old-N`` to ``new-N``, these nodes, and where a Pod stayed."""
    old, new, workload = f"old-{number}", f"new-{number}", WorkloadRef(f"web-{number}")
    stored = entry(f"198.18.1.{number}", new, last_node=old, moves=(stamp(NOW - 60),), since=stamp(NOW - 50))
    found = allocation(f"web-{number}", stored, workload=workload)
    return found, [machine(old), machine(new, labels=LABELLED)], (NodeKey(LOCAL, old), workload)


def stayed(count: int, **more: object) -> View:
    """So many allocations that have moved, each with a Pod on its old node."""
    scenes = [moved(number) for number in range(1, count + 1)]
    pods = {key: Pods((Pod("edge", f"{key[1].name}-a", "p", created=stamp(NOW - 900)),)) for _, _, key in scenes}
    machines = [one for _, nodes, _ in scenes for one in nodes]
    return replace(view(site(*machines), *(found for found, _, _ in scenes), pods=pods), **more)


def evicted(found: View) -> list[str]:
    """The workloads of which a Pod is evicted."""
    return [act.workload.name for act in plan(found, NOW).acts if isinstance(act, Evict)]


def relabelled(found: View, new: dict[str, str]) -> View:
    """The view of one allocation whose new node has these labels."""
    return replace(found, sites=site(machine("old-1"), machine("new-1", labels=new)))


def test_pods_are_evicted_only_after_the_new_node_has_its_label() -> None:
    """While the label of the new node is due, or its change is repeated later, an evicted Pod would find no node."""
    base = stayed(1)
    assert evicted(base) == ["web-1"]
    unlabelled = relabelled(base, {})
    assert plan(unlabelled, NOW).acts == (Label(NodeKey(LOCAL, "new-1"), ON),)
    backoff = Memories(labels={NodeKey(LOCAL, "new-1"): (3, NOW + 4)})
    assert plan(replace(unlabelled, memory=backoff), NOW).acts == ()
    assert evicted(relabelled(base, {LABEL_READY: "false"})) == []


def test_pods_that_need_the_address_label_wait_for_it() -> None:
    """Pods may ask for the address label, so it must be on the new node too."""
    base = stayed(1)
    [found] = base.allocations
    base = replace(
        base,
        allocations=(replace(found, address_label="example.com/ip"),),
        label_keys=frozenset({LABEL_READY, "example.com/ip"}),
    )
    assert evicted(base) == []
    assert evicted(relabelled(base, {**LABELLED, "example.com/ip": found.addresses[0]})) == ["web-1"]


def test_one_pod_of_a_cluster_is_evicted_at_a_time() -> None:
    """Law 14: five evictions a minute in a cluster, so one pass begins one, and none while one is under way."""
    base = stayed(8)
    assert evicted(base) == ["web-1"]
    assert evicted(replace(base, running=frozenset({str(WorkloadRef("web-5"))}))) == []
    assert evicted(replace(base, evict_after={LOCAL: NOW + 12})) == []


def test_a_workload_that_may_not_be_evicted_yet_holds_up_no_other() -> None:
    """The wait of a workload whose PodDisruptionBudget refuses an eviction is its own."""
    base = replace(stayed(2), evict_after={str(WorkloadRef("web-1")): NOW + 10})
    assert evicted(base) == ["web-2"]
    assert plan(base, NOW).wake == NOW + 10


# --- changed labels ------------------------------------------------------------------------------------


def test_a_label_that_was_taken_off_is_put_back_at_once_then_later_and_later() -> None:
    """Somebody who takes the label off again and again: the hub waits 1 s, then twice as long each time, up to 60 s."""
    found = view(site(machine("n1")), allocation("web", entry(A1, "n1")))
    now = NOW
    times: list[float] = []
    for _ in range(9):
        acts = plan(replace(at(found, now), memory=found.memory), now)
        assert acts.acts == (Label(NodeKey(LOCAL, "n1"), ON),)
        found = replace(found, memory=acts.memory)
        _, again = acts.memory.labels[NodeKey(LOCAL, "n1")]
        early = plan(at(found, again - 0.01), again - 0.01)
        assert (early.acts, early.wake) == ((), pytest.approx(again))
        times.append(again - now)
        now = again
    assert times == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_an_undisturbed_label_is_put_back_at_once_again() -> None:
    """Five minutes after the last change, the next one is the first again."""
    found = view(site(machine("n1")), allocation("web", entry(A1, "n1")))
    key = NodeKey(LOCAL, "n1")
    memory = Memories(labels={key: (9, NOW - 301)})
    assert plan(replace(found, memory=memory), NOW).memory.labels[key] == (1, NOW + 1)


# --- accounts that share a cluster -----------------------------------------------------------------------


def suspect(**more: object) -> View:
    """A node with the label, of which this account knows no address, and an inspection that shows room."""
    found = view(
        site(machine("n1", labels=LABELLED), machine("n2", labels=LABELLED)), allocation("web", entry(A1, "n2"))
    )
    return replace(found, **more)


def test_the_label_of_a_node_with_another_accounts_address_stays() -> None:
    """Two answers and an inspection prove that this account has no address there; another account's address counts."""
    off = Label(NodeKey(LOCAL, "n1"), ((LABEL_READY, None),))
    assert planned(suspect(), 3, 4).acts == (off,)
    assert planned(suspect(foreign_labels=frozenset({NodeKey(LOCAL, "n1")})), 3, 4).acts == ()


def left(**more: object) -> View:
    """An address that was taken out of its allocation, and is still on n1."""
    found = allocation("web", entry(A1, "n1"))
    found = replace(found, addresses=())
    return replace(view(site(machine("n1", labels=LABELLED)), found), **more)


def test_an_entry_that_left_does_not_wait_for_a_label_that_another_account_needs() -> None:
    """The label goes with the entry; if another account's address needs it, the entry ends and the label stays."""
    mine = plan(left(), NOW)
    assert mine.acts == (Label(NodeKey(LOCAL, "n1"), ((LABEL_READY, None),)),)
    assert [found.state for found in mine.statuses["web"].addresses] == ["Released"]
    shared = plan(left(foreign_labels=frozenset({NodeKey(LOCAL, "n1")})), NOW)
    assert shared.acts == ()
    assert shared.statuses["web"].addresses == ()


def test_an_entry_that_left_does_not_wait_for_a_label_that_another_allocation_needs() -> None:
    """The same between two allocations of one account: the union of the allocations decides."""
    first, second = replace(allocation("a", entry(A1, "n1")), addresses=()), allocation("b", entry(A2, "n1"))
    found = plan(view(site(machine("n1", labels=LABELLED)), first, second), NOW)
    assert found.acts == ()
    assert found.statuses["a"].addresses == ()
