"""The rules for clouds of the test kit, on the fake."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import hub_provider_ionos
from hub_provider_ionos.testing import DATACENTER, PRIVATE, PUBLIC, TOKEN, IonosFake, Served
from hub_testkit.clouds.conformance import CloudConformance
from hub_testkit.clouds.fake import Ability, CloudObject, Fault, Request, World
from hub_testkit.contexts import LocalHub

from hub.plugin.clouds import CloudNode, NodeAddress

CHOSEN: Final = ("name", "ips", "ipConsumers", "listenerIp")
"""Properties that the cloud chooses, and the name."""


class Fake:
    """Implements :class:`hub_testkit.clouds.fake.CloudFake` with the fake of IONOS."""

    def __init__(self, fake: IonosFake) -> None:
        self.cannot: Mapping[Ability, str] = {"marker": "IONOS has no field for a marker"}
        self._fake = fake
        self._skip, self._left = 0, 0

    @property
    def shuffled(self) -> bool:
        """Whether everything comes in another order after each request."""
        return self._fake.shown == self._shuffle

    @shuffled.setter
    def shuffled(self, value: bool) -> None:
        self._fake.shown = self._shuffle if value else self._fake.shown

    def _shuffle(self, _: Served) -> None:
        cloud = self._fake.cloud
        for objects in (cloud.blocks, *(each.balancers for each in cloud.datacenters.values())):
            items = random.sample([*objects.items()], len(objects))
            objects.clear()
            objects.update(items)
        for balancer in self._fake.network.balancers():
            random.shuffle(self._fake.network.rules(balancer))
            for rule in self._fake.network.rules(balancer):
                random.shuffle(rule["properties"]["targets"])

    @property
    def elsewhere(self) -> str:
        """See the fake."""
        return self._fake.elsewhere

    @elsewhere.setter
    def elsewhere(self, value: str) -> None:
        self._fake.elsewhere = value

    @property
    def requests(self) -> Sequence[Request]:
        """All requests."""
        return [Request(served.kind, served.text, served.status) for served in self._fake.log]

    def objects(self) -> Mapping[str, CloudObject]:
        """Blocks, load balancers and their rules."""
        self._fake.cloud.settle()
        network = self._fake.network
        found = {each["id"]: _object("ip_block", each) for each in network.blocks()}
        for balancer in network.balancers():
            found[balancer["id"]] = _object("load_balancer", balancer)
            for rule in network.rules(balancer):
                found[rule["id"]] = _object("forwarding_rule", rule, balancer["properties"]["name"])
        return found

    def add_machine(self, name: str) -> CloudNode:
        """A server on both LANs."""
        id_ = self._fake.cloud.add_server(name)
        address = self._fake.cloud.nics(name)[-1]["properties"]["ips"][0]
        return CloudNode(name, f"ionos://{id_}", "", (NodeAddress("InternalIP", address),))

    def remove_machine(self, node: CloudNode) -> None:
        """A server is gone."""
        self._fake.cloud.remove_server(node.name)

    def add_object(self, name: str, marker: str = "") -> None:
        """A block and an internal load balancer."""
        del marker
        self._fake.network.create_block({"properties": {"name": name, "location": "de/fra", "size": 1}})
        lans = {"listenerLan": PRIVATE, "targetLan": PRIVATE}
        self._fake.network.create_balancer(DATACENTER, {"properties": {"name": name, **lans}})
        self._fake.cloud.settle()

    def fail(
        self, fault: Fault, *, times: int | None = 1, on: Literal["any", "read", "write"] = "any", skip: int = 0
    ) -> None:
        """See the fake."""
        if on == "write" and fault in ("lost-request", "lost-answer"):
            self._skip, self._left = skip, 1 << 30 if times is None else times
            when = "before" if fault == "lost-request" else "after"
            self._fake.cut = lambda _: when if self._cuts() else ""
        else:
            self._fake.fail({"elsewhere": "redirect", "lost-request": "cut"}.get(fault, fault), times=times, on=on)

    def _cuts(self) -> bool:
        if self._skip:
            self._skip -= 1
            return False
        self._left -= 1
        return self._left >= 0

    def heal(self) -> None:
        """See the fake."""
        self._fake.cut = _uncut
        self._fake.heal()


def _uncut(_: Served) -> str:
    return ""


def _object(kind: str, each: Any, prefix: str = "") -> CloudObject:
    properties: Mapping[str, Any] = each["properties"]
    state = {key: value for key, value in properties.items() if key not in CHOSEN}
    return CloudObject(kind, f"{prefix} {properties['name']}".strip(), state)


class TestIonosCloud(CloudConformance):
    """All rules."""

    plugin = hub_provider_ionos
    name = "ionos"
    settings = {"algorithm": "RANDOM", "proxy-protocol": "v2", "check-interval": 7000, "client-timeout": 9000}

    @asynccontextmanager
    async def world(self) -> AsyncGenerator[World, None]:
        """A new account."""
        async with IonosFake() as fake:
            hub = LocalHub(secrets={"TOKEN": TOKEN}, allow_api_hosts=frozenset((fake.host,)))
            config = {"datacenters": [DATACENTER], "token": {"env": "TOKEN"}, "apiUrl": fake.url}
            yield World(Fake(fake), {**config, "lans": {"listener": PUBLIC, "target": PRIVATE}}, hub, (TOKEN,))
