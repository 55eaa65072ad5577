"""Replicas that share the Services (`--shards`) on a real API server: each Service has one writer.

As in test_ha.py, the tests judge by the API server's audit log, which has every renewal of a Lease and every write of a
slice on one clock. The Lease that a slice belongs to is computed from the registry.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from hub.election.assignment import Assignment
from hub.election.elector import Timing
from hub.election.lease import lease_of
from hub.election.peers import SHARDS
from hub.model import TargetKey
from hub.registry.load import load
from hub.report.collect import Collected, Collector, Row
from hub.report.metrics_catalog import LEADER, Metric
from hub.report.state import Snapshots
from tests.support.api import ApiRefused
from tests.support.apiserver.audit import Request
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World, add_node
from tests.support.replicas import LEASES, Change, Replica, trouble
from tests.support.waiting import eventually

COUNT = 4
NAMES = ("ha-0", "ha-1", "ha-2")
CLUSTERS = tuple(f"c{number}" for number in range(6))
"""Two names for each of three API servers; the tests do not care that two clusters have the same Nodes."""
SERVICES = {f"web-{name}": name for name in CLUSTERS}
"""Service -> its cluster. Another Service, `both`, has two clusters."""
DURATION = 6
"""Seconds of a Lease."""
SHORT = (
    *("--leader-elect-lease-duration", f"{DURATION}s", "--leader-elect-renew-deadline", "4s"),
    *("--leader-elect-retry-period", "400ms"),
)
QUICK = Timing(DURATION, 4.0, 0.4, call=2.0)
LEASE = "endpointslice-hub-default"


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Six clusters with six nodes each, and a Service for each."""
    remotes = {name: remote_clusters[number % 3] for number, name in enumerate(CLUSTERS)}
    made = World(tmp_path, hub_cluster, remotes).prepare()
    for server in range(3):
        for number in range(6):
            add_node(remote_clusters[server], f"n{number}", f"10.{server}.0.{number + 1}")
    for name in (*SERVICES, "both"):
        made.add_service(name)
    made.write(services=services(made))
    return made


def services(world: World, **sources: str) -> list[dict[str, object]]:
    """Registry entries; ``sources`` maps a default cluster to the one that its Service should have instead."""
    single = [world.service(name, sources.get(cluster, cluster)) for name, cluster in SERVICES.items()]
    return [*single, world.service("both", "c0", "c1")]


def lease(number: int) -> str:
    """The name of a shard's Lease."""
    return lease_of(LEASE, number)


def holders(world: World) -> list[str]:
    """The name of the replica that holds each shard; "" = none."""
    found = {
        lease["metadata"]["name"]: lease["spec"].get("holderIdentity") or ""
        for lease in world.hub_cluster.api.list(LEASES)
    }
    return [found.get(lease(number), "").rpartition("_")[0] for number in range(COUNT)]


def shared(world: World, among: int) -> bool:
    """Whether every shard is held, and no replica holds more than its share of ``among`` replicas."""
    found = Counter(holders(world))
    return "" not in found and len(found) == min(among, COUNT) and max(found.values()) == -(-COUNT // among)


def all_published(world: World, change: Change | None = None) -> bool:
    """Whether exactly the right endpoints of every Service are published."""
    wanted = {name: (change or Change(world, random.Random())).wanted(name) for name in ("c0", "c1", "c2")}
    by_cluster = {name: wanted[f"c{number % 3}"] for number, name in enumerate(CLUSTERS)}
    expected = {name: by_cluster[cluster] for name, cluster in SERVICES.items()}
    expected["both"] = sorted((*by_cluster["c0"], *by_cluster["c1"]))
    found = {name: world.published(name) for name in expected}
    assert found == expected, f"{found}, not {expected}; {holders(world)}"
    return True


# --- processes ---------------------------------------------------------------------------------------------------


@contextmanager
def replicas(world: World, *arguments: str) -> Iterator[dict[str, Replica]]:
    """Run three replicas, and wait until each shard is held."""
    made = {name: Replica(world, name, "--shards", str(COUNT), *SHORT, *arguments) for name in NAMES}
    try:
        for replica in made.values():
            replica.start()
        eventually(lambda: "" not in holders(world), 60)
        yield made
    finally:
        for replica in made.values():
            replica.kill()


class Observer:
    """Reads the Leases all the time, and measures how long each had no holder; a context manager."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer")
        self._free: dict[str, float] = {}
        self.gaps: list[float] = []
        """Seconds from the release of each shard until its next holder, to 0.02 s."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        api = self._world.hub_cluster.api_with(self._world.hub_cluster.token())
        while not self._stop.wait(0.02):
            with suppress(ApiRefused):
                for lease in api.list(LEASES):
                    name, held = lease["metadata"]["name"], bool(lease["spec"].get("holderIdentity"))
                    if not held:
                        self._free.setdefault(name, time.monotonic())
                    elif name in self._free:
                        self.gaps.append(time.monotonic() - self._free.pop(name))


def holder_updates(updates: Sequence[Request]) -> list[Request]:
    """The updates of one Lease by its holders, without those by which another replica only requests the Lease."""
    return [
        update
        for update in updates
        if update.holder is not None and update.holder.rpartition("_")[0] in ("", update.user)
    ]


def judge(world: World, requests: Sequence[Request]) -> int:
    """Check that only the holder of a shard wrote its Services, within its lease. Returns the number of checked writes.

    The log does not have the names of created slices, so creations are not checked. A write that reaches the server
    outside of a lease (sent before a pause, received after it) must have failed with a conflict.
    """
    assignment = Assignment(load(world.path).registry, COUNT)
    mine = [request for request in requests if request.user in NAMES and request.writes]
    named = [request for request in mine if request.resource == "leases" and request.name and request.status < 300]
    renewals = {number: [request for request in named if request.name == lease(number)] for number in range(COUNT)}
    renewals = {number: holder_updates(sorted(found, key=lambda one: one.ended)) for number, found in renewals.items()}
    writes = [request for request in mine if request.resource == "endpointslices" and request.name]
    wrong = []
    for request in writes:
        shard = assignment.of(TargetKey(request.namespace, request.name.rsplit("-", 2)[0]))
        before = [one for one in renewals[shard] if one.ended <= request.received]
        meanwhile = [
            one for one in renewals[shard] if request.received < one.ended <= request.ended and one.user != request.user
        ]
        inside = bool(before) and before[-1].user == request.user and request.received - before[-1].received < DURATION
        if (not inside or meanwhile) and request.status != 409:
            wrong.append((shard, request, before[-1:], meanwhile))
    assert wrong == []
    return len(writes)


def chaos(world: World, seconds: float, seed: int) -> list[float]:
    """Kill, pause, restart and terminate three replicas at random while nodes change, and judge all writes.

    Returns:
        Seconds for which each released shard had no holder, sorted; empty if no shard was released.
    """
    rng = random.Random(seed)
    change = Change(world, rng, ("c0", "c1", "c2"))
    with replicas(world) as made, Observer(world) as observer:
        eventually(lambda: all_published(world), 30)
        mark = world.hub_cluster.audit_mark()
        time.sleep(1.5)  # every Lease is renewed after the mark and before the first write is judged
        with change:
            trouble(made, rng, seconds, DURATION * 1.5)
        settled = time.monotonic()
        eventually(lambda: all_published(world, change), 60)
        settled = time.monotonic() - settled
        eventually(lambda: shared(world, len(NAMES)), 120)
    time.sleep(0.5)
    judged = judge(world, world.hub_cluster.requests(mark))
    gaps = sorted(observer.gaps)
    assert judged > seconds / 2
    sys.stdout.write(f"\n{judged} writes judged; everything right {settled:.1f} s after the last change\n")
    return gaps


@pytest.mark.parametrize(
    ("updates", "holders"),
    [
        ("a:a b:a a:a", "aa"),
        ("a:a b:a b:a a:a", "aa"),
        ("a:a b:a c:a a:a", "aa"),
        ("a:a b:b b:b a:a", "abba"),
        ("a:a b:b a:a", "aba"),
        ("a:a a: b:b", "aab"),
    ],
)
def test_judge_distinguishes_requests_from_acquisitions(updates: str, holders: str) -> None:
    """An update by the holder counts, a request for the Lease does not, and neither does a repeated one."""
    pairs = [update.split(":") for update in updates.split()]
    found = [
        Request(user, "", "update", "leases", "default", "x", 200, "", at, at, f"{holder}_1" if holder else "")
        for at, (user, holder) in enumerate(pairs)
    ]
    assert "".join(request.user for request in holder_updates(found)) == holders


def test_replicas_of_shards_killed_and_paused_at_random(world: World) -> None:
    """No Service has two writers, no change is lost, and in the end the shares are fair."""
    chaos(world, 8.0, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_replicas_of_shards_killed_and_paused_for_two_minutes(world: World, seed: int) -> None:
    """The same holds for two minutes."""
    gaps = chaos(world, 120.0, seed)
    assert gaps
    sys.stdout.write(
        f"{len(gaps)} shards changed hands after a release, median {gaps[len(gaps) // 2]:.2f} s, "
        f"slowest {gaps[-1]:.2f} s\n"
    )


# replicas in this process


def clusters(running: RunningHub) -> set[str]:
    """The names of the remote clusters that a hub follows."""
    return set(running.hub.fleet.clusters)


@contextmanager
def hubs(world: World, number: int = 2) -> Iterator[list[RunningHub]]:
    """Run several hubs, started one after the other; each gets its share."""
    with ExitStack() as stack:
        made = []
        for place in range(number):
            made.append(stack.enter_context(RunningHub(world, shards=COUNT, timing=QUICK)))
            eventually(lambda place=place: shares(made) == fair(place + 1), 40)  # type: ignore[misc]
        yield made


def shares(made: Sequence[RunningHub]) -> list[int]:
    """The number of shards that each hub writes, sorted."""
    return sorted(len(replica.hub.leading.held) for replica in made)


def fair(number: int) -> list[int]:
    """The fair numbers of shards for this many hubs, sorted."""
    return sorted(COUNT // number + (place < COUNT % number) for place in range(number))


def test_each_replica_follows_the_clusters_of_its_services_only(world: World) -> None:
    """The first replica follows all clusters until it hands half of the shards to the second with their clusters."""
    with hubs(world, 1) as [alone]:
        eventually(lambda: all_published(world), 30)
        assert clusters(alone) == set(CLUSTERS)
    with hubs(world) as made:
        eventually(lambda: all_published(world), 30)
        mark = world.hub_cluster.audit_mark()
        for replica in made:
            assignment = Assignment(replica.hub.registry, COUNT)
            held = replica.hub.leading.held
            needed = {cluster for name, cluster in SERVICES.items() if assignment.of(TargetKey("edge", name)) in held}
            if assignment.of(TargetKey("edge", "both")) in held:
                needed |= {"c0", "c1"}
            assert clusters(replica) == needed
        assert clusters(made[0]) | clusters(made[1]) == set(CLUSTERS)
        assert len(clusters(made[0])) + len(clusters(made[1])) <= len(CLUSTERS) + 1  # one of the clusters of `both`
        add_node(world.remotes["c2"], "new", "10.2.0.9")
        eventually(lambda: world.published("web-c2")[-1:] == ["10.2.0.9"] == world.published("web-c5")[-1:], 15)
        assert len(world.writes(mark)) == 2  # one write per Service, by its writer


def test_replica_reports_its_shards(world: World) -> None:
    """A replica shows its shards in status, metrics and Leases; its status names the writer of other Services."""
    with hubs(world) as made:
        eventually(lambda: all_published(world), 30)
        said: list[int] = []
        for running, other in zip(made, reversed(made), strict=True):
            status = Snapshots(running.hub).take()
            assert (status.hub.role, status.hub.shard_count) == ("leader", COUNT)
            said += status.hub.shards
            held = set(running.hub.leading.held)
            eventually(lambda running=running, other=other: _check_other_is_named(running, other), 10)  # type: ignore[misc]
            leads = dict(rows(running, LEADER))
            assert leads == {(str(number),): int(number in held) for number in range(COUNT)}
        assert sorted(said) == list(range(COUNT))
    for found in world.hub_cluster.api.list(LEASES):
        assert found["metadata"]["annotations"][SHARDS] == str(COUNT)
        assert not found["spec"].get("holderIdentity")  # both hubs were stopped properly


def rows(running: RunningHub, metric: Metric) -> list[Row]:
    """The collected rows of a metric."""

    async def collected() -> Collected:
        return Collector(running.hub).collect()

    return next(found for collected_metric, found in asyncio.run(collected()) if collected_metric is metric)


def _check_other_is_named(running: RunningHub, other: RunningHub) -> bool:
    """Whether a status names the other hub as the writer of exactly those Services that this hub does not write."""
    status = Snapshots(running.hub).take()
    lines = {service.name: service.status for service in status.services}
    foreign = {str(key) for key in running.hub.registry.targets if not running.hub.writes(key)}
    assert foreign
    assert {name for name, text in lines.items() if text} == foreign, json.dumps(lines)
    assert all(other.hub.elector.identity in lines[name] for name in foreign), json.dumps(lines)
    assert {found.name for found in status.clusters if found.state} == clusters(running)
    assert [source for service in status.services for source in service.sources if source.unknown] == []
    return True


def test_a_reload_moves_services_between_replicas(world: World) -> None:
    """If sources change, Services move to the other shard; each is right in the end, and nothing is written twice."""
    with hubs(world) as made:
        eventually(lambda: all_published(world), 30)
        before = {key: made[0].hub.writes(key) for key in made[0].hub.registry.targets}
        mark = world.hub_cluster.audit_mark()
        turned = dict(zip(CLUSTERS, (*CLUSTERS[1:], CLUSTERS[0]), strict=True))
        world.write(services=services(world, **turned))

        def moved() -> bool:
            change = Change(world, random.Random())
            wanted = {f"c{number}": change.wanted(f"c{number}") for number in range(3)}
            for name, cluster in SERVICES.items():
                found = {
                    slice_["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"]
                    for slice_ in world.slices(name)
                }
                assert found == {turned[cluster]}, (name, found)
                assert world.published(name) == wanted[f"c{int(turned[cluster][1:]) % 3}"]
            assert all(replica.hub.leading.shards.agreed for replica in made)
            return True

        eventually(moved, 60)
        after = {key: made[0].hub.writes(key) for key in before}
        assert after != before
        written = [request for request in world.writes(mark) if request.status < 300]
        assert len(written) <= 4 * len(SERVICES)


def test_replica_with_another_shard_count_stands_by(world: World) -> None:
    """A replica with another number of shards writes nothing, and its status names the one with a different number."""
    with hubs(world, 1) as [running]:
        eventually(lambda: all_published(world), 30)
        for count in (1, 2, 8):
            with RunningHub(world, shards=count, timing=QUICK) as other:
                wanted = f"has --shards {COUNT}" if count > 1 else ""
                eventually(lambda wanted=wanted, other=other: wanted in other.hub.trouble, 10)  # type: ignore[misc]
                time.sleep(1.0)
                assert (other.hub.writing, sorted(running.hub.leading.held)) == (False, list(range(COUNT)))
