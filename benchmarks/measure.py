"""One run of one program on a world: start it, change nodes, send heartbeats, stop it, and return the figures.

The figures are the same for every program:

* ``converge_s``: from the start of the process until every Service publishes every node of its cluster.
* ``first_p50_ms``, ``all_p50_ms``, ``all_p99_ms``: from the request that turns a node not Ready, or Ready again, until
  the first Service, or all Services, of its cluster show it.
* ``rss_mb``, ``rss_end_mb``, ``rss_peak_mb``: resident memory after the start and after the heartbeats, and its peak.
* ``cpu_per_heartbeat_ms``: CPU time, user and system, for each heartbeat (which changes nothing that is published).
* ``writes_start``, ``writes_per_flip``, ``heartbeat_writes``: write requests on EndpointSlices, as the API
  server counts them.
* ``paced5_p50_ms``, ``paced5_p99_ms``, ``paced20_p50_ms``, ``paced20_p99_ms``, only with one Service: the same
  time while nodes change 5 and 20 times a second, whether or not earlier changes have been published.
* ``rolling_writes``: write requests for each Service of a cluster while 100 of its nodes (or all) are replaced within
  10 s; ``rolling_last_s``: from the last replacement until all its Services publish all new nodes and no old one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.slices import Event
from benchmarks.subjects import SUBJECTS
from benchmarks.world import SLICES, STRATEGIC, World, address, bounded, node
from tests.support.apiserver.process import Process

Result = dict[str, Any]

FLIP_LIMIT = 30.0
"""Seconds after which an unpublished change counts as missed."""
BETWEEN_FLIPS = 0.25
ROLLING_NODES = 100
"""Nodes of the first cluster that are replaced one after the other in a rolling replacement."""
ROLLING_SECONDS = 10.0
"""Seconds that a rolling replacement takes."""
PACES = (5, 20)
"""Changes a second that are made without waiting until they are published."""
PACED_SECONDS = 30.0
"""Seconds of changes at each pace."""
MAX_NOT_READY = 10
"""Nodes that are not Ready at a time: too few for the guard, and each is not Ready for half a second or longer."""
STOP_GRACE = 15.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        flips: nodes that turn not Ready and Ready again.
        heartbeats: number of heartbeats, rounded down to whole rounds over all nodes; at least one round.
        settle: seconds of rest before CPU time and memory are read.
        limit: seconds that the start may take.
        rolling: seconds of the rolling replacement.
        paced: seconds of changes at each pace.
    """

    flips: int = 100
    heartbeats: int = 10_000
    settle: float = 2.0
    limit: float = 180.0
    rolling: float = ROLLING_SECONDS
    paced: float = PACED_SECONDS


# --- what the harness observes ----------------------------------------------------------------------


class Published:
    """The addresses that each Service publishes as ready, from a watch of the slices."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._slices: dict[str, dict[str, list[str]]] = {}
        self._addresses: dict[str, Counter[str]] = {}

    def apply(self, event: Event) -> None:
        """Apply an event of the watch."""
        meta = event.object.metadata
        slices = self._slices.setdefault(meta.service, {})
        addresses = self._addresses.setdefault(meta.service, Counter())
        for ip in slices.pop(meta.name, ()):
            addresses[ip] -= 1
            if not addresses[ip]:
                del addresses[ip]
        if event.type != "DELETED":
            ready = slices[meta.name] = event.object.ready()
            addresses.update(ready)
        self.changed.set()

    def count(self, service: str) -> int:
        """Return the number of different addresses that a Service publishes."""
        return len(self._addresses.get(service, ()))

    def has(self, service: str, address: str) -> bool:
        """Whether a Service publishes an address."""
        return address in self._addresses.get(service, ())


@dataclass(frozen=True, slots=True)
class Usage:
    """Resident memory and its peak in MB, and CPU seconds, of a process and its children."""

    rss: float
    peak: float
    cpu: float


def usage(pid: int) -> Usage:
    """Read from /proc what a process and its children use."""
    kilobytes = Counter[str]()
    ticks = 0
    for process in _tree(pid):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in {"VmRSS", "VmHWM"}:
                kilobytes[name] += int(value.split()[0])
        # proc_pid_stat(5): fields 14 to 17 are utime, stime, cutime, cstime. Field 2, the name, ends at the last ")".
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return Usage(kilobytes["VmRSS"] / 1024, kilobytes["VmHWM"] / 1024, ticks / os.sysconf("SC_CLK_TCK"))


def _tree(pid: int) -> list[int]:
    """Return the pids of a process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile by nearest rank; 0.0 if there are no values."""
    return sorted(values)[max(0, math.floor(len(values) * 0.99) - 1)] if values else 0.0


SUCCESSORS = 20_000
"""The node that replaces node N has the number N + SUCCESSORS, so its name and address are new."""


def successor(number: int, rng: random.Random) -> dict[str, Any]:
    """Return the Node that replaces a node of the first cluster."""
    return node(0, SUCCESSORS + number, rng)


class PendingChanges:
    """Measures how long changes of nodes take until one Service publishes them.

    Attributes:
        milliseconds: times of the published changes.
    """

    def __init__(self, published: Published, service: str) -> None:
        self.milliseconds: list[float] = []
        self._published = published
        self._service = service
        self._changes: list[tuple[str, bool, float]] = []

    @property
    def unpublished(self) -> int:
        """Number of changes that are not published yet."""
        return len(self._changes)

    def add(self, ip: str, *, ready: bool) -> None:
        """Record that a change is made now."""
        self._changes.append((ip, ready, time.perf_counter()))

    def check(self) -> bool:
        """Record the time of each change that is published now. Returns True if none is left."""
        now = time.perf_counter()
        unpublished = []
        for ip, ready, begin in self._changes:
            if self._published.has(self._service, ip) == ready:
                self.milliseconds.append((now - begin) * 1e3)
            else:
                unpublished.append((ip, ready, begin))
        self._changes = unpublished
        return not unpublished

    async def follow(self) -> None:
        """Check after each change of the slices, until cancelled."""
        while True:
            self._published.changed.clear()
            self.check()
            await self._published.changed.wait()


def readiness_changes(count: int, nodes: int) -> list[tuple[int, bool]]:
    """Return ``count`` changes: (node number, Ready).

    At most ``MAX_NOT_READY`` nodes, and at most half of all, are not Ready at a time.
    """
    down: deque[int] = deque()
    changes: list[tuple[int, bool]] = []
    fresh = itertools.cycle(range(nodes))
    for _ in range(count):
        if len(down) < min(MAX_NOT_READY, nodes // 2):
            down.append(next(fresh))
            changes.append((down[-1], False))
        else:
            changes.append((down.popleft(), True))
    return changes


# --- one run ---------------------------------------------------------------------------------------


async def run(world: World, subject: str, round_number: int, effort: Effort) -> Result:
    """Measure one program. If ``converged`` is False, the other figures are missing.

    Raises:
        KitUnavailable: the program cannot be built.
    """
    argv = SUBJECTS[subject](world)
    version = await _empty(world)
    published = Published()
    watch = asyncio.create_task(world.hub.watch(SLICES, version, published.apply), name="the harness's watch")
    process = Process(subject, argv, world.folder / f"{subject}.log")
    try:
        await asyncio.sleep(0.3)  # time for the watch to open
        return await _Run(world, subject, round_number, effort, published, process).measure()
    finally:
        await asyncio.to_thread(process.stop, STOP_GRACE)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _empty(world: World) -> str:
    """Delete all slices. Returns the resourceVersion to watch from."""
    await world.hub.call("DELETE", SLICES)
    while True:
        found = await world.hub.call("GET", SLICES)
        if not found["items"]:
            return str(found["metadata"]["resourceVersion"])
        await asyncio.sleep(0.1)


class _Run:
    def __init__(
        self, world: World, subject: str, round_number: int, effort: Effort, published: Published, process: Process
    ) -> None:
        self.world = world
        self.effort = effort
        self.published = published
        self.process = process
        row = world.row
        self.result: Result = {
            "subject": subject,
            "clusters": row.clusters,
            "nodes": row.nodes,
            "services": row.clusters * row.services,
            "round": round_number,
            "flips": effort.flips,
        }

    async def measure(self) -> Result:
        """Measure and return all figures."""
        before = await self.world.hub.slice_writes()
        await self._start()
        if not self.result["converged"]:
            self.result["log"] = self.process.log_tail(5)
            return self.result
        await asyncio.sleep(self.effort.settle)
        started = await self.world.hub.slice_writes()
        self.result["writes_start"] = started - before
        self.result["rss_mb"] = round(usage(self.process.pid).rss, 1)
        await self._flips()
        flipped = await self.world.hub.slice_writes()
        self.result["writes_per_flip"] = round((flipped - started) / (2 * self.effort.flips), 2)
        await self._heartbeats()
        self.result["heartbeat_writes"] = await self.world.hub.slice_writes() - flipped
        if len(self.world.backends) == 1:
            for pace in PACES:
                await self._paced(pace)
        if self.result["subject"] != "floor":  # floor cannot handle new nodes after its list
            await self._rolling()
        return self.result

    async def _start(self) -> None:
        nodes, backends = self.world.row.nodes, self.world.backends
        begin = time.perf_counter()
        self.process.start()
        converged = await self._until(
            lambda: all(self.published.count(backend.service) == nodes for backend in backends), self.effort.limit
        )
        self.result["converged"] = converged
        self.result["converge_s"] = round(time.perf_counter() - begin, 3)

    async def _flips(self) -> None:
        first: list[float] = []
        last: list[float] = []
        missed = 0
        row = self.world.row
        rng = random.Random(7)  # every program gets the same nodes
        for _ in range(self.effort.flips):
            cluster, number = rng.randrange(row.clusters), rng.randrange(row.nodes)
            services = [backend.service for backend in self.world.backends if backend.cluster == f"c{cluster}"]
            for ready in (False, True):
                times = await self._flip(cluster, number, services, ready=ready)
                first.append(times[0])
                last.append(times[1])
                missed += not times[2]
            await asyncio.sleep(BETWEEN_FLIPS)
        self.result["first_p50_ms"] = round(statistics.median(first), 1)
        self.result["all_p50_ms"] = round(statistics.median(last), 1)
        self.result["all_p99_ms"] = round(p99(last), 1)
        self.result["missed"] = missed

    async def _flip(self, cluster: int, number: int, services: list[str], *, ready: bool) -> tuple[float, float, bool]:
        """Change a node. Returns milliseconds until the first and until all Services show it, and whether all do."""
        has = self.published.has
        ip = address(cluster, number)
        condition = {"type": "Ready", "status": str(ready)}
        begin = time.perf_counter()
        await self._patch(cluster, number, condition)
        seen = await self._until(lambda: any(has(service, ip) == ready for service in services), FLIP_LIMIT)
        first = time.perf_counter()
        seen = seen and await self._until(lambda: all(has(service, ip) == ready for service in services), FLIP_LIMIT)
        return (first - begin) * 1e3, (time.perf_counter() - begin) * 1e3, seen

    async def _heartbeats(self) -> None:
        row = self.world.row
        rounds = max(1, self.effort.heartbeats // (row.clusters * row.nodes))
        beats = [(r, c, n) for r in range(rounds) for n in range(row.nodes) for c in range(row.clusters)]
        before = usage(self.process.pid)
        now = datetime.now(UTC)  # later than all earlier heartbeats: a patch that changes nothing causes no event

        async def beat(r: int, c: int, n: int) -> None:
            stamp = (now + timedelta(seconds=r)).strftime("%Y-%m-%dT%H:%M:%SZ")
            await self._patch(c, n, {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp})

        await bounded((lambda b=b: beat(*b) for b in beats), 16)
        await asyncio.sleep(self.effort.settle)
        after = usage(self.process.pid)
        self.result["cpu_per_heartbeat_ms"] = round((after.cpu - before.cpu) / len(beats) * 1e3, 3)
        self.result["rss_end_mb"] = round(after.rss, 1)
        self.result["rss_peak_mb"] = round(after.peak, 1)

    async def _paced(self, pace: int) -> None:
        """Change nodes at a fixed pace; at the end, make all Ready again."""
        pending = PendingChanges(self.published, self.world.backends[0].service)
        changes = readiness_changes(round(self.effort.paced * pace), self.world.row.nodes)
        following = asyncio.create_task(pending.follow(), name="the paced changes")
        down = set[int]()
        async with asyncio.TaskGroup() as group:
            begin = time.perf_counter()
            for made, (number, ready) in enumerate(changes):
                await asyncio.sleep(max(0.0, begin + made / pace - time.perf_counter()))
                pending.add(address(0, number), ready=ready)
                group.create_task(self._patch(0, number, {"type": "Ready", "status": str(ready)}))
                (down.discard if ready else down.add)(number)
        following.cancel()
        await self._until(pending.check, FLIP_LIMIT)
        self.result["missed"] += pending.unpublished
        self.result[f"paced{pace}_p50_ms"] = round(statistics.median(pending.milliseconds), 1)
        self.result[f"paced{pace}_p99_ms"] = round(p99(pending.milliseconds), 1)
        for number in sorted(down):
            await self._patch(0, number, {"type": "Ready", "status": "True"})
        await asyncio.sleep(self.effort.settle)

    async def _rolling(self) -> None:
        """Replace nodes: add each successor, then delete the old node. At the end, restore the old nodes."""
        count, remote = min(ROLLING_NODES, self.world.row.nodes), self.world.remotes[0]
        services = [backend.service for backend in self.world.backends if backend.cluster == "c0"]
        rng = random.Random(3)
        before = await self.world.hub.slice_writes()
        begin = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, begin + number * self.effort.rolling / count - time.perf_counter()))
            await remote.call("POST", "/api/v1/nodes", successor(number, rng))
            await remote.call("DELETE", f"/api/v1/nodes/c0-worker-{number}")
        last = time.perf_counter()

        def replaced() -> bool:
            return all(
                self.published.has(service, address(0, SUCCESSORS + number))
                and not self.published.has(service, address(0, number))
                for service in services
                for number in range(count)
            )

        self.result["missed"] += not await self._until(replaced, FLIP_LIMIT)
        self.result["rolling_last_s"] = round(time.perf_counter() - last, 2)
        await asyncio.sleep(self.effort.settle)
        self.result["rolling_writes"] = round((await self.world.hub.slice_writes() - before) / len(services), 2)
        for number in range(count):
            await remote.call("POST", "/api/v1/nodes", node(0, number, rng))
            await remote.call("DELETE", f"/api/v1/nodes/{successor(number, rng)['metadata']['name']}")

    async def _patch(self, cluster: int, number: int, condition: dict[str, str]) -> None:
        path = f"/api/v1/nodes/c{cluster}-worker-{number}/status"
        await self.world.remotes[cluster].call("PATCH", path, {"status": {"conditions": [condition]}}, STRATEGIC)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the watch fulfils a condition. Returns False after ``seconds``, or if the program has ended."""
        end = time.perf_counter() + seconds
        while not condition():
            self.published.changed.clear()
            left = end - time.perf_counter()
            if left <= 0 or not self.process.alive:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, 1.0)):
                    await self.published.changed.wait()
        return True
