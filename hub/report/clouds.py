"""What the hub knows as a cloud controller, as values; empty where no cluster has ``cloud:``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hub.model import Finding, Node, ObjectKey
from hub.report.allocations import Write
from hub.report.held import approving_flags
from hub.report.hub_state import HubState
from hub.report.values import CloudBalancer, CloudFinding, CloudNode, Clouds, ClusterCloud
from hub.runtime.clock import rfc3339

if TYPE_CHECKING:
    from hub.controlling.balancers import BalancerPart
    from hub.controlling.cluster import ControlledCluster
    from hub.controlling.nodes import NodePart
    from hub.controlling.nodes import Told as ToldNode
    from hub.controlling.told import Told


NAMED: Final = 20
"""Most Nodes of a cluster in a Status."""
CLOUD_KINDS: Final = ("node", "balancer")
"""Kinds of the writes of cloud controllers."""


def clouds_of(hub: HubState) -> Clouds:
    """All clusters with a cloud controller, in the registry's order."""
    if hub.controlling is None:
        return Clouds()
    return Clouds(tuple(cluster_cloud(hub, found) for found in hub.controlling.clusters.values()))


def clouds_in_status(hub: HubState) -> tuple[ClusterCloud, ...] | None:
    """The same with the first troubled Nodes only; None if no cluster has a cloud controller."""
    return tuple(replace(cluster, nodes=_troubled(cluster)) for cluster in clouds_of(hub).clusters) or None


def _troubled(cluster: ClusterCloud) -> tuple[CloudNode, ...]:
    return tuple(islice((node for node in cluster.nodes if node.state not in ("ready", "foreign")), NAMED))


def cloud_writes(found: Clouds) -> Iterator[Write]:
    """The writes to Nodes, to Services and to the cloud that come next, in order; not those that are withheld."""
    for cluster in found.clusters:
        from hub.controller.course import WAIT  # not loaded without a cloud controller

        for node in cluster.nodes:
            for change in node.changes if node.state not in ("foreign", "withheld") else ():
                yield Write("node", f"{cluster.cluster}/{node.name}", change)
        for balancer in cluster.balancers:
            for step in balancer.steps if balancer.state not in ("foreign", "withheld") else ():
                if not step.startswith(WAIT):
                    yield Write("balancer", f"{cluster.cluster} {balancer.service}", step)


def cluster_cloud(hub: HubState, found: ControlledCluster) -> ClusterCloud:
    """One cluster with a cloud controller."""
    halted, duty = found.halted, found.duty
    node_part, balancer_part = found.nodes_part, found.balancers_part
    reason, message = halted or ("", "")
    where = "held" if halted is None else "elsewhere" if reason == "OtherCloudController" else "waiting"
    nodes = _nodes(found, node_part) if node_part is not None else ()
    balancers = _balancers(balancer_part) if balancer_part is not None else ()
    deletions = node_part.deletions if node_part is not None else None
    approve = (
        f"hub approve cloud/{found.name} {deletions.digest}{approving_flags(hub)}"
        if deletions and deletions.withheld
        else ""
    )
    problem = found.problem or (balancer_part.services.problem if balancer_part is not None else "")
    trouble = found.lacking or problem, node_part.problem if node_part is not None else ""
    message = "; ".join(filter(None, (message, found.lacking) if message else trouble))
    return ClusterCloud(
        found.name,
        found.spec.provider.name,
        found.spec.cluster_name,
        "manage" if found.spec.manage else "observe",
        where,
        duty.holder if duty is not None else "",
        reason,
        message,
        problem,
        found.account.status.error,
        rfc3339(found.since),
        dict(Counter(node.state for node in nodes)),
        {node.state: node.since for node in sorted(nodes, key=lambda node: node.since, reverse=True)},
        nodes,
        balancers,
        balancer_part.leftovers if balancer_part is not None else (),
        approve,
    )


def _nodes(found: ControlledCluster, part: NodePart) -> tuple[CloudNode, ...]:
    return tuple(_node(part, node, told) for name, told in sorted(part.told.items()) if (node := found.nodes.get(name)))


def _node(part: NodePart, node: Node, told: ToldNode) -> CloudNode:
    verdict = part.verdicts.get(node.name)
    return CloudNode(
        node.name,
        told.state,
        rfc3339(told.since),
        told.message,
        node.provider_id,
        part.machine(node.name)[0],
        tuple(change.summary for change in verdict.changes) if verdict is not None else (),
        _findings(told.findings),
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
