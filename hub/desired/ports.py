"""Which ports a target's slices carry, for one of its sources.

Ports written in the registry entry win and may be any; ports taken from the Service must lie in what the
source cluster allows, since whoever edits a Service is not who edits clusters.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub.model import Port, Service, ServicePort
from hub.registry.spec import PortSpec, TargetSpec

PortRanges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of every slice of one source, sorted."""

    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class PortProblem:
    """No ports can be told: ``reason`` is ``PortMismatch`` or ``PortNotAllowed``, the Event's name."""

    reason: str
    message: str


def ports(
    target: TargetSpec,
    service: Service,
    allowed: PortRanges | None,
    source_ports: Sequence[Port] | None = None,
) -> Ports | PortProblem:
    """The ports for one source of a target.

    Args:
        target: the registry entry; ``ports`` None = from the Service.
        service: the hub cluster's Service.
        allowed: inclusive ranges of the source cluster's allowedPorts; None = any (the hub cluster itself).
        source_ports: what a copied Service publishes: resolves a named targetPort by the port's name.
    """
    made = _from_service(service, source_ports) if target.ports is None else _from_entry(target.ports, service)
    if isinstance(made, PortProblem):
        return made
    for port in made:
        number = port.port or 0
        if not 1 <= number <= 65535:
            return PortProblem("PortNotAllowed", f"port {number} is no port")
        if target.ports is None and allowed is not None and not any(low <= number <= high for low, high in allowed):
            return PortProblem(
                "PortNotAllowed",
                f"port {number}, taken from the Service, is outside the cluster's allowedPorts; "
                "write it in the registry entry's ports, or extend allowedPorts",
            )
    return Ports(tuple(sorted(made, key=lambda port: (port.name, port.protocol, port.port or 0))))


def _from_service(service: Service, source_ports: Sequence[Port] | None) -> list[Port]:
    return [
        Port(port.name, _number(port, source_ports), port.protocol, port.app_protocol or None) for port in service.ports
    ]


def _number(port: ServicePort, source_ports: Sequence[Port] | None) -> int:
    if isinstance(port.target_port, int):
        return port.target_port
    if isinstance(port.target_port, str):
        for offered in source_ports or ():
            if offered.name == port.name and offered.protocol == port.protocol and offered.port is not None:
                return offered.port
    return port.port


def _from_entry(entries: Sequence[PortSpec], service: Service) -> list[Port] | PortProblem:
    by_name = {(port.name, port.protocol): port for port in service.ports}
    made: dict[tuple[str, str], Port] = {}
    for entry in entries:
        name = entry.name
        if name is None:
            if len(entries) > 1 or len(service.ports) > 1:
                return PortProblem("PortMismatch", f"port {entry.port} needs a name: the Service has {_names(service)}")
            name = service.ports[0].name if service.ports else ""
        of_service = by_name.get((name, entry.protocol))
        if of_service is None and (service.ports or entry.name):
            return PortProblem(
                "PortMismatch", f"the Service has no {entry.protocol} port named {name!r}, but {_names(service)}"
            )
        if (name, entry.protocol) in made:
            return PortProblem("PortMismatch", f"two ports are named {name!r}")
        app_protocol = entry.app_protocol or (of_service.app_protocol if of_service is not None else None)
        made[name, entry.protocol] = Port(name, entry.port, entry.protocol, app_protocol or None)
    return list(made.values())


def _names(service: Service) -> str:
    return ", ".join(f"{port.name!r} ({port.protocol})" for port in service.ports) or "none"
