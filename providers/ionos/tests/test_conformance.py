"""The rules for address providers of the test kit, on the fake."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import hub_provider_ionos
from aiohttp import web
from hub_provider_ionos.testing import DATACENTER, TOKEN, IonosFake
from hub_testkit.addresses.conformance import AddressProviderConformance
from hub_testkit.addresses.fake import Ability, Request, World
from hub_testkit.contexts import LocalHub

from hub.plugin import Node


class KitFake(IonosFake):
    """The fake, as the kit uses it. A refused token expires: the next one is in the hub's secrets at once."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets = {"TOKEN": TOKEN}
        self.issued = [TOKEN]

    @property
    def cannot(self) -> Mapping[Ability, str]:
        return {
            "changing": "a NIC that is busy shows its new addresses at the end",
            "ephemeral": "a NIC has a list of addresses, nothing is replaced",
            "restore": "nothing is replaced",
        }

    @property
    def requests(self) -> Sequence[Request]:
        return [Request(served.kind, served.text, served.status) for served in self.log]

    @property
    def changes(self) -> int:
        return self.cloud.changes

    @property
    def running(self) -> int:
        self.cloud.settle()
        return sum(change.status == "RUNNING" for change in self.cloud.requests.values())

    def reserve(self) -> str:
        return self.cloud.reserve()

    def add_instance(self, name: str, *, ephemeral: bool = False, running: bool = True) -> Node:
        identity = self.cloud.add_server(name)
        self.cloud.server(name)["properties"]["vmState"] = "RUNNING" if running else "SHUTOFF"
        return Node(name, provider_id=f"ionos://{identity}")

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
        rows = self.cloud.consumers(address)
        if not rows:
            return ""
        servers = self.cloud.datacenters[DATACENTER].servers
        return str(servers[rows[0]["serverId"]]["properties"]["name"]) if "serverId" in rows[0] else "elsewhere"

    def extras_of(self, name: str) -> object:
        self.cloud.settle()
        reserved = {ip for block in self.cloud.blocks.values() for ip in block["properties"]["ips"]}
        found = [copy.deepcopy(nic["properties"]) for nic in self.cloud.nics(name)]
        for properties in found:
            properties["ips"] = [ip for ip in properties["ips"] if ip not in reserved]
        return found

    def operations(self, seconds: float, *, ill: bool = False) -> None:
        self.cloud.seconds = seconds
        self.cloud.error = "the request could not be carried out" if ill else ""

    def _take(self, kind: str, request: web.Request) -> str:
        fault = super()._take(kind, request)
        if fault == "unauthorized":
            self.token = f"fake-token-{len(self.issued) + 1}"
            self.issued.append(self.token)
            self.secrets["TOKEN"] = self.token
        return fault


class TestIonosAddresses(AddressProviderConformance):
    plugin = hub_provider_ionos
    name = "ionos"
    foreign_ids = (
        "aws:///eu-central-1a/i-0123456789abcdef0",
        "gce://project/zone/20000000-0000-4000-8000-000000000001",
        "ionos://20000000-0000-4000-8000-00000000000g",
        f"ionos://{DATACENTER}/20000000-0000-4000-8000-000000000001",
    )

    @asynccontextmanager
    async def world(self) -> AsyncGenerator[World, None]:
        async with KitFake() as fake:
            hub = LocalHub(secrets=fake.secrets, allow_api_hosts=frozenset((fake.host,)))
            config = {"datacenters": [DATACENTER], "token": {"env": "TOKEN"}, "apiUrl": fake.url}
            yield World(fake, config, hub, fake.issued)
