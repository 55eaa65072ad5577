"""One run of one subject on a world: start it, change nodes, send heartbeats, stop it, and say what it took.

The figures, the same for every subject:

* ``converge_s``: from the start of the process until every Service publishes every node of its cluster.
* ``first_p50_ms``, ``all_p50_ms``, ``all_p99_ms``: from the request that turns a node not Ready, or Ready again, until
  the first and until all of the Services of its cluster show it.
* ``rss_mb``, ``rss_end_mb``, ``rss_peak_mb``: resident memory after the start, after everything, and at its peak.
* ``cpu_per_heartbeat_ms``: CPU time, user and system, for each of the heartbeats (which change nothing that matters).
* ``writes_start``, ``writes_per_flip``, ``heartbeat_writes``: write requests on EndpointSlices, as the API
  server counts them.
* ``paced5_p50_ms``, ``paced5_p99_ms``, ``paced20_p50_ms``, ``paced20_p99_ms``, where there is one Service: the same
  time while nodes change 5 and 20 times a second, whether or not the changes before have been published.
* ``rolling_writes``: write requests for each Service of a cluster of which 100 nodes (or all) are replaced within 10 s;
  ``rolling_last_s``: from the last replacement until all of its Services publish all new ones and no old one.
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
from benchmarks.world import SLICES, STRATEGIC, Backend, World, address, bounded, node
from tests.support.apiserver.process import Process

Result = dict[str, Any]

FLIP_LIMIT = 30.0
"""Seconds after which a change that does not show up counts as missed."""
BETWEEN_FLIPS = 0.25
ROLLED = 100
"""Nodes of the first cluster that are replaced, one after the other."""
ROLLING = 10.0
"""Seconds that takes."""
PACES = (5, 20)
"""Changes a second, one after the other without waiting for any."""
PACED = 30.0
"""Seconds for each pace."""
DOWN = 10
"""Nodes that are not Ready at a time: few enough for a guard, and each stays so for half a second at least."""
STOP_GRACE = 15.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often is measured.

    Attributes:
        flips: nodes that turn not Ready and Ready again.
        heartbeats: at least so many, rounded down to whole rounds over all nodes; at least one round.
        settle: seconds of rest before CPU time and memory are read.
        limit: seconds the start may take.
        rolling: seconds in which nodes are replaced.
        paced: seconds for each pace of changes.
    """

    flips: int = 100
    heartbeats: int = 10_000
    settle: float = 2.0
    limit: float = 180.0
    rolling: float = ROLLING
    paced: float = PACED


# --- what the harness sees -------------------------------------------------------------------------


class Published:
    """Which addresses each Service publishes as ready, kept from a watch of its slices."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._slices: dict[str, dict[str, list[str]]] = {}
        self._addresses: dict[str, Counter[str]] = {}

    def take(self, event: Event) -> None:
        """One event of the watch."""
        meta = event.object.metadata
        slices = self._slices.setdefault(meta.service, {})
        addresses = self._addresses.setdefault(meta.service, Counter())
        for each in slices.pop(meta.name, ()):
            addresses[each] -= 1
            if not addresses[each]:
                del addresses[each]
        if event.type != "DELETED":
            ready = slices[meta.name] = event.object.ready()
            addresses.update(ready)
        self.changed.set()

    def count(self, service: str) -> int:
        """How many different addresses a Service publishes."""
        return len(self._addresses.get(service, ()))

    def has(self, service: str, address: str) -> bool:
        """Whether a Service publishes an address."""
        return address in self._addresses.get(service, ())


@dataclass(frozen=True, slots=True)
class Usage:
    """A process and its children: resident memory now and at its peak in MB, CPU seconds."""

    rss: float
    peak: float
    cpu: float


def usage(pid: int) -> Usage:
    """What a process and its children use, from /proc."""
    kilobytes = Counter[str]()
    ticks = 0
    for each in _tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in {"VmRSS", "VmHWM"}:
                kilobytes[name] += int(value.split()[0])
        # After the name in parentheses: field 14 to 17 of stat(5) are utime, stime, cutime, cstime.
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return Usage(kilobytes["VmRSS"] / 1024, kilobytes["VmHWM"] / 1024, ticks / os.sysconf("SC_CLK_TCK"))


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def p99(values: Sequence[float]) -> float:
    """The 99th percentile, by nearest rank; 0.0 of nothing."""
    return sorted(values)[max(0, math.floor(len(values) * 0.99) - 1)] if values else 0.0


SUCCESSORS = 20_000
"""Added to a node's number, that of the one which replaces it: another name, another address."""


def successor(number: int, rng: random.Random) -> dict[str, Any]:
    """The Node that replaces one of the first cluster."""
    return node(0, SUCCESSORS + number, rng)


class Awaited:
    """Changes of one Service that have been made, and how long each took until it was published.

    Attributes:
        milliseconds: of the changes that were seen.
    """

    def __init__(self, published: Published, service: str) -> None:
        self.milliseconds: list[float] = []
        self._published = published
        self._service = service
        self._changes: list[tuple[str, bool, float]] = []

    @property
    def missing(self) -> int:
        """Changes that have not been seen yet."""
        return len(self._changes)

    def add(self, ip: str, *, ready: bool) -> None:
        """A change is made now."""
        self._changes.append((ip, ready, time.perf_counter()))

    def look(self) -> bool:
        """Take the time of each change that the Service shows; True when it shows all."""
        now = time.perf_counter()
        still = []
        for ip, ready, begin in self._changes:
            if self._published.has(self._service, ip) == ready:
                self.milliseconds.append((now - begin) * 1e3)
            else:
                still.append((ip, ready, begin))
        self._changes = still
        return not still

    async def follow(self) -> None:
        """Look whenever the slices have changed, until cancelled."""
        while True:
            self._published.changed.clear()
            self.look()
            await self._published.changed.wait()


def ups_and_downs(count: int, nodes: int) -> list[tuple[int, bool]]:
    """``count`` changes of nodes: (number, Ready). At most ``DOWN`` nodes, or half of them, are not Ready at a time."""
    down: deque[int] = deque()
    made: list[tuple[int, bool]] = []
    fresh = itertools.cycle(range(nodes))
    for _ in range(count):
        if len(down) < min(DOWN, nodes // 2):
            down.append(next(fresh))
            made.append((down[-1], False))
        else:
            made.append((down.popleft(), True))
    return made


# --- one run ---------------------------------------------------------------------------------------


async def run(world: World, subject: str, round_number: int, effort: Effort) -> Result:
    """Measure one subject; ``converged`` is False where the rest could not be measured.

    Raises:
        KitUnavailable: the subject cannot be built.
    """
    argv = SUBJECTS[subject](world)
    version = await _empty(world)
    published = Published()
    watch = asyncio.create_task(world.hub.watch(SLICES, version, published.take), name="the harness's watch")
    process = Process(subject, argv, world.folder / f"{subject}.log")
    try:
        await asyncio.sleep(0.3)  # the watch is open
        return await _Run(world, subject, round_number, effort, published, process).measure()
    finally:
        await asyncio.to_thread(process.stop, STOP_GRACE)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _empty(world: World) -> str:
    """Remove what the last subject published; the version to watch from."""
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
        """All figures, in the order in which they are taken."""
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
        if self.result["subject"] != "floor":  # whose places are for the nodes it has listed
            await self._rolling()
        return self.result

    async def _start(self) -> None:
        nodes, backends = self.world.row.nodes, self.world.backends
        begin = time.perf_counter()
        self.process.start()
        converged = await self._until(
            lambda: all(self.published.count(each.service) == nodes for each in backends), self.effort.limit
        )
        self.result["converged"] = converged
        self.result["converge_s"] = round(time.perf_counter() - begin, 3)

    async def _flips(self) -> None:
        first: list[float] = []
        last: list[float] = []
        missed = 0
        row = self.world.row
        rng = random.Random(7)  # the same nodes for everybody
        for _ in range(self.effort.flips):
            cluster, number = rng.randrange(row.clusters), rng.randrange(row.nodes)
            mine = [each for each in self.world.backends if each.cluster == f"c{cluster}"]
            for ready in (False, True):
                times = await self._flip(cluster, number, mine, ready=ready)
                first.append(times[0])
                last.append(times[1])
                missed += not times[2]
            await asyncio.sleep(BETWEEN_FLIPS)
        self.result["first_p50_ms"] = round(statistics.median(first), 1)
        self.result["all_p50_ms"] = round(statistics.median(last), 1)
        self.result["all_p99_ms"] = round(p99(last), 1)
        self.result["missed"] = missed

    async def _flip(self, cluster: int, number: int, mine: list[Backend], *, ready: bool) -> tuple[float, float, bool]:
        """Milliseconds until the first and until all Services show it, and whether they do."""
        has = self.published.has
        ip = address(cluster, number)
        condition = {"type": "Ready", "status": str(ready)}
        begin = time.perf_counter()
        await self._patch(cluster, number, condition)
        seen = await self._until(lambda: any(has(each.service, ip) == ready for each in mine), FLIP_LIMIT)
        first = time.perf_counter()
        seen = seen and await self._until(lambda: all(has(each.service, ip) == ready for each in mine), FLIP_LIMIT)
        return (first - begin) * 1e3, (time.perf_counter() - begin) * 1e3, seen

    async def _heartbeats(self) -> None:
        row = self.world.row
        rounds = max(1, self.effort.heartbeats // (row.clusters * row.nodes))
        beats = [(r, c, n) for r in range(rounds) for n in range(row.nodes) for c in range(row.clusters)]
        before = usage(self.process.pid)
        now = datetime.now(UTC)  # later than all beats before: a patch that changes nothing would be no event

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
        """Nodes change at a fixed pace; in the end all are Ready again."""
        awaited = Awaited(self.published, self.world.backends[0].service)
        changes = ups_and_downs(round(self.effort.paced * pace), self.world.row.nodes)
        following = asyncio.create_task(awaited.follow(), name="the paced changes")
        down = set[int]()
        async with asyncio.TaskGroup() as group:
            begin = time.perf_counter()
            for made, (number, ready) in enumerate(changes):
                await asyncio.sleep(max(0.0, begin + made / pace - time.perf_counter()))
                awaited.add(address(0, number), ready=ready)
                group.create_task(self._patch(0, number, {"type": "Ready", "status": str(ready)}))
                (down.discard if ready else down.add)(number)
        following.cancel()
        await self._until(awaited.look, FLIP_LIMIT)
        self.result["missed"] += awaited.missing
        self.result[f"paced{pace}_p50_ms"] = round(statistics.median(awaited.milliseconds), 1)
        self.result[f"paced{pace}_p99_ms"] = round(p99(awaited.milliseconds), 1)
        for number in sorted(down):
            await self._patch(0, number, {"type": "Ready", "status": "True"})
        await asyncio.sleep(self.effort.settle)

    async def _rolling(self) -> None:
        """Every node is joined by its successor, and leaves; then the cluster is put back as it was."""
        count, remote = min(ROLLED, self.world.row.nodes), self.world.remotes[0]
        mine = [each.service for each in self.world.backends if each.cluster == "c0"]
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
                for service in mine
                for number in range(count)
            )

        self.result["missed"] += not await self._until(replaced, FLIP_LIMIT)
        self.result["rolling_last_s"] = round(time.perf_counter() - last, 2)
        await asyncio.sleep(self.effort.settle)
        self.result["rolling_writes"] = round((await self.world.hub.slice_writes() - before) / len(mine), 2)
        for number in range(count):
            await remote.call("POST", "/api/v1/nodes", node(0, number, rng))
            await remote.call("DELETE", f"/api/v1/nodes/{successor(number, rng)['metadata']['name']}")

    async def _patch(self, cluster: int, number: int, condition: dict[str, str]) -> None:
        path = f"/api/v1/nodes/c{cluster}-worker-{number}/status"
        await self.world.remotes[cluster].call("PATCH", path, {"status": {"conditions": [condition]}}, STRATEGIC)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for what the watch shows; False after ``seconds``, or when the subject has ended."""
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
