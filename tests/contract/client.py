"""A plain HTTP client for contract tests. It uses no code of the hub and accepts every answer."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

Json = dict[str, Any]

NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
MAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
SECRETS = "/api/v1/namespaces/default/secrets"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Server:
    """An API server under test.

    Attributes:
        forget: function that expires every resourceVersion up to now.
        powerless: token of a user without rights.
    """

    url: str
    tls: ssl.SSLContext
    token: str
    powerless: str
    forget: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; ``body`` is the decoded JSON, or text if it is no JSON."""

    status: int
    kind: str
    headers: Mapping[str, str]
    body: Any

    @property
    def version(self) -> str:
        """metadata.resourceVersion."""
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def names(self) -> list[str]:
        """Names of a list's items."""
        return [item["metadata"]["name"] for item in self.body["items"]]


class Stream:
    """An open watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.kind = response.content_type
        self._response = response

    async def next(self, seconds: float = 5.0) -> Json:
        """The next event of the watch."""
        async with asyncio.timeout(seconds):
            line = await self._response.content.readline()
        if not line:
            raise EOFError("the stream has ended")
        event: Json = json.loads(line)
        return event

    async def rest(self, seconds: float = 15.0) -> list[Json]:
        """All events until the server ends the watch."""
        events = []
        async with asyncio.timeout(seconds):
            async for line in self._response.content:
                events.append(json.loads(line))
        return events

    async def brief(self, count: int) -> list[tuple[str, str]]:
        """The next ``count`` events as (type, name)."""
        return [_brief(await self.next()) for _ in range(count)]


class Client:
    """Sends requests to a server as one user."""

    def __init__(self, session: aiohttp.ClientSession, server: Server) -> None:
        self._session = session
        self.server = server

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        token: str | None = "",
        **query: Any,
    ) -> Answer:
        """Send a request. Bytes are sent unchanged; ``token=None`` is anonymous."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token or self.server.token}"
        async with self._session.request(method, path, data=data, headers=headers, params=_params(query)) as response:
            raw = await response.read()
            decoded = json.loads(raw) if response.content_type == "application/json" else raw.decode()
            return Answer(response.status, response.content_type, dict(response.headers), decoded)

    async def get(self, path: str, **query: Any) -> Answer:
        """Send a GET."""
        return await self.call("GET", path, **query)

    async def remembered(self, path: str, version: str) -> None:
        """Wait until the server's watch cache has reached a version, since answers from the cache may be older."""
        answer = await self.get(path, resourceVersion=version)
        assert answer.status == 200, answer.body

    async def post(self, path: str, body: Any, **query: Any) -> Answer:
        """Send a POST."""
        return await self.call("POST", path, body, **query)

    async def put(self, path: str, body: Any, **query: Any) -> Answer:
        """Send a PUT."""
        return await self.call("PUT", path, body, **query)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **query: Any) -> Answer:
        """Send a PATCH."""
        return await self.call("PATCH", path, body, content_type=content_type, **query)

    async def delete(self, path: str, body: Any = None, **query: Any) -> Answer:
        """Send a DELETE."""
        return await self.call("DELETE", path, body, **query)

    @asynccontextmanager
    async def watch(self, path: str, **query: Any) -> AsyncIterator[Stream]:
        """Open a watch, which is closed at the end of the block."""
        headers = {"Authorization": f"Bearer {self.server.token}", "Accept": "application/json"}
        params = _params({"watch": 1, "timeoutSeconds": 10} | query)
        async with self._session.get(path, headers=headers, params=params) as response:
            yield Stream(response)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    """Open a client of a server."""
    connector = aiohttp.TCPConnector(ssl=server.tls)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(server.url, connector=connector, timeout=timeout) as session:
        yield Client(session, server)
    # TLS transports close only in the next iterations of the loop.
    await asyncio.sleep(0.01)


def config_map(name: str, labels: Mapping[str, str] | None = None, **data: str) -> Json:
    """A ConfigMap, as the kind with the least validation."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "data": data,
    }


def endpoint_slice(name: str, *addresses: str, **fields: Any) -> Json:
    """An EndpointSlice with one endpoint per address."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]} for address in addresses],
        **fields,
    }


def node(name: str, address: str = "10.0.0.1", **labels: str) -> Json:
    """A Ready Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"sim://{name}"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def status(code: int, reason: str, message: str, details: Json | None = None, **metadata: str) -> Json:
    """The body of a refusal."""
    body: Json = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": metadata,
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }
    return {key: value for key, value in body.items() if value is not None and value != ""}


def brief(events: list[Json]) -> list[tuple[str, str]]:
    """Events as (type, name), without the names of bookmarks."""
    return [_brief(event) for event in events if event["type"] != "BOOKMARK"]


def _brief(event: Json) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"].get("name", "")


def _params(query: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items()}
