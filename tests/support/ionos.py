"""The fake of IONOS Cloud for blocking tests, and a cluster there whose cloud controller is the hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hub_provider_ionos.testing import DATACENTER, PRIVATE, PUBLIC, TOKEN, IonosFake

from tests.support.api import Object
from tests.support.cloud_scene import CloudScene
from tests.support.fake_thread import FakeThread

LANS: Final = {"listener": PUBLIC, "target": PRIVATE}


class IonosThread(FakeThread[IonosFake]):
    """Serves an :class:`IonosFake` in a thread; a request that it accepts takes a moment."""

    def __init__(self) -> None:
        super().__init__(IonosFake)


@dataclass
class IonosScene(CloudScene):
    """A cluster on IONOS Cloud."""

    cloud: IonosThread
    section: Object = field(default_factory=lambda: {"loadBalancers": {"settle": "1s"}})

    def provider(self) -> Object:
        """``cloud.provider``; writes the token's file."""
        (self.world.folder / "token").write_text(TOKEN)
        config = {"datacenters": [DATACENTER], "token": {"file": "token"}, "lans": LANS}
        return {"name": "ionos", "config": {**config, "apiUrl": self.cloud.fake.url}}

    def add_node(self, name: str, *, initialized: bool = True) -> str:
        """Create a server and its Node; returns the server's address on the target LAN."""
        id_ = self.cloud.call(lambda: self.cloud.fake.cloud.add_server(name))
        self.register(name, f"ionos://{id_}", initialized=initialized)
        address: str = self.cloud.fake.cloud.nics(name)[-1]["properties"]["ips"][0]
        return address

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
