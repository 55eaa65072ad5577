"""The rules for address providers of the test kit, on the fake."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import hub_provider_gcp
from hub_provider_gcp.testing import PROJECT, GcpFake
from hub_testkit.addresses.conformance import AddressProviderConformance
from hub_testkit.addresses.fake import Ability, Request, World
from hub_testkit.contexts import LocalHub

from hub.plugin import Node


class KitFake(GcpFake):
    """The fake, as the kit uses it."""

    @property
    def cannot(self) -> Mapping[Ability, str]:
        return {"changing": "an address is RESERVED, without a user, until the operation on the instance has ended"}

    @property
    def requests(self) -> Sequence[Request]:
        return [Request(served.kind, served.text, served.status) for served in self.log]

    @property
    def changes(self) -> int:
        return self.cloud.changes

    @property
    def running(self) -> int:
        self.cloud.settle()
        return sum(not operation.done for operation in self.cloud.operations.values())

    def reserve(self) -> str:
        return self.cloud.reserve()

    def add_instance(self, name: str, *, ephemeral: bool = False, running: bool = True) -> Node:
        vm = self.cloud.add_vm(name, ephemeral="external-nat" if ephemeral else "", nics=2)
        vm.status = "RUNNING" if running else "TERMINATED"
        return Node(name, provider_id=f"gce://{PROJECT}/{vm.zone}/{name}")

    def hold(self, address: str, name: str) -> None:
        self.cloud.hold(address, name)

    def hold_elsewhere(self, address: str) -> None:
        self.cloud.hold_elsewhere(address)

    def occupy(self, name: str) -> str:
        address = self.cloud.reserve()
        self.cloud.hold(address, name)
        return address

    def holder_of(self, address: str) -> str:
        self.cloud.settle()
        users = self.cloud.users(address)
        if not users:
            return ""
        return users[0].rpartition("/")[2] if "/instances/" in users[0] else "elsewhere"

    def extras_of(self, name: str) -> object:
        self.cloud.settle()
        nics = copy.deepcopy(self.cloud.vms[name].nics)
        del nics[0]["accessConfigs"]
        return [{key: value for key, value in nic.items() if key != "fingerprint"} for nic in nics]

    def operations(self, seconds: float, *, ill: bool = False) -> None:
        self.cloud.seconds = seconds
        self.cloud.code = "RESOURCE_OPERATION_FAILED" if ill else ""


class TestGcp(AddressProviderConformance):
    plugin = hub_provider_gcp
    name = "gcp"
    foreign_ids = (
        "gce://other-project/us-west1-a/n1",
        f"gce://{PROJECT}/us-west1/n1/more",
        f"aws:///us-west1-a/{PROJECT}",
        f"gce://{PROJECT}/US-WEST1-A/n1",
    )

    @asynccontextmanager
    async def world(self) -> AsyncGenerator[World, None]:
        async with KitFake() as fake:
            hub = LocalHub(secrets={"KEY": fake.key_file()}, allow_api_hosts=frozenset((fake.host,)))
            config = {
                "project": PROJECT,
                "regions": ["us-west1"],
                "credentials": {"env": "KEY"},
                "endpoint": fake.url,
            }
            yield World(fake, config, hub, fake.secrets)
