"""Passes over the allocations of a hub, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Network
from itertools import pairwise
from typing import Literal

import pytest
from hub_testkit.addresses.cloud import SimulatedCloud
from msgspec.structs import replace

from hub.allocating.run import own_node
from hub.allocations.plan import plan
from hub.allocations.spec import FINALIZER
from hub.allocations.view import NodeKey, Plan, View
from hub.model import LOCAL
from tests.support.allocations import KIND
from tests.support.waiting import until
from tests.unit.allocating.scene import ONE, TWO, Scene, account
from tests.unit.observe.remote.test_fleet import cluster, registry

VIRTUAL_TIME = True

OwnNode = Literal["last", "never", "allow"]


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Two settled addresses."""
    return Scene(monkeypatch)


# --- what a cloud is asked -------------------------------------------------------------------------------------


async def test_a_cloud_is_asked_about_valid_addresses_inside_its_networks_only(scene: Scene) -> None:
    """Texts that are no address, and addresses outside ``addresses``, are Invalid and never sent to a cloud."""
    scene.allocate("bad", ["junk", "203.0.113.9", " 198.18.0.3", "198.18.0.3"])
    async with scene:
        await until(lambda: scene.entry("198.18.0.3", "bad").get("reason") == "NotReserved")
        await until(lambda: scene.status().get("attached") == 2)
    assert scene.asked == {ONE, TWO, "198.18.0.3"}
    entries = {entry["address"]: (entry["state"], entry["reason"]) for entry in scene.status("bad")["addresses"]}
    assert entries["203.0.113.9"] == ("Invalid", "NotAllowed")
    assert entries["junk"][0] == "Invalid"
    assert scene.cloud.effects == []


async def test_an_address_stays_when_the_networks_of_the_account_become_smaller(scene: Scene) -> None:
    """Its node keeps address and label, also when it is drained or the allocation with its Detach policy is deleted."""
    smaller = replace(scene.account, addresses=(IPv4Network(f"{TWO}/32"),))
    scene.spec = replace(scene.spec, accounts={"main": smaller})
    async with scene:
        scene.cordon("n1")
        await until(lambda: scene.entry(ONE).get("reason") == "NotAllowed")
        await asyncio.sleep(60)
        assert scene.written() == []
        gone = {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        scene.api.edit(f"{KIND}/web", metadata=gone, spec={"releasePolicy": "Detach"})
        await until(lambda: "remove the finalizer" in scene.entry(ONE).get("message", ""))
        await asyncio.sleep(60)
    assert scene.asked == {TWO}
    assert (scene.entry(ONE)["node"], scene.cloud.holder_of(ONE)) == ("n1", "n1")


async def test_an_allocation_that_only_lists_foreign_addresses_can_be_deleted(scene: Scene) -> None:
    """With ``releasePolicy: Detach`` there is nothing to detach: the finalizer goes without a question."""
    path = scene.allocate("bad", ["203.0.113.9"], releasePolicy="Detach")
    scene.api.edit(path, metadata={"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"})
    async with scene:
        await until(lambda: scene.api.objects[path]["metadata"]["finalizers"] == [])
    assert "203.0.113.9" not in scene.asked


async def test_an_account_without_allocations_takes_no_node_from_another_one(scene: Scene) -> None:
    """Two accounts list the cluster, and only one has an allocation: its free address still gets a node."""
    scene.spec = replace(scene.spec, accounts={"main": scene.account, "spare": account("spare")})
    scene.cloud.reserve("198.18.0.3")
    scene.allocate("more", ["198.18.0.3"], cloud={"account": "main"})
    scene.api.objects[f"{KIND}/web"]["spec"]["cloud"] = {"account": "main"}
    async with scene:
        await until(lambda: scene.cloud.holder_of("198.18.0.3") == "n3", 60)
        await until(lambda: scene.labelled() == ["n1", "n2", "n3"])


async def test_an_account_whose_quota_is_used_up_holds_up_no_other(scene: Scene) -> None:
    """Its next calls come 5 s, 10 s and 20 s later, with CloudQuota; an account of another cloud acts meanwhile."""
    second = scene.clouds["second"] = SimulatedCloud(scene.clock)
    second.latency = scene.cloud.latency
    scene.spec = replace(scene.spec, accounts={"main": scene.account, "other": account("other", "second")})
    scene.api.objects[f"{KIND}/web"]["spec"]["cloud"] = {"account": "main"}
    scene.cloud.retry_after = 0.0
    scene.cloud.fail("throttled", times=3, on="write")
    async with scene:
        scene.cordon("n1")
        await until(lambda: "CloudQuota" in scene.reasons(), 60)
        second.reserve("198.18.0.3")
        second.add_instance("n4")
        scene.add_node("n4")
        scene.allocate("more", ["198.18.0.3"], cloud={"account": "other"})
        await until(lambda: second.holder_of("198.18.0.3") == "n4", 12)  # n4 must be Ready for 10 s
        assert scene.cloud.effects == []
        await until(lambda: scene.cloud.holder_of(ONE) == "n3", 60)
    times = [call.time for call in scene.cloud.log if call.action == "detach"]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [5, 10, 20]


# --- the hub's own node ------------------------------------------------------------------------------------------


def test_own_node_is_that_of_the_environment() -> None:
    """NODE_NAME names a node of the hub cluster; without it no node is the hub's own."""
    assert own_node({"NODE_NAME": "n1"}) == NodeKey(LOCAL, "n1")
    assert own_node({"NODE_NAME": ""}) is None
    assert own_node({}) is None


async def test_own_node_keeps_its_address_where_a_move_would_cut_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drained node of the hub waits with OwnNodeWaits; with ``ownNode: allow`` its address moves."""
    scene = Scene(monkeypatch, own="n1", cuts=["source"])
    async with scene:
        scene.cordon("n1")
        await until(lambda: "OwnNodeWaits" in scene.reasons())
        await asyncio.sleep(120)
        assert (scene.entry()["state"], scene.entry()["reason"]) == ("Leaving", "OwnNode")
        assert scene.cloud.effects == []
        scene.hub.update(replace(scene.spec, limits=replace(scene.spec.limits, own_node="allow")))
        await until(lambda: scene.cloud.holder_of(ONE) == "n3", 60)
        await until(lambda: scene.reasons() == [])


@pytest.mark.parametrize(
    ("own", "cuts", "policy", "target"),
    [
        ("", (), "last", "n3"),
        ("n3", (), "allow", "n3"),
        ("n3", (), "last", "n4"),
        ("n3", ("target",), "last", "n4"),
        ("n4", (), "last", "n3"),
    ],
)
async def test_own_node_is_the_last_candidate(
    monkeypatch: pytest.MonkeyPatch, own: str, cuts: Sequence[str], policy: OwnNode, target: str
) -> None:
    """Of two free nodes the older one gets the address, but the hub's own one only if there is no other."""
    scene = Scene(monkeypatch, own=own, cuts=cuts)
    scene.spec = replace(scene.spec, limits=replace(scene.spec.limits, own_node=policy))
    scene.add_node("n4")
    async with scene:
        scene.cordon("n1")
        await until(lambda: scene.cloud.holder_of(ONE) not in ("n1", ""), 60)
    assert scene.cloud.holder_of(ONE) == target


@pytest.mark.parametrize(
    ("cuts", "policy", "moves"), [((), "last", True), ((), "never", False), (("target",), "last", False)]
)
async def test_own_node_as_the_only_candidate(
    monkeypatch: pytest.MonkeyPatch, cuts: Sequence[str], policy: OwnNode, *, moves: bool
) -> None:
    """It takes an address, unless it must not, or an attachment would cut it off."""
    scene = Scene(monkeypatch, own="n3", cuts=cuts)
    scene.spec = replace(scene.spec, limits=replace(scene.spec.limits, own_node=policy))
    async with scene:
        scene.cordon("n1")
        await asyncio.sleep(120)
    assert scene.cloud.holder_of(ONE) == ("n3" if moves else "n1")
    assert (scene.entry().get("reason", "") == "NoCandidate") is not moves


# --- other clusters, and broken accounts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "outdated", "moves"),
    [("active", False, True), ("active", True, False), ("standby", False, False), ("frozen", False, False)],
)
async def test_only_a_cluster_that_is_active_and_current_loses_an_address(
    monkeypatch: pytest.MonkeyPatch, state: str, *, outdated: bool, moves: bool
) -> None:
    """In another cluster the drained node m1 keeps its address; no label is changed, and the status says why."""
    scene = Scene(monkeypatch)
    scene.spec = replace(scene.spec, accounts={"main": replace(scene.account, clusters=(LOCAL, "eu"))})
    nodes = {name: replace(scene.cloud.add_instance(name), unschedulable=name == "m1") for name in ("m1", "m2")}
    scene.cloud.reserve("198.18.0.3")
    scene.cloud.hold("198.18.0.3", "m1")
    entry = {"address": "198.18.0.3", "state": "Attached", "node": "m1", "instance": "z1/m1"}
    scene.allocate("remote", ["198.18.0.3"], {"cluster": "eu", "addresses": [entry]}, cluster="eu")
    async with scene:
        scene.fleet.update(registry(cluster("eu", state="active")))
        unit = scene.fleet.clusters["eu"]
        unit._store.replace(nodes, "1")
        unit.answered()
        unit.mismatch = "another cluster answers" if outdated else ""
        scene.fleet.update(registry(cluster("eu", state=state)))
        scene.hub.cluster_changed("eu")
        await asyncio.sleep(120)
        assert bool(scene.cloud.effects or scene.hub.executor.running) is moves
        reason = scene.condition("Stalled", "remote").get("reason")
        assert (reason == "ClusterUnknown") is not moves
        assert scene.status()["attached"] == 2


async def test_an_account_with_a_mistake_is_frozen_and_named(scene: Scene) -> None:
    """Its allocations are Stalled with the mistake; nothing is asked or changed for them, and other accounts go on."""
    broken = {"bad": "allocations.clouds.bad.addresses: missing"}
    scene.spec = replace(scene.spec, broken=broken)
    scene.cloud.reserve("198.18.0.3")
    scene.allocate("frozen", ["198.18.0.3"], cloud={"account": "bad"})
    async with scene:
        await until(lambda: scene.condition("Stalled", "frozen"))
        await until(lambda: scene.status().get("attached") == 2)
    stalled = scene.condition("Stalled", "frozen")
    assert (stalled["status"], stalled["reason"]) == ("True", "AccountBroken")
    assert stalled["message"] == f"account bad is frozen: {broken['bad']}"
    assert "198.18.0.3" not in scene.asked


async def test_a_pass_with_a_defect_is_logged_and_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of the hub in one pass ends neither the worker nor what the next pass does."""
    defects = [ValueError("a defect")]

    def defective(view: View, now: float) -> Plan:
        if defects:
            raise defects.pop()
        return plan(view, now)

    monkeypatch.setattr("hub.allocating.run.plan", defective)
    async with scene:
        await until(lambda: scene.status().get("attached") == 2)
    assert "allocations of account main: a pass failed" in caplog.text
