"""The labels of nodes, and the evictions that follow when a label goes.

``ip.ready`` is on exactly the nodes that a fresh answer shows with an address of a live claim. It is taken off only
with proof: a record that takes the address away, an entry that left its allocation, or two answers and an inspection
that show the node without an address. What is not known changes no label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hub.allocations.causes import TWICE
from hub.allocations.eligible import misfit, ready
from hub.allocations.scene import REFUSAL_VALID, Scene, Situation
from hub.allocations.spec import LABEL_READY, moment
from hub.allocations.view import Evict, Label, NodeKey
from hub.cloud.addresses import Held, Present
from hub.model import Node

FORGET: Final = 300.0
"""Seconds after which a changed label counts as undisturbed."""
LONGEST: Final = 60.0
EVICTING: Final = 3600.0
"""Seconds after a move in which Pods that stayed behind are evicted."""
LEAVING: Final = ("Detaching", "Releasing")

Changes = list[tuple[str, str | None]]
"""Labels of a node that change: (key, value); None = the key goes."""


def wanted(scene: Scene) -> dict[NodeKey, dict[str, str]]:
    """The labels that each node must have because of an address of this account."""
    found: dict[NodeKey, dict[str, str]] = {}
    for situation in scene.situations:
        if not situation.live or situation.holder is None or situation.answer is None:
            continue
        if not isinstance(situation.answer.state, Held) or (situation.move and situation.move.phase in LEAVING):
            continue
        labels = found.setdefault(situation.holder, {})
        labels[LABEL_READY] = "true"
        if key := situation.allocation.address_label:
            labels.setdefault(key, situation.address)
    return found


def label(
    scene: Scene, wanted: dict[NodeKey, dict[str, str]]
) -> tuple[dict[NodeKey, tuple[int, float]], dict[NodeKey, float]]:
    """Add the changes of labels to the acts; returns what to remember: changed labels, and suspects."""
    changed = {key: note for key, note in scene.view.memory.labels.items() if note[1] + FORGET > scene.now}
    suspects: dict[NodeKey, float] = {}
    left, may_have = _left(scene), unknown(scene)
    for site in scene.view.sites.values():
        for name, machine in site.machines.items() if not site.problem else ():
            key, node = NodeKey(site.name, name), machine.node
            want = wanted.get(key)
            if want is None and scene.view.label_keys.isdisjoint(node.labels):
                continue
            if key in scene.view.running or key in may_have or (want is not None and node.deleting):
                continue
            if want is not None:
                _change(scene, changed, key, _differences(scene, node, want))
            elif key not in scene.view.foreign_labels and (key in left or _proven(scene, suspects, key)):
                off = [(text, None) for text in sorted(scene.view.label_keys & node.labels.keys())]
                _change(scene, changed, key, off, at_once=key in left)
    return changed, suspects


def _differences(scene: Scene, node: Node, want: dict[str, str]) -> Changes:
    """What must change in the labels of a node with an address. A node that is not Ready gets no label."""
    changes: Changes = []
    if ready(node):
        changes += [(text, value) for text, value in want.items() if node.labels.get(text) != value]
    extra = scene.view.label_keys & node.labels.keys() - want.keys() - {LABEL_READY}
    return [*changes, *((text, None) for text in sorted(extra))]


def _change(
    scene: Scene,
    changed: dict[NodeKey, tuple[int, float]],
    key: NodeKey,
    changes: Sequence[tuple[str, str | None]],
    *,
    at_once: bool = False,
) -> None:
    if not changes:
        return
    if scene.view.halted is not None:
        scene.acts.append(Label(key, tuple(changes)))  # only shown, so nobody changes it back
        return
    count, again = changed.get(key, (0, 0.0))
    if again > scene.now and not at_once:
        scene.wake(again)
        return
    changed[key] = count + 1, scene.now + min(LONGEST, 2.0**count)
    scene.acts.append(Label(key, tuple(changes)))


def _left(scene: Scene) -> set[NodeKey]:
    """Nodes that lose an address by a record, or whose entry is no longer claimed."""
    found: set[NodeKey] = set()
    for situation in scene.situations:
        allocation, move = situation.allocation, situation.stored.move
        if move is not None and situation.recorded and move.phase != "RollingBack":
            found.update(key for key in [scene.key(allocation, move.from_)] if key is not None)
        if not situation.claimed and (key := scene.key(allocation, situation.stored.node)) is not None:
            found.add(key)
    return found


def unknown(scene: Scene) -> set[NodeKey]:
    """Nodes whose labels stay as they are.

    They may have an address about which nothing is known now, whose next claim is about to begin, or whose allocation
    is beyond the limit.
    """
    found: set[NodeKey | None] = set()
    for situation in scene.situations:
        if situation.claimed and situation.answer is None:
            found.add(scene.key(situation.allocation, situation.stored.node))
        elif situation.claimed and (
            situation.allocation.uid in scene.refused or not scene.view.holders.get(situation.address)
        ):
            found.add(situation.holder)
    return {key for key in found if key is not None}


def _proven(scene: Scene, suspects: dict[NodeKey, float], key: NodeKey) -> bool:
    """Whether a node with a label certainly has no address: two answers about all addresses, and an inspection."""
    machine = scene.machine(key)
    if machine is None or machine.instance is None:
        return False
    if all(misfit(machine.node, allocation) for allocation in scene.view.allocations):
        return False
    answers = [situation.answer for situation in scene.situations if situation.claimed]
    if not answers or any(answer is None for answer in answers):
        return False
    oldest = min(answer.at for answer in answers if answer is not None)
    since = scene.view.memory.suspects.get(key, oldest)
    suspects[key] = since
    if oldest - since < TWICE:
        if scene.now - since >= TWICE:
            scene.describe = True
        scene.wake(since + TWICE)
        return False
    found = scene.view.inspections.get(machine.instance)
    if found is None or found.at < since:  # an older one may be from before the node got an address
        scene.inspect.add(machine.instance)
        return False
    if not scene.look(machine.instance, REFUSAL_VALID):
        return False
    return isinstance(found.state, Present) and found.state.room


def evict(scene: Scene, wanted: dict[NodeKey, dict[str, str]]) -> None:
    """Evict Pods of a workload from a node that its address has left, once the new node has its labels.

    At most one eviction of a workload, and one in a cluster, is under way at a time.
    """
    running = [found for found in scene.situations if str(found.allocation.workload) in scene.view.running]
    asked: set[str] = set()
    clusters = {found.allocation.cluster for found in running}
    for situation in scene.situations:
        allocation, stored = situation.allocation, situation.stored
        workload, moved = allocation.workload, max(map(moment, stored.moves), default=0.0)
        if workload is None or allocation.eviction == "None" or stored.state != "Attached" or not stored.last_node:
            continue
        if scene.now - moved > EVICTING or not _confirmed(situation) or not _replaced(scene, situation, wanted):
            continue
        key = scene.key(allocation, stored.last_node)
        machine = scene.machine(key)
        if key is None or machine is None or not ready(machine.node) or scene.site(key.cluster).problem:
            continue
        if key in wanted or key in scene.view.foreign_labels or LABEL_READY in machine.node.labels:
            continue
        scene.pods.add((key, workload))
        pods = scene.view.pods.get((key, workload))
        old = [pod for pod in pods.workload if moment(pod.created) <= moved] if pods is not None else []
        if not old or str(workload) in asked or allocation.paused:
            continue
        asked.add(str(workload))
        again = max(scene.view.evict_after.get(str(workload), 0.0), scene.view.evict_after.get(key.cluster, 0.0))
        if again > scene.now:
            scene.wake(again)
        elif key.cluster not in clusters:
            clusters.add(key.cluster)
            scene.acts.append(Evict(key, workload, old[0], force=allocation.eviction == "ForceDelete"))


def _replaced(scene: Scene, situation: Situation, wanted: dict[NodeKey, dict[str, str]]) -> bool:
    """Whether the new node of an address has its labels, so that evicted Pods find it."""
    key = situation.holder
    machine = scene.machine(key)
    want = wanted.get(key) if key is not None else None
    return machine is not None and want is not None and want.items() <= machine.node.labels.items()


def _confirmed(situation: Situation) -> bool:
    """Whether two answers show the address at its new node."""
    answer = situation.answer
    return answer is not None and answer.at - situation.memory.placed >= TWICE
