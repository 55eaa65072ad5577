"""What ``hub status`` shows: clusters, Services, and what needs somebody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
import msgspec

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing
from hub.cli.exits import Exit
from hub.cli.observe import chosen, warn_of_problems
from hub.cli.render import Output, document, one_line, table
from hub.cli.server import Server, fetch
from hub.cli.withheld import lines, registry_lines
from hub.registry.removals import REASON
from hub.report.state import observed
from hub.report.values import NOT_PROBED, Service, Status

CLUSTERS: Final = ("CLUSTER", "MODE", "STATE", "SINCE", "NODES", "ERROR")
SERVICES: Final = ("SERVICE", "STATUS", "READY", "SOURCES")


async def status(options: Options, output: Output) -> int:
    """Print how everything is doing.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub, observing(hub):
        warn_of_problems(hub)
        results = [each for key in chosen(hub) if (each := hub.reconciler.decide(key)).status != "gone"]
        found = observed(hub, results)
    return show(found, output)


async def status_of(server: Server, output: Output) -> int:
    """Print what a running hub says of itself.

    Raises:
        HubError: there is no hub at ``server``, or it does not tell.
    """
    return show(await fetch(server, "/api/v1/status", Status), output)


def show(found: Status, output: Output) -> int:
    """Print a snapshot; the exit code."""
    if output == "table":
        click.echo(text(found))
    else:
        data = msgspec.to_builtins(found)
        click.echo(document(data.pop("kind"), {key: data[key] for key in data if key != "apiVersion"}, output))
    frozen = {each.name for each in found.clusters if each.mode == "frozen"}
    silent = any(one.unknown for each in found.services for one in each.sources if one.cluster not in frozen)
    return Exit.UNKNOWN if silent or found.registry.problems else Exit.OK


# --- printing --------------------------------------------------------------------------------------


def text(found: Status) -> str:
    """For a terminal."""
    parts: list[str] = []
    if replica := _replica(found):
        parts.append(replica)
    if found.clusters:
        rows = [
            (each.name, each.mode, each.state, each.since or "", "" if each.nodes is None else each.nodes, each.error)
            for each in found.clusters
        ]
        parts.append(table(CLUSTERS, rows))
    if found.services:
        parts.append(table(SERVICES, [_row(each) for each in found.services]))
    said = found.registry.withheld.message if found.registry.withheld is not None else ""
    for each in found.services:
        if notes := [line for line in _notes(each) if line != f"! {REASON}: {said}"]:
            indented = (f"  {one_line(line)}" if line[0] in "=!" else f"    {one_line(line)}" for line in notes)
            parts.append("\n".join([click.style(one_line(each.name), bold=True), *indented]))
    if found.registry.withheld is not None:
        first, *more = map(one_line, registry_lines(found.registry.withheld))
        parts.append("\n".join([first, *(f"  {line}" for line in more)]))
    return "\n\n".join(parts) or "nothing: no clusters, no services"


def _notes(each: Service) -> Iterator[str]:
    """What is withheld of a Service, and what else was found that its row does not say."""
    for held in each.withheld:
        yield from lines(held)
    said = {each.status, *(held.message for held in each.withheld)}
    for noted in each.findings:
        if noted.message not in said:
            yield f"! {noted.reason}: {noted.message}"


def _replica(found: Status) -> str:
    """Who says so, where that is a running hub; a standby names the leader."""
    hub = found.hub
    if hub.role == "observer":
        return ""
    who = f"{hub.identity}: {hub.role}"
    if hub.shard_count > 1:
        held = ", ".join(map(str, hub.shards))
        who += f"; writes shards {held} of {hub.shard_count}" if held else f"; writes none of {hub.shard_count} shards"
    if hub.role != "leader":
        who += f"; {hub.leader} leads" if hub.leader else "; nobody is known to lead"
    notes = [who, f"hub cluster: {hub.error}" if hub.error else ""]
    if found.registry.rejected:
        notes.append(f"the registry is rejected, the last good one stays in force: {found.registry.rejected}")
    notes += [f"registry: {each}" for each in found.registry.problems]
    return "\n".join(one_line(each) for each in notes if each)


def _row(each: Service) -> tuple[object, ...]:
    notes = [each.status or "followed"]
    if unprobed := [check.check for check in each.checks if check.verdict == NOT_PROBED]:
        notes.append(f"{NOT_PROBED}: {', '.join(unprobed)}")
    if each.unhealthy:
        notes.append(f"{each.unhealthy} unhealthy")
    if each.problem:
        notes.append(f"not written: {each.problem}")
    if each.withheld:
        notes.append(f"{sum(len(one.addresses) for one in each.withheld)} removals withheld")
    sources = [f"{one.cluster} {one.ready}/{one.total}{' unknown' if one.unknown else ''}" for one in each.sources]
    return each.name, ", ".join(notes), f"{each.ready}/{each.total}", ", ".join(sources)
