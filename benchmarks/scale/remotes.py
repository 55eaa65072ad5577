"""The remote clusters of the scale benchmark: hundreds of API servers in one process, real HTTPS on loopback.

The simulated cluster of the test kit cannot send 5,000 heartbeats of 12 KB in a second. These clusters answer only the
hub's requests to a remote cluster (Nodes, the UID of kube-system). A Node is stored as pieces of JSON: the pieces that
all Nodes of a cluster share exist once, and a heartbeat only joins pieces.

    python -m benchmarks.scale.remotes FOLDER FIRST COUNT NODES

writes a kubeconfig for each cluster into FOLDER and prints ``{"ready": true}``. Then it answers each command, a JSON
line on stdin, with a JSON line on stdout, until stdin ends:

* ``{"beat": S}``: every node reports once in S seconds; 0 = never.
* ``{"replace": R}``: the share R of all nodes is replaced per minute; 0 = none. A new node is added, becomes Ready a
  second later, and another second later an old one is deleted. ``least``: minimum number per second.
* ``{"replace_now": N}``: N nodes are replaced at once.
* ``{"refuse": true}``: all connections are cut, and new ones refused, until ``{"refuse": false}``.
* ``{"changes": true}``: returns the changes since the last call, ``[monotonic time, cluster, address, whether it
  appeared]``, and counts of waiting steps, watches and unsent bytes.
* ``{"lateness": true}``: returns how late the timer of this process was at most since the last call.
* ``{"addresses": true}``: returns the addresses of all Ready nodes, by cluster.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import logging
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from aiohttp import web
from hub_testkit.simulator.answers import expired
from hub_testkit.simulator.identity import kubeconfig, server_tls

from benchmarks import world

TICK = 0.01
"""Seconds between two checks for due steps. It is short, so heartbeats are sent one by one, not in bursts."""
BOOKMARKS = 60.0
"""Seconds between bookmarks, as in kube-apiserver."""
KEEP_ALIVE = 90.0
"""Seconds after which kube-apiserver closes a connection without a request."""
LOG = 200
"""Changes that a cluster remembers; a watch from an earlier version gets 410."""
FIRST_VERSION = 1000
FIRST_ADDRESS = int(IPv4Address("10.128.0.0"))
"""After the Service network of the hub cluster, whose addresses the hub never publishes."""
ADDRESSES = 4096
"""Number of addresses of each cluster. Addresses of replaced nodes are not used again."""
READY_AFTER, DELETED_AFTER = 1.0, 2.0
"""Seconds from the start of a replacement until the new node is Ready, and until the old one is deleted."""
UNINITIALIZED = (
    b'"taints":[{"key":"node.cloudprovider.kubernetes.io/uninitialized","effect":"NoSchedule","value":"true"}],'
)
IMAGES = 50
"""A kubelet reports at most 50 images."""
CREATED = "2026-01-01T10:00:00Z"

Change = tuple[float, str, str, bool]
"""Monotonic time, cluster, address, and whether the address appeared (or disappeared)."""


def address(cluster: int, number: int) -> str:
    """Return the address of the ``number``-th node that the cluster ever had."""
    if number >= ADDRESSES:
        raise ValueError(f"cluster {cluster} has had {ADDRESSES} nodes")
    return str(IPv4Address(FIRST_ADDRESS + cluster * ADDRESSES + number))


def managed_fields() -> bytes:
    """Return typical managedFields of a Node, 3 KB."""
    none: dict[str, Any] = {}
    labels = {f"f:{name}": none for name in ("beta.kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os")}
    parts = ("lastHeartbeatTime", "lastTransitionTime", "message", "reason", "status", "type")
    condition = {".": none, **{f"f:{name}": none for name in parts}}
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready", "NetworkUnavailable")
    conditions = {f'k:{{"type":"{kind}"}}': condition for kind in kinds}
    sizes = {f"f:{name}": none for name in ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-1Gi")}
    fields: list[tuple[str, dict[str, Any]]] = [
        ("kubelet", {"f:metadata": {"f:annotations": {".": {}, "f:volumes": {}}, "f:labels": labels}}),
        ("cloud-controller-manager", {"f:spec": {"f:providerID": {}}, "f:metadata": {"f:labels": labels}}),
        ("kube-controller-manager", {"f:spec": {"f:podCIDR": {}, "f:podCIDRs": {".": {}, 'v:"10.0.0.0/24"': {}}}}),
        (
            "kubelet",
            {
                "f:status": {
                    "f:allocatable": sizes,
                    "f:capacity": sizes,
                    "f:conditions": conditions,
                    "f:images": {},
                    "f:nodeInfo": {f"f:{name}": {} for name in ("bootID", "kernelVersion", "kubeletVersion")},
                }
            },
        ),
    ]
    return msgspec.json.encode(
        [
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": CREATED,
                "fieldsType": "FieldsV1",
                "fieldsV1": value,
            }
            for manager, value in fields
        ]
    )


FIELDS = b'"managedFields":' + managed_fields()


@dataclass(slots=True)
class Node:
    """The parts of a Node that differ from node to node."""

    name: str
    address: str
    head: bytes
    """``{"metadata":{…,``: JSON before the resourceVersion."""
    rest: bytes
    """``},"spec":{`` … ``"images":``: JSON after managedFields, with placeholders for times, taints and readiness."""
    version: int
    beat: bytes = CREATED.encode()
    since: bytes = CREATED.encode()
    ready: bool = True
    uninitialized: bool = False
    """Whether the Node has the taint that a cloud controller removes."""


def make(cluster: int, number: int, version: int) -> Node:
    """Return a node without images. No Node of this benchmark contains a ``%``, which would be a placeholder."""
    made = world.node(cluster, number, random.Random(), images=0)
    ip = address(cluster, number)
    made["status"]["addresses"][0]["address"] = ip
    del made["status"]["images"]
    for condition in made["status"]["conditions"]:
        condition["lastHeartbeatTime"] = "%b"
        if condition["type"] == "Ready":
            condition |= {"status": "%b", "lastTransitionTime": "%b"}
    meta = {**made["metadata"], "uid": made["status"]["nodeInfo"]["systemUUID"], "creationTimestamp": CREATED}
    head = b'{"metadata":' + msgspec.json.encode(meta)[:-1] + b","
    spec = msgspec.json.encode(made["spec"])
    rest = b'},"spec":{%b' + spec[1:] + b',"status":' + msgspec.json.encode(made["status"])[:-1] + b',"images":'
    return Node(made["metadata"]["name"], ip, head, rest, version)


class Cluster:
    """A cluster: its Nodes and the connections that watch them."""

    def __init__(self, number: int, nodes: int, on_change: Callable[[Change], None]) -> None:
        self.number = number
        self.name = f"c{number}"
        self.version = FIRST_VERSION
        self.watchers: set[asyncio.WriteTransport] = set()
        self.nodes: dict[str, Node] = {}
        """Oldest first."""
        self.leaving: set[str] = set()
        """Names of nodes that are being replaced."""
        self.total = nodes
        """Number of nodes that the cluster ever had."""
        self._on_change = on_change
        self._log: deque[tuple[int, bytes, Node]] = deque(maxlen=LOG)
        images = world.node(number, 0, random.Random(number), images=IMAGES)["status"]["images"]
        self._images = msgspec.json.encode(images)
        for count in range(nodes):
            node = make(number, count, FIRST_VERSION)
            self.nodes[node.name] = node

    # --- requests --------------------------------------------------------------------------------

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/api/v1/namespaces/kube-system":
            return web.json_response(
                {"kind": "Namespace", "metadata": {"name": "kube-system", "uid": f"{self.number:036d}"}}
            )
        if request.path != "/api/v1/nodes":
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if "watch" not in request.query:
            return web.Response(body=self.list(), content_type="application/json")
        version = int(request.query["resourceVersion"])
        if self._log and version < self._log[0][0] - 1 and len(self._log) == LOG:
            gone = expired("watch")
            return web.json_response(gone.body, status=gone.code)
        return await self._watch(request, version)

    def list(self) -> bytes:
        """Return all Nodes on one page: no cluster has more than 500, the size of the hub's pages."""
        items = b",".join([self.render(node) for node in self.nodes.values()])
        meta = b'"metadata":{"resourceVersion":"%d"}' % self.version
        return b'{"kind":"NodeList","apiVersion":"v1",%b,"items":[%b]}' % (meta, items)

    async def _watch(self, request: web.BaseRequest, version: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        # Events are written to the transport: aiohttp would need more time to write a chunk than it takes to make it.
        for _, kind, node in [entry for entry in self._log if entry[0] > version]:
            transport.write(self._event(kind, node))
        self.watchers.add(transport)
        end = time.monotonic() + float(request.query.get("timeoutSeconds", 1800))
        try:
            while (left := end - time.monotonic()) > BOOKMARKS:
                await asyncio.sleep(BOOKMARKS)
                transport.write(self._bookmark())
            await asyncio.sleep(left)
        finally:
            self.watchers.discard(transport)
        await response.write_eof()
        return response

    # --- bytes -----------------------------------------------------------------------------------

    def render(self, node: Node, kind: bytes = b"") -> bytes:
        """Return a Node as JSON. ``kind`` is the JSON of kind and apiVersion, which items of a list do not have."""
        beat = node.beat
        rest = node.rest % (
            UNINITIALIZED if node.uninitialized else b"",
            beat,
            beat,
            beat,
            b"True" if node.ready else b"False",
            beat,
            node.since,
        )
        head = b"{" + kind + node.head[1:] if kind else node.head
        return b"".join((head, b'"resourceVersion":"%d",' % node.version, FIELDS, rest, self._images, b"}}"))

    def _event(self, kind: bytes, node: Node) -> bytes:
        body = self.render(node, b'"kind":"Node","apiVersion":"v1",')
        return _chunk(b'{"type":"%b","object":%b}\n' % (kind, body))

    def _bookmark(self) -> bytes:
        return _chunk(
            b'{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1",'
            b'"metadata":{"resourceVersion":"%d"}}}\n' % self.version
        )

    # --- changes -----------------------------------------------------------------------------------

    def beat(self, node: Node, now: bytes) -> None:
        """Send a heartbeat of a kubelet, without another change."""
        node.beat = now
        self._send(b"MODIFIED", node)

    def join(self) -> Node:
        """Add a node that is not Ready and has the taint of an uninitialized node."""
        node = make(self.number, self.total, 0)
        self.total += 1
        node.ready, node.uninitialized, node.since = False, True, stamp()
        self.nodes[node.name] = node
        self._send(b"ADDED", node)
        return node

    def make_ready(self, node: Node) -> None:
        """Make a node Ready, and remove its taint."""
        node.ready, node.uninitialized, node.since = True, False, stamp()
        self._on_change((time.monotonic(), self.name, node.address, True))
        self._send(b"MODIFIED", node)

    def delete(self, node: Node) -> None:
        """Delete a node."""
        del self.nodes[node.name]
        self.leaving.discard(node.name)
        self._on_change((time.monotonic(), self.name, node.address, False))
        self._send(b"DELETED", node)

    def _send(self, kind: bytes, node: Node) -> None:
        self.version += 1
        node.version = self.version
        self._log.append((self.version, kind, node))
        if self.watchers:
            event = self._event(kind, node)
            for transport in self.watchers:
                if not transport.is_closing():  # a closed one stays in the set until its handler ends
                    transport.write(event)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stamp() -> bytes:
    """Return the present time in the format of Kubernetes."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()


@dataclass(slots=True)
class Pace:
    """Spreads steps evenly: ``rate`` per second. Steps that are more than a second late are skipped."""

    rate: float = 0.0
    since: float = field(default_factory=time.monotonic)
    done: int = 0

    def due(self, now: float) -> int:
        """Return the number of due steps, and count them as done."""
        count = max(0, int((now - self.since) * self.rate) - self.done)
        self.done += count
        return min(count, max(1, int(self.rate)))


class Remotes:
    """All clusters of this process."""

    def __init__(self, first: int, count: int, nodes: int) -> None:
        self._changes: list[Change] = []
        self.clusters = [
            Cluster(number, nodes, lambda change: self._changes.append(change))
            for number in range(first, first + count)
        ]
        self._by_port: dict[int, Cluster] = {}
        self._ports: list[int] = []
        self._servers: list[asyncio.Server] = []
        self._accept = web.Server(
            self._answer, handler_cancellation=True, access_log=None, keepalive_timeout=KEEP_ALIVE
        )
        self._beats, self._replacements = Pace(), Pace()
        self._next_reports = self._nodes()
        self._steps: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._rng = random.Random(first)
        self._late = 0.0

    async def serve(self) -> None:
        """Listen on one port per cluster. After :meth:`refuse`, these are the same ports as before."""
        loop = asyncio.get_running_loop()
        ports = self._ports or [0] * len(self.clusters)
        for cluster, port in zip(self.clusters, ports, strict=True):
            server = await loop.create_server(self._accept, "127.0.0.1", port, ssl=server_tls(), backlog=128)
            self._servers.append(server)
            self._by_port[server.sockets[0].getsockname()[1]] = cluster
        self._ports = list(self._by_port)

    def refuse(self) -> None:
        """Cut all connections, and refuse new ones."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in self._accept.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def write_kubeconfigs(self, folder: Path) -> None:
        """Write ``c0.kubeconfig`` and so on."""
        for port, cluster in self._by_port.items():
            file = folder / f"{cluster.name}.kubeconfig"
            file.touch(mode=0o600)
            file.write_text(kubeconfig(cluster.name, f"https://127.0.0.1:{port}", "hub", f"token-of-{cluster.name}"))

    async def run(self) -> None:
        """Execute due steps, for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self._late = max(self._late, now - last - TICK)
            last = now
            text = stamp()
            for cluster, node in itertools.islice(self._next_reports, self._beats.due(now)):
                cluster.beat(node, text)
            for _ in range(self._replacements.due(now)):
                self._replace(now)
            while self._steps and self._steps[0][0] <= now:
                heapq.heappop(self._steps)[2]()

    async def execute(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute a command and return the answer."""
        if "beat" in command:
            count = sum(len(cluster.nodes) for cluster in self.clusters)
            self._beats = Pace(count / command["beat"] if command["beat"] else 0.0)
        if "replace" in command:
            count = sum(len(cluster.nodes) for cluster in self.clusters)
            self._replacements = Pace(
                max(count * command["replace"] / 60, command.get("least", 0) if command["replace"] else 0)
            )
        for _ in range(command.get("replace_now", 0)):
            self._replace(time.monotonic())
        if "refuse" in command:
            if command["refuse"]:
                self.refuse()
            else:
                await self.serve()
        if "addresses" in command:
            return {
                cluster.name: [node.address for node in cluster.nodes.values() if node.ready]
                for cluster in self.clusters
            }
        if "lateness" in command:
            late, self._late = self._late, 0.0
            return {"late_s": round(late, 4)}
        if "changes" in command:
            return self._collect_changes()
        return {}

    def _collect_changes(self) -> dict[str, Any]:
        changes, self._changes = self._changes, []
        return {
            "changes": changes,
            "waiting": len(self._steps),
            "watches": sum(len(cluster.watchers) for cluster in self.clusters),
            "unsent": sum(
                transport.get_write_buffer_size() for cluster in self.clusters for transport in cluster.watchers
            ),
        }

    def _replace(self, now: float) -> None:
        """Replace a node of a random cluster."""
        cluster = self._rng.choice(self.clusters)
        replaceable = [node for node in cluster.nodes.values() if node.ready and node.name not in cluster.leaving]
        if not replaceable:
            return
        old, new = self._rng.choice(replaceable), cluster.join()
        cluster.leaving.add(old.name)
        heapq.heappush(self._steps, (now + READY_AFTER, next(self._count), lambda: cluster.make_ready(new)))
        heapq.heappush(self._steps, (now + DELETED_AFTER, next(self._count), lambda: cluster.delete(old)))

    def _nodes(self) -> Iterator[tuple[Cluster, Node]]:
        """Yield all nodes again and again, taking one of each cluster in turn."""
        while True:
            several = [list(cluster.nodes.values()) for cluster in self.clusters]
            for row in itertools.zip_longest(*several):
                for cluster, node in zip(self.clusters, row, strict=True):
                    if node is not None and node.name in cluster.nodes:
                        yield cluster, node

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.transport.get_extra_info("sockname") if request.transport is not None else None
        # The handshake of this connection was not complete when refuse() cut all connections.
        if request.transport is not None and not self._servers:
            request.transport.abort()
        if name is None or not self._servers:
            return web.Response(status=503)
        return await self._by_port[name[1]].answer(request)


async def main(folder: Path, first: int, count: int, nodes: int) -> None:
    """Serve until stdin ends."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # uvloop logs each write to a connection of a dead hub
    remotes = Remotes(first, count, nodes)
    await remotes.serve()
    remotes.write_kubeconfigs(folder)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    running = asyncio.create_task(remotes.run())
    _print({"ready": True})
    while line := await orders.readline():
        _print(await remotes.execute(json.loads(line)))
    running.cancel()


def _print(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:5])))
