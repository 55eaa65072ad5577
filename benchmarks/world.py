"""The clusters that the compared programs work on: real API servers on loopback, with realistic Nodes and Services.

The servers come from the test kit (tests.support.apiserver). Node addresses are data: nothing here connects to them.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from benchmarks.slices import Event, decode_event
from tests.support.apiserver import binaries
from tests.support.apiserver.server import ApiServer

Object = dict[str, Any]

NAMESPACE = "edge"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
PORT = 30443
STRATEGIC = "application/strategic-merge-patch+json"
PARALLEL_STARTS = 3
"""API servers that are started at once: each keeps a core busy for two seconds."""
IN_FLIGHT = 32
"""Requests in progress while the clusters are filled; 16 for heartbeats."""
LINE_LIMIT = 16 << 20
WRITE_VERBS = ("POST", "PUT", "PATCH", "APPLY", "DELETE")


@dataclass(frozen=True, slots=True)
class Row:
    """The size of a world. ``services`` is per cluster; each Service publishes all nodes of its cluster."""

    clusters: int
    nodes: int
    services: int

    def __str__(self) -> str:
        """The text in tables."""
        return f"{self.clusters} clusters × {self.nodes:,} nodes, {self.clusters * self.services} Services"


@dataclass(frozen=True, slots=True)
class Backend:
    """A Service of the hub cluster, and the remote cluster whose nodes it publishes."""

    cluster: str
    namespace: str
    service: str
    port: int


class Api:
    """The harness's client of one API server. It shares no code with the compared programs."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        tls = ssl.create_default_context(cadata=self.server.ca_pem)
        self._session = aiohttp.ClientSession(
            self.server.url,
            headers={"Authorization": f"Bearer {self.server.token()}"},
            connector=aiohttp.TCPConnector(ssl=tls, limit=64),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=LINE_LIMIT,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Any:
        """Make a request and return the decoded answer.

        Raises:
            RuntimeError: the API server answered with an error.
        """
        data = None if body is None else msgspec.json.encode(body)
        async with self.session.request(method, path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.read()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
            return msgspec.json.decode(text)

    async def watch(self, path: str, version: str, on_event: Callable[[Event], None]) -> None:
        """Pass every event of slices to ``on_event``, until cancelled. If the server ends the watch, it is continued.

        Raises:
            aiohttp.ClientError: the connection failed, so events may be missing.
            RuntimeError: an ERROR event: the version is too old, so events may be missing.
        """
        params = {"watch": "true", "allowWatchBookmarks": "false", "timeoutSeconds": "7200"}
        while True:
            async with self.session.get(path, params={**params, "resourceVersion": version}) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    event = decode_event(line)
                    if event.type == "ERROR":
                        raise RuntimeError(f"{path}: the watch cannot be continued: {line[:300]!r}")
                    version = event.object.metadata.resource_version
                    on_event(event)

    async def slice_writes(self) -> int:
        """Return the number of write requests on EndpointSlices so far, as counted by the API server."""
        async with self.session.get("/metrics") as answer:
            return count_writes(await answer.text())


def count_writes(metrics: str) -> int:
    """Return the sum of write requests on EndpointSlices in an API server's /metrics."""
    total = 0.0
    for line in metrics.splitlines():
        if (
            line.startswith("apiserver_request_total{")
            and 'resource="endpointslices"' in line
            and any(f'verb="{verb}"' in line for verb in WRITE_VERBS)
        ):
            total += float(line.rpartition(" ")[2])
    return int(total)


@dataclass(frozen=True, slots=True)
class World:
    """The hub cluster, the remote clusters and the Services of one row."""

    row: Row
    folder: Path
    hub: Api
    remotes: tuple[Api, ...]
    backends: tuple[Backend, ...]

    @property
    def kubeconfigs(self) -> dict[str, str]:
        """Paths by name: ``hub``, ``c0``, ``c1``, …"""
        return {api.server.name: str(kubeconfig(self.folder, api.server.name)) for api in (self.hub, *self.remotes)}


def kubeconfig(folder: Path, name: str) -> Path:
    """Return the path of a server's kubeconfig."""
    return folder / f"{name}.kubeconfig"


@asynccontextmanager
async def world(row: Row, folder: Path) -> AsyncIterator[World]:
    """Start and fill the API servers for a row. Stops them at the end.

    Raises:
        KitUnavailable: the API servers are missing and cannot be built.
    """
    binaries.ensure("etcd", "kube-apiserver")
    names = ["hub", *(f"c{number}" for number in range(row.clusters))]
    # No audit log: only the tests need it, and it would distort the measurement.
    servers = [ApiServer(name, folder / name, flags=["--audit-log-path="]) for name in names]
    try:
        await _run_limited((server.start for server in servers), PARALLEL_STARTS, asyncio.to_thread)
        for server in servers:
            server.kubeconfig(kubeconfig(folder, server.name))
        async with AsyncExitStack() as stack:
            hub, *remotes = [await stack.enter_async_context(Api(server)) for server in servers]
            backends = tuple(
                Backend(f"c{cluster}", NAMESPACE, f"svc-{cluster}-{number}", PORT)
                for cluster in range(row.clusters)
                for number in range(row.services)
            )
            await _fill(hub, remotes, backends, row)
            yield World(row, folder, hub, tuple(remotes), backends)
    finally:
        for server in servers:
            server.stop()


async def _fill(hub: Api, remotes: list[Api], backends: Iterable[Backend], row: Row) -> None:
    await hub.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    services = f"/api/v1/namespaces/{NAMESPACE}/services"
    await bounded((lambda name=backend.service: hub.call("POST", services, service(name)) for backend in backends), 16)
    rng = random.Random(1)
    nodes = ((remotes[c], node(c, n, rng)) for n in range(row.nodes) for c in range(row.clusters))
    await bounded((lambda api=api, body=body: api.call("POST", "/api/v1/nodes", body) for api, body in nodes))


async def bounded(calls: Iterable[Callable[[], Awaitable[Any]]], limit: int = IN_FLIGHT) -> None:
    """Make all calls, at most ``limit`` at a time."""

    async def awaited(call: Callable[[], Awaitable[Any]]) -> None:
        await call()

    await _run_limited(calls, limit, awaited)


async def _run_limited(work: Iterable[Any], limit: int, run: Callable[[Any], Awaitable[None]]) -> None:
    """Run the work in ``limit`` tasks. All tasks have ended when this returns or raises."""
    queue = iter(work)

    async def worker() -> None:
        for item in queue:
            await run(item)

    results = await asyncio.gather(*(worker() for _ in range(limit)), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def service(name: str) -> Object:
    """Return a Service without a selector."""
    return {"metadata": {"name": name}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": PORT}]}}


def node(cluster: int, number: int, rng: random.Random, images: int = 40) -> Object:
    """Return a Ready Node of about 12 KB, most of which is the list of images, as in real clusters."""
    name = f"c{cluster}-worker-{number}"
    system = f"{cluster:08x}-0000-4000-8000-{number:012x}"
    conditions = [("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"), ("Ready", "True")]
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": "de-fra",
        "topology.kubernetes.io/zone": f"de-fra-{number % 3}",
        "node.kubernetes.io/instance-type": "dedicated-core-server",
    }
    info = {
        "machineID": f"{number:032x}",
        "systemUUID": system,
        "bootID": f"{number:032x}",
        "kernelVersion": "6.8.0",
        "osImage": "Ubuntu 24.04",
        "containerRuntimeVersion": "containerd://2.1",
        "kubeletVersion": "v1.35.4",
        "kubeProxyVersion": "v1.35.4",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"cloud://{system}", "podCIDR": f"10.{cluster % 200}.{number % 250}.0/24"},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": address(cluster, number)},
                {"type": "Hostname", "address": name},
            ],
            "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"},
            "allocatable": {"cpu": "7800m", "memory": "30Gi", "pods": "110", "ephemeral-storage": "90Gi"},
            "conditions": [_condition(kind, status) for kind, status in conditions],
            "nodeInfo": info,
            "images": [_image(cluster, number, rng) for number in range(images)],
        },
    }


def address(cluster: int, number: int) -> str:
    """Return the InternalIP of a node."""
    return f"10.{100 + cluster}.{number // 250}.{number % 250 + 1}"


def _condition(kind: str, status: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": f"Kubelet{kind}",
        "message": f"kubelet status for {kind}",
        "lastHeartbeatTime": "2026-01-02T10:00:00Z",
        "lastTransitionTime": "2026-01-01T10:00:00Z",
    }


def _image(cluster: int, number: int, rng: random.Random) -> Object:
    name = f"registry.example/{cluster}/app-{number}"
    return {
        "names": [f"{name}@sha256:{rng.getrandbits(256):064x}", f"{name}:v1.{number}"],
        "sizeBytes": 10_000_000 + number,
    }
