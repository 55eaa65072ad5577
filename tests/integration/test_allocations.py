"""Reserved addresses on nodes: the whole path on a real API server, with a simulated cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_testkit.addresses.cloud import CREDENTIAL, SimulatedCloud

from tests.support.allocations import allocation, define
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, RunningHub, World, add_node
from tests.support.simulated_clouds import install
from tests.support.waiting import eventually

RULES: tuple[Object, ...] = (
    {"apiGroups": ["netinfra.darkbrains.com"], "resources": ["netipallocations"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["netinfra.darkbrains.com"], "resources": ["netipallocations/status"], "verbs": ["update"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
)
"""The rights that allocations need in addition."""
PATH = "/apis/netinfra.darkbrains.com/v1alpha1/netipallocations"
ADDRESSES = ("198.18.0.1", "198.18.0.2")


class Scene:
    """Three nodes of a simulated cloud with two reserved addresses, and their allocation ``web``."""

    def __init__(self, world: World, cloud: SimulatedCloud) -> None:
        self.world = world
        self.cloud = cloud
        self.api = world.hub_cluster.api

    def labelled(self) -> list[str]:
        """The nodes with the label."""
        return sorted(
            node["metadata"]["name"] for node in self.api.list("/api/v1/nodes", labelSelector="ip.ready=true")
        )

    def holders(self) -> list[str]:
        """The nodes that have an address at the cloud."""
        return sorted(filter(None, map(self.cloud.holder_of, ADDRESSES)))

    def status(self, name: str = "web") -> Object:
        """The status of an allocation."""
        return self.api.get(f"{PATH}/{name}").get("status", {})

    def events(self) -> dict[str, set[str]]:
        """The notes of the Events on the allocation, by reason."""
        found: dict[str, set[str]] = {}
        for event in self.api.list("/apis/events.k8s.io/v1/namespaces/default/events"):
            if (event["regarding"]["kind"], event["regarding"]["name"]) == ("NetIPAllocation", "web"):
                found.setdefault(event["reason"], set()).add(event["note"])
        return found

    def awaits(self, count: int = 2, timeout: float = 20.0) -> list[str]:
        """Wait until so many addresses are attached and labelled; returns their nodes."""

        def check() -> bool:
            assert len(self.holders()) == count, (self.holders(), self.status())
            assert self.labelled() == self.holders(), (self.labelled(), self.status())
            assert self.status().get("attached") == count, self.status()
            return True

        eventually(check, timeout)
        return self.holders()

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Cordon a node, or uncordon it."""
        self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": on}})


@pytest.fixture
def scene(hub_cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The scene, with a registry in mode enforce."""
    define(hub_cluster.api)
    cloud = SimulatedCloud()
    install(monkeypatch)["main"] = cloud
    world = World(tmp_path, hub_cluster, {})
    hub_cluster.grant("hub", *HUB_RULES, *RULES)
    hub_cluster.kubeconfig(world.kubeconfig, "hub")
    (tmp_path / "credential").write_text(CREDENTIAL)
    for name in ("n1", "n2", "n3"):
        node = cloud.add_instance(name, ephemeral=True)
        add_node(hub_cluster, name)
        hub_cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"providerID": node.provider_id}})
    for address in ADDRESSES:
        cloud.reserve(address)
    world.write_text(REGISTRY)
    hub_cluster.api.post(PATH, allocation("web", reservedIPs=list(ADDRESSES), cloud={"provider": "simulated-cloud"}))
    return Scene(world, cloud)


REGISTRY = """
version: 1
allocations:
  mode: enforce
  clouds:
    - name: main
      provider: simulated-cloud
      config: {cloud: main, credential: {file: credential}}
      addresses: [198.18.0.0/24]
      interval: 10s
"""


def test_addresses_are_attached_and_follow_a_drain(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two addresses get nodes; when one of these is cordoned, its address moves to the third; labels follow.

    The third one is the node of the hub, which comes last. The log names each address, its instance and the account,
    and Events on the allocation tell the same.
    """
    caplog.set_level("INFO", "hub.allocating")
    monkeypatch.setenv("NODE_NAME", "n1")
    with RunningHub(scene.world):
        first = scene.awaits()
        assert first == ["n2", "n3"]
        scene.cordon(first[0])
        eventually(lambda: scene.holders() == ["n1", "n3"], 60)
        scene.awaits()
        eventually(lambda: "AddressMoved" in scene.events())
        assert scene.cloud.instance(first[0]).ephemeral, "the drained node has its ephemeral address again"
    address = next(address for address in ADDRESSES if scene.cloud.holder_of(address) == "n1")
    assert scene.events() == {
        "AddressAttached": {f"{one} is attached to node {first[one != address]}" for one in ADDRESSES},
        "AddressMoved": {f"{address} moved from node n2 to n1 (Drained)"},
    }
    told = [text for text in caplog.messages if address in text]
    assert any(text.startswith(f"account main: detach {address} from ") for text in told), told
    assert any(text.startswith(f"account main: attach {address} to ") for text in told), told
