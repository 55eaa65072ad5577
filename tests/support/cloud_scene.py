"""A cluster with a cloud whose cloud controller is the hub, for blocking tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from hub.controller.rights import PART_RULES, lease_rules
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import World

UNINITIALIZED = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
RULES = (*(rule for rules in PART_RULES.values() for rule in rules), *lease_rules())
"""What ``hub cluster add --cloud=nodes,load-balancers,delete-nodes`` grants."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cloud-controller-manager"
SERVICES = "/api/v1/namespaces/edge/services"


@dataclass
class CloudScene(ABC):
    """A cluster ``eu``, its cloud, and a hub cluster.

    Attributes:
        world: the hub cluster and the registry.
        remote: the cluster.
        cloud: its cloud: a FakeThread.
        section: ``cloud`` of the cluster's entry, besides the provider.
    """

    world: World
    remote: ApiServer
    cloud: Any
    section: Object = field(default_factory=dict)

    @abstractmethod
    def provider(self) -> Object:
        """``cloud.provider``; writes the files that it names."""

    @classmethod
    def create(
        cls, hub_cluster: ApiServer, remote: ApiServer, folder: Path, cloud: Any, *, granted: bool = True
    ) -> Self:
        """A cluster ``eu`` without Nodes, and the registry that makes the hub its cloud controller, with its rights."""
        world = World(folder, hub_cluster, {"eu": remote}).prepare()
        if granted:
            remote.grant("hub", *RULES)
        if remote.api.exists(LEASE):  # of an earlier test
            remote.api.delete(LEASE)
        made = cls(world, remote, cloud)
        made.write()
        return made

    def write(self, **section: Any) -> None:
        """Write the registry; ``section`` changes the cluster's ``cloud``."""
        self.section |= section
        cloud = {"provider": self.provider(), **self.section}
        entry = {"name": "eu", "kubeconfig": {"path": "eu"}, "cloud": cloud}
        self.world.write_text(yaml.safe_dump({"version": 1, "clusters": [entry]}))

    @property
    def options(self) -> Object:
        """The options of a RunningHub."""
        return {"allow_api_hosts": frozenset((self.cloud.fake.host,))}

    def register(self, name: str, provider_id: str, *, ready: str = "True", initialized: bool = False) -> None:
        """Create a Node, as its kubelet registers it."""
        spec: Object = {"providerID": provider_id} if initialized else {"taints": [UNINITIALIZED]}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.remote.api.post("/api/v1/nodes", {"metadata": meta, "spec": spec})
        self.status(name, ready)

    def status(self, name: str, ready: str) -> None:
        """Set a Node's condition Ready, as its kubelet does."""
        condition = {"type": "Ready", "status": ready, "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        path = f"/api/v1/nodes/{name}/status"
        addresses = self.node(name).get("status", {}).get("addresses") or [{"type": "Hostname", "address": name}]
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
        return self.remote.api.post(SERVICES, {"metadata": meta, "spec": spec})

    def service(self, name: str = "web") -> Object:
        """A Service."""
        return self.remote.api.get(f"{SERVICES}/{name}")

    def has_service(self, name: str = "web") -> bool:
        """Whether a Service exists."""
        return self.remote.api.exists(f"{SERVICES}/{name}")

    def ingress(self, name: str = "web") -> list[Object]:
        """The ingress in a Service's status."""
        balancer = self.service(name).get("status", {}).get("loadBalancer") or {}
        return list(balancer.get("ingress") or ())
