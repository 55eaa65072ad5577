"""The history on real API servers: it explains what is gone, survives its hub, and costs next to no writes."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hub.decide.guard import Withheld
from hub.decide.history import Entry
from hub.model import TargetKey
from hub.observe.local import history
from hub.observe.local.history import config_map, unpack
from tests.support.apiserver.audit import Mark, Request
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, ROOT, HubProcess, RunningHub, World, add_node
from tests.support.ports import free_port
from tests.support.replicas import SHORT, Replica
from tests.support.waiting import eventually

KEY = TargetKey("edge", "payments")
PATH = f"/api/v1/namespaces/default/configmaps/{config_map('default')}"
DELETED = range(1, 6)
STAY = [f"10.1.0.{number}" for number in range(6, 13)]


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster eu with twelve nodes, and the Service payments of it."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    made.add_service()
    for number in range(1, 13):
        add_node(remote_clusters[0], f"n{number}", f"10.1.0.{number}")
    made.write()
    return made


def delete(world: World, *numbers: int) -> None:
    """Delete Nodes."""
    for number in numbers:
        world.remotes["eu"].api.delete(f"/api/v1/nodes/n{number}")


def five_deleted(world: World) -> None:
    """Wait until all twelve nodes are published, and delete five of them."""
    world.awaits(*[f"10.1.0.{number}" for number in range(1, 13)], timeout=20)
    delete(world, *DELETED)
    world.awaits(*STAY)


def command(*arguments: str) -> tuple[int, str, str]:
    """``hub …``: exit code, output, errors."""
    done = subprocess.run(
        [sys.executable, "-m", "hub", *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    return done.returncode, done.stdout, done.stderr


def explains(*where: str) -> bool:
    """Check that ``hub why`` explains an address of a deleted node."""
    code, said, errors = command("why", "10.1.0.2", *where)
    assert code == 0, errors
    assert "removed" in said
    assert "10.1.0.2, node n2 " in said
    assert "of eu: its node is gone (provider node-addresses)" in said
    return True


def stored(world: World) -> list[Entry]:
    """The entries in the ConfigMap."""
    found: Any = world.hub_cluster.api.find(PATH)
    return list(unpack(found["binaryData"][history.DATA_KEY]).get(KEY, ())) if found is not None else []


def removed(entries: list[Entry]) -> set[str]:
    """The addresses that were removed."""
    return {named.address for entry in entries if entry.kind == "removed" for named in entry.endpoints}


def writes_of_history(requests: list[Request]) -> list[Request]:
    """The successful writes of the history."""
    return [
        request
        for request in requests
        if request.writes
        and request.resource == "configmaps"
        and request.status < 300
        and request.name in ("", config_map("default"))
    ]


# --- what is gone ------------------------------------------------------------------------------------


def test_deleted_nodes_are_explained_also_after_a_restart(world: World) -> None:
    """``hub why`` and ``hub history`` explain five deleted nodes: of a running hub, without one, and of the next."""
    port = free_port()
    running = ("--server", f"http://127.0.0.1:{port}")
    offline = ("--kubeconfig", str(world.kubeconfig))
    registry = ("--registry", str(world.path), *offline)
    with HubProcess(world, "--listen", f"127.0.0.1:{port}") as process:
        five_deleted(world)
        eventually(lambda: explains(*running))
        assert process.terminate()[0] == 0
    assert removed(stored(world)) == {f"10.1.0.{number}" for number in DELETED}
    assert explains(*registry)
    code, said, errors = command("history", "edge/payments", *offline)
    assert (code, errors) == (0, "")
    assert said.splitlines()[0].split() == ["TIME", "SERVICE", "WHAT", "CLUSTER", "ENDPOINTS", "WHY"]
    assert "removed" in said.splitlines()[-1]
    with HubProcess(world, "--listen", f"127.0.0.1:{port}") as process:
        eventually(lambda: explains(*running), 20)
        code, said, errors = command("history", "-o", "json", *running)
        assert (code, errors) == (0, "")
        whats = [entry["what"] for entry in json.loads(said)["entries"]]
        assert (whats[0], set(whats[1:])) == ("added", {"removed"})
        assert process.terminate()[0] == 0
    code, said, errors = command("why", "10.1.0.99", *registry)
    assert code == 1
    assert "no cluster and no slice has the address 10.1.0.99, and the history does not name it" in errors


@contextmanager
def two_replicas(world: World) -> Iterator[tuple[Replica, Replica, dict[str, tuple[str, str]]]]:
    """Two replicas, the first of which leads; and the options that ask each of them."""
    ports = {name: free_port() for name in ("ha-0", "ha-1")}
    made = [Replica(world, name, *SHORT, "--listen", f"127.0.0.1:{port}") for name, port in ports.items()]
    asked = {name: ("--server", f"http://127.0.0.1:{port}") for name, port in ports.items()}
    try:
        for replica in made:
            replica.start()
            eventually(lambda replica=replica: " leads" in replica.log.read_text(), 20)  # type: ignore[misc]
        yield made[0], made[1], asked
    finally:
        for replica in made:
            replica.kill()


def test_next_leader_knows_everything_after_sigterm(world: World) -> None:
    """A leader that ends in good order stores its last second; the standby that takes over continues it."""
    with two_replicas(world) as (first, second, asked):
        five_deleted(world)
        first.terminate()
        eventually(lambda: removed(stored(world)) == {f"10.1.0.{number}" for number in DELETED}, 1)
        eventually(lambda: explains(*asked["ha-1"]), 20)
        delete(world, 6)
        world.awaits(*STAY[1:])
        second.terminate()
    entries = stored(world)
    assert removed(entries) == {f"10.1.0.{number}" for number in range(1, 7)}
    assert [entry.kind for entry in entries].count("added") == 1


@pytest.mark.nightly
def test_kill_loses_a_minute_at_most(world: World) -> None:
    """After kill -9, the standby explains everything that is more than a minute old."""
    with two_replicas(world) as (first, second, asked):
        five_deleted(world)
        deleted = time.monotonic()
        eventually(lambda: removed(stored(world)) == {f"10.1.0.{number}" for number in DELETED}, history.PERIOD + 5)
        assert time.monotonic() - deleted < history.PERIOD + 5
        first.kill()
        eventually(lambda: explains(*asked["ha-1"]), 20)
        delete(world, 6)
        world.awaits(*STAY[1:], timeout=20)
        second.terminate()
    assert removed(stored(world)) == {f"10.1.0.{number}" for number in range(1, 7)}


def test_withheld_removal_and_its_approval_are_remembered(world: World) -> None:
    """The removal of most nodes is withheld, and released by an operator, whose name the history has."""
    with RunningHub(world) as running:
        world.awaits(*[f"10.1.0.{number}" for number in range(1, 13)])
        delete(world, *range(1, 11))
        stay = ["10.1.0.11", "10.1.0.12"]

        def complete() -> Withheld | None:
            """The withheld removal, once it has all deleted nodes that are still published."""
            last = running.hub.reconciler.last(KEY)
            found = next(iter(last.withheld.values()), None) if last is not None else None
            return found if found is not None and sorted({*world.published()} - {*found.addresses}) == stay else None

        withheld = eventually(complete)
        assert withheld is not None
        code, _, errors = command("approve", "edge/payments", withheld.hash, "--kubeconfig", str(world.kubeconfig))
        assert code == 0, errors
        world.awaits(*stay)
    kinds = {entry.kind: entry for entry in stored(world)}
    assert set(kinds) == {"added", "withheld", "approved", "removed"}
    assert (kinds["approved"].hash, kinds["approved"].count) == (withheld.hash, len(withheld.addresses))
    assert kinds["approved"].why.startswith("by ")
    assert kinds["approved"].why.endswith(f"@{socket.gethostname()}")


# --- what it costs -----------------------------------------------------------------------------------


def test_idle_hub_writes_no_history(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes, there is no write for several periods, nor at the end; a restart writes nothing either."""
    monkeypatch.setattr(history, "PERIOD", 1.0)
    with RunningHub(world) as running:
        eventually(lambda: len(world.published()) == 12)
        eventually(lambda: stored(world) == list(running.hub.history.of(KEY)) != [])
        mark = world.hub_cluster.audit_mark()
        time.sleep(4.0)
        assert running.hub.history.of(KEY)
    with RunningHub(world) as running:
        eventually(lambda: running.hub.writing and running.hub.history.of(KEY))
        time.sleep(2.0)
    time.sleep(0.3)
    requests = world.hub_cluster.requests(mark, "hub")
    assert [
        request for request in requests if request.writes and request.resource in ("configmaps", "endpointslices")
    ] == []


def many_changes(world: World, number: int, seconds: float) -> tuple[list[Request], list[Request]]:
    """So many changes of nodes in so many seconds; returns the writes of slices and those of the history."""
    with RunningHub(world) as running:
        eventually(lambda: len(world.published()) == 12)
        mark: Mark = world.hub_cluster.audit_mark()
        started = time.monotonic()
        for count in range(number):
            if count % 2:
                delete(world, 100 + count // 2)
            else:
                add_node(world.remotes["eu"], f"n{100 + count // 2}", f"10.1.1.{1 + count // 2}")
            time.sleep(max(0.0, started + (count + 1) * seconds / number - time.monotonic()))
        eventually(lambda: running.hub.history.of(KEY)[-1].kind == "removed")
    time.sleep(0.3)
    requests = world.hub_cluster.requests(mark, "hub")
    slices = [
        request
        for request in requests
        if request.writes and request.resource == "endpointslices" and request.status < 300
    ]
    return slices, writes_of_history(requests)


def test_changes_share_the_writes_of_the_history(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty changes within one period make at most one write of the history for twenty writes of slices."""
    monkeypatch.setattr(history, "PERIOD", 18.0)
    slices, written = many_changes(world, 60, 18.0)
    assert len(slices) >= 40
    assert 1 <= len(written) <= max(1, len(slices) // 20)


@pytest.mark.nightly
def test_two_hundred_changes_in_a_minute_cost_at_most_five_percent(world: World) -> None:
    """Two hundred changes in sixty seconds: the writes of the history are at most 5 % of those of slices."""
    slices, written = many_changes(world, 200, 60.0)
    assert len(slices) >= 100
    assert 1 <= len(written) <= 0.05 * len(slices)


def test_history_stays_in_memory_without_the_permission(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Without the rule, everything else works, the log names the rule once, and so does ``hub status``."""
    rules = [rule for rule in HUB_RULES if "configmaps" not in rule["resources"]]
    world.hub_cluster.grant("nobody", *rules)
    world.hub_cluster.kubeconfig(world.kubeconfig, "nobody")
    with RunningHub(world) as running:
        five_deleted(world)
        missing = f"lacks the rule «{history.RULE}» for the ConfigMap {config_map('default')}"
        eventually(lambda: missing in running.hub.trouble)
        eventually(lambda: removed(list(running.hub.history.of(KEY))) == {f"10.1.0.{number}" for number in DELETED})
    assert caplog.text.count(f"it is only in memory: 403: the hub's account {missing}") == 1
    assert stored(world) == []


def test_damaged_history_is_replaced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A ConfigMap that cannot be read is reported and replaced; the hub works all the time."""
    body = {"metadata": {"name": config_map("default")}, "binaryData": {history.DATA_KEY: "bm8gZ3ppcA=="}}
    world.hub_cluster.api.post(PATH.rpartition("/")[0], body)
    with RunningHub(world):
        five_deleted(world)
    assert removed(stored(world)) == {f"10.1.0.{number}" for number in DELETED}
    assert caplog.text.count("is ignored, and replaced by the next write") == 1


async def test_once_continues_the_history(world: World) -> None:
    """``hub run --once`` stores what it did, and the next run adds to it."""
    arguments = ("run", "--once", "--registry", str(world.path), "--kubeconfig", str(world.kubeconfig))
    for numbers in ((), DELETED):
        delete(world, *numbers)
        code, _, errors = await asyncio.to_thread(command, *arguments)
        assert code == 0, errors
    entries = stored(world)
    assert [entry.kind for entry in itertools.islice(entries, 2)] == ["added", "removed"]
    assert removed(entries) == {f"10.1.0.{number}" for number in DELETED}
