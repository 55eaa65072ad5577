"""Follows the allocations and the nodes of all clusters, and puts the nodes into the planner's form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from hub.allocations.spec import GROUP, VERSION, NetIPAllocation, moment
from hub.allocations.view import Machine, NodeKey, Site
from hub.errors import HubError, NotFound
from hub.kube import wire
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import NODES, Resource, named
from hub.model import LOCAL, Node
from hub.observe.local.stores import newer
from hub.observe.remote.fleet import Fleet
from hub.observe.remote.nodes import NodeStore
from hub.observe.remote.status import in_words
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

PATH: Final = f"/apis/{GROUP}/{VERSION}/netipallocations"
RULE: Final = "netipallocations.netinfra.darkbrains.com: get, list, watch"
ALLOCATIONS: Resource[NetIPAllocation] = wire.resource(
    PATH, "NetIPAllocation", NetIPAllocation, lambda found: found, named, RULE
)
NOT_READ: Final = "not read yet"
MISSING_CRD: Final = "the NetIPAllocation CRD is not installed: hub allocations crd | kubectl apply -f -"


class SteadyTime:
    """Unix time that never goes back: the wall clock at the start plus the time since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.now()

    def now(self) -> float:
        """Unix time."""
        return self._clock.now() + self._offset


class Observed:
    """Whether a reflector's objects are current; implements :class:`hub.kube.reflector.Observer`."""

    def __init__(self, rule: str, on_change: Callable[[], None]) -> None:
        self.problem = NOT_READ
        self._rule = rule
        self._on_change = on_change

    def listing(self) -> None:
        """A list has begun."""

    def answered(self) -> None:
        """The objects are current."""
        if self.problem:
            self.problem = ""
            self._on_change()

    def failed(self, error: HubError) -> None:
        """An attempt failed."""
        text = in_words(error, LOCAL, self._rule)
        if isinstance(error, NotFound):
            text = MISSING_CRD if self._rule == RULE else text
        if text != self.problem:
            log.warning("allocations: %s", text)
            self.problem = text
            self._on_change()


class AllocationStore:
    """The allocations by name, from lists, watch events and this process's own writes; the newest version counts."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.objects: dict[str, NetIPAllocation] = {}
        self._on_change = on_change

    def replace(self, objects: dict[Any, NetIPAllocation], resource_version: str) -> None:
        """Apply a complete list."""
        old = self.objects
        self.objects = {
            name: known if (known := old.get(name)) is not None and not self._older(known, found) else found
            for name, found in objects.items()
        }
        del resource_version
        self._on_change()

    def upsert(self, key: Any, value: NetIPAllocation, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event."""
        known = self.objects.get(key)
        if known is None or self._older(known, value):
            self.objects[key] = value
            self._on_change()

    def delete(self, key: Any, value: NetIPAllocation, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: an object was deleted."""
        if self.objects.pop(key, None) is not None:
            self._on_change()

    def wrote(self, value: NetIPAllocation) -> None:
        """Apply the answer to a write of this process."""
        if value.metadata.name in self.objects:
            self.upsert(value.metadata.name, value, value.metadata.resource_version)

    @staticmethod
    def _older(known: NetIPAllocation, found: NetIPAllocation) -> bool:
        if known.metadata.uid != found.metadata.uid:
            return True
        return newer(found.metadata.resource_version, known.metadata.resource_version)


class Machines:
    """The nodes of one cluster, and when the hub saw them become Ready or not Ready.

    Attributes:
        nodes: in the planner's form, without their instances.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Machine] = {}

    def note(self, changed: Iterable[Node], gone: Iterable[str], now: float, *, first: bool) -> None:
        """Note changes.

        Args:
            changed: new and changed nodes.
            gone: names of deleted nodes.
            now: the time.
            first: whether these are the nodes of the first list: their own timestamps then say since when they are
                Ready, but a node counts as not Ready only from now on.
        """
        for name in gone:
            self.nodes.pop(name, None)
        for node in changed:
            old = self.nodes.get(node.name)
            if node.ready == "True":
                since = min(now, moment(node.ready_since)) if first else now
                self.nodes[node.name] = Machine(node, None, (old.ready_since if old is not None else 0.0) or since)
            else:
                since = (old.unready_since if old is not None else 0.0) or now
                self.nodes[node.name] = Machine(node, None, unready_since=since)

    def restart(self, now: float) -> None:
        """The cluster was not current for some time: nodes count as not Ready from now on."""
        for name, machine in self.nodes.items():
            if machine.unready_since:
                self.nodes[name] = msgspec.structs.replace(machine, unready_since=now)


class Sites:
    """The clusters whose nodes may hold addresses.

    Args:
        client: of the hub cluster.
        fleet: the remote clusters.
        clock: where time comes from.
        now: returns the time in the planner's clock.
        on_change: called with a cluster's name when its nodes or its state changed.
        on_nodes: called with changed nodes and the names of deleted nodes.
    """

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        clock: Clock,
        now: Callable[[], float],
        on_change: Callable[[str], None],
        on_nodes: Callable[[str, Iterable[Node], Iterable[str]], None],
    ) -> None:
        self._fleet = fleet
        self._now = now
        self._on_change = on_change
        self._on_nodes = on_nodes
        self._machines: dict[str, Machines] = {}
        self._was: dict[str, str] = {}
        """Cluster -> its last problem."""
        self._sites: dict[tuple[str, str], dict[str, tuple[Machine, str | None, Machine]]] = {}
        """(account, cluster) -> node -> (without its instance, the instance, both together), as last put together."""
        self.local = NodeStore(lambda changed, gone: self.note(LOCAL, changed, gone), clock.wall)
        self.observed = Observed(NODES.rule, lambda: self.state_changed(LOCAL))
        self._reflector = Reflector("nodes of the hub cluster", client, NODES, self.local, self.observed, clock)

    async def run(self) -> None:
        """Follow the nodes of the hub cluster until cancelled."""
        await self._reflector.run()

    def nodes(self, cluster: str) -> Mapping[str, Node]:
        """The nodes of a cluster, as last known."""
        if cluster == LOCAL:
            return self.local.nodes
        unit = self._fleet.clusters.get(cluster)
        return unit.nodes if unit is not None else {}

    def note(self, cluster: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        """Note changed and deleted nodes of a cluster."""
        changed, gone = tuple(changed), tuple(gone)
        first = cluster not in self._machines
        self._machines.setdefault(cluster, Machines()).note(changed, gone, self._now(), first=first)
        self._on_nodes(cluster, changed, gone)
        self._on_change(cluster)

    def state_changed(self, cluster: str) -> None:
        """The state of a cluster has changed."""
        problem = self.problem(cluster)
        if self._was.get(cluster) and not problem and cluster in self._machines:
            self._machines[cluster].restart(self._now())
        self._was[cluster] = problem
        self._on_change(cluster)

    def problem(self, cluster: str) -> str:
        """Why nothing is known about the nodes of a cluster now; "" if they are complete and current."""
        if cluster == LOCAL:
            return f"nodes of the hub cluster: {self.observed.problem}" if self.observed.problem else ""
        unit = self._fleet.clusters.get(cluster)
        if unit is not None and unit.spec.state != "active":
            return f"cluster {cluster} is {unit.spec.state}"
        return self._fleet.outdated(cluster)

    def site(self, account: str, cluster: str, instances: Mapping[NodeKey, str | None], *, recognised: bool) -> Site:
        """A cluster in the planner's form.

        Args:
            account: the account that it is for.
            cluster: its name.
            instances: the instances of the account's nodes.
            recognised: whether the provider has recognised all nodes of the cluster.
        """
        bare = self._machines[cluster].nodes if cluster in self._machines else {}
        last = self._sites.get((account, cluster), {})
        known = self._sites[account, cluster] = {
            name: _joined(machine, instances.get(NodeKey(cluster, name)), last.get(name))
            for name, machine in bare.items()
        }
        problem = self.problem(cluster) or ("" if recognised else f"the nodes of {cluster} are being recognised")
        return Site(cluster, {name: joined for name, (_, _, joined) in known.items()}, problem)

    async def client(self, cluster: str, local: Client) -> Client:
        """A connected client of a cluster.

        Raises:
            HubError: the cluster cannot be contacted.
        """
        if cluster == LOCAL:
            return local
        unit = self._fleet.clusters.get(cluster)
        if unit is None:
            raise HubError(f"cluster {cluster} is not followed")
        return await unit.connection()


def _joined(
    machine: Machine, instance: str | None, last: tuple[Machine, str | None, Machine] | None
) -> tuple[Machine, str | None, Machine]:
    """A node with its instance; the same objects as last time if nothing has changed."""
    if last is not None and last[0] is machine and last[1] == instance:
        return last
    return machine, instance, msgspec.structs.replace(machine, instance=instance)


def follow_allocations(client: Client, store: AllocationStore, observed: Observed, clock: Clock) -> Reflector[Any]:
    """The reflector of the allocations."""
    return Reflector("allocations", client, ALLOCATIONS, store, observed, clock)


def decode(body: bytes) -> NetIPAllocation:
    """Decode one allocation, as returned by PUT.

    Raises:
        msgspec.DecodeError: the body does not decode.
    """
    return msgspec.json.decode(body, type=NetIPAllocation)
