"""Decide which nodes of a remote cluster are eligible, and with which conditions they are published.

Applies the rules in the order in which they are explained to an operator. Readiness comes last, because the view counts
the nodes that only readiness excludes against ``maxNotReady``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hub.model import DRAINING, LABEL_CONTROL_PLANE, LABEL_EXCLUDE_LB, PUBLISHED, Conditions, Node
from hub.registry.spec import NodePolicy, SelectorTerm

LABEL_MASTER: Final = "node-role.kubernetes.io/master"
"""Label of control planes before Kubernetes 1.20; kubeadm dropped it in 1.24."""

LEAVING_TAINTS: Final = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.kubernetes.io/out-of-service",
        "karpenter.sh/disrupted",
    }
)
"""Taints of nodes that are about to be removed, or are not initialised yet."""

NOT_READY: Final = "not-ready"


class Eligible(msgspec.Struct, frozen=True):
    """The node may be published with these conditions."""

    conditions: Conditions


class Excluded(msgspec.Struct, frozen=True):
    """The node is not published.

    Attributes:
        reason: one of a fixed set of words, suitable as a metric label.
        message: the reason in words for an operator.
    """

    reason: str
    message: str


_KEPT: Final = Eligible(PUBLISHED)
_CORDONED: Final = Eligible(DRAINING)
_EXCLUDED_NAME: Final = Excluded("excluded", "named in nodes.exclude")
_CONTROL_PLANE: Final = Excluded("control-plane", "a control plane node")
_DELETING: Final = Excluded("deleting", "being deleted")
_NO_LB: Final = Excluded("label", f"labelled {LABEL_EXCLUDE_LB}")
_TAINTED: Final = {key: Excluded("taint", f"tainted {key}") for key in sorted(LEAVING_TAINTS)}
_UNSELECTED: Final = Excluded("selector", "not matched by nodes.selector")
_DROPPED: Final = Excluded("cordoned", "cordoned, and nodes.cordoned is drop")
_NOT_READY: Final = Excluded(NOT_READY, "not Ready for longer than nodes.notReadyGrace")


def eligibility(node: Node, policy: NodePolicy, not_ready_for: float | None) -> Eligible | Excluded:
    """Decide about one node.

    Args:
        node: the node.
        policy: the source's ``nodes:``.
        not_ready_for: seconds since the Ready condition stopped being True; None if readiness should not be considered
            or the condition is True.
    """
    if (excluded := _exclusion(node, policy)) is not None:
        return excluded
    if not_ready_for is not None and not_ready_for >= policy.not_ready_grace:
        return _NOT_READY
    if node.unschedulable and policy.cordoned == "not-ready":
        return _CORDONED
    return _KEPT


def _exclusion(node: Node, policy: NodePolicy) -> Excluded | None:
    """Apply all rules except readiness; None if the node passes."""
    labels = node.labels
    if node.name in policy.exclude_nodes:
        return _EXCLUDED_NAME
    if not policy.control_plane and (LABEL_CONTROL_PLANE in labels or LABEL_MASTER in labels):
        return _CONTROL_PLANE
    if node.deleting:
        return _DELETING
    if LABEL_EXCLUDE_LB in labels:
        return _NO_LB
    for taint in node.taints:
        if taint.key in LEAVING_TAINTS:
            return _TAINTED[taint.key]
    if not matches(policy.selector, labels):
        return _UNSELECTED
    if node.unschedulable and policy.cordoned == "drop":
        return _DROPPED
    return None


def matches(selector: Sequence[SelectorTerm], labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy all terms, with the semantics of the API server's label selectors.

    ``notin`` and ``!=`` also match if the label is missing.
    """
    return all(_holds(term, labels) for term in selector)


def _holds(term: SelectorTerm, labels: Mapping[str, str]) -> bool:
    value = labels.get(term.key)
    match term.operator:
        case "in":
            return value is not None and value in term.values
        case "notin":
            return value is None or value not in term.values
        case "exists":
            return value is not None
        case "absent":
            return value is None
