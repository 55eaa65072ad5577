"""Prints decisions for ``hub why``: made once by this command, or asked from a running hub."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import click
import msgspec

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing
from hub.cli.exits import Exit
from hub.cli.observe import chosen_targets, warn_of_problems
from hub.cli.render import Output, document, table, warn
from hub.cli.server import Server, fetch
from hub.errors import UsageError
from hub.report.reasons import SUBJECT, prepare_why
from hub.report.values import Why

HEADERS: Final = ("STAGE", "WHERE", "OUTCOME", "WHY")


async def why_from_clusters(options: Options, subject: str, output: Output, cluster: str = "") -> int:
    """Print the chain of decisions behind ``subject``.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub, observing(hub):
        warn_of_problems(hub)
        await hub.history.load()
        if hub.history.problem:
            warn(f"without the history: {hub.history.problem}")
        results = [] if cluster else [hub.reconciler.decide(key) for key in chosen_targets(hub)]
        found = prepare_why(hub, subject, results, cluster)()
    return show(found, output)


async def why_from_server(server: Server, subject: str, output: Output, cluster: str = "") -> int:
    """Print the decisions of a running hub about ``subject``.

    Raises:
        HubError: no hub answers at ``server``, or it refuses.
        UsageError: ``subject`` is not a valid name.
    """
    if not SUBJECT.fullmatch(subject):
        raise UsageError(f"{subject!r} is neither an address, nor a node's name, nor NAMESPACE/SERVICE")
    query = f"subject={quote(subject, safe='')}" + (f"&cluster={quote(cluster, safe='')}" if cluster else "")
    return show(await fetch(server, f"/api/v1/why?{query}", Why), output)


def show(found: Why, output: Output) -> int:
    """Print an explanation; return the exit code."""
    if output == "table":
        if found.steps:
            click.echo(table(HEADERS, [(step.stage, step.where, step.outcome, step.why) for step in found.steps]))
    else:
        data = msgspec.to_builtins(found)
        click.echo(document(data.pop("kind"), {key: data[key] for key in data if key != "apiVersion"}, output))
    for source in found.unknown:
        warn(f"unknown: {source}")
    if not found.known:
        hint = f" (did you mean {found.hint}?)" if found.hint else ""
        nowhere = "no cluster and no slice has the {}, and the history does not name it{}"
        text = f"cluster {found.cluster} has no {{}} with decisions{{}}" if found.cluster else nowhere
        warn(text.format(f"{found.is_} {found.subject}", hint))
    if found.unknown:
        return Exit.UNKNOWN
    return Exit.OK if found.known else Exit.CHANGES
