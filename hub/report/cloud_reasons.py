"""The decisions of the cloud controller about a Node or a Service of one cluster, for ``hub why --cluster``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from hub.errors import closest, did_you_mean
from hub.model import ObjectKey, join_first
from hub.report.clouds import cluster_cloud
from hub.report.hub_state import HubState
from hub.report.values import CloudBalancer, CloudNode, ClusterCloud, Step, Why

if TYPE_CHECKING:
    from hub.controlling.balancers import BalancerPart
    from hub.controlling.cluster import ControlledCluster

NAMED: Final = 10
"""Most nodes of a balancer that are named."""


def why_in_cluster(hub: HubState, subject: str, cluster: str) -> Why:
    """The explanation of a Node's name, or of ``namespace/name`` of a Service of type LoadBalancer."""
    kind: Literal["node", "Service"] = "Service" if "/" in subject else "node"
    clusters = hub.controlling.clusters if hub.controlling is not None else {}
    found = clusters.get(cluster)
    if found is None:
        hint = did_you_mean(cluster, clusters)
        text = f"the hub is not the cloud controller of a cluster {cluster}" + (f" ({hint})" if hint else "")
        return Why(subject, kind, known=False, unknown=(text,), cluster=cluster)
    cloud = cluster_cloud(hub, found)
    unknown = tuple(f"cluster {cluster}: {text}" for text in dict.fromkeys((cloud.problem, cloud.error)) if text)
    about: CloudNode | CloudBalancer | None
    if kind == "Service":
        about = next((each for each in cloud.balancers if each.service == subject), None)
        known = [each.service for each in cloud.balancers]
    else:
        about = next((each for each in cloud.nodes if each.name == subject), None)
        known = [each.name for each in cloud.nodes]
    if about is None:
        hint = closest(subject, known)
        return Why(subject, kind, known=False, unknown=unknown, hint=hint, cluster=cluster)
    steps = (*_duty(cloud), *(_node(found, about) if isinstance(about, CloudNode) else _balancer(found, about)))
    return Why(subject, kind, known=True, steps=steps, unknown=unknown, cluster=cluster)


def cluster_of(hub: HubState, subject: str) -> str:
    """The first cluster whose Node or balanced Service the subject is; "" if there is none."""
    for name, found in hub.controlling.clusters.items() if hub.controlling is not None else ():
        nodes = found.nodes_part.told if found.nodes_part is not None else {}
        balancers = found.balancers_part.told if found.balancers_part is not None else {}
        if subject in nodes or any(str(key) == subject for key in balancers):
            return name
    return ""


def _duty(cloud: ClusterCloud) -> Iterator[Step]:
    why = f"{cloud.reason}: {cloud.message}" if cloud.reason else f"cloud {cloud.provider}, {cloud.mode}"
    yield Step("duty", cloud.cluster, cloud.duty, why)


def _state(stage: str, about: CloudNode | CloudBalancer, name: str) -> Iterator[Step]:
    yield Step(stage, name, about.state, "; ".join(filter(None, (about.message, f"since {about.since}"))))
    yield from (Step("finding", name, finding.reason, finding.message) for finding in about.findings)


# --- Nodes -------------------------------------------------------------------------------------------


def _node(found: ControlledCluster, about: CloudNode) -> Iterator[Step]:
    part, node = found.nodes_part, found.nodes.get(about.name)
    if part is None or node is None:
        return
    yield Step("machine", about.provider_id or about.name, about.instance or "not asked", part.machine(about.name)[1])
    yield from _state("node", about, about.name)
    for change in about.changes:
        yield Step("change", about.name, "comes next", change)
    if (deletion := part.why_not_deleted(about.name)) is not None:
        yield Step("deletion", about.name, *deletion)
    if found.balancers_part is not None and found.account.type is not None:
        from hub.controller.services import unbalanced

        why = unbalanced(node, found.account.type.provider_id)
        yield Step("balancers", about.name, "no" if why else "yes", why or "balancers send traffic to it")


# --- load balancers ----------------------------------------------------------------------------------


def _balancer(found: ControlledCluster, about: CloudBalancer) -> Iterator[Step]:
    part = found.balancers_part
    if part is None:
        return
    yield from _state("balancer", about, about.service)
    key = ObjectKey(*about.service.split("/", 1))
    yield from _wishes(found, part, key)
    nodes = part.nodes_of(key)
    yield Step("nodes", about.service, str(len(nodes)), join_first(nodes, NAMED))
    yield from (Step("object", kind, id_, "in the cloud") for kind, id_ in sorted(about.ids.items()))
    yield from (Step("ingress", about.service, address, "in the Service's status") for address in about.ingress)
    yield from (Step("step", about.service, "comes next", text) for text in about.steps)


def _wishes(found: ControlledCluster, part: BalancerPart, key: ObjectKey) -> Iterator[Step]:
    """What the Service asks for: its ports, and every annotation of the cloud with its value or default."""
    service, type_ = part.services.objects.get(key), found.account.type
    if service is None or type_ is None:
        return
    from hub.controller.annotations import written_key

    for port in service.ports:
        yield Step("port", f"{port.port}/{port.protocol}", f"nodePort {port.node_port or 'missing'}", port.name)
    for each in type_.annotations:
        where = written_key(each, service.annotations, type_.prefix)
        value = service.annotations.get(where)
        outcome = repr(value) if value is not None else f"absent, so {each.default or 'not sent'}"
        yield Step("annotation", where, outcome, each.help)
