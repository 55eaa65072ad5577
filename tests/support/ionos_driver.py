"""Drives the load balancers of the provider ionos against its fake, with a hub's part in a few lines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from hub_provider_ionos import open_cloud
from hub_provider_ionos.config import ControllerConfig
from hub_provider_ionos.controller import open_controller
from hub_provider_ionos.instances import IonosInstances
from hub_provider_ionos.testing import DATACENTER, PRIVATE, PUBLIC, TOKEN, IonosFake, Served
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.cloud.balancers import Balancer, BalancerNode, BalancerPort
from hub.plugin.clouds import Ingress, NodeAddress
from tests.support.clocks import AheadClock
from tests.support.cloud_driver import MARKER, NAME, Driver

HTTP: Final = BalancerPort(80, 30080, "http")
HTTPS: Final = BalancerPort(443, 30443, "https")
LANS: Final = {"listener": PUBLIC, "target": PRIVATE}


class Context(LocalAccount):
    """A CloudContext; the provider looks up no names."""

    async def lookup(self, host: str, /) -> tuple[str, ...]:
        raise AssertionError(host)


@dataclass
class Scene(Driver):
    """The provider, its fake with the servers n1 and n2, and what a hub remembers about one Service."""

    kinds: ClassVar[tuple[str, ...]] = ("ip_block", "load_balancer", "forwarding_rule")

    fake: IonosFake = None  # type: ignore[assignment] - after the fields of Driver
    clock: AheadClock = None  # type: ignore[assignment]
    instances: IonosInstances = None  # type: ignore[assignment]
    restart: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.clock.now()

    def pass_time(self, seconds: float) -> None:
        self.clock.ahead += seconds

    def killed(self) -> None:
        """A new process does not know the requests of the old one; for 30 s, in which lists catch up, it waits."""
        super().killed()
        self.restart()
        self.fake.network.catch_up()

    def want(self, *names: str, settings: dict[str, Any] | None = None, **more: Any) -> Balancer:
        """What a Service wants, on these servers; ``_`` in names of settings stands for ``-``."""
        nodes = tuple(self.node(name) for name in names or ("n1", "n2"))
        asked = {name.replace("_", "-"): value for name, value in (settings or {}).items()}
        return Balancer(NAME, MARKER, **{"ports": (HTTP,), "nodes": nodes, "settings": asked, **more})

    def node(self, name: str) -> BalancerNode:
        """The Node of a server."""
        server = self.fake.cloud.server(name)
        addresses = (NodeAddress("InternalIP", self.fake.cloud.nics(name)[-1]["properties"]["ips"][0]),)
        return BalancerNode(name, f"ionos://{server['id']}", addresses)

    async def ingress(self, want: Balancer) -> tuple[Ingress, ...]:
        """The ingress."""
        return self.balancers.ingress(want, await self.observe(want), self.record)

    @property
    def writes(self) -> list[str]:
        """What was written to the cloud: methods and paths, ids left out."""
        return [_brief(served.text) for served in self.fake.log if served.kind == "write"]

    @property
    def balancer(self) -> Any:
        """The one load balancer."""
        [found] = self.fake.network.balancers()
        return found

    @property
    def block(self) -> Any:
        """The one IP block."""
        [found] = self.fake.network.blocks()
        return found

    def rules(self) -> dict[str, Any]:
        """Name of a rule -> its properties."""
        return {rule["properties"]["name"]: rule["properties"] for rule in self.fake.network.rules(self.balancer)}

    def targets(self, name: str = "tcp-80") -> list[tuple[str, int]]:
        """The addresses and ports of a rule's targets, sorted."""
        return sorted((target["ip"], target["port"]) for target in self.rules()[name]["targets"])

    def state(self) -> dict[str, Any]:
        """What the account has, in a form without ids and addresses."""
        balancer, block = self.balancer, self.block
        return {
            "names": [balancer["properties"]["name"], block["properties"]["name"]],
            "lans": [balancer["properties"][key] for key in ("listenerLan", "targetLan")],
            "address": balancer["properties"]["ips"] == block["properties"]["ips"],
            "rules": {
                name: {**rule, "listenerIp": rule["listenerIp"] in block["properties"]["ips"]}
                for name, rule in sorted(self.rules().items())
            },
        }

    def left(self) -> list[str]:
        """The ids of all load balancers and blocks."""
        return [each["id"] for each in (*self.fake.network.balancers(), *self.fake.network.blocks())]


def _brief(text: str) -> str:
    """Method and path, without ids."""
    method, _, path = text.partition(" ")
    parts = path.partition("?")[0].strip("/").split("/")
    return f"{method} {'/'.join(part for part in parts if len(part) != 36)}"


@asynccontextmanager
async def scene(*, secret: str = TOKEN, **config: Any) -> AsyncGenerator[Scene, None]:
    """The provider on its fake, with two servers; ``secret`` is the text that has the token."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(IonosFake())
        clock = AheadClock()
        fake.cloud.now = clock.now
        hub = LocalHub(secrets={"TOKEN": secret}, allow_api_hosts=frozenset((fake.host,)), clock=clock)
        await stack.enter_async_context(hub)
        shared = await stack.enter_async_context(open_cloud(hub))
        settings = {"datacenters": [DATACENTER], "token": {"env": "TOKEN"}, "apiUrl": fake.url, "lans": LANS, **config}
        opened = open_controller(Context(hub), ControllerConfig.model_validate(settings), shared)
        for name in ("n1", "n2"):
            fake.cloud.add_server(name)
        cloud = await stack.enter_async_context(opened)
        restart = lambda: cloud.balancers._asked.clear()  # noqa: E731
        yield Scene(cloud.balancers, fake=fake, clock=clock, instances=cloud.instances, restart=restart)


def cut_at(number: int, when: str) -> Callable[[Served], str]:
    """For :attr:`IonosFake.cut`: the write of this number has no answer; "before" = it is not made either."""
    count = 0

    def cut(_: Served) -> str:
        nonlocal count
        count += 1
        return when if count == number else ""

    return cut
