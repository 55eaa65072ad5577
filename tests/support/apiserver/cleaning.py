"""Empties a server: deletes every object that a test may have created, in a fraction of a second.

Most servers have no controller-manager that finishes the deletion of a namespace, so this module removes a namespace's
finalizers once it is empty. The namespace ``edge`` always exists, for tests that need just one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http import HTTPStatus

from tests.support import allocations
from tests.support.api import Api, ApiRefused, Object
from tests.support.waiting import eventually

EDGE = "edge"
SYSTEM_NAMESPACES = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})

FIRST = (
    # These may forbid other deletions, so they are deleted first.
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
)
CLUSTER_WIDE = ("/api/v1/nodes", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
RBAC_CLUSTER_WIDE = (
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
)
NAMESPACED = (
    "/api/v1/services",
    "/api/v1/endpoints",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/coordination.k8s.io/v1/leases",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/serviceaccounts",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/replicasets",
    "/api/v1/pods",
    "/api/v1/resourcequotas",
    "/api/v1/events",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
)
KEPT = {
    "default": ("kubernetes", "kube-root-ca.crt"),
    "kube-public": ("cluster-info", "system:controller:bootstrap-signer"),
}
"""Names of objects, of any kind, that belong to the server or its controller-manager. All of kube-system does too,
except roles and bindings without the server's label."""
UNLABELLED_RBAC = "!kubernetes.io/bootstrapping"


def clean(api: Api) -> None:
    """Delete all objects except the API server's own, and make sure that ``edge`` exists."""
    for collection in FIRST:
        _empty(api, collection)
    if api.exists(allocations.CRD):
        # Allocations must go before their kind: otherwise they return when the next test defines it.
        eventually(lambda: allocations.served(api) and _emptied(api, allocations.KIND), 30)
    for collection in CLUSTER_WIDE:
        _empty(api, collection)
    for collection in RBAC_CLUSTER_WIDE:
        _empty(api, collection, UNLABELLED_RBAC)
    for collection in NAMESPACED:
        _empty(api, collection, UNLABELLED_RBAC if "rbac" in collection else None)
    for namespace in api.list("/api/v1/namespaces"):
        name = namespace["metadata"]["name"]
        if name not in {*SYSTEM_NAMESPACES, EDGE} or "deletionTimestamp" in namespace["metadata"]:
            _remove_namespace(api, f"/api/v1/namespaces/{name}")
    _create_edge(api)


def _emptied(api: Api, collection: str) -> bool:
    """Empty the collection of a defined kind; False if the API server does not serve the kind at this moment."""
    try:
        _empty(api, collection)
    except ApiRefused as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


def _empty(api: Api, collection: str, selector: str | None = None) -> None:
    """Delete the objects of a collection, with one call per namespace that has some."""
    items: dict[str, list[Object]] = {}
    for item in api.list(collection, labelSelector=selector):
        namespace = item["metadata"].get("namespace", "")
        of_server = namespace == "kube-system" and selector is None
        if not of_server and item["metadata"]["name"] not in KEPT.get(namespace, ()):
            items.setdefault(namespace, []).append(item)
    for namespace, found in items.items():
        group, _, resource = collection.rpartition("/")
        path = f"{group}/namespaces/{namespace}/{resource}" if namespace else collection
        for item in found:
            if item["metadata"].get("finalizers"):
                with _gone_is_fine():
                    api.patch(f"{path}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})
        kept = ",".join(f"metadata.name!={name}" for name in KEPT.get(namespace, ()))
        api.delete(
            path,
            labelSelector=selector,
            fieldSelector=kept or None,
            gracePeriodSeconds=0,
            propagationPolicy="Background",
        )


def _remove_namespace(api: Api, path: str) -> None:
    with _gone_is_fine():
        api.delete(path)
        namespace = api.get(path)
        api.put(f"{path}/finalize", {**namespace, "spec": {"finalizers": []}})


def _create_edge(api: Api) -> None:
    try:
        api.post("/api/v1/namespaces", {"metadata": {"name": EDGE}})
    except ApiRefused as refused:
        if refused.reason != "AlreadyExists":
            raise


@contextlib.contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except ApiRefused as refused:
        # A controller-manager may delete or change the namespace between our read and our write.
        if refused.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise
