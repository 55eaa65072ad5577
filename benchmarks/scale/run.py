"""One run of the hub on a fleet: start, idle phases, changes, dead clusters, edits and restart.

Each phase has a dict of figures:

* ``hub_cpu`` and ``cpu`` (by process): percent of one core, over the phase.
* ``stall_ms``: the longest stall of the hub's event loop; ``stall_cpu_ms``: the most CPU time of one stall, which is
  shorter than the stall if another process used the core; ``stalls``: number of stalls over 100 ms; ``gc_ms``: the
  longest garbage collection.
* ``writes``: write requests on EndpointSlices, as counted by the API server.
* ``late_ms``: how late the timer of the remote clusters was at most; they sent their events that much later.
* ``p50_s``, ``p99_s``, ``max_s``: from the event that a remote cluster sends until a watch of the hub cluster's slices
  shows it in all Services of that cluster; ``changes``: number of changes; ``missed``: how many were never shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Usage, p99, usage
from benchmarks.scale.fleet import STOP_GRACE, Fleet, Remotes
from benchmarks.scale.ledger import Ledger
from benchmarks.world import SLICES
from tests.support.apiserver.process import Process

Figures = dict[str, Any]

STALL = 0.1
"""Seconds: the goal for the longest stall."""
REPORT, OFTEN = 300.0, 10.0
"""Seconds between two reports of a node: the kubelet's default, and thirty times as often."""
REPLACED, REPLACED_OFTEN = 0.01, 0.05
"""Shares of all nodes that are replaced per minute."""
SETTLE = 5.0
CATCH_UP = 30.0
"""Seconds after which an unpublished change counts as missed."""
SILENCE = 100.0
"""Seconds after which the hub has detected a silent watch, and reconnects."""
EDITS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        seconds: length of each phase.
        silence: minimum seconds for which dead clusters do not answer.
        limit: seconds that a start may take.
        least: minimum number of replacements per second, for small fleets, where 1 % per minute is less than a node.
    """

    seconds: float = 120.0
    silence: float = SILENCE
    limit: float = 300.0
    least: float = 0.0


@asynccontextmanager
async def slice_ledger(fleet: Fleet) -> AsyncIterator[Ledger]:
    """Delete all slices, and record all later changes of slices in a ledger."""
    await fleet.api.call("DELETE", SLICES)
    while True:
        found = await fleet.api.call("GET", SLICES)
        if not found["items"]:
            break
        await asyncio.sleep(0.2)
    ledger = Ledger()
    version = str(found["metadata"]["resourceVersion"])
    watch = asyncio.create_task(fleet.api.watch(SLICES, version, ledger.apply), name="the harness's watch")
    try:
        await asyncio.sleep(0.3)  # time for the watch to open
        yield ledger
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


class Run:
    """A run of one hub on a fleet.

    Attributes:
        phases: figures by phase, in the order of the phases.
    """

    def __init__(self, fleet: Fleet, ledger: Ledger, effort: Effort, log: Callable[[str], None]) -> None:
        self.fleet = fleet
        self.ledger = ledger
        self.effort = effort
        self.hub: Process = fleet.hub()
        self.phases: dict[str, Figures] = {}
        self._log = log
        self._peak = 0.0

    async def all(self) -> dict[str, Figures]:
        """Run all phases."""
        try:
            if not await self.start("start"):
                return self.phases
            await self.idle("idle", REPORT)
            await self.idle("idle, reports every 10 s", OFTEN)
            await self.churn("1 % replaced per minute", REPLACED)
            await self.dead()
            await self.churn("5 % replaced per minute", REPLACED_OFTEN)
            await self.edits()
            await self.restart()
            return self.phases
        finally:
            await self.stop()

    async def growth(self) -> dict[str, Figures]:
        """Run the phases that are compared between fleets of different sizes."""
        try:
            if await self.start("start"):
                await self.idle("idle", REPORT)
                await self.idle("idle, reports every 10 s", OFTEN)
            return self.phases
        finally:
            await self.stop()

    # --- phases ----------------------------------------------------------------------------------

    async def start(self, name: str, wanted: dict[str, set[str]] | None = None) -> bool:
        """Start the hub, and wait until every Service is right. Returns False if that does not happen in time."""
        if wanted is None:
            wanted = await self.fleet.addresses()
        async with self._phase(name) as figures:
            begin = time.perf_counter()
            self.hub.start()
            right = await self._until(lambda: not self.ledger.wrong(wanted), self.effort.limit)
            figures["right_s"] = round(time.perf_counter() - begin, 2)
            figures["right"] = right
            used = usage(self.hub.pid) if self.hub.alive else Usage(0, 0, 0)
            figures["cpu_s"] = round(used.cpu, 2)
            if not right:
                figures["log"] = self.hub.log_tail(5)
                return False
        await asyncio.sleep(SETTLE)
        self._memory(figures)
        return True

    async def idle(self, name: str, every: float) -> None:
        """Let nodes report without any change."""
        await self.fleet.command(beat=every)
        await asyncio.sleep(min(SETTLE, self.effort.seconds))
        async with self._phase(name) as figures:
            await asyncio.sleep(self.effort.seconds)
        figures["reports_per_s"] = round(self.fleet.row.clusters * self.fleet.row.nodes / every, 1)
        self._memory(figures)

    async def churn(self, name: str, share: float) -> None:
        """Replace nodes while all others report."""
        await self.fleet.command(beat=REPORT)
        await self._churn(name, share, self.fleet.remotes, self.effort.seconds)

    async def dead(self) -> None:
        """Replace nodes of the other clusters while a tenth of all clusters is frozen, then refuses connections.

        The same replacements while all clusters are alive, before and after, are the reference.
        """
        if len(self.fleet.remotes) < 2:
            return
        victims, others = self.fleet.victims, self.fleet.others
        seconds = max(self.effort.seconds, self.effort.silence)
        await self._churn("others, while all live", REPLACED, others, seconds)
        _signal(victims, stop=True)
        try:
            await self._churn("others, while a tenth does not answer", REPLACED, others, seconds)
        finally:
            _signal(victims, stop=False)
        await victims.command(refuse=True)
        await self._churn("others, while a tenth refuses connections", REPLACED, others, seconds)
        await victims.command(refuse=False)
        async with self._phase("a tenth comes back") as figures:
            begin = time.perf_counter()
            back = await self._poll_until(self._all_followed, CATCH_UP * 3)
            figures["right_s"] = round(time.perf_counter() - begin, 2)
            figures["right"] = back
            await asyncio.sleep(SETTLE)
        await self._churn("others, while all live again", REPLACED, others, seconds)

    async def edits(self) -> None:
        """Edit the registry: first entries of single Services, then a default that applies to all Services."""
        fleet = self.fleet
        names = [services[0] for services in list(fleet.services.values())[:EDITS]]
        seconds: list[float] = []
        async with self._phase("an edit of one Service") as figures:
            for number, name in enumerate(names):
                port = 31000 + number
                fleet.ports[name] = port
                begin = time.perf_counter()
                fleet.write_registry()
                done = await self._until(lambda name=name, port=port: self.ledger.ports[name] == port, CATCH_UP)  # type: ignore[misc]
                seconds.append(time.perf_counter() - begin if done else CATCH_UP)
                await asyncio.sleep(1.0)
            figures |= {"right_s": round(max(seconds), 2), "right": max(seconds) < CATCH_UP}
        async with self._phase("an edit of every Service that changes nothing") as figures:
            fleet.extra["defaults"] = {"nodes": {"notReadyGrace": "31s"}}
            fleet.write_registry()
            await asyncio.sleep(max(2 * SETTLE, min(self.effort.seconds, CATCH_UP)))
        del fleet.extra["defaults"]
        fleet.ports.clear()
        fleet.write_registry()
        await asyncio.sleep(2 * SETTLE)

    async def restart(self) -> None:
        """Restart the hub, and replace nodes of some clusters meanwhile. Other Services must not be written."""
        self._memory(self.phases["start"])
        begin = time.perf_counter()
        await asyncio.to_thread(self.hub.stop, STOP_GRACE)
        stopped = time.perf_counter() - begin
        await self.fleet.command(changes=True)
        # No node of a victim is replaced.
        await self.fleet.command(among=self.fleet.others, replace_now=max(1, self.fleet.row.clusters // 10))
        changes = await self._changes(self.fleet.others)
        touched = {service for change in changes for service in self.fleet.services[change[1]]}
        self.ledger.events.clear()
        if not await self.start("restart"):
            return
        rewritten = sorted(service for service in self.ledger.events if service not in touched)
        self.phases["restart"] |= {
            "stop_s": round(stopped, 2),
            "changed_services": len(touched),
            "rewritten": len(rewritten),
            "examples": rewritten[:5],
        }

    async def stop(self) -> None:
        """Stop the hub."""
        if self.hub.alive:
            await asyncio.to_thread(self.hub.stop, STOP_GRACE)

    # --- parts -----------------------------------------------------------------------------------

    async def _churn(self, name: str, share: float, among: Sequence[Remotes], seconds: float) -> None:
        await self.fleet.command(among=among, changes=True)
        async with self._phase(name, among) as figures:
            await self.fleet.command(among=among, replace=share, least=self.effort.least)
            await asyncio.sleep(seconds)
            await self.fleet.command(among=among, replace=0)
            figures |= await self._latencies(await self._changes(among))
        if among is self.fleet.remotes:
            figures["wrong"] = len(self.ledger.wrong(await self.fleet.addresses()))

    async def _changes(self, among: Sequence[Remotes]) -> list[Any]:
        """Return the changes since the last call. Waits until all replacements are complete."""
        changes: list[Any] = []
        while True:
            answers = await self.fleet.command(among=among, changes=True)
            changes += [change for answer in answers for change in answer["changes"]]
            if not any(answer["waiting"] for answer in answers):
                return changes
            await asyncio.sleep(0.5)

    async def _latencies(self, changes: Sequence[Any]) -> Figures:
        """Return the times until the changes were shown in all Services of their cluster."""
        places = [
            (
                at,
                self.ledger.came if appeared else self.ledger.went,
                [(service, ip) for service in self.fleet.services[cluster]],
            )
            for at, cluster, ip, appeared in changes
        ]
        await self._until(lambda: all(key in seen for _, seen, keys in places for key in keys), CATCH_UP)
        seconds = [max(seen[key] for key in keys) - at for at, seen, keys in places if all(key in seen for key in keys)]
        if not seconds:
            return {"changes": len(places), "missed": len(places)}
        return {
            "changes": len(places),
            "missed": len(places) - len(seconds),
            "p50_s": round(statistics.median(seconds), 4),
            "p99_s": round(p99(seconds), 4),
            "max_s": round(max(seconds), 4),
            "mean_s": round(statistics.fmean(seconds), 4),
        }

    @asynccontextmanager
    async def _phase(self, name: str, among: Sequence[Remotes] | None = None) -> AsyncIterator[Figures]:
        """Measure CPU, writes, stalls and lateness while the context is open."""
        figures = self.phases[name] = {}
        remotes = self.fleet.remotes if among is None else among
        await self.fleet.command(among=remotes, lateness=True)
        before, hub_before = self.fleet.used(), usage(self.hub.pid).cpu if self.hub.alive else 0.0
        writes = await self.fleet.api.slice_writes()
        begin = time.monotonic()
        yield figures
        end = time.monotonic()
        after = self.fleet.used()
        figures["seconds"] = round(end - begin, 1)
        if self.hub.alive:
            figures["hub_cpu"] = round((usage(self.hub.pid).cpu - hub_before) / (end - begin) * 100, 2)
        figures["cpu"] = {
            process: round((after[process].cpu - before[process].cpu) / (end - begin) * 100, 1) for process in before
        }
        figures["writes"] = await self.fleet.api.slice_writes() - writes
        figures |= stalls(self.fleet.stalls, begin, end)
        figures["late_ms"] = round(
            max(answer["late_s"] for answer in await self.fleet.command(remotes, lateness=True)) * 1e3, 1
        )
        self._log(f"{name}: {json.dumps(figures, ensure_ascii=False)}")

    def _memory(self, figures: Figures) -> None:
        """Record the resident and proportional memory of the hub in MiB, and its peak since the run began."""
        if self.hub.alive:
            used = usage(self.hub.pid)
            self._peak = max(self._peak, used.peak)
            figures |= {"rss_mib": round(used.rss, 1), "pss_mib": pss(self.hub.pid), "peak_mib": round(self._peak, 1)}
            figures["descriptors"] = len(list(Path(f"/proc/{self.hub.pid}/fd").iterdir()))

    async def _all_followed(self) -> bool:
        answers = await self.fleet.command(changes=True)
        watches: int = sum(answer["watches"] for answer in answers)
        return watches >= self.fleet.row.clusters

    async def _poll_until(self, condition: Callable[[], Any], seconds: float) -> bool:
        end = time.perf_counter() + seconds
        while not await condition():
            if time.perf_counter() > end or not self.hub.alive:
                return False
            await asyncio.sleep(0.2)
        return True

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the ledger fulfils a condition. Returns False after ``seconds``, or if the hub has ended."""
        end = time.perf_counter() + seconds
        while not condition():
            self.ledger.changed.clear()
            if time.perf_counter() > end or not self.hub.alive:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.ledger.changed.wait()
            await asyncio.sleep(0.05)  # limits the CPU of checking the condition
        return True


def stalls(file: Path, begin: float, end: float) -> Figures:
    """Return the stalls between two times from the file of :mod:`benchmarks.scale.loop_stalls`."""
    stall_seconds, cpu_seconds, gc_seconds = [0.0], [0.0], [0.0]
    if file.exists():
        for line in file.read_text().splitlines():
            at, seconds, cpu, generation = json.loads(line)
            if begin <= at <= end + seconds:
                (stall_seconds if generation < 0 else gc_seconds).append(seconds)
                cpu_seconds.append(cpu)
    return {
        "stall_ms": round(max(stall_seconds) * 1e3, 1),
        "stall_cpu_ms": round(max(cpu_seconds) * 1e3, 1),
        "stalls": sum(seconds > STALL for seconds in stall_seconds),
        "gc_ms": round(max(gc_seconds) * 1e3, 1),
    }


def pss(pid: int) -> float:
    """Return the proportional set size in MiB: memory shared with other processes counts in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return round(sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024, 1)


def _signal(remotes: Remotes, *, stop: bool) -> None:
    os.kill(remotes.pid, signal.SIGSTOP if stop else signal.SIGCONT)
