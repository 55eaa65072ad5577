"""The plan of one account: from what is known to what should be done now. See :func:`plan`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hub.allocations import labels, machine
from hub.allocations.decide import decide
from hub.allocations.observe import REFUSED, hold, observe, releases, situations
from hub.allocations.scene import MOST_ALLOCATIONS, MOST_NODES, Scene, Situation
from hub.allocations.serve import Want, serve
from hub.allocations.spec import Allocation, Status
from hub.allocations.status import status
from hub.allocations.view import Evict, Finalize, Label, Memories, Plan, Questions, Site, Verdict, View
from hub.cloud.addresses import Elsewhere


def plan(view: View, now: float) -> Plan:
    """Decide what to do about all addresses of one account.

    The same view and time give the same plan, in whatever order the parts of the view come. What is unknown moves
    nothing. An act that needs a record comes only after the record was stored by this process.

    Args:
        view: what was observed, asked and done so far.
        now: the time, in the same clock as the times of the view.
    """
    scene = Scene(_within_limits(view), now)
    order_ = {found.uid: index for index, found in enumerate(sorted(view.allocations, key=lambda found: found.order))}
    allocations = sorted(view.allocations, key=lambda found: order_[found.uid])
    scene.refused = frozenset(found.uid for found in allocations[MOST_ALLOCATIONS:])
    for allocation in allocations:
        scene.situations += situations(scene, allocation)
    for situation in scene.situations:
        observe(scene, situation)
        if situation.live or releases(scene, situation):
            machine.reserve(scene, situation)
    wants: list[Want] = []
    for situation in scene.situations:
        if not hold(scene, situation):
            wants += decide(scene, situation, order_[situation.allocation.uid])
    serve(scene, wants)
    wanted = labels.wanted(scene)
    changed, suspects = labels.label(scene, wanted)
    labels.evict(scene, wanted)
    statuses = _statuses(scene, allocations)
    _due(scene)
    acts = tuple(act for act in scene.acts if _may(scene, act))
    halted = tuple(act for act in scene.acts if isinstance(act, Label | Evict | Finalize) and view.halted is not None)
    claimed = [found for found in reversed(scene.situations) if found.claimed]  # of several claims, the oldest counts
    memory = Memories(
        {found.address: found.memory for found in claimed},
        scene.avoid,
        changed,
        suspects,
        scene.stopped,
        scene.used(),
    )
    return Plan(
        statuses,
        acts,
        halted,
        Questions(scene.describe, frozenset(scene.inspect), frozenset(scene.pods)),
        tuple(scene.findings),
        scene.next,
        {found.address: _verdict(found) for found in claimed},
        memory,
        frozenset(wanted) | labels.unknown(scene),
    )


def _within_limits(view: View) -> View:
    """The view; nothing is known about a cluster with too many nodes."""
    large = {
        name: Site(
            name,
            problem=f"cluster {name} has {len(site.machines)} nodes; addresses move in clusters of up to {MOST_NODES}",
        )
        for name, site in view.sites.items()
        if len(site.machines) > MOST_NODES
    }
    return replace(view, sites={**view.sites, **large}) if large else view


# --- the results -------------------------------------------------------------------------------------


def _statuses(scene: Scene, allocations: Sequence[Allocation]) -> dict[str, Status]:
    found: dict[str, Status] = {}
    for allocation in allocations:
        mine = [situation for situation in scene.situations if situation.allocation is allocation]
        kept = [situation for situation in mine if situation.state]
        stalled = _stalled(scene, allocation, kept)
        found[allocation.name] = status(allocation, kept, scene.account.name, stalled, scene.view.identity, scene.now)
        for bad in allocation.bad:
            scene.find(allocation.name, "AddressInvalid", f"{bad.text!r} {bad.why}", bad.text)
        for situation in kept:
            if situation.state == "Invalid":
                text = f"{situation.address}: {situation.message}"
                scene.find(allocation.name, "AddressInvalid", text, situation.address)
        wants_finalizer = allocation.release and not (allocation.deleting and not kept)
        if allocation.finalizer != wants_finalizer:
            scene.acts.append(Finalize(allocation.name, wants_finalizer))
    return found


def _stalled(scene: Scene, allocation: Allocation, kept: Sequence[Situation]) -> tuple[str, str] | None:
    account = scene.account
    if allocation.uid in scene.refused:
        return REFUSED
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
    endless = [text for situation in kept if (text := machine.endless(scene, situation))]
    return ("OperationStalled", "; ".join(endless)) if endless else None


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
