"""The state of an address about which something may be done, and the move that it wants."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hub.allocations import machine
from hub.allocations.causes import TWICE, Leave, leave, order
from hub.allocations.observe import releases, stay
from hub.allocations.scene import INSPECTION_VALID, LET_GO, Scene, Situation, held_for, name_of
from hub.allocations.serve import Want, acts
from hub.allocations.spec import NEVER
from hub.allocations.view import NodeKey
from hub.cloud.addresses import Changing, Elsewhere, Free, Held, NotReserved

WAITING: Final = 600.0
"""Seconds after which an operator is told that an address waits, or that a drain is blocked."""
HALF: Final = 0.5


def decide(scene: Scene, situation: Situation, place: int) -> list[Want]:
    """Follow a record, or set the state of an address without one; returns the move that it wants."""
    if situation.move is not None:
        machine.follow(scene, situation)
        if not situation.dropped or situation.state == "Pending":
            return []
    if not situation.claimed:
        _leave_allocation(scene, situation)
        return []
    assert situation.answer is not None  # noqa: S101 - _hold() has returned False
    state = situation.answer.state
    match state:
        case NotReserved(reason):
            situation.node = situation.instance = ""
            stay(situation, "Invalid", "NotReserved", reason)
        case Elsewhere(what):
            _elsewhere(scene, situation, what)
        case Changing():
            situation.set("Unknown", "Changing", "the cloud is changing it")
            scene.refresh(situation.address, again=machine.CHANGING_AGAIN)
        case Free():
            return _free(scene, situation, place)
        case Held(instance):
            return _held_by(scene, situation, instance, place)
    return []


def _held_by(scene: Scene, situation: Situation, instance: str, place: int) -> list[Want]:
    """An address on an instance: of a node of ours, of a node that is gone, or a stranger's."""
    if situation.holder is not None:
        return _held(scene, situation, instance, place)
    problems = [site.problem for site in scene.view.sites.values() if site.problem]
    if problems:  # the node may be one of theirs
        situation.set("Unknown", "ClusterUnknown", problems[0])
    elif instance == situation.stored.instance and situation.stored.node:
        return _held(scene, situation, instance, place)
    else:
        clusters = ", ".join(scene.account.clusters)
        _elsewhere(scene, situation, f"instance {instance}, which is no node of {clusters}")
    return []


def _elsewhere(scene: Scene, situation: Situation, what: str) -> None:
    situation.node = situation.instance = ""
    situation.set("Elsewhere", "Stranger", f"{what} has it")
    name = situation.allocation.name
    scene.find(
        name, "AddressElsewhere", f"{situation.address}: {what} has it; the hub takes nothing from strangers", what
    )


def _free(scene: Scene, situation: Situation, place: int) -> list[Want]:
    assert situation.answer is not None  # noqa: S101 - the caller looked at it
    if situation.node:
        situation.last_node, situation.node = situation.node, ""
    situation.instance = situation.before = ""
    memory, allocation = situation.memory, situation.allocation
    situation.set("Pending", "NoNode", "it is free")
    needs = TWICE
    if _half_free(scene, allocation.cluster) and situation.last_node:
        needs = max(TWICE, scene.account.interval)
        situation.set("Pending", "Withheld", "more than half of the addresses became free at once")
    if situation.answer.at - memory.free < needs:
        if needs == TWICE:
            situation.set("Pending", "Confirming", "it is free; a second answer must confirm that")
        scene.refresh(situation.address, again=memory.free + needs - situation.answer.at)
        return []
    if held_for(situation, scene.now) > WAITING and situation.stored.state == "Pending":
        scene.find(allocation.name, "AddressWaiting", f"{situation.address} waits: {situation.stored.message}")
    if memory.retry > scene.now:
        situation.set("Pending", "Backoff", situation.stored.message or "the last attempt failed")
        scene.wake(memory.retry)
        return []
    return [Want((False, order("Free"), memory.free, allocation.order, place), situation, "Free", scene.now)]


def _half_free(scene: Scene, cluster: str) -> bool:
    """Whether more than half of a pool's addresses, and at least two, lost their nodes at once."""
    known = [found for found in scene.of_pool(cluster) if found.answer is not None]
    lost = [
        found
        for found in known
        if found.answer is not None
        and isinstance(found.answer.state, Free)
        and found.stored.move is None
        and (found.stored.node or found.stored.last_node)
        and found.memory.free > scene.now - 2 * scene.account.interval
    ]
    return len(lost) >= 2 and len(lost) > HALF * len(known)


def _held(scene: Scene, situation: Situation, instance: str, place: int) -> list[Want]:
    """An address on a node of ours: whether a cause holds, and since when."""
    allocation, stored, key = situation.allocation, situation.stored, situation.holder
    if key is not None:
        name = name_of(allocation, key)
        if stored.node not in ("", name) and situation.node != name:
            situation.last_node, situation.before = stored.node, ""
        situation.node = name
    situation.instance = instance
    situation.set("Attached")
    site = scene.site(key.cluster if key is not None else allocation.cluster)
    if site.problem:
        situation.set("Unknown", "ClusterUnknown", site.problem)
        return []
    workload = allocation.workload
    found = leave(
        allocation,
        stored,
        situation.memory,
        scene.machine(key),
        gone=scene.gone(instance),
        pods=scene.view.pods.get((key, workload)) if key is not None and workload is not None else None,
        moved=_moved(scene, situation, key),
        limits=scene.limits,
        now=scene.now,
    )
    situation.leave = found
    if found is None:
        situation.memory = replace(situation.memory, cause="", cause_since=0.0, free=0.0)
        return []
    _leaving(scene, situation, found, key)
    memory = situation.memory
    scene.wake(found.at)
    if found.cause == "Cordoned" or found.at > scene.now:
        return []
    if memory.retry > scene.now:
        situation.set("Leaving", "Backoff", stored.message or found.message)
        scene.wake(memory.retry)
        return []
    own = key is not None and key == scene.own
    place_ = (own, order(found.cause), memory.cause_since, allocation.order, place)
    return [Want(place_, situation, found.cause, found.at)]


def _leaving(scene: Scene, situation: Situation, found: Leave, key: NodeKey | None) -> None:
    """Note a cause, ask what is needed to judge it, and say why the address waits."""
    allocation, memory = situation.allocation, situation.memory
    if memory.cause != found.cause:
        memory = replace(memory, cause=found.cause, cause_since=scene.now)
    situation.memory = replace(memory, free=0.0)
    if found.inspect:
        scene.look(situation.instance, scene.account.interval)
        scene.describe |= situation.answer is not None and situation.answer.at < memory.cause_since
    if allocation.workload is not None and key is not None and found.cause in ("Cordoned", "Drained"):
        scene.pods.add((key, allocation.workload))
    situation.wait = 0.0 if found.at == NEVER else found.at
    situation.set("Leaving", found.reason or "Grace", found.message)
    if found.reason == "Flapping":
        scene.find(allocation.name, "AddressFlapping", f"{situation.address}: {found.message}", situation.address)
    blocked = found.reason == "PodsRunning" and situation.stored.state == "Leaving"
    if blocked and held_for(situation, scene.now) > WAITING:
        scene.find(
            allocation.name,
            "DrainBlocked",
            f"{situation.address} stays on {situation.node}: {found.message}. Pods that need the label and the drain "
            "may wait for each other: add one spare address, or set a finite cordonedHold",
            situation.node,
        )


def _moved(scene: Scene, situation: Situation, key: NodeKey | None) -> str:
    """Why an address is on the wrong node for a reason that the node does not show; "" if it is not."""
    if key is None:
        return ""
    if key.cluster != situation.allocation.cluster:
        return f"it is in cluster {key.cluster}; the allocation asks for {situation.allocation.cluster}"
    first = scene.first_at.get(key, situation)
    return "" if first is situation else f"the node also has {first.address}, whose claim is older"


def _leave_allocation(scene: Scene, situation: Situation) -> None:
    """An address that left its allocation: with ``releasePolicy: Detach`` it is detached, else only its label goes."""
    allocation, stored = situation.allocation, situation.stored
    situation.set("Released", "Retain", "the label goes; the address stays at the cloud")
    claimed_by = scene.view.holders.get(situation.address, "")
    key = scene.key(allocation, stored.node)
    node = scene.machine(key)
    if claimed_by not in ("", allocation.uid):
        situation.dropped = True
        situation.state = ""
        return
    answer = situation.answer
    site = scene.site(key.cluster if key is not None else allocation.cluster)
    if site.problem and (key is not None or (answer is not None and isinstance(answer.state, Held))):
        # The address or its label may be on a node that is not known now.
        situation.set(
            "Released", "ClusterUnknown", f"{site.problem}; {LET_GO}" if allocation.finalizer else site.problem
        )
        return
    if not releases(scene, situation):
        if (
            key is None
            or node is None
            or scene.view.label_keys.isdisjoint(node.node.labels)
            or _labelled_by_other(scene, key)
        ):
            situation.state = ""
        if key is not None and situation.holder == key:  # an inspection from before it had the address is no proof
            scene.avoid[key] = scene.now + INSPECTION_VALID
        return
    situation.set("Released", "Detach", "it is about to be detached")
    if answer is None:
        scene.refresh(situation.address)
        situation.set("Released", "NoAnswer", f"waits for an answer of the cloud; {LET_GO}")
    elif isinstance(answer.state, Held) and situation.holder is not None and acts(scene, situation) == "":
        machine.begin(scene, situation, "Release", "Releasing", None)
    elif not isinstance(answer.state, Held) or situation.holder is None:
        situation.state = ""  # nothing of ours is left


def _labelled_by_other(scene: Scene, key: NodeKey) -> bool:
    return key in scene.view.foreign_labels or any(found.claimed and found.holder == key for found in scene.situations)
