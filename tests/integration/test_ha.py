"""Several ``hub run`` processes on a real API server: only one writes, whatever happens to it.

The tests judge by the API server's audit log, which records every renewal of the Lease and every write of a slice on
one clock. Each process has its own account, so the log tells them apart. Leases are short here; times that are
proportional to the lease are checked in proportion.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Options, assemble
from tests.support.apiserver.audit import Request
from tests.support.apiserver.server import ApiServer
from tests.support.hub import World, add_node
from tests.support.replicas import DURATION, LEASES, SHORT, Change, Replica, trouble
from tests.support.waiting import eventually

SERVICES = ("one", "two", "three", "four")
"""Several Services, so that there are more writes to judge."""


# --- replicas ----------------------------------------------------------------------------------------------


@contextmanager
def replicas(world: World, names: Sequence[str], *arguments: str) -> Iterator[dict[str, Replica]]:
    """Run replicas of one hub. They start one after the other, and the first one leads."""
    made = {name: Replica(world, name, *arguments) for name in names}
    try:
        for name, replica in made.items():
            replica.start()
            eventually(lambda replica=replica: " leads" in replica.log.read_text(), 20)  # type: ignore[misc]
            assert holder(world).startswith(names[0]), name
        yield made
    finally:
        for replica in made.values():
            replica.kill()


def holder(world: World, owner: str = "default") -> str:
    """The identity that holds the Lease."""
    return str(world.hub_cluster.api.get(f"{LEASES}/endpointslice-hub-{owner}")["spec"].get("holderIdentity") or "")


def leader(world: World, among: dict[str, Replica], owner: str = "default") -> Replica | None:
    """The replica that holds the Lease, if it is one of these."""
    return among.get(holder(world, owner).rpartition("_")[0])


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Cluster eu with six nodes, published for several Services."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    for number in range(6):
        add_node(made.remotes["eu"], f"n{number}", f"10.1.0.{number + 1}")
    for name in SERVICES:
        made.add_service(name)
    made.write(services=[made.service(name) for name in SERVICES])
    return made


# --- judgement -----------------------------------------------------------------------------------------------


def judge(requests: Sequence[Request], names: Sequence[str], lease: str = "endpointslice-hub-default") -> int:
    """Check that only the holder of the Lease wrote, and within its lease. Returns the number of writes of slices.

    A write that reaches the server outside of the lease (sent before a pause, received after it) must have failed with
    a conflict.
    """
    mine = [request for request in requests if request.user in names and request.writes]
    renewals = sorted(
        (
            request
            for request in mine
            if request.resource == "leases" and request.name in ("", lease) and request.status < 300
        ),
        key=lambda request: request.ended,
    )
    writes = [request for request in mine if request.resource == "endpointslices"]
    wrong = []
    for request in writes:
        before = [renewal for renewal in renewals if renewal.ended <= request.received]
        meanwhile = [
            one for one in renewals if request.received < one.ended <= request.ended and one.user != request.user
        ]
        inside = bool(before) and before[-1].user == request.user and request.received - before[-1].received < DURATION
        if (not inside or meanwhile) and request.status != 409:
            wrong.append((request, before[-1:], meanwhile))
    assert wrong == []
    return len(writes)


def settled(world: World, change: Change, made: dict[str, Replica], seconds: float = 30.0) -> None:
    """Wait until every Service has exactly the expected addresses. Fails with the end of every replica's log."""
    wanted = change.wanted()

    def check() -> bool:
        found = {name: world.published(name) for name in SERVICES}
        said = "\n".join(name + replica.log.read_text()[-3000:] for name, replica in made.items())
        assert found == dict.fromkeys(SERVICES, wanted), f"{found}, not {wanted}; {holder(world)} leads\n{said}"
        return True

    eventually(check, seconds)


# --- handing over ------------------------------------------------------------------------------------------------


def test_the_next_replica_writes_within_two_seconds_of_sigterm(world: World) -> None:
    """The standby sees the released Lease in its watch, and publishes within 2 s a change made meanwhile."""
    names = ("ha-0", "ha-1", "ha-2")
    with replicas(world, names) as made:
        eventually(lambda: len(world.published("one")) == 6, 15)
        for number in range(2):
            first = leader(world, made)
            assert first is not None
            stopped = time.monotonic()
            thread = threading.Thread(target=first.terminate)
            thread.start()
            add_node(world.remotes["eu"], f"new-{number}", f"10.1.9.{number + 1}")
            eventually(lambda number=number: len(world.published("four")) == 7 + number, 10)  # type: ignore[misc]
            assert time.monotonic() - stopped < 2.0
            thread.join(10)
            time.sleep(1.5)  # a standby that lost the race for the Lease watches it again after a second


def test_a_standby_takes_over_from_a_killed_leader(world: World) -> None:
    """A change made after kill -9 of the leader is published within the lease duration and five seconds."""
    with replicas(world, ("ha-0", "ha-1"), *SHORT) as made:
        eventually(lambda: len(world.published("one")) == 6, 15)
        killed = time.monotonic()
        made["ha-0"].kill()
        add_node(world.remotes["eu"], "new", "10.1.9.1")
        eventually(lambda: len(world.published("one")) == 7, 20)
        assert time.monotonic() - killed < DURATION + 5


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_lease_is_kept_while_a_write_may_be_on_its_way(tmp_path: Path, *, hangs: bool) -> None:
    """A stopping hub keeps its Lease if a write has no answer, since it may still be applied, and else releases it."""
    hub_cluster, remote = SimulatedCluster("hub"), SimulatedCluster("eu")
    remote.nodes.add(make_node("n1", "10.1.0.1"))
    hub_cluster.put(make_service("default", "web"))
    (tmp_path / "clusters.yaml").write_text(
        "{version: 1, clusters: [{name: eu, kubeconfig: {path: eu}, allowedCIDRs: [10.0.0.0/8], "
        "provider: {name: node-addresses}}], "
        "services: [{name: web, namespace: default, sources: [{cluster: eu}], ports: [{port: 30443}]}]}"
    )
    async with hub_cluster, remote:
        remote.write_kubeconfig(tmp_path / "eu")
        kubeconfig = hub_cluster.write_kubeconfig(tmp_path / "hub")
        stop = asyncio.Event()
        if hangs:
            hub_cluster.hang(1, verb="create", resource="endpointslices")
        async with assemble(Options(str(tmp_path / "clusters.yaml"), str(kubeconfig))) as hub, asyncio.timeout(20):
            running = asyncio.create_task(hub.run(stop))
            asked_for = ("create", "endpointslices")
            while not (hub_cluster.requests[asked_for] if hangs else hub_cluster.slices.list()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asked = time.monotonic()
            stop.set()
            await running
            assert time.monotonic() - asked < 4.0
            (lease,) = hub_cluster.leases.list()
            assert lease["spec"].get("holderIdentity", "") == (hub.elector.identity if hangs else "")


# --- trouble -----------------------------------------------------------------------------------------------------


def paused_leader(world: World, points: int, seed: int) -> None:
    """Pause the leader at random points, resume it when another replica leads, and judge all writes."""
    names, rng = ("ha-0", "ha-1"), random.Random(seed)
    mark = world.hub_cluster.audit_mark()
    change = Change(world, rng)
    with replicas(world, names, *SHORT) as made:
        eventually(lambda: len(world.published("one")) == 6, 15)
        with change:
            for _ in range(points):
                time.sleep(rng.uniform(0.0, 0.5))
                old = eventually(lambda: leader(world, made), 20)
                old.pause()
                other = next(replica for replica in made.values() if replica is not old)
                eventually(lambda other=other: leader(world, made) is other, 20)  # type: ignore[misc]
                old.go_on()
        settled(world, change, made)
    time.sleep(0.5)
    assert judge(world.hub_cluster.requests(mark), names) > points


def test_a_leader_paused_at_random_points_writes_nothing_late(world: World) -> None:
    """A leader that is paused at any point and resumed after its lease has ended writes nothing late."""
    paused_leader(world, 8, seed=1)


@pytest.mark.nightly
def test_a_leader_paused_at_two_hundred_points_writes_nothing_late(world: World) -> None:
    """A leader that is paused at two hundred points, for a quarter of an hour, writes nothing late."""
    paused_leader(world, 200, seed=2)


def chaos(world: World, seconds: float, seed: int) -> None:
    """Kill, pause, restart and terminate three replicas at random while nodes change, and judge all writes."""
    names, rng = ("ha-0", "ha-1", "ha-2"), random.Random(seed)
    mark = world.hub_cluster.audit_mark()
    change = Change(world, rng)
    with replicas(world, names, *SHORT) as made:
        with change:
            trouble(made, rng, seconds, DURATION * 1.5, lambda: leader(world, made))
        settled(world, change, made)
    time.sleep(0.5)
    assert judge(world.hub_cluster.requests(mark), names) > seconds / 2


def test_replicas_killed_and_paused_at_random(world: World) -> None:
    """While replicas are killed and paused, there are never two writers, and no change is lost."""
    chaos(world, 20.0, seed=3)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_replicas_killed_and_paused_for_two_minutes(world: World, seed: int) -> None:
    """The same holds for two minutes, with several seeds."""
    chaos(world, 120.0, seed)
