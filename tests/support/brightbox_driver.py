"""Drives the provider of Brightbox against its fake without a hub: observe, plan, perform, with interruptions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
from hub_provider_brightbox.cloud import Brightbox, BrightboxConfig, open_cloud
from hub_provider_brightbox.testing import CLIENT, SECRET, BrightboxFake, Served
from hub_testkit.contexts import LocalCloud, LocalHub

from hub.cloud.balancers import (
    Balancer,
    BalancerNode,
    BalancerPort,
    Planned,
)
from hub.runtime.clock import Clock
from tests.support.cloud_driver import MARKER, NAME, Driver

KINDS: Final = ("cloud_ip", "server_group", "firewall_policy", "firewall_rule", "load_balancer")
HTTP: Final = BalancerPort(80, 30080, "http")
HTTPS: Final = BalancerPort(443, 30443, "https")


class Scene(Driver):
    """The provider, its fake, and what a hub remembers about one Service."""

    kinds = KINDS

    def __init__(self, fake: BrightboxFake, cloud: Brightbox, context: LocalCloud) -> None:
        super().__init__(cloud.balancers)
        self.fake, self.cloud, self.context = fake, cloud, context

    async def settle(self, want: Balancer | None, until: Callable[[Planned], bool] = lambda _: False) -> list[str]:
        """Like :meth:`Driver.settle`; returns the writes to the cloud."""
        before = len(self.fake.writes)
        await super().settle(want, until)
        return self.writes(before)

    def writes(self, since: int = 0) -> list[str]:
        """The writes to the cloud, oldest first."""
        return [text.replace("/1.0/", "") for text in self.fake.writes[since:]]

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
async def scene(clock: Clock | None = None, **config: Any) -> AsyncGenerator[Scene, None]:
    """The provider on its fake, with two servers."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(BrightboxFake())
        secrets = {"ID": CLIENT, "SECRET": SECRET}
        allowed = frozenset((fake.host,))
        hub = await stack.enter_async_context(LocalHub(secrets=secrets, allow_api_hosts=allowed, clock=clock))
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
