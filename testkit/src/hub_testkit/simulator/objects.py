"""Realistic objects for tests and demos, as dicts in the API's form."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

LONG_AGO = "2024-01-01T00:00:00Z"
_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def make_node(
    name: str,
    ip: str | Sequence[str] = "",
    *,
    ready: bool | str = True,
    since: str = LONG_AGO,
    external: str | Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    zone: str = "",
    provider_id: str = "",
    unschedulable: bool = False,
    control_plane: bool = False,
    bulk: bool = False,
) -> Json:
    """Returns a Node like those that kubelet and kube-controller-manager maintain.

    Args:
        name: Its name and Hostname address.
        ip: Its InternalIP, or several (dual stack).
        ready: The Ready condition: True, False, or a status such as "Unknown", when the kubelet does not report.
        since: When Ready last changed, in RFC 3339.
        external: Its ExternalIP, or several.
        labels: Additional labels.
        taints: ``spec.taints``.
        zone: The value of the zone label.
        provider_id: ``spec.providerID``.
        unschedulable: Whether it is cordoned.
        control_plane: Whether it has the control plane's label.
        bulk: Add images and managedFields, up to the 12 KB of a busy node.
    """
    status = ready if isinstance(ready, str) else str(bool(ready))
    internal, outside = ((ip,) if isinstance(ip, str) else ip), ((external,) if isinstance(external, str) else external)
    addresses = [{"type": "InternalIP", "address": address} for address in internal if address]
    addresses += [{"type": "ExternalIP", "address": address} for address in outside if address]
    all_labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
    }
    if zone:
        all_labels["topology.kubernetes.io/zone"] = zone
    if control_plane:
        all_labels["node-role.kubernetes.io/control-plane"] = ""
    meta: Json = {"name": name, "labels": all_labels | dict(labels or {})}
    spec: Json = {}
    if provider_id:
        spec["providerID"] = provider_id
    if taints:
        spec["taints"] = [dict(taint) for taint in taints]
    if unschedulable:
        spec["unschedulable"] = True
    if bulk:
        meta["managedFields"] = _managed_fields(all_labels)
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": meta,
        "spec": spec,
        "status": {
            "capacity": {"cpu": "8", "memory": "32838884Ki", "pods": "110"},
            "allocatable": {"cpu": "7910m", "memory": "31814884Ki", "pods": "110"},
            "conditions": _conditions(status, since),
            "addresses": [*addresses, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(),
                "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
                "bootID": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.boot")),
                "kernelVersion": "6.1.0-30-amd64",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
                "containerRuntimeVersion": "containerd://2.0.2",
                "kubeletVersion": "v1.35.4",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            **({"images": _images()} if bulk else {}),
        },
    }


def make_service(
    namespace: str,
    name: str,
    *,
    ports: Sequence[Mapping[str, Any]] = ({"port": 80},),
    selector: Mapping[str, str] | None = None,
    families: Sequence[str] = (),
    headless: bool = False,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """Returns a Service, without a selector unless one is given. The API server sets the defaults of omitted fields."""
    spec: Json = {"ports": [dict(port) for port in ports]}
    if selector:
        spec["selector"] = dict(selector)
    if families:
        spec["ipFamilies"] = list(families)
        spec["ipFamilyPolicy"] = "SingleStack" if len(families) == 1 else "RequireDualStack"
    if headless:
        spec["clusterIP"] = "None"
    meta: Json = {"name": name, "namespace": namespace}
    if labels:
        meta["labels"] = dict(labels)
    if annotations:
        meta["annotations"] = dict(annotations)
    return {"kind": "Service", "apiVersion": "v1", "metadata": meta, "spec": spec}


def make_slice(
    namespace: str,
    name: str,
    service: str,
    addresses: Sequence[str],
    *,
    ports: Sequence[Mapping[str, Any]] = (),
    labels: Mapping[str, str] | None = None,
) -> Json:
    """Returns an EndpointSlice with one ready endpoint per address. The first address decides the family."""
    family = "IPv6" if addresses and ":" in addresses[0] else "IPv4"
    conditions = {"ready": True, "serving": True, "terminating": False}
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service, **(labels or {})},
        },
        "addressType": family,
        "endpoints": [{"addresses": [address], "conditions": dict(conditions)} for address in addresses],
        "ports": [dict(port) for port in ports],
    }


def set_ready(node: Json, ready: bool | str, since: str) -> None:
    """Changes the Ready condition of a Node in place; does nothing if it already has that status."""
    status = ready if isinstance(ready, str) else str(bool(ready))
    conditions = node["status"].setdefault("conditions", [])
    if any(item["type"] == "Ready" and item["status"] == status for item in conditions):
        return
    node["status"]["conditions"] = [item for item in conditions if item["type"] != "Ready"] + _conditions(
        status, since
    )[-1:]


def _conditions(ready: str, since: str) -> list[Json]:
    times = {"lastHeartbeatTime": since, "lastTransitionTime": since}
    unknown = ready == "Unknown"
    conditions = [
        {
            "type": kind,
            "status": "Unknown" if unknown else "False",
            **times,
            "reason": "NodeStatusUnknown" if unknown else reason,
            "message": "Kubelet stopped posting node status." if unknown else message,
        }
        for kind, reason, message in _PRESSURES
    ]
    reason, message = {
        "True": ("KubeletReady", "kubelet is posting ready status"),
        "False": ("KubeletNotReady", "container runtime network not ready"),
    }.get(ready, ("NodeStatusUnknown", "Kubelet stopped posting node status."))
    return [*conditions, {"type": "Ready", "status": ready, **times, "reason": reason, "message": message}]


def _images() -> list[Json]:
    return [
        {
            "names": [
                f"registry.example.net/platform/component-{n}@sha256:{hashlib.sha256(str(n).encode()).hexdigest()}",
                f"registry.example.net/platform/component-{n}:v1.{n}.0",
            ],
            "sizeBytes": 10_000_000 + n,
        }
        for n in range(40)
    ]


def _managed_fields(labels: Mapping[str, str]) -> list[Json]:
    fields: Json = {f"f:{label}": {} for label in labels}
    conditions: Json = {
        f'k:{{"type":"{kind}"}}': {f"f:{name}": {} for name in ("lastHeartbeatTime", "status", "reason", "message")}
        for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
    }
    times = {"operation": "Update", "apiVersion": "v1", "time": LONG_AGO, "fieldsType": "FieldsV1"}
    return [
        {"manager": "kubelet", **times, "fieldsV1": {"f:metadata": {"f:labels": fields}}},
        {
            "manager": "kubelet",
            **times,
            "fieldsV1": {"f:status": {"f:conditions": conditions}},
            "subresource": "status",
        },
    ]
