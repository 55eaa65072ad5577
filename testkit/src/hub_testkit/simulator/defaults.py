"""Defaulting and normalisation of each kind before an object is stored; ``old`` is the object that it replaces."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.shapes import canonical_slice

Json = dict[str, Any]

SERVICE_NETWORKS = {"IPv4": "10.96.0.0/16", "IPv6": "fd00:10:96::/112"}
FIRST_NODE_PORT = 30000
NOT_READY_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
NODE_INFO = dict.fromkeys(
    (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ),
    "",
)
EMPTY_NODE = {"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": NODE_INFO}}
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")


@dataclass(slots=True)
class Networks:
    """Allocates ClusterIPs and node ports; ``families`` are the cluster's, the default one first."""

    families: tuple[str, ...] = ("IPv4", "IPv6")
    _addresses: Iterator[int] = field(default_factory=lambda: count(10))
    _ports: Iterator[int] = field(default_factory=lambda: count(FIRST_NODE_PORT))

    def cluster_ip(self, family: str) -> str:
        """Returns a free address in the family's service network."""
        return str(ipaddress.ip_network(SERVICE_NETWORKS[family])[next(self._addresses)])

    def node_port(self) -> int:
        """Returns a free node port."""
        return next(self._ports)


Shape = Callable[[Json, Json | None, Networks], None]
"""Defaults and normalises an object in place."""


def no_defaults(_obj: Json, _old: Json | None, _networks: Networks) -> None:
    """Changes nothing: the kind has no defaults."""


def node(obj: Json, _old: Json | None, _networks: Networks) -> None:
    """Sets the parts of a status that are always present, and null for unknown times."""
    spec: Json = obj.get("spec") or {}
    status: Json = obj.get("status") or {}
    obj["spec"], obj["status"] = spec, status
    conditions: list[Json] = status.get("conditions") or []
    for condition in conditions:
        condition.setdefault("lastHeartbeatTime", None)
        condition.setdefault("lastTransitionTime", None)
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = {**NODE_INFO, **status.get("nodeInfo", {})}
    _drop_empty(spec, "taints", "podCIDR", "podCIDRs", "providerID", "unschedulable")
    _drop_empty(status, "addresses", "conditions")


def service(obj: Json, old: Json | None, networks: Networks) -> None:
    """Sets type, ports, families, addresses and node ports."""
    spec = obj.setdefault("spec", {})
    _drop_empty(spec, "selector", "ports", "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
    kind = spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    obj.setdefault("status", {"loadBalancer": {}})
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    if kind == "ExternalName":
        return
    spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if old is not None and old["spec"].get("clusterIP"):
        # An update that omits these fields keeps their values.
        for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if name in old["spec"]:
                spec.setdefault(name, old["spec"][name])
    _service_families(spec, networks)
    if kind in ("NodePort", "LoadBalancer"):
        for port in spec.get("ports", ()):
            if not port.get("nodePort"):
                port["nodePort"] = networks.node_port()


def _service_families(spec: Json, networks: Networks) -> None:
    headless = spec.get("clusterIP") == "None"
    if "ipFamilyPolicy" not in spec:
        # Measured: a headless Service without a selector is dual-stack by default, even in a single-stack cluster.
        both = len(spec.get("ipFamilies", ())) > 1 or (headless and "selector" not in spec)
        spec["ipFamilyPolicy"] = "RequireDualStack" if both else "SingleStack"
    wanted = 1 if spec["ipFamilyPolicy"] == "SingleStack" else 2
    families = list(spec.get("ipFamilies", ()))
    spare = ("IPv4", "IPv6") if headless and "selector" not in spec else networks.families
    families += [family for family in spare if family not in families]
    spec["ipFamilies"] = families[: max(wanted, len(spec.get("ipFamilies", ())))]
    if headless:
        spec["clusterIPs"] = ["None"]
        return
    given = spec.get("clusterIPs") or ([spec["clusterIP"]] if "clusterIP" in spec else [])
    spec["clusterIPs"] = [*given, *(networks.cluster_ip(family) for family in spec["ipFamilies"][len(given) :])]
    spec["clusterIP"] = spec["clusterIPs"][0]


def endpoint_slice(obj: Json, _old: Json | None, _networks: Networks) -> None:
    """Sets the fields in wire order; empty lists become null."""
    shaped = canonical_slice(obj)
    for name in [name for name in obj if name != "metadata"]:
        del obj[name]
    obj.update(shaped)


def lease(obj: Json, _old: Json | None, _networks: Networks) -> None:
    """Checks the times."""
    spec = obj.setdefault("spec", {})
    for name in [name for name, value in spec.items() if value is None]:
        del spec[name]
    for name in ("acquireTime", "renewTime"):
        _check_micro_time("Lease", spec.get(name))


def namespace(obj: Json, old: Json | None, _networks: Networks) -> None:
    """Sets the label with the name, the finalizer and the phase."""
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")
    if old is None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
    else:
        obj["spec"], obj["status"] = old["spec"], obj.get("status") or old["status"]


def event(obj: Json, _old: Json | None, _networks: Networks) -> None:
    """Checks the time, and sets the fields for the older Event API."""
    _check_micro_time("Event", obj.setdefault("eventTime", None))
    obj.setdefault("regarding", {})
    obj.setdefault("deprecatedSource", {})
    obj.setdefault("deprecatedFirstTimestamp", None)
    obj.setdefault("deprecatedLastTimestamp", None)


def secret(obj: Json, _old: Json | None, _networks: Networks) -> None:
    """Encodes ``stringData`` and checks base64."""
    plain: dict[str, str] = obj.pop("stringData", None) or {}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
    data: dict[str, str] = obj.get("data") or {}
    data |= encoded
    for value in data.values():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise Refusal(
                400, 'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0'
            ) from error
    obj["data"] = data
    _drop_empty(obj, "data")
    obj.setdefault("type", "Opaque")


def config_map(obj: Json, _old: Json | None, _networks: Networks) -> None:
    """Checks that the values are text."""
    _drop_empty(obj, "data", "binaryData")
    if not all(isinstance(value, str) for value in obj.get("data", {}).values()):
        raise Refusal(
            400,
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal into Go struct field '
            "ConfigMap.data of type string",
        )


def _drop_empty(obj: Json, *names: str) -> None:
    for name in names:
        if name in obj and not obj[name]:
            del obj[name]


def _check_micro_time(kind: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and _MICRO_TIME.fullmatch(value)):
        raise Refusal(
            400,
            f'{kind} in version "v1" cannot be handled as a {kind}: parsing time "{value}" as '
            '"2006-01-02T15:04:05.000000Z07:00": cannot parse',
        )
