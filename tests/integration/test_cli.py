"""The command line as a user runs it: real processes and real API servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hub.cli
import hub.cli.once
from hub.app.hub import Options
from hub.cli.exits import Exit
from hub.errors import NotLeader
from tests.support.apiserver.server import ApiServer
from tests.support.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(hub.cli.__file__).parents[2]
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
OURS = "endpointslice.kubernetes.io/managed-by=endpointslice-hub"

Hub = subprocess.Popen[str]
Start = Callable[..., Hub]
IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Start a program as a script starts a background job (``command &``): with SIGINT ignored."""

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
        """Replace text in the registry file."""
        assert old in REGISTRY
        (self.folder / "clusters.yaml").write_text(REGISTRY.replace(old, new))

    def published(self) -> dict[str, list[str]]:
        """The published addresses by Service."""
        found: dict[str, list[str]] = {}
        for slice_ in self.slices():
            addresses = [address for endpoint in slice_["endpoints"] or () for address in endpoint["addresses"]]
            found.setdefault(slice_["metadata"]["labels"]["kubernetes.io/service-name"], []).extend(addresses)
        return {name: sorted(addresses) for name, addresses in found.items()}

    def slices(self) -> list[dict[str, Any]]:
        """All slices that a hub manages."""
        return self.hub_cluster.api.list(SLICES, labelSelector=OURS)

    def versions(self) -> dict[str, str]:
        """The resourceVersion of each slice by name."""
        return {slice_["metadata"]["name"]: slice_["metadata"]["resourceVersion"] for slice_ in self.slices()}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in the folder of the files."""
        return subprocess.run(
            command(*arguments),
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=30,
            env=ENVIRONMENT,
            check=False,
        )


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": "/nosuch"}
ACCESS = ("--registry", "clusters.yaml", "--kubeconfig", "hub")
EVERYTHING = {"payments": ["10.7.0.1", "10.7.0.2", "10.8.0.1", "10.8.0.2"], "checkout": ["10.7.0.1", "10.7.0.2"]}


NO_ACCESS = (
    "Error: no access to the hub cluster: not running in a cluster, and /nosuch does not exist; give --kubeconfig FILE"
)


def command(*arguments: str) -> list[str]:
    """The argument list that runs ``hub`` with these arguments."""
    return [sys.executable, "-m", "hub", *arguments]


def add_node(server: ApiServer, name: str, address: str) -> None:
    """Add a Ready node."""
    server.api.post("/api/v1/nodes", {"metadata": {"name": name}})
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"conditions": [condition], "addresses": [{"type": "InternalIP", "address": address}]}
    server.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Two Services, two remote clusters and a registry, for the commands under test."""
    return World(tmp_path, hub_cluster, *remote_clusters[:2])


@pytest.fixture
def start(world: World) -> Iterator[Start]:
    """Starts ``hub run``. Its log goes to ``log-N``, counted from 0, and the process is killed after the test."""
    hubs: list[Hub] = []

    def begin(*arguments: str, by: tuple[str, ...] = ()) -> Hub:
        with (world.folder / f"log-{len(hubs)}").open("w") as log:
            process = subprocess.Popen(
                [*by, *command("run", *ACCESS, "--listen", "0", *arguments)],
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
    """A port on which nothing listens."""
    return free_port()


def probe(port: int, path: str) -> tuple[int, str]:
    """Send a request to a probe. Returns the status and the text; the status is 0 while nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def stop(process: Hub, number: int = signal.SIGTERM) -> tuple[int, float]:
    """Send a signal. Returns the exit code and the seconds until the process ended."""
    started = time.monotonic()
    process.send_signal(number)
    code = process.wait(timeout=15)
    return code, time.monotonic() - started


def errors(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr. Fails if there is a traceback."""
    assert "Traceback" not in result.stderr + result.stdout
    return result.stderr.splitlines()


def test_run_publishes_the_nodes_of_two_clusters(world: World, start: Start, port: int) -> None:
    """A hub publishes, answers probes, and on SIGTERM releases its Lease and exits 0 within 5 s."""
    process = start("--health-probe-bind-address", f"127.0.0.1:{port}")

    eventually(lambda: world.published() == EVERYTHING)
    assert probe(port, "/healthz") == (200, "ok")
    eventually(lambda: probe(port, "/readyz") == (200, "ok"))
    assert probe(port, "/readyz?verbose")[1].splitlines()[-1] == "readyz check passed"
    code, seconds = stop(process)
    assert (code, seconds < 5.0) == (0, True)
    assert world.published() == EVERYTHING
    lease = world.hub_cluster.api.get(f"{LEASES}/endpointslice-hub-default")
    assert not lease["spec"].get("holderIdentity")


def test_run_is_ready_while_every_remote_is_dead(world: World, start: Start, port: int) -> None:
    """Readiness does not depend on remote clusters."""
    world.registry("{path: eu}", "{path: nosuch}")
    us = world.folder / "us"
    us.write_text(us.read_text().replace("https://127.0.0.1:", "https://127.0.0.2:"))

    start("--health-probe-bind-address", f"127.0.0.1:{port}")

    eventually(lambda: probe(port, "/readyz") == (200, "ok"))


def test_run_is_not_ready_without_the_hub_cluster(world: World, start: Start, port: int) -> None:
    """Until the hub cluster answers, the hub is alive and not ready, and a signal stops it."""
    world.hub_cluster.kill()

    process = start("--health-probe-bind-address", f"127.0.0.1:{port}")

    eventually(lambda: probe(port, "/healthz") == (200, "ok"))
    status, text = probe(port, "/readyz")
    assert (status, "[-]hub-cluster failed: not synced yet" in text) == (500, True)
    assert stop(process, signal.SIGINT)[0] == 0


def test_run_exits_in_time_while_the_hub_cluster_is_frozen(world: World, start: Start) -> None:
    """A leader that cannot release its Lease, because the API server hangs, still exits 0 within 5 s."""
    process = start("--health-probe-bind-address", "0")
    eventually(lambda: world.published() == EVERYTHING)
    world.hub_cluster.pause()

    code, seconds = stop(process)

    assert (code, seconds < 5.0) == (0, True)


def test_a_second_signal_ends_a_hub_at_once(world: World, start: Start) -> None:
    """A second SIGTERM ends a hub at once, even while it waits for the hub cluster."""
    process = start("--health-probe-bind-address", "0")
    eventually(lambda: world.published() == EVERYTHING)
    world.hub_cluster.pause()
    process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping" in (world.folder / "log-0").read_text())

    code, seconds = stop(process)

    assert (code, seconds < 1.0) == (128 + signal.SIGTERM, True)


def test_two_replicas_write_in_turn(world: World, start: Start, remote_clusters: tuple[ApiServer, ...]) -> None:
    """One replica writes. When it is terminated, the other takes over and rewrites nothing."""
    first = start("--health-probe-bind-address", "0")
    eventually(lambda: world.published() == EVERYTHING)
    start("--health-probe-bind-address", "0")
    eventually(lambda: "stands by" in (world.folder / "log-1").read_text())
    before = world.versions()

    stop(first)
    add_node(remote_clusters[0], "eu-3", "10.7.0.3")

    eventually(lambda: "10.7.0.3" in world.published()["checkout"] and "10.7.0.3" in world.published()["payments"], 15)
    assert "leads" in (world.folder / "log-1").read_text()
    assert len(world.versions().items() - before.items()) == 2  # the slice of cluster eu in each of the two Services


def test_run_names_the_port_in_use(world: World, port: int) -> None:
    """A port that is in use is reported in one line, with exit code 3."""
    with socket.create_server(("127.0.0.1", port)):
        result = world.run("run", *ACCESS, "--health-probe-bind-address", f"127.0.0.1:{port}")

    (line,) = errors(result)
    assert line.startswith(f"Error: --health-probe-bind-address 127.0.0.1:{port}: address already in use; ")
    assert result.returncode == 3


def test_once_writes_nothing_the_second_time(world: World) -> None:
    """The first pass publishes everything; a second pass right after it changes nothing."""
    first = world.run("run", "--once", *ACCESS)
    versions = world.versions()
    second = world.run("run", "--once", *ACCESS)

    assert (first.stdout, first.stderr, first.returncode) == (
        "2 services; slices: 3 created, 0 updated, 0 deleted\n",
        "",
        0,
    )
    assert world.published() == EVERYTHING
    assert (second.stdout, second.returncode) == ("2 services; slices: 0 created, 0 updated, 0 deleted\n", 0)
    assert world.versions() == versions


def test_once_keeps_slices_of_unknown_sources(world: World) -> None:
    """A cluster that does not answer keeps its slices. It is named on stderr, and the exit code is 2."""
    world.run("run", "--once", *ACCESS)
    world.registry("{path: us}", "{path: us, context: nosuch}")

    result = world.run("run", "--once", *ACCESS)

    assert errors(result) == [
        f'Unknown: cluster us: Degraded: kubeconfig {world.folder}/us: no context "nosuch"; it has: "remote-2"'
    ]
    assert result.returncode == Exit.UNKNOWN
    assert world.published() == EVERYTHING


EU = ["10.7.0.1", "10.7.0.2"]


@pytest.mark.parametrize(
    ("old", "new", "service", "left"),
    [
        (REGISTRY.splitlines(keepends=True)[-1], "", "checkout", {"payments": EVERYTHING["payments"]}),
        ("[{cluster: eu}, {cluster: us}]", "[{cluster: eu}]", "payments", {"payments": EU, "checkout": EU}),
    ],
    ids=["service", "source"],
)
def test_once_keeps_dropped_slices_and_warns(
    world: World, old: str, new: str, service: str, left: dict[str, list[str]]
) -> None:
    """A single pass keeps dropped slices and warns: each process counts --removal-grace from its start."""
    world.run("run", "--once", *ACCESS)
    world.registry(old, new)

    kept = world.run("run", "--once", *ACCESS)

    stays = "slices dropped from clusters.yaml are kept, because a single pass does not wait for --removal-grace"
    assert errors(kept) == [f"Warning: edge/{service}: {stays}; delete them with --removal-grace 0s"]
    assert (world.published(), kept.returncode) == (EVERYTHING, 0)

    gone = world.run("run", "--once", "--removal-grace", "0s", *ACCESS)

    assert (world.published(), gone.stderr, gone.returncode) == (left, "", 0)


def test_once_shows_the_api_servers_refusal(world: World) -> None:
    """For an account that may read but not write, the API server's message is shown, with exit code 3."""
    world.hub_cluster.kubeconfig(world.folder / "reader", "hub")
    world.hub_cluster.grant(
        "hub",
        {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    )

    result = world.run("run", "--once", "--registry", "clusters.yaml", "--kubeconfig", "reader")

    lines = errors(result)
    assert [line.split(": ")[:2] for line in lines] == [["Error", "edge/checkout"], ["Error", "edge/payments"]]
    assert all("403" in line and 'cannot create resource "endpointslices"' in line for line in lines)
    assert result.returncode == 3


def test_once_with_dry_run_writes_nothing(world: World) -> None:
    """A dry run prints what it would write, and writes nothing, not even a Lease."""
    mark = world.hub_cluster.audit_mark()

    result = world.run("run", "--once", "--dry-run", *ACCESS)

    assert "  + 10.7.0.1:30443  eu/eu-1" in result.stdout.splitlines()
    assert (result.stderr, result.returncode) == ("", 0)
    assert world.slices() == []
    assert {request.verb for request in world.hub_cluster.requests(mark)} <= {"get", "list", "watch"}


async def test_once_writes_nothing_while_another_hub_leads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another hub holds the Lease, a single pass writes nothing and names the holder."""
    monkeypatch.setattr(hub.cli.once, "SOON", 0.1)
    monkeypatch.setattr(hub.cli.once, "LEASE_PATIENCE", 2.0)
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 15, "acquireTime": now, "renewTime": now}
    world.hub_cluster.api.post(LEASES, {"metadata": {"name": "endpointslice-hub-default"}, "spec": spec})
    registry, kubeconfig = str(world.folder / "clusters.yaml"), str(world.folder / "hub")

    with pytest.raises(NotLeader, match=r"cannot get the Lease default/endpointslice-hub-default: another holds it"):
        await hub.cli.once.once(Options(registry, kubeconfig=kubeconfig))

    assert world.slices() == []


@pytest.mark.parametrize("by", [(), IN_THE_BACKGROUND], ids=["", "in the background"])
def test_once_can_be_interrupted_while_it_waits(world: World, start: Start, by: tuple[str, ...]) -> None:
    """SIGTERM ends a single pass that waits for the Lease with exit code 130, as Ctrl-C does."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 15, "acquireTime": now, "renewTime": now}
    world.hub_cluster.api.post(LEASES, {"metadata": {"name": "endpointslice-hub-default"}, "spec": spec})
    process = start("--once", by=by)
    eventually(lambda: "waiting for the Lease" in (world.folder / "log-0").read_text())

    code, seconds = stop(process)

    assert (code, seconds < 2.0) == (130, True)
    assert "Traceback" not in (world.folder / "log-0").read_text()


def test_plan_has_the_exit_codes_of_a_diff(world: World, remote_clusters: tuple[ApiServer, ...]) -> None:
    """``hub plan`` exits 1 with changes, 0 without, 2 with an unknown source and 3 on an error, and never writes."""
    before = world.run("plan", *ACCESS)
    world.run("run", "--once", *ACCESS)
    after = world.run("plan", *ACCESS)
    remote_clusters[0].api.delete("/api/v1/nodes/eu-2")
    one = world.run("plan", *ACCESS, "edge/checkout")
    world.registry("{path: us}", "{path: us-nobody}")
    unknown = world.run("plan", *ACCESS, "-o", "json", "edge/payments")
    mistake = world.run("plan", *ACCESS, "edge/paymnets")

    assert before.returncode == 1
    assert "  + 10.8.0.2:30443  us/us-2" in before.stdout.splitlines()
    assert (after.stdout.splitlines()[0], after.returncode) == ("edge/checkout: no change", 0)
    assert one.stdout.splitlines() == [
        "edge/checkout",
        "  - 10.7.0.2:30443  eu/eu-2",
        "  slices: 0 to create, 1 to update, 0 to delete, 0 unchanged",
        "Plan: 1 service to change; 0 unchanged; endpoints: 0 added, 1 removed, 0 changed",
    ]
    assert one.returncode == 1
    (payments,) = json.loads(unknown.stdout)["services"]
    assert [endpoint["address"] for endpoint in payments["endpoints"]] == ["10.7.0.2"]
    assert payments["unknown"] == [
        {
            "cluster": "us",
            "reason": "Degraded: 403: the account lacks the rule «nodes: get, list, watch»; grant it in cluster us",
        }
    ]
    assert unknown.returncode == Exit.UNKNOWN
    assert errors(mistake) == [
        "Error: Service edge/paymnets is not in the registry and has no slices (did you mean edge/payments?)"
    ]
    assert mistake.returncode == Exit.USAGE
    assert world.published() == EVERYTHING


def test_nodes_lists_eligibility_and_address(world: World, remote_clusters: tuple[ApiServer, ...]) -> None:
    """``hub nodes`` shows whether each node is eligible, why not, the provider's result and the published address."""
    remote_clusters[0].api.patch(
        "/api/v1/nodes/eu-2", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}
    )
    add_node(remote_clusters[0], "eu-3", "10.9.0.3")
    world.registry("{path: us}", "{path: nosuch}")

    table, unknown = world.run("nodes", *ACCESS, "eu"), world.run("nodes", *ACCESS, "-o", "json")

    rows = {line.split()[0]: line.split("   ")[1:] for line in table.stdout.splitlines()[2:]}
    assert [cell.strip() for cell in rows["eu-1"] if cell.strip()] == ["yes", "10.7.0.1", "10.7.0.1", "not probed"]
    assert rows["eu-2"][0].startswith("no: ")
    assert "none: " in "   ".join(rows["eu-3"])
    assert table.returncode == 0
    sources = json.loads(unknown.stdout)["sources"]
    assert [(source["cluster"], source["unknown"] is None, len(source["nodes"])) for source in sources] == [
        ("eu", True, 3),
        ("us", False, 0),
    ]
    assert unknown.returncode == Exit.UNKNOWN


def test_check_online_tries_everything(world: World) -> None:
    """``hub check --online`` checks all clusters, providers and Services; any failure makes it exit 1."""
    well = world.run("check", "clusters.yaml", "--online", "--kubeconfig", "hub")
    world.registry("{path: us}", "{path: us-nobody}")
    world.hub_cluster.api.delete("/api/v1/namespaces/edge/services/checkout")
    ill = world.run("check", "clusters.yaml", "--online", "--kubeconfig", "hub")

    assert (well.stdout.splitlines()[-1], well.returncode) == ("online: 0 of 5 failed", 0)
    lines = {line.split("  ")[0]: line for line in ill.stdout.splitlines()}
    assert lines["(hub cluster)"].endswith("ok")
    assert lines["eu"].split()[1:3] == ["2", "2"]
    assert "403: the account lacks the rule «nodes: get, list, watch»" in lines["us"]
    assert lines["edge/checkout"].endswith("ServiceMissing: the Service does not exist")
    assert (ill.stdout.splitlines()[-1], ill.returncode) == ("online: 2 of 5 failed", 1)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--registry", "nosuch", "--kubeconfig", "hub"), "Error: nosuch: cannot be read: No such file or directory"),
        (
            ("--registry", "clusters.yaml", "--kubeconfig", "nosuch"),
            "Error: kubeconfig nosuch: cannot be read: No such file or directory; check its path and mode",
        ),
        (
            ("--registry", "clusters.yaml"),
            NO_ACCESS,
        ),
        (
            ("--registry", "clusters.yaml", "--kubeconfig", "nobody"),
            "Error: hub cluster: 403: the hub's account lacks the rule «services: get, list, watch» in the hub cluster",
        ),
    ],
)
@pytest.mark.parametrize("subcommand", [("run", "--once"), ("plan",), ("nodes",)])
def test_a_wrong_file_or_account_is_one_line(
    world: World, subcommand: tuple[str, ...], arguments: tuple[str, ...], line: str
) -> None:
    """A wrong file or an unusable account is one line on stderr, with exit code 3."""
    result = world.run(*subcommand, *arguments)

    assert errors(result) == [line]
    assert (result.stdout, result.returncode) == ("", 3)
