"""Determine the ports of a target's slices for one of its sources.

Ports in the registry entry take precedence and may have any number. Ports from a Service, the target's or a remote
one, must be in the source cluster's allowedPorts, because users who may edit Services may not be allowed to edit
clusters.yaml. A port that must be read from a cluster and can't be read now keeps its published number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hub.model import Port, Service, ServicePort
from hub.registry.spec import NodePortRef, PortSpec, TargetSpec

PortRanges = Sequence[tuple[int, int]]
PortTuple = tuple[Port, ...]


class PortReading(NamedTuple):
    """A port of a remote Service: its number, or why the number is not known."""

    number: int | None
    problem: str = ""


NO_READINGS: Final[Mapping[NodePortRef, PortReading]] = {}
NOT_READ: Final = PortReading(None, "it has not been read yet")


class Ports(msgspec.Struct, frozen=True):
    """The ports of the slices of one source, sorted.

    Attributes:
        ports: the ports of every endpoint that is not in ``sets``.
        sets: address -> ports, for copied endpoints with other ports.
        unread: one sentence for each port that could not be read and keeps its published number.
    """

    ports: PortTuple
    sets: Mapping[str, PortTuple] = msgspec.field(default_factory=dict)
    unread: tuple[str, ...] = ()


class PortProblem(msgspec.Struct, frozen=True):
    """The ports cannot be determined; ``reason`` (of the Event): PortMismatch, PortNotAllowed or NodePortUnknown."""

    reason: str
    message: str


def ports(
    target: TargetSpec,
    service: Service,
    allowed: PortRanges | None,
    source_ports: PortTuple | None = None,
    source_sets: Mapping[str, PortTuple] | None = None,
    readings: Mapping[NodePortRef, PortReading] = NO_READINGS,
    last: PortTuple = (),
) -> Ports | PortProblem:
    """The ports for one source of a target.

    Args:
        target: the registry entry; if its ``ports`` is None, the ports come from the Service.
        service: the hub cluster's Service.
        allowed: inclusive ranges of the source cluster's allowedPorts; None = any (the hub cluster itself).
        source_ports: the ports of a copied Service; they resolve a named targetPort.
        source_sets: address -> ports of the copied Service, for addresses with other ports than ``source_ports``.
        readings: known ports of remote Services.
        last: the published ports, used for ports that cannot be read.
    """
    if target.ports is not None:
        return _of_entry(target.ports, service, allowed, readings, last)
    offers = set((source_sets or {}).values())
    known = {(port.name, port.protocol) for offered in (*offers, source_ports or ()) for port in offered}
    made = {offered: _of_service(service, offered, known) for offered in offers}
    main = _of_service(service, last if source_ports is None else source_ports, known)
    for numbers in (main, *made.values()):
        problem = _check(numbers, allowed, service)
        if problem is not None:
            return problem
    sets = {address: made[offered] for address, offered in (source_sets or {}).items() if made[offered] != main}
    return Ports(main, sets)


def has_named_port(service: Service) -> bool:
    """Whether a targetPort is a name, which only the source can resolve to a number."""
    return any(isinstance(port.target_port, str) for port in service.ports)


def ports_of_published(service: Service, published: PortTuple) -> PortTuple:
    """The ports of an endpoint whose source does not state them now: a named port keeps its published number."""
    return _of_service(service, published, {(port.name, port.protocol) for port in published})


def _of_service(service: Service, offered: PortTuple, known: set[tuple[str, str]]) -> PortTuple:
    """The Service's ports, without those that only other endpoints of the source serve.

    Args:
        service: the hub Service.
        offered: the ports of these endpoints at the source.
        known: (name, protocol) of the ports of all endpoints of the source.
    """
    made = []
    for port in service.ports:
        number = _number(port, offered)
        if number is None:
            if known & _names_of(port):
                continue
            number = port.port
        app_protocol = port.app_protocol or _app_protocol(port, offered)
        made.append(Port(port.name, number, port.protocol, app_protocol or None))
    return _in_order(made)


def _number(port: ServicePort, offered: PortTuple) -> int | None:
    """A numeric targetPort, else the number of the source's port of the same name; None if there is no such port."""
    if not isinstance(port.target_port, str):
        return port.target_port or port.port
    found = _same_name(port, offered)
    return found.port if found is not None else None


def _app_protocol(port: ServicePort, offered: PortTuple) -> str | None:
    found = _same_name(port, offered)
    return found.app_protocol if found is not None else None


def _same_name(port: ServicePort, offered: PortTuple) -> Port | None:
    """The source's port with the Service port's name, else the one with the name in its targetPort."""
    for name in (port.name, port.target_port):
        for candidate in offered:
            if candidate.name == name and candidate.protocol == port.protocol and candidate.port is not None:
                return candidate
    return None


def _names_of(port: ServicePort) -> set[tuple[str, str]]:
    return {(port.name, port.protocol), (str(port.target_port), port.protocol)}


# --- ports written in the registry ---------------------------------------------------------------------


def _of_entry(
    entries: Sequence[PortSpec],
    service: Service,
    allowed: PortRanges | None,
    readings: Mapping[NodePortRef, PortReading],
    last: PortTuple,
) -> Ports | PortProblem:
    by_name = {(port.name, port.protocol): port for port in service.ports}
    made: dict[tuple[str, str], Port] = {}
    unread: list[str] = []
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
        number: int | None = entry.port
        if entry.node_port is not None:
            number, problem = readings.get(entry.node_port, NOT_READ)
            if number is None:
                number = next(
                    (port.port for port in last if (port.name, port.protocol) == (name, entry.protocol)), None
                )
                what = f"the node port {entry.node_port.port} of Service {entry.node_port.service}: {problem}"
                if number is None:
                    return PortProblem("NodePortUnknown", what)
                unread.append(f"{what}; {number} stays")
        app_protocol = entry.app_protocol or (of_service.app_protocol if of_service is not None else None)
        port = Port(name, number, entry.protocol, app_protocol or None)
        wrong = _check((port,), None if entry.node_port is None else allowed, None)
        if wrong is not None:
            return wrong
        made[name, entry.protocol] = port
    return Ports(_in_order(made.values()), unread=tuple(unread))


def _check(numbers: Iterable[Port], allowed: PortRanges | None, service: Service | None) -> PortProblem | None:
    """Why these ports must not be published; None if they may.

    Args:
        numbers: the ports.
        allowed: inclusive ranges; None = any port.
        service: the hub Service that the ports are from; None = they are nodePorts of a remote Service.
    """
    for port in numbers:
        number = port.port or 0
        if not 1 <= number <= 65535:
            return PortProblem("PortNotAllowed", f"port {number} is not a valid port")
        if allowed is not None and not any(low <= number <= high for low, high in allowed):
            hint = "extend allowedPorts"
            if service is not None:
                hint = (
                    "write the number on which the nodes listen, such as a NodePort, in the registry entry's ports, "
                    f"or {hint}"
                )
            return PortProblem(
                "PortNotAllowed",
                f"port {number}, {_origin(port, service)}, is outside the cluster's allowedPorts; {hint}",
            )
    return None


def _origin(made: Port, service: Service | None) -> str:
    """Where the number of a port comes from, in words."""
    if service is None:
        return "the nodePort that was read"
    port = next(port for port in service.ports if (port.name, port.protocol) == (made.name, made.protocol))
    if not isinstance(port.target_port, str):
        return "the Service's targetPort" if port.target_port else "the Service's port"
    if made.port == port.port:
        return f"the Service's port, as its targetPort {port.target_port!r} is a name"
    return f"which targetPort {port.target_port!r} of the Service stands for"


def _in_order(made: Iterable[Port]) -> PortTuple:
    return tuple(sorted(made, key=lambda port: (port.name, port.protocol, port.port or 0)))


def _names(service: Service) -> str:
    return ", ".join(f"{port.name!r} ({port.protocol})" for port in service.ports) or "none"
