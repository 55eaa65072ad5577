"""Why an attached address leaves its node, and when it may.

A cause needs evidence, never the lack of an answer. A node that serves (its instance runs, it is Ready, and it is
schedulable or has Pods of the workload) loses an address only as Misplaced, or when ``cordonedHold`` has expired.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hub.allocations.eligible import DOWN_TAINTS, LEAVING_TAINTS, misfit, ready, taint
from hub.allocations.spec import NEVER, Allocation, Entry, moment
from hub.allocations.view import CAUSES, Inspection, Machine, Memory, Pods
from hub.cloud.addresses import Gone, Present
from hub.registry.spec import AllocationLimits

TWICE: Final = 2.0
"""Seconds between two answers that confirm each other."""
DRAINED_WAIT: Final = 5.0
REMOVED_WAIT: Final = 60.0
MISPLACED_WAIT: Final = 60.0
REST: Final = 30.0
"""Seconds between two moves of an address, but for Gone; Misplaced has ``dwell``."""
FLAPPING_REST: Final = 1800.0
"""Seconds that an address stays on nodes that are not Ready after ``perAddress`` moves."""


class Leave(NamedTuple):
    """A cause that holds.

    Attributes:
        cause: the cause; "Cordoned" = the node is cordoned, but its workload has not left.
        at: when the address may leave; :data:`NEVER` if time alone does not change that.
        reason: why it waits, in the status: Grace, Dwell, PodsRunning or Flapping.
        message: one sentence for an operator.
        inspect: whether the instance is in doubt and must be inspected.
    """

    cause: str
    at: float
    reason: str
    message: str
    inspect: bool = False


def order(cause: str) -> int:
    """The place of a cause in the order of service."""
    return CAUSES.index(cause)


def is_stopped(inspection: Inspection | None) -> bool:
    """Whether an inspection shows that the instance does not run."""
    return inspection is not None and (
        isinstance(inspection.state, Gone) or (isinstance(inspection.state, Present) and not inspection.state.running)
    )


def leave(
    allocation: Allocation,
    entry: Entry,
    memory: Memory,
    machine: Machine | None,
    *,
    gone: bool,
    pods: Pods | None,
    moved: str,
    limits: AllocationLimits,
    now: float,
) -> Leave | None:
    """The first cause that holds for an address on a node; None if none does.

    Args:
        allocation: the allocation with the claim.
        entry: the stored status of the address.
        memory: what the planner remembers of the address, for the time since when a cause holds.
        machine: the node; None = its Node object is gone, in a cluster whose list of nodes is complete.
        gone: whether two inspections found that the instance does not run.
        pods: the Pods on the node; None = unknown.
        moved: why the address is on the wrong node for a reason that the node does not show (cluster, second address).
        limits: limits of the registry.
        now: the time.
    """
    last_move = max(map(moment, entry.moves), default=0.0)
    rested = max(memory.placed, last_move)

    def since(cause: str) -> float:
        return memory.cause_since if memory.cause == cause else now

    if gone:
        return Leave("Gone", now, "", "its instance does not run", inspect=True)
    if machine is None:
        at = max(since("NodeRemoved") + REMOVED_WAIT, rested + REST)
        return Leave("NodeRemoved", at, "Grace", "its Node object is gone", inspect=True)
    node = machine.node
    if not ready(node):
        if node.deleting or taint(node, DOWN_TAINTS):
            what = "is being deleted" if node.deleting else f"has the taint {taint(node, DOWN_TAINTS)}"
            return Leave(
                "OutOfService", max(now, last_move + REST), "Dwell", f"the node {what} and is not Ready", inspect=True
            )
        recent = [at for at in map(moment, entry.moves) if now - at < limits.per_address_window]
        message = f"the node is not Ready for {allocation.not_ready_grace:g} s"
        if len(recent) >= limits.per_address and now < last_move + FLAPPING_REST:
            why = f"{message}, but the address moved {len(recent)} times in {limits.per_address_window:g} s"
            return Leave("NotReady", last_move + FLAPPING_REST, "Flapping", why, inspect=True)
        at = max(machine.unready_since + allocation.not_ready_grace, last_move + REST)
        return Leave("NotReady", at, "Grace", message, inspect=True)
    drained: Leave | None = None
    if node.unschedulable or taint(node, LEAVING_TAINTS):
        drained = _drained(allocation, memory, machine, pods, rested, now)
        if drained.cause == "Drained":
            return drained
    wrong = moved or misfit(node, allocation)
    if wrong:
        at = max(since("Misplaced") + MISPLACED_WAIT, rested + limits.dwell)
        return Leave("Misplaced", at, "Dwell", wrong)
    return drained


def _drained(
    allocation: Allocation, memory: Memory, machine: Machine, pods: Pods | None, rested: float, now: float
) -> Leave:
    """The cause of a node that is cordoned or about to be removed."""
    node = machine.node
    mark = taint(node, LEAVING_TAINTS)
    what = f"the node has the taint {mark}" if mark else "the node is cordoned"
    workload = allocation.workload
    if workload is None:
        why = what
    elif pods is not None and not pods.workload:
        why = f"{what} and has no Pod of {workload}"
    elif workload.kind == "DaemonSet" and pods is not None and mark and not pods.others:
        why = f"{what} and only Pods of DaemonSets"
    else:
        hold = allocation.cordoned_hold
        cordoned = memory.cause_since if memory.cause == "Cordoned" else now
        expired = hold != NEVER and (memory.cause == "Drained" or now >= cordoned + hold)
        known = "still runs there" if pods is not None else "may run there: its Pods are not known"
        why = f"{what}; {workload} {known}"
        if not expired:
            return Leave("Cordoned", cordoned + hold if hold != NEVER else NEVER, "PodsRunning", why)
        why = f"{why}, but cordonedHold has expired"
    began = memory.cause_since if memory.cause == "Drained" else now
    return Leave("Drained", max(began + DRAINED_WAIT, rested + REST), "Grace", why)
