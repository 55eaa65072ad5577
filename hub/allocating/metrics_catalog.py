"""Every metric family of allocations: name, type, labels, buckets and help.

The first 17 have the names, types, labels and buckets of ip-address-controller 1.1.0, so that its rules and dashboard
work on them, and in addition the label ``cluster``: the cluster whose nodes get the addresses. For the hub cluster, its
value is CLUSTER_NAME or "". Every replica serves the ``controller_*`` families, and only the leader serves the others.
The series of an object that no longer exists end.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PREFIX: Final = "netipallocation_"


class Family(msgspec.Struct, frozen=True):
    """One metric family.

    Attributes:
        name: full name. Three gauges end in ``_total`` as in ip-address-controller. An info is a gauge of value 1.
        labels: names of the labels, in order.
        buckets: upper bounds of a histogram's buckets, without +Inf.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram", "info"]
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


STATUSES: Final = ("success", "error")
"""Values of ``status``."""
OPERATIONS: Final = ("describe", "inspect", "detach", "attach", "restore", "follow")
"""Values of ``operation``: the methods of a provider."""
ERROR_TYPES: Final = (
    *("TransientProviderError", "QuotaExceeded", "TerminalProviderError", "AddressConflict", "UnsupportedInstance"),
    "Timeout",  # the hub cancelled the call
)
"""Values of ``error_type``: the error that a provider raised. A defect of it counts as TransientProviderError."""
IN_MOVE: Final = ("Detaching", "Attaching", "RollingBack")
"""States of an address that moves."""
WAITING_REASONS: Final = (
    *("Invalid", "Conflict", "Unknown", "Elsewhere", *IN_MOVE),
    *("NoNode", "Backoff", "Withheld", "OwnNode", "Paused", "Quota", "Observe"),  # of Pending, and below of Leaving
    *("Confirming", "Queued", "Settling", "CloudFailed", "OtherController", "SchemaOutdated"),
    *("Grace", "Dwell", "PodsRunning", "NoCandidate", "Flapping"),
)
"""Values of ``reason`` of ``waiting``: the reason of a Pending or Leaving address, otherwise its state."""
LATENCIES: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_all: list[Family] = []


def _family(
    name: str, kind: Literal["gauge", "counter", "histogram", "info"], text: str, labels: str, *buckets: float
) -> Family:
    made = Family(PREFIX + name, kind, text, tuple(labels.split()), buckets)
    _all.append(made)
    return made


# --- as in ip-address-controller -------------------------------------------------------------------------
CRD_STATUS = _family(
    "crd_status",
    "gauge",
    "0 if a person must act (CloudFailed, Invalid, Conflict, Elsewhere), else 1",
    "cluster crd_name",
)
RESERVED = _family("reserved_ips_total", "gauge", "Addresses of the allocation", "cluster crd_name")
ATTACHED = _family("attached_ips_total", "gauge", "Of these, attached to a node", "cluster crd_name")
UNATTACHED = _family(
    "unattached_ips_total", "gauge", "Addresses that minAttached requires and no node has", "cluster crd_name"
)
IP_ATTACHED = _family(
    "ip_attached", "gauge", "1 if the node has the address; 0 with node none", "cluster crd_name ip node"
)
NODE_IP_READY = _family("node_ip_ready", "gauge", "1 if the node has the label ip.ready=true", "cluster node crd_name")
NODE_CORDONED = _family("node_cordoned", "gauge", "1 if the node is cordoned", "cluster node")
IS_LEADER = _family("controller_is_leader", "gauge", "1 if this replica acts on addresses", "cluster pod_name")
HEALTHY = _family("controller_healthy", "gauge", "1 if this replica is alive, as /healthz says", "cluster pod_name")
READY = _family("controller_ready", "gauge", "1 if this replica is ready, as /readyz says", "cluster pod_name")
RECONCILES = _family("reconcile_total", "counter", "Passes over the allocation", "cluster crd_name status")
ATTACHES = _family("ip_attach_total", "counter", "Addresses attached, or that could not be", "cluster crd_name status")
DETACHES = _family("ip_detach_total", "counter", "Addresses detached, or that could not be", "cluster crd_name status")
GCP_ERRORS = _family(
    "gcp_api_errors_total", "counter", "Failed calls of accounts of provider gcp", "cluster operation error_type"
)
RECONCILE_SECONDS = _family(
    "reconcile_duration_seconds",
    "histogram",
    "Time of a pass over the allocation",
    "cluster crd_name",
    *(0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
GCP_SECONDS = _family(
    "gcp_api_duration_seconds",
    "histogram",
    "Time of calls of accounts of provider gcp",
    "cluster operation",
    *LATENCIES,
)
CONTROLLER_INFO = _family(
    "controller_info", "info", "Always 1; version is CONTROLLER_VERSION", "cluster version pod_name"
)
ORIGINAL: Final = tuple(_all)

# --- more than ip-address-controller has -----------------------------------------------------------------
CLOUD_ERRORS = _family(
    "cloud_api_errors_total", "counter", "Failed calls of a provider", "cluster provider operation error_type"
)
CLOUD_CALLS = _family(
    "cloud_api_calls_total", "counter", "Calls of an account's provider, also those that failed", "account operation"
)
CLOUD_SECONDS = _family(
    "cloud_api_duration_seconds", "histogram", "Time of a provider's calls", "provider operation", *LATENCIES
)
MOVE_SECONDS = _family(
    "move_duration_seconds",
    "histogram",
    "Time from the cause of a move until the other node is verified to have the address",
    "cluster cause",
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
WAITING = _family(
    "waiting", "gauge", "Addresses that wait, move, or whose node must lose them, by reason", "cluster crd_name reason"
)
WITHHELD = _family("withheld", "gauge", "Moves that wait for their budget or for an approval", "cluster crd_name")

FAMILIES: Final = tuple(_all)
