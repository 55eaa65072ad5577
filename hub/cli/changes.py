"""The output of ``hub plan``: what each pass over a target would change, as text and as data.

Everything printed is derived from :class:`ServiceChange` values, so that table, JSON and YAML agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from hub.cli.render import count, document, one_line
from hub.cli.reserved import move_lines, write_lines
from hub.cli.withheld import lines, registry_lines
from hub.decide.decision import Decision
from hub.decide.plan import EndpointChange, Plan, apply_plan, endpoint_changes
from hub.model import Conditions, Endpoint, Finding, Port, Slice, join_first
from hub.registry.spec import RegistryHeld
from hub.report.allocations import Write
from hub.report.clouds import CLOUD_KINDS
from hub.report.held import held, registry_withheld
from hub.report.values import Held, ReservedAddress

SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
COLOURS: Final = {"added": "green", "removed": "red", "changed": "yellow"}

EndpointKey = tuple[str, str, str]
"""Source cluster, family, address."""


@dataclass(frozen=True, slots=True)
class Line:
    """The change of one endpoint.

    Attributes:
        kind: added, removed or changed.
        ports: the ports published afterwards; for a removed endpoint, the ports published now.
        details: what changes on a changed endpoint, such as ``ready→not ready``.
    """

    kind: str
    cluster: str
    family: str
    address: str
    node: str
    ports: tuple[Port, ...]
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.cluster}/{self.node}" if self.node else self.cluster
        details = f"  {', '.join(self.details)}" if self.details else ""
        return f"{SIGNS[self.kind]} {_shown(self.address, self.ports)}  {where}{details}"


@dataclass(frozen=True, slots=True)
class ServiceChange:
    """The changes of one target.

    Attributes:
        status: why the target is not published normally, for example "paused"; "" if it is.
        lines: endpoints, sorted by cluster, family and address.
        others: changes of whole slices: ports, labels, owner.
        unknown: source -> why its state is unknown.
        withheld: the removals that the guard withholds.
    """

    name: str
    status: str
    lines: tuple[Line, ...]
    others: tuple[str, ...]
    slices: Mapping[str, int]
    unknown: Mapping[str, str]
    findings: tuple[Finding, ...]
    withheld: tuple[Held, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything would be written."""
        return any(self.slices[kind] for kind in ("create", "update", "delete"))


def service_change(result: Decision, flags: str = "") -> ServiceChange:
    """Describe the result of a pass; ``flags`` are the options that `hub approve` needs for this hub."""
    planned = result.plan or Plan()
    ports = _ports(apply_plan(result.observed, planned)) if planned.writes else {}
    before = _ports(result.observed) if planned.writes else {}
    changes = endpoint_changes(result.observed, planned) if planned.writes else ()
    return ServiceChange(
        str(result.target),
        result.status,
        tuple(_line(change, before, ports) for change in changes),
        tuple(_others(result.observed, planned)),
        {
            "create": len(planned.creates),
            "update": len(planned.updates),
            "delete": len(planned.deletes),
            "unchanged": planned.unchanged if result.plan is not None else len(result.observed),
        },
        dict(sorted(result.unknown.items())),
        result.findings,
        held(result, flags),
    )


def _line(
    change: EndpointChange,
    before: Mapping[EndpointKey, tuple[Port, ...]],
    after: Mapping[EndpointKey, tuple[Port, ...]],
) -> Line:
    key = (change.cluster, change.family, change.address)
    endpoint = change.after or change.before or Endpoint(())
    node = endpoint.target_ref.name if endpoint.target_ref else ""
    details = tuple(_details(change.before, change.after)) if change.before and change.after else ()
    return Line(change.kind, *key, node, (before if change.after is None else after).get(key, ()), details)


def _ports(slices: Iterable[Slice]) -> dict[EndpointKey, tuple[Port, ...]]:
    return {
        (slice_.cluster, slice_.address_type, address): slice_.ports
        for slice_ in slices
        for endpoint in slice_.endpoints
        for address in endpoint.addresses
    }


def _shown(address: str, ports: tuple[Port, ...]) -> str:
    numbers = ",".join(str(port.port) for port in ports if port.port is not None)
    host = f"[{address}]" if ":" in address and numbers else address
    return f"{host}:{numbers}" if numbers else host


def _details(before: Endpoint, after: Endpoint) -> Iterable[str]:
    pairs = (
        ("", _condition(before.conditions), _condition(after.conditions)),
        ("node ", _reference(before), _reference(after)),
        ("zone ", before.zone, after.zone),
        ("hint ", _zones(before), _zones(after)),
        ("hostname ", before.hostname, after.hostname),
        ("nodeName ", before.node_name, after.node_name),
    )
    found = [f"{what}{old or 'none'}→{new or 'none'}" for what, old, new in pairs if old != new]
    return found or ["other fields"]


def _condition(conditions: Conditions) -> str:
    """Sum up the three conditions; an unset condition counts as the default that consumers assume."""
    ready = conditions.ready is not False
    serving = ready if conditions.serving is None else conditions.serving
    if conditions.terminating:
        return "draining" if serving else "terminating"
    if ready != serving:
        return "ready, not serving" if ready else "not ready, serving"
    return "ready" if ready else "not ready"


def _zones(endpoint: Endpoint) -> str:
    """The zones that should use an endpoint."""
    return ",".join(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else ""


def _reference(endpoint: Endpoint) -> str:
    return endpoint.target_ref.name if endpoint.target_ref else ""


def _others(observed: Sequence[Slice], planned: Plan) -> Iterable[str]:
    """Changes of whole slices; the same change of several slices is listed once."""
    by_name = {slice_.name: slice_ for slice_ in observed}
    found: dict[str, list[str]] = {}
    for new in planned.updates:
        old = by_name[new.name]
        if old.ports != new.ports:
            found.setdefault(f"ports of {new.cluster}: {_listed(old.ports)}→{_listed(new.ports)}", []).append(new.name)
        if old.labels != new.labels:
            keys = sorted(key for key, _ in old.labels.items() ^ new.labels.items())
            found.setdefault(f"labels {', '.join(dict.fromkeys(keys))}", []).append(new.name)
        if old.annotations != new.annotations:
            keys = sorted(key for key, _ in old.annotations.items() ^ new.annotations.items())
            found.setdefault(f"annotations {', '.join(dict.fromkeys(keys))}", []).append(new.name)
        if old.owners != new.owners:
            found.setdefault("owner reference", []).append(new.name)
    return [f"{what} ({names[0] if len(names) == 1 else count(len(names), 'slice')})" for what, names in found.items()]


def _listed(ports: tuple[Port, ...]) -> str:
    return ", ".join(f"{port.name or 'unnamed'} {port.port}/{port.protocol}" for port in ports) or "none"


# --- printing --------------------------------------------------------------------------------------


def print_plan(
    results: Iterable[Decision],
    output: Any = "table",
    flags: str = "",
    registry: RegistryHeld | None = None,
    moves: Sequence[ReservedAddress] | None = None,
    writes: Sequence[Write] = (),
) -> bool:
    """Print the changes of all passes, a withheld removal from the registry, and moves of reserved addresses.

    ``moves`` None = there are no allocations. ``writes``: labels, evictions and finalizers of allocations, and
    the changes of cloud controllers.

    Returns:
        Whether anything would change.
    """
    services = [service_change(result, flags) for result in results if result.status != "gone"]
    changes = any(service.changes for service in services) or any(address.to for address in moves or ())
    changes = changes or bool(writes)
    if output != "table":
        data = {**_document(services, registry), "changes": changes}
        if moves is not None:
            data["addresses"] = list(map(_move, moves))
        if moves is not None or writes:
            data["writes"] = [write._asdict() for write in writes]
        click.echo(document("Plan", data, output))
        return changes
    for service in services:
        _print_service(service)
    for line in registry_lines(registry_withheld(registry)):
        click.echo(click.style(one_line(line) if line.startswith("=") else f"  {one_line(line)}", fg="magenta"))
    for line in move_lines(moves or ()):
        click.echo(click.style(line, fg="yellow"))
    for line in write_lines(writes):
        click.echo(click.style(one_line(line), fg="yellow"))
    click.echo(_summary(services, moves or (), writes))
    return changes


def _print_service(service: ServiceChange) -> None:
    calm = not service.changes and not service.unknown and not service.findings
    click.echo(click.style(service.name, bold=True) + (f": {one_line(service.status) or 'no change'}" if calm else ""))
    if calm:
        return
    if service.status and service.status not in {finding.message for finding in service.findings}:
        click.echo(f"  {one_line(service.status)}")
    for line in service.lines:
        click.echo("  " + click.style(one_line(str(line)), fg=COLOURS[line.kind]))
    for other in service.others:
        click.echo("  " + click.style(f"~ {one_line(other)}", fg="yellow"))
    for text in _notes(service):
        click.echo(text)
    if service.changes:
        numbers = ", ".join(f"{service.slices[kind]} to {kind}" for kind in ("create", "update", "delete"))
        click.echo(f"  slices: {numbers}, {service.slices['unchanged']} unchanged")


def _notes(service: ServiceChange) -> Iterable[str]:
    """Unknown sources, withheld removals and findings; a finding about a withheld removal is not repeated."""
    for cluster, reason in service.unknown.items():
        yield "  " + click.style(f"? {cluster}: unknown, nothing is removed: {one_line(reason)}", fg="magenta")
    for removal in service.withheld:
        for line in lines(removal):
            yield "  " + click.style(one_line(line) if line.startswith("=") else f"  {one_line(line)}", fg="magenta")
    shown = {removal.message for removal in service.withheld}
    for finding in service.findings:
        if finding.message not in shown:
            yield f"  ! {finding.reason}: {one_line(finding.message)}{_objects(finding)}"


def _objects(finding: Finding) -> str:
    """Up to five of the finding's objects that its message does not name."""
    names = [one_line(name) for name in finding.objects if name not in finding.message]
    return f" ({join_first(names, 5)})" if names else ""


def _move(address: ReservedAddress) -> dict[str, Any]:
    return {
        "address": address.address,
        "from": address.node,
        "to": address.to,
        "cause": address.cause,
        "reason": address.reason,
        "waitsUntil": address.waits_until,
        "approve": address.approve,
    }


def _summary(services: Sequence[ServiceChange], moves: Sequence[ReservedAddress], writes: Sequence[Write]) -> str:
    changing = [service for service in services if service.changes]
    kinds = {kind: sum(line.kind == kind for service in changing for line in service.lines) for kind in SIGNS}
    unknown = {cluster for service in services for cluster in service.unknown}
    parts = [
        f"{count(len(changing), 'service')} to change",
        f"{len(services) - len(changing)} unchanged",
        "endpoints: " + ", ".join(f"{number} {kind}" for kind, number in kinds.items()),
    ]
    withheld = sum(len(held.addresses) for service in services for held in service.withheld)
    if withheld:
        parts.append(f"withheld: {count(withheld, 'removal')}")
    if moving := sum(bool(address.to) for address in moves):
        parts.append(f"{count(moving, 'reserved address', 'es')} to move")
    if waiting := sum(not address.to for address in moves):
        parts.append(f"{count(waiting, 'reserved address', 'es')} waiting")
    clouds = sum(write.kind in CLOUD_KINDS for write in writes)
    if others := len(writes) - clouds:
        parts.append(f"{count(others, 'change')} of labels, Pods and finalizers")
    if clouds:
        parts.append(f"{count(clouds, 'change')} of nodes and balancers in clouds")
    if unknown:
        parts.append(f"unknown: {', '.join(sorted(unknown))}")
    return "Plan: " + "; ".join(parts)


def _document(services: Sequence[ServiceChange], registry: RegistryHeld | None) -> dict[str, Any]:
    return {
        "changes": any(service.changes for service in services),
        "registry": {"withheld": msgspec.to_builtins(registry_withheld(registry))},
        "services": [
            {
                "name": service.name,
                "status": service.status,
                "changes": service.changes,
                "endpoints": [
                    {
                        "change": line.kind,
                        "cluster": line.cluster,
                        "family": line.family,
                        "address": line.address,
                        "ports": [_port(port) for port in line.ports],
                        "node": line.node,
                        "details": list(line.details),
                    }
                    for line in service.lines
                ],
                "others": list(service.others),
                "slices": dict(service.slices),
                "unknown": [{"cluster": name, "reason": why} for name, why in service.unknown.items()],
                "withheld": msgspec.to_builtins(service.withheld),
                "findings": [
                    {"reason": finding.reason, "message": finding.message, "objects": list(finding.objects)}
                    for finding in service.findings
                ],
            }
            for service in services
        ],
    }


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "port": port.port, "protocol": port.protocol}
