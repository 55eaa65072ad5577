"""A cluster on the fake of IONOS Cloud whose cloud controller is the hub, for blocking tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from hub_provider_ionos.testing import DATACENTER, PRIVATE, PUBLIC, TOKEN, IonosFake

from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import LEASE, RULES, UNINITIALIZED
from tests.support.fake_thread import FakeThread
from tests.support.hub import World

LANS: Final = {"listener": PUBLIC, "target": PRIVATE}
SERVICES: Final = "/api/v1/namespaces/edge/services"


class IonosThread(FakeThread[IonosFake]):
    """Serves an :class:`IonosFake` in a thread; a request that it accepts takes a moment."""

    def __init__(self) -> None:
        super().__init__(IonosFake)


@dataclass
class IonosScene:
    """A cluster ``eu``, its cloud, and a hub cluster.

    Attributes:
        world: the hub cluster and the registry.
        remote: the cluster.
        cloud: its cloud.
        section: ``cloud`` of the cluster's entry, besides the provider.
    """

    world: World
    remote: ApiServer
    cloud: IonosThread
    section: Object = field(default_factory=lambda: {"loadBalancers": {"settle": "1s"}})

    def write(self, **section: Any) -> None:
        """Write the registry; ``section`` changes the cluster's ``cloud``."""
        self.section |= section
        (self.world.folder / "token").write_text(TOKEN)
        config = {"datacenters": [DATACENTER], "token": {"file": "token"}, "lans": LANS}
        provider = {"name": "ionos", "config": {**config, "apiUrl": self.cloud.fake.url}}
        entry = {"name": "eu", "kubeconfig": {"path": "eu"}, "cloud": {"provider": provider, **self.section}}
        self.world.write_text(yaml.safe_dump({"version": 1, "clusters": [entry]}))

    @property
    def options(self) -> Object:
        """The options of a RunningHub."""
        return {"allow_api_hosts": frozenset((self.cloud.fake.host,))}

    def add_node(self, name: str, *, initialized: bool = True) -> str:
        """Create a server and its Node, as a kubelet registers it; returns the server's address on the target LAN."""
        id_ = self.cloud.call(lambda: self.cloud.fake.cloud.add_server(name))
        spec: Object = {"providerID": f"ionos://{id_}"} if initialized else {"taints": [UNINITIALIZED]}
        self.remote.api.post("/api/v1/nodes", {"metadata": {"name": name}, "spec": spec})
        ready = {"type": "Ready", "status": "True", "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        self.remote.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}})
        address: str = self.cloud.fake.cloud.nics(name)[-1]["properties"]["ips"][0]
        return address

    def add_service(self, **more: Any) -> Object:
        """Create the Service ``web`` of type LoadBalancer."""
        meta = {"name": "web", **more.pop("metadata", {})}
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        spec = {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": ports, **more}
        return self.remote.api.post(SERVICES, {"metadata": meta, "spec": spec})

    def service(self) -> Object | None:
        """The Service."""
        return self.remote.api.find(f"{SERVICES}/web")

    def ingress(self) -> list[Object]:
        """The ingress in the Service's status."""
        status = (self.service() or {}).get("status", {})
        return list((status.get("loadBalancer") or {}).get("ingress") or ())

    def targets(self, name: str = "web.edge.eu") -> dict[int, list[tuple[str, int]]]:
        """Port of each rule -> addresses and ports of its targets, sorted; {} without a load balancer."""
        network = self.cloud.fake.network
        return {
            rule["properties"]["listenerPort"]: sorted(
                (row["ip"], row["port"]) for row in rule["properties"]["targets"]
            )
            for balancer in network.balancers(name)
            for rule in network.rules(balancer)
        }

    @property
    def writes(self) -> list[str]:
        """What was written to the cloud: methods and last parts of the paths, ids left out."""
        log = self.cloud.call(lambda: [served.text for served in self.cloud.fake.log if served.kind == "write"])
        parts = [text.partition("?")[0].replace(" ", "").split("/") for text in log]
        return [f"{found[0]} {next(part for part in found[::-1] if len(part) != 36)}" for found in parts]


def ionos_scene(hub_cluster: ApiServer, remote: ApiServer, folder: Path, cloud: IonosThread) -> IonosScene:
    """A cluster ``eu`` without Nodes, and the registry that makes the hub its cloud controller."""
    world = World(folder, hub_cluster, {"eu": remote}).prepare()
    remote.grant("hub", *RULES)
    if remote.api.exists(LEASE):  # of an earlier test
        remote.api.delete(LEASE)
    made = IonosScene(world, remote, cloud)
    made.write()
    return made
