"""What ``hub status`` shows: clusters, Services, and what needs somebody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from hub.app import Hub, Options, assemble
from hub.cli.changes import unknown_sources
from hub.cli.exits import Exit
from hub.cli.observe import chosen, warn_of_problems
from hub.cli.render import NOT_PROBED, Output, document, one_line, table
from hub.cli.withheld import Held, approving_flags, held, registry_data, registry_lines, timestamp
from hub.explain import condition
from hub.model import ANNOTATION_PAUSED, LOCAL, Slice, TargetKey
from hub.reconcile import Pass
from hub.registry.spec import ClusterSpec
from hub.removals import RegistryHeld

CLUSTERS: Final = ("CLUSTER", "MODE", "STATE", "SINCE", "NODES", "ERROR")
SERVICES: Final = ("SERVICE", "STATUS", "READY", "SOURCES")


@dataclass(frozen=True, slots=True)
class ClusterStanding:
    """How a cluster is doing.

    Attributes:
        mode: the registry's ``state``, or ``broken``.
        state: of the connection; "" where there is none to follow.
        since: RFC 3339, "" where nothing is followed.
        nodes: None where none are followed.
        problem: what is wrong, in plain words.
    """

    name: str
    mode: str
    state: str = ""
    since: str = ""
    nodes: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SourceStanding:
    """What one cluster contributes to a Service; ``unknown`` says why it makes no statement."""

    cluster: str
    ready: int
    total: int
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceStanding:
    """How a Service is doing."""

    name: str
    status: str
    paused: bool
    sources: tuple[SourceStanding, ...]
    withheld: tuple[Held, ...] = ()
    findings: tuple[dict[str, Any], ...] = field(default=())
    checks: tuple[str, ...] = ()


async def status(options: Options, output: Output) -> int:
    """Print how everything is doing.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub, hub.observing():
        warn_of_problems(hub)
        results = [each for key in chosen(hub) if (each := hub.reconciler.decide(key)).status != "gone"]
        clusters = [_cluster(hub, name) for name in (*hub.registry.clusters, *hub.registry.broken_clusters)]
        services = [_service(hub, each) for each in results]
        unknown = unknown_sources(hub, results)
        withheld = hub.reconciler.withheld()
    # The hub cluster itself is worth a line only where something is wrong with it.
    clusters = [each for each in clusters if each.name != LOCAL or each.problem]
    if output == "table":
        click.echo(text(clusters, services, withheld))
    else:
        click.echo(document("Status", data(clusters, services, withheld), output))
    frozen = {each.name for each in clusters if each.mode == "frozen"}
    silent = any(one.unknown for each in services for one in each.sources if one.cluster not in frozen)
    return Exit.UNKNOWN if unknown or silent else Exit.OK


def _cluster(hub: Hub, name: str) -> ClusterStanding:
    spec = hub.registry.clusters.get(name)
    if spec is None:
        return ClusterStanding(name, "broken", problem=hub.registry.broken_clusters[name])
    unit = hub.fleet.clusters.get(name)
    sources = [source.problem for key, source in hub.fleet.sources.items() if key.cluster == name]
    problem = next((each for each in sources if each), "")
    if unit is None:
        return ClusterStanding(name, spec.state, _unfollowed(spec, problem), problem=problem)
    now = unit.status
    nodes = len(unit.nodes) if unit.synced else None
    return ClusterStanding(name, spec.state, str(now.state), timestamp(now.since), nodes, now.error or problem)


def _unfollowed(spec: ClusterSpec, problem: str) -> str:
    """The state of a cluster whose Nodes nobody follows: its provider's."""
    if spec.state == "frozen":
        return ""
    return "Degraded" if problem else "Ready"


def _service(hub: Hub, result: Pass) -> ServiceStanding:
    service = hub.local.services.get(result.target)
    spec = hub.registry.targets.get(result.target)
    names = [source.cluster for source in spec.sources] if spec is not None else []
    slices = tuple(hub.local.slices.of(result.target).values())
    return ServiceStanding(
        str(result.target),
        result.status,
        service is not None and service.annotations.get(ANNOTATION_PAUSED) == "true",
        tuple(counted(names, slices, _unknown(hub, result.target, result))),
        held(result, approving_flags(hub)),
        tuple({"reason": each.reason, "message": each.message} for each in result.findings),
        tuple(sorted({str(each.check) for each in result.desired.watches})) if result.desired is not None else (),
    )


def _unknown(hub: Hub, target: TargetKey, result: Pass) -> dict[str, str]:
    """Sources without a statement; a paused target is not asked, but its sources are."""
    found = dict(result.unknown)
    spec = hub.registry.targets.get(target)
    for source in spec.sources if spec is not None else ():
        if source.cluster not in found and (why := hub.reconciler.view(source).view.unknown) is not None:
            found[source.cluster] = why
    return found


def counted(names: Iterable[str], slices: Sequence[Slice], unknown: dict[str, str]) -> Iterable[SourceStanding]:
    """Published endpoints by cluster: the sources in order, then what is none any more."""
    for name in dict.fromkeys((*names, *sorted({each.cluster for each in slices}))):
        endpoints = [endpoint for each in slices if each.cluster == name for endpoint in each.endpoints]
        ready = sum(condition(each) == "ready" for each in endpoints)
        yield SourceStanding(name, ready, len(endpoints), unknown.get(name))


# --- printing --------------------------------------------------------------------------------------


def text(
    clusters: Sequence[ClusterStanding], services: Sequence[ServiceStanding], withheld: RegistryHeld | None = None
) -> str:
    """For a terminal."""
    parts = []
    if clusters:
        rows = [
            (each.name, each.mode, each.state, each.since, "" if each.nodes is None else each.nodes, each.problem)
            for each in clusters
        ]
        parts.append(table(CLUSTERS, rows))
    if services:
        parts.append(table(SERVICES, [_row(each) for each in services]))
    for each in services:
        lines = [
            one_line(line) if line.startswith("=") else f"  {one_line(line)}"
            for held in each.withheld
            for line in held.lines()
        ]
        if lines:
            parts.append("\n".join([click.style(each.name, bold=True), *(f"  {line}" for line in lines)]))
    if withheld is not None:
        first, *more = map(one_line, registry_lines(withheld))
        parts.append("\n".join([first, *(f"  {line}" for line in more)]))
    return "\n\n".join(parts) or "nothing: no clusters, no services"


def _row(each: ServiceStanding) -> tuple[object, ...]:
    ready, total = sum(one.ready for one in each.sources), sum(one.total for one in each.sources)
    notes = [each.status or "followed"]
    if each.checks:
        notes.append(f"{NOT_PROBED}: {', '.join(each.checks)}")
    if each.withheld:
        notes.append(f"{sum(len(one.addresses) for one in each.withheld)} removals withheld")
    sources = [f"{one.cluster} {one.ready}/{one.total}{' unknown' if one.unknown else ''}" for one in each.sources]
    return each.name, ", ".join(notes), f"{ready}/{total}", ", ".join(sources)


def data(
    clusters: Sequence[ClusterStanding], services: Sequence[ServiceStanding], withheld: RegistryHeld | None = None
) -> dict[str, Any]:
    """For a program."""
    return {
        "registry": {"withheld": registry_data(withheld)},
        "clusters": [
            {
                "name": each.name,
                "mode": each.mode,
                "state": each.state,
                "since": each.since or None,
                "nodes": each.nodes,
                "error": each.problem,
            }
            for each in clusters
        ],
        "services": [
            {
                "name": each.name,
                "status": each.status,
                "paused": each.paused,
                "ready": sum(one.ready for one in each.sources),
                "total": sum(one.total for one in each.sources),
                "sources": [
                    {"cluster": one.cluster, "ready": one.ready, "total": one.total, "unknown": one.unknown}
                    for one in each.sources
                ],
                "withheld": [one.data() for one in each.withheld],
                "findings": list(each.findings),
                "checks": [{"check": check, "verdict": NOT_PROBED} for check in each.checks],
            }
            for each in services
        ],
    }
