"""Why an address leaves a node that is drained."""

from __future__ import annotations

import pytest

from hub.allocations.causes import leave
from hub.allocations.spec import Allocation, Entry, WorkloadRef
from hub.allocations.view import Machine, Memory, Pod, Pods
from hub.model import Node, Taint
from hub.registry.spec import AllocationLimits

NOW = 1_800_000_000.0
ADDRESS = "198.18.0.1"


def cause(kind: str, others: int, taint: str = "") -> str:
    """The cause for a cordoned node with a Pod of a workload of this kind, other Pods, and a taint."""
    workload = WorkloadRef("web", kind=kind)
    taints = (Taint(taint, "NoSchedule"),) if taint else ()
    found = leave(
        Allocation("web", "u1", ("", "u1"), (ADDRESS,), workload=workload, cordoned_hold=300.0),
        Entry(ADDRESS),
        Memory("i-n1", NOW - 900),
        Machine(Node("n1", ready="True", unschedulable=True, taints=taints), "i-n1", NOW - 900),
        gone=False,
        pods=Pods((Pod("edge", "web-1", "p1"),), others),
        moved="",
        limits=AllocationLimits(),
        now=NOW,
    )
    return found.cause if found is not None else ""


@pytest.mark.parametrize("taint", ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"])
def test_an_autoscaler_ends_the_hold_of_a_daemonset(taint: str) -> None:
    """Its Pod stays during a drain, so the drain is over when it is the only one that is left."""
    assert cause("DaemonSet", 0, taint) == "Drained"
    assert cause("DaemonSet", 1, taint) == "Cordoned", "another Pod is still there"
    assert cause("DaemonSet", 0) == "Cordoned", "somebody may uncordon the node again"
    assert cause("Deployment", 0, taint) == "Cordoned", "its own Pod is still there"
