"""Which of the wanted moves begin: limits, approvals and candidates, in the order of service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from hub.allocations import machine
from hub.allocations.budget import budget, withheld_hash
from hub.allocations.eligible import ready
from hub.allocations.scene import Scene, Situation, name_of
from hub.model import LABEL_CONTROL_PLANE

ACTIVE: Final = ("Detaching", "Attaching", "RollingBack", "Releasing")


class Want(NamedTuple):
    """An address that should move, with its place in the order of service: the hub's own node comes last."""

    order: tuple[bool, int, float, tuple[str, str], int]
    situation: Situation
    cause: str
    at: float


def acts(scene: Scene, situation: Situation) -> str:
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


def serve(scene: Scene, wants: Sequence[Want]) -> None:
    """Begin the moves that limits and candidates allow, in the order of service."""
    active = sum(1 for found in scene.situations if found.move is not None and found.move.phase in ACTIVE)
    for cluster in sorted({want.situation.allocation.cluster for want in wants}):
        pool = sorted(
            (want for want in wants if want.situation.allocation.cluster == cluster), key=lambda want: want.order
        )
        active = _serve_pool(scene, cluster, pool, active)


def _serve_pool(scene: Scene, cluster: str, wants: Sequence[Want], active: int) -> int:
    members = list(scene.of_pool(cluster))
    attached = sum(found.holder is not None or bool(found.move and found.move.from_) for found in members)
    # Moves of a claim that was lost since then count too.
    stored = (found.stored for found in scene.situations if found.allocation.cluster == cluster)
    left = budget(stored, attached, scene.limits, scene.now)
    moving = [(want.situation.address, want.cause) for want in wants if want.cause != "Free"]
    begun, spent = 0, left.left
    withheld: list[Want] = []
    down = ""
    approval = withheld_hash(scene.account.name, cluster, moving)
    approved = approval in scene.view.approvals
    for want in wants:
        situation = want.situation
        state = "Pending" if want.cause == "Free" else "Leaving"
        if situation.holder is not None and situation.holder == scene.own and "source" in scene.account.cuts:
            situation.set(state, "OwnNode", "the hub runs on the node and would be cut off (limits ownNode)")
            scene.find(situation.allocation.name, "OwnNodeWaits", f"{situation.address}: {situation.message}")
            continue
        target = scene.choose(situation)
        if situation.looking and situation.stored.state == state:
            situation.set(state, situation.stored.reason, situation.stored.message)  # until the node is inspected
            continue
        if target is None:
            situation.set(state, "NoNode" if state == "Pending" else "NoCandidate", _no_node(situation))
            continue
        situation.to = name_of(situation.allocation, target)
        if want.cause == "NotReady" and situation.holder is not None:
            down = down or _down(scene, situation.holder.cluster)
        if want.cause != "Free" and not approved and (spent <= 0 or (want.cause == "NotReady" and down)):
            withheld.append(want)
            continue
        if reason := acts(scene, situation):
            situation.set(state, reason, situation.message)
            scene.busy.update({target} if scene.view.halted is not None else ())  # a plan must be possible as a whole
            continue
        if active + begun >= scene.limits.concurrent:
            situation.set(state, "Queued", f"{scene.limits.concurrent} moves of the account are under way")
            continue
        begun += 1
        spent -= want.cause != "Free"
        machine.begin(scene, situation, want.cause, "Attaching" if want.cause == "Free" else "Detaching", target)
        situation.set("Attaching" if want.cause == "Free" else "Detaching", want.cause, situation.message)
    if withheld:
        _withhold(scene, cluster, withheld, approval, down, left.again)
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
            f"hub approve allocation/{name} {approval}{scene.view.approving} lets them begin",
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


def _no_node(situation: Situation) -> str:
    """Why no node takes the address: the commonest reasons."""
    reasons: dict[str, int] = {}
    for why in situation.why_not.values():
        reasons[why] = reasons.get(why, 0) + 1
    parts = [f"{count} x {why}" for why, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))[:3]]
    because = f"no node can take it: {'; '.join(parts)}" if parts else "no node can take it"
    return f"{situation.leave.message}; {because}" if situation.leave else because
