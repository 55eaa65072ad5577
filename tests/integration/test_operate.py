"""Operating a running hub: approve, pause, resume, purge, status and why, on real API servers."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hub.cli import cli
from hub.cli.operations import hub_cluster as connected
from hub.observe.local import approvals
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, RunningHub, World, add_node
from tests.support.waiting import eventually

ALL = tuple(f"10.1.0.{number}" for number in range(10))
APPROVALS = "/api/v1/namespaces/default/configmaps/endpointslice-hub-approvals-default"


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster ``eu`` with ten nodes, an empty Service ``payments``, and an operator's kubeconfig."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    hub_cluster.kubeconfig(tmp_path / "operator")
    made.add_service()
    made.write()
    for number in range(10):
        add_node(remote_clusters[0], f"n{number}", f"10.1.0.{number}")
    return made


def hub(world: World, *arguments: str, code: int = 0, **more: Any) -> Result:
    """Run a command as the operator."""
    result = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(world.folder / "operator")], **more)
    assert result.exit_code == code, result.output
    return result


def look(world: World, *arguments: str, code: int = 0) -> Any:
    """The JSON output of a command that reads the registry."""
    return json.loads(hub(world, *arguments, "--registry", str(world.path), "-o", "json", code=code).stdout)


def delete_nodes(world: World, *numbers: int) -> None:
    """Delete nodes of eu by number."""
    for number in numbers:
        world.remotes["eu"].api.delete(f"/api/v1/nodes/n{number}")


def withhold(world: World, running: RunningHub) -> Any:
    """Delete most nodes, and wait until the hub withholds the removal; returns it as ``hub plan`` prints it."""
    world.awaits(*ALL)
    delete_nodes(world, *range(8))
    eventually(lambda: "RemovalWithheld" in running.findings())

    def settled() -> Any:
        [withheld] = look(world, "plan", code=0)["services"][0]["withheld"]
        assert withheld["hash"] in running.findings()["RemovalWithheld"].message
        return withheld

    return eventually(settled)


def test_a_withheld_removal_is_released_by_approval(world: World) -> None:
    """The command that plan and status print releases the removal, and the approval is stored."""
    with RunningHub(world) as running:
        withheld = withhold(world, running)
        [status] = look(world, "status")["services"]
        table = hub(world, "plan", "--registry", str(world.path)).stdout
        assert status["withheld"] == [withheld]
        assert f"approve with: {withheld['approve']}" in table
        assert withheld["approve"] == f"hub approve edge/payments {withheld['hash']}"

        said = hub(world, *shlex.split(withheld["approve"])[1:])

        world.awaits(*ALL[8:])
        assert "Warning" not in said.stderr
        assert f"edge/payments: {withheld['hash']} is approved until 20" in said.stdout
    entry = json.loads(world.hub_cluster.api.get(APPROVALS)["data"][withheld["hash"]])
    assert (entry["kind"], entry["target"]) == ("service", "edge/payments")


def test_an_approval_that_is_there_before_the_hub_counts(world: World) -> None:
    """A restarted hub, a single pass and plan use an approval that was stored before."""
    with RunningHub(world) as running:
        withheld = withhold(world, running)
    hub(world, "approve", "edge/payments", withheld["hash"])
    [planned] = look(world, "plan", code=1)["services"]
    assert planned["withheld"] == []
    hub(world, "run", "--once", "--registry", str(world.path))
    assert world.published() == sorted(ALL[8:])


def test_approval_with_a_mistyped_hash_is_refused(world: World) -> None:
    """An unknown hash of a Service is refused unless forced; of the registry or a cluster it cannot be checked here."""
    with RunningHub(world) as running:
        withheld = withhold(world, running)
        before = world.published()
        other = withheld["hash"][:-1] + ("0" if withheld["hash"][-1] != "0" else "1")
        said = hub(world, "approve", "edge/payments", other, code=1)
        assert f"did you mean {withheld['hash']}?" in said.stderr
        assert world.hub_cluster.api.find(APPROVALS) is None
        assert withheld["hash"] in hub(world, "approve").stdout
        hub(world, "approve", "edge/payments", other, "--force")
        for subject, name in (("registry", "0123456789ab"), ("cluster/eu", "0123456789ac")):
            assert "the hash was not checked" in hub(world, "approve", subject, name).stderr
        time.sleep(0.5)
        assert world.published() == before
    assert len(world.hub_cluster.api.get(APPROVALS)["data"]) == 3


def test_approvals_at_the_same_time_are_all_kept(world: World) -> None:
    """A conflicting approval is read again and added to the others."""
    names = [f"{number:012x}" for number in range(4)]

    async def approve_all() -> None:
        async with connected(str(world.folder / "operator")) as client:
            await asyncio.gather(
                *(approvals.approve(client, "default", "default", name, ("registry", ""), "me", 1e9) for name in names)
            )

    asyncio.run(approve_all())

    assert sorted(world.hub_cluster.api.get(APPROVALS)["data"]) == names


def test_a_hub_that_may_not_read_approvals_works_without(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the missing rule once, and the hub publishes as before."""
    rules = [rule for rule in HUB_RULES if "configmaps" not in rule["resources"]]
    world.hub_cluster.grant("nobody", *rules)
    world.hub_cluster.kubeconfig(world.kubeconfig, "nobody")
    with RunningHub(world):
        world.awaits(*ALL)
        eventually(lambda: "approvals are not known" in caplog.text)
        time.sleep(1.5)
    assert caplog.text.count("approvals are not known") == 1
    assert "lacks the rule «configmaps: get, list, watch»" in caplog.text


def test_a_paused_service_stays_as_it_is_until_it_is_resumed(world: World) -> None:
    """Pause and resume apply at once, and change nothing else in the Service."""
    labels = world.hub_cluster.api.patch(
        "/api/v1/namespaces/edge/services/payments", {"metadata": {"annotations": {"team": "a"}}}
    )["metadata"]
    with RunningHub(world) as running:
        world.awaits(*ALL)
        hub(world, "pause", "edge/payments")
        eventually(lambda: running.status() == "paused")
        delete_nodes(world, 0)
        time.sleep(0.5)
        assert world.published() == sorted(ALL)
        [status] = look(world, "status")["services"]
        assert (status["paused"], status["status"], status["total"]) == (True, "paused", 10)
        assert "kept" in [step["outcome"] for step in look(world, "why", "10.1.0.0")["steps"]]
        hub(world, "resume", "edge/payments")
        world.awaits(*ALL[1:])
    after = world.hub_cluster.api.get("/api/v1/namespaces/edge/services/payments")["metadata"]
    assert after["annotations"] == labels["annotations"]


def test_pause_of_a_service_that_does_not_exist_is_one_line(world: World) -> None:
    """An unknown Service is an error with its name."""
    said = hub(world, "pause", "edge/nosuch", code=2)
    assert said.stderr == "Error: Service edge/nosuch does not exist\n"


def test_purge_deletes_the_slices_of_one_owner_only(world: World) -> None:
    """Slices of other owners and of other controllers stay, and purge asks before it deletes."""
    hub(world, "run", "--once", "--registry", str(world.path))
    slices = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
    [ours] = world.slices()
    labels = ours["metadata"]["labels"]
    strange: dict[str, dict[str, str | None]] = {
        "theirs": {"endpointslice-hub/owner": "other"},
        "foreign": {**dict.fromkeys(labels), "kubernetes.io/service-name": "payments"},
    }
    for name, more in strange.items():
        meta = {"name": name, "labels": {key: text for key, text in {**labels, **more}.items() if text is not None}}
        world.hub_cluster.api.post(slices, {"metadata": meta, "addressType": "IPv4", "endpoints": [], "ports": []})

    listed = hub(world, "purge", "--owner", "default", "--dry-run").stdout
    hub(world, "purge", "--owner", "default", input="n\n", code=130)
    assert len(world.hub_cluster.api.list(slices)) == 3
    said = hub(world, "purge", "--owner", "default", "--yes").stdout

    assert ours["metadata"]["name"] in listed
    assert "theirs" not in listed
    assert "1 slice deleted" in said
    assert sorted(slice_["metadata"]["name"] for slice_ in world.hub_cluster.api.list(slices)) == ["foreign", "theirs"]
    assert "no slices of owner default" in hub(world, "purge", "--owner", "default").stdout


def test_why_explains_published_and_unpublished(world: World) -> None:
    """For an address, a node, a Service and an unknown address, why prints the decisions."""
    add_node(world.remotes["eu"], "far", "192.0.2.7")
    add_node(world.remotes["eu"], "sick", "10.1.0.77", ready=False)
    hub(world, "run", "--once", "--registry", str(world.path))

    address = look(world, "why", "10.1.0.3")["steps"]
    assert {"stage": "address", "where": "eu/n3", "outcome": "offered", "why": "10.1.0.3"} in address
    [published] = [step for step in address if step["stage"] == "published"]
    assert (published["where"], published["outcome"]) == ("edge/payments", "ready")
    assert world.slices()[0]["metadata"]["name"] in published["why"]

    sick = look(world, "why", "10.1.0.77")["steps"]
    assert [step["outcome"] for step in sick if step["stage"] == "eligibility"] == ["no"]

    far = look(world, "why", "far")["steps"]
    assert "rejected" in [step["outcome"] for step in far]
    service = look(world, "why", "edge/payments")["steps"]
    assert service[0]["why"] == "10 published, 10 ready, in 1 slices"
    assert "192.0.2.7 of far" in " ".join(step["why"] for step in service)

    nobody = look(world, "why", "10.99.0.1", code=1)
    assert (nobody["known"], [step["where"] for step in nobody["steps"]]) == (False, ["eu"])


def test_status_and_why_report_unknown_clusters(world: World) -> None:
    """If a cluster does not answer, status and why exit 2, and its endpoints are shown as kept."""
    hub(world, "run", "--once", "--registry", str(world.path))
    world.write(clusters=[world.cluster("eu", kubeconfig={"path": "nosuch"})])

    status = look(world, "status", code=4)
    why = look(world, "why", "10.1.0.3", code=4)["steps"]

    [cluster], [service] = status["clusters"], status["services"]
    assert (cluster["name"], cluster["state"], cluster["nodes"]) == ("eu", "Degraded", None)
    assert "nosuch" in cluster["error"]
    assert (service["ready"], service["total"], bool(service["sources"][0]["unknown"])) == (10, 10, True)
    assert [step["outcome"] for step in why if step["stage"] == "service"] == ["kept"]
    hub(world, "status", "--registry", str(world.path), code=4)
