"""Draining: what leaves is published as terminating first, for as long as it may still serve."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hub.decide.decision import TargetState
from hub.decide.endpoints import GroupKey
from hub.model import DRAINING, FAILED, PUBLISHED, Conditions
from hub.registry.spec import FailoverPolicy, GuardPolicy, HealthPolicy, NodePolicy, UnreachablePolicy
from tests.support import build
from tests.support.play import KEY, LAX, Play, nodes, said

DRAIN = 30.0
EU = GroupKey("eu", "IPv4")
TCP = HealthPolicy("tcp", fall=1)


def started(*sources: str, guard: GuardPolicy = LAX, health: HealthPolicy | None = None, **more: object) -> Play:
    """A Service that drains for 30 s, with the nodes n1 to n4 of its first source published."""
    policies = {"guard": guard} | ({"health": health} if health else {})
    names = sources or ("eu",)
    target = build.target(names[0], sources=tuple(build.source(name, **policies) for name in names))
    play = Play(replace(target, drain=DRAIN, **more))
    for name in names:
        play.nodes(cluster=name)
    play.nodes(*nodes(1, 2, 3, 4), cluster=names[0])
    play.run()
    return play


def conditions(play: Play) -> dict[str, Conditions]:
    """The published conditions by the last number of the address."""
    return {
        endpoint.address.rpartition(".")[2]: endpoint.conditions
        for slice_ in play.slices
        for endpoint in slice_.endpoints
    }


def draining(play: Play) -> set[str]:
    """The addresses that drain, by their last number."""
    return {last for last, found in conditions(play).items() if found == DRAINING}


def test_a_node_that_is_gone_drains_and_then_goes() -> None:
    """Its endpoint is terminating and still serving for 30 seconds, and is removed by the timer."""
    play = started()
    play.nodes(*nodes(1, 2, 3))
    assert said(play.run()) == [("draining", "eu", ["10.0.0.4 n4"], "its node is gone (provider node-addresses)")]
    assert conditions(play) == {"1": PUBLISHED, "2": PUBLISHED, "3": PUBLISHED, "4": DRAINING}
    assert play.decision.again_after == pytest.approx(DRAIN, abs=0.01)
    assert play.run(DRAIN - 2) == []
    assert said(play.run(2)) == [("removed", "eu", ["10.0.0.4 n4"], "its node is gone (provider node-addresses)")]
    assert set(conditions(play)) == {"1", "2", "3"}


def test_without_drain_nothing_changes() -> None:
    """The default is 0s: the endpoint goes at once."""
    play = started()
    play.registry = replace(play.registry, targets={KEY: replace(play.target, drain=0.0)})
    play.nodes(*nodes(1, 2, 3))
    play.run()
    assert set(conditions(play)) == {"1", "2", "3"}


def test_an_endpoint_that_returns_is_ready_again() -> None:
    """A node that returns while its endpoint drains is published as before; its next drain takes the whole time."""
    play = started()
    play.nodes(*nodes(1, 2, 3))
    play.run()
    play.nodes(*nodes(1, 2, 3, 4))
    assert [kind for kind, *_ in said(play.run(DRAIN - 1))] == ["restored"]
    assert draining(play) == set()
    play.nodes(*nodes(1, 2, 3))
    play.run()
    play.run(DRAIN - 1)
    assert draining(play) == {"4"}


def test_a_restart_starts_the_timer_again() -> None:
    """What drained before the restart drains for the whole time after it."""
    play = started()
    play.nodes(*nodes(1, 2, 3))
    play.run()
    play.state = TargetState()
    play.run(DRAIN)
    assert draining(play) == {"4"}
    play.run(DRAIN)
    assert set(conditions(play)) == {"1", "2", "3"}


def test_what_the_guard_withholds_does_not_drain() -> None:
    """Draining is no way around the guard: what it withholds stays ready, and drains when it is released."""
    play = started(guard=GuardPolicy(max_removal=0.25, max_removal_hold=300.0))
    play.nodes(*nodes(1))
    play.run()
    assert play.decision.withheld
    assert set(conditions(play).values()) == {PUBLISHED}
    play.run(300)
    assert draining(play) == {"2", "3", "4"}
    play.run(DRAIN)
    assert set(conditions(play)) == {"1"}


def test_an_empty_answer_is_withheld_before_anything_drains() -> None:
    """Endpoints that drain do not make an empty answer look like one that is not empty."""
    play = started(guard=GuardPolicy(empty_results=3, max_removal=None))
    play.nodes()
    for _ in range(2):
        play.run()
        assert set(conditions(play).values()) == {PUBLISHED}
    play.run()
    assert draining(play) == {"1", "2", "3", "4"}
    play.run(DRAIN)
    assert conditions(play) == {}


def test_an_approved_removal_drains_to_its_end_without_the_approval() -> None:
    """The guard decides once: when the approval has expired, the endpoints that drain still leave."""
    play = started()
    play.nodes(*nodes(1, 2, 3, 4), policy=NodePolicy(exclude_nodes=frozenset({"n1", "n2", "n3", "n4"})))
    play.run()
    play.approvers = {play.decision.withheld[EU].hash: "you"}
    play.run()
    assert draining(play) == {"1", "2", "3", "4"}
    play.approvers = {}
    play.run(1)
    assert not play.decision.withheld
    play.run(DRAIN)
    assert conditions(play) == {}


def test_an_unknown_source_keeps_what_drains() -> None:
    """While the source is unknown, nothing is removed; afterwards, the whole time passes."""
    play = started()
    play.nodes(*nodes(1, 2, 3))
    play.run()
    play.unknown("api is down")
    play.run(10 * DRAIN)
    assert draining(play) == {"4"}
    play.nodes(*nodes(1, 2, 3))
    play.run(1)
    play.run(DRAIN - 2)
    assert draining(play) == {"4"}
    play.run(2)
    assert set(conditions(play)) == {"1", "2", "3"}


@pytest.mark.parametrize("healthy", [True, False])
def test_a_failed_check_ends_the_drain(healthy: bool) -> None:
    """The address is probed while it drains, and goes at once when it fails."""
    play = started(health=TCP)
    (watch,) = play.decision.watches
    play.verdicts = {watch.check: dict.fromkeys(watch.addresses, True)}
    play.run()
    play.nodes(*nodes(1, 2, 3))
    play.run()
    assert draining(play) == {"4"}
    (watch,) = play.decision.watches
    assert watch.addresses.keys() == {f"10.0.0.{number}" for number in (1, 2, 3, 4)}
    play.verdicts = {watch.check: {**dict.fromkeys(watch.addresses, True), "10.0.0.4": healthy}}
    play.run()
    assert draining(play) == ({"4"} if healthy else set())
    assert ("4" in conditions(play)) is healthy


def test_a_failing_endpoint_does_not_drain() -> None:
    """An endpoint that was published as failed goes at once when its node is gone."""
    play = started(health=TCP)
    (watch,) = play.decision.watches
    play.verdicts = {watch.check: {**dict.fromkeys(watch.addresses, True), "10.0.0.4": False}}
    play.run()
    assert conditions(play)["4"] == FAILED
    play.nodes(*nodes(1, 2, 3))
    play.run()
    assert set(conditions(play)) == {"1", "2", "3"}


def test_on_fail_remove_does_not_drain() -> None:
    """An address that health.onFail removes goes at once."""
    play = started(health=replace(TCP, on_fail="remove"))
    (watch,) = play.decision.watches
    play.verdicts = {watch.check: {**dict.fromkeys(watch.addresses, True), "10.0.0.4": False}}
    play.run()
    assert set(conditions(play)) == {"1", "2", "3"}


def test_an_address_that_moves_to_another_source_does_not_drain() -> None:
    """It is ready all the time, and in the end at its new source only."""
    play = started("eu", "us")
    play.nodes(*nodes(1, 2, 3), cluster="eu")
    play.nodes(*nodes(4), cluster="us")
    for _ in range(4):
        play.run(3)
        assert {found for last, found in conditions(play).items() if last == "4"} == {PUBLISHED}
        assert draining(play) == set()
    assert [slice_.cluster for slice_ in play.slices for each in slice_.endpoints if each.address.endswith(".4")] == [
        "us"
    ]


def test_an_address_that_another_source_publishes_stops_draining() -> None:
    """It drains in one source, and is ready as soon as another one has it; in the end it is there only."""
    play = started("eu", "us")
    play.nodes(*nodes(1, 2, 3), cluster="eu")
    play.run()
    assert draining(play) == {"4"}
    play.nodes(*nodes(4), cluster="us")
    for _ in range(4):
        play.run(3)
        assert PUBLISHED in {
            endpoint.conditions
            for slice_ in play.slices
            for endpoint in slice_.endpoints
            if (slice_.cluster, endpoint.address) == ("us", "10.0.0.4")
        }
    assert conditions(play) == dict.fromkeys("1234", PUBLISHED)


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        (NodePolicy(cordoned="drop"), {"unschedulable": True}),
        (NodePolicy(), {"taints": ("ToBeDeletedByClusterAutoscaler",)}),
        (NodePolicy(not_ready_grace=0.0), {"ready": False}),
    ],
    ids=["cordoned", "tainted", "not-ready"],
)
def test_a_node_that_is_no_longer_eligible_drains(policy: NodePolicy, change: dict[str, Any]) -> None:
    """A node that is cordoned, about to be deleted, or not Ready for too long may still serve."""
    play = started()
    play.nodes(build.node("n1", "10.0.0.1", **change), *nodes(2, 3, 4), policy=policy)
    play.run()
    assert conditions(play) == {"1": DRAINING, **dict.fromkeys("234", PUBLISHED)}
    play.run(DRAIN)
    assert conditions(play) == dict.fromkeys("234", PUBLISHED)


def test_the_time_of_a_cordoned_node_begins_when_it_leaves() -> None:
    """With ``not-ready`` a cordoned node looks like a draining one, however long it stays; the timer begins later."""
    play, policy = started(), NodePolicy(cordoned="not-ready")
    cordoned = build.node("n1", "10.0.0.1", unschedulable=True)
    play.nodes(cordoned, *nodes(2, 3, 4), policy=policy)
    for _ in range(3):
        play.run(DRAIN)
        assert draining(play) == {"1"}
    play.nodes(*nodes(2, 3, 4))
    play.run()
    play.run(DRAIN - 2)
    assert draining(play) == {"1"}
    play.run(2)
    assert set(conditions(play)) == {"2", "3", "4"}


def test_a_service_that_leaves_the_registry_does_not_drain() -> None:
    """Its slices stay as they are until they are deleted after ``--removal-grace``."""
    play = started()
    play.drop()
    play.run()
    assert conditions(play) == dict.fromkeys("1234", PUBLISHED)
    play.run(3600.0)
    play.run()
    assert not play.slices


def test_failover_drains_the_source_that_it_leaves() -> None:
    """The old source's endpoints drain once the new source is published."""
    play = started("eu", "us", strategy="failover", failover=FailoverPolicy(after=5.0))
    play.nodes(*nodes(7), cluster="us")
    play.run()
    play.nodes(cluster="eu")
    for _ in range(3):
        play.run(5)
    assert conditions(play)["7"] == PUBLISHED
    assert draining(play) == {"1", "2", "3", "4"}
    play.run(DRAIN)
    assert set(conditions(play)) == {"7"}


def test_a_source_on_standby_drains() -> None:
    """A cluster that is set to standby drains, and is gone afterwards."""
    play = started("eu", "us")
    play.nodes(*nodes(7), cluster="us")
    play.run()
    eu = play.registry.clusters["eu"]
    play.registry = replace(play.registry, clusters={**play.registry.clusters, "eu": replace(eu, state="standby")})
    play.run()
    assert draining(play) == {"1", "2", "3", "4"}
    play.run(DRAIN)
    assert set(conditions(play)) == {"7"}


def test_a_service_that_publishes_unready_addresses_drains_as_ready() -> None:
    """With publishNotReadyAddresses, ready stays true, as in Kubernetes."""
    play = started()
    play.service = build.service(publish_not_ready=True)
    play.run()
    play.nodes(*nodes(1, 2, 3))
    play.run()
    assert conditions(play)["4"] == Conditions(ready=True, serving=True, terminating=True)
    play.run(DRAIN)
    assert set(conditions(play)) == {"1", "2", "3"}


def test_unreachable_remove_drains() -> None:
    """A cluster that is given up drains as well: its machines may still answer."""
    play = Play(
        replace(
            build.target("eu", sources=(build.source("eu", guard=LAX, unreachable=UnreachablePolicy(60.0, "remove")),)),
            drain=DRAIN,
        )
    )
    play.nodes(*nodes(1, 2))
    play.run()
    play.unknown("api is down")
    play.unreachable = 61.0
    play.run()
    assert draining(play) == {"1", "2"}
    play.run(DRAIN)
    assert conditions(play) == {}


def test_why_says_until_when() -> None:
    """The explanation of a draining endpoint names the time of its removal."""
    play = started()
    play.nodes(*nodes(1, 2, 3))
    play.run()
    (reason,) = play.decision.why_still_published(EU, "10.0.0.4")
    assert (reason.outcome, reason.why) == ("draining", "its node is gone; published as terminating until 08:00:32 UTC")
