"""What the hub knows as a cloud controller, as values; empty where no cluster has ``cloud:``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hub.model import Finding, ObjectKey
from hub.report.held import approving_flags
from hub.report.hub_state import HubState
from hub.report.values import CloudBalancer, CloudFinding, CloudNode, Clouds, ClusterCloud
from hub.runtime.clock import rfc3339

if TYPE_CHECKING:
    from hub.controlling.balancers import BalancerPart
    from hub.controlling.cluster import ControlledCluster
    from hub.controlling.nodes import NodePart
    from hub.controlling.told import Told


def clouds_of(hub: HubState) -> Clouds:
    """All clusters with a cloud controller, in the registry's order."""
    if hub.controlling is None:
        return Clouds()
    flags = approving_flags(hub)
    return Clouds(tuple(_cluster(found, flags) for found in hub.controlling.clusters.values()))


def clouds_in_status(hub: HubState) -> tuple[ClusterCloud, ...] | None:
    """The same without the Nodes; None if no cluster has a cloud controller."""
    found = clouds_of(hub).clusters
    return tuple(replace(cluster, nodes=()) for cluster in found) or None


def _cluster(found: ControlledCluster, flags: str) -> ClusterCloud:
    halted, duty = found.halted, found.duty
    reason, message = halted or ("", "")
    where = "held" if halted is None else "elsewhere" if reason == "OtherCloudController" else "waiting"
    nodes = _nodes(found, found.nodes_part) if found.nodes_part is not None else ()
    balancers = _balancers(found.balancers_part) if found.balancers_part is not None else ()
    deletions = found.nodes_part.deletions if found.nodes_part is not None else None
    approve = f"hub approve cloud/{found.name} {deletions.digest}{flags}" if deletions and deletions.withheld else ""
    return ClusterCloud(
        found.name,
        found.spec.provider.name,
        found.spec.cluster_name,
        "manage" if found.spec.manage else "observe",
        where,
        duty.holder if duty is not None else "",
        reason,
        message or _problem(found),
        found.account.status.error,
        dict(Counter(node.state for node in nodes)),
        nodes,
        balancers,
        found.balancers_part.leftovers if found.balancers_part is not None else (),
        approve,
    )


def _problem(found: ControlledCluster) -> str:
    nodes = found.nodes_part.problem if found.nodes_part is not None else ""
    return "; ".join(filter(None, (found.lacking, nodes)))


def _nodes(found: ControlledCluster, part: NodePart) -> tuple[CloudNode, ...]:
    return tuple(
        CloudNode(name, told.state, rfc3339(told.since), told.message, node.provider_id, _findings(told.findings))
        for name, told in sorted(part.told.items())
        if (node := found.nodes.get(name)) is not None
    )


def _balancers(part: BalancerPart) -> tuple[CloudBalancer, ...]:
    return tuple(_balancer(part, key, told) for key, told in sorted(part.told.items()))


def _balancer(part: BalancerPart, key: ObjectKey, told: Told) -> CloudBalancer:
    service = part.services.objects.get(key)
    ingress = service.ingress if service is not None else ()
    return CloudBalancer(
        str(key),
        told.state,
        rfc3339(told.since),
        told.message,
        dict(told.ids),
        tuple(entry.hostname or entry.ip for entry in ingress),
        told.steps,
        _findings(told.findings),
    )


def _findings(found: Iterable[Finding]) -> tuple[CloudFinding, ...]:
    return tuple(CloudFinding(finding.reason, finding.message) for finding in found)
