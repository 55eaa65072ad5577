"""The command line as a user meets it: real processes, real API servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hub.cli
import hub.cli.once
from hub.app import Options
from hub.errors import NotLeader
from tests.support.apiserver.server import ApiServer
from tests.support.waiting import eventually

ROOT = Path(hub.cli.__file__).parents[2]
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
OURS = "endpointslice.kubernetes.io/managed-by=endpointslice-hub"

Hub = subprocess.Popen[str]
Start = Callable[..., Hub]

REGISTRY = """\
version: 1
clusters:
  - {name: eu, kubeconfig: {path: eu}, allowedCIDRs: [10.7.0.0/16], provider: {name: node-addresses}}
  - {name: us, kubeconfig: {path: us}, allowedCIDRs: [10.8.0.0/16], provider: {name: node-addresses}}
services:
  - {name: payments, namespace: edge, sources: [{cluster: eu}, {cluster: us}]}
  - {name: checkout, namespace: edge, sources: [{cluster: eu}]}
"""


class World:
    """A hub cluster with two Services, two remote clusters with two nodes each, and the files of a hub."""

    def __init__(self, folder: Path, hub_cluster: ApiServer, eu: ApiServer, us: ApiServer) -> None:
        self.folder = folder
        self.hub_cluster = hub_cluster
        hub_cluster.kubeconfig(folder / "hub")
        hub_cluster.kubeconfig(folder / "nobody", "nobody")
        for name in ("payments", "checkout"):
            spec = {"ports": [{"name": "https", "port": 443, "targetPort": 30443}]}
            hub_cluster.api.post("/api/v1/namespaces/edge/services", {"metadata": {"name": name}, "spec": spec})
        for name, server, net in (("eu", eu, "10.7.0"), ("us", us, "10.8.0")):
            server.kubeconfig(folder / name)
            server.kubeconfig(folder / f"{name}-nobody", "nobody")
            for number in (1, 2):
                add_node(server, f"{name}-{number}", f"{net}.{number}")
        (folder / "clusters.yaml").write_text(REGISTRY)

    def registry(self, old: str, new: str) -> None:
        """Change the registry."""
        assert old in REGISTRY
        (self.folder / "clusters.yaml").write_text(REGISTRY.replace(old, new))

    def published(self) -> dict[str, list[str]]:
        """Addresses by Service."""
        found: dict[str, list[str]] = {}
        for each in self.slices():
            addresses = [address for endpoint in each["endpoints"] or () for address in endpoint["addresses"]]
            found.setdefault(each["metadata"]["labels"]["kubernetes.io/service-name"], []).extend(addresses)
        return {name: sorted(addresses) for name, addresses in found.items()}

    def slices(self) -> list[dict[str, Any]]:
        """Every slice of a hub."""
        return self.hub_cluster.api.list(SLICES, labelSelector=OURS)

    def run(self, *arguments: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in the folder of the files."""
        return subprocess.run(
            command(*arguments), capture_output=True, text=True, cwd=self.folder, timeout=timeout, env=ENVIRONMENT, check=False
        )


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": "/nosuch"}
ACCESS = ("--registry", "clusters.yaml", "--kubeconfig", "hub")
EVERYTHING = {"payments": ["10.7.0.1", "10.7.0.2", "10.8.0.1", "10.8.0.2"], "checkout": ["10.7.0.1", "10.7.0.2"]}


def command(*arguments: str) -> list[str]:
    """The command line of a hub."""
    return [sys.executable, "-m", "hub", *arguments]


def add_node(server: ApiServer, name: str, address: str) -> None:
    """A Ready node."""
    server.api.post("/api/v1/nodes", {"metadata": {"name": name}})
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"conditions": [condition], "addresses": [{"type": "InternalIP", "address": address}]}
    server.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """What a hub works on."""
    return World(tmp_path, hub_cluster, *remote_clusters[:2])


@pytest.fixture
def start(world: World) -> Iterator[Start]:
    """Start ``hub run`` and end it after the test, whatever happens; its log goes to a file of its number."""
    hubs: list[Hub] = []

    def begin(*arguments: str) -> Hub:
        with (world.folder / f"log-{len(hubs)}").open("w") as log:
            process = subprocess.Popen(
                command("run", *ACCESS, *arguments),
                stderr=log,
                stdout=subprocess.PIPE,
                text=True,
                cwd=world.folder,
                env=ENVIRONMENT,
            )
        hubs.append(process)
        return process

    yield begin
    for process in hubs:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def probe(port: int, path: str) -> tuple[int, str]:
    """Ask a probe; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def stop(process: Hub, number: int = signal.SIGTERM) -> tuple[int, float]:
    """Send a signal: exit code, and seconds until the end."""
    started = time.monotonic()
    process.send_signal(number)
    code = process.wait(timeout=15)
    return code, time.monotonic() - started


def errors(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr; no command shows a traceback."""
    assert "Traceback" not in result.stderr + result.stdout
    return result.stderr.splitlines()


def test_run_publishes_the_nodes_of_two_clusters(world: World, start: Start, port: int) -> None:
    """A hub publishes, answers probes, follows a new node, and exits 0 within 5 s of SIGTERM."""
    process = start("--health-probe-bind-address", f"127.0.0.1:{port}")

    eventually(lambda: world.published() == EVERYTHING)
    assert probe(port, "/healthz") == (200, "ok")
    assert probe(port, "/readyz?verbose") == (
        200,
        "[+]loop ok\n[+]hub-cluster ok\n[+]running ok\nreadyz check passed\n",
    )
    code, seconds = stop(process)
    assert (code, seconds < 5.0) == (0, True)
    assert world.published() == EVERYTHING
    lease = world.hub_cluster.api.get(f"{LEASES}/endpointslice-hub-default")
    assert not lease["spec"].get("holderIdentity")


def test_run_is_ready_while_every_remote_is_dead(world: World, start: Start, port: int) -> None:
    """Readiness never looks at a remote cluster."""
    world.registry("{path: eu}", "{path: nosuch}")
    (world.folder / "us").write_text((world.folder / "us").read_text().replace("server: https://127.0.0.1:", "server: https://127.0.0.2:"))

    start("--health-probe-bind-address", f"127.0.0.1:{port}")

    eventually(lambda: probe(port, "/readyz") == (200, "ok"))


def test_run_is_not_ready_without_the_hub_cluster(world: World, start: Start, port: int) -> None:
    """Before the hub cluster answers the hub is alive, not ready, and can be stopped."""
    world.hub_cluster.kill()

    process = start("--health-probe-bind-address", f"127.0.0.1:{port}")

    eventually(lambda: probe(port, "/healthz") == (200, "ok"))
    status, text = probe(port, "/readyz")
    assert (status, "[-]hub-cluster failed: not synced yet" in text) == (500, True)
    assert stop(process, signal.SIGINT)[0] == 0


def test_run_exits_in_time_while_the_hub_cluster_is_frozen(world: World, start: Start) -> None:
    """A server that answers nothing holds up neither the end nor its exit code; a second signal ends it at once."""
    first, second = start("--health-probe-bind-address", "0"), start("--health-probe-bind-address", "0")
    eventually(lambda: world.published() == EVERYTHING)
    eventually(lambda: "leads" in (world.folder / "log-0").read_text() + (world.folder / "log-1").read_text())
    eventually(lambda: "stands by" in (world.folder / "log-0").read_text() + (world.folder / "log-1").read_text())
    if "stands by" in (world.folder / "log-0").read_text():
        first, second = second, first
    world.hub_cluster.pause()

    code, seconds = stop(first)  # the leader gives its Lease back, and gets no answer
    assert (code, seconds < 5.0) == (0, True)

    second.send_signal(signal.SIGTERM)
    code, seconds = stop(second)
    assert (code in (0, 128 + signal.SIGTERM), seconds < 1.0) == (True, True)


def test_two_replicas_write_in_turn(
    world: World, start: Start, remote_clusters: tuple[ApiServer, ...]
) -> None:
    """One replica writes; when it is terminated, the other takes over."""
    start("--health-probe-bind-address", "0")
    eventually(lambda: world.published() == EVERYTHING)
    start("--health-probe-bind-address", "0")
    eventually(lambda: "stands by" in (world.folder / "log-1").read_text())
    before = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in world.slices()}

    stop(Processes.of(start)[0])
    add_node(remote_clusters[0], "eu-3", "10.7.0.3")

    eventually(lambda: "10.7.0.3" in world.published()["checkout"], timeout=15)
    assert "leads" in (world.folder / "log-1").read_text()
    changed = [each for each in world.slices() if before[each["metadata"]["name"]] != each["metadata"]["resourceVersion"]]
    assert len(changed) == 2  # one slice of each Service: taking over rewrote nothing else
