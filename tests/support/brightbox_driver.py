"""Drives the provider of Brightbox against its fake without a hub: observe, plan, perform, with interruptions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from hub_provider_brightbox.cloud import Brightbox, BrightboxConfig, open_cloud
from hub_provider_brightbox.inventory import Inventory
from hub_provider_brightbox.testing import CLIENT, SECRET, BrightboxFake, Served
from hub_testkit.contexts import LocalCloud, LocalHub

from hub.cloud.balancers import (
    Balancer,
    BalancerNode,
    BalancerPort,
    Done,
    Intent,
    Marker,
    Notice,
    Planned,
    Record,
)
from hub.cloud.balancers import Step as CloudStep
from hub.plugin.clouds import CloudConflict, Uncertain

NAME: Final = "web.edge.eu"
MARKER: Final = Marker("cluster-1", "service-1")
KINDS: Final = ("cloud_ip", "server_group", "firewall_policy", "firewall_rule", "load_balancer")
HTTP: Final = BalancerPort(80, 30080, "http")
HTTPS: Final = BalancerPort(443, 30443, "https")
ROUNDS: Final = 60


@dataclass
class Scene:
    """The provider, its fake, and what a hub remembers about one Service.

    Attributes:
        record: in the cluster; it outlives a process.
        made: in the process.
    """

    fake: BrightboxFake
    cloud: Brightbox
    context: LocalCloud
    record: Record = field(default_factory=lambda: Record(NAME, MARKER))
    made: list[tuple[CloudStep, Done]] = field(default_factory=list)

    async def observe(self, *wanted: Balancer) -> Inventory:
        """An observation, with the answers to earlier steps."""
        seen: Inventory = await self.cloud.balancers.observe(wanted)
        for step, done in self.made:
            seen = self.cloud.balancers.after(seen, step, done)
        return seen

    async def plan(self, want: Balancer | None) -> list[Planned]:
        """The plan for a new observation."""
        seen = await self.observe(*((want,) if want is not None else ()))
        return list(self.cloud.balancers.plan(want, seen, self.record))

    async def first(self, want: Balancer | None) -> Planned | None:
        """What comes first in the plan, notices aside."""
        return next((item for item in await self.plan(want) if not isinstance(item, Notice)), None)

    async def notices(self, want: Balancer | None) -> list[str]:
        """The reasons of the notices in the plan."""
        return [item.reason for item in await self.plan(want) if isinstance(item, Notice)]

    async def step(self, want: Balancer | None) -> Planned | None:
        """Make what comes first, if it is a step; as in a hub, the intent is in the record before a creation."""
        first = await self.first(want)
        if isinstance(first, CloudStep):
            if first.creates and self.record.intent is None:
                made = tuple(dict.fromkeys((*self.record.made, *KINDS)))
                self.record = msgspec.structs.replace(self.record, made=made, intent=Intent(0.0, KINDS))
            self.made.append((first, await self.cloud.balancers.perform(first)))
        return first

    async def settle(self, want: Balancer | None, until: Callable[[Planned], bool] = lambda _: False) -> list[str]:
        """Make steps until nothing is left to do, or ``until`` says so; returns the writes.

        Raises:
            AssertionError: there is no end.
        """
        before = len(self.fake.writes)
        for _ in range(ROUNDS):
            try:
                first = await self.step(want)
            except (Uncertain, CloudConflict):
                continue
            if first is None:
                await self.publish(want)
            if first is None or until(first):
                return self.writes(before)
        raise AssertionError(f"no end after {ROUNDS} rounds: {self.writes(before)}")

    async def publish(self, want: Balancer | None) -> None:
        """Write the record, as a hub does at the end."""
        found = self.cloud.balancers.found(await self.observe(), self.record)
        settings = tuple(sorted(want.settings)) if want is not None else ()
        self.record = msgspec.structs.replace(self.record, ids=found, set=settings, intent=None)

    def writes(self, since: int = 0) -> list[str]:
        """The writes to the cloud, oldest first."""
        return [text.replace("/1.0/", "") for text in self.fake.writes[since:]]

    def killed(self) -> None:
        """A new process: nothing is known but the record."""
        self.made = []

    def dies(self, _: Planned) -> bool:
        """For ``until`` of :meth:`settle`: each step is made by a process of its own."""
        self.killed()
        return False

    async def hostnames(self, want: Balancer) -> list[str]:
        """The ingress."""
        return [entry.hostname for entry in self.cloud.balancers.ingress(want, await self.observe(want), self.record)]

    def objects(self, collection: str) -> list[Any]:
        """All objects of a collection but the default ones, oldest first."""
        return [each for each in self.fake.account.objects[collection].values() if not each.get("default")]

    def only(self, collection: str) -> Any:
        """The one object of a collection."""
        [found] = self.objects(collection)
        return found

    def state(self) -> dict[str, Any]:
        """What the account has, in a form without ids of the objects."""
        [balancer], [group] = self.objects("load_balancers"), self.objects("server_groups")
        [policy], [rule] = self.objects("firewall_policies"), self.objects("firewall_rules")
        [cloud_ip] = self.objects("cloud_ips")
        return {
            "names": [each["name"] for each in (balancer, group, policy, cloud_ip)],
            "nodes": sorted(node["id"] for node in balancer["nodes"]),
            "balancer": {
                key: balancer[key] for key in ("listeners", "healthcheck", "policy", "https_redirect", "status")
            },
            "servers": sorted(row["id"] for row in group["servers"]),
            "applied": policy["server_group"] == {"id": group["id"]},
            "rule": {key: rule[key] for key in ("source", "destination_port", "protocol", "description")},
            "ruled": rule["firewall_policy"] == {"id": policy["id"]},
            "mapped": cloud_ip["load_balancer"] == {"id": balancer["id"]},
        }

    def left(self) -> list[str]:
        """The ids of all objects but servers and default objects."""
        collections = [key for key in self.fake.account.objects if key != "servers"]
        return [str(each["id"]) for key in collections for each in self.objects(key)]


@asynccontextmanager
async def scene(**config: Any) -> AsyncGenerator[Scene, None]:
    """The provider on its fake, with two servers."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(BrightboxFake())
        secrets = {"ID": CLIENT, "SECRET": SECRET}
        hub = await stack.enter_async_context(LocalHub(secrets=secrets, allow_api_hosts=frozenset((fake.host,))))
        settings = {"client": {"env": "ID"}, "secret": {"env": "SECRET"}, "url": fake.url, **config}
        context = LocalCloud(hub)
        opened = open_cloud(context, msgspec.convert(settings, BrightboxConfig), None)
        for _ in range(2):
            fake.account.add_server()
        yield Scene(fake, await stack.enter_async_context(opened), context)


SERVERS: Final = ("srv-00003", "srv-00004")
"""The servers of :func:`scene`."""


def balancer(servers: Sequence[str] = SERVERS, *, settings: dict[str, Any] | None = None, **more: Any) -> Balancer:
    """What a Service wants; ``_`` in names of settings stands for ``-``."""
    nodes = tuple(BalancerNode(server, f"brightbox://{server}") for server in servers)
    asked = {name.replace("_", "-"): value for name, value in (settings or {}).items()}
    return Balancer(NAME, MARKER, **{"ports": (HTTP,), "nodes": nodes, "settings": asked, **more})


def cut_at(number: int, when: str) -> Callable[[Served], str]:
    """For :attr:`BrightboxFake.cut`: the write of this number has no answer; "before" = it is not made either."""
    count = 0

    def cut(_: Served) -> str:
        nonlocal count
        count += 1
        return when if count == number else ""

    return cut
