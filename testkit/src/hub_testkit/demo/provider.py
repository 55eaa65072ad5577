"""The demo's provider: requests the addresses of a cluster's machines from the simulated cloud.

It is registered like any third-party provider, through the entry point ``demo`` of group ``hub.providers``, and works
like one for a real cloud: it requests one list per answer and finds each node's machine by ``spec.providerID``. An
error of the cloud makes no node absent. It imports only :mod:`hub.plugin` from the hub, and contacts only loopback.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from pydantic import BaseModel, ConfigDict, Field

from hub.plugin import (
    Absent,
    ClusterContext,
    Found,
    Node,
    NodeProviderType,
    ProviderType,
    Resolution,
    TransientProviderError,
    hookimpl,
)

SCHEME = "demo"
"""Scheme of the provider IDs: ``demo:///eu/eu-1``."""

POLL = 2.0
"""Seconds between two lists of all machines; a real cloud is polled less often."""


class DemoConfig(BaseModel):
    """``provider.config`` of the provider ``demo``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cloud: str = Field(
        pattern=r"^http://127\.0\.0\.1:[0-9]{1,5}$", description="Address of the simulated cloud: loopback only."
    )
    datacenter: str = Field(pattern="^[a-z0-9-]+$", description="The data center the cluster's machines are in.")


class Server(msgspec.Struct, frozen=True):
    """A machine as the cloud lists it."""

    id: str
    address: str
    zone: str = ""


class Demo:
    """Resolves Nodes from the list of machines of one data center."""

    def __init__(self, http: aiohttp.ClientSession, config: DemoConfig) -> None:
        self._http = http
        self._url = f"{config.cloud}/datacenters/{config.datacenter}/servers"
        self._prefix = f"{SCHEME}:///{config.datacenter}/"

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        """Requests one list and returns the answers for all nodes.

        Raises:
            TransientProviderError: The cloud fails, or its answer is malformed.
        """
        servers = await self._servers()
        return {node.name: self._resolution(node, servers) for node in nodes}

    def _resolution(self, node: Node, servers: Mapping[str, Server]) -> Resolution:
        server = servers.get(node.provider_id.removeprefix(self._prefix))
        if server is None:
            return Absent(f"the cloud has no machine {node.provider_id or node.name}")
        return Found((server.address,), server.zone)

    async def _servers(self) -> Mapping[str, Server]:
        try:
            async with self._http.get(self._url, allow_redirects=False) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TransientProviderError(f"the cloud does not answer: {type(error).__name__}") from error
        if answer.status != 200:
            raise TransientProviderError(f"the cloud answers {answer.status}")
        try:
            return {server.id: server for server in msgspec.json.decode(body, type=list[Server])}
        except msgspec.DecodeError as error:
            raise TransientProviderError("the cloud does not answer with a list of machines") from error


@asynccontextmanager
async def open_provider(cluster: ClusterContext, config: DemoConfig, _shared: None, /) -> AsyncGenerator[Demo, None]:
    """Opens the provider for one cluster; the HTTP session belongs to the hub."""
    yield Demo(cluster.hub.http, config)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    yield NodeProviderType(
        name="demo", open=open_provider, config=DemoConfig, poll_interval=POLL, reads=frozenset({"provider_id"})
    )
