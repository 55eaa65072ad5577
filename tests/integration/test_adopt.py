"""Moving from other tools to the hub on real API servers: a stopped controller, a running controller, and imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from click.testing import CliRunner

from hub.cli import cli
from tests.support.api import ApiRefused, Object
from tests.support.apiserver.audit import Mark, Request
from tests.support.apiserver.server import ApiServer
from tests.support.hub import ROOT, RunningHub, World, add_node
from tests.support.waiting import eventually

OLD = "old-controller.example.com"
THEIRS = f"endpointslice.kubernetes.io/managed-by={OLD}"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
ALL = tuple(f"10.1.0.{number}" for number in range(4))


class OldController:
    """The loop of the single-target controller: compares the stored slice with the desired addresses, writes on change.

    Attributes:
        addresses: The desired addresses.
        writes: The number of writes so far.
    """

    def __init__(self, server: ApiServer, *addresses: str) -> None:
        self.addresses = addresses
        self.writes = 0
        self._api = server.api
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="old controller")

    def __enter__(self) -> Self:
        self.poll()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def poll(self) -> None:
        """Compare and write once. A conflict is raised to the loop, which tries again on its next turn."""
        try:
            stored = self._api.get(f"{SLICES}/payments-secured")
        except ApiRefused as refused:
            if refused.status != 404:
                raise
            self._api.post(SLICES, self._slice())
            self.writes += 1
            return
        found = {address for endpoint in stored["endpoints"] or () for address in endpoint["addresses"]}
        if found != set(self.addresses):
            version = stored["metadata"]["resourceVersion"]
            self._api.put(f"{SLICES}/payments-secured", self._slice(resourceVersion=version))
            self.writes += 1

    def _slice(self, **meta: Any) -> Object:
        labels = {"kubernetes.io/service-name": "payments", "endpointslice.kubernetes.io/managed-by": OLD}
        return {
            "metadata": {"name": "payments-secured", "labels": labels, **meta},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": 30443, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in self.addresses],
        }

    def _loop(self) -> None:
        while not self._stop.wait(0.2):
            try:
                self.poll()
            except ApiRefused as refused:
                if refused.status not in (404, 409):
                    raise


class Recorder:
    """Samples what a consumer sees that reads all slices of the Service, regardless of their owner.

    Attributes:
        samples: For each sample, the addresses that are ready in at least one slice.
        mixed: Addresses whose readiness differed between two slices of one sample.
    """

    def __init__(self, world: World) -> None:
        self.samples: list[frozenset[str]] = []
        self.mixed: set[str] = set()
        self._api = world.hub_cluster.api_as("admin")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="recorder")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _loop(self) -> None:
        while not self._stop.wait(0.01):
            ready: dict[str, set[bool]] = {}
            for slice_ in self._api.list(SLICES, labelSelector="kubernetes.io/service-name=payments"):
                for endpoint in slice_["endpoints"] or ():
                    for address in endpoint["addresses"]:
                        ready.setdefault(address, set()).add(endpoint["conditions"].get("ready") is not False)
            self.samples.append(frozenset(address for address, states in ready.items() if True in states))
            self.mixed |= {address for address, states in ready.items() if len(states) > 1}


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster ``eu`` with four nodes, and the Service ``payments`` that the old controller fills."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    made.add_service()
    made.write(services=[made.service(adopt={"managedBy": OLD})])
    for number, address in enumerate(ALL):
        add_node(remote_clusters[0], f"n{number}", address)
    return made


@contextmanager
def recorded(world: World, *always: str) -> Iterator[Recorder]:
    """Record while the block runs. These addresses must be ready in every sample, and no sample may be mixed."""
    with Recorder(world) as recorder:
        yield recorder
    assert len(recorder.samples) > 10
    assert [missing for sample in recorder.samples if (missing := set(always) - sample)] == []
    assert recorder.mixed == set()


def deletes(world: World, mark: Mark) -> int:
    """The number of slices that the hub deleted since a mark."""
    return sum(request.verb == "delete" for request in world.writes(mark))


def of_the_hub(world: World, mark: Mark, count: int) -> list[Request]:
    """The hub's writes of slices since a mark. Fails unless there are exactly ``count``."""
    found = world.writes(mark)
    assert len(found) == count, found
    return found


def theirs(world: World) -> list[Object]:
    """The slices of the old controller."""
    return world.slices(selector=THEIRS)


def test_slices_of_a_stopped_controller_are_deleted_once_covered(world: World) -> None:
    """Both sets of slices exist for five seconds, then only the hub's. A consumer never sees fewer endpoints."""
    mark = world.hub_cluster.audit_mark()
    with OldController(world.hub_cluster, *ALL):
        pass
    with recorded(world, *ALL), RunningHub(world) as running:
        world.awaits(*ALL)
        assert len(theirs(world)) == 1
        eventually(lambda: not theirs(world), timeout=15)
        world.awaits(*ALL)
        assert running.findings() == {}
    made, gone = eventually(lambda: of_the_hub(world, mark, 2))
    assert (made.verb, gone.verb) == ("create", "delete")
    assert gone.received - made.ended > 4.9


def test_slices_with_an_address_that_ours_lack_stay(world: World) -> None:
    """A finding names the missing address. The slices are deleted once the hub publishes that address too."""
    with OldController(world.hub_cluster, *ALL, "10.1.0.9"):
        pass
    with recorded(world, *ALL, "10.1.0.9"), RunningHub(world) as running:
        finding = eventually(lambda: running.findings().get("AdoptionWaiting"))
        eventually(lambda: running.findings()["AdoptionWaiting"].objects == ("10.1.0.9",))
        assert OLD in finding.message
        time.sleep(6.0)
        assert "ForeignEndpoints" not in running.findings()
        assert len(theirs(world)) == 1
        add_node(world.remotes["eu"], "n9", "10.1.0.9")
        eventually(lambda: not theirs(world), timeout=15)


def test_ours_are_as_ready_as_theirs_until_theirs_go(world: World) -> None:
    """A node that the hub would publish as not ready stays ready until the old controller's slices are deleted."""
    world.write(
        clusters=[world.cluster("eu", nodes={"cordoned": "not-ready"})],
        services=[world.service(adopt={"managedBy": OLD})],
    )
    kind = "application/merge-patch+json"
    world.remotes["eu"].api.patch("/api/v1/nodes/n0", {"spec": {"unschedulable": True}}, kind)
    with OldController(world.hub_cluster, *ALL):
        pass
    with recorded(world, *ALL), RunningHub(world) as running:
        eventually(lambda: running.findings().get("AdoptionWaiting"))
        world.awaits(*ALL)
        world.remotes["eu"].api.patch("/api/v1/nodes/n0", {"spec": {"unschedulable": False}}, kind)
        eventually(lambda: not theirs(world), timeout=15)


def test_a_controller_that_still_runs_is_reported_and_not_fought(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller writes its slice again after the deletion. The hub leaves it, and consumers see all endpoints."""
    mark = world.hub_cluster.audit_mark()
    with OldController(world.hub_cluster, *ALL) as old, recorded(world, *ALL), RunningHub(world) as running:
        eventually(lambda: old.writes == 2, timeout=15)
        finding = eventually(lambda: running.findings().get("OldWriterActive"))
        time.sleep(7.0)
        assert OLD in finding.message
        assert caplog.text.count("edge/payments: OldWriterActive: ") == 1
        assert old.writes == 2
        assert len(theirs(world)) == 1
        world.awaits(*ALL)
    assert deletes(world, mark) == 1


def test_controller_that_writes_meanwhile_keeps_its_slices(world: World) -> None:
    """A write within the five seconds shows that the controller runs, so the hub deletes nothing."""
    mark = world.hub_cluster.audit_mark()
    with OldController(world.hub_cluster, *ALL[:3]) as old, RunningHub(world) as running:
        world.awaits(*ALL)
        old.addresses = ALL
        eventually(lambda: running.findings().get("OldWriterActive"))
        time.sleep(6.0)
        assert len(theirs(world)) == 1
    assert deletes(world, mark) == 0


def test_the_hub_takes_the_controllers_place_with_its_environment(world: World) -> None:
    """With the old controller's variables, the hub publishes the same inventory and takes over the slices."""
    inventory = world.folder / "inventory.json"
    records = [{"name": f"n-{address}", "private_ip": address, "ready": True, "worker": True} for address in ALL]
    others = [{"name": "gateway", "private_ip": "10.1.0.8", "ready": True, "worker": False}]
    elsewhere = [{"name": "odd", "private_ip": "192.0.2.1", "ready": True, "worker": True}]
    inventory.write_text(json.dumps(records + others + elsewhere))
    variables = {
        "SOURCE_KIND": "file",
        "INVENTORY_FILE_PATH": str(inventory),
        "SOURCE_POLL_INTERVAL": "1s",
        "SECURED_SUBNET_CIDR": "10.1.0.0/24",
        "EMPTY_RESULT_THRESHOLD": "2",
        "TARGET_NAMESPACE": "edge",
        "TARGET_SERVICE_NAME": "payments",
        "TARGET_ENDPOINTSLICE_NAME": "payments-secured",
        "TARGET_MANAGED_BY": OLD,
        "TARGET_PORT": "30443",
        "STORE_KIND": "kubectl",
    }
    with OldController(world.hub_cluster, *ALL):
        pass
    with recorded(world, *ALL), from_environment(world, variables):
        world.awaits(*ALL, timeout=20)
        eventually(lambda: not theirs(world), timeout=15)
        ours = world.slices()
        assert {slice_["metadata"]["labels"]["endpointslice-hub/owner"] for slice_ in ours} == {"edge.payments"}
        assert [port["port"] for slice_ in ours for port in slice_["ports"]] == [30443]
    with from_environment(world, variables):
        # Three of four nodes at once: with --from-env the guard withholds no removal, as the old controller had none.
        inventory.write_text(json.dumps(records[:1]))
        world.awaits(ALL[0], timeout=20)


@contextmanager
def from_environment(world: World, variables: dict[str, str]) -> Iterator[None]:
    """Run ``hub run --from-env`` as a process. Afterwards it must exit with 0."""
    argv = [sys.executable, "-m", "hub", "run", "--from-env", "--kubeconfig", str(world.kubeconfig)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    with (world.folder / "hub.log").open("wb") as log:
        child = subprocess.Popen(
            [*argv, "--health-probe-bind-address", "0", "--listen", "0"],
            stdout=log,
            stderr=log,
            cwd=world.folder,
            env=environment,
        )
    try:
        yield
        child.terminate()
        assert child.wait(10) == 0, (world.folder / "hub.log").read_text()
    finally:
        child.kill()
        child.wait(10)


def test_slices_of_others_are_never_touched(world: World) -> None:
    """Only slices with the named managed-by value, of this Service, and without an owner label are deleted."""
    odd = {"endpointslice.kubernetes.io/managed-by": OLD, "kubernetes.io/service-name": "payments"}
    others = {
        "another-manager": odd | {"endpointslice.kubernetes.io/managed-by": "somebody-else"},
        "another-service": odd | {"kubernetes.io/service-name": "other"},
        "an-owner": odd | {"endpointslice-hub/owner": "another-hub"},
    }
    endpoints = [{"addresses": [ALL[0]], "conditions": {"ready": True}}]
    for name, labels in others.items():
        body = {
            "metadata": {"name": name, "labels": labels},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [],
        }
        world.hub_cluster.api.post(SLICES, body)
    with OldController(world.hub_cluster, *ALL):
        pass
    with RunningHub(world):
        eventually(lambda: "payments-secured" not in names(world), timeout=15)
    assert set(others) <= names(world)


def names(world: World) -> set[str]:
    """The names of all slices in the namespace."""
    return {str(slice_["metadata"]["name"]) for slice_ in world.hub_cluster.api.list(SLICES)}


def test_the_copies_of_endpoint_copier_are_read_from_the_hub_cluster(world: World) -> None:
    """``hub import endpoint-copier`` turns annotated Services into rules, with the hub's own rights."""
    annotations = {
        "endpoint-copier/enabled": "true",
        "endpoint-copier/default-service-name": "kubernetes",
        "endpoint-copier/default-service-namespace": "default",
    }
    world.add_service("vip", metadata={"annotations": annotations})

    printed = CliRunner().invoke(cli, ["import", "endpoint-copier", "--kubeconfig", str(world.kubeconfig)])

    assert printed.exit_code == 0, printed.output
    assert yaml.safe_load(printed.stdout)["annotations"] == {
        "enabled": True,
        "allow": [{"from": "default/kubernetes", "to": ["edge/vip"]}],
    }
