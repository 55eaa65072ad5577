"""The world of the model: clusters, a cloud, allocations and two processes of the hub, in virtual time.

A process plans, stores statuses and starts acts as :mod:`hub.allocating` does: acts begin only when the status of the
pass is stored; a killed process forgets everything, but its calls may still take effect.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any, Final

from msgspec.structs import replace

from hub.allocations.claims import Claims, claims
from hub.allocations.plan import plan
from hub.allocations.spec import (
    FINALIZER,
    LABEL_READY,
    Meta,
    NetIPAllocation,
    Spec,
    WorkloadRef,
    read,
    stamp,
)
from hub.allocations.view import (
    Account,
    Answer,
    Attach,
    Detach,
    Evict,
    Finalize,
    Follow,
    Inspection,
    Label,
    Memories,
    NodeKey,
    Outcome,
    Plan,
    Pod,
    Pods,
    Restore,
    Site,
    View,
)
from hub.allocations.view import Machine as Seen
from hub.cloud import Pending
from hub.model import LABEL_ZONE, LOCAL, Node
from hub.registry.spec import AllocationLimits
from tests.model.allocations.cloud import Cloud, Machine, Refused, outcome

START: Final = 1_700_000_000.0
ANYWHERE: Final = (IPv4Network("0.0.0.0/0"),)
LIMITS: Final = AllocationLimits()
WORKLOAD: Final = WorkloadRef("web")
LEASE: Final = 15.0


@dataclass(slots=True)
class Cluster:
    """A cluster: its nodes, and whether the hub can see them."""

    nodes: dict[str, Node] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    """Node -> the workload's Pod there."""
    synced: bool = True


@dataclass(slots=True)
class Process:
    """One process of the hub."""

    name: str
    answers: dict[str, Answer] = field(default_factory=dict)
    inspections: dict[str, Inspection] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    running: set[str | NodeKey] = field(default_factory=set)
    memory: Memories = field(default_factory=Memories)
    claims: Claims = field(default_factory=Claims)
    seen: dict[NodeKey, Seen] = field(default_factory=dict)
    evict_after: dict[str, float] = field(default_factory=dict)
    asked_pods: frozenset[Any] = frozenset()
    settled: float = 0.0
    wake: float = 0.0
    dirty: bool = True
    last: Plan | None = None
    alive: bool = True


class World:
    """Everything. ``judge`` is called with every act before it begins, and with every stored status."""

    def __init__(self, rng: random.Random, judge: Any, clusters: int = 1) -> None:
        self.rng = rng
        self.now = START
        self.judge = judge
        self.clusters = {name: Cluster() for name in ([LOCAL, "eu"][:clusters])}
        self.cloud = Cloud({}, {})
        self.objects: dict[str, NetIPAllocation] = {}
        self.version = 1
        self.latency = 0.1
        self.lose_answer = 0.0
        self.approvals: set[str] = set()
        self.leader: Process | None = None
        self.processes = 0
        self.started = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # --- time -------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def advance(self, seconds: float) -> None:
        """Let time pass: events happen, and the leader makes its passes."""
        ends = self.now + seconds
        for _ in range(2000):
            self.run_passes()
            due = [ends]
            if self._events:
                due.append(self._events[0][0])
            if self.leader is not None and self.leader.wake:
                due.append(max(self.leader.wake, self.now))
            self.now = max(self.now, min(due))
            self.cloud.settle(self.now)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            if self.leader is not None and self.leader.wake and self.leader.wake <= self.now:
                self.leader.dirty, self.leader.wake = True, 0.0
            if self.now >= ends and not (self.leader is not None and self.leader.dirty):
                return
        raise AssertionError("the hub does not come to rest")

    def changed(self) -> None:
        """Something that a process watches has changed."""
        if self.leader is not None:
            self.leader.dirty = True

    # --- processes --------------------------------------------------------------------------------------

    def start(self, *, settle: bool) -> None:
        """A new process leads; with ``settle``, the Lease of the one before had expired."""
        self.processes += 1
        self.leader = Process(f"hub-{self.processes}", settled=self.now + LEASE if settle else 0.0)

    def kill(self) -> None:
        """Kill the leader; its calls under way may still take effect."""
        if self.leader is not None:
            self.leader.alive = False
            self.leader = None

    def run_passes(self) -> None:
        """Passes of the leader until it has nothing to do now."""
        process = self.leader
        rounds = 0
        while process is not None and process.dirty and process is self.leader:
            process.dirty = False
            self._pass(process)
            rounds += 1
            assert rounds < 200, "the hub plans without end"

    def view(self, process: Process) -> View:
        """What a process knows now."""
        allocations = tuple(read(found) for found in self.objects.values())
        process.claims = claims(allocations, process.claims, self.now)
        sites: dict[str, Site] = {}
        for name, cluster in self.clusters.items():
            for gone in [key for key in process.seen if key.cluster == name and key.name not in cluster.nodes]:
                if cluster.synced:
                    del process.seen[gone]
            if cluster.synced:
                for node_name, node in cluster.nodes.items():
                    key = NodeKey(name, node_name)
                    old = process.seen.get(key)
                    if old is None or old.node is not node:
                        process.seen[key] = self._seen(node, cluster.instances[node_name], old)
            machines = {key.name: found for key, found in process.seen.items() if key.cluster == name}
            sites[name] = Site(name, machines, "" if cluster.synced else "not reached")
        pods = {
            (key, workload): Pods(tuple(pod for pod in [self.clusters[key.cluster].pods.get(key.name)] if pod), 1)
            for key, workload in process.asked_pods
            if key.cluster in self.clusters and self.clusters[key.cluster].synced
        }
        return View(
            account=Account("main", "model", tuple(self.clusters), ANYWHERE, 15.0, frozenset()),
            limits=LIMITS,
            sites=sites,
            allocations=allocations,
            holders=process.claims.holders,
            conflicts=process.claims.conflicts,
            answers=process.answers,
            inspections=process.inspections,
            outcomes=process.outcomes,
            running=frozenset(process.running),
            pods=pods,
            evict_after=process.evict_after,
            label_keys=frozenset({LABEL_READY}),
            approvals=frozenset(self.approvals),
            identity=process.name,
            settled=process.settled,
            memory=process.memory,
        )

    def _seen(self, node: Node, instance: str, old: Seen | None) -> Seen:
        if node.ready == "True":
            since = old.ready_since if old is not None and old.ready_since else self.now
            return Seen(node, instance, since)
        since = old.unready_since if old is not None and old.unready_since else self.now
        return Seen(node, instance, unready_since=since)

    def _pass(self, process: Process) -> None:
        view = self.view(process)
        found = plan(view, self.now)
        self.judge.planned(self, view, found)
        process.memory, process.last = found.memory, found
        waits = [at for at in (found.wake, process.claims.wake) if at is not None]
        process.wake = min(waits) if waits else 0.0
        for allocation in view.allocations:
            status = found.statuses[allocation.name]
            if status != allocation.status:
                self._store(process, allocation.name, allocation.resource_version, status)
        for act in found.acts:
            self._act(process, act)
        if found.questions.describe:
            self._ask(process, "describe", tuple(sorted({*view.holders})), self._described)
        for instance in sorted(found.questions.inspect):
            self._ask(process, f"inspect {instance}", instance, self._inspected)
        if found.questions.pods != process.asked_pods:
            process.asked_pods = found.questions.pods
            process.dirty = True

    def _store(self, process: Process, name: str, version: str, status: Any) -> None:
        current = self.objects.get(name)
        if current is None or current.metadata.resource_version != version:
            process.dirty = True
            return
        self.judge.stores(self, current, status)
        self.put(name, replace(current, status=status))
        self.judge.writes += 1
        process.dirty = True

    def put(self, name: str, found: NetIPAllocation) -> None:
        """Store an object with a new version."""
        self.version += 1
        meta = replace(found.metadata, resource_version=str(self.version))
        self.objects[name] = replace(found, metadata=meta)

    # --- questions ----------------------------------------------------------------------------------------

    def _ask(self, process: Process, key: str, what: Any, answer: Callable[[Process, float, Any], None]) -> None:
        if key in process.running:
            return
        process.running.add(key)
        asked = self.now

        def arrives() -> None:
            process.running.discard(key)
            if process.alive and not self.cloud.down:
                answer(process, asked, what)
                process.dirty = True
            elif process.alive:
                self.at(self.now + 1.0, lambda: setattr(process, "dirty", True))

        self.at(self.now + self.latency, arrives)

    def _described(self, process: Process, asked: float, addresses: tuple[str, ...]) -> None:
        self.cloud.settle(self.now)
        process.answers = {address: Answer(self.cloud.describe(address), asked) for address in addresses}

    def _inspected(self, process: Process, asked: float, instance: str) -> None:
        process.inspections = {**process.inspections, instance: Inspection(self.cloud.inspect(instance), asked)}

    # --- acts ---------------------------------------------------------------------------------------------

    def _act(self, process: Process, act: Any) -> None:
        match act:
            case Detach(address) | Attach(address) | Restore(address):
                if address in process.running:
                    return
                self.judge.acts(self, process, act)
                process.running.add(address)
                process.outcomes = dict(process.outcomes)
                self._call(process, type(act).__name__.lower(), address, act.order.token, act)
            case Follow(address, operation):
                if address not in process.running:
                    process.running.add(address)
                    self._follow(process, address, operation, self.now)
            case Label(node, changes):
                if node not in process.running:
                    self.judge.acts(self, process, act)
                    process.running.add(node)
                    self.at(self.now + 0.02, lambda: self._labelled(process, node, changes))
            case Evict(node):
                self.judge.acts(self, process, act)
                self.clusters[node.cluster].pods.pop(node.name, None)
                process.evict_after = {**process.evict_after, str(act.workload): self.now + 12.0}
                process.dirty = True
            case Finalize(name, present):
                found = self.objects[name]
                self.put(
                    name, replace(found, metadata=replace(found.metadata, finalizers=(FINALIZER,) if present else ()))
                )
                if not present and found.metadata.deletion_timestamp:
                    del self.objects[name]
                process.dirty = True

    def _call(self, process: Process, kind: str, address: str, token: str, act: Any) -> None:
        began = self.now
        lost = self.rng.random() < self.lose_answer

        def effect() -> None:
            step, error = None, ""
            try:
                step = self.cloud.step(kind, act.order, self.now)
            except Refused as refused:
                error = refused.kind
            self.judge.effects(self, kind, act, step)
            if lost:
                step, error = None, "timeout"
            self.at(self.now + self.latency, lambda: self._ended(process, kind, address, token, began, step, error))

        self.at(self.now + self.latency * self.rng.choice((0.2, 1, 5)), effect)

    def _ended(
        self, process: Process, kind: str, address: str, token: str, began: float, step: Any, error: str
    ) -> None:
        process.running.discard(address)
        if process.alive:
            made = outcome(process.outcomes.get(address), kind, token, began, self.now, step, error)
            process.outcomes = {**process.outcomes, address: made}
            process.dirty = True

    def _follow(self, process: Process, address: str, operation: str, began: float) -> None:
        def look() -> None:
            if not process.alive:
                return
            try:
                step = self.cloud.follow(operation, self.now)
            except Refused as refused:
                if refused.kind == "terminal" or self.now - began > 600:
                    self._ended(process, "follow", address, operation, began, None, refused.kind)
                else:
                    self._follow(process, address, operation, began)
                return
            if isinstance(step, Pending):
                if self.now - began > 600:
                    self._ended(process, "follow", address, operation, began, None, "timeout")
                else:
                    self._follow(process, address, operation, began)
            else:
                self._ended(process, "follow", address, operation, began, step, "")

        self.at(self.now + 1.0, look)

    def _labelled(self, process: Process, key: NodeKey, changes: tuple[tuple[str, str | None], ...]) -> None:
        process.running.discard(key)
        process.dirty = True
        cluster = self.clusters[key.cluster]
        node = cluster.nodes.get(key.name)
        if node is not None and cluster.synced and process.alive:
            labels = {**node.labels, **{name: value for name, value in changes if value is not None}}
            for name, value in changes:
                if value is None:
                    labels.pop(name, None)
            cluster.nodes[key.name] = replace(node, labels=labels)
            self.judge.writes += 1

    # --- what happens ---------------------------------------------------------------------------------------

    def add_node(self, cluster: str, name: str, *, instance: str = "", labels: dict[str, str] | None = None) -> None:
        """A node with a machine."""
        instance = instance or f"i-{cluster}-{name}"
        zone = f"z{self.rng.randint(1, 2)}"
        self.cloud.machines.setdefault(instance, Machine(zone=zone))
        made = Node(name, ready="True", labels={LABEL_ZONE: zone, **(labels or {})}, provider_id=instance)
        self.clusters[cluster].nodes[name] = made
        self.clusters[cluster].instances[name] = instance
        self.changed()

    def edit(self, cluster: str, name: str, **changes: Any) -> None:
        """Change a node, if it exists."""
        nodes = self.clusters[cluster].nodes
        if name in nodes:
            nodes[name] = replace(nodes[name], **changes)
            self.changed()

    def allocate(self, name: str, addresses: tuple[str, ...], **spec: Any) -> None:
        """Create an allocation."""
        self.started += 1
        meta = Meta(name, uid=f"uid-{self.started}", generation=1, creation_timestamp=stamp(self.now))
        self.put(name, NetIPAllocation(meta, Spec(reserved_ips=addresses, **spec)))
        for address in addresses:
            self.cloud.holders.setdefault(address, "")
        self.changed()

    def respec(self, name: str, **changes: Any) -> None:
        """Change the spec of an allocation, if it exists."""
        if name in self.objects:
            found = self.objects[name]
            meta = replace(found.metadata, generation=found.metadata.generation + 1)
            self.put(name, replace(found, metadata=meta, spec=replace(found.spec, **changes)))
            self.changed()

    def delete(self, name: str) -> None:
        """Delete an allocation; one with a finalizer stays until it is released."""
        found = self.objects.get(name)
        if found is None:
            return
        if found.metadata.finalizers:
            self.put(name, replace(found, metadata=replace(found.metadata, deletion_timestamp=stamp(self.now))))
        else:
            del self.objects[name]
        self.changed()
