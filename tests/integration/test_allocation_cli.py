"""The commands about allocations, online and offline, on a real API server with a simulated cloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hub.allocations.spec import FINALIZER
from hub.cli import cli
from tests.integration.test_allocations import ADDRESSES, PATH, REGISTRY, Scene, scene
from tests.support.allocations import CRD, allocation
from tests.support.hub import RunningHub
from tests.support.ports import free_port
from tests.support.waiting import eventually

__all__ = ["scene"]

Run = Callable[..., Result]


@pytest.fixture
def run(scene: Scene) -> Run:
    """Runs a command on the scene's registry, in this process, where the simulated cloud is."""

    def command(*arguments: str) -> Result:
        access = ["--kubeconfig", str(scene.world.kubeconfig)]
        registry = ["--registry", str(scene.world.path)]
        return CliRunner().invoke(cli, [arguments[0], *registry, *access, *arguments[1:]])

    return command


def observe(scene: Scene) -> None:
    """Set mode observe."""
    scene.world.write_text(REGISTRY.replace("enforce", "observe"))


def test_plan_names_the_moves_and_changes_nothing(scene: Scene, run: Run) -> None:
    """In mode observe, hub plan lists what would be attached and exits 1; nothing is written anywhere."""
    observe(scene)
    result = run("plan")
    assert result.exit_code == 1, result.output
    rows = [line.split() for line in result.output.splitlines() if line.startswith("198.18.")]
    expected = [(address, "free", "→", "Free") for address in ADDRESSES]
    assert [(*row[:3], row[4]) for row in rows] == expected, result.output
    assert "0 changed; 2 reserved addresses to move" in result.output
    document = json.loads(run("plan", "-o", "json").output)
    assert [(move["address"], move["from"], move["cause"]) for move in document["addresses"]] == [
        (address, "", "Free") for address in ADDRESSES
    ]
    assert document["changes"]
    assert scene.holders() == []
    assert scene.status() == {}
    assert not [call for call in scene.cloud.log if call.kind == "write"]


def test_plan_is_no_change_where_an_allocation_is_paused(scene: Scene, run: Run) -> None:
    """Free addresses of a paused allocation stay free: they are listed as waiting, and the exit code is 0."""
    observe(scene)
    scene.api.patch(f"{PATH}/web", {"metadata": {"annotations": {"endpointslice-hub/paused": "true"}}})
    result = run("plan")
    assert result.exit_code == 0, result.output
    assert result.output.count("waits: Paused") == 2, result.output


def test_allocation_without_an_account_says_why(scene: Scene, run: Run) -> None:
    """An allocation that names no account of the registry is unknown to every command, which say what is wrong."""
    cloud = {"provider": "simulated-cloud", "account": "mian"}
    scene.api.post(PATH, allocation("lost", reservedIPs=["198.18.0.7"], cloud=cloud))
    for arguments in (("allocations", "lost"), ("plan",), ("why", "198.18.0.7")):
        result = run(*arguments)
        assert result.exit_code == 4, result.output
        assert "has no account 'mian' (there: main)" in result.output, arguments


def test_allocations_shows_states_nodes_and_reasons(scene: Scene, run: Run) -> None:
    """After a hub has attached the addresses, the command shows their nodes, offline, as table and as JSON."""
    with RunningHub(scene.world):
        nodes = scene.awaits()
    table, document = run("allocations"), run("allocations", "-o", "json")
    assert table.exit_code == 0, table.output
    rows = [line.split() for line in table.output.splitlines() if line.strip().startswith("198.18.")]
    assert sorted(row[2] for row in rows if row[1] == "Attached") == nodes, table.output
    found: Any = json.loads(document.output)
    assert sorted(address["node"] for address in found["allocations"][0]["addresses"]) == nodes
    assert run("plan").exit_code == 0, "nothing moves"


def test_plan_shows_labels_besides_moves(scene: Scene, run: Run) -> None:
    """A label that somebody took off while no hub runs is a change, in mode enforce and observe, and is not written."""
    with RunningHub(scene.world):
        node = scene.awaits()[0]
    scene.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"ip.ready": None}}})
    for prepare in (lambda: None, lambda: observe(scene)):
        prepare()
        result = run("plan")
        assert result.exit_code == 1, result.output
        assert f"label   node {node}   +ip.ready=true" in result.output
    assert node not in scene.labelled()


def test_unknown_names_are_suggested(scene: Scene, run: Run) -> None:
    """A misspelt allocation is refused with the closest name; an outage of the cloud is exit code 4."""
    result = run("allocations", "wbe")
    assert result.exit_code == 1
    assert "there is no NetIPAllocation wbe (did you mean web?)" in result.stderr
    scene.cloud.fail("error", times=None)
    assert run("allocations").exit_code == 4


def test_why_explains_an_address(scene: Scene, run: Run) -> None:
    """The commands show claim, holder and cause of a drained address; why is incomplete while the cloud is down."""
    with RunningHub(scene.world):
        first, _ = scene.awaits()
    scene.cordon(first)
    address = next(address for address in ADDRESSES if scene.cloud.holder_of(address) == first)
    result = run("why", address)
    assert result.exit_code == 0, result.output
    assert "allocation/web" in result.output
    assert "Drained" in result.output
    planned = run("plan")
    assert (planned.exit_code, f"{first} → waits: Grace" in planned.output) == (0, True), planned.output
    scene.cloud.fail("error", times=None)
    assert run("why", address).exit_code == 4


def test_pause_keeps_an_address_until_resume(scene: Scene) -> None:
    """A paused allocation keeps its addresses on a cordoned node; after resume they move."""
    access = ["--kubeconfig", str(scene.world.kubeconfig)]
    scene.world.hub_cluster.grant(
        "hub", {"apiGroups": ["netinfra.darkbrains.com"], "resources": ["netipallocations"], "verbs": ["patch"]}
    )
    with RunningHub(scene.world) as running:
        first, _ = scene.awaits()
        assert CliRunner().invoke(cli, ["pause", "allocation/web", *access]).exit_code == 0
        scene.cordon(first)

        def waits() -> bool:
            allocating = running.hub.allocating
            assert allocating is not None
            return any(found.reason == "Paused" for found in allocating.verdicts.values())

        eventually(waits, 60)
        assert first in scene.holders()
        assert CliRunner().invoke(cli, ["resume", "allocation/web", *access]).exit_code == 0
        eventually(lambda: first not in scene.holders(), 20)


def test_server_shows_what_the_commands_find(scene: Scene) -> None:
    """A running hub answers hub allocations, status and why with what the same commands find themselves."""
    port = free_port()
    with RunningHub(scene.world, port=port):
        nodes = scene.awaits()

        def asked(*arguments: str) -> Result:
            return CliRunner().invoke(cli, [arguments[0], "--server", f"http://127.0.0.1:{port}", *arguments[1:]])

        found = json.loads(asked("allocations", "-o", "json").output)
        assert sorted(address["node"] for address in found["allocations"][0]["addresses"]) == nodes
        assert "allocations (enforce): 2 of 2 addresses attached" in asked("status").output
        assert "account main, cluster local" in asked("why", ADDRESSES[0]).output
        assert asked("allocations", "wbe").exit_code == 1


def test_withheld_move_begins_after_its_approval(scene: Scene) -> None:
    """A second move within the window is withheld; hub approve without arguments lists it, and with them it begins."""
    port = free_port()
    access = ["--kubeconfig", str(scene.world.kubeconfig), "--server", f"http://127.0.0.1:{port}"]
    scene.world.hub_cluster.grant(
        "hub", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch", "update"]}
    )

    def listed() -> str:
        return CliRunner().invoke(cli, ["approve", *access]).output

    with RunningHub(scene.world, port=port):
        before = scene.awaits()
        scene.cordon(before[0])
        eventually(lambda: before[0] not in scene.holders() and len(scene.holders()) == 2, 60)
        scene.awaits()
        scene.cordon(before[0], on=False)
        scene.cordon(before[1])
        eventually(lambda: "hub approve allocation/web " in listed(), 60)
        assert before[1] in scene.holders()
        command = listed().splitlines()[-1].partition("hub approve ")[2].split()
        wrong = CliRunner().invoke(cli, ["approve", command[0], "0" * 12, *access])
        assert (wrong.exit_code, "no removal with the hash" in wrong.stderr) == (1, True), wrong.output
        assert CliRunner().invoke(cli, ["approve", *command, *access]).exit_code == 0
        eventually(lambda: before[1] not in scene.holders() and len(scene.holders()) == 2, 60)


def test_purge_lets_go_of_allocations(scene: Scene) -> None:
    """After a purge an allocation with a finalizer can be deleted, labels are gone, and addresses stay."""
    kubeconfig = scene.world.folder / "admin"
    scene.world.hub_cluster.kubeconfig(kubeconfig)
    scene.api.patch(
        f"{PATH}/web",
        {"metadata": {"finalizers": ["a/b", FINALIZER]}, "spec": {"addressLabel": "address"}},
    )
    labels = {"ip.ready": "true", "address": ADDRESSES[0], "other": "x"}
    scene.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": labels}})
    scene.api.patch("/api/v1/nodes/n2", {"metadata": {"labels": {"address": "somewhere"}}})

    def purge(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["purge", "--allocations", "--kubeconfig", str(kubeconfig), *arguments])

    listed = purge("--dry-run").output
    assert [line.split() for line in listed.splitlines()[1:]] == [
        ["NetIPAllocation", "web", "finalizer", FINALIZER],
        ["Node", "n1", "label", "address"],
        ["Node", "n1", "label", "ip.ready"],
    ]
    assert scene.labelled() == ["n1"]
    assert purge("--yes").output.splitlines()[-1] == "1 finalizer and the labels of 1 node removed"
    assert scene.api.get(f"{PATH}/web")["metadata"]["finalizers"] == ["a/b"]
    left = {name: scene.api.get(f"/api/v1/nodes/{name}")["metadata"]["labels"] for name in ("n1", "n2")}
    assert (left["n1"].get("other"), "address" in left["n1"], left["n2"]["address"]) == ("x", False, "somewhere")
    assert scene.labelled() == []
    assert purge("--yes").output == "no leftovers of allocations\n"
    scene.api.patch(f"{PATH}/web", {"metadata": {"finalizers": []}})
    scene.api.delete(CRD)
    assert purge("--dry-run").exit_code == 0


@pytest.mark.parametrize("dry_run", [False, True])
def test_once_acts_on_no_address(scene: Scene, run: Run, dry_run: bool) -> None:
    """A single pass changes nothing, and with --dry-run it shows the moves; a Service asks for a copy meanwhile.

    The copy changes the registry that is in force.
    """
    scene.world.write_text(f"{REGISTRY}annotations:\n  enabled: true\n")
    scene.world.add_service("web", "default")
    asks = {"endpoint-copier/enabled": "true", "endpoint-copier/default-service-name": "web"}
    scene.world.add_service("copy", "default", metadata={"annotations": asks}, clusterIP="None")
    result = run("run", "--once", "--leader-elect=false", *(["--dry-run"] if dry_run else []))
    assert ("2 reserved addresses to move" if dry_run else "1 service; slices") in result.output, result.output
    assert scene.status() == {}
    assert {call.kind for call in scene.cloud.log} == ({"read"} if dry_run else set())


def check(scene: Scene) -> Result:
    """Run ``hub check --online`` on the scene's registry."""
    access = ["--kubeconfig", str(scene.world.kubeconfig)]
    return CliRunner().invoke(cli, ["check", str(scene.world.path), "--online", *access])


def account_row(result: Result) -> str:
    """What the check says about account ``main``, with single spaces."""
    return next(" ".join(line.split()) for line in result.output.splitlines() if line.startswith("main "))


def test_check_online_describes_every_account(scene: Scene) -> None:
    """A reachable account is ok, without and with allocations; an address that is not reserved is named."""
    scene.api.delete(f"{PATH}/web")
    result = check(scene)
    assert (result.exit_code, account_row(result)) == (0, "main 0 simulated-cloud ok"), result.output
    scene.api.post(PATH, allocation("web", reservedIPs=["198.18.0.9"], cloud={"provider": "simulated-cloud"}))
    assert account_row(check(scene)).startswith("main 1 simulated-cloud ok, except 198.18.0.9: ")
    assert not [call for call in scene.cloud.log if call.kind == "write"]


def test_check_online_fails_without_an_answer_or_the_kind(scene: Scene) -> None:
    """An account whose cloud refuses the credential fails, and so do allocations that cannot be read."""
    (scene.world.folder / "credential").write_text("wrong")
    scene.api.delete(CRD)
    result = check(scene)
    assert result.exit_code == 1, result.output
    assert "credential" in account_row(result), result.output
    assert "hub allocations crd | kubectl apply -f -" in result.output
    assert "online: 2 of 3 failed" in result.output
