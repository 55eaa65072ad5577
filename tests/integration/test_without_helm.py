"""docs/how-to/without-helm.md, followed on two real API servers: its files, its commands, and the documented roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import ROOT, World, add_node
from tests.support.page import Reader, blocks

PAGE = (ROOT / "docs" / "how-to" / "without-helm.md").read_text()
PERMISSIONS = (ROOT / "docs" / "reference" / "permissions.md").read_text()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader at the top of the page."""
    made = Reader(tmp_path, PAGE)
    yield made
    made.close()


def test_the_page_works(reader: Reader, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> None:
    """Every file and every `hub` command of the page works, with the documented roles and no other ones."""
    remote = remote_clusters[0]
    world = World(reader.folder, hub_cluster, {"payments-eu": remote})
    for number in (1, 2):
        add_node(remote, f"n{number}", f"10.7.0.{number}")
    hub_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "endpointslice-hub"}})
    hub_cluster.kubeconfig(reader.folder / "hub-admin.kubeconfig")
    remote.kubeconfig(reader.folder / "payments-eu-admin.kubeconfig")

    registry = reader.next("yaml")
    (reader.folder / "clusters.yaml").write_text(registry)
    hub_cluster.api.post("/api/v1/namespaces/edge/services", yaml.safe_load(reader.next("yaml")))
    assert reader.commands()[0].startswith("pip install . ./providers/node-addresses ")
    for role in hub_roles():
        hub_cluster.grant("hub", *role["rules"], namespace=role["metadata"].get("namespace"))
    hub_cluster.kubeconfig(reader.folder / "hub.kubeconfig", "hub")

    [add] = reader.commands()
    reader.hub(add)
    assert (reader.folder / "clusters.yaml").read_text() == registry
    check, online, plan, run = reader.commands()
    reader.hub(check)
    reader.hub(online)
    assert "10.7.0.1" in reader.hub(plan, code=1)
    assert world.slices() == []
    reader.run(run)
    world.awaits("10.7.0.1", "10.7.0.2", timeout=20)
    assert reader.interrupt() == 0
    assert world.published() == ["10.7.0.1", "10.7.0.2"]


def hub_roles() -> list[Object]:
    """The documented roles of the hub's account in the hub cluster."""
    [text] = [text for _, text in blocks(PERMISSIONS) if "name: endpointslice-hub}" in text]
    return list(yaml.safe_load_all(text))
