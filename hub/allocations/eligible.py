"""Which nodes may take an address, and why the others may not."""

from __future__ import annotations

from typing import Final

from hub.allocations.spec import Allocation
from hub.allocations.view import Machine
from hub.cloud.addresses import Gone, InstanceState, Present, Unsupported
from hub.model import LABEL_CONTROL_PLANE, LABEL_ZONE, Node

LABEL_REGION: Final = "topology.kubernetes.io/region"
LEAVING_TAINTS: Final = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")
"""Taints of a node that an autoscaler is about to remove."""
DOWN_TAINTS: Final = ("node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown")
"""Taints of a node whose machine is known to be off."""
READY_FOR: Final = 10.0
"""Seconds that a node must have been Ready before it takes an address."""


def ready(node: Node) -> bool:
    """Whether the node is Ready."""
    return node.ready == "True"


def taint(node: Node, keys: tuple[str, ...]) -> str:
    """The first of these taints that the node has; "" if it has none."""
    return next((found.key for found in node.taints if found.key in keys), "")


def misfit(node: Node, allocation: Allocation) -> str:
    """Why the node is not one that the allocation asks for; "" if it is."""
    for key, value in allocation.selector:
        if node.labels.get(key) != value:
            return f"nodeSelector asks for {key}={value}"
    if not allocation.selector and LABEL_CONTROL_PLANE in node.labels:
        return "it is a control plane node; a nodeSelector may name it"
    zone = node.labels.get(LABEL_ZONE, "")
    if allocation.zones and zone not in allocation.zones:
        return f"its zone {zone or 'is not known'} is not in cloud.zones"
    region = node.labels.get(LABEL_REGION, "")
    if allocation.region and region and region != allocation.region:
        return f"its region {region} is not cloud.region"
    return ""


def why_not_node(machine: Machine, allocation: Allocation, now: float) -> str:
    """Why the node may not take an address, by what Kubernetes says of it; "" if it may."""
    node = machine.node
    if node.deleting:
        return "it is being deleted"
    if not ready(node):
        return "it is not Ready"
    if node.unschedulable:
        return "it is cordoned"
    if leaving := taint(node, LEAVING_TAINTS + DOWN_TAINTS):
        return f"it has the taint {leaving}"
    if wrong := misfit(node, allocation):
        return wrong
    if machine.instance is None:
        return "its providerID is not one of the account"
    if now - machine.ready_since < READY_FOR:
        return f"it is Ready for less than {READY_FOR:g} s"
    return ""


def why_not_instance(state: InstanceState, region: str) -> str:
    """Why the instance may not take an address of a region, by what the cloud says of it; "" if it may."""
    match state:
        case Present(running=False):
            return "its instance is not running"
        case Present(room=False, why=why):
            return why or "its interface cannot take an address"
        case Present(region=other) if region and other and other != region:
            return f"its instance is in region {other}, the address in {region}"
        case Present():
            return ""
        case Gone(reason) | Unsupported(reason):
            return reason
        case _:
            return f"its instance is not known: {state.reason}"
