"""What passes over targets come to, in words and as data: the output of ``hub plan``.

Everything printed is derived from :class:`ServiceChange` values, so that table, JSON and YAML agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from hub.cli.render import count, document, one_line
from hub.cli.withheld import lines, registry_lines
from hub.model import Conditions, Endpoint, Finding, Port, Slice
from hub.passes.reconcile import Pass
from hub.plan.plan import EndpointChange, Plan, apply_plan, endpoint_changes
from hub.registry.removals import RegistryHeld
from hub.report.held import held, registry_withheld
from hub.report.values import Held

SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
COLOURS: Final = {"added": "green", "removed": "red", "changed": "yellow"}

EndpointKey = tuple[str, str, str]
"""Source cluster, family, address."""


@dataclass(frozen=True, slots=True)
class Line:
    """What happens to one endpoint.

    Attributes:
        kind: added, removed or changed.
        ports: as published afterwards; of a removed endpoint as published now.
        details: of a changed endpoint: ``ready→not ready``.
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
    """What happens to one target.

    Attributes:
        status: why nothing is decided, or what is special; "" in the ordinary case.
        lines: endpoints, sorted by cluster, family and address.
        others: changes that are about whole slices: ports, labels, owner.
        unknown: source -> why it makes no statement.
        withheld: what the guard holds back.
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


def service_change(result: Pass, flags: str = "") -> ServiceChange:
    """A pass in words; ``flags`` are what an approving command needs."""
    planned = result.plan or Plan()
    ports = _ports(apply_plan(result.observed, planned)) if planned.writes else {}
    before = _ports(result.observed) if planned.writes else {}
    changes = endpoint_changes(result.observed, planned) if planned.writes else ()
    return ServiceChange(
        str(result.target),
        result.status,
        tuple(_line(each, before, ports) for each in changes),
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
    each: EndpointChange, before: Mapping[EndpointKey, tuple[Port, ...]], after: Mapping[EndpointKey, tuple[Port, ...]]
) -> Line:
    key = (each.cluster, each.family, each.address)
    endpoint = each.after or each.before or Endpoint(())
    node = endpoint.target_ref.name if endpoint.target_ref else ""
    details = tuple(_details(each.before, each.after)) if each.before and each.after else ()
    return Line(each.kind, *key, node, (before if each.after is None else after).get(key, ()), details)


def _ports(slices: Iterable[Slice]) -> dict[EndpointKey, tuple[Port, ...]]:
    return {
        (each.cluster, each.address_type, address): each.ports
        for each in slices
        for endpoint in each.endpoints
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
        ("hostname ", before.hostname, after.hostname),
        ("nodeName ", before.node_name, after.node_name),
    )
    found = [f"{what}{old or 'none'}→{new or 'none'}" for what, old, new in pairs if old != new]
    return found or ["other fields"]


def _condition(conditions: Conditions) -> str:
    """The three conditions as one word; those that consumers read as default count as they read them."""
    ready = conditions.ready is not False
    serving = ready if conditions.serving is None else conditions.serving
    if conditions.terminating:
        return "draining" if serving else "terminating"
    if ready != serving:
        return "ready, not serving" if ready else "not ready, serving"
    return "ready" if ready else "not ready"


def _reference(endpoint: Endpoint) -> str:
    return endpoint.target_ref.name if endpoint.target_ref else ""


def _others(observed: Sequence[Slice], planned: Plan) -> Iterable[str]:
    """Changes of whole slices, each once however many slices it is about."""
    by_name = {each.name: each for each in observed}
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
    results: Iterable[Pass], output: Any = "table", flags: str = "", registry: RegistryHeld | None = None
) -> bool:
    """Print what passes come to, and what of the registry's removals is withheld; whether anything would change."""
    services = [service_change(each, flags) for each in results if each.status != "gone"]
    if output != "table":
        click.echo(document("Plan", _document(services, registry), output))
        return any(each.changes for each in services)
    for each in services:
        _print_service(each)
    for line in registry_lines(registry_withheld(registry)):
        click.echo(click.style(one_line(line) if line.startswith("=") else f"  {one_line(line)}", fg="magenta"))
    click.echo(_summary(services))
    return any(each.changes for each in services)


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
    """What is unknown, what is withheld, what else was found; what is withheld is no finding once more."""
    for cluster, reason in service.unknown.items():
        yield "  " + click.style(f"? {cluster}: unknown, nothing is removed: {one_line(reason)}", fg="magenta")
    for each in service.withheld:
        for line in lines(each):
            yield "  " + click.style(one_line(line) if line.startswith("=") else f"  {one_line(line)}", fg="magenta")
    shown = {each.message for each in service.withheld}
    for finding in service.findings:
        if finding.message not in shown:
            yield f"  ! {finding.reason}: {one_line(finding.message)}{_objects(finding)}"


def _objects(finding: Finding) -> str:
    """Names the message does not have already, a few of them."""
    names = [each for each in finding.objects if each not in finding.message]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f" ({', '.join(map(one_line, names[:5]))}{more})" if names else ""


def _summary(services: Sequence[ServiceChange]) -> str:
    changing = [each for each in services if each.changes]
    kinds = {kind: sum(line.kind == kind for each in changing for line in each.lines) for kind in SIGNS}
    unknown = {cluster for each in services for cluster in each.unknown}
    parts = [
        f"{count(len(changing), 'service')} to change",
        f"{len(services) - len(changing)} unchanged",
        "endpoints: " + ", ".join(f"{number} {kind}" for kind, number in kinds.items()),
    ]
    withheld = sum(len(held.addresses) for each in services for held in each.withheld)
    if withheld:
        parts.append(f"withheld: {count(withheld, 'removal')}")
    if unknown:
        parts.append(f"unknown: {', '.join(sorted(unknown))}")
    return "Plan: " + "; ".join(parts)


def _document(services: Sequence[ServiceChange], registry: RegistryHeld | None) -> dict[str, Any]:
    return {
        "changes": any(each.changes for each in services),
        "registry": {"withheld": msgspec.to_builtins(registry_withheld(registry))},
        "services": [
            {
                "name": each.name,
                "status": each.status,
                "changes": each.changes,
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
                    for line in each.lines
                ],
                "others": list(each.others),
                "slices": dict(each.slices),
                "unknown": [{"cluster": name, "reason": why} for name, why in each.unknown.items()],
                "withheld": msgspec.to_builtins(each.withheld),
                "findings": [
                    {"reason": finding.reason, "message": finding.message, "objects": list(finding.objects)}
                    for finding in each.findings
                ],
            }
            for each in services
        ],
    }


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "port": port.port, "protocol": port.protocol}
