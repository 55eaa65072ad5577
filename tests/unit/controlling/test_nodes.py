"""The node part with a cloud and an API server in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hub.cloud.instances import NodeAddress
from hub.controller.asking import ASK_AGAIN
from hub.controlling import nodes
from hub.controlling.nodes import NodePart
from hub.errors import ClusterUnreachable, Forbidden, HubError, Invalid, ServerFault, TooManyRequests
from hub.plugin.spec import TransientProviderError
from tests.support.controlled_nodes import NodesApi, Notes, ScriptedAccount, ScriptedSite, machine
from tests.support.virtual import LoopClock, VirtualLoop

PATCH = ("PATCH", "/api/v1/nodes/n1")
STATUS = ("PATCH", "/api/v1/nodes/n1/status")


class World:
    """A cluster, its cloud, and the node part, which runs."""

    def __init__(self, **spec: Any) -> None:
        self.api = NodesApi()
        self.site = self.api.site = ScriptedSite(LoopClock(), self.api.connect, **spec)

    @property
    def part(self) -> NodePart:
        return self.site.part

    @property
    def cloud(self) -> ScriptedAccount:
        found: ScriptedAccount = self.site.account
        return found

    @property
    def notes(self) -> Notes:
        return self.site.reporter

    def add(self, name: str, *, has_machine: bool = True, **more: Any) -> None:
        """Register a Node, and create its machine."""
        if has_machine:
            self.cloud.machines[name] = machine(name)
        self.api.node(name, **more)

    def names(self) -> list[str]:
        return sorted(self.api.documents)

    def taints(self, name: str = "n1") -> list[str]:
        return [taint["key"].rpartition("/")[2] for taint in self.api.documents[name]["spec"]["taints"]]

    def halt(self, reason: str) -> None:
        """Take or give back the right to write."""
        self.site.halted = (reason, "not now") if reason else None
        self.part.state_changed()


@contextmanager
def _running(world: World) -> Iterator[None]:
    task = asyncio.create_task(world.part.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()


def play(
    story: Callable[[World], Awaitable[None]], *names: str, before: Callable[[World], object] = id, **spec: Any
) -> World:
    """Run the node part while a story happens; Nodes with these names, and their machines, are there before."""

    async def run() -> World:
        world = World(**spec)
        for name in names:
            world.add(name)
        before(world)
        await asyncio.sleep(0.1)
        with _running(world):
            await story(world)
        await asyncio.sleep(0)
        return world

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def test_a_new_node_gets_addresses_then_the_rest() -> None:
    """Two writes in this order, both behind the fence; the Event and the durations follow."""

    async def story(world: World) -> None:
        world.add("n1", new=True)
        await asyncio.sleep(5)

    world = play(story)
    assert world.api.log == [STATUS, PATCH]
    assert world.taints() == []
    assert world.api.documents["n1"]["spec"]["providerID"] == "c://n1"
    assert world.notes.events == [("Synced", "n1")]
    assert world.site.fences >= 4
    assert (sum(world.part.untainted.counts), sum(world.part.syncs.counts)) == (1, 1)
    assert world.part.told["n1"].state == "ready"


def test_many_new_nodes_cost_one_question() -> None:
    """500 Nodes at once are one question; at most four writes are under way, 20 a second."""

    async def story(world: World) -> None:
        for number in range(500):
            world.add(f"n{number}", new=True)
        await asyncio.sleep(10)
        assert 200 <= len(world.api.writes()) <= 230
        await asyncio.sleep(60)

    world = play(story)
    assert [len(question) for question in world.cloud.questions] == [500]
    assert world.api.most_in_flight <= nodes.IN_FLIGHT
    assert len(world.api.writes()) == 1000
    assert not any(map(world.taints, world.names()))


def test_new_nodes_without_a_machine_are_asked_about_ever_more_rarely() -> None:
    """After 1 s, 2 s, 4 s and so on, at most 60 s; Nodes that are due at nearly the same time share a question."""

    async def story(world: World) -> None:
        world.add("n1", new=True, has_machine=False)
        await asyncio.sleep(0.2)
        world.add("n2", new=True, has_machine=False)
        await asyncio.sleep(299)
        assert len(world.cloud.questions) <= 14
        world.cloud.machines |= {"n1": machine("n1"), "n2": machine("n2")}
        await asyncio.sleep(ASK_AGAIN[1] + 5)

    world = play(story, refresh=3600.0)
    assert world.taints("n1") == world.taints("n2") == []


def test_a_cloud_that_fails_changes_nothing_but_the_message() -> None:
    """New Nodes wait with the cloud's words; a Ready Node loses the shutdown taint without the cloud."""

    async def story(world: World) -> None:
        world.cloud.error = TransientProviderError("the cloud is down")
        world.add("n1", new=True)
        world.add("n2")
        world.api.documents["n2"]["spec"]["taints"] = [
            {"key": "node.cloudprovider.kubernetes.io/shutdown", "effect": "NoSchedule"}
        ]
        world.api.changed("n2")
        await asyncio.sleep(30)
        assert world.taints("n1") == ["uninitialized"]
        assert world.taints("n2") == []
        assert "the cloud is down" in world.part.problem
        assert "the cloud is down" in world.part.told["n1"].message
        assert world.part.uninitialized == 1
        assert len(world.cloud.questions) <= 8
        world.cloud.error = None
        await asyncio.sleep(70)
        assert world.part.problem == ""

    world = play(story)
    assert world.taints("n1") == []
    assert world.part.uninitialized == 0


def test_a_node_whose_machine_does_not_fit_is_asked_about_again() -> None:
    """It is initialised soon after the cloud states the address that its kubelet was started with."""

    async def story(world: World) -> None:
        world.add("n1", new=True, annotations={"alpha.kubernetes.io/provided-node-ip": "198.51.100.9"})
        await asyncio.sleep(30)
        assert world.taints() == ["uninitialized"]
        assert world.notes.began == [("NodeAddressMismatch", "n1")]
        assert 4 <= len(world.cloud.questions) <= 7
        world.cloud.machines["n1"] = machine("n1", addresses=(NodeAddress("ExternalIP", "198.51.100.9"),))
        await asyncio.sleep(35)

    assert play(story).taints() == []


def test_a_machine_that_is_shut_down_taints_its_node() -> None:
    """Not Ready and stopped: tainted; Ready again: not tainted any more."""

    async def story(world: World) -> None:
        world.add("n1")
        await asyncio.sleep(5)
        world.cloud.machines["n1"] = machine("n1", status="stopped")
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(25)
        assert world.taints() == ["shutdown"]
        world.api.ready("n1", "True")
        await asyncio.sleep(3)
        assert world.taints() == []

    play(story)


# --- deletions -----------------------------------------------------------------------------------------


def test_a_node_whose_machine_is_gone_is_deleted() -> None:
    """After deleteAfter, by what is read right before; the Event comes first."""

    async def story(world: World) -> None:
        for name in ("n1", "n2"):
            world.add(name)
        await asyncio.sleep(100)
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(58)
        assert world.names() == ["n1", "n2"]
        await asyncio.sleep(12)
        assert world.names() == ["n2"]

    world = play(story)
    assert world.api.log == [("GET", "/api/v1/nodes/n1"), ("DELETE", "/api/v1/nodes/n1")]
    assert world.notes.events == [("DeletingNode", "n1")]
    assert world.part.deleted == 1


@pytest.mark.parametrize("change", ["ready", "uid", "deleting"])
def test_a_node_that_changed_unseen_is_not_deleted(change: str) -> None:
    """The watch hangs, and what is read right before the deletion is not what was judged."""

    async def story(world: World) -> None:
        for name in ("n1", "n2"):
            world.add(name)
        await asyncio.sleep(1)
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(30)
        document = world.api.documents["n1"]
        if change == "ready":
            document["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        elif change == "uid":
            document["metadata"]["uid"] = "another"
        else:
            document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await asyncio.sleep(90)

    world = play(story)
    assert ("GET", "/api/v1/nodes/n1") in world.api.log
    assert world.api.writes() == []


def test_the_limit_withholds_until_an_approval() -> None:
    """Two of four: none goes, both say so; then they go, 5 s apart."""

    async def story(world: World) -> None:
        for name in ("n1", "n2", "n3", "n4"):
            world.add(name)
        await asyncio.sleep(1)
        for name in ("n1", "n2"):
            del world.cloud.machines[name]
            world.api.ready(name, "False")
        await asyncio.sleep(200)
        assert world.names() == ["n1", "n2", "n3", "n4"]
        assert world.notes.findings["n1"] == world.notes.findings["n2"] == ["NodeDeletionWithheld"]
        assert world.part.told["n1"].state == "withheld"
        world.site.approvals = {world.part.deletions.digest}
        world.part.state_changed()
        await asyncio.sleep(1)
        assert world.names() == ["n2", "n3", "n4"]
        await asyncio.sleep(6)
        assert world.names() == ["n3", "n4"]

    play(story)


@pytest.mark.parametrize("trouble", ["suspect", "unknown", "down", "problem", "observe", "young", "foreign"])
def test_nothing_is_deleted_in_trouble(trouble: str) -> None:
    """A suspect hub, a failing cloud, an outdated cluster, mode observe, a young or another cloud's Node."""

    async def story(world: World) -> None:
        for name in ("n1", "n2"):
            world.add(name)
        await asyncio.sleep(1)
        if trouble == "young":
            world.api.node("n1", ready="Unknown", creationTimestamp="2023-11-14T22:30:00Z")
        if trouble == "foreign":
            world.api.documents["n1"]["spec"]["providerID"] = "aws:///a/i-1"
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(30)
        world.site.suspects_itself = trouble == "suspect"
        world.cloud.error = TransientProviderError("503") if trouble == "down" else None
        world.cloud.machines |= {"n1": machine("n1")} if trouble == "unknown" else {}
        world.site.problem = "not connected" if trouble == "problem" else ""
        world.halt("Observe" if trouble == "observe" else "")
        await asyncio.sleep(200)

    assert play(story).names() == ["n1", "n2"]


def test_a_deletion_that_fails_is_told_and_repeated() -> None:
    """DeletingNodeFailed with the API server's words; half a minute later it is tried again."""

    async def story(world: World) -> None:
        for name in ("n1", "n2"):
            world.add(name)
        world.api.errors["n1"] = Forbidden(403, "Forbidden", 'User "hub" cannot delete resource "nodes"')
        await asyncio.sleep(1)
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(85)
        assert "nodes: delete" in world.part.problem
        assert world.notes.events == [("DeletingNode", "n1"), ("DeletingNodeFailed", "n1")]
        world.api.errors.clear()
        await asyncio.sleep(60)

    assert play(story).names() == ["n2"]


def test_a_refused_deletion_is_not_hammered() -> None:
    """A webhook refuses it: one try each half minute."""

    async def story(world: World) -> None:
        world.api.errors["n1"] = ServerFault(500, "InternalError", "admission webhook failed")
        await asyncio.sleep(1)
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(60 + 90)
        assert 3 <= len(world.api.writes()) <= 4

    play(story, "n1", "n2")


def test_retry_after_also_delays_deletions() -> None:
    """The API server asks for 100 s: nothing is deleted in them, and nothing turns in circles."""

    async def story(world: World) -> None:
        world.api.errors["n1"] = TooManyRequests(429, "TooManyRequests", "", retry_after=100.0)
        await asyncio.sleep(1)
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(150)
        assert len(world.api.writes()) == 1
        assert world.site.judged <= 60
        await asyncio.sleep(20)
        assert len(world.api.writes()) == 2

    play(story, "n1", "n2")


def test_after_an_outage_of_the_cluster_the_time_begins_again() -> None:
    """Nobody knows whether the Node was Ready in the meantime."""

    async def story(world: World) -> None:
        await asyncio.sleep(1)
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(50)
        world.site.problem = "not connected"
        world.part.state_changed()
        await asyncio.sleep(300)
        world.site.problem = ""
        world.part.state_changed()
        await asyncio.sleep(55)
        assert world.names() == ["n1", "n2"]
        await asyncio.sleep(15)
        assert world.names() == ["n2"]

    play(story, "n1", "n2")


def test_a_deletion_without_an_answer_counts() -> None:
    """The Node may be gone: the next one is withheld within the window."""

    async def story(world: World) -> None:
        for name in ("n1", "n2", "n3"):
            world.add(name)
        world.api.errors["n1"] = ClusterUnreachable("cut", "reset")
        await asyncio.sleep(1)
        del world.cloud.machines["n1"]
        world.api.ready("n1", "Unknown")
        await asyncio.sleep(70)
        assert len(world.api.writes()) == 1
        world.api.errors.clear()
        await asyncio.sleep(200)
        assert world.names() == ["n1", "n2", "n3"]
        assert world.notes.findings["n1"] == ["NodeDeletionWithheld"]
        await asyncio.sleep(500)

    assert play(story).names() == ["n2", "n3"]


# --- the right to write --------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["Standby", "OtherCloudController"])
def test_a_replica_without_the_duty_is_silent(reason: str) -> None:
    """It asks and writes nothing; once it has the duty it does both at once."""

    async def story(world: World) -> None:
        world.halt(reason)
        world.add("n1", new=True)
        await asyncio.sleep(100)
        assert (world.cloud.questions, world.api.log) == ([], [])
        world.halt("")
        await asyncio.sleep(1)

    assert play(story).taints() == []


def test_mode_observe_asks_and_shows_and_writes_nothing() -> None:
    """The Node says what would be written; a ripe deletion does not make it ask more often."""

    async def story(world: World) -> None:
        world.halt("Observe")
        world.add("n1", new=True)
        for name in ("n2", "n3"):
            world.add(name)
        await asyncio.sleep(1)
        del world.cloud.machines["n2"]
        world.api.ready("n2", "Unknown")
        await asyncio.sleep(200)
        assert world.part.deletions.delete == ("n2",)
        assert "provider ID c://n1" in world.part.told["n1"].message
        assert world.site.judged <= 60

    world = play(story)
    assert world.api.writes() == []
    assert len(world.cloud.questions) <= 25


def test_a_lease_that_is_renewed_late_only_delays() -> None:
    """The fence refuses for some seconds although the duty stays: the write is made without another change."""

    async def story(world: World) -> None:
        world.site.expired = True
        world.add("n1", new=True)
        await asyncio.sleep(4)
        assert world.api.log == []
        world.site.expired = False
        await asyncio.sleep(6)

    assert play(story).taints() == []


def test_a_node_registered_anew_is_asked_about_anew() -> None:
    """The watch shows another UID and never a deletion: what was known of the old machine does not count."""

    async def story(world: World) -> None:
        await asyncio.sleep(1)
        world.cloud.error = TransientProviderError("the cloud is down")
        world.api.node("n1", new=True)
        await asyncio.sleep(1)
        assert world.taints() == ["uninitialized"]
        assert world.api.log == []

    play(story, "n1")


def test_a_cancelled_part_writes_nothing_more() -> None:
    """Writes that wait for a token or a slot end with the part."""

    async def run() -> int:
        world = World()
        with _running(world):
            for number in range(100):
                world.add(f"n{number}", new=True)
            await asyncio.sleep(1)
        written = len(world.api.log)
        await asyncio.sleep(60)
        assert len(world.api.log) == written
        return written

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert 0 < runner.run(run()) < 100


# --- writes that fail ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ServerFault(500, "InternalError", "admission webhook failed"),
        Forbidden(403, "Forbidden", 'admission webhook "w" denied the request'),
        Invalid(422, "Invalid", 'admission webhook "w" denied the request'),
    ],
)
def test_a_refused_write_concerns_its_node_only(error: HubError) -> None:
    """It is tried more and more rarely, with one finding; other Nodes go on; it succeeds once it may."""

    async def story(world: World) -> None:
        world.api.errors["n1"] = error
        world.add("n1", new=True)
        await asyncio.sleep(3)
        world.add("n2", new=True)
        await asyncio.sleep(2)
        assert world.taints("n2") == []
        await asyncio.sleep(115)
        assert 5 <= len(world.api.writes("n1")) <= 8
        assert world.part.told["n1"].state == "failing"
        assert world.notes.began == [("NodeNotChanged", "n1")]
        world.api.errors.clear()
        await asyncio.sleep(75)

    world = play(story)
    assert world.taints() == []
    assert world.notes.findings["n1"] == []


def test_a_write_that_came_too_late_is_decided_again() -> None:
    """The taints change while the watch lags: 422, and then the right patch, without a finding."""

    async def story(world: World) -> None:
        world.add("n1", new=True)
        await asyncio.sleep(0.055)
        world.api.documents["n1"]["spec"]["taints"].insert(0, {"key": "example.com/other", "effect": "NoSchedule"})
        world.api.changed("n1")
        await asyncio.sleep(5)

    world = play(story)
    assert world.taints() == ["other"]
    assert len(world.api.writes()) == 3
    assert world.notes.began == []


def test_retry_after_stops_all_writes_of_the_cluster() -> None:
    """The API server asks for 20 s: no Node is written in them."""

    async def story(world: World) -> None:
        world.api.errors["n1"] = TooManyRequests(429, "TooManyRequests", "", retry_after=20.0)
        world.add("n1", new=True)
        await asyncio.sleep(1)
        world.api.errors.clear()
        world.add("n2", new=True)
        await asyncio.sleep(18)
        assert len(world.api.writes()) == 1
        await asyncio.sleep(5)

    world = play(story)
    assert world.taints("n1") == world.taints("n2") == []


def test_a_missing_right_stops_the_part_and_is_named() -> None:
    """One write each half minute, not one for each Node."""

    async def story(world: World) -> None:
        for number in range(50):
            world.api.errors[f"n{number}"] = Forbidden(403, "Forbidden", 'User "hub" cannot patch resource "nodes"')
            world.add(f"n{number}", new=True)
        await asyncio.sleep(100)
        assert len(world.api.writes()) <= 4 * nodes.IN_FLIGHT
        assert "nodes/status: patch" in world.part.problem
        world.api.errors.clear()
        await asyncio.sleep(60)

    assert not any(map(play(story).taints, ["n0", "n49"]))


def test_what_another_writer_undoes_is_left() -> None:
    """After three equal writes the hub stops, says so, and tries again when the first is ten minutes old."""

    async def story(world: World) -> None:
        await asyncio.sleep(5)
        for _ in range(6):
            world.api.documents["n1"]["status"]["addresses"] = [{"type": "Hostname", "address": "other"}]
            world.api.changed("n1")
            await asyncio.sleep(20)
        assert world.api.writes() == [STATUS] * 3
        assert world.notes.began == [("Contended", "n1")]
        assert world.part.told["n1"].state == "withheld"
        await asyncio.sleep(600)
        assert len(world.api.writes()) == 4

    world = play(story, "n1")
    assert world.notes.findings["n1"] == []


def test_an_idle_cluster_costs_twelve_questions_an_hour() -> None:
    """500 Nodes that are as they should be: no write, and one question each five minutes."""

    async def story(world: World) -> None:
        await asyncio.sleep(3599)

    world = play(story, *(f"n{number}" for number in range(500)))
    assert len(world.cloud.questions) == 12
    assert world.api.log == []


def test_another_clouds_nodes_are_never_asked_about() -> None:
    """New or not Ready, they make neither questions nor writes, and do not keep the part awake."""

    def before(world: World) -> None:
        for name, new in (("n1", True), ("n2", False)):
            world.api.node(name, ready="False", new=new)
            world.api.documents[name]["spec"]["providerID"] = "aws:///a/i-1"
            world.api.changed(name)

    async def story(world: World) -> None:
        await asyncio.sleep(600)
        assert [told.state for told in world.part.told.values()] == ["foreign"] * 2
        assert world.part.uninitialized == 0
        assert world.site.judged <= 2 + 600 / 20 + 600 / 60

    world = play(story, before=before)
    assert [name for question in world.cloud.questions for name in question] == []
    assert world.api.log == []
