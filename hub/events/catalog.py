"""Every reason of the Events that the hub writes: what it means, and what to do.

One place for the recorder, the reference page and the tests. A finding whose reason is not in here makes no Event:
the status page and ``hub status`` show it all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

On = Literal["Service", "hub"]


class Reason(msgspec.Struct, frozen=True):
    """One reason.

    Attributes:
        name: as it stands in the Event, CamelCase.
        type: Normal or Warning.
        action: what the hub was doing, or does about it.
        on: the object: the Service concerned, or the hub itself where a cluster or the registry is concerned.
        meaning: for the reference page.
        remedy: likewise: what to do; "" = nothing.
        after: seconds that a finding must have stood; some pass by themselves with each new node.
        every: seconds between two Events of the reason on one object; those in between make one.
        momentary: it happens, and does not hold on.
        by_source: one Event for each source cluster, which is what the message begins with.
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


_all: dict[str, Reason] = {}


def _normal(name: str, action: str, on: On, meaning: str, remedy: str = "", every: float = 0.0) -> Reason:
    """Something that happened."""
    made = _all[name] = Reason(name, "Normal", action, on, meaning, remedy, every=every, momentary=True)
    return made


def _warning(
    name: str, action: str, on: On, meaning: str, remedy: str, *, after: float = 0.0, by_source: bool = True
) -> Reason:
    """Something that holds until it ends."""
    made = _all[name] = Reason(name, "Warning", action, on, meaning, remedy, after, by_source=by_source)
    return made


# --- what was written, and what was not ----------------------------------------------------------------
PUBLISHED: Final = _normal(
    "EndpointsPublished",
    "Publish",
    "Service",
    "EndpointSlices of the Service were written; at most one Event in 30 s says what the last write came to",
    every=30.0,
)
_warning(
    "EmptyResultHeld",
    "Withhold",
    "Service",
    "a source that had endpoints answers that it has none; they stay until enough such answers agree",
    "see whether the cluster has really no nodes; `hub approve` lets them go at once",
)
_normal(
    "EmptyResultAccepted",
    "Publish",
    "Service",
    "as many answers as `guard.emptyResults` asks for agreed that a source is empty: its endpoints went",
)
_warning(
    "FilteredEmpty",
    "Withhold",
    "Service",
    "nodes exist, but every endpoint would go: readiness, the selector, allowedCIDRs or the provider take them all out",
    "`hub nodes CLUSTER` says why each one is out; mend that, or `hub approve`",
)
_warning(
    "RemovalWithheld",
    "Withhold",
    "Service",
    "more endpoints would go at once than `guard.maxRemoval` allows; they stay for `maxRemovalHold`",
    "`hub plan` shows what would go; `hub approve` lets it go at once",
)
_normal("PlanReleased", "Publish", "Service", "the same answer stood for `maxRemovalHold`: what was withheld went")
APPROVED: Final = _normal(
    "ApprovalUsed", "Publish", "Service", "somebody approved what was withheld: it went (of the registry: on the hub)"
)
# --- clusters ------------------------------------------------------------------------------------------
UNREACHABLE: Final = _warning(
    "ClusterUnreachable",
    "Watch",
    "hub",
    "the API server of a cluster cannot be connected to; what is published of it stays, unless `unreachable` says else",
    "look at the network between the hub and that API server",
)
DEGRADED: Final = _warning(
    "ClusterDegraded",
    "Watch",
    "hub",
    "a cluster answers, or would, but somebody must act: 401, 403, a certificate, a kubeconfig; its endpoints stay",
    "the message says what is missing",
)
RECOVERED: Final = _normal("ClusterRecovered", "Watch", "hub", "a cluster makes statements again")
_warning(
    "ClusterDisrupted",
    "Resolve",
    "hub",
    "more of a cluster's nodes are not Ready than `nodes.maxNotReady` allows: none leaves for that",
    "look at that cluster; the endpoints leave once fewer are not Ready, or the nodes are gone",
)
WRONG_CLUSTER: Final = _warning(
    "WrongCluster",
    "Watch",
    "hub",
    "another cluster than before answers under a name of the registry; nothing it says counts",
    "mend the kubeconfig; if the cluster was rebuilt: `hub approve cluster/NAME HASH`",
)
CREDENTIAL: Final = _warning(
    "CredentialExpiring",
    "Watch",
    "hub",
    "a token or client certificate ends within 14 days, with a fifth of its life or less left, and nobody renews it; "
    "or the hub tried to, at half its life, and could not",
    "the message says why; or renew it in the kubeconfig: a replaced file or Secret is in use within seconds",
    after=300.0,
)
# --- providers and nodes -------------------------------------------------------------------------------
PROVIDER: Final = _warning(
    "ProviderFailed",
    "Resolve",
    "hub",
    "a provider cannot answer for a cluster; the addresses it gave before stay, new nodes wait",
    "`hub providers` and the message say why: a token, a quota, an outage, the plugin itself",
    after=10.0,
)
_warning(
    "NodeAmbiguous",
    "Resolve",
    "Service",
    "the provider finds more than one candidate for a node and will not guess; what is published of it stays",
    "the message names the candidates: remove or rename what is double",
)
_warning(
    "NodeUnresolved",
    "Resolve",
    "Service",
    "the provider has not said the address of eligible nodes for a minute; new ones are not published",
    "`hub nodes CLUSTER` says why for each",
    after=60.0,
)
_warning(
    "InvalidAddressSkipped",
    "Resolve",
    "Service",
    "addresses are not published: outside `allowedCIDRs`, denied, or no address the API server takes",
    "the message names one and says why; extend `allowedCIDRs` or see what reports such addresses",
)
# --- the Service ---------------------------------------------------------------------------------------
_warning(
    "PanicMode",
    "Check",
    "Service",
    "no address passes its health check: all are published as if there were none",
    "see whether the check's port and path are right, and whether the hub may reach the nodes",
    by_source=False,
)
_warning(
    "OwnerConflict",
    "Publish",
    "Service",
    "slices with our owner are another hub's (another Lease) and not touched",
    "stop one of the two; then `hub run --take-over NAMESPACE/SERVICE`",
    by_source=False,
)
_warning(
    "ForeignSlice",
    "Publish",
    "Service",
    "names that our slices would have are taken by slices that are not ours; others are used",
    "nothing, unless nobody should be writing them",
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
    "the ports to publish cannot be told from the Service's; what is published of the source stays",
    "write `ports` in the registry, or number the Service's targetPorts",
)
_warning(
    "PortNotAllowed",
    "Publish",
    "Service",
    "a port taken from the Service is not in the cluster's `allowedPorts`; what is published of the source stays",
    "extend `allowedPorts`, or write the port in the registry",
)
_warning(
    "FamilyNotInService",
    "Publish",
    "Service",
    "a source has addresses of a family only that the Service does not have: none is published",
    "give the Service the family (`ipFamilies`)",
)
_warning(
    "LocalTrafficPolicy",
    "Publish",
    "Service",
    "the Service's traffic policy is Local, and its endpoints are on no node of the hub cluster: nothing reaches them",
    "set `externalTrafficPolicy` or `internalTrafficPolicy`, whichever the message names, to Cluster",
    by_source=False,
)
_warning(
    "CopyNotAllowed",
    "Load",
    "Service",
    "the Service asks by annotation for a copy that the registry does not allow",
    "extend `annotations.allow` in the registry, or take the annotation away",
    by_source=False,
)
# --- the registry --------------------------------------------------------------------------------------
REJECTED: Final = _warning(
    "RegistryRejected",
    "Load",
    "hub",
    "clusters.yaml cannot be used; the last good one stays in force, also over a restart",
    "`hub check clusters.yaml` names every problem with its line",
    by_source=False,
)
REMOVAL: Final = _warning(
    "RegistryRemovalWithheld",
    "Withhold",
    "hub",
    "the registry drops so much that it looks like a mistake; its slices stay",
    "put the entries back, or run the `hub approve registry` of the message",
    by_source=False,
)

REASONS: Final[dict[str, Reason]] = dict(_all)

_HEAD: Final = """\
# Events

<!-- generated: .venv/bin/python -m hub.events.catalog -->

The hub that leads writes Events (`events.k8s.io/v1`, `reportingController: endpointslice-hub`): on the Service
concerned, and on itself where a cluster or the registry is concerned. Itself is the Pod that the environment
variables `POD_NAME` and `POD_NAMESPACE` name (and `POD_UID`, so that `kubectl describe pod` finds them), else its
Lease. `hub run --once` and `--dry-run` write none.

    kubectl events -n edge --for service/payments
    kubectl get events.events.k8s.io -A --field-selector reportingController=endpointslice-hub

- A finding makes an Event when it appears, and another one when it comes back; one that comes back within six minutes
  is counted in the Event's `series`. One that stays is said again, there too, every 30 minutes.
- After ten different messages of one reason on one object within ten minutes, further ones make one Event that begins
  with `(combined from similar events)`.
- An object gets at most 25 Warnings in a row, then one in five minutes; the same again for Normal ones.
- Events wait for nothing and nothing waits for them. An API server that refuses them is named once in the log; a
  thousand that wait are the most, and then the oldest are dropped.
- `hub run --events=false` writes none.

"""


def text() -> str:
    """The reference page."""
    rows = ["| reason | type | on | meaning | what to do |", "|---|---|---|---|---|"]
    for name in sorted(REASONS):
        each = REASONS[name]
        rows.append(f"| {name} | {each.type} | {each.on} | {each.meaning} | {each.remedy} |")
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path("docs/reference/events.md").write_text(text(), encoding="utf-8")
