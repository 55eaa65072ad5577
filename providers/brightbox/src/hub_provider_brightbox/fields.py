"""What a Service's balancer shall look like, and how that differs from what the account has. Order never counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hub.plugin.clouds import Balancer, BalancerPort, Record
from hub_provider_brightbox.instances import PROVIDER_ID
from hub_provider_brightbox.inventory import Inventory, addresses, certified, clean
from hub_provider_brightbox.shapes import Object, as_object, as_objects

SOURCE: Final = "10.0.0.0/8"
"""Where the cloud's load balancers send their traffic from."""
HEALTH: Final = {
    "healthcheck-interval": ("interval", 5000),
    "healthcheck-timeout": ("timeout", 5000),
    "healthcheck-healthy-threshold": ("threshold_up", 3),
    "healthcheck-unhealthy-threshold": ("threshold_down", 3),
}
"""Setting -> field of the health check, and the cloud's default."""
POLICY, IDLE = "least-connections", 50_000
"""The cloud's defaults of the balancing policy and of the idle timeout in milliseconds."""


def servers(want: Balancer) -> list[str]:
    """The ids of the servers that take the traffic, sorted."""
    return sorted({found["id"] for node in want.nodes if (found := PROVIDER_ID.fullmatch(node.provider_id))})


def protocol(want: Balancer) -> str:
    """The protocol of listeners without TLS."""
    return str(want.settings.get("listener-protocol") or "http")


def has_tls(want: Balancer, port: BalancerPort) -> bool:
    """Whether the listener of a port has TLS: 443 always has, unless the listeners are tcp."""
    if protocol(want) == "tcp":
        return False
    named: Any = want.settings.get("ssl-ports") or ()
    return port.port == 443 or str(port.port) in named or port.name in named or protocol(want) == "https"


def rule(want: Balancer) -> dict[str, str]:
    """The rule that lets the load balancers reach the nodes."""
    ports = dict.fromkeys(port.node_port for port in want.ports)
    if want.local and want.health_port:
        ports[want.health_port] = None
    listed = ",".join(map(str, ports))
    return {"protocol": "tcp", "source": SOURCE, "destination_port": listed, "description": want.name}


def rule_changes(has: Object, wanted: Mapping[str, str]) -> dict[str, str]:
    """The fields of a rule that differ."""
    found = {**has, "description": clean(has.get("description"))}
    found["destination_port"] = sorted(str(has.get("destination_port") or "").replace(" ", "").split(","))
    like = {**wanted, "destination_port": sorted(wanted["destination_port"].split(","))}
    return {key: value for key, value in wanted.items() if found.get(key) != like[key]}


def domains(want: Balancer, address: Object, has: Object | None, seen: Inventory) -> tuple[list[str], list[str]]:
    """The domains of the certificates, and those that wait: they do not lead to the Cloud IP yet.

    A domain that has a certificate keeps it, wherever it leads now.
    """
    own = [str(address.get(key)) for key in ("fqdn", "reverse_dns") if address.get(key)]
    kept = certified(has) or () if has is not None else ()
    asked: Any = want.settings.get("ssl-domains") or ()
    here = addresses(address)
    waiting = [name for name in asked if name not in kept and not set(here) & set(seen.names.get(name, ()))]
    return list(dict.fromkeys([*own, *(name for name in asked if name not in waiting)])), waiting


def balancer(
    want: Balancer, record: Record, address: Object | None, has: Object | None, seen: Inventory
) -> dict[str, Any]:
    """All fields of the load balancer that the hub sets; a setting that has gone is put back to the default once."""
    found: dict[str, Any] = {"name": want.name, "listeners": _listeners(want, record)}
    found["healthcheck"] = _healthcheck(want, record)
    if named := servers(want):
        found["nodes"] = [{"node": server} for server in named]
    found["https_redirect"] = any(has_tls(want, port) for port in want.ports)
    if found["https_redirect"] and address is not None:
        found["domains"] = domains(want, address, has, seen)[0]
    if (policy := _setting(want, record, "policy", POLICY)) is not None:
        found["policy"] = policy
    return found


def balancer_changes(has: Object, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a load balancer that differ."""
    return {key: value for key, value in wanted.items() if not _same(key, has, value)}


def _setting(want: Balancer, record: Record, name: str, default: Any) -> Any:
    """A setting; the default if it was set earlier; None if it never was. 0 is as good as not set, as in the API."""
    return want.settings.get(name) or (default if name in record.set else None)


def _listeners(want: Balancer, record: Record) -> list[Object]:
    more: dict[str, Any] = {
        "timeout": _setting(want, record, "listener-idle-timeout", IDLE),
        "proxy_protocol": want.settings.get("listener-proxy-protocol"),
    }
    more = {key: value for key, value in more.items() if value is not None}
    return [
        {
            "protocol": "https" if has_tls(want, port) else protocol(want),
            "in": port.port,
            "out": port.node_port,
            **more,
        }
        for port in want.ports
    ]


def _healthcheck(want: Balancer, record: Record) -> dict[str, Any]:
    by_node = want.local and bool(want.health_port)
    port = want.health_port if by_node else want.ports[0].node_port
    kind = want.settings.get("healthcheck-protocol") or ("tcp" if protocol(want) == "tcp" and not by_node else "http")
    request = "/" if kind == "tcp" else want.settings.get("healthcheck-request") or "/healthz"
    found: dict[str, Any] = {"type": kind, "port": port, "request": request}
    for name, (key, default) in HEALTH.items():
        if (value := _setting(want, record, name, default)) is not None:
            found[key] = value
    return found


def _same(key: str, has: Object, wanted: Any) -> bool:
    value = has.get(key)
    match key:
        case "name":
            return clean(value) == str(wanted)
        case "nodes":
            return {each.get("id") for each in as_objects(value)} == {each["node"] for each in as_objects(wanted)}
        case "listeners":
            timed = any("timeout" in each for each in wanted)
            return _comparable(as_objects(value), timed=timed) == _comparable(wanted, timed=timed)
        case "healthcheck":
            return all(as_object(value).get(name) == part for name, part in as_object(wanted).items())
        case "domains":
            known = certified(has)
            return known is None or known == sorted(map(str, wanted))
        case _:
            same: bool = value == wanted
            return same


def _comparable(listeners: Sequence[Object], *, timed: bool) -> list[str]:
    keys = ("protocol", "in", "out", "proxy_protocol", *(("timeout",) if timed else ()))
    return sorted(repr([each.get(key) or None for key in keys]) for each in listeners)
