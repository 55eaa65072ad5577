"""Protection against accidents in the registry, with a running hub on real API servers."""

from __future__ import annotations

import base64
import json
import logging
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from hub.cli import cli
from hub.model import ANNOTATION_WITHHELD
from hub.observe.local import accepted
from hub.observe.remote import cluster as remote_cluster
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import SECRET_RULES, HubProcess, RunningHub, World, add_node
from tests.support.waiting import eventually
from tests.unit.observe.providers.plugins import distribution

NAMES = ("a", "b", "c", "d")
UID = "endpointslice-hub/cluster-uid"
LEASE = "endpointslice-hub/lease"
ADDRESSES = {"eu": "10.1.0.1", "us": "10.2.0.1"}


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The clusters eu and us with one node each, the Services a to d with eu, and payments with both."""
    made = World(tmp_path, hub_cluster, dict(zip(ADDRESSES, remote_clusters, strict=False))).prepare()
    hub_cluster.kubeconfig(tmp_path / "operator")
    for name in (*NAMES, "payments"):
        made.add_service(name)
    for name, address in ADDRESSES.items():
        add_node(made.remotes[name], f"{name}-1", address)
    made.write(services=services(made, *NAMES))
    return made


def services(world: World, *names: str) -> list[Object]:
    """Registry entries for these Services with eu, and for ``payments`` with both clusters."""
    return [*(world.service(name, "eu") for name in names), world.service("payments", "eu", "us")]


def published(world: World) -> dict[str, list[str]]:
    """The published addresses by Service, for Services that have any."""
    return {name: found for name in (*NAMES, "e", "payments") if (found := world.published(name))}


def versions(world: World) -> dict[str, str]:
    """The resourceVersion of each of the hub's slices."""
    return {name: version for service in (*NAMES, "payments") for name, version in world.versions(service).items()}


ALL = {**{name: ["10.1.0.1"] for name in NAMES}, "payments": ["10.1.0.1", "10.2.0.1"]}


def awaits(world: World, wanted: dict[str, list[str]]) -> None:
    """Wait until exactly these addresses are published."""

    def check() -> bool:
        found = published(world)
        assert found == wanted
        return True

    eventually(check)


def hub(world: World, *arguments: str, code: int = 0) -> Result:
    """Run a command as the operator."""
    result = CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(world.folder / "operator")])
    assert result.exit_code == code, result.output
    return result


def look(world: World, command: str, *more: str, code: int = 0) -> Any:
    """The JSON output of a command."""
    return json.loads(hub(world, command, "--registry", str(world.path), "-o", "json", *more, code=code).stdout)


def approve(world: World, command: str) -> None:
    """Run a command exactly as it was printed."""
    assert command.startswith("hub approve ")
    hub(world, *shlex.split(command)[1:])


# --- mass removals -------------------------------------------------------------------------------


def test_mass_removal_is_withheld_while_additions_are_published(world: World) -> None:
    """The removal is withheld; plan and status show the command that approves it."""
    world.add_service("e")
    with RunningHub(world) as running:
        awaits(world, ALL)
        before = versions(world)
        world.write(services=services(world, "a", "e"))
        eventually(lambda: "RegistryRemovalWithheld" in running.findings("b"))
        awaits(world, {**ALL, "e": ["10.1.0.1"]})
        time.sleep(1.5)  # three times the grace
        assert versions(world) == before
        message = running.findings("b")["RegistryRemovalWithheld"].message
        plan, status = look(world, "plan")["registry"]["withheld"], look(world, "status")["registry"]["withheld"]
        assert plan == status
        assert plan["entries"] == ["service edge/b", "service edge/c", "service edge/d"]
        assert message.endswith(f"withheld until: {plan['approve']}")
        for command in ("plan", "status"):
            assert plan["approve"] in hub(world, command, "--registry", str(world.path)).stdout
        assert plan["approve"] in hub(world, "check", str(world.path), "--online").stderr
        approve(world, plan["approve"])
        awaits(world, {"a": ["10.1.0.1"], "e": ["10.1.0.1"], "payments": ALL["payments"]})


def test_a_mass_removal_is_withheld_at_start_and_after_a_restart(world: World) -> None:
    """The removal is found from the slices, and has the same hash in every process."""
    with RunningHub(world):
        awaits(world, ALL)
    world.write(services=services(world, "a"))
    before = versions(world)
    hashes = set()
    for _ in range(2):
        with RunningHub(world) as running:
            eventually(lambda: "RegistryRemovalWithheld" in running.findings("c"))
            time.sleep(1.5)
            held = running.hub.reconciler.withheld()
            assert held is not None
            hashes.add(held.hash)
    once = hub(world, "run", "--once", "--leader-elect=false", "--removal-grace", "0s", "--registry", str(world.path))
    assert "RegistryRemovalWithheld" in once.stderr or "withheld until: hub approve registry" in once.stderr
    assert len(hashes) == 1
    assert versions(world) == before


def test_a_restart_does_not_make_a_withheld_share_smaller(world: World) -> None:
    """Additions in the same file do not shrink the share of a removal for a new process: the stored note counts."""
    path = f"/api/v1/namespaces/default/configmaps/{accepted.config_map('default')}"
    added = [f"e{number}" for number in range(12)]
    for name in added:
        world.add_service(name)

    def noted() -> str | None:
        found = world.hub_cluster.api.find(path)
        return found["metadata"]["annotations"].get(ANNOTATION_WITHHELD) if found is not None else None

    with RunningHub(world):
        awaits(world, ALL)
        world.write(services=[*services(world, "a", "b"), *(world.service(name, "eu") for name in added)])
        eventually(lambda: world.published(added[-1]))
        eventually(noted)
    with RunningHub(world) as running:
        eventually(lambda: running.hub.writing)
        held = eventually(lambda: running.hub.reconciler.withheld())
        assert held.endpoints <= 0.2 * held.total
        assert held.hash == noted()
        time.sleep(1.5)  # three times the grace
        awaits(world, {**ALL})
        approve(world, held.approve)
        awaits(world, {name: ALL[name] for name in ("a", "b", "payments")})
        eventually(lambda: noted() is None)


def test_removal_of_a_cluster_with_its_services_is_withheld(world: World) -> None:
    """The slices of a removed cluster stay, even if their Service has another source, and while it is unreachable."""
    with RunningHub(world) as running:
        awaits(world, ALL)
        world.remotes["us"].pause()
        write = [world.service("payments", "eu"), *(world.service(name, "eu") for name in "ab")]
        world.write([world.cluster("eu")], write)
        eventually(lambda: "RegistryRemovalWithheld" in running.findings())
        time.sleep(1.5)
        assert published(world) == ALL
        held = running.hub.reconciler.withheld()
        assert held is not None
        assert held.entries == ("cluster us", "service edge/c", "service edge/d")
        approve(world, held.approve)
        awaits(world, {name: ["10.1.0.1"] for name in ("a", "b", "payments")})


def test_single_removal_and_repaired_file_need_no_approval(world: World) -> None:
    """A single removal happens after the grace; entries that return to the file cause no write."""
    with RunningHub(world) as running:
        awaits(world, ALL)
        before = versions(world)
        world.write(services=services(world))
        eventually(lambda: "RegistryRemovalWithheld" in running.findings("b"))
        world.write(services=services(world, *NAMES))
        eventually(lambda: running.hub.reconciler.withheld() is None)
        assert versions(world) == before
        world.write(services=services(world, "a", "b", "c"))
        awaits(world, {name: addresses for name, addresses in ALL.items() if name != "d"})


def test_a_command_that_is_shown_names_the_owner_and_the_namespace(world: World) -> None:
    """If owner and namespace are not the defaults, the printed command has them."""
    rules: Object = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
    world.hub_cluster.grant("hub", rules, namespace="edge")
    world.write(services=services(world, *NAMES), owner="team.one")
    with RunningHub(world, namespace="edge") as running:
        awaits(world, ALL)
        world.write(services=services(world), owner="team.one")
        eventually(lambda: "RegistryRemovalWithheld" in running.findings("b"))
        held = running.hub.reconciler.withheld()
        assert held is not None
        assert held.approve.endswith(f"{held.hash} --owner team.one --lease-namespace edge")
        approve(world, held.approve)
        awaits(world, {"payments": ALL["payments"]})


# --- another cluster under a known name ----------------------------------------------------------


def uid_of(server: ApiServer) -> str:
    """The UID of the kube-system Namespace."""
    return str(server.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"])


def swap(world: World) -> None:
    """Make the kubeconfig of eu point to the cluster us."""
    world.remotes["us"].kubeconfig(world.folder / "eu", "hub")


def only_eu(world: World) -> None:
    """Write a registry with one cluster and the Service payments."""
    world.write([world.cluster("eu")])


def test_replaced_cluster_is_ignored_until_approved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the other cluster is published, and nothing removed, until ``hub approve cluster/NAME``."""
    monkeypatch.setattr(remote_cluster, "ACCESS_CHECK", 0.3)
    only_eu(world)
    with RunningHub(world) as running:
        world.awaits("10.1.0.1")
        [made] = world.slices()
        assert made["metadata"]["annotations"][UID] == uid_of(world.remotes["eu"])
        mark = world.hub_cluster.audit_mark()
        swap(world)
        eventually(lambda: running.state("eu").startswith("WrongCluster: its kube-system Namespace has UID"))
        add_node(world.remotes["us"], "us-2", "10.2.0.2")
        time.sleep(1.0)
        assert world.writes(mark) == []
        eventually(lambda: "WrongCluster" in running.findings())
        [eu] = look(world, "status", code=4)["clusters"]
        assert eu["state"] == "WrongCluster"
        assert "hub approve cluster/eu" in hub(world, "check", str(world.path), "--online", code=1).stdout
        approve(world, "hub approve cluster/eu" + eu["error"].partition("hub approve cluster/eu")[2])
        eventually(lambda: running.state("eu") == "Ready: ")
        eventually(lambda: {"10.2.0.1", "10.2.0.2"} <= set(world.published()))
        eventually(lambda: {slice_["metadata"]["annotations"][UID] for slice_ in world.slices()} == {eu_uid(world)})
    with RunningHub(world) as running:
        eventually(lambda: running.state("eu") == "Ready: ")


def eu_uid(world: World) -> str:
    """The UID of the cluster that eu is after a swap."""
    return uid_of(world.remotes["us"])


def test_a_hub_that_starts_knows_the_cluster_from_its_slices(world: World) -> None:
    """The slices have the cluster's UID. Once the kubeconfig is right again, the hub continues without a write."""
    only_eu(world)
    with RunningHub(world):
        world.awaits("10.1.0.1")
    before = versions(world)
    swap(world)
    with RunningHub(world) as running:
        eventually(lambda: running.state("eu").startswith("WrongCluster: "))
        time.sleep(1.0)
        assert versions(world) == before
    world.remotes["eu"].kubeconfig(world.folder / "eu", "hub")
    with RunningHub(world) as running:
        eventually(lambda: running.state("eu") == "Ready: ")
        add_node(world.remotes["eu"], "eu-2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2")


def test_slices_of_an_earlier_version_are_not_written_for_the_uid(world: World) -> None:
    """The UID is added with the next write; until then the first cluster that answers is accepted."""
    only_eu(world)
    with RunningHub(world):
        world.awaits("10.1.0.1")
    [made] = world.slices()
    path = world.slice_path(made["metadata"]["name"])
    world.hub_cluster.api.patch(path, {"metadata": {"annotations": {UID: None}}})
    mark = world.hub_cluster.audit_mark()
    with RunningHub(world) as running:
        eventually(lambda: running.state("eu") == "Ready: ")
        assert world.writes(mark, settle=1.5) == []
        add_node(world.remotes["eu"], "eu-2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2")
    assert world.hub_cluster.api.get(path)["metadata"]["annotations"][UID] == uid_of(world.remotes["eu"])


def test_an_account_that_may_not_read_the_uid_works_as_before(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One log line says that the cluster's identity is not checked."""
    caplog.set_level(logging.INFO, "hub")
    rules: Object = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    world.remotes["eu"].grant("nobody", rules)
    world.remotes["eu"].kubeconfig(world.folder / "eu", "nobody")
    only_eu(world)
    with RunningHub(world) as running:
        world.awaits("10.1.0.1")
        assert running.state("eu") == "Ready: "
    assert UID not in world.slices()[0]["metadata"]["annotations"]
    assert sum("its identity cannot be checked" in record.message for record in caplog.records) == 1


def test_cluster_with_two_names_is_reported(world: World) -> None:
    """A cluster under two names is a warning, and both work."""
    swap(world)
    with RunningHub(world) as running:
        eventually(lambda: "SameCluster" in running.findings())
        assert running.findings()["SameCluster"].objects == ("eu", "us")
        world.awaits("10.2.0.1")


# --- another hub's slices --------------------------------------------------------------------------


def test_slices_of_another_hub_are_taken_over_with_the_flag(world: World) -> None:
    """With the flag, slices are relabelled with one write each and without a gap; other hubs' slices stay."""
    world.write([world.cluster("eu")], [world.service("a", "eu"), world.service("b", "eu")])
    with RunningHub(world, namespace="kube-system"):
        eventually(lambda: set(published(world)) == {"a", "b"})
    theirs = world.slices("a") + world.slices("b")
    mark = world.hub_cluster.audit_mark()
    with RunningHub(world, dry_run=True, leader_elect=False) as running:
        eventually(lambda: "OwnerConflict" in running.findings("a") and "OwnerConflict" in running.findings("b"))
        message = running.findings("a")["OwnerConflict"].message
        assert "the hub with Lease kube-system/endpointslice-hub-default" in message
        assert message.endswith("hub run --take-over edge/a")
    with HubProcess(world, "--take-over", "edge/a"):
        name = theirs[0]["metadata"]["name"]
        path = world.slice_path(name)
        eventually(
            lambda: (
                world.hub_cluster.api.get(path)["metadata"]["annotations"][LEASE] == "default/endpointslice-hub-default"
            )
        )
        time.sleep(1.0)
        assert world.slices("a")[0]["endpoints"] == theirs[0]["endpoints"]
        assert theirs[1] in world.slices("b")
    written = {slice_["metadata"]["name"] for slice_ in theirs}
    assert [(request.verb, request.name) for request in world.writes(mark) if request.name in written] == [
        ("update", name)
    ]


# flags that a registry may need


CONTACT = """
from contextlib import asynccontextmanager
from hub.plugin import Found, NoConfig, NodeProviderType, hookimpl

class Provider:
    async def resolve(self, nodes, /):
        return {node.name: Found((node.addresses[0].address,)) for node in nodes}

@asynccontextmanager
async def open_provider(cluster, config, shared):
    cluster.hub.check_api_host("elsewhere.test", "api.test")
    yield Provider()

@hookimpl
def hub_register_providers():
    return [NodeProviderType(name=NAME, open=open_provider, config=NoConfig)]
"""

RECORDS = json.dumps([{"name": "n1", "private_ip": "10.1.0.1", "ready": True, "worker": True}])


def runs_a_program(world: World, folder: Path) -> tuple[Object, list[str], dict[str, Any]]:
    """A kubeconfig with a credential program."""
    program = folder / "login"
    token = world.remotes["eu"].token("hub")
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    program.chmod(0o700)
    content = yaml.safe_load((world.folder / "eu").read_text())
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    for user in content["users"]:
        user["user"] = {"exec": run}
    (world.folder / "eu").write_text(yaml.safe_dump(content))
    return world.cluster("eu"), ["--allow-exec", str(program)], {"allow_exec": frozenset({str(program)})}


def lists_by_a_program(world: World, folder: Path) -> tuple[Object, list[str], dict[str, Any]]:
    """An inventory that a program prints."""
    script = folder / "list.json"
    script.write_text(RECORDS)
    provider = {"name": "inventory", "config": {"command": ["/bin/cat", str(script)], "interval": "1s"}}
    entry = world.cluster("eu", kubeconfig=None, provider=provider)
    return entry, ["--allow-exec", "/bin/cat"], {"allow_exec": frozenset({"/bin/cat"})}


def reads_a_file(world: World, folder: Path) -> tuple[Object, list[str], dict[str, Any]]:
    """An inventory file outside of the registry's folder."""
    (folder / "list.json").write_text(RECORDS)
    provider = {"name": "inventory", "config": {"file": str(folder / "list.json"), "interval": "1s"}}
    entry = world.cluster("eu", kubeconfig=None, provider=provider)
    return entry, ["--credentials-dir", str(folder)], {"credentials_dir": str(folder)}


def reads_a_secret(world: World, _: Path) -> tuple[Object, list[str], dict[str, Any]]:
    """A Secret in another namespace."""
    content = base64.b64encode((world.folder / "eu").read_bytes()).decode()
    secret: Object = {"metadata": {"name": "eu"}, "data": {"kubeconfig": content}}
    world.hub_cluster.api.post("/api/v1/namespaces/edge/secrets", secret)
    entry = world.cluster("eu", kubeconfig={"secret": "eu", "key": "kubeconfig"})
    return entry, ["--secrets-namespace", "edge"], {"secrets_namespace": "edge"}


def contacts_a_host(world: World, folder: Path) -> tuple[Object, list[str], dict[str, Any]]:
    """A provider whose configuration has another API host than the default."""
    distribution(folder, "contact", CONTACT)
    entry = world.cluster("eu", provider={"name": "contact"})
    return entry, ["--allow-api-host", "elsewhere.test"], {"allow_api_hosts": frozenset({"elsewhere.test"})}


Oversteps = Callable[[World, Path], tuple[Object, list[str], dict[str, Any]]]


@pytest.mark.parametrize(
    "oversteps", [runs_a_program, lists_by_a_program, reads_a_file, reads_a_secret, contacts_a_host]
)
def test_cluster_that_needs_a_flag_is_degraded_and_names_it(
    world: World,
    oversteps: Oversteps,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the flag only that cluster is degraded, in ``hub run`` and ``check --online``; with the flag it works."""
    folder = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.syspath_prepend(folder)
    world.hub_cluster.grant("hub", *SECRET_RULES)
    entry, flags, options = oversteps(world, folder)
    ports = [{"name": "https", "port": 30443}]
    world.write([entry, world.cluster("us")], [world.service("payments", "eu", "us", ports=ports)])
    with RunningHub(world) as running:
        world.awaits("10.2.0.1")
        eventually(lambda: flags[0] in running.problem("eu"))
    shown = hub(world, "check", str(world.path), "--online", code=1).stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line.split()}
    assert flags[0] in lines["eu"]
    assert lines["us"].endswith("ok")
    with RunningHub(world, **options):
        world.awaits("10.1.0.1", "10.2.0.1")
    assert lines["us"] in hub(world, "check", str(world.path), "--online", *flags).stdout
    for module in [name for name in sys.modules if name.startswith("plugin_hub_contact")]:
        del sys.modules[module]
