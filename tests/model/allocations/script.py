"""Random scripts for the world, and their execution: each step is a plain value, so that a script can be shrunk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from hub.allocations.spec import LABEL_READY
from hub.model import ANNOTATION_PAUSED, LOCAL, Taint
from hub.registry.spec import AllocationLimits
from tests.model.allocations.judge import LEAVING, PERIOD, SHUT_DOWN, Complaint, Judge
from tests.model.allocations.world import WORKLOAD, World, stamp

QUIET: Final = 4000.0
"""Seconds after a script until everything must be in place at the latest: longer than all waits and budgets."""
AVOIDED: Final = 600.0
"""Seconds in which a node is avoided that has refused an address."""
CALM: Final = 180.0
"""Seconds in which nothing may be written any more: longer than two descriptions."""
STEPS: Final = 200


class Step(NamedTuple):
    """Something that happens after some seconds; ``where`` chooses among nodes, addresses or allocations."""

    after: float
    what: str
    where: int


KINDS: Final[dict[str, int]] = {
    "nothing": 16,
    "cordon": 8,
    "uncordon": 8,
    "chase": 5,
    "fail": 7,
    "recover": 9,
    "join": 6,
    "leave": 3,
    "remove-node": 2,
    "vm-stops": 2,
    "vm-starts": 3,
    "recreate": 1,
    "pod": 3,
    "no-pod": 6,
    "label-by-hand": 2,
    "unlabel-by-hand": 2,
    "move-by-hand": 2,
    "stranger": 1,
    "free-by-hand": 1,
    "stranger-leaves": 4,
    "hide": 1,
    "show": 3,
    "cloud-down": 1,
    "cloud-up": 5,
    "slow": 2,
    "fast": 2,
    "ill": 1,
    "well": 4,
    "lossy": 1,
    "reliable": 2,
    "read-only": 1,
    "writable": 4,
    "refuses": 1,
    "takes": 4,
    "unsynced": 1,
    "synced": 5,
    "quota": 1,
    "no-quota": 4,
    "denied": 1,
    "admitted": 6,
    "late": 1,
    "punctual": 2,
    "pause": 1,
    "resume": 5,
    "taint": 1,
    "untaint": 4,
    "races": 1,
    "no-races": 3,
    "unlisted": 1,
    "listed": 3,
    "freeze": 2,
    "kill": 3,
    "restart": 2,
    "create": 2,
    "delete": 1,
    "drop-entry": 1,
    "add-entry": 2,
    "selector": 1,
    "no-selector": 3,
    "policy": 1,
    "status-lost": 1,
    "approve": 1,
    "move-cluster": 1,
    "delete-node-soon": 1,
}


def script(seed: int, steps: int = STEPS) -> list[Step]:
    """The random script of a seed."""
    rng = random.Random(seed)
    kinds, weights = list(KINDS), list(KINDS.values())
    return [
        Step(rng.choice((0.1, 0.5, 1, 2, 3, 5, 8, 13, 20, 40)), rng.choices(kinds, weights)[0], rng.randrange(1000))
        for _ in range(steps)
    ]


class Run:
    """Plays a script."""

    def __init__(self, seed: int, judge: Judge | None = None, *, calm: bool = False) -> None:
        self.judge = judge or Judge()
        self.rng = random.Random(seed * 7919 + 1)
        self.calm = calm
        """Whether nothing happens to the hub's own processes."""
        self.world = World(self.rng, self.judge, clusters=2 if seed % 3 == 0 else 1)
        self._nodes = 0
        world = self.world
        world.start(settle=False)
        world.cloud.replays = seed % 5 == 0
        if seed % 2:
            world.limits = AllocationLimits(moves=1.0, window=60.0, dwell=60.0)
        for cluster in world.clusters:
            for _ in range(5):
                self._join(cluster)
        workload = WORKLOAD if seed % 2 else None
        world.allocate("a", ("198.18.0.1", "198.18.0.2"), workload_ref=workload, eviction="Evict")
        world.now += 5
        second = "eu" if len(world.clusters) > 1 else LOCAL
        world.allocate("b", ("198.18.0.3", "198.18.0.2"), cluster="" if second == LOCAL else second)

    def play(self, steps: Sequence[Step]) -> None:
        """Play the steps, then let everything heal and judge the end.

        Raises:
            Complaint: a law is broken.
        """
        for step in steps:
            self.world.advance(step.after)
            self.happen(step.what, step.where)
        self.heal()
        self.come_to_rest()
        world = self.world
        before = self.judge.writes, len(world.cloud.writes)
        asked, process = self._described(), world.leader
        world.advance(CALM)
        after = self.judge.writes, len(world.cloud.writes)
        if before != after:
            raise Complaint(f"A5: at rest, the hub still writes: {before} -> {after}")
        if process is world.leader and self._described() - asked > CALM / PERIOD + 2:
            raise Complaint(f"A5: at rest, the cloud is asked {self._described() - asked} times in {CALM:g} s")
        self.judge.quiet(world)
        assert world.leader is not None
        self.judge.settled(world, world.view(world.leader))

    def come_to_rest(self) -> None:
        """Let time pass until everything is in place.

        Raises:
            Complaint: it is not after :data:`QUIET`.
        """
        ends = self.world.now + QUIET
        self.world.advance(AVOIDED)
        while True:
            before = self.judge.writes, len(self.world.cloud.writes)
            self.world.advance(CALM)
            try:
                self.judge.quiet(self.world)
            except Complaint:
                if self.world.now >= ends:
                    raise
                continue
            if before == (self.judge.writes, len(self.world.cloud.writes)) or self.world.now >= ends:
                return

    def _described(self) -> int:
        return self.world.leader.describes if self.world.leader is not None else 0

    def heal(self) -> None:
        """End everything that keeps the hub from working."""
        world, cloud = self.world, self.world.cloud
        cloud.down = cloud.ill = cloud.read_only = cloud.denied = cloud.quota = False
        cloud.hidden.clear()
        cloud.length = world.lose_answer = world.late = world.races = 0.0
        world.pods_listed = True
        for operation in cloud.operations.values():
            operation.ends = min(operation.ends, world.now)
        for machine in cloud.machines.values():
            machine.takes = machine.running = True
        for name, cluster in world.clusters.items():
            world.sync(name, synced=True)
            for node in list(cluster.nodes):
                world.edit(name, node, ready="True", deleting=False, taints=())
        for name in world.objects:
            self._pause(name, paused=False)
        if world.leader is None:
            world.start(settle=False)
        world.changed()

    def _pause(self, name: str, *, paused: bool) -> None:
        found = self.world.objects.get(name)
        if found is not None:
            annotations = {ANNOTATION_PAUSED: "test"} if paused else None
            self.world.put(name, replace(found, metadata=replace(found.metadata, annotations=annotations)))
            self.world.changed()

    def _join(self, cluster: str) -> None:
        self._nodes += 1
        self.world.add_node(cluster, f"n{self._nodes}", labels={"pool": "ingress"})

    # --- choices ----------------------------------------------------------------------------------------

    def _node(self, where: int) -> tuple[str, str]:
        nodes = [(name, node) for name, cluster in self.world.clusters.items() for node in sorted(cluster.nodes)]
        held = set(self.world.cloud.holders.values())
        holders = [(name, node) for name, node in nodes if self.world.clusters[name].instances[node] in held]
        if where % 2 and holders:  # what happens to them matters more
            nodes = holders
        return nodes[where % len(nodes)] if nodes else (LOCAL, "")

    def _target(self, where: int) -> tuple[str, str]:
        """A node that an address is going to, or has just come to."""
        moves = [
            (max(entry.moves, default=""), found.spec.cluster or LOCAL, entry.move.to if entry.move else entry.node)
            for found in self.world.objects.values()
            for entry in (found.status.addresses if found.status else ())
        ]
        at, cluster, node = max(moves, default=("", LOCAL, ""))
        return (cluster, node) if at else self._node(where)

    def _address(self, where: int) -> str:
        addresses = sorted(self.world.cloud.holders)
        return addresses[where % len(addresses)]

    def _allocation(self, where: int) -> str:
        names = sorted(self.world.objects)
        return names[where % len(names)] if names else ""

    def happen(self, what: str, where: int) -> None:  # noqa: C901 - one line for each kind
        """Let one thing happen."""
        world, cloud = self.world, self.world.cloud
        cluster, node = self._node(where)
        inside = world.clusters[cluster]
        instance = inside.instances.get(node, "")
        machine = cloud.machines.get(instance)
        address = self._address(where)
        match what:
            case "cordon" | "uncordon":
                world.edit(cluster, node, unschedulable=what == "cordon")
            case "chase":
                cluster, node = self._target(where)
                changes = ({"unschedulable": True}, {"ready": "Unknown"}, {"ready": "Unknown", "deleting": True})
                world.edit(cluster, node, **changes[where % 3])
            case "fail" | "recover":
                world.edit(cluster, node, ready="True" if what == "recover" else "Unknown")
            case "join":
                if len(inside.nodes) < 6:
                    self._join(cluster)
            case "leave" | "remove-node" | "recreate":
                if len(inside.nodes) > 2 and node:
                    old = world.remove_node(cluster, node)
                    if what != "remove-node":
                        cloud.machines.pop(instance, None)
                        for held, holder in cloud.holders.items():
                            if holder == instance:
                                cloud.holders[held] = ""
                    if what == "recreate":
                        labels = {key: value for key, value in old.labels.items() if key != LABEL_READY}
                        world.add_node(cluster, node, labels=labels)
            case "vm-stops" | "vm-starts":
                if machine is not None:
                    machine.running = what == "vm-starts"
                    world.edit(cluster, node, ready="True" if machine.running else "Unknown")
            case "pod" | "no-pod":
                inside.pods.pop(node, None)
                if what == "pod" and node:
                    inside.pods[node] = _pod(world, node)
                world.changed()
            case "label-by-hand" | "unlabel-by-hand":
                labels = dict(inside.nodes[node].labels) if node else {}
                labels.pop(LABEL_READY, None)
                world.edit(cluster, node, labels={**labels, **({LABEL_READY: "true"} if what[0] == "l" else {})})
            case "move-by-hand":
                if (
                    instance
                    and machine is not None
                    and not cloud.changing(address)
                    and instance not in cloud.holders.values()
                ):
                    cloud.holders[address] = instance
            case "stranger" | "free-by-hand" | "stranger-leaves":
                ours = not cloud.holders[address].startswith("!")
                if not cloud.changing(address) and ours == (what != "stranger-leaves"):
                    cloud.holders[address] = "!lb" if what == "stranger" else ""
            case "hide":
                cloud.hidden.add(address)
            case "show":
                cloud.hidden.clear()
            case "cloud-down" | "cloud-up":
                cloud.down = what == "cloud-down"
            case "slow" | "fast":
                cloud.length = 0.0 if what == "fast" else (2.0, 7.0, 30.0)[where % 3]
            case "ill" | "well":
                cloud.ill = what == "ill"
            case "lossy" | "reliable":
                world.lose_answer = 0.5 if what == "lossy" else 0.0
            case "read-only" | "writable":
                cloud.read_only = what == "read-only"
            case "refuses" | "takes":
                if machine is not None:
                    machine.takes = what == "takes"
            case "unsynced" | "synced":
                world.sync(cluster, synced=what == "synced")
            case "quota" | "no-quota":
                cloud.quota = what == "quota"
            case "denied" | "admitted":
                cloud.denied = what == "denied"
                world.changed()
            case "late" | "punctual":
                world.late = 0.3 if what == "late" else 0.0
            case "pause" | "resume":
                self._pause(self._allocation(where), paused=what == "pause")
            case "taint" | "untaint":
                keys = (*LEAVING, *SHUT_DOWN)
                world.edit(
                    cluster, node, taints=(Taint(keys[where % len(keys)], "NoSchedule"),) if what == "taint" else ()
                )
            case "races" | "no-races":
                world.races = 0.3 if what == "races" else 0.0
            case "unlisted" | "listed":
                world.pods_listed = what == "listed"
                world.changed()
            case "freeze" if not self.calm:
                world.freeze()
            case "kill" | "restart" if not self.calm:
                world.kill()
                world.start(settle=what == "kill")
            case "create":
                name = "cde"[where % 3]
                if name not in world.objects:
                    address = f"198.18.0.{4 + where % 3}"
                    world.allocate(name, (address, "198.18.0.1"), release_policy="Detach" if where % 2 else "")
            case "delete":
                world.delete(self._allocation(where))
            case "drop-entry" | "add-entry":
                name = self._allocation(where)
                listed = tuple((world.objects[name].spec.reserved_ips or ()) if name else ())
                more = tuple(dict.fromkeys((*listed, address)))
                world.respec(name, reserved_ips=listed[1:] if what == "drop-entry" else more[:3])
            case "selector" | "no-selector":
                selector = {"pool": ("ingress", "other")[where % 2]} if what == "selector" else None
                world.respec(self._allocation(where), node_selector=selector)
            case "policy":
                world.respec(self._allocation(where), release_policy=("Detach", "Retain")[where % 2])
            case "status-lost":
                name = self._allocation(where)
                if name:
                    world.put(name, replace(world.objects[name], status=None))
                    world.changed()
            case "approve":
                last = world.leader.last if world.leader is not None else None
                world.approvals |= self.judge.approve(last) if last is not None else set()
                world.changed()
            case "move-cluster":
                if len(world.clusters) > 1:
                    world.respec(self._allocation(where), cluster=("", "eu")[where % 2])
            case "delete-node-soon":
                world.edit(cluster, node, deleting=True, ready="Unknown")
            case _:
                pass


def _pod(world: World, node: str) -> Any:
    from hub.allocations.view import Pod

    return Pod("default", f"web-{node}", f"pod-{world.now}", created=stamp(world.now))


def attempt(seed: int, steps: Sequence[Step]) -> str:
    """The complaint about a script; "" if there is none."""
    try:
        Run(seed).play(steps)
    except AssertionError as complaint:
        return str(complaint) or repr(complaint)
    return ""


def readable(seed: int, steps: Sequence[Step]) -> str:
    """A script as a person reads it, and as it can be pasted into a test."""
    run, lines = Run(seed), []
    for step in steps:
        cluster, node = run._node(step.where)
        where = f"node {cluster}/{node}, address {run._address(step.where)}, allocation {run._allocation(step.where)}"
        lines.append(f"    Step{tuple(step)},  # {where}")
        try:
            run.world.advance(step.after)
            run.happen(step.what, step.where)
        except AssertionError as complaint:
            lines.append(f"    # {complaint}")
            break
    return "\n".join(["[", *lines, "]"])


def shrunk(seed: int, steps: Sequence[Step]) -> list[Step]:
    """A shorter script with a complaint of the same invariant."""
    law = attempt(seed, steps).partition(":")[0]
    found = list(steps)
    size = max(1, len(found) // 2)
    while size:
        at = 0
        while at < len(found):
            fewer = found[:at] + found[at + size :]
            if attempt(seed, fewer).partition(":")[0] == law:
                found = fewer
            else:
                at += size
        size //= 2
    return found
