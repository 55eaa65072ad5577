"""Prints clusters, Services and what needs attention, for ``hub status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import click
import msgspec

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing
from hub.cli.exits import Exit
from hub.cli.observe import chosen_targets, warn_of_problems
from hub.cli.render import Output, document, one_line, table
from hub.cli.reserved import summary
from hub.cli.reserved import unknown as unknown_addresses
from hub.cli.server import Server, fetch
from hub.cli.withheld import lines, registry_lines
from hub.registry.spec import REGISTRY_HELD
from hub.report.state import observed
from hub.report.values import NOT_PROBED, Cluster, ClusterCloud, Service, Status

CLOUDS: Final = ("CLUSTER", "CLOUD", "DUTY", "NODES", "BALANCERS", "ERROR")
CLUSTERS: Final = ("CLUSTER", "MODE", "STATE", "SINCE", "NODES", "ERROR")
SERVICES: Final = ("SERVICE", "STATUS", "READY", "SOURCES")


async def status_from_clusters(options: Options, output: Output) -> int:
    """Print the state of clusters and Services.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub, observing(hub):
        warn_of_problems(hub)
        results = [result for key in chosen_targets(hub) if (result := hub.reconciler.decide(key)).status != "gone"]
        found = observed(hub, results)
    return show(found, output)


async def status_from_server(server: Server, output: Output) -> int:
    """Print the status of a running hub.

    Raises:
        HubError: no hub answers at ``server``, or it refuses.
    """
    return show(await fetch(server, "/api/v1/status", Status), output)


def show(found: Status, output: Output) -> int:
    """Print a status; return the exit code."""
    if output == "table":
        click.echo(text(found))
    else:
        data = msgspec.to_builtins(found)
        click.echo(document(data.pop("kind"), {key: data[key] for key in data if key != "apiVersion"}, output))
    frozen = {cluster.name for cluster in found.clusters if cluster.mode == "frozen"}
    unknown = any(
        source.unknown for service in found.services for source in service.sources if source.cluster not in frozen
    )
    if found.allocations is not None:
        unknown |= bool(found.allocations.trouble) or unknown_addresses(found.allocations.allocations)
    return Exit.UNKNOWN if unknown or found.registry.problems else Exit.OK


# --- printing --------------------------------------------------------------------------------------


def text(found: Status) -> str:
    """The status as text for a terminal."""
    parts: list[str] = []
    if replica := replica_text(found):
        parts.append(replica)
    if found.clusters:
        parts.append(table(CLUSTERS, map(cluster_row, found.clusters)))
    if found.allocations is not None:
        parts.append(summary(found.allocations))
    if found.clouds:
        parts.append(table(CLOUDS, map(cloud_row, found.clouds)))
    if found.services:
        parts.append(table(SERVICES, map(service_row, found.services)))
    parts += notes(found)
    return "\n\n".join(parts) or "nothing: no clusters, no services"


def cloud_row(found: ClusterCloud) -> tuple[str, ...]:
    """A row about a cluster's cloud controller."""
    states = Counter(balancer.state for balancer in found.balancers)
    return (
        found.cluster,
        found.provider,
        found.duty,
        _counted(found.node_states),
        _counted(states),
        found.error or found.message,
    )


def _counted(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "-"


def notes(found: Status) -> Iterator[str]:
    """Blocks of text about withheld removals and findings."""
    withheld = found.registry.withheld.message if found.registry.withheld is not None else ""
    for service in found.services:
        if found_lines := [line for line in _notes(service) if line != f"! {REGISTRY_HELD}: {withheld}"]:
            indented = (f"  {one_line(line)}" if line[0] in "=!" else f"    {one_line(line)}" for line in found_lines)
            yield "\n".join([click.style(one_line(service.name), bold=True), *indented])
    if found.registry.withheld is not None:
        first, *more = map(one_line, registry_lines(found.registry.withheld))
        yield "\n".join([first, *(f"  {line}" for line in more)])


def _notes(service: Service) -> Iterator[str]:
    """A Service's withheld removals, and findings that its row does not show."""
    for held in service.withheld:
        yield from lines(held)
    shown = {service.status, *(held.message for held in service.withheld)}
    for noted in service.findings:
        if noted.message not in shown:
            yield f"! {noted.reason}: {noted.message}"


def replica_text(found: Status) -> str:
    """The running hub that answered, and its role; a standby names the leader. "" without a running hub."""
    hub = found.hub
    if hub.role == "observer":
        return ""
    replica = f"{hub.identity}: {hub.role}"
    if hub.shard_count > 1:
        held = ", ".join(map(str, hub.shards))
        replica += (
            f"; writes shards {held} of {hub.shard_count}" if held else f"; writes none of {hub.shard_count} shards"
        )
    if hub.role != "leader":
        replica += f"; {hub.leader} leads" if hub.leader else "; no leader known"
    notes = [replica, f"hub cluster: {hub.error}" if hub.error else ""]
    if found.registry.rejected:
        notes.append(f"the registry was rejected, the last accepted one stays in force: {found.registry.rejected}")
    notes += [f"registry: {problem}" for problem in found.registry.problems]
    return "\n".join(one_line(note) for note in notes if note)


def cluster_row(row: Cluster) -> tuple[object, ...]:
    """The cells of a cluster."""
    return row.name, row.mode, row.state, row.since or "", "" if row.nodes is None else row.nodes, row.error


def service_row(service: Service) -> tuple[object, ...]:
    """The cells of a Service."""
    notes = [service.status or "followed"]
    if unprobed := [check.check for check in service.checks if check.verdict == NOT_PROBED]:
        notes.append(f"{NOT_PROBED}: {', '.join(unprobed)}")
    if service.unhealthy:
        notes.append(f"{service.unhealthy} unhealthy")
    if service.problem:
        notes.append(f"not written: {service.problem}")
    if service.withheld:
        notes.append(f"{sum(len(removal.addresses) for removal in service.withheld)} removals withheld")
    sources = [
        f"{source.cluster} {source.ready}/{source.total}{' unknown' if source.unknown else ''}"
        for source in service.sources
    ]
    return service.name, ", ".join(notes), f"{service.ready}/{service.total}", ", ".join(sources)
