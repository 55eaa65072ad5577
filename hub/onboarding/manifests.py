"""The objects that the hub needs in a remote cluster: an account that may read Nodes, and nothing more. Pure.

The account renews its own token, so it may create tokens of itself. Everything carries the label managed-by, by which
it is known again, and the name the cluster has in the registry.
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
"""Label: the name the cluster has in the registry."""
ACCOUNT: Final = "endpointslice-hub"
DEFAULT_NAMESPACE: Final = "endpointslice-hub"

_RBAC: Final = "rbac.authorization.k8s.io"

NODE_RULES: Final = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]},
)
"""Nodes; and the UID of kube-system, which identifies the cluster."""
SERVICE_RULES: Final = (
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
)
"""For copies of Services, and for ports that are read from them."""


class Access(msgspec.Struct, frozen=True):
    """The account and its permissions in a remote cluster.

    Attributes:
        cluster: its name in the registry.
        namespace: where the account lives.
        services: namespaces whose Services and EndpointSlices it may read.
    """

    cluster: str
    namespace: str = DEFAULT_NAMESPACE
    services: tuple[str, ...] = ()

    @property
    def account(self) -> tuple[str, str]:
        """Namespace and name of the ServiceAccount."""
        return self.namespace, ACCOUNT

    @property
    def role(self) -> str:
        """The name of the ClusterRole, of its binding, and of the Roles in ``services``.

        With the namespace in it: two hubs that read one cluster have two namespaces there.
        """
        return f"{self.namespace}-remote"


def manifests(access: Access) -> list[Manifest]:
    """All objects, in the order in which they can be created."""
    subjects = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": access.namespace}]
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
    return made


def _granted(
    access: Access, scope: str, name: str, namespace: str, rules: Sequence[Manifest], subjects: Sequence[Manifest]
) -> list[Manifest]:
    """A role and its binding."""
    version = f"{_RBAC}/v1"
    reference = {"apiGroup": _RBAC, "kind": f"{scope}Role", "name": name}
    return [
        _object(version, f"{scope}Role", name, access, namespace, rules=[dict(rule) for rule in rules]),
        _object(version, f"{scope}RoleBinding", name, access, namespace, roleRef=reference, subjects=list(subjects)),
    ]


def _object(version: str, kind: str, name: str, access: Access, namespace: str = "", **content: Any) -> Manifest:
    meta: Manifest = {"name": name, **({"namespace": namespace} if namespace else {})}
    meta["labels"] = labels(access.cluster)
    return {"apiVersion": version, "kind": kind, "metadata": meta, **content}


def labels(cluster: str) -> dict[str, str]:
    """The labels of all objects that are created for a cluster."""
    return {LABEL: MANAGED_BY, CLUSTER: cluster}


def is_ours(found: Manifest) -> bool:
    """Whether an object carries the label."""
    return (found["metadata"].get("labels") or {}).get(LABEL) == MANAGED_BY


def cluster_of(found: Manifest) -> str:
    """The registry's name for the cluster that an object of ours was made for."""
    return str((found["metadata"].get("labels") or {}).get(CLUSTER, ""))


def place(found: Manifest) -> str:
    """``Role ingress/endpointslice-hub-remote``."""
    meta = found["metadata"]
    namespace = meta.get("namespace", "")
    return f"{found['kind']} {namespace}/{meta['name']}" if namespace else f"{found['kind']} {meta['name']}"


def agrees(found: Manifest, wanted: Manifest) -> bool:
    """Whether an object has all wanted fields; fields that the API server adds do not matter."""
    same = wanted["metadata"]["labels"].items() <= (found["metadata"].get("labels") or {}).items()
    rest = wanted.keys() - {"apiVersion", "kind", "metadata"}
    return same and all(_plain(found.get(key)) == _plain(wanted[key]) for key in rest)


def _plain(value: Any) -> Any:
    """Without empty values, which some clients fill in."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner not in (None, "")}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def handed_over(access: Access, lifetime: str) -> str:
    """The objects as YAML for the owners of a remote cluster, with a script that writes the kubeconfig to send back.

    The lines that begin with ``#|`` are a shell script; the heredoc is YAML in one line each, since its indentation
    would be easy to lose.
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
