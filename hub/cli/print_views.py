"""Builds and prints endpoint views without a running hub, for ``hub endpoints``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from hub.app.hub import Options
from hub.cli.exits import Exit
from hub.cli.render import one_line, table, warn
from hub.errors import BadAnswer, HubError
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.hub_access import in_cluster_servers, load_hub_access
from hub.kube.resolver import LookupPool
from hub.model import LOCAL
from hub.observe.remote.access import Connector
from hub.registry import isolated
from hub.registry.spec import Registry, ViewsSpec
from hub.runtime.clock import SystemClock
from hub.views.channel import Channel
from hub.views.service import EndpointViews
from hub.views.shapes import API_VERSION, Shape
from hub.views.stream import Subscription

HEADERS: Final = ("CLUSTER", "NAMESPACE", "SERVICE", "TYPE", "PROTOCOL", "PORT", "TARGET", "ADDRESS", "NAME", "STALE")


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """How to show the views.

    Attributes:
        watch: print changes until interrupted.
        gather: one view for each port of a Service, with all addresses.
        compat: print exactly the objects that dcontroller's endpointslice-controller makes.
        json: print JSON instead of a table.
    """

    watch: bool
    gather: bool
    compat: bool
    json: bool


async def print_endpoints(options: Options, how: ViewOutput) -> int:
    """Print the views.

    Raises:
        HubError: the registry or the access to the hub cluster cannot be used, or the output is read too slowly.
    """
    registry = await asyncio.to_thread(_registry, options.registry) if options.registry else None
    async with _following(options, registry) as views:
        await views.settled(options.settle)
        channel = views.channel(Shape(how.gather, how.compat))
        if how.watch:
            for name in views.unknown:
                warn(f"cluster {name}: {views.feeds[name].error}")
            await _follow(channel, how)
            raise HubError("the output was read too slowly, and changes were lost; start again")
        if how.json:
            items = [msgspec.Raw(view) for view in channel.objects()]
            click.echo(msgspec.json.encode({"apiVersion": API_VERSION, "kind": "EndpointViewList", "items": items}))
        else:
            click.echo(table(HEADERS, [_row(msgspec.json.decode(view)) for view in channel.objects()]))
        failed = [name for name, feed in views.feeds.items() if feed.error]
        for name in failed:
            warn(f"cluster {name}: {views.feeds[name].error}")
        return Exit.UNKNOWN if failed else Exit.OK


async def _follow(channel: Channel, how: ViewOutput) -> None:
    """Print the stream until interrupted."""
    async for piece in Subscription(channel, "ndjson", None).pieces():
        if how.json:
            click.echo(piece, nl=False)
            continue
        for line in piece.splitlines():
            event = msgspec.json.decode(line)
            if event["type"] != "Bookmark":
                click.echo(event_line(event))


def event_line(event: Mapping[str, Any]) -> str:
    """An event of the stream on one line; control characters are escaped, since texts come from remote clusters."""
    return one_line("   ".join([event["type"].ljust(7), *(cell or "-" for cell in _row(event["object"]))]))


def _row(body: Mapping[str, Any]) -> tuple[str, ...]:
    spec, meta = body["spec"], body["metadata"]
    target = str(spec["targetPort"])
    if "resolvedPort" in spec and str(spec["resolvedPort"]) != target:
        target += f"={spec['resolvedPort']}"
    return (
        spec.get("cluster", LOCAL),
        meta["namespace"],
        spec["serviceName"],
        spec["type"],
        spec["protocol"],
        str(spec["port"]),
        target,
        ",".join(spec.get("addresses", ())) or spec.get("address", ""),
        meta["name"],
        "yes" if spec.get("stale") else "",
    )


def _registry(path: str) -> Registry:
    loaded = isolated.begin(path, None).outcome()
    for problem in loaded.problems:
        warn(str(problem))
    return loaded.registry


@asynccontextmanager
async def _following(options: Options, registry: Registry | None) -> AsyncGenerator[EndpointViews]:
    """Endpoint views that follow the Services and EndpointSlices of the clusters directly.

    Args:
        options: how to reach the clusters.
        registry: selects clusters and Services by its ``views:``; None = the annotated Services of the hub cluster.
    """
    clock, pool = SystemClock(), LookupPool()
    access = await asyncio.to_thread(load_hub_access, options.kubeconfig)
    async with AsyncExitStack() as stack:
        stack.callback(pool.close)
        hub_cluster = await stack.enter_async_context(Client(Credentials(access, clock), pool))
        namespace = options.secrets_namespace or options.namespace

        async def read_secret(name: str) -> Mapping[str, str]:
            body = await hub_cluster.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}", timeout=10.0)
            try:
                return msgspec.json.decode(body, type=_Secret).data
            except msgspec.DecodeError:
                raise BadAnswer(200, "", f"Secret {name} does not decode") from None

        connector = Connector(
            clock,
            pool,
            options.allow_exec,
            in_cluster_servers(),
            read_secret,
            namespace,
            folders=options.kubeconfig_folders(),
            proxies=options.proxies,
        )
        clients: dict[str, Client] = {}

        async def connect(cluster: str) -> Client:
            if cluster == LOCAL:
                return hub_cluster
            spec = registry.clusters.get(cluster) if registry is not None else None
            if spec is None or spec.state == "frozen":
                raise HubError("not contacted: its entry is frozen or broken")
            if cluster not in clients:
                made = connector.client(await connector.access(spec))
                clients[cluster] = await stack.enter_async_context(made)
            return clients[cluster]

        views = EndpointViews(connect, clock, namespaces=options.target_namespaces)
        stack.push_async_callback(views.close)
        views.update(registry.views or ViewsSpec() if registry is not None else ViewsSpec())
        yield views


class _Secret(msgspec.Struct):
    data: dict[str, str] = {}
