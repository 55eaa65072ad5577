"""Prints allocations for ``hub allocations``: observed once by this command, or by a running hub."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing
from hub.cli.exits import Exit
from hub.cli.observe import suggestion, warn_of_problems
from hub.cli.render import Output, document, one_line, table, warn
from hub.cli.reserved import unknown, warn_of
from hub.cli.server import Server, fetch
from hub.report.allocations import allocations_of
from hub.report.values import Allocation, Allocations

HEADERS: Final = ("ADDRESS", "STATE", "NODE", "SINCE", "REASON")


async def from_clusters(options: Options, name: str | None, output: Output) -> int:
    """Print all allocations, or one, as this command observes them.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub, observing(hub):
        warn_of_problems(hub)
        return show(allocations_of(hub), name, output)


async def from_server(server: Server, name: str | None, output: Output) -> int:
    """Print what a running hub knows.

    Raises:
        HubError: no hub answers at ``server``, or it refuses.
    """
    return show(await fetch(server, "/api/v1/allocations", Allocations), name, output)


def show(found: Allocations, name: str | None, output: Output) -> int:
    """Print allocations; return the exit code."""
    if found.mode == "off":
        warn("the registry has no allocations:")
    warn_of(found)
    chosen = [allocation for allocation in found.allocations if name in (None, allocation.name)]
    if name is not None and not chosen:
        hint = suggestion(name, (allocation.name for allocation in found.allocations))
        click.echo(f"Error: there is no NetIPAllocation {name}{hint}", err=True)
        return Exit.CHANGES
    if output == "table":
        click.echo("\n\n".join(map(_text, chosen)), nl=bool(chosen))
    else:
        data = msgspec.to_builtins(msgspec.structs.replace(found, allocations=tuple(chosen)))
        click.echo(
            document("Allocations", {key: data[key] for key in data if key not in ("apiVersion", "kind")}, output)
        )
    return Exit.UNKNOWN if found.trouble or unknown(chosen) else Exit.OK


def _text(allocation: Allocation) -> str:
    place = f"{allocation.name} on {allocation.cluster}, account {allocation.account or 'none'}"
    paused = ", paused" if allocation.paused else ""
    heading = click.style(one_line(place), bold=True)
    state = f"{heading}{paused}: {one_line(allocation.message or 'no status yet')}"
    rows = [
        (found.address, found.state, found.node, found.since, " ".join(filter(None, (found.reason, found.message))))
        for found in allocation.addresses
    ]
    return f"{state}\n{table(HEADERS, rows, '  ')}" if rows else state
