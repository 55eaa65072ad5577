"""The judge of the model: complains about acts, records and end states that the laws of docs/allocations.md forbid.

A record and an act are judged by what their process was told before, not by what the planner made of it: the judge
keeps every answer that a process has seen. Invariants:

    A1 one address at one node, one address per node     A2 no detach without the evidence of laws 1 and 2
    A3 no write about an address that nobody claims       A4 each write after its record, on a fresh answer
    A5 at rest: all is attached, and nothing is written   A6 the label is on the holders, and nowhere else
    A7 no act without the Lease                           A8 the budget
    A9 nothing depends on order or restarts
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from hub.allocations.plan import plan
from hub.allocations.spec import LABEL_READY, Allocation, Entry, NetIPAllocation, Status, moment, stamp
from hub.allocations.view import (
    Act,
    Answer,
    Attach,
    Detach,
    Evict,
    Finalize,
    Follow,
    Inspection,
    Label,
    Machine,
    NodeKey,
    Plan,
    Restore,
    View,
)
from hub.cloud.addresses import Free, Gone, Held, Present, Unknown
from hub.model import LABEL_ZONE, LOCAL, Node

if TYPE_CHECKING:
    from tests.model.allocations.world import Process, World

PERIOD: Final = 30.0
"""Seconds between two descriptions of an account at rest: no allocation asks for less."""
FRESH: Final = 2 * PERIOD
"""Seconds that an answer may be used."""
LEAVING: Final = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")
SHUT_DOWN: Final = ("node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown")
TOLERANCE: Final = 1.01
"""Seconds by which a time in a status may be off, as it is written without fractions."""


class Complaint(AssertionError):
    """A law is broken; the text begins with the invariant."""


class Told:
    """What one process was told."""

    def __init__(self) -> None:
        self.answers: dict[str, deque[Answer]] = {}
        self.inspections: dict[str, deque[Inspection]] = {}
        self.since: dict[tuple[str, str], float] = {}
        """(address, condition) -> since when it holds throughout."""
        self.free: dict[str, tuple[float, float]] = {}
        """Address -> the first and the last of the present complete answers that say Free."""
        self._seen: tuple[object, object] = (None, None)

    def hear(self, view: View) -> None:
        """Note new answers."""
        if self._seen[0] is view.answers and self._seen[1] is view.inspections:
            return
        self._seen = view.answers, view.inspections
        for address, answer in view.answers.items():
            _append(self.answers, address, answer)
            if isinstance(answer.state, Free):
                self.free[address] = self.free.get(address, (answer.at, 0.0))[0], answer.at
            elif not isinstance(answer.state, Unknown):
                self.free.pop(address, None)
        for instance, inspection in view.inspections.items():
            _append(self.inspections, instance, inspection)

    def holding(self, now: float, address: str, conditions: Iterable[str]) -> None:
        """Note the conditions that hold for an address now; the others have ended."""
        held = set(conditions)
        for key in [key for key in self.since if key[0] == address and key[1] not in held]:
            del self.since[key]
        for condition in held:
            self.since.setdefault((address, condition), now)


def _append(kept: dict[str, deque[Any]], key: str, found: Any) -> None:
    line = kept.setdefault(key, deque(maxlen=4))
    if not line or line[-1].at != found.at:
        line.append(found)


class Spent(NamedTuple):
    """A move that counts against the budget."""

    at: float
    pool: str
    address: str


class Judge:
    """Judges one run.

    Attributes:
        writes: statuses and labels that were written.
        passes, moves: what has happened so far.
    """

    def __init__(self, *, compare: int = 200) -> None:
        self.writes = self.passes = self.moves = 0
        self.states: set[str] = set()
        self.causes: set[str] = set()
        self.phases: set[str] = set()
        self.told: dict[str, Told] = {}
        self.approved: dict[str, frozenset[str]] = {}
        """Approved hash -> the addresses that it is about."""
        self._compare = compare
        self._spent: list[Spent] = []
        self._attached: dict[str, int] = {}

    # --- plans ------------------------------------------------------------------------------------------

    def planned(self, world: World, process: Process, view: View, found: Plan) -> None:
        """A pass: its records have evidence, and it has at most one act for an address, a node or a workload."""
        told = self.told.setdefault(process.name, Told())
        told.hear(view)
        self._conditions(world.now, told, view)
        keys = [key for act in found.acts if (key := _key(act)) is not None]
        _check(len(keys) == len(set(keys)), f"A1: two acts for one of {keys}")
        self._records(world, told, view, found)
        self._attached = _attached(view)
        self.passes += 1
        if self.passes % self._compare == 0:
            other = plan(_shuffled(view), world.now)
            _check(found.statuses == other.statuses, "A9: the order of the view changes the statuses")
            _check(set(found.acts) == set(other.acts), "A9: the order of the view changes the acts")

    def _conditions(self, now: float, told: Told, view: View) -> None:
        """Note since when each reason to leave holds, as far as the process can know."""
        for allocation in view.allocations:
            for address, entry in allocation.entries.items():
                if not entry.node or view.holders.get(address) != allocation.uid:
                    continue
                cluster, name = _split(entry.node, allocation.cluster)
                site = view.sites.get(cluster)
                if site is None or site.problem:
                    told.holding(now, address, ())
                    continue
                told.holding(now, address, _reasons(view, allocation, address, NodeKey(cluster, name)))

    def _records(self, world: World, told: Told, view: View, found: Plan) -> None:
        """Judge each new record, and each record against the others."""
        targets: list[tuple[str, str]] = []
        for allocation in view.allocations:
            old = allocation.entries
            for entry in found.statuses[allocation.name].addresses:
                move = entry.move
                if move is None:
                    continue
                targets += [(allocation.cluster, move.to)] if move.to and move.phase != "Restoring" else []
                before = old[entry.address].move if entry.address in old else None
                if before is None or before.id != move.id:
                    self._begins(world, told, view, allocation, entry)
                elif before.to != move.to and move.phase == "Attaching":
                    self._target(world, told, view, allocation, entry)
        _check(len(targets) == len(set(targets)), f"A1: two records for one node of {targets}")

    def _begins(self, world: World, told: Told, view: View, allocation: Allocation, entry: Entry) -> None:
        move, address, now = entry.move, entry.address, world.now
        assert move is not None
        what = f"{address} begins {move.phase} for {move.cause} from {move.from_!r} to {move.to!r}"
        _check(not allocation.paused, f"A2: {what}, but the allocation is paused")
        _check(view.settled <= now and not view.account.frozen, f"A2: {what}, but nothing may begin now")
        if move.phase == "Releasing":
            _check(allocation.release, f"A2: {what}, but the policy is Retain")
            _check(
                allocation.deleting or address not in allocation.addresses, f"A2: {what}, but it is still in the spec"
            )
            _check(view.holders.get(address) in (None, "", allocation.uid), f"A2: {what}, but another one claims it")
            return
        _check(view.holders.get(address) == allocation.uid, f"A3: {what}, but the claim is not the oldest")
        last = _latest(told.answers.get(address), now)
        if move.cause == "Free":
            first, second = told.free.get(address, (0.0, 0.0))
            is_free = last is not None and isinstance(last.state, Free) and second - first > 1.999
            _check(is_free and not move.from_, f"A2: {what}, but it is not known to be free")
        else:
            _check(
                last is not None and isinstance(last.state, Held), f"A2: {what}, but it is not known to be held: {last}"
            )
            assert last is not None
            assert isinstance(last.state, Held)
            self._evidence(told, view, allocation, entry, last.state.instance, now, what)
        self._target(world, told, view, allocation, entry)

    def _evidence(
        self, told: Told, view: View, allocation: Allocation, entry: Entry, instance: str, now: float, what: str
    ) -> None:
        """Laws 1 and 2, and the table of causes."""
        move = entry.move
        assert move is not None
        cluster, name = _split(move.from_, allocation.cluster) if move.from_ else (allocation.cluster, "")
        site = view.sites.get(cluster)
        _check(site is not None and not site.problem, f"A2: {what}, but nothing is known of cluster {cluster}")
        assert site is not None
        machine = site.machines.get(name)
        stored = allocation.entries.get(entry.address, Entry(entry.address))
        expected = machine.instance if machine is not None else stored.instance
        _check(instance == expected, f"A2: {what}, but {instance} has it")

        def held_since(reason: str, seconds: float) -> bool:
            return now - told.since.get((entry.address, reason), now) >= seconds - TOLERANCE

        looks = [found.state for found in list(told.inspections.get(instance, ()))[-2:]]
        times = [found.at for found in list(told.inspections.get(instance, ()))[-2:]]
        match move.cause:
            case "Gone":
                stopped = [isinstance(state, Gone) or getattr(state, "running", True) is False for state in looks]
                twice = len(times) == 2 and times[1] - times[0] > 1.999 and now - times[1] <= FRESH
                ok = twice and all(stopped)
            case "OutOfService":
                ok = machine is not None and not _ready(machine) and _out_of_service(machine.node)
            case "NotReady":
                grace = allocation.not_ready_grace
                ok = machine is not None and not _ready(machine) and now - machine.unready_since > grace - 0.001
                ok = ok and (not _mostly_down(view, cluster) or self._is_approved(view, entry.address))
            case "Drained":
                ok = held_since("drained", 5.0) or held_since("cordoned", allocation.cordoned_hold + 5.0)
            case "NodeRemoved":
                ok = machine is None and held_since("removed", 60.0)
            case "Misplaced":
                ok = machine is not None and held_since("misplaced", 60.0)
            case _:
                ok = False
        _check(bool(ok), f"A2: {what}, which is not so: {machine}, {looks}, {told.since}")
        rest = {"Gone": 0.0, "Misplaced": view.limits.dwell}.get(move.cause, 30.0)
        last = max(_moments(stored.moves), default=0.0)
        _check(now - last >= rest - TOLERANCE, f"A2: {what} {now - last:.1f} s after its last move")
        recent = [at for at in _moments(stored.moves) if now - at < view.limits.per_address_window - TOLERANCE]
        flaps = move.cause == "NotReady" and len(recent) >= view.limits.per_address
        _check(not flaps or now - last >= 1800.0 - TOLERANCE, f"A2: {what}, but it moved {len(recent)} times before")

    def _target(self, world: World, told: Told, view: View, allocation: Allocation, entry: Entry) -> None:
        """The node that an address is about to get is a candidate, as far as the process can know."""
        move, now = entry.move, world.now
        assert move is not None
        site = view.sites[allocation.cluster]
        machine = site.machines.get(move.to)
        what = f"{entry.address} goes to {move.to!r}"
        _check(machine is not None and not site.problem, f"A2: {what}, which is not known")
        assert machine is not None
        _check(_fit(machine.node, allocation) and machine.instance is not None, f"A2: {what}, which does not fit")
        _check(machine.ready_since > 0 and now - machine.ready_since > 9.999, f"A2: {what}, which is Ready too short")
        looks = told.inspections.get(machine.instance or "")
        look = looks[-1] if looks else None
        room = look is not None and isinstance(look.state, Present) and look.state.running and look.state.room
        if (move.attempts == 1 and move.phase == "Detaching") or not move.from_:
            _check(room and look is not None and now - look.at <= FRESH, f"A2: {what}, but its room is not known")
        held = {
            answer.state.instance
            for address, answer in view.answers.items()
            if address != entry.address and now - answer.at <= FRESH and isinstance(answer.state, Held)
        }
        _check(machine.instance not in held, f"A1: {what}, which has an address")

    # --- what is stored -----------------------------------------------------------------------------------

    def stores(self, world: World, process: Process, current: NetIPAllocation, status: Status) -> None:
        """A8: a status is stored; count the moves that begin."""
        old = {entry.address: entry for entry in (current.status.addresses if current.status else ())}
        pool = current.spec.cluster or LOCAL
        for entry in status.addresses:
            self.states.add(entry.state)
            if entry.move is not None:
                self.causes.add(entry.move.cause)
                self.phases.add(entry.move.phase)
            move, before = entry.move, old.get(entry.address, Entry(entry.address)).move
            if move is None or move.phase != "Detaching" or (before is not None and before.id == move.id):
                continue
            self.moves += 1
            now = world.now
            self._spent = [spent for spent in self._spent if now - spent.at < world.limits.window - TOLERANCE]
            # A move whose status was lost may begin again in the same second, and is told of once.
            told = {(s.address, stamp(s.at)) for s in self._spent if s.pool == pool and _remembered(world, s)}
            count = len(told)
            attached = self._attached.get(pool, 0)
            allowed = max(1, math.ceil(world.limits.moves * attached))
            approved = any(entry.address in addresses for addresses in self.approved.values())
            _check(
                count < allowed or approved,
                f"A8: {entry.address} is move {count + 1} of {allowed} (of {attached}) in pool {pool}",
            )
            self._spent.append(Spent(now, pool, entry.address))

    def approve(self, found: Plan) -> frozenset[str]:
        """Approve all that a plan withholds; returns the hashes."""
        hashes: dict[str, set[str]] = {}
        for verdict in found.verdicts.values():
            if verdict.hash:
                hashes.setdefault(verdict.hash, set()).add(verdict.address)
        self.approved.update({hash_: frozenset(addresses) for hash_, addresses in hashes.items()})
        return frozenset(hashes)

    def _is_approved(self, view: View, address: str) -> bool:
        return any(address in addresses for hash_, addresses in self.approved.items() if hash_ in view.approvals)

    # --- acts -------------------------------------------------------------------------------------------

    def acts(self, world: World, process: Process, view: View, act: Act) -> None:
        """An act begins now."""
        _check(process is world.leader, "A7: a process acts that does not lead")
        if isinstance(act, Label):
            self._label(world, process, view, act)
        elif isinstance(act, Evict):
            self._evict(view, act)
        elif isinstance(act, Detach | Attach | Restore):
            self._cloud(world, process, view, act)

    def _cloud(self, world: World, process: Process, view: View, act: Detach | Attach | Restore) -> None:
        address, order = act.address, act.order
        kind = f"{type(act).__name__} of {address} for {order.instance}"
        owners = [found for found in world.objects.values() if _mentions(found, address)]
        _check(bool(owners), f"A3: {kind}, which nobody claims")
        records = [
            (found, entry)
            for found in owners
            for entry in (found.status.addresses if found.status else ())
            if entry.address == address and entry.move is not None
        ]
        _check(len(records) == 1, f"A4: {kind} with {len(records)} records")
        found, entry = records[0]
        move = entry.move
        assert move is not None
        assert found.status is not None
        _check(found.status.writer == process.name, f"A4: {kind}: the record is signed by {found.status.writer}")
        phases = {Detach: ("Detaching", "Releasing"), Attach: ("Attaching", "RollingBack")}
        _check(move.phase in phases.get(type(act), (move.phase,)), f"A4: {kind} in phase {move.phase}")
        named = {entry.instance} | {
            machine.instance
            for name in (move.from_, move.to)
            if name
            for cluster, node in [_split(name, found.status.cluster or LOCAL)]
            if (machine := view.sites[cluster].machines.get(node)) is not None
        }
        _check(order.instance in named, f"A4: {kind}, which the record does not name: {move}")
        _check(not view.account.frozen and view.account.quota_until <= world.now, f"A4: {kind}, but acts must wait")
        if isinstance(act, Restore):
            return
        answer = view.answers.get(address)
        _check(answer is not None and world.now - answer.at <= FRESH, f"A4: {kind} without a fresh answer: {answer}")
        assert answer is not None
        _check(order.expected == answer.state, f"A4: {kind} expects {order.expected}, but was told {answer.state}")
        outcome = view.outcomes.get(address)
        _check(outcome is None or answer.at >= outcome.at, f"A4: {kind} before the last act was described")
        if isinstance(act, Detach):
            self._detach(world, view, order.instance, kind, answer)
        else:
            _check(isinstance(answer.state, Free), f"A1: {kind}, but it is {answer.state}")
            held = [
                other
                for other, at in view.answers.items()
                if other != address and isinstance(at.state, Held) and at.state.instance == order.instance
            ]
            _check(not held, f"A1: {kind}, which has {held}")

    def _detach(self, world: World, view: View, instance: str, kind: str, answer: Answer) -> None:
        _check(isinstance(answer.state, Held) and answer.state.instance == instance, f"A2: {kind}: {answer.state}")
        for cluster, site in view.sites.items():
            for name, machine in site.machines.items():
                if machine.instance == instance:
                    _check(not site.problem, f"A2: {kind}, but nothing is known of cluster {cluster}")
                    _check(LABEL_READY not in machine.node.labels, f"A4: {kind} before the label of {name} is off")

    def _label(self, world: World, process: Process, view: View, act: Label) -> None:
        site = view.sites[act.node.cluster]
        _check(not site.problem, f"A2: labels of {act.node} change while its cluster is not known")
        machine = site.machines[act.node.name]
        changes = dict(act.changes)
        told = self.told[process.name]
        if changes.get(LABEL_READY) == "true":
            has = [
                address
                for address, answer in view.answers.items()
                if isinstance(answer.state, Held)
                and answer.state.instance == machine.instance
                and world.now - answer.at <= FRESH
                and view.holders.get(address)
            ]
            _check(bool(has) and _ready(machine), f"A6: {act.node} gets the label without an address")
        elif LABEL_READY in changes:
            self._unlabel(world, told, view, act.node, machine)

    def _unlabel(self, world: World, told: Told, view: View, key: NodeKey, machine: Machine) -> None:
        """The label goes only for a record, for an entry that left its allocation, or with proof."""
        for allocation in view.allocations:
            for address, entry in allocation.entries.items():
                where = {_split(name, allocation.cluster) for name in _from(entry)}
                if (key.cluster, key.name) not in where:
                    continue
                live = address in allocation.addresses and not allocation.deleting
                if not live or (entry.move is not None and entry.move.phase != "RollingBack"):
                    return
        for address in {address for value in view.allocations if not value.deleting for address in value.addresses}:
            answers = list(told.answers.get(address, ()))[-2:]
            unknown = not answers or isinstance(answers[-1].state, Unknown) or world.now - answers[-1].at > FRESH
            _check(not unknown, f"A2: the label of {key} goes, but {address} is not known")
            had = [isinstance(found.state, Held) and found.state.instance == machine.instance for found in answers]
            _check(not any(had), f"A6: the label of {key} goes, but {address} was there: {answers}")

    def _evict(self, view: View, act: Evict) -> None:
        """Law 14."""
        machine = view.sites[act.node.cluster].machines.get(act.node.name)
        _check(machine is not None and _ready(machine), f"A2: a Pod is evicted from {act.node}, which is not Ready")
        assert machine is not None
        _check(LABEL_READY not in machine.node.labels, f"A2: a Pod is evicted from {act.node} before its label is off")
        held = [
            at for at in view.answers.values() if isinstance(at.state, Held) and at.state.instance == machine.instance
        ]
        _check(not held, f"A2: a Pod is evicted from {act.node}, which has an address")

    # --- the end ----------------------------------------------------------------------------------------

    def quiet(self, world: World) -> None:
        """A5, A6: everything that can be attached is, the labels are on the holders, and the status tells the truth."""
        owners = _owners(world)
        for address, found in owners.items():
            self._placed(world, address, found)
        for where, cluster in world.clusters.items():
            for name, node in cluster.nodes.items():
                instance = cluster.instances[name]
                has = {address for address, holder in world.cloud.holders.items() if holder == instance}
                label = node.labels.get(LABEL_READY) == "true"
                if owners.keys() & has and node.ready == "True":
                    _check(label, f"A6: {where}/{name} has {has} and no label: {_statuses(world)}")
                elif not has and owners and any(_selects(found, node) for found in world.objects.values()):
                    _check(not label, f"A6: {where}/{name} has the label and no address: {_statuses(world)}")

    def _placed(self, world: World, address: str, found: NetIPAllocation) -> None:
        """An address that waits, or is on a node that it should leave, has no node to go to."""
        pool = found.spec.cluster or LOCAL
        cluster = world.clusters[pool]
        holder = world.cloud.holders.get(address)
        if holder is None or holder.startswith("!") or "pause" in str(found.metadata.annotations):
            return
        held_by = [
            (where, name)
            for where, other in world.clusters.items()
            for name, instance in other.instances.items()
            if instance == holder
        ]
        entry = _stored(world, address, found.metadata.uid)
        where, name = held_by[0] if held_by else ("", "")
        node = world.clusters[where].nodes.get(name) if where else None
        if holder:
            known = node is not None or entry.instance == holder
            truth = name if where == pool else f"{where}/{name}"
            _check(
                not known or node is None or entry.node == truth,
                f"A5: {address} is at {truth}, the status says {entry}: {_statuses(world)}",
            )
            if not known:
                return
        stays = node is not None and where == pool and _serves(cluster.pods.get(name), found, node)
        second = any(
            other != address and at == holder and other in _owners(world) and _older(world, other, address)
            for other, at in world.cloud.holders.items()
            if holder
        )
        if holder and stays and not second:
            return
        taken = set(world.cloud.holders.values())
        spare = [
            other
            for other, at in cluster.nodes.items()
            if _fit_object(found, at)
            and cluster.instances[other] not in taken
            and world.cloud.machines[cluster.instances[other]].running
        ]
        _check(not spare, f"A5: {address} (at {holder!r}) could go to {spare}: {_statuses(world)}")

    def settled(self, world: World, view: View) -> None:
        """A5, A9: at rest, the plan is empty."""
        found = plan(view, world.now)
        _check(found.acts == (), f"A5: at rest, the plan has acts: {found.acts}")
        changed = [
            allocation.name for allocation in view.allocations if found.statuses[allocation.name] != allocation.status
        ]
        _check(not changed, f"A5: at rest, the plan changes the status of {changed}")


# --- readings of the laws -------------------------------------------------------------------------------


def _reasons(view: View, allocation: Allocation, address: str, key: NodeKey) -> Iterator[str]:
    """The reasons to leave a node that hold now, other than those that a Node states with a time."""
    machine = view.sites[key.cluster].machines.get(key.name)
    if machine is None:
        yield "removed"
        return
    node = machine.node
    if node.unschedulable or any(taint.key in LEAVING for taint in node.taints):
        yield "cordoned"
        pods = view.pods.get((key, allocation.workload)) if allocation.workload is not None else None
        if allocation.workload is None or (pods is not None and not pods.workload):
            yield "drained"
    elsewhere = key.cluster != allocation.cluster or not _selected(node, allocation)
    others = [
        other
        for other, answer in view.answers.items()
        if other != address and isinstance(answer.state, Held) and answer.state.instance == machine.instance
    ]
    if elsewhere or others:
        yield "misplaced"


def _mostly_down(view: View, cluster: str) -> bool:
    machines = view.sites[cluster].machines.values()
    down = sum(not _ready(machine) for machine in machines)
    return down >= 2 and down > view.limits.max_not_ready * len(machines)


def _ready(machine: Machine) -> bool:
    return machine.node.ready == "True"


def _out_of_service(node: Node) -> bool:
    return node.deleting or any(taint.key in SHUT_DOWN for taint in node.taints)


def _selected(node: Node, allocation: Allocation) -> bool:
    zones = allocation.zones
    return all(node.labels.get(key) == value for key, value in allocation.selector) and (
        not zones or node.labels.get(LABEL_ZONE) in zones
    )


def _healthy(node: Node) -> bool:
    return (
        node.ready == "True"
        and not node.unschedulable
        and not node.deleting
        and not any(taint.key in LEAVING + SHUT_DOWN for taint in node.taints)
    )


def _fit(node: Node, allocation: Allocation) -> bool:
    return _healthy(node) and _selected(node, allocation)


def _selects(found: NetIPAllocation, node: Node) -> bool:
    zones = found.spec.cloud.zones
    return all(node.labels.get(key) == value for key, value in (found.spec.node_selector or {}).items()) and (
        not zones or node.labels.get(LABEL_ZONE) in zones
    )


def _fit_object(found: NetIPAllocation, node: Node) -> bool:
    return _healthy(node) and _selects(found, node)


def _serves(pod: object, found: NetIPAllocation, node: Node) -> bool:
    """Whether a node of the right cluster keeps its address at rest."""
    if not _selects(found, node) or node.ready != "True":
        return False
    leaves = node.unschedulable or any(taint.key in LEAVING for taint in node.taints)
    return not leaves or (pod is not None and found.spec.workload_ref is not None and not found.spec.cordoned_hold)


# --- readings of the world -------------------------------------------------------------------------------


def _owners(world: World) -> dict[str, NetIPAllocation]:
    owners: dict[str, NetIPAllocation] = {}
    for found in sorted(world.objects.values(), key=_age):
        for address in (found.spec.reserved_ips or ()) if found.metadata.deletion_timestamp is None else ():
            owners.setdefault(address, found)
    return owners


def _older(world: World, one: str, other: str) -> bool:
    """Whether the claim to the first address is older, or comes earlier in the same list."""
    owners = _owners(world)
    places = [
        (_age(owners[address]), (owners[address].spec.reserved_ips or ()).index(address)) for address in (one, other)
    ]
    return places[0] < places[1]


def _stored(world: World, address: str, uid: str = "") -> Entry:
    """The stored entry of an address: that of its owner, or the one with most moves."""
    found = [
        entry
        for allocation in world.objects.values()
        if not uid or allocation.metadata.uid == uid
        for entry in (allocation.status.addresses if allocation.status else ())
        if entry.address == address
    ]
    return max(found, key=lambda entry: len(entry.moves), default=Entry(address))


def _attached(view: View) -> dict[str, int]:
    """Pool -> how many of its addresses are at a node, or on their way from one."""
    instances = {machine.instance for site in view.sites.values() for machine in site.machines.values()}
    counts: dict[str, int] = {}
    for allocation in view.allocations:
        entries = allocation.entries
        for address in allocation.addresses:
            answer = view.answers.get(address)
            held = answer is not None and isinstance(answer.state, Held) and answer.state.instance in instances
            entry = entries.get(address, Entry(address))
            moving = entry.move is not None and bool(entry.move.from_)
            if view.holders.get(address) == allocation.uid and (held or moving or entry.node):
                counts[allocation.cluster] = counts.get(allocation.cluster, 0) + 1
    return counts


def _remembered(world: World, spent: Spent) -> bool:
    """Whether a status still tells of a move: what somebody has deleted counts no more."""
    return any(
        stamp(spent.at) in entry.moves
        for found in world.objects.values()
        if (found.spec.cluster or LOCAL) == spent.pool
        for entry in (found.status.addresses if found.status else ())
        if entry.address == spent.address
    )


def _mentions(found: NetIPAllocation, address: str) -> bool:
    listed = address in (found.spec.reserved_ips or ())
    return listed or any(entry.address == address for entry in (found.status.addresses if found.status else ()))


def _age(found: NetIPAllocation) -> tuple[str, str]:
    return found.metadata.creation_timestamp or "", found.metadata.uid


def _statuses(world: World) -> list[tuple[str, ...]]:
    return [
        (name, entry.address, entry.state, entry.reason, entry.node, entry.message[:80])
        for name, found in world.objects.items()
        for entry in (found.status.addresses if found.status else ())
    ]


def _split(name: str, cluster: str) -> tuple[str, str]:
    where, slash, node = name.partition("/")
    return (where, node) if slash else (cluster, name)


def _from(entry: Entry) -> set[str]:
    return {entry.node, entry.move.from_ if entry.move is not None else ""} - {""}


def _moments(texts: Iterable[str]) -> list[float]:
    return [moment(text) for text in texts]


def _latest(answers: deque[Answer] | None, now: float) -> Answer | None:
    return answers[-1] if answers and now - answers[-1].at <= FRESH else None


def _key(act: Act) -> object:
    match act:
        case Detach(address) | Attach(address) | Restore(address) | Follow(address):
            return address
        case Label(node):
            return node
        case Evict(workload=workload):
            return workload
        case Finalize(name):
            return f"finalizer of {name}"


def _shuffled(view: View) -> View:
    return replace(
        view,
        allocations=tuple(reversed(view.allocations)),
        answers=dict(reversed(list(view.answers.items()))),
        inspections=dict(reversed(list(view.inspections.items()))),
        sites={
            name: replace(site, machines=dict(reversed(list(site.machines.items()))))
            for name, site in reversed(list(view.sites.items()))
        },
    )


def _check(holds: bool, complaint: str) -> None:
    if not holds:
        raise Complaint(complaint)
