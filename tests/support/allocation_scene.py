"""Three nodes of a simulated cloud whose addresses were settled long ago, for hubs in this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hub_testkit.addresses.cloud import CREDENTIAL, EPHEMERAL, SimulatedCloud

from tests.support.allocations import KIND, allocation, define
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, World, add_node
from tests.support.simulated_clouds import install
from tests.support.waiting import eventually

STATUS_RULE: Final[Object] = {
    "apiGroups": ["netinfra.darkbrains.com"],
    "resources": ["netipallocations/status"],
    "verbs": ["update"],
}
RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": ["netinfra.darkbrains.com"], "resources": ["netipallocations"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
)
"""With STATUS_RULE, the rights that allocations need in addition to HUB_RULES."""
ONE, TWO = "198.18.0.1", "198.18.0.2"
LONG_AGO: Final = "2026-01-01T00:00:00Z"


class Settled:
    """ONE at n1 and TWO at n2 with labels and status; n3 is free. The registry may be changed before a hub starts.

    Attributes:
        written: how many changes the cloud had carried out when the scene was ready.
    """

    def __init__(
        self, server: ApiServer, folder: Path, patch: pytest.MonkeyPatch, *, definition: Object | None = None
    ) -> None:
        define(server.api, *([definition] if definition else []))
        self.api = server.api
        self.cloud = SimulatedCloud()
        install(patch)["main"] = self.cloud
        self.world = World(folder, server, {})
        server.grant("hub", *HUB_RULES, *RULES)
        server.grant("hub", STATUS_RULE)
        server.kubeconfig(self.world.kubeconfig, "hub")
        (folder / "credential").write_text(CREDENTIAL)
        for name in ("n1", "n2", "n3"):
            node = self.cloud.add_instance(name, ephemeral=True)
            add_node(server, name)
            self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"providerID": node.provider_id}})
        entries = []
        for address, name in ((ONE, "n1"), (TWO, "n2")):
            self.cloud.reserve(address)
            self.cloud.hold(address, name)
            self.cloud.instance(name).ephemeral = ""
            self.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"ip.ready": "true"}}})
            entry = {"address": address, "node": name, "instance": f"z1/{name}", "before": EPHEMERAL}
            entries.append({**entry, "state": "Attached", "since": LONG_AGO})
        self.status_before: Object = {"cluster": "local", "addresses": entries}
        self.create()
        self.written = self.cloud.changes
        self.registry()

    def create(self) -> None:
        """Create the allocation ``web`` with its status."""
        cloud = {"provider": "simulated-cloud"}
        made = self.api.post(KIND, allocation("web", reservedIPs=[ONE, TWO], cloud=cloud, reconcileInterval=5))
        subresource = self.api.exists(f"{KIND}/web/status")
        self.api.put(f"{KIND}/web" + "/status" * subresource, {**made, "status": self.status_before})

    def registry(self, **more: Any) -> None:
        """Write the registry; ``more`` are further fields of ``allocations``."""
        account = {
            "name": "main",
            "provider": "simulated-cloud",
            "config": {"cloud": "main", "credential": {"file": "credential"}},
            "addresses": ["198.18.0.0/24"],
            "interval": "10s",
        }
        allocations = {"mode": "enforce", "limits": {"moves": "100%"}, "clouds": [account], **more}
        self.world.write_text(yaml.safe_dump({"version": 1, "allocations": allocations}))

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Cordon a node, or uncordon it."""
        self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": on}})

    def status(self) -> Object:
        """The status of the allocation."""
        return dict(self.api.get(f"{KIND}/web").get("status") or {})

    def entry(self, address: str = ONE) -> Object:
        """The status of an address."""
        found = [entry for entry in self.status().get("addresses", ()) if entry["address"] == address]
        return dict(found[0]) if found else {}

    def condition(self, type_: str) -> Object:
        """A condition of the allocation."""
        return next((one for one in self.status().get("conditions", ()) if one["type"] == type_), {})

    def labelled(self) -> list[str]:
        """The nodes with the label."""
        found = self.api.list("/api/v1/nodes", labelSelector="ip.ready=true")
        return sorted(node["metadata"]["name"] for node in found)

    def untouched(self, seconds: float) -> None:
        """Check for some seconds that nothing is changed at the cloud, and that the labels stay."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.cloud.changes == self.written, self.cloud.effects
            assert self.labelled() == ["n1", "n2"]
            time.sleep(0.1)

    def moved(self, timeout: float = 30.0, to: str = "n3") -> None:
        """Wait until ONE is at ``to``, its label follows, n1 has its ephemeral address back, and no record is left."""

        def check() -> bool:
            assert self.cloud.holder_of(ONE) == to, (self.entry(), self.status())
            assert self.labelled() == ["n2", to], self.entry()
            assert self.entry().get("state") == "Attached", self.entry()
            assert "move" not in self.entry(), self.entry()
            assert self.cloud.instance("n1").ephemeral == EPHEMERAL
            return True

        eventually(check, timeout)
        assert self.cloud.holder_of(TWO) == "n2"
        assert [effect.action for effect in self.cloud.effects] == ["detach", "attach", "restore"]
