"""The kind NetIPAllocation on test servers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import yaml

from hub.cli import allocations_crd
from tests.support.api import Api, ApiRefused, Object
from tests.support.waiting import eventually

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD: Final = f"{CRDS}/netipallocations.netinfra.darkbrains.com"
KIND: Final = "/apis/netinfra.darkbrains.com/v1alpha1/netipallocations"
DEFINITION: Final[Object] = yaml.safe_load(allocations_crd.text())


def define(api: Api, definition: Object = DEFINITION) -> None:
    """Define the kind, and wait until the server serves it."""
    api.post(CRDS, definition, fieldValidation="Strict")
    eventually(lambda: served(api), 30)


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
