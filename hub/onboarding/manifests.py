"""The objects that the hub needs in a remote cluster: an account that may read Nodes, and its RBAC. Pure.

The account renews its own token, so it may create tokens for itself. With ``--allow-services`` it may also read the
Services and EndpointSlices of some namespaces. With ``--allow-allocations`` it may also patch Nodes, and with
``--allow-evictions`` evict Pods of some namespaces. With ``--cloud`` it may be the cluster's cloud controller. All
objects carry the label managed-by, which identifies them as the hub's, and a label with the cluster's name in the
registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import yaml

from hub.model import MANAGED_BY

Manifest = dict[str, Any]

LABEL: Final = "app.kubernetes.io/managed-by"
SELECTOR: Final = f"{LABEL}={MANAGED_BY}"
CLUSTER: Final = "endpointslice-hub/cluster"
"""Label: the cluster's name in the registry."""
ACCOUNT: Final = "endpointslice-hub"
DEFAULT_NAMESPACE: Final = "endpointslice-hub"

_RBAC: Final = "rbac.authorization.k8s.io"

NODE_RULES: Final = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]},
)
"""Permission to read Nodes, and the Namespace kube-system, whose UID identifies the cluster."""
SERVICE_RULES: Final = (
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
)
"""Permission to read Services and their endpoints: to copy Services, and to read ports from them."""
ALLOCATION_RULES: Final = ({"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},)
"""Permission to label the Nodes that have reserved addresses."""
EVICTION_RULES: Final = (
    {
        "apiGroups": ["apps"],
        "resources": ["deployments", "statefulsets", "daemonsets", "replicasets"],
        "verbs": ["get"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
)
"""Permission to see which Pods belong to a workload, and to evict them from a Node that its address has left."""


class Access(msgspec.Struct, frozen=True):
    """The account and its permissions in a remote cluster.

    Attributes:
        cluster: the cluster's name in the registry.
        namespace: of the account.
        service_account: the account's name.
        services: namespaces whose Services and EndpointSlices the account may read.
        allocations: whether the account may change labels of Nodes.
        evictions: namespaces whose Pods the account may evict.
        cloud: the parts of a cloud controller that the account may be: see ``hub.controller.rights``.
        provider_ids: regular expressions of the cloud's provider IDs, to which policies hold the account; () = there
            are no policies.
    """

    cluster: str
    namespace: str = DEFAULT_NAMESPACE
    service_account: str = ACCOUNT
    services: tuple[str, ...] = ()
    allocations: bool = False
    evictions: tuple[str, ...] = ()
    cloud: tuple[str, ...] = ()
    provider_ids: tuple[str, ...] = ()

    @property
    def account(self) -> tuple[str, str]:
        """Namespace and name of the ServiceAccount."""
        return self.namespace, self.service_account

    @property
    def role(self) -> str:
        """The name of the ClusterRole, of its binding, and of the Roles in ``services``.

        It contains the namespace, so that two hubs that read one cluster, each with its own namespace, do not collide.
        """
        return f"{self.namespace}-remote"

    @property
    def allocations_role(self) -> str:
        """The same for the permissions of ``allocations`` and ``evictions``."""
        return f"{self.namespace}-allocations"

    @property
    def cloud_role(self) -> str:
        """The same for the permissions of ``cloud``."""
        return f"{self.namespace}-cloud"


def manifests(access: Access) -> list[Manifest]:
    """All objects, in the order in which they can be created."""
    subjects = [{"kind": "ServiceAccount", "name": access.service_account, "namespace": access.namespace}]
    own = {
        "apiGroups": [""],
        "resources": ["serviceaccounts/token"],
        "resourceNames": [ACCOUNT],
        "verbs": ["create"],
    }
    made = [
        _object("v1", "Namespace", access.namespace, access),
        _object("v1", "ServiceAccount", ACCOUNT, access, access.namespace, automountServiceAccountToken=False),
        *_granted(access, "Cluster", access.role, "", NODE_RULES, subjects),
        *_granted(access, "", f"{ACCOUNT}-token", access.namespace, (own,), subjects),
    ]
    for namespace in sorted(set(access.services)):
        made += _granted(access, "", access.role, namespace, SERVICE_RULES, subjects)
    if access.allocations:
        made += _granted(access, "Cluster", access.allocations_role, "", ALLOCATION_RULES, subjects)
    for namespace in sorted(set(access.evictions)):
        made += _granted(access, "", access.allocations_role, namespace, EVICTION_RULES, subjects)
    if access.cloud:
        from hub.controller.rights import NAMESPACE, PART_RULES, lease_rules

        rules = [rule for part in sorted(access.cloud) for rule in PART_RULES[part]]
        unique = [rule for index, rule in enumerate(rules) if rule not in rules[:index]]
        if access.provider_ids:
            made += _policies(access)
        made += _granted(access, "Cluster", access.cloud_role, "", unique, subjects)
        made += _granted(access, "", access.cloud_role, NAMESPACE, lease_rules(), subjects)
    return made


def cloud_rbac(access: Access, lease: tuple[str, str]) -> list[Manifest]:
    """The rights and the policies for an account that exists already, which holds the Lease (namespace, name)."""
    from hub.controller.rights import NAMESPACE, lease_rules

    found = [
        manifest
        for manifest in manifests(access)
        if manifest["kind"] not in ("Namespace", "ServiceAccount")
        and not manifest["metadata"]["name"].endswith("-token")
    ]
    for manifest in found:
        if manifest["metadata"].get("namespace") == NAMESPACE:
            manifest["metadata"]["namespace"] = lease[0]
            if "rules" in manifest:
                manifest["rules"] = list(lease_rules((lease[1],)))
    return found


def _granted(
    access: Access, scope: str, name: str, namespace: str, rules: Sequence[Manifest], subjects: Sequence[Manifest]
) -> list[Manifest]:
    """A role and its binding; ``scope`` is "Cluster", or "" for those in ``namespace``."""
    version = f"{_RBAC}/v1"
    reference = {"apiGroup": _RBAC, "kind": f"{scope}Role", "name": name}
    return [
        _object(version, f"{scope}Role", name, access, namespace, rules=[dict(rule) for rule in rules]),
        _object(version, f"{scope}RoleBinding", name, access, namespace, roleRef=reference, subjects=list(subjects)),
    ]


def _policies(access: Access) -> list[Manifest]:
    """The admission policies for the parts of a cloud controller, and their bindings."""
    from hub.onboarding.policy import NODE_LABELS, matches, node_policy, service_policy

    user = f"system:serviceaccount:{access.namespace}:{access.service_account}"
    specs = {}
    if {"nodes", "delete-nodes"} & {*access.cloud}:
        labels = NODE_LABELS if access.allocations else "false"
        specs["nodes"] = node_policy(user, matches(access.provider_ids), labels)
    if "load-balancers" in access.cloud:
        specs["services"] = service_policy(user)
    made: list[Manifest] = []
    for what, spec in specs.items():
        name = f"{access.cloud_role}-{what}"
        version, kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"
        made.append(_object(version, kind, name, access, spec=spec))
        bound = {"policyName": name, "validationActions": ["Deny"]}
        made.append(_object(version, f"{kind}Binding", name, access, spec=bound))
    return made


def _object(version: str, kind: str, name: str, access: Access, namespace: str = "", **content: Any) -> Manifest:
    meta: Manifest = {"name": name, **({"namespace": namespace} if namespace else {})}
    meta["labels"] = labels(access.cluster)
    return {"apiVersion": version, "kind": kind, "metadata": meta, **content}


def labels(cluster: str) -> dict[str, str]:
    """The labels of all objects that are created for a cluster."""
    return {LABEL: MANAGED_BY, CLUSTER: cluster}


def is_ours(found: Manifest) -> bool:
    """Whether an object carries the label managed-by with the hub's value."""
    return (found["metadata"].get("labels") or {}).get(LABEL) == MANAGED_BY


def cluster_of(found: Manifest) -> str:
    """The name of the cluster that an object of ours was made for; "" if it lacks the label."""
    return str((found["metadata"].get("labels") or {}).get(CLUSTER, ""))


def place(found: Manifest) -> str:
    """Kind, namespace and name of an object for messages, such as ``Role ingress/endpointslice-hub-remote``."""
    meta = found["metadata"]
    namespace = meta.get("namespace", "")
    return f"{found['kind']} {namespace}/{meta['name']}" if namespace else f"{found['kind']} {meta['name']}"


def has_wanted_fields(found: Manifest, wanted: Manifest) -> bool:
    """Whether an object has all wanted fields; fields that the API server adds do not matter."""
    same = wanted["metadata"]["labels"].items() <= (found["metadata"].get("labels") or {}).items()
    rest = wanted.keys() - {"apiVersion", "kind", "metadata"}
    return same and all(_plain(found.get(key)) == _plain(wanted[key]) for key in rest)


def _plain(value: Any) -> Any:
    """A value without empty fields, which some clients fill in."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner not in (None, "")}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def manifests_with_script(access: Access, lifetime: str) -> str:
    """The objects as YAML for the owners of a remote cluster, with a script that writes the kubeconfig to send back.

    Lines that begin with ``#|`` are a shell script. The kubeconfig in its heredoc is YAML in flow style, which survives
    a loss of indentation.
    """
    namespace, account = access.account
    name = access.cluster
    option = f" --namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""
    made = "---\n".join(yaml.safe_dump(manifest, sort_keys=False) for manifest in manifests(access))
    return (
        f"""\
# What EndpointSlice Hub needs in cluster {name}: an account with these permissions and no others.
#
# 1. Apply it:  kubectl apply -f this-file.yaml
# 2. Send back {name}.kubeconfig, with a token of that account for {lifetime}, which this writes:
#
#      sed -n 's/^#| //p' this-file.yaml | sh
#
#| set -eu
#| view() {{ kubectl config view --minify --raw --flatten -o jsonpath="{{.clusters[0].cluster.$1}}"; }}
#| SERVER=$(view server) CA=$(view certificate-authority-data)
#| TOKEN=$(kubectl -n {namespace} create token {account} --duration={lifetime})
#| umask 077
#| cat > {name}.kubeconfig <<EOF
#| {{apiVersion: v1, kind: Config, current-context: "{name}",
#|  clusters: [{{name: "{name}", cluster: {{server: "$SERVER", certificate-authority-data: "$CA"}}}}],
#|  users: [{{name: {account}, user: {{token: "$TOKEN"}}}}],
#|  contexts: [{{name: "{name}", context: {{cluster: "{name}", user: {account}}}}}]}}
#| EOF
#
# 3. The operators of the hub then run:  hub cluster add {name} --from-kubeconfig {name}.kubeconfig{option}
"""
        + made
    )
