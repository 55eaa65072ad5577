"""The samples in docs/runbooks: real output of the commands above them, for exactly that finding, on real API servers.

``RUNBOOKS=1 python -m pytest tests/integration/test_runbooks.py`` writes the samples.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from hub.cli import cli
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, ROOT, HubProcess, World, add_node
from tests.support.page import blocks
from tests.support.waiting import eventually
from tests.unit.observe.providers.plugins import distribution

RUNBOOKS = ROOT / "docs" / "runbooks"
IN_POD = "kubectl -n endpointslice-hub exec deploy/hub-endpointslice-hub -- hub "
POD = "hub-endpointslice-hub-7c9d8b6f5-x2x8k"
MOUNTED = "/etc/endpointslice-hub"
ALL = ("10.7.0.1", "10.7.0.2", "10.7.0.3", "10.7.0.4")
SHOWN = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-11-21T03:07:41Z",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "1f0c9a52-6b7e-4f0d-9a3c-5d2e8b1c7a64",
    r"(cluster/eu +)[0-9a-f]{12}": r"\g<1>6169d9ba31c4",
    r"(instead of) [-0-9a-f]{36}": r"\1 c4a7e0d8-2b19-4c63-8f5e-7a90d1b3e652",
    r"127\.0\.0\.1:\d+": "10.7.0.10:6443",
}
"""What differs from run to run -> what the samples show instead."""


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """The cluster ``eu`` with four nodes and another cluster ``us``; the Service ``payments`` of eu."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0], "us": remote_clusters[1]}).prepare()
    made.add_service()
    made.write([made.cluster("eu")])
    for number, address in enumerate(ALL, 1):
        add_node(made.remotes["eu"], f"eu-{number}", address)
    return made


class Play(NamedTuple):
    """How a finding comes about.

    Attributes:
        sees: ``hub status`` contains this once the finding is there.
        act: called when the endpoints are published.
        before: called before the hub starts.
        publishes: whether the hub publishes the nodes of eu after ``before``.
    """

    sees: str
    act: Callable[[World], object] = lambda _: None
    before: Callable[[World], object] = lambda _: None
    publishes: bool = True


def forbid(world: World, resource: str, forbidden: str) -> None:
    """Give the hub an account that lacks one permission."""
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != forbidden or resource not in rule["resources"]]}
        for rule in HUB_RULES
    ]
    world.hub_cluster.grant("nobody", *rules)
    world.hub_cluster.kubeconfig(world.kubeconfig, "nobody")


def registry(world: World, cluster: Object | None = None, **service: object) -> None:
    """Write a registry with other keys for the cluster or the Service."""
    world.write([world.cluster("eu", **(cluster or {}))], [world.service(**service)])


def delete_nodes(world: World, count: int) -> None:
    """Delete the first nodes of eu."""
    for number in range(1, count + 1):
        world.remotes["eu"].api.delete(f"/api/v1/nodes/eu-{number}")


OTHERS = ("invoices", "orders", "search")


def add_others(world: World) -> None:
    """Three more Services."""
    for name in OTHERS:
        world.add_service(name)
    world.write([world.cluster("eu")], [world.service(name) for name in ("payments", *OTHERS)])


def drop_others(world: World) -> None:
    """Remove these from the registry once they are published."""
    for name in OTHERS:
        world.awaits(*ALL, service=name)
    registry(world)


def not_ready(world: World) -> None:
    """The nodes of eu have never been Ready."""
    delete_nodes(world, len(ALL))
    for number, address in enumerate(ALL, 1):
        add_node(world.remotes["eu"], f"eu-{number}", address, ready=False)


def orphan(world: World) -> None:
    """A slice of a Service that is not in the registry, and an account that may not delete it."""
    forbid(world, "endpointslices", "delete")
    world.add_service("old")
    labels = {
        "kubernetes.io/service-name": "old",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-hub",
        "endpointslice-hub/owner": "default",
        "multicluster.kubernetes.io/source-cluster": "eu",
    }
    endpoints = [{"addresses": ["10.7.0.9"], "conditions": {"ready": True}}]
    body = {"metadata": {"name": "old-1", "labels": labels}, "addressType": "IPv4", "endpoints": endpoints}
    world.hub_cluster.api.post("/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices", body)


ACME = """
import time
from contextlib import asynccontextmanager
from hub.plugin import Found, NoConfig, NodeProviderType, Unknown, hookimpl

class Provider:
    async def resolve(self, nodes, /):
        if any(node.name == "eu-block" for node in nodes):
            time.sleep(1e6)
        return {node.name: Found((node.addresses[0].address,)) if node.addresses else LOST for node in nodes}

LOST = Unknown("no server of this name in data center fra-2")

@asynccontextmanager
async def open_provider(cluster, config, shared):
    yield Provider()

@hookimpl
def hub_register_providers():
    return [NodeProviderType(name=NAME, open=open_provider, config=NoConfig, reads=frozenset({"addresses"}))]
"""
"""A provider that does not know nodes without addresses, and blocks when it is asked about the node ``eu-block``."""


def acme(world: World) -> None:
    """Give eu the provider above."""
    folder = world.folder / "plugins"
    folder.mkdir()
    distribution(folder, "acme", ACME)
    registry(world, {"provider": {"name": "acme"}})


def delete_at_once(world: World, count: int) -> None:
    """Delete nodes while the Service is paused, so that one pass over it misses all of them."""
    path = "/api/v1/namespaces/edge/services/payments"
    for paused in ("true", None):
        world.hub_cluster.api.patch(path, {"metadata": {"annotations": {"endpointslice-hub/paused": paused}}})
        if paused:
            time.sleep(0.5)
            delete_nodes(world, count)
            time.sleep(0.5)


PLAYS: dict[str, Play] = {
    "FilteredEmpty": Play("= withheld", lambda world: registry(world, nodes={"selector": "pool=blue"})),
    "RemovalWithheld": Play("= withheld", lambda world: delete_at_once(world, 3)),
    "EmptyResultHeld": Play(
        "= withheld", lambda world: delete_at_once(world, 4), lambda world: registry(world, guard={"emptyResults": 0})
    ),
    "RegistryRemovalWithheld": Play("= withheld", drop_others, add_others),
    "RegistryRejected": Play("was rejected", lambda world: world.write_text("version: 2\n")),
    "RegistryBrokenEntries": Play("registry: ", lambda world: registry(world, {"allowedCIDR": ["10.7.0.0/16"]})),
    "ClusterUnreachable": Play("connection refused", lambda world: world.remotes["eu"].kill()),
    "SourceStale": Play("connection refused", lambda world: world.remotes["eu"].kill()),
    "ClusterDegraded": Play("Degraded", lambda world: world.remotes["eu"].kubeconfig(world.folder / "eu", "nobody")),
    "WrongCluster": Play("WrongCluster", lambda world: world.remotes["us"].kubeconfig(world.folder / "eu", "hub")),
    "ProviderFailed": Play(
        "nodes.json",
        lambda world: registry(
            world, {"kubeconfig": None, "provider": {"name": "inventory", "config": {"file": "nodes.json"}}}
        ),
    ),
    "NodeUnresolved": Play("NodeUnresolved", lambda world: add_node(world.remotes["eu"], "eu-5"), acme),
    "NoLeader": Play("403 Forbidden", before=lambda world: forbid(world, "leases", "create"), publishes=False),
    "PublishLatency": Play(
        "not written", before=lambda world: forbid(world, "endpointslices", "create"), publishes=False
    ),
    "NothingReady": Play("ClusterDisrupted", before=not_ready, publishes=False),
    "OrphanedSlices": Play("not written", before=orphan),
    "ProviderStalled": Play("event loop", lambda world: add_node(world.remotes["eu"], "eu-block"), acme),
}
"""Alert -> its finding."""


def page_of(alert: str) -> Path:
    """The runbook."""
    return RUNBOOKS / f"EndpointSliceHub{alert}.md"


def commands(alert: str) -> list[str]:
    """The `hub` commands of the runbook's first block."""
    [(kind, text), *_] = blocks(page_of(alert).read_text())
    assert kind == "sh"
    return [line.removeprefix(IN_POD) for line in text.splitlines() if line.startswith(IN_POD)]


def printed(world: World, url: str, command: str) -> str:
    """What a command prints with the environment of the hub's Pod, with the values that the samples show."""
    environment = {"ENDPOINTSLICE_HUB_SERVER": url, "ENDPOINTSLICE_HUB_REGISTRY": str(world.path)}
    done = CliRunner(env=environment).invoke(cli, shlex.split(command.replace(MOUNTED, str(world.folder))))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    text = done.output.replace(str(world.folder), MOUNTED)
    for pattern, shown in SHOWN.items():
        text = re.sub(pattern, shown, text)
    return text


@pytest.mark.parametrize("alert", PLAYS)
def test_sample_of_a_runbook_is_real(world: World, alert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is what the commands print when the finding is there, but for times, identities and hosts."""
    monkeypatch.setenv("POD_NAME", POD)
    play = PLAYS[alert]
    play.before(world)
    with HubProcess(world, "--listen", "127.0.0.1:0", path=(ROOT, world.folder / "plugins")) as hub:
        url = eventually(lambda: re.search(r"metrics on (\S+)", hub.log.read_text()), 20)[1]
        if play.publishes:
            world.awaits(*ALL, timeout=20)
        play.act(world)
        eventually(lambda: play.sees in printed(world, url, "status"), 60)
        text = "\n".join(printed(world, url, command) for command in commands(alert))
    page = page_of(alert).read_text()
    sample = blocks(page)[1][1]
    if os.environ.get("RUNBOOKS"):
        page_of(alert).write_text(page.replace(sample, text, 1))
        sample = text
    assert text == sample


WITHHELD = ("FilteredEmpty", "RemovalWithheld", "EmptyResultHeld", "RegistryRemovalWithheld")


@pytest.mark.parametrize("alert", WITHHELD)
def test_sample_of_a_withheld_removal_ends_in_its_approval(alert: str) -> None:
    """The sample names the finding, and its last words are the command that approves the removal."""
    sample = blocks(page_of(alert).read_text())[1][1]
    assert f"= withheld: {alert}: " in sample
    subject = "registry" if alert.startswith("Registry") else "edge/payments"
    assert re.search(rf"  hub approve {subject} [0-9a-f]{{12}}\n\Z", sample)


def test_sample_of_an_absent_hub_ends_in_its_error(world: World) -> None:
    """The last line of the sample is what a hub prints that cannot start."""
    world.write_text("version: 2\n")
    done = CliRunner().invoke(cli, ["run", "--registry", str(world.path), "--kubeconfig", str(world.kubeconfig)])
    assert done.exit_code == 3
    text = done.output.replace(str(world.folder), MOUNTED).splitlines()[-1]
    sample = blocks(page_of("Absent").read_text())[1][1]
    assert sample.splitlines()[-1] == text
