"""The simulated world: three remote clusters, a hub cluster, a cloud, and the endpoints that should be published.

The expected endpoints are computed here from the machines and the layout, in the simplest way and without the hub's
code, so that the hub can be checked against them.
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
"""Seconds between bookmarks. A bookmark resets a reflector's backoff, so that it retries soon after the next outage."""

BEAT: Final = (0.03, 0.07)
"""Range of the seconds between heartbeats of different kubelets: with 21 kubelets, each sends one per second."""


class Spot(NamedTuple):
    """The Service and the address of an endpoint."""

    service: str
    address: str


class Shown(NamedTuple):
    """How an endpoint is published: its source cluster, port and readiness."""

    cluster: str
    port: int
    ready: bool


Published = Mapping[Spot, Shown]
"""Everything that is published, or should be."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and its Node.

    Attributes:
        ready: Whether its kubelet reports.
        blip: It is not ready, but for less than the cluster's grace period, so that it stays published.
        cordoned: Whether its Node is unschedulable.
    """

    name: str
    address: str
    pool: str
    zone: str
    ready: bool = True
    blip: bool = False
    cordoned: bool = False


def published_of(slices: list[dict[str, Any]]) -> dict[Spot, Shown]:
    """Returns the endpoints that consumers of these EndpointSlices see."""
    published: dict[Spot, Shown] = {}
    for slice_ in slices:
        labels = slice_["metadata"]["labels"]
        service, cluster = labels["kubernetes.io/service-name"], labels.get("multicluster.kubernetes.io/source-cluster")
        port = next((port["port"] for port in slice_.get("ports") or ()), 0)
        for endpoint in slice_.get("endpoints") or ():
            ready = bool(endpoint["conditions"]["ready"])
            for address in endpoint["addresses"]:
                published[Spot(service, address)] = Shown(cluster or "", port, ready)
    return published


def should_be_published(machines: Mapping[str, Mapping[str, Machine]]) -> dict[Spot, Shown]:
    """Returns the endpoints that should be published; ``machines`` are by cluster and name."""
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
    """The simulated world. It serves inside ``async with``.

    Args:
        folder: The folder for clusters.yaml and the kubeconfigs.
        seed: The seed of all random choices.
        cloud: The cloud; None = :func:`installed_cloud`.

    Attributes:
        hub: The hub cluster.
        remotes: The remote clusters, by name.
        heartbeats: The number of Node updates so far that changed only heartbeat times.
    """

    def __init__(self, folder: Path, seed: int = SEED, cloud: AnyCloud | None = None) -> None:
        self.folder = folder
        self.hub = SimulatedCluster("hub", controllers=True)
        self.remotes = {cluster.name: SimulatedCluster(cluster.name) for cluster in CLUSTERS}
        self.cloud = cloud or installed_cloud(random.Random(seed))
        self.heartbeats = 0
        self._rng = random.Random(seed)
        self._clusters = {cluster.name: cluster for cluster in CLUSTERS}
        self._machines: dict[str, dict[str, Machine]] = {cluster.name: {} for cluster in CLUSTERS}
        self._addresses = {cluster.name: 0 for cluster in CLUSTERS}
        self._last_seen: dict[str, dict[str, Machine]] = {}
        """Machines of the clusters whose API server is away, as they were when it went away."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for service in SERVICES:
            ports = [{"name": "main", "port": 443, "targetPort": service.port}]
            self.hub.services.add(make_service(NAMESPACE, service.name, ports=ports))
        for cluster in CLUSTERS:
            for number, pool in enumerate(POOLS, 1):
                self._join(cluster, f"{cluster.prefix}-{number}", pool)
        for simulated in (self.hub, *self.remotes.values()):
            simulated.bookmark_interval = BOOKMARKS
            await self._stack.enter_async_context(simulated)
        await self._stack.enter_async_context(self.cloud)
        self._write_files()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _write_files(self) -> None:
        self.hub.write_kubeconfig(self.folder / "kubeconfigs" / "hub")
        for name, remote in self.remotes.items():
            remote.write_kubeconfig(self.folder / "kubeconfigs" / name)
        self.cloud.write_files(self.folder)
        (self.folder / "clusters.yaml").write_text(registry(self.cloud.provider, self.cloud.config))

    # --- what is and what should be ----------------------------------------------------------------

    @property
    def nodes(self) -> int:
        """The number of nodes of all remote clusters."""
        return sum(map(len, self._machines.values()))

    def nodes_of(self, cluster: str) -> tuple[int, int]:
        """Returns the number of nodes of a cluster that report, and the number of all its nodes."""
        machines = self._machines[cluster].values()
        return sum(machine.ready for machine in machines), len(machines)

    def machine(self, cluster: str, node: str) -> Machine | None:
        """Returns the machine of a node; None if there is none."""
        return self._machines[cluster].get(node)

    def dark(self, cluster: str) -> bool:
        """Whether the cluster's API server is away."""
        return cluster in self._last_seen

    def wanted(self) -> dict[Spot, Shown]:
        """Returns what should be published now; for a cluster whose API server is away, its last known state counts."""
        return should_be_published({**self._machines, **self._last_seen})

    def published(self) -> dict[Spot, Shown]:
        """Returns what is published in the hub cluster."""
        return published_of(self.hub.slices.list(namespace=NAMESPACE))

    # --- what happens ------------------------------------------------------------------------------

    async def happen(self, step: Step) -> None:
        """Applies an incident to the world."""
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
        """Sends a heartbeat of every kubelet that reports about once a second, for ever."""
        while True:
            for cluster, name in [(cluster, name) for cluster, names in self._machines.items() for name in names]:
                await asyncio.sleep(self._rng.uniform(*BEAT))
                machine = self._machines[cluster].get(name)
                if machine is not None and machine.ready:
                    remote = self.remotes[cluster]
                    before = remote.version
                    remote.nodes.heartbeat(name)
                    self.heartbeats += remote.version != before
