"""The kind NetIPAllocation on test servers."""

from __future__ import annotations

import json
import ssl
import urllib.request
from http import HTTPStatus
from typing import Any, Final

import yaml

from hub.cli import allocations_crd
from tests.support.api import Api, ApiRefused, Object
from tests.support.apiserver.server import ApiServer
from tests.support.waiting import eventually

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD: Final = f"{CRDS}/netipallocations.netinfra.darkbrains.com"
KIND: Final = "/apis/netinfra.darkbrains.com/v1alpha1/netipallocations"
OLD: Final = "2026-01-01T00:00:00Z"
DEFINITION: Final[Object] = yaml.safe_load(allocations_crd.text())


def define(api: Api, definition: Object = DEFINITION) -> None:
    """Define the kind, and wait until the server serves it."""
    api.post(CRDS, definition, fieldValidation="Strict")
    eventually(lambda: served(api), 30)
    _make_old(api)


def _make_old(api: Api) -> None:
    """Make the kind look old: a server waits 2 s with a create request while a kind is younger than 2 s."""
    conditions = [{**each, "lastTransitionTime": OLD} for each in api.get(CRD)["status"]["conditions"]]
    api.patch(f"{CRD}/status", {"status": {"conditions": conditions}})


def served(api: Api) -> bool:
    """Whether the server serves the kind: for a moment it does not after a change of the definition."""
    try:
        return api.exists(KIND)
    except ApiRefused as refused:
        if refused.status != HTTPStatus.TOO_MANY_REQUESTS:
            raise
        return False


def allocation(name: str = "web", **spec: object) -> Object:
    """An allocation with these fields besides one address and an empty ``cloud``."""
    kind = {"apiVersion": "netinfra.darkbrains.com/v1alpha1", "kind": "NetIPAllocation"}
    return {**kind, "metadata": {"name": name}, "spec": {"reservedIPs": ["34.1.2.3"], "cloud": {}, **spec}}


def printed(server: ApiServer) -> tuple[list[str], list[list[Any]]]:
    """What ``kubectl get nia`` prints: the columns, and the cells of each row. The API server makes the table."""
    asked = urllib.request.Request(f"{server.url}{KIND}")
    asked.add_header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
    asked.add_header("Authorization", f"Bearer {server.token()}")
    with urllib.request.urlopen(asked, context=ssl.create_default_context(cadata=server.ca_pem)) as answer:
        table = json.load(answer)
    return [column["name"] for column in table["columnDefinitions"]], [row["cells"] for row in table["rows"]]


def add_workload(api: Api, node: str = "n1") -> None:
    """Create the Deployment edge/web with a ReplicaSet and its Pod ``web-1-a`` on a node."""
    labels = {"app": "web"}
    container = {"name": "web", "image": "none"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    apps = "/apis/apps/v1/namespaces/edge"
    made = api.post(f"{apps}/deployments", {"metadata": {"name": "web"}, "spec": spec})
    owned = {"name": "web-1", "labels": labels, "ownerReferences": [_owner("Deployment", made)]}
    replicas = api.post(f"{apps}/replicasets", {"metadata": owned, "spec": {**spec, "replicas": 1}})
    meta = {"name": "web-1-a", "labels": labels, "ownerReferences": [_owner("ReplicaSet", replicas)]}
    body = {"metadata": meta, "spec": {"containers": [container], "nodeName": node}}
    api.post("/api/v1/namespaces/edge/pods", body)


def _owner(kind: str, object_: Object) -> Object:
    meta = object_["metadata"]
    return {"apiVersion": "apps/v1", "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}
