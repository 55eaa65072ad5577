"""The rights that a cloud controller needs in its cluster, as rules of RBAC. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hub.registry.spec import CloudSpec

Rule = dict[str, Any]
"""A rule of a role, in its JSON form."""

EVENT_RULE: Final[Rule] = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}
PART_RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "nodes": (
        {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["patch"]},
        EVENT_RULE,
    ),
    "delete-nodes": ({"apiGroups": [""], "resources": ["nodes"], "verbs": ["delete"]},),
    "load-balancers": (
        {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch"]},
        EVENT_RULE,
    ),
}
"""Part of a cloud controller -> its permissions. services/status cannot change a Service's ``spec``."""
NAMESPACE: Final = "kube-system"
LEASES: Final = ("cloud-controller-manager", "endpointslice-hub-cloud")
"""The Lease of Kubernetes' own cloud controllers (k8s.io/cloud-provider), and the one where a load balancer class is
configured: another cloud controller then works beside the hub."""


class Right(NamedTuple):
    """One verb on one resource."""

    verb: str
    resource: str
    group: str = ""
    name: str = ""
    namespace: str = ""

    @property
    def what(self) -> str:
        """The resource and the name, as in the hub's other messages about rules."""
        return self.resource + (f".{self.group}" if self.group else "") + (f" {self.name}" if self.name else "")

    @property
    def optional(self) -> bool:
        """Whether the part works without it, and only tells less."""
        return self.resource == "events"


def needed_parts(spec: CloudSpec) -> list[str]:
    """The parts that a section needs: keys of ``PART_RULES``."""
    nodes = spec.nodes
    wanted = {
        "nodes": nodes is not None,
        "load-balancers": spec.balancers is not None,
        "delete-nodes": nodes is not None and nodes.delete != "never",
    }
    return [part for part, on in wanted.items() if on]


IDENTITY: Final = Right("get", "namespaces", name="kube-system")
"""Nothing is created in a cloud for a cluster whose identity is not known."""


def lease_rules(names: Sequence[str] = LEASES) -> tuple[Rule, Rule]:
    """Permission to hold these Leases, in their namespace; RBAC cannot restrict ``create`` to names."""
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return {**leases, "verbs": ["create"]}, {
        **leases,
        "resourceNames": list(names),
        "verbs": ["get", "update", "watch"],
    }


def rights_of(rules: Iterable[Rule], namespace: str = "") -> tuple[Right, ...]:
    """Each verb of each rule, in order; rules of a Role have its namespace."""
    return tuple(
        Right(verb, resource, group, name, namespace)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ("",))
        for verb in rule["verbs"]
    )


def worded(rights: Iterable[Right]) -> str:
    """Rights as text, such as ``«nodes: patch», «services: list, watch»``."""
    verbs: dict[str, list[str]] = {}
    for right in rights:
        verbs.setdefault(right.what, []).append(right.verb)
    return ", ".join(f"«{what}: {', '.join(dict.fromkeys(found))}»" for what, found in verbs.items())
