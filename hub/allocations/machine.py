"""Follows the record of a move, one step in a pass: what the last answers say decides, not what a call returned.

    Detaching ─▶ Attaching ─▶ (Restoring) ─▶ no record, attached to the new node
        │            └──▶ RollingBack ─▶ no record, attached to the old node, or Pending
        └─ still held after 60 s: no record, attached to the old node
    Releasing ─▶ (Restoring) ─▶ no entry

A record that does not fit what is described is dropped: the description is the truth.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec.structs import replace

from hub.allocations.eligible import why_not_instance
from hub.allocations.scene import AVOID, LET_GO, Scene, Situation, name_of
from hub.allocations.spec import Move, moment, stamp
from hub.allocations.view import PHASES, Attach, Detach, Follow, NodeKey, Outcome, Restore
from hub.cloud.addresses import AddressState, Changing, Elsewhere, Free, Held, NotReserved, Order, Present

DETACH_PATIENCE: Final = 60.0
"""Seconds after which a detach that fails is given up, if the address is still held."""
TARGET_PATIENCE: Final = 40.0
"""Seconds after which an attach that fails is tried with another node."""
ATTACH_PATIENCE: Final = 120.0
"""Seconds without success after which the address goes back to the node that it came from."""
TARGETS: Final = 3
"""Nodes that are tried before that."""
RESTORES: Final = 10
"""Attempts to give a node back what it had."""
CHANGING_AGAIN: Final = 1.0
"""Seconds between descriptions of an address that the cloud is changing."""
SEEN: Final = 10.0
"""Seconds in which a step that is done is not repeated, though it is not described: a cloud's lists may lag behind."""
LONGEST_RETRY: Final = 10.0
STALLED: Final = 600.0
"""Seconds after which a phase that has not ended needs a person."""
DOING: Final = {
    "Detaching": "detaching it from",
    "Releasing": "detaching it from",
    "Attaching": "attaching it to",
    "RollingBack": "attaching it again to",
    "Restoring": "giving back what it replaced on",
}


def token(*parts: str) -> str:
    """A UUID (version 5 in its form) that is equal for equal parts."""
    digest = bytearray(hashlib.sha1("\n".join(parts).encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def begin(scene: Scene, situation: Situation, cause: str, phase: str, to: NodeKey | None) -> None:
    """Write the record of a new move; it is followed after it was stored."""
    allocation = situation.allocation
    began = stamp(scene.now)
    before_to = _before(scene, to)
    name = token(allocation.uid, situation.address, began, cause)[:8]
    from_ = name_of(allocation, situation.holder) or situation.node
    situation.move = Move(name, cause, phase, from_, name_of(allocation, to), 1, before_to=before_to, started=began)
    situation.to = name_of(allocation, to)
    if phase == "Detaching":
        situation.moves = (*situation.moves, began)[-3:]
        situation.before = situation.before or scene.usual_before()
    scene.busy.update(key for key in (situation.holder, to) if key is not None)


def reserve(scene: Scene, situation: Situation) -> None:
    """Keep the nodes of a stored record from other moves. A record that cannot be ours is dropped."""
    move, allocation = situation.stored.move, situation.allocation
    if move is None:
        return
    if move.phase not in PHASES or not move.id or not (move.to or move.from_):
        situation.dropped = True
        return
    situation.move = move
    scene.busy.update(
        key for key in (scene.key(allocation, move.from_), scene.key(allocation, move.to)) if key is not None
    )


def follow(scene: Scene, situation: Situation) -> None:
    """Take the next step of a record; sets the state, the wanted record and at most one act."""
    move = situation.move
    assert move is not None  # noqa: S101 - only situations with a record come here
    situation.to = move.to
    said = situation.stored.message if situation.stored.move == move else ""
    situation.set("Attached" if move.phase == "Restoring" else move.phase, move.cause, said)
    if situation.address in scene.view.running:
        return
    outcome = scene.view.outcomes.get(situation.address)
    if _operation(scene, situation, move, outcome):
        return
    if move.phase == "Restoring":
        _restoring(scene, situation, move, outcome)
        return
    answer = situation.answer
    after = outcome.at if outcome is not None else 0.0
    if answer is None or answer.at <= after:
        scene.refresh(situation.address, after)
        return
    state = answer.state
    if isinstance(state, Changing):
        scene.refresh(situation.address, again=CHANGING_AGAIN)
        return
    if isinstance(state, Elsewhere | NotReserved) or _stranger(scene, situation, move, state):
        drop(scene, situation)
        return
    if move.phase in ("Detaching", "Releasing"):
        _detaching(scene, situation, move, state, outcome)
    else:
        _attaching(scene, situation, move, state, outcome)


def _operation(scene: Scene, situation: Situation, move: Move, outcome: Outcome | None) -> bool:
    """Whether an operation of the cloud is to be recorded or followed first."""
    accepted = outcome.operation if outcome is not None and outcome.token == _token(situation, move) else ""
    if accepted and move.operation != accepted:
        situation.move = replace(move, operation=accepted)
        return True
    if move.operation and outcome is not None and (outcome.step, outcome.token) == ("follow", move.operation):
        if not outcome.error:
            return False
        # It ended ill: another attempt must not be taken for a repetition of this one.
        situation.move = replace(move, operation="", attempts=move.attempts + 1)
        situation.message = outcome.message
        return True
    called = (_token(situation, move), _undo_token(situation, move))
    if not move.operation or (outcome is not None and outcome.token in called and not accepted):
        return False  # a call of this process came after the end of the operation
    if situation.recorded:
        scene.acts.append(Follow(situation.address, move.operation))
    return True


def endless(scene: Scene, situation: Situation) -> str:
    """A message about a phase of a move that has lasted for :data:`STALLED` seconds; "" about a shorter one."""
    move = situation.move
    began = moment(move.started) if move is not None else 0.0
    if move is None or not began or move.phase not in DOING:
        return ""
    ends = began + STALLED
    if scene.now < ends:
        scene.wake(ends)
        return ""
    node = move.to if move.phase in ("Attaching", "RollingBack") else move.from_
    operation = f" (operation {move.operation})" if move.operation else ""
    why = f": {situation.message}" if situation.message else ""
    return (
        f"{situation.address}: {DOING[move.phase]} node {node} has not ended within {STALLED / 60:g} minutes"
        f"{operation}{why}; look at the address in the cloud. The hub goes on as soon as the cloud says where it is"
    )


def drop(scene: Scene, situation: Situation, *, failed: bool = False) -> None:
    """End the record; with ``failed``, the next move of the address waits."""
    situation.move, situation.dropped = None, True
    if failed:
        failures = situation.memory.failures + 1
        retry = scene.now + min(60.0, 5.0 * 2 ** (failures - 1))
        situation.memory = replace(situation.memory, failures=failures, retry=retry)


def _stranger(scene: Scene, situation: Situation, move: Move, state: AddressState) -> bool:
    """Whether something else than the nodes of the record has the address."""
    if not isinstance(state, Held):
        return False
    allocation = situation.allocation
    ours = {scene.instance(scene.key(allocation, name)) for name in (move.from_, move.to) if name}
    return state.instance not in ours | {situation.stored.instance}


# --- phases ------------------------------------------------------------------------------------------


def _detaching(scene: Scene, situation: Situation, move: Move, state: AddressState, outcome: Outcome | None) -> None:
    if isinstance(state, Free):
        if move.phase == "Releasing":
            _restore_or_end(scene, situation, move)
        else:
            _next_target(scene, situation, move)
        return
    assert isinstance(state, Held)  # noqa: S101 - follow() excludes the rest
    site = scene.site(situation.holder.cluster if situation.holder else situation.allocation.cluster)
    if site.problem:
        situation.message = f"{site.problem}; {LET_GO}" if move.phase == "Releasing" else site.problem
        return
    failed = outcome is not None and (outcome.error or move.attempts > TARGETS)
    if outcome is not None and failed and scene.now - moment(move.started) > DETACH_PATIENCE:
        situation.message = outcome.message or "the cloud detaches it without an error, but it is still there"
        drop(scene, situation, failed=True)
        return
    if not _cloud_acts(scene, situation, outcome) or not situation.recorded:
        return
    if labelled(scene, situation) or _without_effect(scene, situation, move, outcome):
        return
    order = Order(situation.address, state.instance, state, token=_token(situation, move))
    scene.acts.append(Detach(situation.address, order))


def labelled(scene: Scene, situation: Situation) -> bool:
    """Whether the node that has the address still has a label because of an address; the labels are taken off."""
    machine = scene.machine(situation.holder)
    return machine is not None and bool(scene.view.label_keys & machine.node.labels.keys())


def _attaching(scene: Scene, situation: Situation, move: Move, state: AddressState, outcome: Outcome | None) -> None:
    allocation = situation.allocation
    target = scene.key(allocation, move.to)
    instance = scene.instance(target)
    if isinstance(state, Held):
        if state.instance == instance:
            _attached(scene, situation, move, outcome)
        else:  # the record's other node has it
            drop(scene, situation)
        return
    situation.node = ""
    if problem := scene.site(target.cluster if target else allocation.cluster).problem:
        situation.message = problem
        return
    if not situation.recorded or not _cloud_acts(scene, situation, outcome):
        return
    mine = outcome if outcome is not None and outcome.token in (_token(situation, move), move.operation) else None
    undo = outcome if outcome is not None and outcome.token == _undo_token(situation, move) else None
    undone = undo is not None and (not undo.error or undo.failures >= TARGETS or not instance)
    why = "" if undo is not None else _why_not_target(scene, situation, move, target, mine)
    if undone or why:
        if undo is None and move.before_to and instance:  # an earlier process may have made room
            _undo(scene, situation, move, state, instance)
            return
        if target is not None:
            scene.avoid[target] = scene.now + AVOID
        situation.message = why
        _next_target(scene, situation, move)
        return
    if undo is not None:
        _undo(scene, situation, move, state, instance)
        return
    if _without_effect(scene, situation, move, mine):
        return
    order = Order(situation.address, instance, state, before=move.before_to, token=_token(situation, move))
    scene.acts.append(Attach(situation.address, order))


def _without_effect(scene: Scene, situation: Situation, move: Move, outcome: Outcome | None) -> bool:
    """Whether a step that succeeds, but is not described, must not be called now.

    It is described again until :data:`SEEN` is over. After :data:`TARGET_PATIENCE` the record gets another attempt, as
    the cloud may answer a repeated token with what it did the first time.
    """
    if outcome is None or outcome.error or outcome.order != _token(situation, move):
        return False
    if scene.now - outcome.first > TARGET_PATIENCE:
        situation.move = replace(move, operation="", attempts=move.attempts + 1)
        return True
    if outcome.step == "follow" or outcome.operation or scene.now >= outcome.at + SEEN:
        return False  # an operation may be a part of the step
    scene.refresh(situation.address, again=CHANGING_AGAIN)
    scene.wake(outcome.at + SEEN)
    return True


def _undo(scene: Scene, situation: Situation, move: Move, state: AddressState, instance: str) -> None:
    """Give a node that did not take the address back what it had before the attempt."""
    order = Order(situation.address, instance, state, before=move.before_to, token=_undo_token(situation, move))
    scene.acts.append(Restore(situation.address, order))


def _why_not_target(
    scene: Scene, situation: Situation, move: Move, target: NodeKey | None, outcome: Outcome | None
) -> str:
    """Why the address goes to another node than the record says; "" if it does not."""
    machine = scene.machine(target)
    if target is not None and target.cluster != situation.allocation.cluster and outcome is None:
        return f"cluster {situation.allocation.cluster} is asked for now"
    if target is None or machine is None or machine.instance is None:
        return f"node {move.to} is gone"
    called = outcome is not None and outcome.step != "follow"  # an earlier process may have made room only
    if machine.node.ready != "True" and not called and move.phase == "Attaching":
        return f"node {move.to} is not Ready"
    if move.attempts > TARGETS:
        return f"node {move.to} did not take it: its operations end with errors"
    if others := scene.occupied.get(target, set()) - {situation.address}:
        return f"node {move.to} has {min(others)}"
    if outcome is None or not outcome.error:
        return ""
    if outcome.error in ("unsupported", "terminal", "conflict") or scene.now - outcome.first > TARGET_PATIENCE:
        return f"node {move.to} did not take it: {outcome.message}"
    return ""


def _next_target(scene: Scene, situation: Situation, move: Move) -> None:
    """Go on to the next node; without one, back to the node that had the address; else the address waits."""
    allocation = situation.allocation
    attaching = move.phase == "Attaching"
    tried = (*move.tried, move.to) if attaching or move.phase == "RollingBack" else move.tried
    late = attaching and scene.now - moment(move.started) > ATTACH_PATIENCE
    if move.phase == "RollingBack" or ((len(tried) >= TARGETS or late) and not move.from_):
        drop(scene, situation, failed=True)
        situation.set("Pending", "Backoff", situation.message or "no node took it")
        return
    target: NodeKey | None = None
    if not (len(tried) >= TARGETS or late):
        target = _planned(scene, situation, move) if not attaching else None
        target = target or scene.choose(situation, tried)
        if situation.looking:
            return
    began = move.started if attaching else stamp(scene.now)
    if target is not None:
        to = name_of(allocation, target)
        before_to = _before(scene, target) or (move.before_to if to == move.to else "")
        changes = replace(move, phase="Attaching", to=to, before_to=before_to)
        situation.move = replace(changes, tried=tried[-8:], attempts=1, started=began, operation="")
        situation.to = to
        scene.busy.add(target)
        situation.set("Attaching", move.cause, situation.message)
        return
    back = scene.key(allocation, move.from_)
    if back is not None and scene.machine(back) is not None and not scene.gone(scene.instance(back)):
        situation.move = replace(
            move,
            phase="RollingBack",
            to=move.from_,
            before_to=_before(scene, back),
            tried=tried[-8:],
            attempts=1,
            started=stamp(scene.now),
            operation="",
        )
        situation.set("RollingBack", move.cause, situation.message or "no node can take it")
        return
    drop(scene, situation, failed=True)
    situation.set("Pending", "Backoff", situation.message or "no node can take it")


def _planned(scene: Scene, situation: Situation, move: Move) -> NodeKey | None:
    """The node that was chosen before the detach, if it still can take the address."""
    target = scene.key(situation.allocation, move.to)
    if target is None or target.cluster != situation.allocation.cluster:
        return None
    others = (found for found in scene.situations if found is not situation and found.move is not None)
    if any(name and scene.key(found.allocation, name) == target for found in others for name in _nodes(found)):
        return None  # an address that was attached by hand leaves it, and may have to go back
    scene.busy.discard(target)
    why = scene.why_not(situation, target)
    inspection = scene.view.inspections.get(scene.instance(target))
    if why or (inspection is not None and why_not_instance(inspection.state, situation.region)):
        return None
    return target


def _nodes(situation: Situation) -> tuple[str, ...]:
    return (situation.move.from_, situation.move.to) if situation.move is not None else ()


def _attached(scene: Scene, situation: Situation, move: Move, outcome: Outcome | None) -> None:
    """The address is where the record wanted it."""
    allocation = situation.allocation
    old_before = situation.stored.before
    done = outcome is not None and outcome.step == "attach" and outcome.token == _token(situation, move)
    situation.before = (outcome.before if done and outcome is not None else "") or move.before_to
    situation.instance = situation.answer.state.instance  # type: ignore[union-attr]
    situation.node = move.to
    situation.memory = replace(situation.memory, failures=0, retry=0.0, cause="", cause_since=0.0)
    back = move.phase == "RollingBack"
    if not back:
        situation.last_node = move.from_ or situation.stored.last_node
    if back or not move.from_ or scene.machine(scene.key(allocation, move.from_)) is None:
        drop(scene, situation)
        return
    give_back = old_before or scene.usual_before()
    if not give_back:
        drop(scene, situation)
        return
    situation.set("Attached", move.cause)
    situation.move = replace(
        move, phase="Restoring", before_to=give_back, operation="", attempts=1, started=stamp(scene.now)
    )


def _restore_or_end(scene: Scene, situation: Situation, move: Move) -> None:
    """After a release: give the node back what it had, then end the entry."""
    situation.node = situation.instance = ""
    give_back = situation.stored.before
    if give_back and scene.instance(scene.key(situation.allocation, move.from_)):
        situation.before = ""
        situation.move = replace(
            move, phase="Restoring", before_to=give_back, operation="", attempts=1, started=stamp(scene.now)
        )
    else:
        drop(scene, situation)


def _restoring(scene: Scene, situation: Situation, move: Move, outcome: Outcome | None) -> None:
    """Give the old node back what it had; after ten attempts the move ends anyway."""
    wanted = _token(situation, move)
    mine = outcome if outcome is not None and outcome.token in (wanted, move.operation) else None
    instance = scene.instance(scene.key(situation.allocation, move.from_))
    done = mine is not None and not mine.error and not mine.operation
    if done or not instance or move.attempts > RESTORES or (mine is not None and mine.failures >= RESTORES):
        if not done and instance:
            scene.find(
                situation.allocation.name,
                "MoveFailed",
                f"node {move.from_} did not get back what it had before {situation.address}: "
                f"{mine.message if mine else ''}",
                move.from_,
            )
        drop(scene, situation)
        return
    if situation.recorded and _cloud_acts(scene, situation, mine):
        state = situation.answer.state if situation.answer is not None else Free()
        order = Order(situation.address, instance, state, before=move.before_to, token=wanted)
        scene.acts.append(Restore(situation.address, order))


# --- helpers -----------------------------------------------------------------------------------------


def _cloud_acts(scene: Scene, situation: Situation, outcome: Outcome | None) -> bool:
    """Whether a call of the cloud may begin now."""
    view = scene.view
    if view.halted is not None:
        situation.message = view.halted[1]
        return False
    if scene.account.frozen:
        situation.message = scene.account.frozen
        return False
    if situation.allocation.paused:
        situation.message = "the allocation is paused"
        return False
    if scene.account.quota_until > scene.now:
        situation.message = "the account's quota is used up"
        scene.wake(scene.account.quota_until)
        return False
    if outcome is not None and outcome.error:
        again = outcome.at + min(LONGEST_RETRY, 0.5 * 2**outcome.failures)
        if scene.now < again:
            situation.message = outcome.message
            scene.wake(again)
            return False
    return True


def _token(situation: Situation, move: Move) -> str:
    attempt = str(move.attempts)
    return token(situation.allocation.uid, situation.address, move.id, move.phase, move.to, attempt)


def _undo_token(situation: Situation, move: Move) -> str:
    return token(situation.allocation.uid, situation.address, move.id, "undo", move.to)


def _before(scene: Scene, key: NodeKey | None) -> str:
    """What an inspected node has in the place of an address."""
    inspection = scene.view.inspections.get(scene.instance(key))
    state = inspection.state if inspection is not None else None
    return state.before if isinstance(state, Present) else ""
