"""What ``hub nodes`` shows: the sources of a registry, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from hub.app import Hub, Options, assemble
from hub.cli.exits import Exit
from hub.cli.observe import meant, warn_of_problems
from hub.cli.render import NOT_PROBED, Output, count, document, one_line, table
from hub.desired.view import NodeReport
from hub.errors import UsageError
from hub.model import Absent, Found, Resolution, Unknown
from hub.report.facts import Inspected, inspected

HEADERS: Final = ("NODE", "ELIGIBLE", "RESOLUTION", "ADDRESS", "VERDICT")


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


def _check(hub: Hub, cluster: str | None) -> None:
    known = {*hub.registry.clusters, *hub.registry.broken_clusters}
    if cluster is not None and cluster not in known:
        raise UsageError(f"cluster {cluster} is not in the registry{meant(cluster, known)}")


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
