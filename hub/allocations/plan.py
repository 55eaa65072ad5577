"""The plan of one account: from what is known to what should be done now. See :func:`plan`."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Final, NamedTuple

from msgspec.structs import replace

from hub.allocations import labels, machine
from hub.allocations.budget import budget, withheld_hash
from hub.allocations.causes import TWICE, leave, order
from hub.allocations.eligible import ready
from hub.allocations.scene import Scene, Situation, held_for, name_of
from hub.allocations.spec import NEVER, Allocation, Entry, Status, moment
from hub.allocations.status import status
from hub.allocations.view import Finalize, Memories, Memory, NodeKey, Plan, Questions, Verdict, View
from hub.cloud import Changing, Elsewhere, Free, Held, NotReserved, Unknown
from hub.model import LABEL_CONTROL_PLANE

WAITING: Final = 600.0
"""Seconds after which an operator is told that an address waits, or that a drain is blocked."""
ACTIVE: Final = ("Detaching", "Attaching", "RollingBack", "Releasing")
HALF: Final = 0.5


class Want(NamedTuple):
    """An address that should move, with its place in the order of service."""

    order: tuple[int, float, tuple[str, str], int]
    situation: Situation
    cause: str
    at: float


def plan(view: View, now: float) -> Plan:
    """Decide what to do about all addresses of one account.

    The same view and time give the same plan, in whatever order the parts of the view come. What is unknown moves
    nothing. An act that needs a record comes only after the record was stored by this process.

    Args:
        view: what was observed, asked and done so far.
        now: the time, in the same clock as the times of the view.
    """
    scene = Scene(view, now)
    order_ = {found.uid: index for index, found in enumerate(sorted(view.allocations, key=lambda found: found.order))}
    allocations = sorted(view.allocations, key=lambda found: order_[found.uid])
    for allocation in allocations:
        scene.situations += _situations(scene, allocation)
    for situation in scene.situations:
        _observe(scene, situation)
        if situation.claimed or situation.allocation.release:
            machine.reserve(scene, situation)
    wants: list[Want] = []
    for situation in scene.situations:
        if not _hold(scene, situation):
            wants += _decide(scene, situation, order_[situation.allocation.uid])
    _serve(scene, wants)
    wanted = labels.wanted(scene)
    changed, suspects = labels.label(scene, wanted)
    labels.evict(scene, wanted)
    statuses = _statuses(scene, allocations)
    _due(scene)
    acts = tuple(act for act in scene.acts if _may(scene, act))
    memory = Memories(
        {found.address: found.memory for found in scene.situations if found.claimed},
        scene.avoid,
        changed,
        suspects,
        scene.stopped,
    )
    return Plan(
        statuses,
        acts,
        Questions(scene.describe, frozenset(scene.inspect), frozenset(scene.pods)),
        tuple(scene.findings),
        scene.next,
        {found.address: _verdict(found) for found in scene.situations if found.claimed},
        memory,
        frozenset(wanted),
    )


# --- what is known of each address -------------------------------------------------------------------


def _situations(scene: Scene, allocation: Allocation) -> list[Situation]:
    """Those that the spec lists, then those that only the stored status has."""
    entries = allocation.entries
    found: list[Situation] = []
    for address in allocation.addresses:
        stored = entries.get(address, Entry(address))
        memory = scene.view.memory.addresses.get(address, Memory())
        found.append(Situation(allocation, address, stored, memory))
    bad = {entry.text for entry in allocation.bad}
    for address, stored in entries.items():
        if address not in allocation.addresses and address not in bad:
            situation = Situation(allocation, address, stored, Memory())
            situation.claimed = False
            found.append(situation)
    if allocation.deleting:
        for situation in found:
            situation.claimed = False
    return found


def _observe(scene: Scene, situation: Situation) -> None:
    """Note the answer about the address, and what it says about the holder."""
    situation.answer = answer = scene.fresh(situation.address)
    allocation, stored, memory = situation.allocation, situation.stored, situation.memory
    key = scene.key(allocation, stored.node)
    if answer is None or isinstance(answer.state, Unknown):
        situation.answer = None
        if scene.machine(key) is not None:
            situation.holder = key
            scene.occupied.update([key] if key is not None else [])
        return
    state = answer.state
    if isinstance(state, Held):
        situation.holder = scene.by_instance.get(state.instance)
        if situation.holder is not None:
            scene.occupied.add(situation.holder)
        if memory.instance != state.instance:
            known = stored.instance == state.instance and not memory.instance
            placed = moment(stored.since) if known else 0.0
            memory = Memory(state.instance, placed or scene.now, failures=memory.failures, retry=memory.retry)
    elif isinstance(state, Free):
        free = memory.free or answer.at
        memory = replace(memory, instance="", free=free, cause="", cause_since=0.0)
    else:
        memory = replace(memory, free=0.0, cause="", cause_since=0.0)
    situation.memory = memory


def _hold(scene: Scene, situation: Situation) -> bool:
    """Set the state of an address about which nothing may be done; False if something may."""
    address, allocation, account = situation.address, situation.allocation, scene.account
    if not situation.claimed:
        return False
    if not any(IPv4Address(address) in network for network in account.allowed):
        situation.node = situation.instance = ""
        return _stay(
            situation,
            "Invalid",
            "NotAllowed",
            f"it is not in the addresses of account {account.name}: {', '.join(map(str, account.allowed[:5]))}",
        )
    if other := scene.view.conflicts.get((allocation.uid, address)):
        situation.node = situation.instance = ""
        scene.find(allocation.name, "AddressConflict", f"allocation {other} has the older claim to {address}", address)
        return _stay(situation, "Conflict", "Claimed", f"allocation {other} has the older claim")
    if scene.view.holders.get(address) != allocation.uid:
        situation.node = situation.instance = ""
        return _stay(situation, "Conflict", "Waiting", "an older claim has just ended")
    if account.problem:
        situation.move = situation.stored.move
        return _stay(situation, "Unknown", "ProviderUnavailable", account.problem)
    if situation.answer is None:
        situation.move = situation.stored.move
        last = scene.view.answers.get(address)
        why = last.state.reason if last is not None and isinstance(last.state, Unknown) else ""
        return _stay(situation, "Unknown", "NoAnswer", why or "the cloud has given no complete answer")
    return False


def _stay(situation: Situation, state: str, reason: str, message: str) -> bool:
    situation.set(state, reason, message)
    return True


def _decide(scene: Scene, situation: Situation, place: int) -> list[Want]:
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
            _stay(situation, "Invalid", "NotReserved", reason)
        case Elsewhere(what):
            _elsewhere(scene, situation, what)
        case Changing():
            situation.set("Unknown", "Changing", "the cloud is changing it")
            scene.wake(situation.answer.at + machine.CHANGING_AGAIN)
            scene.describe |= scene.now >= situation.answer.at + machine.CHANGING_AGAIN
        case Free():
            return _free(scene, situation, place)
        case Held(instance):
            if situation.holder is not None:
                return _held(scene, situation, instance, place)
            problems = [site.problem for site in scene.view.sites.values() if site.problem]
            if problems:  # the node may be one of theirs
                situation.set("Unknown", "ClusterUnknown", problems[0])
            elif instance == situation.stored.instance and situation.stored.node:
                return _held(scene, situation, instance, place)
            else:
                _elsewhere(
                    scene, situation, f"instance {instance}, which is no node of {', '.join(scene.account.clusters)}"
                )
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
    situation.set("Pending", "NoNode", "no node can take it")
    needs = TWICE
    if _half_free(scene, allocation.cluster) and situation.last_node:
        needs = max(TWICE, scene.account.interval)
        situation.set("Pending", "Withheld", "more than half of the addresses became free at once")
    if situation.answer.at - memory.free < needs:
        if needs == TWICE:
            situation.set("Pending", "Confirming", "it is free; a second answer must confirm that")
        scene.wake(memory.free + needs)
        scene.describe |= scene.now >= memory.free + needs
        return []
    if held_for(situation, scene.now) > WAITING and situation.stored.state == "Pending":
        scene.find(allocation.name, "AddressWaiting", f"{situation.address} waits: {situation.stored.message}")
    if memory.retry > scene.now:
        situation.set("Pending", "Backoff", situation.stored.message or "the last attempt failed")
        scene.wake(memory.retry)
        return []
    return [Want((order("Free"), memory.free, allocation.order, place), situation, "Free", scene.now)]


def _half_free(scene: Scene, cluster: str) -> bool:
    """Whether more than half of a pool's addresses, and at least two, lost their nodes at once."""
    known = [found for found in scene.of_pool(cluster) if found.claimed and found.answer is not None]
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
    memory = situation.memory
    if found is None:
        situation.memory = replace(memory, cause="", cause_since=0.0, free=0.0)
        return []
    if memory.cause != found.cause:
        memory = replace(memory, cause=found.cause, cause_since=scene.now)
    situation.memory = replace(memory, free=0.0)
    if found.inspect:
        scene.look(instance, scene.account.interval)
        scene.describe |= situation.answer is not None and situation.answer.at < memory.cause_since
    if workload is not None and key is not None and found.cause in ("Cordoned", "Drained"):
        scene.pods.add((key, workload))
    situation.wait = 0.0 if found.at == NEVER else found.at
    situation.set("Leaving", found.reason or "Grace", found.message)
    if found.reason == "Flapping":
        scene.find(allocation.name, "AddressFlapping", f"{situation.address}: {found.message}", situation.address)
    if found.reason == "PodsRunning" and held_for(situation, scene.now) > WAITING and stored.state == "Leaving":
        scene.find(
            allocation.name,
            "DrainBlocked",
            f"{situation.address} stays on {situation.node}: {found.message}. Pods that need the label and the drain "
            "may wait for each other: add one spare address, or set a finite cordonedHold",
            situation.node,
        )
    scene.wake(found.at)
    if found.cause == "Cordoned" or found.at > scene.now:
        return []
    if memory.retry > scene.now:
        situation.set("Leaving", "Backoff", stored.message or found.message)
        scene.wake(memory.retry)
        return []
    return [Want((order(found.cause), memory.cause_since, allocation.order, place), situation, found.cause, found.at)]


def _moved(scene: Scene, situation: Situation, key: NodeKey | None) -> str:
    """Why an address is on the wrong node for a reason that the node does not show; "" if it is not."""
    if key is None:
        return ""
    if key.cluster != situation.allocation.cluster:
        return f"it is in cluster {key.cluster}; the allocation asks for {situation.allocation.cluster}"
    for other in scene.situations:
        if other is situation:
            return ""
        if other.claimed and other.holder == key and other.answer is not None:
            return f"the node also has {other.address}, whose claim is older"
    return ""


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
    if not allocation.release:
        if (
            key is None
            or node is None
            or scene.view.label_keys.isdisjoint(node.node.labels)
            or _labelled_by_other(scene, key)
        ):
            situation.state = ""
        return
    situation.set("Released", "Detach", "it is about to be detached")
    answer = situation.answer
    if answer is None:
        scene.describe = True
        situation.set(
            "Released", "NoAnswer", "waits for an answer of the cloud; remove the finalizer to let it go as it is"
        )
    elif isinstance(answer.state, Held) and situation.holder is not None and _acts(scene, situation) == "":
        machine.begin(scene, situation, "Release", "Releasing", None)
    elif not isinstance(answer.state, Held) or situation.holder is None:
        situation.state = ""  # nothing of ours is left


def _labelled_by_other(scene: Scene, key: NodeKey) -> bool:
    return key in scene.view.foreign_labels or any(found.claimed and found.holder == key for found in scene.situations)


# --- which moves begin -------------------------------------------------------------------------------


def _acts(scene: Scene, situation: Situation) -> str:
    """The reason why no new move of an address begins; "" if one may."""
    view = scene.view
    if view.halted is not None:
        situation.message = f"{situation.message}; {view.halted[1]}" if situation.message else view.halted[1]
        return view.halted[0]
    if situation.allocation.paused:
        return "Paused"
    if scene.account.frozen:
        situation.message = scene.account.frozen
        return "CloudFailed"
    if scene.account.quota_until > scene.now:
        scene.wake(scene.account.quota_until)
        return "Quota"
    if view.settled > scene.now:
        scene.wake(view.settled)
        return "Settling"
    return ""


def _serve(scene: Scene, wants: Sequence[Want]) -> None:
    """Begin the moves that limits and candidates allow, in the order of service."""
    active = sum(1 for found in scene.situations if found.move is not None and found.move.phase in ACTIVE)
    for cluster in sorted({want.situation.allocation.cluster for want in wants}):
        pool = sorted(
            (want for want in wants if want.situation.allocation.cluster == cluster), key=lambda want: want.order
        )
        active = _serve_pool(scene, cluster, pool, active)


def _serve_pool(scene: Scene, cluster: str, wants: Sequence[Want], active: int) -> int:
    members = [found for found in scene.of_pool(cluster) if found.claimed]
    attached = sum(found.holder is not None or bool(found.move and found.move.from_) for found in members)
    left = budget((found.stored for found in members), attached, scene.limits, scene.now)
    moving = [(want.situation.address, want.cause) for want in wants if want.cause != "Free"]
    waits = _down(scene, cluster)
    begun, spent = 0, left.left
    withheld: list[Want] = []
    approval = withheld_hash(scene.account.name, cluster, moving)
    approved = approval in scene.view.approvals
    for want in wants:
        situation = want.situation
        state = "Pending" if want.cause == "Free" else "Leaving"
        if situation.holder is not None and situation.holder == scene.view.own and _cut_off(scene):
            situation.set(state, "OwnNode", "the hub runs on the node and would be cut off (limits ownNode)")
            scene.find(situation.allocation.name, "OwnNodeWaits", f"{situation.address}: {situation.message}")
            continue
        asked = len(scene.inspect)
        target = scene.choose(situation)
        if target is None and len(scene.inspect) > asked and situation.stored.state == state:
            situation.set(state, situation.stored.reason, situation.stored.message)  # until the node is inspected
            continue
        if target is None:
            situation.set(state, "NoNode" if state == "Pending" else "NoCandidate", _no_node(situation))
            continue
        situation.to = name_of(situation.allocation, target)
        if want.cause != "Free" and not approved and (spent <= 0 or (want.cause == "NotReady" and waits)):
            withheld.append(want)
            continue
        if reason := _acts(scene, situation):
            situation.set(state, reason, situation.message)
            continue
        if active + begun >= scene.limits.concurrent:
            situation.set(state, "Queued", f"{scene.limits.concurrent} moves of the account are under way")
            continue
        begun += 1
        spent -= want.cause != "Free"
        machine.begin(scene, situation, want.cause, "Attaching" if want.cause == "Free" else "Detaching", target)
        situation.set("Attaching" if want.cause == "Free" else "Detaching", want.cause, situation.message)
    if withheld:
        _withhold(scene, cluster, withheld, approval, waits, left.again)
    return active + begun


def _withhold(scene: Scene, cluster: str, withheld: Sequence[Want], approval: str, down: str, again: float) -> None:
    for want in withheld:
        why = down if want.cause == "NotReady" and down else "the budget of moves is used up (limits moves, window)"
        want.situation.hash = approval
        want.situation.to = ""
        want.situation.set(
            "Leaving", "Withheld", f"{want.situation.leave.message if want.situation.leave else ''}; {why}"
        )
    names = sorted({want.situation.allocation.name for want in withheld})
    addresses = tuple(sorted(want.situation.address for want in withheld))
    for name in names:
        scene.find(
            name,
            "MoveWithheld",
            f"{len(addresses)} moves in cluster {cluster} are withheld; "
            f"hub approve allocation/{name} {approval} lets them begin",
            *addresses,
        )
    scene.wake(again)


def _down(scene: Scene, cluster: str) -> str:
    """Why no address leaves for NotReady: too many nodes are not Ready; "" if that is not so."""
    nodes = [
        found.node
        for found in scene.site(cluster).machines.values()
        if found.instance is not None and LABEL_CONTROL_PLANE not in found.node.labels
    ]
    down = sum(not ready(node) for node in nodes)
    if down >= 2 and down > scene.limits.max_not_ready * len(nodes):
        return f"{down} of {len(nodes)} nodes are not Ready (limits maxNotReady)"
    return ""


def _cut_off(scene: Scene) -> bool:
    return "source" in scene.account.cuts and scene.limits.own_node != "allow"


def _no_node(situation: Situation) -> str:
    """Why no node takes the address: the commonest reasons."""
    reasons: dict[str, int] = {}
    for why in situation.why_not.values():
        reasons[why] = reasons.get(why, 0) + 1
    parts = [f"{count} x {why}" for why, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))[:3]]
    because = f"no node can take it: {'; '.join(parts)}" if parts else "no node can take it"
    return f"{situation.leave.message}; {because}" if situation.leave else because


# --- the results -------------------------------------------------------------------------------------


def _statuses(scene: Scene, allocations: Sequence[Allocation]) -> dict[str, Status]:
    found: dict[str, Status] = {}
    for allocation in allocations:
        mine = [situation for situation in scene.situations if situation.allocation is allocation]
        kept = [situation for situation in mine if situation.state]
        stalled = _stalled(scene, allocation)
        found[allocation.name] = status(allocation, kept, scene.account.name, stalled, scene.view.identity, scene.now)
        for bad in allocation.bad:
            scene.find(allocation.name, "AddressInvalid", f"{bad.text!r} {bad.why}", bad.text)
        for situation in kept:
            if situation.state == "Invalid":
                text = f"{situation.address}: {situation.message}"
                scene.find(allocation.name, "AddressInvalid", text, situation.address)
        wants_finalizer = allocation.release and not (allocation.deleting and not kept)
        if allocation.finalizer != wants_finalizer and scene.view.halted is None:
            scene.acts.append(Finalize(allocation.name, wants_finalizer))
    return found


def _stalled(scene: Scene, allocation: Allocation) -> tuple[str, str] | None:
    account = scene.account
    if account.problem:
        return "ProviderUnavailable", account.problem
    if account.frozen:
        return "CloudFailed", account.frozen
    if problem := scene.site(allocation.cluster).problem:
        return "ClusterUnknown", problem
    if scene.view.halted is not None and scene.view.halted[0] != "Observe":
        return scene.view.halted
    if allocation.paused:
        return "Paused", "the allocation is paused: hub resume allocation/" + allocation.name
    return None


def _due(scene: Scene) -> None:
    """Ask for a description of all addresses if the last one is old, and for the next one in time."""
    if scene.account.problem or not scene.situations:
        scene.describe = False
        scene.inspect.clear()
        return
    oldest = min(
        (found.at if (found := scene.view.answers.get(situation.address)) is not None else 0.0)
        for situation in scene.situations
    )
    if scene.now >= oldest + scene.period:
        scene.describe = True
    else:
        scene.wake(oldest + scene.period)


def _may(scene: Scene, act: object) -> bool:
    """Whether an act may begin: this process has signed the status of its allocation."""
    if scene.view.halted is not None:
        return False
    names = {found.address: found.allocation for found in scene.situations}
    allocation = names.get(getattr(act, "address", ""))
    return allocation is None or allocation.status.writer == scene.view.identity


def _verdict(situation: Situation) -> Verdict:
    state = situation.answer.state if situation.answer is not None else None
    holder = situation.node
    if isinstance(state, Elsewhere):
        holder = state.what
    return Verdict(
        situation.address,
        situation.allocation.name,
        situation.state,
        situation.reason,
        situation.message,
        holder,
        situation.leave.cause if situation.leave is not None else "",
        situation.wait,
        situation.to,
        situation.why_not,
        situation.hash,
    )
