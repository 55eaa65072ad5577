"""The commands about clouds, online and offline, on real API servers with the fake of Brightbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hub.cli import cli
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import LEASE
from tests.support.hub import RunningHub
from tests.support.ports import free_port
from tests.support.waiting import eventually

SERVICE = "/api/v1/namespaces/edge/services/web"
PREFIX = "service.beta.kubernetes.io/brightbox-load-balancer-"
Run = Callable[..., Result]


@pytest.fixture
def scene(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[BrightboxScene]:
    """A cluster without Nodes."""
    with BrightboxThread() as cloud:
        yield BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)


@pytest.fixture
def run(scene: BrightboxScene) -> Run:
    """Runs a command on the scene's registry."""

    def command(*arguments: str) -> Result:
        access = ["--registry", str(scene.world.path), "--kubeconfig", str(scene.world.kubeconfig)]
        access += ["--allow-api-host", scene.cloud.fake.host]
        return CliRunner().invoke(cli, [arguments[0], *access, *arguments[1:]])

    return command


def test_plan_lists_changes_in_order_and_then_none(scene: BrightboxScene, run: Run) -> None:
    """Before a hub has run: the changes of the node and of the balancer, exit code 1, no write; afterwards 0."""
    name = scene.add_node()
    scene.add_service()
    result = run("plan")
    assert result.exit_code == 1, result.output
    planned = json.loads(run("plan", "-o", "json").output)
    writes = [(write["kind"], write["target"], write["change"]) for write in planned["writes"]]
    node = [change for kind, target, change in writes if (kind, target) == ("node", f"eu/{name}")]
    assert [change.split()[0] for change in node] == ["4", "6"], "addresses, then labels, provider ID and taint"
    balancer = [change for kind, target, change in writes if (kind, target) == ("balancer", "eu edge/web")]
    assert [change.split()[0] for change in balancer] == [
        "write",
        *["create"] * 5,
        "map",
        "write",
    ]
    for change in (*node, *balancer):
        assert change in result.output
    assert scene.writes == []
    assert not scene.initialized(name)
    assert "finalizers" not in scene.service()["metadata"]
    assert not scene.remote.api.exists(LEASE)
    with RunningHub(scene.world, **scene.options):
        eventually(lambda: scene.initialized(name) and scene.hostnames() != [], 40)
        [balancer] = scene.cloud.fake.account.find("load_balancers", "web.edge.eu")
        eventually(lambda: run("plan").exit_code == 0, 30)


def test_why_names_each_annotation_and_decision(scene: BrightboxScene, run: Run) -> None:
    """About a Service: its annotations with values and defaults, and findings; about a node: its machine."""
    annotations = {f"{PREFIX}policy": "round-robin", f"{PREFIX}polixy": "x"}
    scene.add_service(metadata={"annotations": annotations})
    name = scene.add_node()
    found = json.loads(run("why", "edge/web", "--cluster", "eu", "-o", "json").output)
    steps = {(step["stage"], step["where"]): step["outcome"] for step in found["steps"]}
    assert steps["annotation", f"{PREFIX}policy"] == "'round-robin'"
    assert steps["annotation", f"{PREFIX}healthcheck-request"] == "absent, so /healthz"
    assert steps["port", "80/TCP"].startswith("nodePort 3")
    assert steps["balancer", "edge/web"] == "waiting"
    assert "AnnotationIgnored" in [step["outcome"] for step in found["steps"] if step["stage"] == "finding"]
    assert "create Cloud IP web.edge.eu" in [step["why"] for step in found["steps"] if step["stage"] == "step"]
    node = run("why", name, "--cluster", "eu")
    assert node.exit_code == 0, node.output
    [machine] = [line for line in node.output.splitlines() if line.startswith("machine")]
    assert ("running" in machine, "zone gb1-a" in machine) == (True, True)
    listed = run("nodes", "eu")
    assert [line.split()[:3] for line in listed.output.splitlines() if name in line] == [[name, "running", "working"]]
    scene.cloud.call(lambda: scene.cloud.fake.account.objects["servers"].pop(name))
    scene.remote.api.patch(f"/api/v1/nodes/{name}", {"spec": {"providerID": f"brightbox://{name}", "taints": None}})
    scene.status(name, "False")
    gone = run("why", name, "--cluster", "eu")
    [deletion] = [line for line in gone.output.splitlines() if line.startswith("deletion")]
    assert ("not yet" in deletion, "two answers" in deletion) == (True, True)


def test_why_suggests_names_and_the_cluster(scene: BrightboxScene, run: Run) -> None:
    """A misspelt Service, a Service without --cluster and a misspelt cluster each get the right name."""
    scene.add_service()
    misspelt = run("why", "edge/wbe", "--cluster", "eu")
    assert (misspelt.exit_code, "did you mean edge/web?" in misspelt.stderr) == (1, True)
    plain = run("why", "edge/web")
    assert (plain.exit_code, "did you mean edge/web --cluster eu?" in plain.stderr) == (1, True)
    other = run("why", "edge/web", "--cluster", "eux")
    assert (other.exit_code, "cluster eux (did you mean eu?)" in other.stderr) == (4, True)


def test_a_cloud_that_does_not_answer_is_unknown(scene: BrightboxScene, run: Run) -> None:
    """Each command exits with 4 and names the cluster."""
    scene.add_service()
    scene.add_node()
    scene.cloud.call(lambda: scene.cloud.fake.fail("error", times=None))
    for arguments in (("plan",), ("balancers",), ("nodes",), ("why", "edge/web", "--cluster", "eu")):
        result = run(*arguments)
        assert result.exit_code == 4, (arguments, result.output)
        assert "eu" in result.output


def test_check_online_asks_the_cloud(scene: BrightboxScene) -> None:
    """A row for the cluster's cloud with nodes and balancers; without an answer the exit code is 1."""
    scene.add_service()
    scene.add_node()
    access = ["--kubeconfig", str(scene.world.kubeconfig), "--allow-api-host", scene.cloud.fake.host]

    def check() -> Result:
        return CliRunner().invoke(cli, ["check", str(scene.world.path), "--online", *access])

    well = check()
    assert well.exit_code == 0, well.output
    assert "1 cluster, 0 services, 1 cloud" in well.output
    [row] = [line.split() for line in well.output.splitlines() if "brightbox" in line]
    assert row == ["eu", "1", "1", "brightbox", "ok"]
    scene.cloud.call(lambda: scene.cloud.fake.fail("error", times=None))
    broken = check()
    assert (broken.exit_code, "online: 1 of 3 failed" in broken.output) == (1, True), broken.output


def test_server_shows_what_the_commands_find(scene: BrightboxScene, run: Run) -> None:
    """A running hub and the command that reads for itself agree about nodes, balancers and reasons."""
    port = free_port()
    server = ["--server", f"http://127.0.0.1:{port}"]
    with RunningHub(scene.world, port=port, **scene.options):
        name = scene.add_node()
        scene.add_service()
        eventually(lambda: scene.initialized(name) and scene.hostnames() != [], 40)
        eventually(lambda: run("plan").exit_code == 0, 30)
        for arguments in (("balancers",), ("nodes",), ("why", "edge/web", "--cluster", "eu")):
            asked = CliRunner().invoke(cli, [arguments[0], *server, *arguments[1:]])
            read = run(*arguments)
            assert (asked.exit_code, read.exit_code) == (0, 0), asked.output + read.output
            assert ("ready" in asked.output, "ready" in read.output) == (True, True), asked.output + read.output
        refused = CliRunner().invoke(cli, ["why", *server, "edge/web", "--cluster", "EU"])
        assert refused.exit_code == 2


def test_purge_deletes_what_has_no_service(scene: BrightboxScene, run: Run) -> None:
    """A Service that lost its finalizer leaves its objects: they are listed, and go when confirmed; others stay."""
    name = scene.add_node()
    with RunningHub(scene.world, **scene.options):
        scene.add_service("web")
        scene.add_service("shop")
        eventually(lambda: scene.initialized(name) and scene.hostnames() != [] and scene.hostnames("shop") != [], 60)
    account = scene.cloud.fake.account
    assert run("purge", "--cloud", "eu").output == "no leftovers in the cloud of cluster eu\n"
    scene.remote.api.patch(SERVICE, {"metadata": {"finalizers": None}})
    scene.remote.api.delete(SERVICE)
    ids = sorted(account.named("web.edge.eu"))
    before = scene.writes
    listed = run("purge", "--cloud", "eu", "--dry-run")
    assert listed.exit_code == 0, listed.output
    assert sorted(line.split()[-1] for line in listed.output.splitlines()[1:]) == ids
    declined = run("purge", "--cloud", "eu")
    assert (declined.exit_code, "Delete 4 objects" in declined.output) == (130, True), declined.output
    assert scene.writes == before
    done = run("purge", "--cloud", "eu", "--yes")
    assert done.exit_code == 0, done.output
    assert "4 objects in the cloud of cluster eu deleted" in done.output
    assert account.named("web.edge.eu") == []
    assert len(account.named("shop.edge.eu")) == 4
    unknown = run("purge", "--cloud", "eux")
    assert (unknown.exit_code, "did you mean eu?" in unknown.stderr) == (2, True)
    scene.write(mode="observe")
    scene.remote.api.patch("/api/v1/namespaces/edge/services/shop", {"metadata": {"finalizers": None}})
    scene.remote.api.delete("/api/v1/namespaces/edge/services/shop")
    observed = run("purge", "--cloud", "eu", "--yes")
    assert (observed.exit_code, "mode observe" in observed.stderr) == (3, True), observed.output
    assert len(account.named("shop.edge.eu")) == 4


def test_a_foreign_balancer_waits_for_its_approval(scene: BrightboxScene, run: Run) -> None:
    """Plan names what is withheld and is no change; approve lets the hub make the balancer."""
    scene.add_service()
    ingress = {"loadBalancer": {"ingress": [{"hostname": "old.example.net"}]}}
    scene.remote.api.patch(f"{SERVICE}/status", {"status": ingress})
    planned = run("plan")
    assert (planned.exit_code, "withheld: Service edge/web has an ingress" in planned.stderr) == (0, True)
    port = free_port()
    server = ["--server", f"http://127.0.0.1:{port}", "--kubeconfig", str(scene.world.kubeconfig)]
    with RunningHub(scene.world, port=port, **scene.options):

        def withheld() -> list[str]:
            listed = CliRunner().invoke(cli, ["approve", *server]).stdout
            found = [line.split()[:2] for line in listed.splitlines() if line.startswith("cloud/eu")]
            return found[0] if found else []

        subject, digest = eventually(withheld, 30)
        approved = CliRunner().invoke(cli, ["approve", *server, subject, digest])
        assert approved.exit_code == 0, approved.output
        eventually(lambda: scene.hostnames() not in ([], ["old.example.net"]), 40)
