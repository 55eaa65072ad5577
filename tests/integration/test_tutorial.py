"""docs/tutorial.md, followed with its files, commands and outputs. API servers replace the kind clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.apiserver.server import ApiServer
from tests.support.hub import ROOT, World, node
from tests.support.page import Reader, blocks
from tests.support.waiting import eventually

PAGE = (ROOT / "docs" / "tutorial.md").read_text()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader at the start of the page."""
    made = Reader(tmp_path, PAGE)
    yield made
    made.close()


def test_the_tutorial_works(reader: Reader, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> None:
    """Every file and every `hub` command of the page works in order, with the exit codes and outputs that it shows."""
    world = World(reader.folder, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False)))

    clusters = reader.commands()
    assert "kind create cluster --name eu --config remote.yaml" in clusters
    (reader.folder / "kubeconfigs").mkdir()
    for name, server in {"hub": hub_cluster, **world.remotes}.items():
        server.kubeconfig(reader.folder / "kubeconfigs" / name)
    for third, (name, server) in enumerate(world.remotes.items()):
        for number, role in enumerate(("control-plane", "worker", "worker2")):
            labels = {"node-role.kubernetes.io/control-plane": ""} if role == "control-plane" else {}
            body = node(f"{name}-{role}", f"172.18.{third}.{number + 2}", labels=labels)
            server.api.post("/api/v1/nodes", {"metadata": body["metadata"]})
            server.api.patch(f"/api/v1/nodes/{name}-{role}/status", {"status": body["status"]})
    assert reader.commands() == ["pip install . ./providers/node-addresses"]

    _, service = yaml.safe_load_all(reader.next("yaml"))  # the namespace edge exists already
    hub_cluster.api.post("/api/v1/namespaces/edge/services", service)
    assert len(reader.commands()) == 1
    (reader.folder / "clusters.yaml").write_text(reader.next("yaml"))
    check, online, plan = reader.commands()
    reader.hub(check)
    reader.hub(online)
    shows(reader.next("text"), reader.hub(plan, code=1))
    assert world.slices() == []

    [run] = reader.commands()
    reader.run(run)
    world.awaits("172.18.0.3", "172.18.0.4", timeout=20)
    status, nodes = reader.commands()
    reader.hub(status)
    shows(reader.next("text"), reader.hub(nodes))

    (reader.folder / "clusters.yaml").write_text(reader.next("yaml"))
    assert "warning: clusters[1].allowedCIDRs[0]: 172.18.0.0/16 of us overlaps" in reader.hub("hub check clusters.yaml")
    assert "warns that the networks of `us` and `eu` overlap" in PAGE
    everything = ("172.18.0.3", "172.18.0.4", "172.18.1.3", "172.18.1.4")
    world.awaits(*everything, timeout=20)
    [why] = reader.commands()
    [words] = re.findall(r"^Its first line says `(.*?)`", PAGE, re.MULTILINE)
    assert words in reader.hub(why).splitlines()[1]  # line 0 has the names of the columns
    assert len(world.slices()) == 2

    stop, status = reader.commands()
    assert stop == "docker stop us-control-plane"
    world.remotes["us"].kill()
    reader.hub(status, code=4)
    assert world.published() == sorted(everything)
    world.remotes["us"].ensure_running()

    assert reader.interrupt() == 0
    assert world.published() == sorted(everything)
    [purge] = reader.commands()
    reader.hub(purge)
    eventually(lambda: world.slices() == [])
    assert blocks(PAGE)[-1][1].strip() == purge


def shows(expected: str, printed: str) -> None:
    """Every line of the page is printed, whatever the widths of the columns."""
    words = [line.split() for line in printed.splitlines()]
    assert [line for line in expected.splitlines() if line.split() not in words] == [], printed
