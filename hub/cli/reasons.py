"""What ``hub why`` shows: facts gathered from a hub that has looked, explained by :mod:`hub.explain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from hub.app import Hub, Options, assemble
from hub.cli.changes import unknown_sources
from hub.cli.exits import Exit
from hub.cli.observe import chosen, meant, warn_of_problems
from hub.cli.render import Output, document, table, warn
from hub.cli.sources import inspected
from hub.cli.withheld import approving_flags, held
from hub.desired.addresses import AddressPolicy, Rejected, parse
from hub.explain import (
    Facts,
    SourceFacts,
    Step,
    TargetFacts,
    explain_address,
    explain_node,
    explain_service,
)
from hub.model import LOCAL, GroupKey, TargetKey
from hub.reconcile import Pass

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


def gather(hub: Hub, results: list[Pass]) -> Facts:
    """The facts of this moment."""
    sources = []
    for each in inspected(hub):
        unit = hub.fleet.clusters.get(each.cluster)
        nodes = unit.nodes if unit is not None else {}
        sources.append(SourceFacts(each.cluster, each.services, each.unknown, each.result, each.resolutions, nodes))
    flags = approving_flags(hub)
    denied = (*hub.registry.denied_cidrs, *hub.cidrs.networks)
    policies = {
        name: AddressPolicy(spec.allowed_cidrs, denied) for name, spec in hub.registry.clusters.items() if name != LOCAL
    }
    return Facts(tuple(sources), tuple(_target(hub, each, flags) for each in results), policies)


def _target(hub: Hub, result: Pass, flags: str) -> TargetFacts:
    spec = hub.registry.targets.get(result.target)
    watches = result.desired.watches if result.desired is not None else ()
    return TargetFacts(
        result.target,
        tuple(dict.fromkeys(source.cluster for source in spec.sources)) if spec is not None else (),
        result.status,
        tuple(hub.local.slices.of(result.target).values()),
        result.desired.groups if result.desired is not None else (),
        result.withheld,
        result.unknown,
        result.findings,
        {GroupKey(each.cluster, each.family): each.approve for each in held(result, flags)},
        {GroupKey(each.cluster, each.family): str(each.check) for each in watches},
    )


def _hint(subject: str, kind: str, facts: Facts) -> str:
    if kind == "Service":
        return meant(subject, (str(each.key) for each in facts.targets))
    if kind == "node":
        return meant(subject, {name for source in facts.sources for name in source.nodes})
    return ""


def _data(subject: str, kind: str, steps: tuple[Step, ...], *, known: bool) -> dict[str, Any]:
    return {"subject": subject, "is": kind, "known": known, "steps": [asdict(step) for step in steps]}
