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
from hub.allocations.outcomes import Call, outcome
from hub.allocations.plan import plan
from hub.allocations.spec import (
    FINALIZER,
    LABEL_READY,
    Allocation,
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
from hub.cloud.addresses import Pending
from hub.model import LABEL_ZONE, LOCAL, Node
from hub.registry.spec import AllocationLimits
from tests.model.allocations.cloud import Cloud, Machine, Refused

START: Final = 1_700_000_000.0
ANYWHERE: Final = (IPv4Network("0.0.0.0/0"),)
WORKLOAD: Final = WorkloadRef("web")
LEASE: Final = 15.0
CALL: Final = 15.0
"""Seconds after which the caller of a cloud gives up."""
RETRY: Final = 5.0
"""Seconds after which a question is asked again that was not answered."""
LABELS: Final = frozenset({LABEL_READY})


@dataclass(slots=True)
class Cluster:
    """A cluster: its nodes, and whether the hub can see them."""

    nodes: dict[str, Node] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    """Node -> the workload's Pod there."""
    synced: bool = True
    version: int = 0
    """Changes with the nodes."""


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
    evict_after: dict[str, float] = field(default_factory=dict)
    asked_pods: frozenset[Any] = frozenset()
    settled: float = 0.0
    wake: float = 0.0
    dirty: bool = True
    last: Plan | None = None
    alive: bool = True
    quota_until: float = 0.0
    describes: int = 0
    """Descriptions that it asked for."""
    values: dict[str, tuple[NetIPAllocation, Allocation]] = field(default_factory=dict)
    sites: dict[str, tuple[tuple[int, bool], Site]] = field(default_factory=dict)
    claimed: tuple[Allocation, ...] = ()


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
        self.limits = AllocationLimits()
        self.lose_answer = 0.0
        self.pods_listed = True
        self.races = 0.0
        """How many of the passes meet an allocation that somebody changes while they plan."""
        self.late = 0.0
        """How many of the calls take effect so late that their caller has given up."""
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
        raise AssertionError("A5: the hub does not come to rest")

    def changed(self) -> None:
        """Something that a process watches has changed."""
        if self.leader is not None:
            self.leader.dirty = True

    def serving(self) -> dict[str, int]:
        """Cluster -> how many of its nodes have an address and the label."""
        held = set(self.cloud.holders.values())
        return {
            name: sum(
                cluster.instances[node] in held and LABEL_READY in found.labels for node, found in cluster.nodes.items()
            )
            for name, cluster in self.clusters.items()
        }

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

    def freeze(self) -> None:
        """The leader stands still in the middle of a pass: its statuses arrive late, its acts never begin.

        Another process leads when the Lease has expired.
        """
        process = self.leader
        if process is None:
            return
        view = self.view(process)
        found = plan(view, self.now)
        self.judge.planned(self, process, view, found)
        self.kill()
        self.at(self.now + self.rng.uniform(0.0, 2 * LEASE), lambda: self._store_all(process, view, found))
        self.at(self.now + LEASE, lambda: None if self.leader is not None else self.start(settle=True))

    def run_passes(self) -> None:
        """Passes of the leader until it has nothing to do now."""
        process = self.leader
        rounds = 0
        while process is not None and process.dirty and process is self.leader:
            process.dirty = False
            self._pass(process)
            rounds += 1
            assert rounds < 200, "A5: the hub plans without end"

    def view(self, process: Process) -> View:
        """What a process knows now."""
        values = {}
        for name, found in self.objects.items():
            known = process.values.get(name)
            values[name] = known if known is not None and known[0] is found else (found, read(found))
        process.values = values
        allocations = tuple(value for _, value in values.values())
        if allocations != process.claimed or process.claims.wake is not None:
            process.claims = claims(allocations, process.claims, self.now)
            process.claimed = allocations
        pods = {
            (key, workload): Pods(tuple(pod for pod in [self.clusters[key.cluster].pods.get(key.name)] if pod), 1)
            for key, workload in process.asked_pods
            if self.pods_listed and key.cluster in self.clusters and self.clusters[key.cluster].synced
        }
        frozen = "401: the credential is not valid" if self.cloud.denied else ""
        return View(
            account=Account(
                "main", "model", tuple(self.clusters), ANYWHERE, frozen=frozen, quota_until=process.quota_until
            ),
            limits=self.limits,
            sites={name: self._site(process, name, cluster) for name, cluster in self.clusters.items()},
            allocations=allocations,
            holders=process.claims.holders,
            conflicts=process.claims.conflicts,
            answers=process.answers,
            inspections=process.inspections,
            outcomes=process.outcomes,
            running=frozenset(process.running),
            pods=pods,
            evict_after=process.evict_after,
            label_keys=LABELS,
            approvals=frozenset(self.approvals),
            identity=process.name,
            settled=process.settled,
            memory=process.memory,
        )

    def _site(self, process: Process, name: str, cluster: Cluster) -> Site:
        version = (cluster.version, cluster.synced)
        known = process.sites.get(name)
        if known is not None and known[0] == version:
            return known[1]
        if not cluster.synced:
            made = Site(name, known[1].machines if known is not None else {}, "not reached")
        else:
            old = known[1].machines if known is not None else {}
            steady = known is not None and known[0][1]  # only what is seen throughout counts as not Ready for so long
            made = Site(
                name,
                {
                    key: found
                    if (found := old.get(key)) is not None and found.node is node and (steady or found.ready_since)
                    else self._seen(node, cluster.instances[key], found if steady else None)
                    for key, node in cluster.nodes.items()
                },
            )
        process.sites[name] = version, made
        return made

    def _seen(self, node: Node, instance: str, old: Seen | None) -> Seen:
        if node.ready == "True":
            since = old.ready_since if old is not None and old.ready_since else self.now
            return Seen(node, instance, since)
        since = old.unready_since if old is not None and old.unready_since else self.now
        return Seen(node, instance, unready_since=since)

    def _pass(self, process: Process) -> None:
        view = self.view(process)
        found = plan(view, self.now)
        self.judge.planned(self, process, view, found)
        process.memory, process.last = found.memory, found
        waits = [at for at in (found.wake, process.claims.wake) if at is not None]
        process.wake = min(waits) if waits else 0.0
        if self.races and self.rng.random() < self.races and self.objects:
            name = self.rng.choice(sorted(self.objects))
            self.put(name, self.objects[name])
        if not self._store_all(process, view, found):
            process.dirty = True
            return
        for act in found.acts:
            self._act(process, view, act)
        if found.questions.describe:
            wanted = {*view.holders, *(address for value in view.allocations for address in value.entries)}
            self._ask(process, "describe", tuple(sorted(wanted)), self._described)
        for instance in sorted(found.questions.inspect):
            self._ask(process, f"inspect {instance}", instance, self._inspected)
        if found.questions.pods != process.asked_pods:
            process.asked_pods = found.questions.pods
            process.dirty = True

    def _store_all(self, process: Process, view: View, found: Plan) -> bool:
        """Store the statuses of a pass; False if somebody else has changed an object, so that no act begins."""
        for allocation in view.allocations:
            status = found.statuses[allocation.name]
            if status == allocation.status:
                continue
            current = self.objects.get(allocation.name)
            if current is None or current.metadata.resource_version != allocation.resource_version:
                return False
            self.judge.stores(self, process, current, status)
            self.put(allocation.name, replace(current, status=status))
            self.judge.writes += 1
            self.changed()
        return True

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
        process.describes += key == "describe"
        asked = self.now

        def arrives() -> None:
            if self.cloud.answers:
                process.running.discard(key)
                if process.alive:
                    answer(process, asked, what)
            else:
                self.at(self.now + RETRY, again)
            process.dirty = True

        def again() -> None:
            process.running.discard(key)
            process.dirty = True

        self.at(self.now + self.latency, arrives)

    def _described(self, process: Process, asked: float, addresses: tuple[str, ...]) -> None:
        self.cloud.settle(self.now)
        process.answers = {address: Answer(self.cloud.describe(address), asked) for address in addresses}

    def _inspected(self, process: Process, asked: float, instance: str) -> None:
        process.inspections = {**process.inspections, instance: Inspection(self.cloud.inspect(instance), asked)}

    # --- acts ---------------------------------------------------------------------------------------------

    def _act(self, process: Process, view: View, act: Any) -> None:
        match act:
            case Detach(address) | Attach(address) | Restore(address):
                if address in process.running:
                    return
                self.judge.acts(self, process, view, act)
                process.running.add(address)
                process.outcomes = dict(process.outcomes)
                self._call(process, type(act).__name__.lower(), address, act.order.token, act)
            case Follow(address, operation):
                if address not in process.running:
                    process.running.add(address)
                    self._follow(process, address, operation, self.now)
            case Label(node, changes):
                if node not in process.running:
                    self.judge.acts(self, process, view, act)
                    process.running.add(node)
                    self.at(self.now + 0.02, lambda: self._labelled(process, node, changes))
            case Evict(node):
                self.judge.acts(self, process, view, act)
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
        late = self.rng.random() < self.late
        ended = False

        def end(step: Any, error: str) -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._ended(process, kind, address, token, began, step, error)

        def effect() -> None:
            step, error = None, ""
            try:
                step = self.cloud.step(kind, act.order, self.now)
            except Refused as refused:
                error = refused.kind
            if lost:
                step, error = None, "timeout"
            self.at(self.now + self.latency, lambda: end(step, error))

        self.at(began + (self.rng.uniform(5, 40) if late else self.latency * self.rng.choice((0.2, 1, 5))), effect)
        self.at(began + CALL, lambda: end(None, "timeout"))

    def _ended(
        self, process: Process, kind: str, address: str, token: str, began: float, step: Any, error: str
    ) -> None:
        process.running.discard(address)
        if process.alive:
            made = outcome(process.outcomes.get(address), Call(kind, token, began), self.now, step, error, error)  # type: ignore[arg-type]
            if error == "quota":
                process.quota_until = self.now + 20.0
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
            cluster.version += 1
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
        self.clusters[cluster].version += 1
        self.changed()

    def remove_node(self, cluster: str, name: str) -> Node:
        """Delete a Node object; its machine stays."""
        self.clusters[cluster].version += 1
        self.clusters[cluster].pods.pop(name, None)
        self.changed()
        return self.clusters[cluster].nodes.pop(name)

    def sync(self, cluster: str, *, synced: bool) -> None:
        """Let the hub see a cluster, or not."""
        self.clusters[cluster].synced = synced
        self.changed()

    def edit(self, cluster: str, name: str, **changes: Any) -> None:
        """Change a node, if it exists."""
        nodes = self.clusters[cluster].nodes
        if name in nodes:
            nodes[name] = replace(nodes[name], **changes)
            self.clusters[cluster].version += 1
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
