"""What the model test has found: the shrunk scripts, by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.machine import HubMachine


@pytest.fixture
def machine() -> Iterator[HubMachine]:
    """A world to act on; at the end everything heals and is checked."""
    made = HubMachine()
    yield made
    made.teardown()


def test_last_node_of_a_polled_cluster_is_removed(machine: HubMachine) -> None:
    """A cluster scaled to nothing becomes empty: without a node no provider is polled, and the lists must count."""
    machine.begin(seed=0, size=1)
    machine.all_nodes_go(cluster="b")
    machine.time_goes_by(seconds=340.0)  # three answers, and the hold of maxRemoval
    assert machine.it.judge.published(("one", "b", "IPv4")) == set()


def test_allowed_emptying_survives_a_lost_write(machine: HubMachine) -> None:
    """Where the first of them is lost, the second leaves less than half: for a moment, of what may go altogether.

    A clock that was an hour behind ends the hold of maxRemoval at a restart; the answers still have to be enough.
    """
    machine.begin(seed=0, size=4)  # two slices
    machine.the_wall_clock_is_set(hours=-1.0)
    machine.all_nodes_go(cluster="a")
    machine.time_goes_by(seconds=12.0)
    machine.a_hub_is_restarted()
    machine.the_wall_clock_is_set(hours=0.0)
    machine.a_write_is_dropped(count=3, verb="delete")
    machine.time_goes_by(seconds=75.0)
    assert machine.it.judge.published(("one", "a", "IPv4")) == set()


def test_a_restored_backup_is_noticed(machine: HubMachine) -> None:
    """A server whose resourceVersions went back says so in its next bookmark, and is listed anew."""
    machine.begin(seed=0, size=3)
    machine.it.drop_node("a", "n2")
    machine.time_goes_by(seconds=12.0)
    machine.it.turn_back("a")
    machine.time_goes_by(seconds=200.0)
    assert "n2" in machine.it.nodes("a")


def test_judge_reports_an_unjustified_removal(machine: HubMachine) -> None:
    """The judge can fail: a write of a good slice's end, as if by a hub, is wrong."""
    machine.begin(seed=0, size=2)
    judge, hub = machine.it.judge, machine.it.hub
    name = min(judge.slices).rpartition("/")[2]
    hub.slices.delete(name, namespace="edge")
    assert any("nobody said that they are gone" in each for each in judge.violations)
    judge.violations.clear()


def test_a_seed_is_a_history() -> None:
    """The same seed and steps give the same writes at the same times."""
    histories = []
    for _ in range(2):
        machine = HubMachine()
        machine.begin(seed=7, size=3)
        machine.a_cluster_breaks(cluster="a", how="dead")
        machine.a_hub_crashes_at_a_write(write=2)
        machine.all_nodes_go(cluster="b")
        machine.time_goes_by(seconds=75.0)
        histories.append(list(machine.it.judge.history))
        machine.teardown()
    assert histories[0] == histories[1]


def test_a_switch_leaves_nothing_before_the_new_source_is_published(machine: HubMachine) -> None:
    """The active source of a failover Service loses all nodes: never a moment without endpoints until it switches."""
    machine.begin(seed=3, size=3)
    machine.the_registry_sets_a_strategy(service="one")
    machine.time_goes_by(seconds=12.0)
    machine.all_nodes_go(cluster="a")
    machine.time_goes_by(seconds=12.0)
    assert machine.it.judge.published(("one", "b", "IPv4")) != set()
    machine.time_goes_by(seconds=12.0)
    assert machine.it.judge.published(("one", "a", "IPv4")) == set()


THREE = ("three", "c", "IPv4")


def three_nodes_go(machine: HubMachine) -> None:
    """Of four, more than may go at once."""
    for number in (1, 2, 3):
        machine.a_node_goes(cluster="c", node=f"n{number}")
    machine.time_goes_by(seconds=30.0)


def hand_over(machine: HubMachine) -> None:
    """Whoever stands by writes from now on; the one before does not end."""
    before = machine.it.writer()
    machine.it.cut_off_lease()
    machine.time_goes_by(seconds=5.0)
    assert machine.it.writer() not in (None, before)


def test_new_term_guards_what_another_leader_published(machine: HubMachine) -> None:
    """What it remembers is of long ago: what came since is no drift that may go without being counted."""
    machine.begin(seed=0, size=4)
    machine.a_replica_is_started()
    machine.time_goes_by(seconds=12.0)
    hand_over(machine)
    for number in range(4):  # all nodes have other addresses, one after the other
        machine.a_node_comes(cluster="c", node=f"n{number}", number=6 + number, kind="own")
        machine.time_goes_by(seconds=30.0)
    machine.it.advance(700.0)  # longer than maxRemovalWindow
    before = machine.it.judge.published(THREE)
    assert len(before) == 4
    machine.it.crash("hub-2")
    three_nodes_go(machine)
    assert machine.it.writer() is machine.it.processes["hub-1"]
    assert machine.it.judge.published(THREE) == before


def test_new_term_starts_a_new_hold(machine: HubMachine) -> None:
    """A hold of before does not count for a loss of now, though it be of the same endpoints."""
    machine.begin(seed=0, size=4)
    machine.a_replica_is_started()
    machine.time_goes_by(seconds=12.0)
    three_nodes_go(machine)
    hand_over(machine)
    for number in (1, 2, 3):
        machine.it.set_node("c", f"n{number}")
    machine.it.advance(700.0)
    before = machine.it.judge.published(THREE)
    assert len(before) == 4
    machine.it.crash("hub-2")
    three_nodes_go(machine)
    assert machine.it.judge.published(THREE) == before


def test_new_term_adopts_the_published_endpoints(machine: HubMachine) -> None:
    """Of a source that says nothing: addresses of long ago do not come back."""
    machine.begin(seed=0, size=4)
    it = machine.it
    machine.a_cluster_breaks(cluster="c", how="503")
    it.crash("hub-1")
    it.start()
    machine.time_goes_by(seconds=45.0)  # it adopts what the first one published
    it.start()
    machine.time_goes_by(seconds=12.0)
    hand_over(machine)
    it.heal_cluster("c")
    machine.time_goes_by(seconds=90.0)
    for number in range(4):
        it.clouds["c"].addresses[f"n{number}"] = f"10.3.0.{7 + number}"
        it.set_node("c", f"n{number}")
        machine.time_goes_by(seconds=30.0)
    it.advance(700.0)
    before = it.judge.published(THREE)
    assert len(before) == 4
    machine.a_cluster_breaks(cluster="c", how="503")
    it.advance(100.0)
    it.crash("hub-3")
    it.advance(60.0)
    assert it.judge.published(THREE) == before


def test_new_leader_continues_withholding(machine: HubMachine) -> None:
    """A mass removal that the one before withheld is none any more by its share, since its file added endpoints."""
    machine.begin(seed=0, size=2)
    it = machine.it
    it.sources = {"one": ["a"], "two": ["b"], "copy": ["local"]}
    it.write_registry()
    it.advance(60.0)
    for number in range(16):
        it.clouds["c"].addresses[f"m{number}"] = f"10.3.1.{number + 1}"
        it.set_node("c", f"m{number}")
    machine.a_replica_is_started()
    machine.time_goes_by(seconds=12.0)
    lost = [("one", "a", "IPv4"), ("two", "b", "IPv4")]
    before = [it.judge.published(each) for each in lost]
    assert all(before)
    it.sources = {"three": ["c"], "copy": ["local"]}
    it.write_registry()
    it.advance(120.0)
    it.crash("hub-1")
    it.advance(90.0)
    assert it.writer() is it.processes["hub-2"]
    assert [it.judge.published(each) for each in lost] == before


def test_reacquired_lease_continues_the_hold(machine: HubMachine) -> None:
    """What it knows is of now: a hold that has begun is not begun anew."""
    machine.begin(seed=0, size=4)
    three_nodes_go(machine)
    writer = machine.it.writer()
    assert writer is not None
    assert writer.hub is not None
    before = dict(writer.hub.reconciler._targets)
    machine.it.cut_off_lease()
    machine.time_goes_by(seconds=12.0)
    assert machine.it.writer() is writer
    assert writer.hub.elector.continued
    after = writer.hub.reconciler._targets
    assert after.keys() == before.keys()
    assert all(after[key] is known for key, known in before.items())
    machine.time_goes_by(seconds=640.0)
    assert len(machine.it.judge.published(THREE)) == 1


def test_a_policy_takes_effect_between_two_looks_of_the_judge(machine: HubMachine) -> None:
    """A cluster that hangs is given up to the second: what was not yet so when the world last moved may be by then."""
    machine.begin(seed=57, size=4)
    machine.a_hub_is_restarted()
    machine.a_hub_is_restarted()
    machine.etcd_is_restored(cluster="a")
    machine.the_registry_sets_a_strategy(service="one")
    machine.a_cluster_breaks(cluster="a", how="hang")
    machine.the_registry_sets_a_policy(cluster="a", policy="remove")
    machine.a_while_goes_by(seconds=6.0)
    machine.a_while_goes_by(seconds=40.0)
    machine.the_hub_cluster_heals()
    machine.a_while_goes_by(seconds=25.0)


def test_a_cloud_moves_an_address_while_its_cluster_hangs(machine: HubMachine) -> None:
    """The provider's answer is a statement of its own: the old address goes although no Node was heard of meanwhile."""
    machine.begin(seed=123, size=3)
    machine.a_cloud_forgets(cluster="a", node="n0")
    machine.a_cluster_breaks(cluster="a", how="hang")
    machine.a_node_comes(cluster="a", kind="own", node="n0", number=8)
    machine.a_node_comes(cluster="a", kind="any", node="n1", number=3)
    machine.a_while_goes_by(seconds=3.0)
    machine.it.judge.verdict()


def test_standby_is_removed_although_its_cluster_was_dropped_since(machine: HubMachine) -> None:
    """A hub that has read `standby`, and not yet that the cluster is dropped, removes its endpoints without a grace."""
    machine.begin(seed=0, size=1)
    machine.a_hub_is_restarted()
    machine.a_replica_is_started()
    machine.the_registry_sets_a_state(cluster="b", state="standby")
    machine.a_hub_is_restarted()
    machine.the_registry_toggles_a_cluster(cluster="b")
    machine.a_while_goes_by(seconds=1.1)
    assert machine.it.judge.published(("two", "b", "IPv4")) == set()
