"""Bugs that the model test found, as named scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.machine import HubMachine


@pytest.fixture
def machine() -> Iterator[HubMachine]:
    """A world to act on. At the end everything is healed and checked."""
    made = HubMachine()
    yield made
    made.teardown()


def test_last_node_of_a_polled_cluster_is_removed(machine: HubMachine) -> None:
    """A polled cluster that is scaled to nothing becomes empty: no provider is polled without nodes, so lists count."""
    machine.begin(seed=0, size=1)
    machine.all_nodes_go(cluster="b")
    machine.time_goes_by(seconds=340.0)  # three answers, and the hold of maxRemoval
    assert machine.world.judge.published(("one", "b", "IPv4")) == set()


def test_allowed_emptying_survives_a_lost_write(machine: HubMachine) -> None:
    """An allowed removal in two writes completes after its first write was lost, though less than half then stays.

    A clock that was an hour behind ends the hold of maxRemoval at a restart; the empty answers must still be enough.
    """
    machine.begin(seed=0, size=4)  # two slices
    machine.the_wall_clock_is_set(hours=-1.0)
    machine.all_nodes_go(cluster="a")
    machine.time_goes_by(seconds=12.0)
    machine.a_hub_is_restarted()
    machine.the_wall_clock_is_set(hours=0.0)
    machine.a_write_is_dropped(count=3, verb="delete")
    machine.time_goes_by(seconds=75.0)
    assert machine.world.judge.published(("one", "a", "IPv4")) == set()


def test_a_restored_backup_is_noticed(machine: HubMachine) -> None:
    """A server whose resourceVersions went back is noticed by its next bookmark, and listed again."""
    machine.begin(seed=0, size=3)
    machine.world.drop_node("a", "n2")
    machine.time_goes_by(seconds=12.0)
    machine.world.turn_back("a")
    machine.time_goes_by(seconds=200.0)
    assert "n2" in machine.world.nodes("a")


def test_judge_reports_an_unjustified_removal(machine: HubMachine) -> None:
    """If an endpoint is removed from a good slice as if by a hub, the judge reports it."""
    machine.begin(seed=0, size=2)
    judge, hub = machine.world.judge, machine.world.hub
    name = min(judge.slices).rpartition("/")[2]
    hub.slices.delete(name, namespace="edge")
    assert any("nobody said that they are gone" in violation for violation in judge.violations)
    judge.violations.clear()


def test_same_seed_gives_the_same_history() -> None:
    """The same seed and steps give the same writes at the same times."""
    histories = []
    for _ in range(2):
        machine = HubMachine()
        machine.begin(seed=7, size=3)
        machine.a_cluster_breaks(cluster="a", how="dead")
        machine.a_hub_crashes_at_a_write(write=2)
        machine.all_nodes_go(cluster="b")
        machine.time_goes_by(seconds=75.0)
        histories.append(list(machine.world.judge.history))
        machine.teardown()
    assert histories[0] == histories[1]


def test_a_switch_leaves_nothing_before_the_new_source_is_published(machine: HubMachine) -> None:
    """If the active source of a failover Service loses all nodes, its endpoints stay until the next is published."""
    machine.begin(seed=3, size=3)
    machine.the_registry_sets_a_strategy(service="one")
    machine.time_goes_by(seconds=12.0)
    machine.all_nodes_go(cluster="a")
    machine.time_goes_by(seconds=12.0)
    assert machine.world.judge.published(("one", "b", "IPv4")) != set()
    machine.time_goes_by(seconds=12.0)
    assert machine.world.judge.published(("one", "a", "IPv4")) == set()


THREE = ("three", "c", "IPv4")


def three_nodes_go(machine: HubMachine) -> None:
    """Delete three of four nodes, more than may be removed at once."""
    for number in (1, 2, 3):
        machine.a_node_goes(cluster="c", node=f"n{number}")
    machine.time_goes_by(seconds=30.0)


def hand_over(machine: HubMachine) -> None:
    """Let the standby become the leader; the previous leader keeps running."""
    before = machine.world.writer()
    machine.world.cut_off_lease()
    machine.time_goes_by(seconds=5.0)
    assert machine.world.writer() not in (None, before)


def test_new_term_guards_what_another_leader_published(machine: HubMachine) -> None:
    """In a new term, the guard counts the endpoints that another leader published, not only those it remembers."""
    machine.begin(seed=0, size=4)
    machine.a_replica_is_started()
    machine.time_goes_by(seconds=12.0)
    hand_over(machine)
    for number in range(4):  # all nodes get other addresses, one after the other
        machine.a_node_comes(cluster="c", node=f"n{number}", number=6 + number, kind="own")
        machine.time_goes_by(seconds=30.0)
    machine.world.advance(700.0)  # longer than maxRemovalWindow
    before = machine.world.judge.published(THREE)
    assert len(before) == 4
    machine.world.crash("hub-2")
    three_nodes_go(machine)
    assert machine.world.writer() is machine.world.processes["hub-1"]
    assert machine.world.judge.published(THREE) == before


def test_new_term_starts_a_new_hold(machine: HubMachine) -> None:
    """A hold from an earlier term does not count for a new loss, even of the same endpoints."""
    machine.begin(seed=0, size=4)
    machine.a_replica_is_started()
    machine.time_goes_by(seconds=12.0)
    three_nodes_go(machine)
    hand_over(machine)
    for number in (1, 2, 3):
        machine.world.set_node("c", f"n{number}")
    machine.world.advance(700.0)
    before = machine.world.judge.published(THREE)
    assert len(before) == 4
    machine.world.crash("hub-2")
    three_nodes_go(machine)
    assert machine.world.judge.published(THREE) == before


def test_new_term_adopts_the_published_endpoints(machine: HubMachine) -> None:
    """A new leader adopts published endpoints of an unknown source; addresses from its earlier term do not return."""
    machine.begin(seed=0, size=4)
    world = machine.world
    machine.a_cluster_breaks(cluster="c", how="503")
    world.crash("hub-1")
    world.start()
    machine.time_goes_by(seconds=45.0)  # it adopts what the first leader published
    world.start()
    machine.time_goes_by(seconds=12.0)
    hand_over(machine)
    world.heal_cluster("c")
    machine.time_goes_by(seconds=90.0)
    for number in range(4):
        world.clouds["c"].addresses[f"n{number}"] = f"10.3.0.{7 + number}"
        world.set_node("c", f"n{number}")
        machine.time_goes_by(seconds=30.0)
    world.advance(700.0)
    before = world.judge.published(THREE)
    assert len(before) == 4
    machine.a_cluster_breaks(cluster="c", how="503")
    world.advance(100.0)
    world.crash("hub-3")
    world.advance(60.0)
    assert world.judge.published(THREE) == before


def test_new_leader_continues_withholding(machine: HubMachine) -> None:
    """A new leader continues to withhold a mass removal, even if its file adds endpoints that shrink the share."""
    machine.begin(seed=0, size=2)
    world = machine.world
    world.sources = {"one": ["a"], "two": ["b"], "copy": ["local"]}
    world.write_registry()
    world.advance(60.0)
    for number in range(16):
        world.clouds["c"].addresses[f"m{number}"] = f"10.3.1.{number + 1}"
        world.set_node("c", f"m{number}")
    machine.a_replica_is_started()
    machine.time_goes_by(seconds=12.0)
    lost = [("one", "a", "IPv4"), ("two", "b", "IPv4")]
    before = [world.judge.published(group) for group in lost]
    assert all(before)
    world.sources = {"three": ["c"], "copy": ["local"]}
    world.write_registry()
    world.advance(120.0)
    world.crash("hub-1")
    world.advance(90.0)
    assert world.writer() is world.processes["hub-2"]
    assert [world.judge.published(group) for group in lost] == before


def test_reacquired_lease_continues_the_hold(machine: HubMachine) -> None:
    """A leader that lost its Lease and has it again continues the hold instead of starting a new one."""
    machine.begin(seed=0, size=4)
    three_nodes_go(machine)
    writer = machine.world.writer()
    assert writer is not None
    assert writer.hub is not None
    before = dict(writer.hub.reconciler._targets)
    machine.world.cut_off_lease()
    machine.time_goes_by(seconds=12.0)
    assert machine.world.writer() is writer
    assert writer.hub.elector.continued
    after = writer.hub.reconciler._targets
    assert after.keys() == before.keys()
    assert all(after[key] is known for key, known in before.items())
    machine.time_goes_by(seconds=640.0)
    assert len(machine.world.judge.published(THREE)) == 1


def test_judge_allows_a_policy_between_two_observations(machine: HubMachine) -> None:
    """The judge allows a policy that took effect between two of its observations."""
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


def test_address_moved_by_the_cloud_is_removed_while_its_cluster_hangs(machine: HubMachine) -> None:
    """A provider's answer removes an old address even while the cluster's API server hangs."""
    machine.begin(seed=123, size=3)
    machine.a_cloud_forgets(cluster="a", node="n0")
    machine.a_cluster_breaks(cluster="a", how="hang")
    machine.a_node_comes(cluster="a", kind="own", node="n0", number=8)
    machine.a_node_comes(cluster="a", kind="any", node="n1", number=3)
    machine.a_while_goes_by(seconds=3.0)
    machine.world.judge.verdict()


def test_standby_is_removed_although_its_cluster_was_dropped_since(machine: HubMachine) -> None:
    """A hub that has read `standby`, but not yet that the cluster was dropped, removes endpoints without a grace."""
    machine.begin(seed=0, size=1)
    machine.a_hub_is_restarted()
    machine.a_replica_is_started()
    machine.the_registry_sets_a_state(cluster="b", state="standby")
    machine.a_hub_is_restarted()
    machine.the_registry_toggles_a_cluster(cluster="b")
    machine.a_while_goes_by(seconds=1.1)
    assert machine.world.judge.published(("two", "b", "IPv4")) == set()
