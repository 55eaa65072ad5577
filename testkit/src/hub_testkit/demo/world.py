"""The simulated world: three remote clusters, a hub cluster, a cloud, and what should be published of them.

What should be published is computed here a second time and in the simplest way: from the machines and the
layout, with none of the hub's code. That is what the hub is checked against.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, assert_never

from hub_testkit import SimulatedCluster, make_node, make_service
from hub_testkit.demo.cloud import AnyCloud, installed_cloud
from hub_testkit.demo.layout import CLUSTERS, NAMESPACE, POOLS, SERVICES, Cluster, Service, registry
from hub_testkit.demo.script import SEED, Action, Step

BOOKMARKS: Final = 1.0
"""Seconds between bookmarks. A reflector takes one as a sign of health: the next outage is retried soon again."""

BEAT: Final = (0.03, 0.07)
"""Seconds from one kubelet's heartbeat to the next one's: with 21 of them, a second for each."""


class Spot(NamedTuple):
    """Where an endpoint is published."""

    service: str
    address: str


class Shown(NamedTuple):
    """How an endpoint is published."""

    cluster: str
    port: int
    ready: bool


Published = Mapping[Spot, Shown]
"""Everything that is published, or should be."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and its Node.

    Attributes:
        ready: its kubelet reports.
        blip: not ready for so short a time that it does not count.
        cordoned: takes no new work.
    """

    name: str
    address: str
    pool: str
    zone: str
    ready: bool = True
    blip: bool = False
    cordoned: bool = False


def published_of(slices: list[dict[str, Any]]) -> dict[Spot, Shown]:
    """What consumers of these EndpointSlices see."""
    published: dict[Spot, Shown] = {}
    for each in slices:
        labels = each["metadata"]["labels"]
        service, cluster = labels["kubernetes.io/service-name"], labels.get("multicluster.kubernetes.io/source-cluster")
        port = next((port["port"] for port in each.get("ports") or ()), 0)
        for endpoint in each.get("endpoints") or ():
            ready = bool(endpoint["conditions"]["ready"])
            for address in endpoint["addresses"]:
                published[Spot(service, address)] = Shown(cluster or "", port, ready)
    return published


def should_be_published(machines: Mapping[str, Mapping[str, Machine]]) -> dict[Spot, Shown]:
    """What should be published of these machines, by cluster and name."""
    return {
        Spot(service.name, machine.address): Shown(cluster, service.port, not machine.cordoned)
        for service in SERVICES
        for cluster in service.published_sources
        for machine in machines[cluster].values()
        if _eligible(machine, service)
    }


def _eligible(machine: Machine, service: Service) -> bool:
    return (machine.ready or machine.blip) and service.pool in ("", machine.pool)


class World:
    """Serves inside ``async with``.

    Args:
        folder: where clusters.yaml and the kubeconfigs are written.
        seed: of everything random in here.
        cloud: None = the installed provider's.

    Attributes:
        hub: the hub cluster.
        remotes: by name.
        heartbeats: Node updates so far that say nothing new.
    """

    def __init__(self, folder: Path, seed: int = SEED, cloud: AnyCloud | None = None) -> None:
        self.folder = folder
        self.hub = SimulatedCluster("hub", controllers=True)
        self.remotes = {each.name: SimulatedCluster(each.name) for each in CLUSTERS}
        self.cloud = cloud or installed_cloud(random.Random(seed))
        self.heartbeats = 0
        self._rng = random.Random(seed)
        self._clusters = {each.name: each for each in CLUSTERS}
        self._machines: dict[str, dict[str, Machine]] = {each.name: {} for each in CLUSTERS}
        self._addresses = {each.name: 0 for each in CLUSTERS}
        self._last_seen: dict[str, dict[str, Machine]] = {}
        """Machines of the clusters that are dark, as they were when the light went out."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for service in SERVICES:
            ports = [{"name": "main", "port": 443, "targetPort": service.port}]
            self.hub.services.add(make_service(NAMESPACE, service.name, ports=ports))
        for cluster in CLUSTERS:
            for number, pool in enumerate(POOLS, 1):
                self._join(cluster, f"{cluster.prefix}-{number}", pool)
        for each in (self.hub, *self.remotes.values()):
            each.bookmark_interval = BOOKMARKS
            await self._stack.enter_async_context(each)
        await self._stack.enter_async_context(self.cloud)
        self._write_files()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _write_files(self) -> None:
        self.hub.write_kubeconfig(self.folder / "kubeconfigs" / "hub")
        for name, each in self.remotes.items():
            each.write_kubeconfig(self.folder / "kubeconfigs" / name)
        self.cloud.write_files(self.folder)
        (self.folder / "clusters.yaml").write_text(registry(self.cloud.provider, self.cloud.config))

    # --- what is and what should be ----------------------------------------------------------------

    @property
    def nodes(self) -> int:
        """Nodes of all remote clusters."""
        return sum(map(len, self._machines.values()))

    def nodes_of(self, cluster: str) -> tuple[int, int]:
        """Nodes of a cluster that report, and all."""
        machines = self._machines[cluster].values()
        return sum(each.ready for each in machines), len(machines)

    def machine(self, cluster: str, node: str) -> Machine | None:
        """A machine, while it exists."""
        return self._machines[cluster].get(node)

    def dark(self, cluster: str) -> bool:
        """Whether its API server is away."""
        return cluster in self._last_seen

    def wanted(self) -> dict[Spot, Shown]:
        """What should be published now; of a cluster that is dark, what it said last."""
        return should_be_published({**self._machines, **self._last_seen})

    def published(self) -> dict[Spot, Shown]:
        """What is published in the hub cluster."""
        return published_of(self.hub.slices.list(namespace=NAMESPACE))

    # --- what happens ------------------------------------------------------------------------------

    async def happen(self, step: Step) -> None:
        """Let an incident happen."""
        action: Action = step.action
        if action == "cloud-down" or action == "cloud-up":
            self.cloud.down = action == "cloud-down"
        elif action == "dark":
            self._last_seen[step.cluster] = dict(self._machines[step.cluster])
            await self.remotes[step.cluster].stop()
        elif action == "light":
            await self.remotes[step.cluster].start()
            del self._last_seen[step.cluster]
        elif action == "join":
            self._join(self._clusters[step.cluster], step.node, step.pool)
        elif action == "leave":
            self._leave(step.cluster, step.node)
        else:
            self._change(step.cluster, step.node, action)

    def _join(self, cluster: Cluster, name: str, pool: str) -> None:
        self._addresses[cluster.name] += 1
        number = self._addresses[cluster.name]
        address = f"{cluster.network}.{(number - 1) // 250}.{(number - 1) % 250 + 1}"
        machine = Machine(name, address, pool, f"{cluster.prefix}-{number % 2 + 1}")
        self._machines[cluster.name][name] = machine
        provider_id = self.cloud.add(cluster.prefix, name, address, machine.zone)
        node = make_node(name, labels={"pool": pool}, zone=machine.zone, provider_id=provider_id)
        self.remotes[cluster.name].nodes.add(node)

    def _leave(self, cluster: str, name: str) -> None:
        del self._machines[cluster][name]
        self.remotes[cluster].nodes.delete(name)
        self.cloud.remove(self._clusters[cluster].prefix, name)

    def _change(self, cluster: str, name: str, action: Action) -> None:
        before = self._machines[cluster][name]
        nodes = self.remotes[cluster].nodes
        match action:
            case "fail" | "blip":
                self._machines[cluster][name] = replace(before, ready=False, blip=action == "blip")
                nodes.set_ready(name, "Unknown")
            case "recover" | "calm":
                self._machines[cluster][name] = replace(before, ready=True, blip=False)
                nodes.set_ready(name, ready=True)
            case "cordon":
                self._machines[cluster][name] = replace(before, cordoned=True)
                nodes.update(name, lambda node: node["spec"].update(unschedulable=True))
            case "dark" | "light" | "join" | "leave" | "cloud-down" | "cloud-up":
                raise ValueError(f"{action} is not about a Node's state")
            case _:
                assert_never(action)

    async def beat(self) -> None:
        """Let every kubelet that lives send a heartbeat about once a second; for ever."""
        while True:
            for cluster, name in [(cluster, name) for cluster, each in self._machines.items() for name in each]:
                await asyncio.sleep(self._rng.uniform(*BEAT))
                machine = self._machines[cluster].get(name)
                if machine is not None and machine.ready:
                    remote = self.remotes[cluster]
                    before = remote.version
                    remote.nodes.heartbeat(name)
                    self.heartbeats += remote.version != before
