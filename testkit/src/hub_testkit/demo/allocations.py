"""``hub demo --allocations``: reserved addresses of a simulated cloud follow the nodes of a simulated cluster.

Two allocations share one pool of nodes. One has a workload, whose Pods run where its addresses are. Nodes are drained,
fail and vanish, and the cloud has an outage. The demo prints what happens and what the hub does, and at the end whether
each address is on a node that may have it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import click

from hub.app.hub import Hub, Options, assemble
from hub.report.server import Listen, listening
from hub.runtime.clock import SystemClock
from hub_testkit import SimulatedCluster, make_node
from hub_testkit.addresses.cloud import CREDENTIAL, SimulatedCloud
from hub_testkit.demo.allocation_cloud import CLOUDS, NAME
from hub_testkit.demo.run import PAGE, log_to, running, signals

LONGEST: Final = 120.0
"""Seconds that the whole script takes."""
LOOK: Final = 0.1
SETTLE: Final = 60.0
"""Most seconds after the last incident until every address must be on a node: a drained node keeps its address 20."""
OPERATION: Final = 1.0
"""Seconds that an operation of the cloud takes."""

ALLOCATIONS: Final = {"web": ("198.18.0.1", "198.18.0.2"), "mail": ("198.18.0.3",)}
WORKLOAD: Final = {"name": "gateway", "kind": "StatefulSet", "namespace": "edge"}
"""The workload of the allocation ``web``: a Pod on each of its nodes."""
NODES: Final = ("node-1", "node-2", "node-3", "node-4", "node-5", "node-6")

REGISTRY: Final = f"""\
version: 1
allocations:
  mode: enforce
  notReadyGrace: 5s                 # 30s by default; shorter, so that the demo is
  limits: {{moves: 100%, dwell: 10s}}
  clouds:
    - name: demo
      provider: {NAME}
      config: {{cloud: demo, credential: {{file: credential}}}}
      addresses: [198.18.0.0/24]
      interval: 10s
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One incident: after so many seconds, a sentence, and what happens."""

    at: float
    text: str
    happen: Callable[[World], None]


class World:
    """The simulated cluster and its cloud. It serves inside ``async with``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = SimulatedCluster("hub", controllers=True)
        self.cloud = SimulatedCloud()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        CLOUDS["demo"] = self.cloud
        self.cloud.operations(OPERATION)
        for number, name in enumerate(NODES):
            made = self.cloud.add_instance(name, ephemeral=True)
            self.cluster.nodes.add(make_node(name, zone=f"z{number % 3 + 1}", provider_id=made.provider_id))
        for name, addresses in ALLOCATIONS.items():
            for address in addresses:
                self.cloud.reserve(address)
            spec: dict[str, object] = {"reservedIPs": list(addresses), "cloud": {"provider": NAME}}
            if name == "web":
                spec["workloadRef"] = WORKLOAD
            self.cluster.allocations.add({"metadata": {"name": name}, "spec": spec})
        meta = {key: WORKLOAD[key] for key in ("name", "namespace")}
        self._workload = self.cluster.statefulsets.add({"metadata": meta})["metadata"]
        await self._stack.enter_async_context(self.cluster)
        self.cluster.write_kubeconfig(self.folder / "kubeconfigs" / "hub")
        (self.folder / "credential").write_text(CREDENTIAL)
        (self.folder / "clusters.yaml").write_text(REGISTRY)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        CLOUDS.pop("demo", None)

    # --- what is ------------------------------------------------------------------------------------

    def holder(self, address: str) -> str:
        """The node that has an address at the cloud; "" = none."""
        return self.cloud.holder_of(address)

    def labelled(self) -> set[str]:
        """The nodes with the label ``ip.ready``."""
        nodes = self.cluster.nodes.list()
        return {node["metadata"]["name"] for node in nodes if node["metadata"]["labels"].get("ip.ready") == "true"}

    def may_hold(self, name: str) -> bool:
        """Whether a node exists, is Ready and is not cordoned."""
        node = next((node for node in self.cluster.nodes.list() if node["metadata"]["name"] == name), None)
        if node is None or node["spec"].get("unschedulable"):
            return False
        return any(part["type"] == "Ready" and part["status"] == "True" for part in node["status"]["conditions"])

    def wrong(self) -> list[str]:
        """What is not as it should be, in sentences."""
        found = []
        holders = {address: self.holder(address) for listed in ALLOCATIONS.values() for address in listed}
        for address, name in holders.items():
            if not name:
                found.append(f"{address} has no node")
            elif not self.may_hold(name):
                found.append(f"{address} is on {name}, which should not have it")
        if len(set(holders.values())) < len(holders):
            found.append("two addresses share a node")
        if self.labelled() != set(filter(None, holders.values())):
            found.append("the labels ip.ready do not follow the addresses")
        return found

    # --- what happens -------------------------------------------------------------------------------

    def place_pods(self) -> None:
        """Keeps a Pod of the workload on each node of its addresses, and none where the label is gone."""
        holders = {self.holder(address) for address in ALLOCATIONS["web"]}
        fit = {name for name in holders & self.labelled() if self.may_hold(name)}
        has = {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in self.cluster.pods.list()}
        for node in has.keys() - self.labelled():
            self.cluster.pods.delete(has[node], namespace=WORKLOAD["namespace"])
        for node in fit - has.keys():
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
            owner |= {key: self._workload[key] for key in ("name", "uid")}
            meta = {"name": f"gateway-{node}", "namespace": WORKLOAD["namespace"], "ownerReferences": [owner]}
            status = {"phase": "Running"}
            self.cluster.pods.put({"metadata": meta, "spec": {"nodeName": node}, "status": status})

    def evict(self, name: str) -> None:
        """Evicts the Pods of a cordoned node, as ``kubectl drain`` does it."""
        for pod in self.cluster.pods.list():
            if pod["spec"]["nodeName"] == name:
                self.cluster.pods.delete(pod["metadata"]["name"], namespace=WORKLOAD["namespace"])

    def node_of(self, address: str) -> str:
        """The node that an incident is about: the holder of an address, or the first node."""
        return self.holder(address) or NODES[0]

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Cordons a node, or uncordons it."""
        self.cluster.nodes.update(name, lambda node: node["spec"].update(unschedulable=on))

    def vanish(self, name: str) -> None:
        """Deletes a virtual machine; its Node goes with it, as a cloud controller does it."""
        self.cloud.remove_instance(name)
        self.cluster.nodes.delete(name)


def script() -> Iterator[Step]:
    """The incidents, in order."""
    one, two, mail = *ALLOCATIONS["web"], *ALLOCATIONS["mail"]
    touched: dict[str, str] = {}

    def cordon(world: World) -> None:
        touched["cordoned"] = world.node_of(one)
        world.cordon(touched["cordoned"])

    def fail(world: World) -> None:
        touched["failed"] = world.node_of(two)
        world.cluster.nodes.set_ready(touched["failed"], "Unknown")

    def outage(world: World) -> None:
        world.cloud.fail("error", times=None)
        node = world.node_of(one)
        world.cordon(node)
        world.evict(node)

    yield Step(12, f"the node with {one} is cordoned; a Pod of its workload still runs there", cordon)
    yield Step(20, "the Pod is evicted: the node is drained", lambda world: world.evict(touched["cordoned"]))
    yield Step(40, f"the node with {two} stops reporting", fail)
    yield Step(62, f"the virtual machine with {mail} is deleted", lambda world: world.vanish(world.node_of(mail)))
    yield Step(76, "the cordoned node is uncordoned", lambda world: world.cordon(touched["cordoned"], on=False))
    yield Step(78, f"the cloud fails, and the node with {one} is drained: nothing may move now", outage)
    yield Step(92, "the cloud answers again", lambda world: world.cloud.heal())
    yield Step(94, "the node that stopped reporting is Ready again", lambda world: _ready(world, touched["failed"]))


def _ready(world: World, name: str) -> None:
    world.cluster.nodes.set_ready(name, ready=True)


class Watcher:
    """Prints each change of what the hub says about an address."""

    def __init__(self, hub: Hub, began: float) -> None:
        self._hub = hub
        self._began = began
        self._last: dict[str, tuple[str, ...]] = {}

    def say(self, text: str) -> None:
        """Prints a line with the time."""
        click.echo(f"{self._hub.clock.now() - self._began:6.1f} s  {text}")

    def look(self) -> None:
        """Prints what has changed."""
        allocating = self._hub.allocating
        for address, found in sorted(allocating.verdicts.items()) if allocating is not None else ():
            now = (found.state, found.reason, found.holder, found.to if found.state != "Attached" else "")
            if self._last.get(address) != now:
                self._last[address] = now
                where = f" on {found.holder}" if found.holder else ""
                goes = f", goes to {now[3]}" if now[3] else ""
                why = f" ({found.cause or found.reason})" if found.cause or found.reason else ""
                wait = (
                    f": {found.message}" if found.state in ("Leaving", "Pending", "Unknown") and found.message else ""
                )
                self.say(f"  {address} {found.state}{where}{goes}{why}{wait}")


def run(duration: float | None) -> int:
    """Runs the demo; see :func:`hub_testkit.demo.main`."""
    folder = Path(tempfile.mkdtemp(prefix="hub-demo-"))
    log_to(folder / "hub.log")
    wrong = asyncio.run(show(World(folder), duration))
    if wrong:
        click.echo("not as it should be: " + "; ".join(wrong))
    else:
        click.echo("every address is on a Ready node of its own, and the labels follow")
    return 1 if wrong else 0


async def show(world: World, duration: float | None) -> list[str]:
    """Plays the script for a hub; returns what is wrong at the end.

    Raises:
        HubError: the hub could not be started.
    """
    clock = SystemClock()
    stop = asyncio.Event()
    ends = clock.now() + (LONGEST if duration is None else duration)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world)
        folder = world.folder
        options = Options(registry=f"{folder}/clusters.yaml", kubeconfig=f"{folder}/kubeconfigs/hub")
        hub = await stack.enter_async_context(assemble(options, clock))
        await hub.catalog.load_async(NAME)  # fails at once if the entry point is not installed
        urls = await stack.enter_async_context(listening(Listen(PAGE), hub))
        click.echo(f"in {folder}: clusters.yaml, kubeconfigs, hub.log")
        for url in urls:
            click.echo(f"in a browser: {url}")
        watcher = Watcher(hub, clock.now())
        watcher.say(f"start: {len(NODES)} nodes, allocations {', '.join(ALLOCATIONS)} with 3 addresses")
        stack.enter_context(signals(stop.set))
        async with running(hub):
            steps = list(script())
            began = clock.now()
            while not stop.is_set() and clock.now() < ends and (steps or world.wrong()):
                while steps and clock.now() >= began + steps[0].at:
                    step = steps.pop(0)
                    watcher.say(step.text)
                    step.happen(world)
                world.place_pods()
                watcher.look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK):
                        await stop.wait()
            until = clock.now() + SETTLE
            world.cloud.heal()
            while world.wrong() and clock.now() < until:
                world.place_pods()
                watcher.look()
                await clock.sleep(LOOK)
            watcher.look()
            return world.wrong()
