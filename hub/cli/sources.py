"""What ``hub nodes`` shows: the sources of a registry, node by node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from hub.app import Hub, Options, assemble
from hub.cli.exits import Exit
from hub.cli.observe import meant, warn_of_problems
from hub.cli.render import NOT_PROBED, Output, count, document, one_line, table
from hub.desired.view import NodeReport, ViewResult
from hub.errors import UsageError
from hub.model import Absent, Found, Resolution, Unknown
from hub.registry.spec import ClusterSpec, NodePolicy, ProviderRef, SourceSpec
from hub.remote.fleet import SourceKey

HEADERS: Final = ("NODE", "ELIGIBLE", "RESOLUTION", "ADDRESS", "VERDICT")


@dataclass(frozen=True, slots=True)
class Inspected:
    """One cluster through one provider under one node policy.

    Attributes:
        services: targets that ask for exactly this.
        unknown: why the source makes no statement; None where it does.
        on_purpose: the cluster is ``state: frozen``, so that unknown is no news.
        resolutions: by node name.
    """

    cluster: str
    provider: str
    services: tuple[str, ...]
    unknown: str | None
    on_purpose: bool
    result: ViewResult
    resolutions: dict[str, Resolution]


async def nodes(options: Options, cluster: str | None, output: Output) -> int:
    """Print the nodes of all clusters or of one.

    Raises:
        HubError: the hub cluster cannot be read, or the cluster is not in the registry.
    """
    async with assemble(options) as hub:
        _check(hub, cluster)
        async with hub.observing():
            warn_of_problems(hub)
            found = inspected(hub, cluster)
    if output == "table":
        for number, each in enumerate(found):
            click.echo(("\n" if number else "") + _text(each))
    else:
        click.echo(document("Nodes", {"sources": [_data(each) for each in found]}, output))
    unknown = [each for each in found if each.unknown is not None and not each.on_purpose]
    return Exit.UNKNOWN if unknown else Exit.OK


def inspected(hub: Hub, cluster: str | None = None) -> list[Inspected]:
    """The sources of all clusters or of one, in the order of the file."""
    return [_inspect(hub, *each) for each in _sources(hub, cluster)]


def _check(hub: Hub, cluster: str | None) -> None:
    known = {*hub.registry.clusters, *hub.registry.broken_clusters}
    if cluster is not None and cluster not in known:
        raise UsageError(f"cluster {cluster} is not in the registry{meant(cluster, known)}")


def _sources(hub: Hub, wanted: str | None) -> Iterable[tuple[str, ProviderRef | None, NodePolicy, tuple[str, ...]]]:
    """(cluster, provider, node policy, targets), by cluster in the order of the file."""
    used: dict[tuple[str, ProviderRef, NodePolicy], list[str]] = {}
    for key, target in hub.registry.targets.items():
        for source in target.sources:
            used.setdefault((source.cluster, source.provider, source.nodes), []).append(str(key))
    names = dict.fromkeys([*hub.registry.clusters, *hub.registry.broken_clusters])
    for name in names:
        if wanted is not None and name != wanted:
            continue
        mine = [(*key, tuple(services)) for key, services in used.items() if key[0] == name]
        yield from mine
        spec = hub.registry.clusters.get(name)
        if not mine and (wanted is not None or name in hub.registry.broken_clusters or _has_nodes(spec)):
            # Nobody asks for this cluster: it is judged by the rules a Service has by default.
            yield name, spec.provider if spec is not None else None, NodePolicy(), ()


def _has_nodes(spec: ClusterSpec | None) -> bool:
    return spec is not None and spec.provider is not None


def _inspect(
    hub: Hub, cluster: str, provider: ProviderRef | None, policy: NodePolicy, services: tuple[str, ...]
) -> Inspected:
    spec = hub.registry.clusters.get(cluster)
    reference = provider or ProviderRef("")
    result = hub.reconciler.view(SourceSpec(cluster, reference, nodes=policy))
    unknown = result.view.unknown
    frozen = spec is not None and spec.state == "frozen"
    if spec is None:
        unknown = hub.registry.broken_clusters.get(cluster, "not in the registry")
    elif frozen:
        unknown = "state frozen: not contacted"
    elif provider is None:
        unknown = "no Service uses it with a provider"
    source = hub.fleet.sources.get(SourceKey(cluster, reference))
    resolutions = dict(source.resolutions) if source is not None else {}
    return Inspected(cluster, reference.name, services, unknown, frozen, result, resolutions)


def _text(each: Inspected) -> str:
    reports = [each.result.reports[name] for name in sorted(each.result.reports)]
    published = sum(bool(report.addresses) for report in reports)
    through = f" through {each.provider}" if each.provider else ""
    used = f" for {_few(each.services)}" if each.services else ""
    heading = click.style(f"{each.cluster}{through}{used}", bold=True)
    if each.unknown is not None:
        return f"{heading}: unknown: {one_line(each.unknown)}"
    if not reports:
        return f"{heading}: no nodes"
    rows = [_row(report, each.resolutions.get(report.node)) for report in reports]
    return f"{heading}: {count(len(reports), 'node')}, {published} published\n{table(HEADERS, rows, '  ')}"


def _row(report: NodeReport, resolution: Resolution | None) -> tuple[str, ...]:
    why = "" if report.eligible else f"no: {report.message or report.reason}"
    address = ", ".join(report.addresses)
    if not address and report.eligible:
        address = f"none: {report.message or report.reason}"
    return report.node, why or "yes", _resolution(resolution), address, NOT_PROBED


def _resolution(resolution: Resolution | None) -> str:
    match resolution:
        case Found(addresses=addresses):
            return ", ".join(addresses) or "found, no address"
        case Absent(reason=reason):
            return f"absent: {reason}"
        case Unknown(reason=reason):
            return f"unknown: {reason}"
    return ""


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _data(each: Inspected) -> dict[str, Any]:
    return {
        "cluster": each.cluster,
        "provider": each.provider,
        "services": list(each.services),
        "unknown": each.unknown,
        "nodes": [
            {
                "name": report.node,
                "eligible": report.eligible,
                "reason": report.reason,
                "message": report.message,
                "resolution": _resolution_data(each.resolutions.get(report.node)),
                "addresses": list(report.addresses),
                "rejected": [{"address": address, "reason": reason} for address, reason in report.rejected],
                "verdict": NOT_PROBED,
            }
            for _, report in sorted(each.result.reports.items())
        ],
    }


def _resolution_data(resolution: Resolution | None) -> dict[str, Any] | None:
    match resolution:
        case Found(addresses=addresses):
            return {"state": "found", "addresses": list(addresses)}
        case Absent(reason=reason):
            return {"state": "absent", "reason": reason}
        case Unknown(reason=reason):
            return {"state": "unknown", "reason": reason}
    return None
