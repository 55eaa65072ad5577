"""The remote clusters of the scale benchmark: hundreds of API servers in one process, real HTTPS on loopback.

A simulated cluster of the test kit could not send 5,000 heartbeats of 12 KB in a second. This one answers only what
the hub asks of a remote cluster (Nodes, the UID of kube-system), and a Node is bytes from the start: what all Nodes
of a cluster have in common exists once, and a heartbeat is a handful of pieces joined.

    python -m benchmarks.scale.remotes FOLDER FIRST COUNT NODES

writes a kubeconfig for each cluster into FOLDER, says ``{"ready": true}``, and then answers each JSON line of stdin
with one on stdout, until stdin ends:

* ``{"beat": S}``: every node reports once in S seconds from now on; 0 = never.
* ``{"replace": R}``: the part R of all nodes is replaced per minute: a new one comes, is Ready a second later, and
  another second later an old one is gone. With ``least``, at least so many per second; 0 = none.
* ``{"replace_now": N}``: N nodes are, at once.
* ``{"refuse": true}``: connections are cut and refused, until ``false``.
* ``{"take": true}``: what changed since the last time, ``[when, cluster, address, whether it appeared]`` by the
  monotonic clock, and what this process did and used.
* ``{"lateness": true}``: how late the clock of this process was at most, since the last time.
* ``{"addresses": true}``: the addresses of all nodes that are Ready, by cluster.
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
"""Seconds between two looks at what is due: heartbeats come one by one, not in bursts."""
BOOKMARKS = 60.0
"""Seconds between bookmarks, as kube-apiserver has it."""
KEEP_ALIVE = 90.0
"""Seconds after which kube-apiserver closes a connection without a request."""
LOG = 200
"""Changes that a cluster remembers; a watch from before gets 410."""
FIRST_VERSION = 1000
FIRST_ADDRESS = int(IPv4Address("10.128.0.0"))
"""Behind the Service networks of the hub cluster, which the hub does not publish."""
ADDRESSES = 4096
"""Of each cluster; those of replaced nodes do not come again."""
READY_AFTER, GONE_AFTER = 1.0, 2.0
UNINITIALIZED = (
    b'"taints":[{"key":"node.cloudprovider.kubernetes.io/uninitialized","effect":"NoSchedule","value":"true"}],'
)
IMAGES = 50
"""As many as a kubelet reports."""
BORN = "2026-01-01T10:00:00Z"

Change = tuple[float, str, str, bool]
"""When, in which cluster, which address, and whether it came (or went)."""


def address(cluster: int, number: int) -> str:
    """The address of a node, the ``number``-th that its cluster ever had."""
    if number >= ADDRESSES:
        raise ValueError(f"cluster {cluster} has had {ADDRESSES} nodes")
    return str(IPv4Address(FIRST_ADDRESS + cluster * ADDRESSES + number))


def managed_fields() -> bytes:
    """What Kubernetes notes about who wrote what: 3 KB of every Node."""
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
                "time": BORN,
                "fieldsType": "FieldsV1",
                "fieldsV1": value,
            }
            for manager, value in fields
        ]
    )


FIELDS = b'"managedFields":' + managed_fields()


@dataclass(slots=True)
class Node:
    """A Node, in the pieces that differ from node to node."""

    name: str
    address: str
    head: bytes
    """``{"metadata":{…,`` as far as the resourceVersion."""
    rest: bytes
    """After the managed fields: ``},"spec":{`` … ``"images":``, with a place for each time, taints and readiness."""
    version: int
    beat: bytes = BORN.encode()
    since: bytes = BORN.encode()
    ready: bool = True
    fresh: bool = False
    """The cloud controller has not been there yet."""


def make(cluster: int, number: int, version: int) -> Node:
    """A node without images; no Node of this benchmark has a ``%``."""
    made = world.node(cluster, number, random.Random(), images=0)
    ip = address(cluster, number)
    made["status"]["addresses"][0]["address"] = ip
    del made["status"]["images"]
    for condition in made["status"]["conditions"]:
        condition["lastHeartbeatTime"] = "%b"
        if condition["type"] == "Ready":
            condition |= {"status": "%b", "lastTransitionTime": "%b"}
    meta = {**made["metadata"], "uid": made["status"]["nodeInfo"]["systemUUID"], "creationTimestamp": BORN}
    head = b'{"metadata":' + msgspec.json.encode(meta)[:-1] + b","
    spec = msgspec.json.encode(made["spec"])
    rest = b'},"spec":{%b' + spec[1:] + b',"status":' + msgspec.json.encode(made["status"])[:-1] + b',"images":'
    return Node(made["metadata"]["name"], ip, head, rest, version)


class Cluster:
    """One cluster: its Nodes, and who watches them."""

    def __init__(self, number: int, nodes: int, on_change: Callable[[Change], None]) -> None:
        self.number = number
        self.name = f"c{number}"
        self.version = FIRST_VERSION
        self.watchers: set[asyncio.WriteTransport] = set()
        self.nodes: dict[str, Node] = {}
        """Oldest first."""
        self.leaving: set[str] = set()
        """Names of those that are being replaced."""
        self.made = nodes
        self._on_change = on_change
        self._log: deque[tuple[int, bytes, Node]] = deque(maxlen=LOG)
        images = world.node(number, 0, random.Random(number), images=IMAGES)["status"]["images"]
        self._images = msgspec.json.encode(images)
        for each in range(nodes):
            node = make(number, each, FIRST_VERSION)
            self.nodes[node.name] = node

    # --- what it is asked ------------------------------------------------------------------------

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
        """All Nodes, on one page: no cluster here has more than the hub's page of 500."""
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
        # Events go past the response: aiohttp would spend longer on a chunk than it takes to make it.
        for _, kind, node in [each for each in self._log if each[0] > version]:
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
        """A Node as JSON; within an event it says what it is, as items of a list do not."""
        beat = node.beat
        rest = node.rest % (
            UNINITIALIZED if node.fresh else b"",
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

    # --- what happens to it ------------------------------------------------------------------------

    def beat(self, node: Node, now: bytes) -> None:
        """A kubelet reports, and has nothing to say."""
        node.beat = now
        self._tell(b"MODIFIED", node)

    def join(self) -> Node:
        """A node that nothing may run on yet."""
        node = make(self.number, self.made, 0)
        self.made += 1
        node.ready, node.fresh, node.since = False, True, stamp()
        self.nodes[node.name] = node
        self._tell(b"ADDED", node)
        return node

    def settle(self, node: Node) -> None:
        """It is Ready."""
        node.ready, node.fresh, node.since = True, False, stamp()
        self._on_change((time.monotonic(), self.name, node.address, True))
        self._tell(b"MODIFIED", node)

    def leave(self, node: Node) -> None:
        """It is gone."""
        del self.nodes[node.name]
        self.leaving.discard(node.name)
        self._on_change((time.monotonic(), self.name, node.address, False))
        self._tell(b"DELETED", node)

    def _tell(self, kind: bytes, node: Node) -> None:
        self.version += 1
        node.version = self.version
        self._log.append((self.version, kind, node))
        if self.watchers:
            event = self._event(kind, node)
            for each in self.watchers:
                if not each.is_closing():  # its handler has not heard of it yet
                    each.write(event)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stamp() -> bytes:
    """The time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()


@dataclass(slots=True)
class Pace:
    """So many things per second, evenly spread; what is more than a second late is not done any more."""

    rate: float = 0.0
    since: float = field(default_factory=time.monotonic)
    done: int = 0

    def due(self, now: float) -> int:
        """How many are due; they count as done."""
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
        self._round = self._nodes()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._rng = random.Random(first)
        self._late = 0.0

    async def serve(self) -> None:
        """Listen, each cluster on a port of its own; on the same ones as before."""
        loop = asyncio.get_running_loop()
        ports = self._ports or [0] * len(self.clusters)
        for cluster, port in zip(self.clusters, ports, strict=True):
            server = await loop.create_server(self._accept, "127.0.0.1", port, ssl=server_tls(), backlog=128)
            self._servers.append(server)
            self._by_port[server.sockets[0].getsockname()[1]] = cluster
        self._ports = list(self._by_port)

    def refuse(self) -> None:
        """Cut every connection and accept none."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in self._accept.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def write_kubeconfigs(self, folder: Path) -> None:
        """``c0.kubeconfig`` and so on."""
        for port, cluster in self._by_port.items():
            file = folder / f"{cluster.name}.kubeconfig"
            file.touch(mode=0o600)
            file.write_text(kubeconfig(cluster.name, f"https://127.0.0.1:{port}", "hub", f"token-of-{cluster.name}"))

    async def run(self) -> None:
        """Do what is due, for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self._late = max(self._late, now - last - TICK)
            last = now
            text = stamp()
            for cluster, node in itertools.islice(self._round, self._beats.due(now)):
                cluster.beat(node, text)
            for _ in range(self._replacements.due(now)):
                self._replace(now)
            while self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """One line of stdin."""
        if "beat" in order:
            count = sum(len(each.nodes) for each in self.clusters)
            self._beats = Pace(count / order["beat"] if order["beat"] else 0.0)
        if "replace" in order:
            count = sum(len(each.nodes) for each in self.clusters)
            self._replacements = Pace(
                max(count * order["replace"] / 60, order.get("least", 0) if order["replace"] else 0)
            )
        for _ in range(order.get("replace_now", 0)):
            self._replace(time.monotonic())
        if "refuse" in order:
            if order["refuse"]:
                self.refuse()
            else:
                await self.serve()
        if "addresses" in order:
            return {each.name: [node.address for node in each.nodes.values() if node.ready] for each in self.clusters}
        if "lateness" in order:
            late, self._late = self._late, 0.0
            return {"late_s": round(late, 4)}
        if "take" in order:
            return self._take()
        return {}

    def _take(self) -> dict[str, Any]:
        changes, self._changes = self._changes, []
        return {
            "changes": changes,
            "waiting": len(self._later),
            "watches": sum(len(each.watchers) for each in self.clusters),
            "unsent": sum(one.get_write_buffer_size() for each in self.clusters for one in each.watchers),
        }

    def _replace(self, now: float) -> None:
        """A node of a random cluster is replaced."""
        cluster = self._rng.choice(self.clusters)
        settled = [node for node in cluster.nodes.values() if node.ready and node.name not in cluster.leaving]
        if not settled:
            return
        old, new = self._rng.choice(settled), cluster.join()
        cluster.leaving.add(old.name)
        heapq.heappush(self._later, (now + READY_AFTER, next(self._count), lambda: cluster.settle(new)))
        heapq.heappush(self._later, (now + GONE_AFTER, next(self._count), lambda: cluster.leave(old)))

    def _nodes(self) -> Iterator[tuple[Cluster, Node]]:
        """All nodes, round and round, one of each cluster in turn."""
        while True:
            several = [list(each.nodes.values()) for each in self.clusters]
            for row in itertools.zip_longest(*several):
                for cluster, node in zip(self.clusters, row, strict=True):
                    if node is not None and node.name in cluster.nodes:
                        yield cluster, node

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.transport.get_extra_info("sockname") if request.transport is not None else None
        if request.transport is not None and not self._servers:  # its handshake was under way when all were cut
            request.transport.abort()
        if name is None or not self._servers:
            return web.Response(status=503)
        return await self._by_port[name[1]].answer(request)


async def main(folder: Path, first: int, count: int, nodes: int) -> None:
    """Serve until stdin ends."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # uvloop complains of each event that a dead hub misses
    remotes = Remotes(first, count, nodes)
    await remotes.serve()
    remotes.write_kubeconfigs(folder)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    running = asyncio.create_task(remotes.run())
    _say({"ready": True})
    while line := await orders.readline():
        _say(await remotes.obey(json.loads(line)))
    running.cancel()


def _say(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:5])))
