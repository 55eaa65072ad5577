"""The fake of Brightbox for blocking tests, and a cluster whose cloud controller is the hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hub_provider_brightbox.testing import CLIENT, SECRET, BrightboxFake

from hub.controller.rights import PART_RULES, lease_rules
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.fake_thread import FakeThread
from tests.support.hub import World

UNINITIALIZED = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
RULES = (*(rule for rules in PART_RULES.values() for rule in rules), *lease_rules())
"""What ``hub cluster add --cloud=nodes,load-balancers,delete-nodes`` grants."""


LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cloud-controller-manager"


class BrightboxThread(FakeThread[BrightboxFake]):
    """Serves a :class:`BrightboxFake` in a thread."""

    def __init__(self) -> None:
        super().__init__(BrightboxFake)


@dataclass
class CloudScene:
    """A cluster ``eu`` with a cloud controller, its cloud, and a hub cluster.

    Attributes:
        world: the hub cluster and the registry.
        remote: the cluster.
        cloud: its cloud.
        section: ``cloud`` of the cluster's entry, besides the provider.
    """

    world: World
    remote: ApiServer
    cloud: BrightboxThread
    section: Object = field(default_factory=dict)

    def write(self, **section: Any) -> None:
        """Write the registry; ``section`` changes the cluster's ``cloud``."""
        self.section |= section
        folder = self.world.folder
        (folder / "client").write_text(CLIENT)
        (folder / "secret").write_text(SECRET)
        config = {"client": {"file": "client"}, "secret": {"file": "secret"}, "url": self.cloud.fake.url}
        cloud = {"provider": {"name": "brightbox", "config": config}, **self.section}
        entry = {"name": "eu", "kubeconfig": {"path": "eu"}, "cloud": cloud}
        self.world.write_text(yaml.safe_dump({"version": 1, "clusters": [entry]}))

    @property
    def options(self) -> Object:
        """The options of a RunningHub."""
        return {"allow_api_hosts": frozenset((self.cloud.fake.host,))}

    def add_node(self, *, ready: str = "True", initialized: bool = False, **server: Any) -> str:
        """Create a server and its Node, as a kubelet registers it; returns their name."""
        made = self.cloud.call(lambda: self.cloud.fake.account.add_server(**server))
        name = str(made["id"])
        spec: Object = {"providerID": f"brightbox://{name}"} if initialized else {"taints": [UNINITIALIZED]}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.remote.api.post("/api/v1/nodes", {"metadata": meta, "spec": spec})
        self.status(name, ready)
        return name

    def status(self, name: str, ready: str) -> None:
        """Set a Node's condition Ready, as its kubelet does."""
        condition = {"type": "Ready", "status": ready, "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        path = f"/api/v1/nodes/{name}/status"
        node = self.remote.api.get(f"/api/v1/nodes/{name}")
        addresses = node.get("status", {}).get("addresses") or [{"type": "Hostname", "address": name}]
        self.remote.api.patch(path, {"status": {"conditions": [condition], "addresses": addresses}})

    def node(self, name: str) -> Object:
        """A Node."""
        return self.remote.api.get(f"/api/v1/nodes/{name}")

    def initialized(self, name: str) -> bool:
        """Whether a Node has lost the taint of a new Node."""
        return not any(taint["key"] == UNINITIALIZED["key"] for taint in self.node(name)["spec"].get("taints", ()))

    def add_service(self, name: str = "web", **more: Any) -> Object:
        """Create a Service of type LoadBalancer."""
        meta = {"name": name, **more.pop("metadata", {})}
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        spec = {"type": "LoadBalancer", "selector": {"app": name}, "ports": ports, **more}
        return self.remote.api.post("/api/v1/namespaces/edge/services", {"metadata": meta, "spec": spec})

    def service(self, name: str = "web") -> Object:
        """A Service."""
        return self.remote.api.get(f"/api/v1/namespaces/edge/services/{name}")

    def hostnames(self, name: str = "web") -> list[str]:
        """The hostnames in a Service's status."""
        balancer = self.service(name).get("status", {}).get("loadBalancer") or {}
        return [entry["hostname"] for entry in balancer.get("ingress") or ()]

    @property
    def writes(self) -> list[str]:
        """What was written to the cloud."""
        return self.cloud.call(lambda: list(self.cloud.fake.writes))


def cloud_scene(
    hub_cluster: ApiServer, remote: ApiServer, folder: Path, cloud: BrightboxThread, *, granted: bool = True
) -> CloudScene:
    """A cluster ``eu`` without Nodes, and the registry that makes the hub its cloud controller, with its rights."""
    world = World(folder, hub_cluster, {"eu": remote}).prepare()
    if granted:
        remote.grant("hub", *RULES)
    if remote.api.exists(LEASE):  # of an earlier test
        remote.api.delete(LEASE)
    made = CloudScene(world, remote, cloud)
    made.write()
    return made
