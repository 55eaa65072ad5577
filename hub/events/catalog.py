"""Every reason of the Events that the hub writes, with its meaning and the remedy.

The recorder, the reference page and the tests use this catalog. A finding whose reason is not in it makes no Event; the
status page and ``hub status`` still show it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from hub.model import MANAGED_BY

On = Literal["Service", "hub", "NetIPAllocation", "Node"]


class Reason(msgspec.Struct, frozen=True):
    """One reason.

    Attributes:
        name: the Event's reason, CamelCase.
        type: Normal or Warning.
        action: the hub's action that caused the Event, for the Event's ``action`` field.
        on: the object of the Event: the Service, the allocation, or the hub itself if a cluster or the registry is
            concerned.
        meaning: explanation on the reference page.
        remedy: what to do, on the reference page; "" = nothing.
        after: seconds that a finding must last before it makes an Event, since some appear briefly with each new node.
        every: shortest time between two Events of this reason on one object, seconds; occurrences in between are
            merged.
        momentary: whether the reason is an occurrence; otherwise it is a state that lasts until it ends.
        by_source: whether each source cluster has an Event of its own; its name begins the message.
        component: the Event's ``reportingController``.
    """

    name: str
    type: Literal["Normal", "Warning"]
    action: str
    on: On
    meaning: str
    remedy: str = ""
    after: float = 0.0
    every: float = 0.0
    momentary: bool = False
    by_source: bool = False
    component: str = MANAGED_BY


_all: dict[str, Reason] = {}


def _normal(name: str, action: str, on: On, meaning: str, remedy: str = "", every: float = 0.0) -> Reason:
    """Add a reason that is an occurrence."""
    made = _all[name] = Reason(name, "Normal", action, on, meaning, remedy, every=every, momentary=True)
    return made


def _warning(
    name: str, action: str, on: On, meaning: str, remedy: str, *, after: float = 0.0, by_source: bool = True
) -> Reason:
    """Add a reason that is a state."""
    made = _all[name] = Reason(name, "Warning", action, on, meaning, remedy, after, by_source=by_source)
    return made


# --- what was written, and what was not ----------------------------------------------------------------
PUBLISHED: Final = _normal(
    "EndpointsPublished",
    "Publish",
    "Service",
    "EndpointSlices of the Service were written; at most one Event in 30 s gives the result of the last write",
    every=30.0,
)
_warning(
    "EmptyResultHeld",
    "Withhold",
    "Service",
    "a source with endpoints answers that it has none; their removal is withheld until `emptyResults` answers agree",
    "check whether the cluster really has no nodes; `hub approve` removes the endpoints at once",
)
_normal(
    "EmptyResultAccepted",
    "Publish",
    "Service",
    "`guard.emptyResults` answers in a row said that a source is empty: its endpoints were removed",
)
_warning(
    "FilteredEmpty",
    "Withhold",
    "Service",
    "nodes exist, but readiness, the selector, `allowedCIDRs` or the provider exclude them all; the removal of their "
    "endpoints is withheld until it is approved",
    "`hub nodes CLUSTER` says why each node is excluded; repair that, or run `hub approve`",
)
_warning(
    "RemovalWithheld",
    "Withhold",
    "Service",
    "more endpoints would be removed at once than `maxRemoval` allows; the removal is withheld for `maxRemovalHold`",
    "`hub plan` shows the removal; `hub approve` approves it at once",
)
_normal(
    "PlanReleased",
    "Publish",
    "Service",
    "the answer did not change for `maxRemovalHold`: the withheld removal was carried out",
)
APPROVED: Final = _normal(
    "ApprovalUsed",
    "Publish",
    "Service",
    "a withheld removal was approved and carried out (for a removal from the registry, the Event is on the hub)",
)
# --- clusters ------------------------------------------------------------------------------------------
UNREACHABLE: Final = _warning(
    "ClusterUnreachable",
    "Watch",
    "hub",
    "the hub cannot connect to the API server of a cluster; its endpoints stay, unless `unreachable` says otherwise",
    "check the network between the hub and that API server",
)
DEGRADED: Final = _warning(
    "ClusterDegraded",
    "Watch",
    "hub",
    "the hub cannot use a cluster until an operator acts: 401, 403, a certificate, a kubeconfig; its endpoints stay",
    "the message says what is missing",
)
RECOVERED: Final = _normal("ClusterRecovered", "Watch", "hub", "the nodes of a cluster are followed again")
_warning(
    "ClusterDisrupted",
    "Resolve",
    "hub",
    "more of a cluster's nodes are not Ready than `nodes.maxNotReady` allows: no endpoint is removed for that",
    "check that cluster; the endpoints are removed once fewer nodes are not Ready, or the nodes are gone",
)
WRONG_CLUSTER: Final = _warning(
    "WrongCluster",
    "Watch",
    "hub",
    "another cluster than before answers under a name of the registry; its answers are ignored",
    "correct the kubeconfig; if the cluster was rebuilt: `hub approve cluster/NAME HASH`",
)
CREDENTIAL: Final = _warning(
    "CredentialExpiring",
    "Watch",
    "hub",
    "a token or client certificate that is not renewed expires within 14 days, with at most a fifth of its life left; "
    "or the hub failed to renew it at half its life",
    "the message says why; or renew it in the kubeconfig: the hub uses a replaced file or Secret within seconds",
    after=300.0,
)
# --- providers and nodes -------------------------------------------------------------------------------
PROVIDER: Final = _warning(
    "ProviderFailed",
    "Resolve",
    "hub",
    "a provider cannot answer for a cluster; known addresses stay, new nodes wait",
    "`hub providers` and the message say why: a token, a quota, an outage, the plugin itself",
    after=10.0,
)
_warning(
    "NodeAmbiguous",
    "Resolve",
    "Service",
    "the provider finds more than one candidate for a node; the node's endpoint stays unchanged",
    "the message names the candidates: remove or rename duplicates",
)
_warning(
    "NodeUnresolved",
    "Resolve",
    "Service",
    "the provider has not given the address of eligible nodes for a minute; new nodes are not published",
    "`hub nodes CLUSTER` says why for each",
    after=60.0,
)
_warning(
    "InvalidAddressSkipped",
    "Resolve",
    "Service",
    "addresses are not published: outside `allowedCIDRs`, denied, or not valid for the API server",
    "the message names one and says why; extend `allowedCIDRs`, or check what reports such addresses",
)
# --- the Service ---------------------------------------------------------------------------------------
_warning(
    "PanicMode",
    "Check",
    "Service",
    "no address passes its health check: all are published as if health checks were off",
    "check the port and path of the health check, and whether the hub can reach the nodes",
    by_source=False,
)
_warning(
    "OwnerConflict",
    "Publish",
    "Service",
    "slices with our owner belong to another hub (another Lease) and are not touched",
    "stop one of the two hubs; then `hub run --take-over NAMESPACE/SERVICE`",
    by_source=False,
)
_warning(
    "ForeignSlice",
    "Publish",
    "Service",
    "slices of another owner have names that our slices would have; ours get other names",
    "nothing, unless no other controller should write slices there",
    by_source=False,
)
_warning(
    "SelectorPresent",
    "Publish",
    "Service",
    "the Service has a selector, so Kubernetes itself writes its endpoints",
    "remove the selector, or the Service from the registry",
    by_source=False,
)
_warning(
    "PortMismatch",
    "Publish",
    "Service",
    "the ports to publish cannot be derived from the Service's; the source's endpoints stay unchanged",
    "write `ports` in the registry, or number the Service's targetPorts",
)
_warning(
    "PortNotAllowed",
    "Publish",
    "Service",
    "a port taken from a Service is not in the cluster's `allowedPorts`; the source's endpoints stay unchanged",
    "write the number on which the nodes listen, such as a NodePort, in the registry, or extend `allowedPorts`",
)
_warning(
    "FamilyNotInService",
    "Publish",
    "Service",
    "a source has only addresses of an IP family that the Service lacks: none is published",
    "add the family to the Service (`ipFamilies`)",
)
_warning(
    "LocalTrafficPolicy",
    "Publish",
    "Service",
    "the Service's traffic policy is Local, but its endpoints are on no node of the hub cluster: no traffic gets there",
    "set `externalTrafficPolicy` or `internalTrafficPolicy`, whichever the message names, to Cluster",
    by_source=False,
)
_warning(
    "ZoneNotMapped",
    "Publish",
    "Service",
    "`zoneMap` lacks the zone of an endpoint, or its node has no zone: no endpoint of the source has zone hints, and "
    "kube-proxy ignores the hints of all sources of the Service",
    "add the zone to `zoneMap`, or label the node with `topology.kubernetes.io/zone`",
    after=60.0,
)
_warning(
    "ZoneNotInHub",
    "Publish",
    "Service",
    "`zoneMap` names a zone in which the hub cluster has no Node: no endpoint of the source has zone hints",
    "correct the zone in `zoneMap`; `kubectl get nodes -L topology.kubernetes.io/zone` lists those of the hub cluster",
)
_warning(
    "CopyNotAllowed",
    "Load",
    "Service",
    "the Service asks by annotation for a copy that the registry does not allow",
    "extend `annotations.allow` in the registry, or remove the annotation",
    by_source=False,
)
# --- the registry --------------------------------------------------------------------------------------
REJECTED: Final = _warning(
    "RegistryRejected",
    "Load",
    "hub",
    "clusters.yaml cannot be used; the last good one stays in force, even after a restart",
    "`hub check clusters.yaml` names every problem with its line",
    by_source=False,
)
REMOVAL: Final = _warning(
    "RegistryRemovalWithheld",
    "Withhold",
    "hub",
    "the registry drops so many entries that it looks like a mistake; the removal of their slices is withheld until it "
    "is approved",
    "put the entries back, or run the `hub approve registry` command in the message",
    by_source=False,
)

# --- allocations (docs/allocations.md) ------------------------------------------------------------------
for _name, _action, _meaning in (
    ("AddressAttached", "Attach", "an address that was free is attached to a node"),
    ("AddressMoved", "Move", "an address moved to another node; the message has the cause"),
    ("AddressRestored", "Move", "no other node took an address: it is back on the node that it came from"),
):
    _normal(_name, _action, "NetIPAllocation", _meaning)
for _name, _action, _meaning, _remedy in (
    (
        "AddressWaiting",
        "Attach",
        "an address waits for a node for ten minutes",
        "`hub why ADDRESS` says why no node can take it",
    ),
    (
        "AddressConflict",
        "Attach",
        "an older allocation claims the address",
        "remove it from one of the two allocations",
    ),
    (
        "AddressElsewhere",
        "Attach",
        "something that is no node of the account's clusters has the address; the hub takes nothing from strangers",
        "free the address there, or remove it from the allocation",
    ),
    (
        "AddressInvalid",
        "Attach",
        "an entry is no IPv4 address, is not allowed, or is not reserved",
        "correct the entry, or `addresses` of the account",
    ),
    (
        "AddressFlapping",
        "Move",
        "an address moved too often because of nodes that are not Ready; it stays for 30 minutes",
        "find out why these nodes are not Ready",
    ),
    (
        "MoveWithheld",
        "Withhold",
        "more addresses would move than `limits` allow",
        "look at `hub plan`; `hub approve` lets the moves begin",
    ),
    (
        "MoveFailed",
        "Move",
        "a step of a move, or a change of a label, fails",
        "the message names the permission or the place",
    ),
    (
        "DrainBlocked",
        "Move",
        "a cordoned node keeps its address for ten minutes because its workload still runs there",
        "add one spare address, or set a finite `cordonedHold`",
    ),
    ("EvictionBlocked", "Evict", "a Pod that stayed behind cannot be evicted", "look at its PodDisruptionBudget"),
    ("CloudFailed", "Describe", "the cloud does not answer the account", "the message names account and cause"),
    (
        "CloudQuota",
        "Describe",
        "the account's rate limit or quota is used up",
        "ask less often (`interval`), or raise the quota",
    ),
    (
        "OwnNodeWaits",
        "Move",
        "a move would cut off the node that the hub runs on",
        "with a replica on another node: delete the Pod that leads; else set `ownNode: allow`",
    ),
    (
        "OtherController",
        "Withhold",
        "another controller renews the interlock's Lease; the hub changes nothing",
        "stop that controller",
    ),
    (
        "SchemaOutdated",
        "Withhold",
        "the installed CRD has no status; the hub changes nothing",
        "apply the output of `hub allocations crd` with kubectl",
    ),
    (
        "Forbidden",
        "Withhold",
        "the hub's account lacks a right; nothing that needs it is done",
        "the message names the rule and what grants it",
    ),
):
    _warning(_name, _action, "NetIPAllocation", _meaning, _remedy, by_source=False)

# --- the cloud controller, in the object's own cluster ---------------------------------------------------
# Reasons and components of Kubernetes' own cloud controllers (k8s.io/cloud-provider) stay as they are, so that alerts
# and habits keep working.
_NODES: Final = "cloud-node-controller"
_LIFECYCLE: Final = "cloud-node-lifecycle-controller"
_BALANCERS: Final = "service-controller"
_Happened = tuple[str, Literal["Normal", "Warning"], On, str, str, str, str]
_HAPPENED: Final[tuple[_Happened, ...]] = (
    ("Synced", "Normal", "Node", _NODES, "Initialize", "the Node has what the cloud knows of its machine", ""),
    ("DeletingNode", "Normal", "Node", _LIFECYCLE, "Delete", "the Node is deleted: its machine is gone", ""),
    (
        "DeletingNodeFailed",
        "Warning",
        "Node",
        _LIFECYCLE,
        "Delete",
        "the Node could not be deleted",
        "the message has the API server's words",
    ),
    (
        "EnsuringLoadBalancer",
        "Normal",
        "Service",
        _BALANCERS,
        "Ensure",
        "the balancer is being made or changed",
        "",
    ),
    ("EnsuredLoadBalancer", "Normal", "Service", _BALANCERS, "Ensure", "the balancer is as the Service wants it", ""),
    ("UpdatedLoadBalancer", "Normal", "Service", _BALANCERS, "Update", "the balancer has the present nodes", ""),
    ("DeletingLoadBalancer", "Normal", "Service", _BALANCERS, "Delete", "the balancer is being deleted", ""),
    ("DeletedLoadBalancer", "Normal", "Service", _BALANCERS, "Delete", "nothing of the balancer is left", ""),
)
_Lasting = tuple[str, On, str, str, str, str]
_LASTING: Final[tuple[_Lasting, ...]] = (
    (
        "SyncLoadBalancerFailed",
        "Service",
        _BALANCERS,
        "Ensure",
        "the balancer could not be made or changed; it is tried again",
        "the message names the object and the next step",
    ),
    (
        "UpdateLoadBalancerFailed",
        "Service",
        _BALANCERS,
        "Update",
        "the balancer could not get the present nodes; it is tried again",
        "the message names the object and the next step",
    ),
    (
        "AnnotationInvalid",
        "Service",
        _BALANCERS,
        "Ensure",
        "an annotation of the load balancer has an impossible value: what exists stays, and only its nodes follow",
        "correct the annotation that the message names",
    ),
    (
        "AnnotationIgnored",
        "Service",
        _BALANCERS,
        "Ensure",
        "an annotation of the load balancer has no effect",
        "write the key that the message names, or remove the annotation",
    ),
    (
        "NodePortMissing",
        "Service",
        _BALANCERS,
        "Ensure",
        "a port of the Service has no nodePort, which the balancer would send traffic to",
        "set `allocateLoadBalancerNodePorts: true`, or write the nodePort",
    ),
    (
        "RecordIgnored",
        "Service",
        _BALANCERS,
        "Ensure",
        "the annotation `endpointslice-hub/load-balancer` does not count; names find the balancer",
        "do not copy or edit this annotation; the hub writes it again",
    ),
    (
        "ForeignLoadBalancer",
        "Service",
        _BALANCERS,
        "Withhold",
        "the Service has an ingress, but the cloud has nothing of its name: no second balancer is made",
        "correct `cloud.clusterName`, or `hub approve` with the hash in the message",
    ),
    (
        "LoadBalancerVanished",
        "Service",
        _BALANCERS,
        "Withhold",
        "several objects of a working balancer are missing in the cloud's lists at once: no second balancer is made",
        "if they were deleted, `hub approve` with the hash in the message; else wait until the cloud lists them again",
    ),
    (
        "ClusterNameChanged",
        "Service",
        _BALANCERS,
        "Withhold",
        "the balancer was made under a `clusterName` that the registry does not have: it stays as it is",
        "write the old name into `cloud.formerClusterNames`, or put it back",
    ),
    (
        "NodeRemovalWithheld",
        "Service",
        _BALANCERS,
        "Withhold",
        "most nodes of the cluster's balancers are gone at once: they stay for five minutes",
        "look at the Nodes; `hub approve` with the hash in the message lets them go now",
    ),
    (
        "DeleteLoadBalancerFailed",
        "Service",
        _BALANCERS,
        "Delete",
        "the balancer could not be deleted; it is tried again, and the finalizer stays",
        "the message names the object and the next step",
    ),
    (
        "UnAvailableLoadBalancer",
        "Service",
        _BALANCERS,
        "Update",
        "no node can take the balancer's traffic; it keeps its last nodes",
        "look at the Nodes' labels, taints and provider IDs",
    ),
)
# What the plugins in this repository say about balancers: mistakes of a Service, and what a cloud must be waited for.
_PLUGIN_FINDINGS: Final = (
    (
        "NoPorts",
        "the Service has no ports, so it gets no balancer",
        "give the Service a port",
    ),
    (
        "AffinityUnsupported",
        "the cloud cannot keep a client on one node: no balancer is made, and an existing one stays",
        "set `sessionAffinity: None`",
    ),
    (
        "ProtocolUnsupported",
        "the cloud does not balance the protocol of a port: no balancer is made, and an existing one stays",
        "use TCP, or another Service without a balancer for that port",
    ),
    (
        "SourceRangesUnsupported",
        "the cloud cannot restrict who connects, so `loadBalancerSourceRanges` would have no effect: nothing is made",
        "remove the ranges, and restrict the callers in the cluster",
    ),
    (
        "SourceRangesIgnored",
        "an existing balancer has `loadBalancerSourceRanges`, which the cloud cannot apply: everybody can connect",
        "remove the ranges, and restrict the callers in the cluster",
    ),
    (
        "AnnotationSuspicious",
        "a time is so short that it probably was meant in seconds; it is passed on as milliseconds",
        "write milliseconds",
    ),
    (
        "CloudIPNotFound",
        "the account has no address that the Service names; nothing else is made",
        "correct the annotation or `spec.loadBalancerIP`",
    ),
    (
        "CloudIPInUse",
        "the address that the Service names is mapped to something else, and is not taken away",
        "unmap it in the cloud, or name another one",
    ),
    ("CloudIPMapping", "the cloud is mapping the address to the balancer; the hub waits", "if it lasts, ask the cloud"),
    ("CloudIPLeaving", "the cloud is unmapping an address that goes; the hub waits", "if it lasts, ask the cloud"),
    ("LoadBalancerCreating", "the cloud is creating the balancer; the hub waits", "if it lasts, ask the cloud"),
    (
        "LoadBalancerLeaving",
        "an earlier balancer of the name is being deleted, or has failed; the hub waits until it is gone",
        "if it lasts, delete it in the cloud",
    ),
    (
        "LoadBalancerFailing",
        "the cloud says that the balancer is failing; the hub leaves it as it is",
        "look at the nodes and at the checks that the annotations set",
    ),
    ("LoadBalancerLocked", "the balancer is locked in the cloud, which refuses changes", "unlock it in the cloud"),
    (
        "DuplicateCloudObject",
        "the cloud has a second object of the balancer's name, which the hub did not make",
        "delete the one that is not used, as the message says",
    ),
    (
        "ListIncomplete",
        "the cloud's lists lack an object that another one refers to, or everything: nothing is made in its place",
        "if it lasts, look for the object in the cloud",
    ),
    (
        "CloudNameTaken",
        "objects of the balancer's name belong to another cluster: nothing is made and nothing is changed",
        "give one of the clusters another `cloud.clusterName`",
    ),
    (
        "AddressNotFound",
        "the account has no reserved address that the Service names; nothing else is made",
        "reserve it in the cloud, or correct `spec.loadBalancerIP`",
    ),
    (
        "AddressInUse",
        "a reserved address is used by something else, and is not taken away",
        "free it in the cloud, or name another one",
    ),
    (
        "FamilyUnsupported",
        "the cloud's balancers have no IPv6: no balancer is made, and an existing one stays",
        "write `ipFamilies: [IPv4]`",
    ),
    (
        "LanMissing",
        "it is not known in which LAN the balancer listens, or reaches its nodes",
        "write `lans` into `cloud.provider.config`, or set the annotation that the message names",
    ),
    (
        "NodesNotReachable",
        "some nodes have no address in the LAN of the balancer's targets, and get no traffic",
        "give the machines a network card in that LAN",
    ),
    (
        "NoTargets",
        "no node has an address in the LAN of the targets: a new port of the balancer waits for one",
        "give the machines a network card in the LAN of the targets",
    ),
    (
        "DatacenterChanged",
        "the Service names another data center than the one its balancer is in, which cannot change",
        "name that one again, or create the Service anew",
    ),
    (
        "InternalChanged",
        "a public balancer cannot become an internal one, nor the reverse",
        "undo the change, or create the Service anew",
    ),
    ("CloudBusy", "the cloud is working on an object of the balancer; the hub waits", "if it lasts, ask the cloud"),
    (
        "CloudRequestFailed",
        "the cloud accepted a change and could not make it; it is tried again",
        "the message has the cloud's words",
    ),
    (
        "LoadBalancerNotReady",
        "the balancer is neither available nor being changed; the hub waits",
        "look at the balancer in the cloud",
    ),
    (
        "DomainNotReady",
        "a name of the certificate does not lead to the balancer's address; only the certificate waits",
        "correct the DNS record, or the annotation",
    ),
    (
        "CertificatePending",
        "the certificate of a name is not there yet, or was refused; the message has the cloud's words",
        "look at the DNS record and its CAA record",
    ),
)
_NODE_FINDINGS: Final = (
    (
        "NodeAddressMismatch",
        _NODES,
        "Initialize",
        "the kubelet's `--node-ip` is not among the machine's addresses: a new Node keeps its taint",
        "correct `--node-ip`, or give the machine that address",
    ),
    (
        "ProviderIDMismatch",
        _NODES,
        "Initialize",
        "the Node's provider ID is not its machine's: the hub changes nothing",
        "delete the Node, so that its kubelet registers it again",
    ),
    (
        "NodeLabelDrift",
        _NODES,
        "Label",
        "the cloud states another type, zone or region than the Node's labels, which stay",
        "the message has both; delete the Node after a resize, so that its kubelet registers it again",
    ),
    (
        "NodeNotChanged",
        _NODES,
        "Update",
        "the API server refuses a change of the Node; it is tried again",
        "the message has the API server's words, or the rule that is missing",
    ),
    (
        "Contended",
        MANAGED_BY,
        "Update",
        "another writer undid the same change three times within ten minutes; the hub leaves it for some minutes",
        "find the other writer, such as a second cloud controller, and stop it",
    ),
    (
        "NodeDeletionWithheld",
        _LIFECYCLE,
        "Delete",
        "more machines are gone than `maxDelete` allows: no Node is deleted",
        "check the cloud; `hub approve` with the hash in the message deletes these Nodes",
    ),
    (
        "WrongAccount",
        _LIFECYCLE,
        "Delete",
        "the cloud has no other machine of the cluster, or a balancer was made in another account: nothing is deleted",
        "check the credential in `cloud.provider`; `hub approve` with the hash in the message deletes these Nodes",
    ),
)
for _name, _type, _on, _component, _action, _meaning, _remedy in _HAPPENED:
    _all[_name] = Reason(_name, _type, _action, _on, _meaning, _remedy, momentary=True, component=_component)
for _name, _on, _component, _action, _meaning, _remedy in _LASTING:
    _all[_name] = Reason(_name, "Warning", _action, _on, _meaning, _remedy, component=_component)
for _name, _meaning, _remedy in _PLUGIN_FINDINGS:
    _all[_name] = Reason(_name, "Warning", "Ensure", "Service", _meaning, _remedy, component=_BALANCERS)
for _name, _component, _action, _meaning, _remedy in _NODE_FINDINGS:
    _all[_name] = Reason(_name, "Warning", _action, "Node", _meaning, _remedy, component=_component)

REASONS: Final[dict[str, Reason]] = dict(_all)

_HEAD: Final = """\
# Events

<!-- generated: .venv/bin/python -m hub.events.catalog -->

The hub that leads writes Events (`events.k8s.io/v1`, `reportingController: endpointslice-hub`): on the Service
concerned, or on itself if a cluster or the registry is concerned. "Itself" is the Pod that the environment
variables `POD_NAME` and `POD_NAMESPACE` name (and `POD_UID`, so that `kubectl describe pod` finds them), or else its
Lease. `hub run --once` and `--dry-run` write no Events.

    kubectl events -n edge --for service/payments
    kubectl get events.events.k8s.io -A --field-selector reportingController=endpointslice-hub

- A finding makes an Event when it appears, and another one when it comes back. If it comes back within six minutes, it
  is counted in the `series` of the first Event. A finding that lasts is repeated there every 30 minutes.
- After ten different messages of one reason on one object within ten minutes, further messages are combined into one
  Event that begins with `(combined from similar events)`.
- An object gets at most 25 Warnings in a row, then one in five minutes; the same limits apply to Normal Events.
- Publishing never waits for Events. If the API server refuses them, the log says so once. At most a thousand Events
  wait to be sent; then the oldest are dropped.
- `hub run --events=false` writes no Events.
- The plugin of a cloud that is not part of this repository may have further reasons about Services with load balancers;
  their messages say what to do.
- An alert about a reason is named after it, and its [runbook](../runbooks/index.md) says more than the last column.

"""


def text() -> str:
    """The reference page."""
    rows = ["| reason | type | on | meaning | what to do |", "|---|---|---|---|---|"]
    for name in sorted(REASONS):
        reason = REASONS[name]
        rows.append(f"| {name} | {reason.type} | {reason.on} | {reason.meaning} | {reason.remedy} |")
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path("docs/reference/events.md").write_text(text(), encoding="utf-8")
