"""Validation of names, labels, EndpointSlices, Leases and Events, as by the API server (422).

Measured on a real server, which accepts ClusterIPs, any port number, leading zeros, multicast outside 224.0.0.0/24,
and IPv6 addresses that embed a cloud metadata address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from hub_testkit.simulator.answers import Cause, bad, duplicate, required, too_many, unsupported

Json = dict[str, Any]
IP = ipaddress.IPv4Address | ipaddress.IPv6Address

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_NAME_PART_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

MAX_ENDPOINTS = 1000
MAX_ADDRESSES = 100
MAX_PORTS = 20000
MAX_ZONE_HINTS = 8
ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
PROTOCOLS = ("SCTP", "TCP", "UDP")


# --- names, labels, owners ---------------------------------------------------------------------


def metadata_causes(meta: Json, *, label_name: bool = False, label_1035: bool = False) -> Iterator[Cause]:
    """Yields what is invalid in metadata; ``label_name`` is for Namespaces, ``label_1035`` for Services."""
    name = meta.get("name", "")
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif label_1035:
        yield from _text("metadata.name", name, _LABEL_1035, _LABEL_1035_TEXT, 63)
    elif label_name:
        yield from _text("metadata.name", name, _LABEL, _LABEL_TEXT, 63)
    else:
        yield from _text("metadata.name", name, _SUBDOMAIN, _SUBDOMAIN_TEXT, 253)
    yield from _label_causes(meta.get("labels", {}))
    for key in meta.get("annotations", {}):
        yield from _qualified("metadata.annotations", key.lower())
    for owner in meta.get("ownerReferences", ()):
        for part in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(part):
                yield bad(f"metadata.ownerReferences.{part}", "", "must not be empty")


def _label_causes(labels: Json) -> Iterator[Cause]:
    for key, value in labels.items():
        yield from _qualified("metadata.labels", key)
        if len(value) > 63:
            yield bad("metadata.labels", value, "must be no more than 63 characters")
        if value and not _NAME_PART.fullmatch(value):
            yield bad("metadata.labels", value, _LABEL_VALUE_TEXT)


def _text(field: str, value: str, pattern: re.Pattern[str], text: str, limit: int) -> Iterator[Cause]:
    if len(value) > limit:
        yield bad(field, value, f"must be no more than {limit} characters")
    if not pattern.fullmatch(value):
        yield bad(field, value, text)


def _qualified(field: str, value: str) -> Iterator[Cause]:
    prefix, slash, name = value.rpartition("/")
    if slash and not _SUBDOMAIN.fullmatch(prefix):
        yield bad(field, value, f"prefix part {_SUBDOMAIN_TEXT}")
    if len(name) > 63:
        yield bad(field, value, "name part must be no more than 63 characters")
    if not _NAME_PART.fullmatch(name):
        yield bad(field, value, _NAME_PART_TEXT)


# --- EndpointSlice -----------------------------------------------------------------------------


def slice_causes(obj: Json, old: Json | None) -> Iterator[Cause]:
    """Yields what is invalid in an EndpointSlice, besides its metadata."""
    kind = obj.get("addressType", "")
    if not kind:
        yield required("addressType")
        return
    if kind not in ADDRESS_TYPES:
        yield unsupported("addressType", kind, ADDRESS_TYPES)
        return
    if old is not None and old["addressType"] != kind:
        yield bad("addressType", kind, "field is immutable")
    endpoints: list[Json] = obj.get("endpoints") or []
    if len(endpoints) > MAX_ENDPOINTS:
        yield too_many("endpoints", len(endpoints), MAX_ENDPOINTS)
        return
    for at, endpoint in enumerate(endpoints):
        yield from _endpoint_causes(f"endpoints[{at}]", endpoint, kind)
    yield from _port_causes(obj.get("ports") or [])


def _endpoint_causes(field: str, endpoint: Json, kind: str) -> Iterator[Cause]:
    addresses: list[str] = endpoint.get("addresses") or []
    if not addresses:
        yield required(f"{field}.addresses", "must contain at least 1 address")
    if len(addresses) > MAX_ADDRESSES:
        yield too_many(f"{field}.addresses", len(addresses), MAX_ADDRESSES)
        addresses = []
    for at, address in enumerate(addresses):
        yield from _address_causes(f"{field}.addresses", at, address, kind)
    if (node := endpoint.get("nodeName")) is not None:
        yield from _text(f"{field}.nodeName", node, _SUBDOMAIN, _SUBDOMAIN_TEXT, 253)
    if (hostname := endpoint.get("hostname")) is not None:
        yield from _text(f"{field}.hostname", hostname, _LABEL, _LABEL_TEXT, 63)
    hints: Json = endpoint.get("hints") or {}
    zones: list[Json] = hints.get("forZones") or []
    if len(zones) > MAX_ZONE_HINTS:
        yield too_many(f"{field}.hints.forZones", len(zones), MAX_ZONE_HINTS)


def _address_causes(field: str, at: int, address: str, kind: str) -> Iterator[Cause]:
    here = f"{field}[{at}]"
    if kind == "FQDN":
        yield from _text(here, address, _SUBDOMAIN, _SUBDOMAIN_TEXT, 253)
        return
    ip = parse_ip(address)
    if ip is None:
        yield bad(here, address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        return
    mapped = ip.version == 6 and ip.ipv4_mapped is not None
    if mapped:
        yield bad(here, address, "must not be an IPv4-mapped IPv6 address")
    elif ip.version == 6 and str(ip) != address:
        yield bad(here, address, f'must be in canonical form ("{ip}")')
    if kind != f"IPv{ip.version}" and not mapped:
        yield bad(field, address, f"must be an {kind} address")
    yield from _special_causes(here, address, ip)


def _special_causes(field: str, address: str, ip: IP) -> Iterator[Cause]:
    if ip.is_unspecified:
        yield bad(field, address, f"may not be unspecified ({ip})")
    if ip.is_loopback:
        yield bad(field, address, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    if ip.is_link_local:
        yield bad(field, address, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if _is_link_local_multicast(ip):
        yield bad(field, address, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")


def _is_link_local_multicast(ip: IP) -> bool:
    packed = ip.packed
    return packed[:3] == b"\xe0\0\0" if ip.version == 4 else packed[0] == 0xFF and packed[1] & 0x0F == 0x02


def parse_ip(address: str) -> IP | None:
    """Parses an address like Go's sloppy parser: leading zeros in IPv4 are decimal, zones are refused."""
    if "%" in address:
        return None
    parts = address.split(".")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() for part in parts):
        address = ".".join(part.lstrip("0") or "0" for part in parts)
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def _port_causes(ports: list[Json]) -> Iterator[Cause]:
    if len(ports) > MAX_PORTS:
        yield too_many("ports", len(ports), MAX_PORTS)
        return
    seen: set[str] = set()
    for at, port in enumerate(ports):
        field = f"ports[{at}]"
        name = port.get("name") or ""
        if name:
            yield from _text(f"{field}.name", name, _LABEL, _LABEL_TEXT, 63)
        if name in seen:
            yield duplicate(f"{field}.name", name)
        seen.add(name)
        protocol = port.get("protocol") or "TCP"
        if protocol not in PROTOCOLS:
            yield unsupported(f"{field}.protocol", protocol, PROTOCOLS)
        if (app := port.get("appProtocol")) is not None:
            yield from _qualified(f"{field}.appProtocol", app)


# --- the rest ----------------------------------------------------------------------------------


def lease_causes(obj: Json) -> Iterator[Cause]:
    """Yields what is invalid in a Lease."""
    spec: Json = obj.get("spec") or {}
    if (seconds := spec.get("leaseDurationSeconds")) is not None and seconds <= 0:
        yield bad("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
        yield bad("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


def event_causes(obj: Json) -> Iterator[Cause]:
    """Yields what is invalid in an events.k8s.io/v1 Event."""
    for field in ("eventTime", "reportingController", "reportingInstance", "action", "reason"):
        if not obj.get(field):
            yield required(field)
    if obj.get("type") not in ("Normal", "Warning"):
        yield bad("type", obj.get("type", ""), "")
    if len(obj.get("note", "")) > 1024:
        yield bad("note", obj["note"], "can have at most 1024 characters")


def service_causes(obj: Json) -> Iterator[Cause]:
    """Yields those invalid fields of a Service that a test is likely to produce."""
    spec = obj["spec"]
    if spec.get("type") == "ExternalName":
        if not spec.get("externalName"):
            yield required("spec.externalName")
        return
    ports: list[Json] = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None":
        yield required("spec.ports")
    for at, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield required(f"spec.ports[{at}].name")
        if not 1 <= port.get("port", 0) <= 65535:
            yield bad(f"spec.ports[{at}].port", port.get("port", 0), "must be between 1 and 65535, inclusive")
