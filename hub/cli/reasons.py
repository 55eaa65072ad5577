"""What ``hub why`` shows: facts gathered from a hub that has looked, explained by :mod:`hub.explain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from hub.app import Options, assemble
from hub.cli.changes import unknown_sources
from hub.cli.exits import Exit
from hub.cli.observe import chosen, meant, warn_of_problems
from hub.cli.render import Output, document, table, warn
from hub.desired.addresses import Rejected, parse
from hub.explain import (
    Facts,
    Step,
    explain_address,
    explain_node,
    explain_service,
)
from hub.model import TargetKey
from hub.report.facts import gather

HEADERS: Final = ("STAGE", "WHERE", "OUTCOME", "WHY")


async def why(options: Options, subject: str, output: Output) -> int:
    """Print the chain of decisions behind ``subject``.

    Raises:
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub, hub.observing():
        warn_of_problems(hub)
        results = [hub.reconciler.decide(key) for key in chosen(hub)]
        facts = gather(hub, results)
        unknown = unknown_sources(hub, results)
    kind, steps = explain(subject, facts)
    known = any(step.stage != "policy" for step in steps)
    if output == "table":
        if steps:
            rows = [(step.stage, step.where, step.outcome, step.why) for step in steps]
            click.echo(table(HEADERS, rows))
    else:
        click.echo(document("Why", _data(subject, kind, steps, known=known), output))
    for each in unknown:
        warn(f"unknown: {each}")
    if not known:
        warn(f"no cluster and no slice has the {kind} {subject}{_hint(subject, kind, facts)}")
    if unknown:
        return Exit.UNKNOWN
    return Exit.OK if known else Exit.CHANGES


def explain(subject: str, facts: Facts) -> tuple[str, tuple[Step, ...]]:
    """What kind of thing is asked about, and its explanation; a node may be named like an address."""
    if "/" in subject:
        namespace, _, name = subject.partition("/")
        return "Service", explain_service(TargetKey(namespace, name), facts)
    address = parse(subject)
    if isinstance(address, Rejected):
        return "node", explain_node(subject, facts)
    steps = (*explain_node(subject, facts), *explain_address(str(address), facts))
    return "address", tuple(dict.fromkeys(steps))


def _hint(subject: str, kind: str, facts: Facts) -> str:
    if kind == "Service":
        return meant(subject, (str(each.key) for each in facts.targets))
    if kind == "node":
        return meant(subject, {name for source in facts.sources for name in source.nodes})
    return ""


def _data(subject: str, kind: str, steps: tuple[Step, ...], *, known: bool) -> dict[str, Any]:
    return {"subject": subject, "is": kind, "known": known, "steps": [asdict(step) for step in steps]}
