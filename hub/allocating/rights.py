"""The rights that allocations need besides reading, and what to say when one of them is missing."""

from __future__ import annotations

from typing import Final, NamedTuple

from hub.errors import Forbidden, HubError
from hub.model import LOCAL


class Right(NamedTuple):
    """A rule of RBAC, and what grants it.

    Attributes:
        rule: resource and verbs.
        value: the value of the chart that grants it in the hub cluster.
        option: the option of ``hub cluster add`` that grants it in a remote cluster; "" if none does.
    """

    rule: str
    value: str
    option: str = ""


STATUS: Final = Right("netipallocations/status.netinfra.darkbrains.com: update", "allocations.enabled")
FINALIZER: Final = Right("netipallocations.netinfra.darkbrains.com: get, update", "allocations.detach")
LABEL: Final = Right("nodes: patch", "allocations.enabled", "--allow-allocations")
WORKLOADS: Final = Right(
    "deployments, statefulsets, daemonsets, replicasets: get", "allocations.namespaces", "--allow-evictions"
)
PODS: Final = Right("pods: list, watch", "allocations.namespaces", "--allow-evictions")
EVICT: Final = Right("pods/eviction: create", "allocations.namespaces", "--allow-evictions")
DELETE: Final = Right("pods: delete", "allocations.eviction ForceDelete")
INTERLOCK: Final = Right("leases: get", "allocations.interlock")


class MissingRight(HubError):
    """The hub's account lacks a rule; the message names the rule, the cluster and what grants it."""


def explained(error: HubError, right: Right, cluster: str = LOCAL, namespace: str = "") -> HubError:
    """A :class:`MissingRight` if the account lacks ``right``; else the error itself.

    Webhooks also answer 403; the message of such an answer is better than any of ours.

    Args:
        error: the error of a request.
        right: what the request needed.
        cluster: the cluster that was asked.
        namespace: the namespace of the request; "" if it had none.
    """
    if not isinstance(error, Forbidden) or " cannot " not in error.message:
        return error
    where = f"cluster {cluster}, namespace {namespace}" if namespace else f"cluster {cluster}"
    if cluster == LOCAL:
        step = f"the chart's value {right.value} grants it"
    elif right.option == LABEL.option:
        step = f"hub cluster add {cluster} {right.option} grants it"
    elif right.option:
        step = f"hub cluster add {cluster} {LABEL.option} {right.option} {namespace} grants it"
    else:
        step = "grant it by a role of your own"
    return MissingRight(f"403: the account lacks the rule «{right.rule}» in {where}; {step}")
