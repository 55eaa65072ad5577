"""Prints the history for ``hub history``: as stored in the hub cluster, or asked from a running hub."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import click
import msgspec

from hub.cli.exits import Exit
from hub.cli.operations import hub_cluster
from hub.cli.render import Output, document, table, warn
from hub.cli.server import Server, fetch
from hub.model import TargetKey, join_first
from hub.observe.local.history import config_map, read
from hub.report.past import history
from hub.report.values import History, HistoryEntry

HEADERS: Final = ("TIME", "SERVICE", "WHAT", "CLUSTER", "ENDPOINTS", "WHY")
NAMED: Final = 3
"""Most endpoints named in a row."""


async def history_from_server(server: Server, name: str | None, limit: int, output: Output) -> int:
    """Print the history of a running hub.

    Raises:
        HubError: no hub answers at ``server``, or it refuses.
    """
    service = f"&service={quote(name)}" if name else ""
    return show(await fetch(server, f"/api/v1/history?limit={limit}{service}", History), name, output)


async def history_from_cluster(
    kubeconfig: str | None, namespace: str, owner: str, name: str | None, limit: int, output: Output
) -> int:
    """Print the history that the hub cluster has.

    Raises:
        HubError: the ConfigMap cannot be read.
    """
    async with hub_cluster(kubeconfig) as client:
        entries = await read(client, namespace, owner)
    if entries is None:
        where = f"ConfigMap {config_map(owner)} in namespace {namespace}"
        warn(f"there is no {where}; check --owner and --lease-namespace")
    key = TargetKey(*name.split("/", 1)) if name else None
    return show(history(entries or {}, key, limit), name, output)


def show(found: History, name: str | None, output: Output) -> int:
    """Print a history; return the exit code."""
    if output == "table":
        if found.entries:
            click.echo(table(HEADERS, map(_row, found.entries)))
    else:
        data = msgspec.to_builtins(found)
        click.echo(document(data.pop("kind"), {key: data[key] for key in data if key != "apiVersion"}, output))
    if found.problem:
        warn(f"the history is not stored and ends with the process: {found.problem}")
    if not found.entries:
        warn(f"the history has nothing about {name or 'any Service'}")
    return Exit.OK if found.entries else Exit.CHANGES


def _row(entry: HistoryEntry) -> tuple[object, ...]:
    texts = [f"{named.address} ({named.node})" if named.node else named.address for named in entry.endpoints]
    endpoints = join_first([*texts, *[""] * (entry.count - len(texts))], NAMED)
    return entry.at, entry.service, entry.what, entry.cluster, endpoints, entry.why
