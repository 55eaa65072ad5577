"""What ``hub nodes`` shows: the sources of a registry, node by node, from a hub that looks once or that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
import msgspec

from hub.app.hub import Hub, Options, assemble
from hub.app.oneshot import observing
from hub.cli.exits import Exit
from hub.cli.observe import meant, warn_of_problems
from hub.cli.render import Output, count, document, one_line, table
from hub.cli.server import Server, fetch
from hub.errors import UsageError
from hub.model import LOCAL, few
from hub.report.detail import cluster_detail, cluster_details
from hub.report.values import ClusterDetail, NodeState, SourceDetail, Status

HEADERS: Final = ("NODE", "ELIGIBLE", "RESOLUTION", "ADDRESS", "VERDICT")


async def nodes(options: Options, cluster: str | None, output: Output) -> int:
    """Print the nodes of all clusters or of one.

    Raises:
        HubError: the hub cluster cannot be read, or the cluster is not in the registry.
    """
    async with assemble(options) as hub:
        _check(hub, cluster)
        async with observing(hub):
            warn_of_problems(hub)
            one = cluster_detail(hub, cluster) if cluster is not None else None
            found = [one] if one is not None else cluster_details(hub)
    return show(found, output)


async def nodes_of(server: Server, cluster: str | None, output: Output) -> int:
    """Print what a running hub says of the nodes of all clusters or of one.

    Raises:
        HubError: there is no hub at ``server``, it does not tell, or it has no such cluster.
    """
    status = await fetch(server, "/api/v1/status", Status)
    shared = status.hub.shard_count > 1
    if cluster is not None:
        return show([await _detail(server, cluster)], output, shared=shared)
    names = dict.fromkeys(each.name for each in status.clusters)
    if any(source.cluster == LOCAL for each in status.services for source in each.sources):
        names.setdefault(LOCAL)
    found = [await _detail(server, name) for name in names]
    return show([_worth_a_line(each) for each in found], output, shared=shared)


async def _detail(server: Server, cluster: str) -> ClusterDetail:
    if not all(char.isalnum() or char in "-." for char in cluster):
        raise UsageError(f"cluster {cluster}: no cluster is named so")
    return await fetch(server, f"/api/v1/clusters/{cluster}", ClusterDetail)


def _worth_a_line(found: ClusterDetail) -> ClusterDetail:
    """Without what nobody asks for and nobody could answer, where all clusters are shown."""
    sources = [each for each in found.sources if each.services or each.provider or found.cluster.mode == "broken"]
    return msgspec.structs.replace(found, sources=tuple(sources))


def _check(hub: Hub, cluster: str | None) -> None:
    known = {*hub.registry.clusters, *hub.registry.broken_clusters}
    if cluster is not None and cluster not in known:
        raise UsageError(f"cluster {cluster} is not in the registry{meant(cluster, known)}")


def show(found: Sequence[ClusterDetail], output: Output, *, shared: bool = False) -> int:
    """Print clusters, source by source; the exit code.

    Args:
        found: the clusters.
        output: how.
        shared: other replicas follow some of them.
    """
    elsewhere = {one.cluster.name for one in found if shared and _unfollowed(one)}
    if output == "table":
        texts = [_text(each, elsewhere=one.cluster.name in elsewhere) for one in found for each in one.sources]
        click.echo("\n\n".join(texts), nl=bool(texts))
    else:
        sources = [each for one in found for each in one.sources]
        click.echo(document("Nodes", {"sources": msgspec.to_builtins(sources)}, output))
    asked = [one for one in found if one.cluster.mode != "frozen" and one.cluster.name not in elsewhere]
    return Exit.UNKNOWN if any(each.unknown is not None for one in asked for each in one.sources) else Exit.OK


def _unfollowed(found: ClusterDetail) -> bool:
    """Whether who was asked does not follow a cluster: where others do, what it does not know says nothing."""
    return found.cluster.mode == "active" and not found.cluster.state and found.cluster.name != LOCAL


def _text(each: SourceDetail, *, elsewhere: bool) -> str:
    published = sum(bool(node.addresses) for node in each.nodes)
    through = f" through {each.provider}" if each.provider else ""
    used = f" for {few(each.services, 3)}" if each.services else ""
    heading = click.style(one_line(f"{each.cluster}{through}{used}"), bold=True)
    if each.unknown is not None:
        return f"{heading}: " + ("followed by other replicas" if elsewhere else f"unknown: {one_line(each.unknown)}")
    if not each.nodes:
        return f"{heading}: no nodes"
    rows = table(HEADERS, map(_row, each.nodes), "  ")
    return f"{heading}: {count(len(each.nodes), 'node')}, {published} published\n{rows}"


def _row(node: NodeState) -> tuple[str, ...]:
    eligible = "yes" if node.eligible else f"no: {node.message or node.reason}"
    address = ", ".join(node.addresses)
    if not address and node.eligible:
        address = f"none: {node.message or node.reason}"
    return node.name, eligible, node.resolution.text if node.resolution is not None else "", address, node.verdict
