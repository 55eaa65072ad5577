"""The single-target controller's variables about its target: Service, ports, thresholds, health checks."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from hub.cli.importers.document import Noted
from hub.cli.importers.variables import Variables
from hub.model import MANAGED_BY

CLUSTER: Final = "secured"
"""Name of the one cluster, after the controller's variables SECURED_…."""

VARIABLES: Final = (
    "SOURCE_POLL_INTERVAL",
    "TARGET_NAMESPACE",
    "TARGET_SERVICE_NAME",
    "TARGET_ENDPOINTSLICE_NAME",
    "TARGET_MANAGED_BY",
    "TARGET_PORT",
    "SECURED_SUBNET_CIDR",
    "EMPTY_RESULT_THRESHOLD",
    "SOURCE_KIND",
    "STORE_KIND",
    "INVENTORY_FILE_PATH",
    "INVENTORY_COMMAND",
    "INVENTORY_COMMAND_ARGS",
    "HEALTH_CHECK_MODE",
    "HEALTH_CHECK_PATH",
    "HEALTH_CHECK_TIMEOUT",
)
"""Every variable of the controller."""

UNMANAGED: Final = (
    "TARGET_MANAGED_BY is not set, so the managed-by label of the controller's slices is not known here. To have "
    "them replaced, find it (kubectl get endpointslices --show-labels) and add to the service: "
    "adopt: {managedBy: VALUE}."
)
"""Comment for a service without ``adopt``."""

POLL: Final = "5s"
_OWNER_LIMIT: Final = 63


def owner(variables: Variables) -> Noted:
    """An owner for each target: controllers with one owner would delete each other's slices as leftovers."""
    name = f"{variables.values.get('TARGET_NAMESPACE')}.{variables.values.get('TARGET_SERVICE_NAME')}"
    name = name.lower().replace("_", "-")  # invalid names are reported as the Service's name, so not here as well
    if len(name) > _OWNER_LIMIT:
        name = f"{name[:50].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    note = (
        "An owner for this target only, since a cluster may have several such controllers, each with its own target. "
        "If you merge several of these files, keep one owner and list the others under previousOwners: their slices "
        "are adopted."
    )
    return Noted(name, note, "TARGET_SERVICE_NAME")


def service(variables: Variables) -> dict[str, Any]:
    """The entry of ``services:``."""
    name = variables.text("TARGET_SERVICE_NAME", required="the Service to fill")
    namespace = variables.text("TARGET_NAMESPACE", required="the Service's namespace")
    port = variables.number("TARGET_PORT", required="the port of every endpoint")
    slice_name = variables.text("TARGET_ENDPOINTSLICE_NAME")
    renamed = f"TARGET_ENDPOINTSLICE_NAME ({slice_name}) has no counterpart: slices get names of their own."
    return {
        "name": Noted(name, renamed if slice_name else "", "TARGET_SERVICE_NAME"),
        "namespace": Noted(namespace, "", "TARGET_NAMESPACE"),
        "sources": [{"cluster": CLUSTER}],
        "ports": Noted(
            [{"port": Noted(port, "", "TARGET_PORT")}], "The port's name is the Service's, which must have one port."
        ),
        "guard": _guard(variables),
        "health": _health(variables),
        "adopt": _adopt(variables),
    }


def _guard(variables: Variables) -> Noted:
    threshold = variables.number("EMPTY_RESULT_THRESHOLD")
    note = (
        "emptyResults: after so many complete, successful answers without an endpoint the endpoints are removed; 0 "
        "keeps them for ever. If answers are empty only after filtering, the removal waits for an approval (hub "
        "approve).\n"
        "maxRemoval: the controller removed any number of endpoints at once. Without this key the hub withholds the "
        "removal of more than half of them for five minutes."
    )
    empty = Noted(3 if threshold is None else threshold, "", "EMPTY_RESULT_THRESHOLD")
    return Noted({"emptyResults": empty, "maxRemoval": "off"}, note)


def _health(variables: Variables) -> Noted | None:
    mode = variables.one_of("HEALTH_CHECK_MODE", "off", "tcp", "http", default="off")
    timeout = variables.duration("HEALTH_CHECK_TIMEOUT", "3s")
    path = variables.text("HEALTH_CHECK_PATH") or "/"
    if mode == "off":
        return None
    note = (
        "rise, fall and onFail are set as in the controller: one failed check removes an endpoint, one passed check "
        "adds it. The hub's defaults (2, 3, not-ready) react more slowly. http: a status from 200 to 399 passes. If "
        "every endpoint would be removed, all stay as they are."
    )
    checks = {
        "mode": Noted(mode, "", "HEALTH_CHECK_MODE"),
        "path": Noted(path, "", "HEALTH_CHECK_PATH") if mode == "http" else None,
        "interval": Noted(variables.duration("SOURCE_POLL_INTERVAL", POLL), "", "SOURCE_POLL_INTERVAL"),
        "timeout": Noted(timeout, "", "HEALTH_CHECK_TIMEOUT"),
        "rise": 1,
        "fall": 1,
        "onFail": "remove",
    }
    return Noted({key: value for key, value in checks.items() if value is not None}, note)


def _adopt(variables: Variables) -> Noted | None:
    managed_by = variables.text("TARGET_MANAGED_BY")
    if managed_by in ("", MANAGED_BY):
        return None
    note = (
        "The controller's slices are deleted five seconds after the hub's cover every address in them. If it still "
        "runs, they stay and OldWriterActive reports it. Remove this key when they are gone."
    )
    return Noted({"managedBy": Noted(managed_by, "", "TARGET_MANAGED_BY")}, note)
