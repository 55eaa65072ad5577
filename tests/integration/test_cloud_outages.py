"""Outages of a cloud for ten minutes, on a clock that is ahead: neither age nor a delay protects the Nodes.

Each of them leaves only one guard that can hold.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hub.app.controller import CloudController, ControllerOptions, assemble_controller
from hub.controlling import account
from hub.controlling.account import CREDENTIAL_CHECK, OpenAccount
from hub.registry.spec import CloudBalancersSpec, CloudNodesSpec, CloudSpec, ProviderRef
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.clocks import AheadClock
from tests.support.waiting import until

NODES = 12
"""Half of them are more than the provider asks for singly, so that every answer is a list."""
OLD = 400.0
"""Seconds after which a Node is not young any more."""
STEP = CREDENTIAL_CHECK + 1
"""Seconds of a step, after which the cloud is asked in any case, and an answer counts as another one."""
OUTAGE = 600.0
NAME = "web.edge.eu"


@dataclass
class Outage:
    """A controller whose clock a test moves, and its cluster with a Service.

    Attributes:
        names: the Nodes, sorted.
    """

    scene: BrightboxScene
    controller: CloudController
    clock: AheadClock
    names: list[str]

    def fail(self, fault: str, path: str = "") -> None:
        """All questions fail in this way from now on, or those with this path."""
        fake = self.scene.cloud.fake

        def change() -> None:
            fake.heal()
            fake.fail(fault, times=None, method="GET", path=path)

        self.scene.cloud.call(change)

    def heal(self) -> None:
        """The cloud works again."""
        self.scene.cloud.call(self.scene.cloud.fake.heal)

    @property
    def asked(self) -> int:
        """How often the cloud was asked about Nodes, or refused the credential."""
        [found] = self.controller.controlling.accounts.values()
        assert isinstance(found, OpenAccount)
        refused = [served for served in self.scene.cloud.fake.log if served.status == 401]
        return len(refused) + sum(number for (what, _), number in found.calls.items() if what == "instances")

    async def later(self, seconds: float, step: float = STEP) -> None:
        """Let time pass in steps; in each of them the cloud is asked."""
        end = self.clock.ahead + seconds
        while self.clock.ahead < end:
            asked = self.asked
            self.clock.ahead += step
            self.controller.controlling.wake()
            await until(lambda asked=asked: self.asked > asked)  # type: ignore[misc]

    async def down(self, *names: str) -> None:
        """These Nodes are not Ready any more."""
        for name in names:
            await asyncio.to_thread(self.scene.status, name, "Unknown")
        await until(lambda: all(self.seen[name].ready == "Unknown" for name in names))

    @property
    def ready(self) -> bool:
        """Whether the Service's load balancer is as wanted."""
        part = self.controller.controlling.clusters["eu"].balancers_part
        assert part is not None
        return [told.state for told in part.told.values()] == ["ready"]

    @property
    def seen(self) -> Any:
        """The Nodes as the controller knows them."""
        return self.controller.fleet.clusters["eu"].nodes

    async def left(self) -> list[str]:
        """The names of the Nodes that there are."""
        found = await asyncio.to_thread(self.scene.remote.api.list, "/api/v1/nodes")
        return sorted(node["metadata"]["name"] for node in found)

    def targets(self) -> list[str]:
        """The servers of the load balancer, sorted."""
        [balancer] = self.scene.cloud.fake.account.find("load_balancers", NAME)
        return sorted(node["id"] for node in balancer["nodes"])


@asynccontextmanager
async def running(scene: BrightboxScene, **nodes: Any) -> AsyncIterator[Outage]:
    """A controller, and a Service whose load balancer has all Nodes; they are old enough to be deleted."""
    names = [scene.add_node(initialized=True) for _ in range(NODES)]
    scene.add_service()
    cloud = CloudSpec(
        ProviderRef("brightbox", json.dumps(scene.provider()["config"], sort_keys=True)),
        "eu",
        nodes=CloudNodesSpec(**nodes),
        balancers=CloudBalancersSpec(settle=0.05),
    )
    options = ControllerOptions(
        "eu",
        cloud,
        str(scene.world.folder / "eu"),
        allow_api_hosts=scene.options["allow_api_hosts"],
        folder=str(scene.world.folder),
        leader_elect=False,
    )
    clock, stop = AheadClock(), asyncio.Event()
    async with assemble_controller(options, clock) as controller:
        task = asyncio.create_task(controller.run(stop))
        try:
            outage = Outage(scene, controller, clock, names)
            await until(lambda: task.done() or (controller.controlling.clusters and outage.ready))
            yield outage
        finally:
            stop.set()
            await task


@pytest.mark.parametrize(
    ("fault", "path", "max_delete", "misled"),
    [
        pytest.param("empty", "servers", 1.0, False, id="no-server-in-the-list"),
        pytest.param("half", "servers", 0.1, False, id="half-of-the-list"),
        pytest.param("error", "", 1.0, True, id="503"),
        pytest.param("expire", "", 1.0, True, id="401"),
        pytest.param("silent", "", 1.0, True, id="no-answer"),
    ],
)
async def test_ten_minutes_of_outage_remove_nothing(
    hub_cluster: ApiServer,
    remote_clusters: Sequence[ApiServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    path: str,
    *,
    max_delete: float,
    misled: bool,
) -> None:
    """Half of the Nodes are not Ready: no Node and no target goes; then one machine really goes, and so does its Node.

    An outage may begin with one list that lacks the machines: what comes after it must not confirm that.
    """
    with BrightboxThread() as cloud:
        scene = BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)
        async with running(scene, max_delete=max_delete) as outage:
            writes, down = scene.writes, outage.names[NODES // 2 :]
            await outage.down(*down)
            outage.fail(*(("half", "servers") if misled else (fault, path)))
            await outage.later(OLD, step=OLD)
            if misled:
                outage.fail(fault, path)
            if fault == "silent":
                monkeypatch.setattr(account, "ASK_DEADLINE", 0.2)
            await outage.later(OUTAGE)
            assert await outage.left() == outage.names
            assert scene.writes == writes
            assert outage.targets() == outage.names

            monkeypatch.undo()
            gone, *_ = down
            outage.heal()
            cloud.call(lambda: cloud.fake.account.remove_server(gone))
            await outage.later(100.0)
            await until(lambda: gone not in outage.seen)
            assert await outage.left() == outage.targets() == [name for name in outage.names if name != gone]


@pytest.mark.parametrize("fault", ["empty", "half"])
async def test_lists_without_balancers_make_no_second_one(
    hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path, fault: str
) -> None:
    """All lists lack objects for ten minutes: nothing is made, changed or published; afterwards all is as it was."""
    with BrightboxThread() as cloud:
        scene = BrightboxScene.create(hub_cluster, remote_clusters[0], tmp_path, cloud)
        async with running(scene) as outage:
            writes, ingress = scene.writes, scene.hostnames()
            await outage.down(*outage.names[NODES // 2 :])  # so that the cloud is asked in each step
            outage.fail(fault)
            await outage.later(OUTAGE)
            await until(lambda: not outage.ready)
            assert scene.writes == writes
            outage.heal()
            await outage.later(OUTAGE)
            await until(lambda: outage.ready)
            assert scene.writes == writes
            assert scene.hostnames() == ingress
