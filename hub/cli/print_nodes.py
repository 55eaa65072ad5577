"""Prints the nodes of each source for ``hub nodes``: read once by this command, or asked from a running hub."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import click
import msgspec

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing
from hub.cli.controlled import unknown
from hub.cli.exits import Exit
from hub.cli.observe import suggestion, warn_of_problems
from hub.cli.print_clouds import nodes_text
from hub.cli.render import Output, count, document, one_line, table
from hub.cli.server import Server, fetch
from hub.errors import UsageError
from hub.model import LOCAL, join_first
from hub.report.clouds import clouds_of
from hub.report.detail import cluster_detail, cluster_details
from hub.report.values import Clouds, ClusterCloud, ClusterDetail, NodeState, SourceDetail, Status

HEADERS: Final = ("NODE", "ELIGIBLE", "RESOLUTION", "ADDRESS", "VERDICT")


async def nodes_from_clusters(options: Options, cluster: str | None, output: Output) -> int:
    """Print the nodes of all clusters or of one.

    Raises:
        UsageError: the cluster is not in the registry.
        HubError: the hub cluster cannot be read.
    """
    async with assemble(options) as hub:
        _check(cluster, {*hub.registry.clusters, *hub.registry.broken_clusters})
        async with observing(hub):
            warn_of_problems(hub)
            one = cluster_detail(hub, cluster) if cluster is not None else None
            found = [one] if one is not None else cluster_details(hub)
            clouds = [each for each in clouds_of(hub).clusters if cluster in (None, each.cluster)]
    return show(found, output, clouds)


async def nodes_from_server(server: Server, cluster: str | None, output: Output) -> int:
    """Print what a running hub knows about the nodes of all clusters or of one.

    Raises:
        UsageError: the hub has no such cluster.
        HubError: no hub answers at ``server``, or it refuses.
    """
    status = await fetch(server, "/api/v1/status", Status)
    shared = status.hub.shard_count > 1
    names = dict.fromkeys(entry.name for entry in status.clusters)
    _check(cluster, {*names, LOCAL})
    clouds: list[ClusterCloud] = []
    if status.clouds is not None:
        every = await fetch(server, "/api/v1/clouds", Clouds)
        clouds = [each for each in every.clusters if cluster in (None, each.cluster)]
    if cluster is not None:
        return show([await _detail(server, cluster)], output, clouds, shared=shared)
    if any(source.cluster == LOCAL for service in status.services for source in service.sources):
        names.setdefault(LOCAL)
    found = [await _detail(server, name) for name in names]
    return show([_without_unused_sources(detail) for detail in found], output, clouds, shared=shared)


async def _detail(server: Server, cluster: str) -> ClusterDetail:
    return await fetch(server, f"/api/v1/clusters/{cluster}", ClusterDetail)


def _without_unused_sources(found: ClusterDetail) -> ClusterDetail:
    """Leave out sources that no Service uses and that have no provider; a broken cluster keeps all."""
    sources = [
        source for source in found.sources if source.services or source.provider or found.cluster.mode == "broken"
    ]
    return msgspec.structs.replace(found, sources=tuple(sources))


def _check(cluster: str | None, known: Collection[str]) -> None:
    if cluster is not None and cluster not in known:
        raise UsageError(f"cluster {cluster} is not in the registry{suggestion(cluster, known)}")


def show(
    found: Sequence[ClusterDetail], output: Output, clouds: Sequence[ClusterCloud] = (), *, shared: bool = False
) -> int:
    """Print clusters, source by source; return the exit code.

    Args:
        found: the clusters.
        output: the format.
        clouds: those of them whose cloud controller the hub is.
        shared: other replicas may follow some of them.
    """
    elsewhere = {detail.cluster.name for detail in found if shared and _unfollowed(detail)}
    if output == "table":
        texts = [
            _text(source, elsewhere=detail.cluster.name in elsewhere) for detail in found for source in detail.sources
        ]
        texts += map(nodes_text, clouds)
        click.echo("\n\n".join(texts), nl=bool(texts))
    else:
        sources = [source for detail in found for source in detail.sources]
        content = {"sources": msgspec.to_builtins(sources)}
        if clouds:
            content["clouds"] = [{"cluster": each.cluster, "nodes": msgspec.to_builtins(each.nodes)} for each in clouds]
        click.echo(document("Nodes", content, output))
    asked = [detail for detail in found if detail.cluster.mode != "frozen" and detail.cluster.name not in elsewhere]
    incomplete = any(source.unknown is not None for detail in asked for source in detail.sources)
    return Exit.UNKNOWN if incomplete or any(map(unknown, clouds)) else Exit.OK


def _unfollowed(found: ClusterDetail) -> bool:
    """Whether the replica that answered does not follow this cluster; with shards, another replica may."""
    return found.cluster.mode == "active" and not found.cluster.state and found.cluster.name != LOCAL


def _text(source: SourceDetail, *, elsewhere: bool) -> str:
    published = sum(bool(node.addresses) for node in source.nodes)
    through = f" through {source.provider}" if source.provider else ""
    used = f" for {join_first(source.services, 3)}" if source.services else ""
    heading = click.style(one_line(f"{source.cluster}{through}{used}"), bold=True)
    if source.unknown is not None:
        return f"{heading}: " + ("followed by other replicas" if elsewhere else f"unknown: {one_line(source.unknown)}")
    if not source.nodes:
        return f"{heading}: no nodes"
    rows = table(HEADERS, map(_row, source.nodes), "  ")
    return f"{heading}: {count(len(source.nodes), 'node')}, {published} published\n{rows}"


def _row(node: NodeState) -> tuple[str, ...]:
    eligible = "yes" if node.eligible else f"no: {node.message or node.reason}"
    address = ", ".join(node.addresses)
    if address and node.message:
        eligible = f"kept: {node.message}"
    if not address and node.eligible:
        address = f"none: {node.message or node.reason}"
    return node.name, eligible, node.resolution.text if node.resolution is not None else "", address, node.verdict
