"""The judge of the model: knows the truth of the world, and complains about acts that no law allows.

The invariants A1 to A9 are those of docs/allocations.md. A1 (one holder) and A7 (no act without the Lease) hold by the
construction of the world and its processes; here their consequences are judged: what is sent, and on what evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hub.allocations.plan import plan
from hub.allocations.spec import FINALIZER, LABEL_READY, Entry, NetIPAllocation, Status
from hub.allocations.view import Attach, Detach, Evict, Label, Plan, Restore, View
from hub.cloud import Held
from hub.model import LOCAL, Node

if TYPE_CHECKING:
    from tests.model.allocations.world import Process, World


KNOWN = 31.0
"""Seconds that an answer may be used: two intervals."""


class Complaint(AssertionError):
    """A law is broken; the text begins with the invariant."""


class Judge:
    """Judges one run.

    Attributes:
        writes: changes that the hub made: statuses and labels; calls of the cloud are in its own log.
        checks: how often a plan was compared with that of a shuffled view.
    """

    def __init__(self, *, compare: int = 25) -> None:
        self.writes = 0
        self.checks = 0
        self._passes = 0
        self._compare = compare
        self._spent: dict[str, list[tuple[float, str]]] = {}

    # --- plans and records ------------------------------------------------------------------------------

    def planned(self, world: World, view: View, found: Plan) -> None:
        """A9: the order of a view's parts is nothing; at most one act for an address, a node and a workload."""
        keys = [
            getattr(act, "address", None) or getattr(act, "node", None)
            for act in found.acts
            if not isinstance(act, Evict)
        ]
        _check(len(keys) == len(set(keys)), f"A9: two acts for one of {keys}")
        self._passes += 1
        if self._passes % self._compare:
            return
        self.checks += 1
        from msgspec.structs import replace

        shuffled = replace(
            view,
            allocations=tuple(reversed(view.allocations)),
            answers=dict(reversed(view.answers.items())),
            sites={
                name: replace(site, machines=dict(reversed(site.machines.items()))) for name, site in view.sites.items()
            },
        )
        other = plan(shuffled, world.now)
        _check(found.statuses == other.statuses, "A9: the order of the view changes the statuses")
        _check(set(found.acts) == set(other.acts), "A9: the order of the view changes the acts")

    def stores(self, world: World, current: NetIPAllocation, status: Status) -> None:
        """A2, A8: a new record that takes an address from a node has evidence, a candidate and a budget."""
        old = {entry.address: entry for entry in (current.status.addresses if current.status else ())}
        for entry in status.addresses:
            move = entry.move
            before = old[entry.address].move if entry.address in old else None
            if move is None or (before is not None and before.id == move.id):
                continue
            if move.phase == "Detaching":
                self._evidence(world, current, entry)
                self._budget(world, current, entry)
            elif move.phase == "Releasing":
                released = current.metadata.deletion_timestamp or entry.address not in (current.spec.reserved_ips or ())
                _check(bool(released), f"A2: {entry.address} is released, but its allocation still lists it")
                _check(current.spec.release_policy == "Detach", f"A2: {entry.address} is released by policy Retain")

    def _evidence(self, world: World, current: NetIPAllocation, entry: Entry) -> None:
        move = entry.move
        assert move is not None
        where, name = _split(move.from_, current.spec.cluster or LOCAL)
        cluster = world.clusters[where]
        _check(cluster.synced, f"A2: {entry.address} leaves {move.from_}, but cluster {where} is not known")
        node = cluster.nodes.get(name)
        machine = world.cloud.machines.get(cluster.instances.get(name, entry.instance))
        gone = machine is None or not machine.running or world.now - machine.started < KNOWN
        held = {
            "Gone": gone,
            "OutOfService": node is not None and node.ready != "True" and (node.deleting or bool(node.taints)),
            "NotReady": node is not None and node.ready != "True",
            "Drained": node is not None and node.unschedulable and self._drained(world, current, where, name),
            "NodeRemoved": node is None,
            "Misplaced": node is not None and self._misplaced(world, current, where, node, entry),
        }
        _check(
            held.get(move.cause, False), f"A2: {entry.address} leaves {move.from_} for {move.cause}, which is not so"
        )
        target = world.clusters[current.spec.cluster or LOCAL].nodes.get(move.to)
        fits = target is not None and target.ready == "True" and not target.unschedulable
        _check(fits, f"A2: {entry.address} leaves {move.from_} without a candidate ({move.to})")

    def _drained(self, world: World, current: NetIPAllocation, cluster: str, name: str) -> bool:
        if current.spec.workload_ref is None or name not in world.clusters[cluster].pods:
            return True
        return bool(current.spec.cordoned_hold)

    def _misplaced(self, world: World, current: NetIPAllocation, cluster: str, node: Node, entry: Entry) -> bool:
        if cluster != (current.spec.cluster or LOCAL):
            return True
        if any(node.labels.get(key) != value for key, value in (current.spec.node_selector or {}).items()):
            return True
        instance = world.clusters[cluster].instances[node.name]
        return any(holder == instance and address != entry.address for address, holder in world.cloud.holders.items())

    def _budget(self, world: World, current: NetIPAllocation, entry: Entry) -> None:
        if world.approvals:
            return
        pool = current.spec.cluster or LOCAL
        claimed = {
            address
            for found in world.objects.values()
            if (found.spec.cluster or LOCAL) == pool
            for address in found.spec.reserved_ips or ()
        }
        recent = [(at, moved) for at, moved in self._spent.get(pool, []) if world.now - at < 600.0 and moved in claimed]
        allowed = max(1, -(-len(claimed) // 2))
        _check(len(recent) < allowed, f"A8: {entry.address} is move {len(recent) + 1} of {allowed} in pool {pool}")
        self._spent[pool] = [*recent, (world.now, entry.address)]

    def forget_moves(self) -> None:
        """An allocation has lost its status, or part of it, and the moves in it with it: the budget begins anew."""
        self._spent.clear()

    # --- acts -------------------------------------------------------------------------------------------

    def acts(self, world: World, process: Process, act: Any) -> None:
        """An act begins now."""
        _check(process is world.leader, "A7: a process acts that does not lead")
        if isinstance(act, Label):
            self._label(world, act)
        elif isinstance(act, Detach | Attach | Restore):
            self._cloud(world, process, act)
        elif isinstance(act, Evict):
            node = world.clusters[act.node.cluster].nodes[act.node.name]
            _check(node.ready == "True", f"law 14: a Pod is evicted from {act.node}, which is not Ready")
            _check(LABEL_READY not in node.labels, f"law 14: a Pod is evicted from {act.node} before its label is off")

    def _cloud(self, world: World, process: Process, act: Detach | Attach | Restore) -> None:
        owners = [found for found in world.objects.values() if self._concerns(found, act.address)]
        _check(bool(owners), f"A3: {type(act).__name__} of {act.address}, which nobody claims")
        entries = [entry for found in owners for entry in (found.status.addresses if found.status else ())]
        record = next((entry for entry in entries if entry.address == act.address and entry.move is not None), None)
        _check(record is not None, f"A4: {type(act).__name__} of {act.address} without a record")
        assert record is not None
        move = record.move
        assert move is not None
        phases = {Detach: ("Detaching", "Releasing"), Attach: ("Attaching", "RollingBack")}
        if not isinstance(act, Restore):
            _check(move.phase in phases[type(act)], f"A4: {type(act).__name__} of {act.address} in phase {move.phase}")
        writers = {found.status.writer for found in owners if found.status and record in found.status.addresses}
        _check(process.name in writers, f"A4: {act.address}: the record is signed by {writers}")
        if isinstance(act, Detach):
            _check(isinstance(act.order.expected, Held), "A2: a detach expects something else than a holder")
            known = {name: where for where, cluster in world.clusters.items() for name in cluster.instances.values()}
            _check(
                act.order.instance in known or act.order.instance == record.instance,
                f"law 4: {act.address} is taken from the stranger {act.order.instance}",
            )
            for cluster in world.clusters.values():
                for name, instance in cluster.instances.items():
                    if instance == act.order.instance and name in cluster.nodes and cluster.synced:
                        labels = cluster.nodes[name].labels
                        _check(
                            LABEL_READY not in labels, f"law 7: {act.address} is detached before the label of {name}"
                        )

    def _concerns(self, found: NetIPAllocation, address: str) -> bool:
        listed = address in (found.spec.reserved_ips or ())
        stored = any(entry.address == address for entry in (found.status.addresses if found.status else ()))
        return listed or (stored and FINALIZER in (found.metadata.finalizers or ())) or stored

    def _label(self, world: World, act: Label) -> None:
        cluster = world.clusters[act.node.cluster]
        _check(cluster.synced, f"law 1: labels of {act.node} change while its cluster is not known")
        values = dict(act.changes)
        holders = {instance for instance in world.cloud.holders.values() if instance}
        instance = cluster.instances.get(act.node.name, "")
        if values.get(LABEL_READY) == "true" and not world.cloud.hidden:
            changing = any(not found.over for found in world.cloud.operations.values())
            _check(
                instance in holders or changing or self.moved_by_hand(world),
                f"A6: {act.node} gets the label without an address",
            )

    @staticmethod
    def moved_by_hand(world: World) -> bool:
        """Whether somebody changed a holder by hand a moment ago, so that the hub cannot know yet."""
        return world.now < getattr(world, "hand_until", 0.0)

    def effects(self, world: World, kind: str, act: Any, step: object) -> None:
        """A step took effect, or was refused."""

    # --- the end ----------------------------------------------------------------------------------------

    def quiet(self, world: World) -> None:
        """A5, A6: everything that can be attached is, and the labels are on the holders and nowhere else."""
        owners: dict[str, NetIPAllocation] = {}
        for found in sorted(world.objects.values(), key=_age):
            for address in (found.spec.reserved_ips or ()) if found.metadata.deletion_timestamp is None else ():
                owners.setdefault(address, found)
        taken = set(world.cloud.holders.values())
        for address, found in owners.items():
            if world.cloud.holders.get(address) != "":
                continue
            cluster = world.clusters[found.spec.cluster or LOCAL]
            spare = [
                name
                for name, node in cluster.nodes.items()
                if node.ready == "True"
                and not node.unschedulable
                and not node.deleting
                and cluster.instances[name] not in taken
                and _selected(found, node)
            ]
            _check(not spare, f"A5: {address} waits although {spare} could take it: {_statuses(world)}")
        claimed = owners.keys()
        for where, cluster in world.clusters.items():
            for name, node in cluster.nodes.items():
                instance = cluster.instances[name]
                has = {address for address, holder in world.cloud.holders.items() if holder == instance}
                label = node.labels.get(LABEL_READY) == "true"
                if claimed & has and node.ready == "True":
                    _check(label, f"A6: {where}/{name} has {has} and no label: {_statuses(world)}")
                elif not has and any(_selected(found, node) for found in world.objects.values()):
                    _check(not label, f"A6: {where}/{name} has the label and no address: {_statuses(world)}")


def _age(found: NetIPAllocation) -> tuple[str, str]:
    return found.metadata.creation_timestamp or "", found.metadata.uid


def _selected(found: NetIPAllocation, node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in (found.spec.node_selector or {}).items())


def _statuses(world: World) -> list[tuple[str, str, str, str, str]]:
    return [
        (entry.address, entry.state, entry.reason, entry.node, entry.message[:60])
        for found in world.objects.values()
        for entry in (found.status.addresses if found.status else ())
    ]


def _split(name: str, cluster: str) -> tuple[str, str]:
    where, slash, node = name.partition("/")
    return (where, node) if slash else (cluster, name)


def _check(holds: bool, complaint: str) -> None:
    if not holds:
        raise Complaint(complaint)
