"""``hub check``: is this registry file valid, and with ``--online``, does everything in it answer?"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import click

from hub.cli import logs
from hub.cli.exits import Exit
from hub.cli.options import VARIABLE, Given, Settings, hub_access, verbose
from hub.cli.render import count, one_line


@click.command(short_help="Check a clusters.yaml; with --online, contact everything in it.")
@click.argument("file", type=click.Path(), envvar=f"{VARIABLE}REGISTRY", required=False)
@click.option(
    "--online", is_flag=True, help="Also contact every cluster, provider and cloud account, and check every Service."
)
@hub_access
@verbose
@click.pass_context
def check(ctx: click.Context, /, file: str | None, online: bool, **given: Any) -> int:
    """Check a registry file: syntax, references, installed providers and their configuration, consumers.

    With --online it also contacts everything: clusters, providers, cloud accounts, which describe the reserved
    addresses and change none, and the clouds whose controller the hub is, which are asked about nodes and balancers.

    Prints every problem as FILE:LINE:COLUMN: KEY: MESSAGE. Without --online it reads only the file;
    the other options are for --online. FILE is read from stdin if it is -, and is $ENDPOINTSLICE_HUB_REGISTRY by
    default.

    Exit codes: 0 ok (warnings do not count), 1 problems, 3 the file cannot be read.
    """
    if file is None:
        raise click.UsageError("Missing argument 'FILE'")
    logs.quiet(ctx.ensure_object(Settings).verbose)
    content = None
    if file == "-":
        from hub.registry.file import MAX_BYTES

        with click.open_file(file, "rb") as stream:
            file, content = "stdin", stream.read(MAX_BYTES + 1)
    gc.disable()  # imports take most of this command's time, and garbage collection takes a tenth of the imports' time
    try:
        from hub.cli.checking import examine

        found = examine(file, content)
    finally:
        gc.enable()
    for problem in found.problems:
        click.echo(one_line(str(problem)))
    for warning in found.warnings:
        click.echo(one_line(f"{warning.file}:{warning.line}:{warning.column}: warning: {_words(warning)}"))
    click.echo(f"{file}: {_summary(found)}")
    if online and found.registry is not None:
        from hub.cli.online import check_online

        options = Given(**given).options(file, content=content, dry_run=True, leader_elect=False)
        all_well = asyncio.run(check_online(options))
        return Exit.OK if all_well and not found.problems else Exit.CHANGES
    return Exit.CHANGES if found.problems else Exit.OK


def _words(warning: Any) -> str:
    return f"{warning.path}: {warning.message}" if warning.path else str(warning.message)


def _summary(found: Any) -> str:
    verdict = count(len(found.problems), "problem") if found.problems else "ok"
    if found.warnings:
        verdict += f", {count(len(found.warnings), 'warning')}"
    if found.registry is None:
        return f"{verdict}; the file cannot be used, and its providers were not checked"
    clusters = len(found.registry.clusters) - 1 + len(found.registry.broken_clusters)
    services = len(found.registry.targets) + len(found.registry.broken_targets)
    parts = [count(clusters, "cluster"), count(services, "service")]
    if accounts := found.registry.allocations:
        parts.append(count(len(accounts.accounts) + len(accounts.broken), "account"))
    if clouds := sum(spec.cloud is not None for spec in found.registry.clusters.values()):
        parts.append(count(clouds, "cloud"))
    return f"{verdict}; {', '.join(parts)}"
