"""What consumers of a Service's slices will stumble over, as far as the Service and the decision about it show it.

``hub check --online`` prints these notes; docs/consumers.md explains them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hub.decide.decision import Decision
from hub.model import Service, ServicePort, join_first

NOTED: Final = frozenset({"LocalTrafficPolicy", "ZoneNotMapped", "ZoneNotInHub"})
"""Reasons of findings about consumers."""
NAMED: Final = 3
"""Maximum number of ports that one note names."""


def traps(service: Service, decision: Decision) -> Iterator[str]:
    """One sentence for each trap, with the remedy."""
    for finding in decision.findings:
        if finding.reason in NOTED:
            yield f"{finding.reason}: {finding.message}"
    if decision.groups:
        yield from _ports(service, decision)
        yield from _hints(decision)
    if service.headless:
        yield from _hostnames(decision)


def _ports(service: Service, decision: Decision) -> Iterator[str]:
    published = {(port.name, port.protocol): port for group in decision.groups for port in group.ports}
    pairs = [(port, published.get((port.name, port.protocol))) for port in service.ports]
    if lacking := [_shown(port) for port, found in pairs if found is None]:
        yield (
            f"no source publishes port {join_first(lacking, NAMED)} of the Service, so connections to it fail: add it "
            "to the entry's ports, or remove it from the Service"
        )
    sources: dict[str, set[tuple[str, str]]] = {}
    for group in (group for group in decision.groups if group.endpoints):
        for ports in (group.ports, *group.port_sets.values()):
            sources.setdefault(group.key.cluster, set()).update((port.name, port.protocol) for port in ports)
    for port in (port for port, found in pairs if found is not None):
        if partly := sorted(name for name, ports in sources.items() if (port.name, port.protocol) not in ports):
            yield (
                f"{join_first(partly, NAMED)} does not publish port {_shown(port)} of the Service, so connections to "
                "it use the other sources only: give all sources the same ports"
            )
    unseen = [
        (port, found)
        for port, found in pairs
        if found is not None and found.app_protocol and found.app_protocol != port.app_protocol
    ]
    if unseen:
        names = join_first([f"{found.app_protocol} of port {_shown(port)}" for port, found in unseen], NAMED)
        yield (
            f"appProtocol {names} is in the slices only: consumers that read the Service's, such as Gateway API "
            "implementations and Istio, do not see it: set it in the Service too"
        )
    moved = [(port, found) for port, found in pairs if found is not None and found.port != port.port]
    if service.headless and moved:
        numbers = join_first([f"{port.port} (the endpoints listen on {found.port})" for port, found in moved], NAMED)
        yield (
            f"the Service is headless, so nothing translates its port {numbers} for clients that resolve its name: "
            "give the Service the port on which the endpoints listen"
        )


def _hints(decision: Decision) -> Iterator[str]:
    """Zone hints that kube-proxy ignores, because another source has none; sources that map zones have findings."""
    reported = {name for finding in decision.findings if finding.reason in NOTED for name in finding.objects}
    hinted: dict[bool, set[str]] = {True: set(), False: set()}
    for group in decision.groups:
        for endpoint in group.endpoints.values():
            hinted[endpoint.hints is not None].add(group.key.cluster)
    if hinted[True] and (lacking := sorted(hinted[False] - reported)):
        yield (
            f"kube-proxy ignores the zone hints of {join_first(sorted(hinted[True]), NAMED)}, since endpoints of "
            f"{join_first(lacking, NAMED)} have none: give all sources of the Service a zoneMap, or none"
        )


def _hostnames(decision: Decision) -> Iterator[str]:
    endpoints = [endpoint for group in decision.groups for endpoint in group.endpoints.values()]
    without = sorted(endpoint.address for endpoint in endpoints if not endpoint.hostname)
    # Sources without node names have no hostnames at all, which is no surprise.
    nodes = any(endpoint.target_ref is not None and endpoint.target_ref.kind == "Node" for endpoint in endpoints)
    if without and (nodes or len(without) < len(endpoints)):
        yield (
            f"{len(without)} of {len(endpoints)} endpoints have no hostname, such as {without[0]}, so they have no DNS "
            "name of their own: two nodes share the name, or it is not a DNS label"
        )


def _shown(port: ServicePort) -> str:
    return f"{port.name or port.port} ({port.protocol})"
