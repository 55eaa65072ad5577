"""A minimal client that makes the same list, watch and writes as the hub, and nothing else.

It has no registry, provider, guard, plan or election, and does not watch the hub cluster. Its cost is that of TLS,
HTTP, decoding and encoding. It uses the hub's transport and encoder, so the ratio hub / floor shows the cost of
everything above them. bench.py runs it as ``floor.py CONFIG.json``, with the same file as goref.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import msgspec
import uvloop

from hub.kube import protobuf
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, load_kubeconfig
from hub.kube.resolver import LookupPool
from hub.model import PUBLISHED, Endpoint, Port, Slice
from hub.runtime.clock import SystemClock

PER_SLICE = 100
WRITERS = 16
ZONE = "topology.kubernetes.io/zone"
MANAGED_BY = "bench-floor"


class Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}


class TypedField(msgspec.Struct, gc=False):
    type: str
    status: str = ""
    address: str = ""


class Status(msgspec.Struct, gc=False):
    addresses: list[TypedField] = []
    conditions: list[TypedField] = []


class Node(msgspec.Struct, gc=False):
    metadata: Meta
    status: Status = msgspec.field(default_factory=Status)

    def endpoint(self) -> Endpoint | None:
        """Return the endpoint of this node, or None if the node is not Ready."""
        if not any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions):
            return None
        address = next(entry.address for entry in self.status.addresses if entry.type == "InternalIP")
        return Endpoint((address,), PUBLISHED, zone=self.metadata.labels.get(ZONE))


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    items: list[Node]
    metadata: ListMeta


class Event(msgspec.Struct, gc=False):
    type: str
    object: Node


decode_page = msgspec.json.Decoder(Page).decode
decode_event = msgspec.json.Decoder(Event).decode


class Writer:
    """Writes slices to the hub cluster, one write at a time for each slice."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._encoder = protobuf.SliceEncoder()
        self._slots = asyncio.Semaphore(WRITERS)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, protobuf.Identity] = {}
        self._next: dict[str, Slice] = {}

    def write(self, value: Slice) -> None:
        """Write a slice: now, or after the write of this slice that is in progress."""
        self._next[value.name] = value
        if value.name not in self._tasks:
            self._tasks[value.name] = asyncio.create_task(self._write(value.name))

    async def _write(self, name: str) -> None:
        async with self._slots:
            while (value := self._next.pop(name, None)) is not None:
                path = f"/apis/discovery.k8s.io/v1/namespaces/{value.namespace}/endpointslices"
                known = self._written.get(name)
                if known is not None:
                    value = msgspec.structs.replace(value, uid=known.uid, resource_version=known.resource_version)
                body = self._encoder.encode(value)
                method, path = ("PUT", f"{path}/{name}") if known else ("POST", path)
                answer = await self._client.request(method, path, body=body, content_type=protobuf.CONTENT_TYPE)
                self._written[name] = protobuf.identity(answer)
        del self._tasks[name]


class Remote:
    """A remote cluster: its endpoints in groups, one group per slice, and the Services that publish them."""

    def __init__(self, client: Client, writer: Writer, services: list[dict[str, Any]]) -> None:
        self._client = client
        self._writer = writer
        self._services = services
        self._group_numbers: dict[str, int] = {}
        self._groups: list[dict[str, Endpoint]] = []

    async def follow(self) -> None:
        """List and watch the Nodes; each change of readiness writes one slice per Service."""
        version = await self._list()
        while True:
            async with self._client.watch("/api/v1/nodes", {"watch": "true", "resourceVersion": version}) as stream:
                while line := await stream.line():
                    event = decode_event(line)
                    version = event.object.metadata.resource_version
                    if (group := self._update(event.object)) is not None:
                        self._publish(group)

    async def _list(self) -> str:
        params = {"limit": "500"}
        while True:
            page = decode_page(await self._client.request("GET", "/api/v1/nodes", params=params))
            for node in page.items:
                self._update(node)
            if not page.metadata.continue_:
                break
            params["continue"] = page.metadata.continue_
        for group in range(len(self._groups)):
            self._publish(group)
        return page.metadata.resource_version

    def _update(self, node: Node) -> int | None:
        """Update the endpoint of a node. Returns the number of the group if it changed."""
        name = node.metadata.name
        number = self._group_numbers.setdefault(name, len(self._group_numbers) // PER_SLICE)
        if number == len(self._groups):
            self._groups.append({})
        group, endpoint = self._groups[number], node.endpoint()
        if group.get(name) == endpoint:
            return None
        if endpoint is None:
            del group[name]
        else:
            group[name] = endpoint
        return number

    def _publish(self, group: int) -> None:
        endpoints = tuple(self._groups[group].values())
        for backend in self._services:
            labels = {
                "kubernetes.io/service-name": backend["service"],
                "endpointslice.kubernetes.io/managed-by": MANAGED_BY,
            }
            ports = (Port("https", backend["port"]),)
            self._writer.write(
                Slice(backend["namespace"], f"{backend['service']}-{group}", "IPv4", endpoints, ports, labels)
            )


async def main(path: str) -> None:
    """Follow every cluster of the configuration until SIGTERM."""
    with open(path) as file:
        config = json.load(file)
    pool, clock = LookupPool(), SystemClock()

    def client(kubeconfig: str) -> Client:
        policy = KubeconfigPolicy(trusted=True)
        return Client(Credentials(load_kubeconfig(kubeconfig, policy=policy), clock), pool)

    writer, services = Writer(client(config["hub"])), config["services"]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(Remote(client(file), writer, [s for s in services if s["cluster"] == name]).follow())
            for name, file in config["clusters"].items()
        ]
        await stop.wait()
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
