"""One run: the hub on a fleet, from its start over all that happens to it to its restart, and what it took.

Each phase leaves a dict of figures, named by what they are:

* ``hub_cpu`` and ``cpu`` (by process): percent of one core, over the phase.
* ``stall_ms``: the longest time the hub's event loop stood still; ``stall_cpu_ms``: the most CPU time that went into
  one such time, which is less where something else had the core; ``stalls``: how many were over 100 ms; ``gc_ms``:
  the longest garbage collection.
* ``writes``: write requests on EndpointSlices, as the API server counts them.
* ``late_ms``: how late the remote clusters' own clock ran: what they should have sent meanwhile came that much later.
* ``p50_s``, ``p99_s``, ``max_s``: from the event a remote cluster sends until all Services of that cluster show it, in
  a watch of the hub cluster's slices; ``changes`` says of how many, ``missed`` how many never came.
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
"""Seconds of the goal."""
REPORT, OFTEN = 300.0, 10.0
"""Seconds between two reports of a node: what kubelets do, and thirty times as often."""
REPLACED, REPLACED_OFTEN = 0.01, 0.05
"""Part of all nodes that is replaced per minute."""
SETTLE = 5.0
CATCH_UP = 30.0
"""Seconds after which a change that did not show up is missed."""
SILENCE = 100.0
"""Seconds after which the hub has noticed that a watch is silent, and tries to connect anew."""
EDITS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is measured.

    Attributes:
        seconds: of each phase.
        silence: seconds for which dead clusters do not answer, at least.
        limit: seconds a start may take.
        least: replacements per second, at least: in a tiny fleet 1 % per minute is nothing.
    """

    seconds: float = 120.0
    silence: float = SILENCE
    limit: float = 300.0
    least: float = 0.0


@asynccontextmanager
async def watched(fleet: Fleet) -> AsyncIterator[Ledger]:
    """Nothing is published, and whatever will be is noted."""
    await fleet.api.call("DELETE", SLICES)
    while True:
        found = await fleet.api.call("GET", SLICES)
        if not found["items"]:
            break
        await asyncio.sleep(0.2)
    ledger = Ledger()
    version = str(found["metadata"]["resourceVersion"])
    watch = asyncio.create_task(fleet.api.watch(SLICES, version, ledger.take), name="the harness's watch")
    try:
        await asyncio.sleep(0.3)  # the watch is open
        yield ledger
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


class Run:
    """One hub on a fleet.

    Attributes:
        phases: the figures, by phase, in the order in which they were taken.
    """

    def __init__(self, fleet: Fleet, ledger: Ledger, effort: Effort, say: Callable[[str], None]) -> None:
        self.fleet = fleet
        self.ledger = ledger
        self.effort = effort
        self.hub: Process = fleet.hub()
        self.phases: dict[str, Figures] = {}
        self._say = say
        self._peak = 0.0

    async def all(self) -> dict[str, Figures]:
        """Every phase."""
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
        """The phases that are compared between fleets of different sizes."""
        try:
            if await self.start("start"):
                await self.idle("idle", REPORT)
                await self.idle("idle, reports every 10 s", OFTEN)
            return self.phases
        finally:
            await self.stop()

    # --- phases ----------------------------------------------------------------------------------

    async def start(self, name: str, wanted: dict[str, set[str]] | None = None) -> bool:
        """From the start of the process until every Service publishes what it should; False if it never did."""
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
        """Nodes report, and nothing changes."""
        await self.fleet.order(beat=every)
        await asyncio.sleep(min(SETTLE, self.effort.seconds))
        async with self._phase(name) as figures:
            await asyncio.sleep(self.effort.seconds)
        figures["reports_per_s"] = round(self.fleet.row.clusters * self.fleet.row.nodes / every, 1)
        self._memory(figures)

    async def churn(self, name: str, share: float) -> None:
        """Nodes are replaced, and all others report."""
        await self.fleet.order(beat=REPORT)
        await self._churn(name, share, self.fleet.remotes, self.effort.seconds)

    async def dead(self) -> None:
        """A tenth of the clusters freezes, refuses connections, comes back, while nodes of the others are replaced.

        Compared with the same replacements while all live, before and after.
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
        await victims.order(refuse=True)
        await self._churn("others, while a tenth refuses connections", REPLACED, others, seconds)
        await victims.order(refuse=False)
        async with self._phase("a tenth comes back") as figures:
            begin = time.perf_counter()
            back = await self._until_asked(self._all_followed, CATCH_UP * 3)
            figures["right_s"] = round(time.perf_counter() - begin, 2)
            figures["right"] = back
            await asyncio.sleep(SETTLE)
        await self._churn("others, while all live again", REPLACED, others, seconds)

    async def edits(self) -> None:
        """The registry changes: first where it concerns one Service, then where it concerns every one."""
        fleet = self.fleet
        names = [each[0] for each in list(fleet.services.values())[:EDITS]]
        took: list[float] = []
        async with self._phase("an edit of one Service") as figures:
            for number, name in enumerate(names):
                port = 31000 + number
                fleet.ports[name] = port
                begin = time.perf_counter()
                fleet.write_registry()
                done = await self._until(lambda name=name, port=port: self.ledger.ports[name] == port, CATCH_UP)  # type: ignore[misc]
                took.append(time.perf_counter() - begin if done else CATCH_UP)
                await asyncio.sleep(1.0)
            figures |= {"right_s": round(max(took), 2), "right": max(took) < CATCH_UP}
        async with self._phase("an edit of every Service that changes nothing") as figures:
            fleet.extra["defaults"] = {"nodes": {"notReadyGrace": "31s"}}
            fleet.write_registry()
            await asyncio.sleep(max(2 * SETTLE, min(self.effort.seconds, CATCH_UP)))
        del fleet.extra["defaults"]
        fleet.ports.clear()
        fleet.write_registry()
        await asyncio.sleep(2 * SETTLE)

    async def restart(self) -> None:
        """While the hub is away a node is replaced in some clusters; Services of the others are not written."""
        self._memory(self.phases["start"])
        begin = time.perf_counter()
        await asyncio.to_thread(self.hub.stop, STOP_GRACE)
        stopped = time.perf_counter() - begin
        await self.fleet.order(take=True)
        # The victims' clusters stay as they are.
        await self.fleet.order(among=self.fleet.others, replace_now=max(1, self.fleet.row.clusters // 10))
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
        """The hub is no more."""
        if self.hub.alive:
            await asyncio.to_thread(self.hub.stop, STOP_GRACE)

    # --- parts -----------------------------------------------------------------------------------

    async def _churn(self, name: str, share: float, among: Sequence[Remotes], seconds: float) -> None:
        await self.fleet.order(among=among, take=True)
        async with self._phase(name, among) as figures:
            await self.fleet.order(among=among, replace=share, least=self.effort.least)
            await asyncio.sleep(seconds)
            await self.fleet.order(among=among, replace=0)
            figures |= await self._latencies(await self._changes(among))
        if among is self.fleet.remotes:
            figures["wrong"] = len(self.ledger.wrong(await self.fleet.addresses()))

    async def _changes(self, among: Sequence[Remotes]) -> list[Any]:
        """What changed since the last time, once everything that was begun has ended."""
        changes: list[Any] = []
        while True:
            answers = await self.fleet.order(among=among, take=True)
            changes += [change for answer in answers for change in answer["changes"]]
            if not any(answer["waiting"] for answer in answers):
                return changes
            await asyncio.sleep(0.5)

    async def _latencies(self, changes: Sequence[Any]) -> Figures:
        """How long the changes took to show in all Services of their cluster."""
        places = [
            (
                at,
                self.ledger.came if appeared else self.ledger.went,
                [(each, ip) for each in self.fleet.services[cluster]],
            )
            for at, cluster, ip, appeared in changes
        ]
        await self._until(lambda: all(key in seen for _, seen, keys in places for key in keys), CATCH_UP)
        took = [max(seen[key] for key in keys) - at for at, seen, keys in places if all(key in seen for key in keys)]
        if not took:
            return {"changes": len(places), "missed": len(places)}
        return {
            "changes": len(places),
            "missed": len(places) - len(took),
            "p50_s": round(statistics.median(took), 4),
            "p99_s": round(p99(took), 4),
            "max_s": round(max(took), 4),
            "mean_s": round(statistics.fmean(took), 4),
        }

    @asynccontextmanager
    async def _phase(self, name: str, among: Sequence[Remotes] | None = None) -> AsyncIterator[Figures]:
        """Measure what everybody uses, writes and suffers while the context is open."""
        figures = self.phases[name] = {}
        remotes = self.fleet.remotes if among is None else among
        await self.fleet.order(among=remotes, lateness=True)
        before, hub_before = self.fleet.used(), usage(self.hub.pid).cpu if self.hub.alive else 0.0
        writes = await self.fleet.api.slice_writes()
        begin = time.monotonic()
        yield figures
        end = time.monotonic()
        after = self.fleet.used()
        figures["seconds"] = round(end - begin, 1)
        if self.hub.alive:
            figures["hub_cpu"] = round((usage(self.hub.pid).cpu - hub_before) / (end - begin) * 100, 2)
        figures["cpu"] = {each: round((after[each].cpu - before[each].cpu) / (end - begin) * 100, 1) for each in before}
        figures["writes"] = await self.fleet.api.slice_writes() - writes
        figures |= stalls(self.fleet.pulse, begin, end)
        figures["late_ms"] = round(
            max(each["late_s"] for each in await self.fleet.order(remotes, lateness=True)) * 1e3, 1
        )
        self._say(f"{name}: {json.dumps(figures, ensure_ascii=False)}")

    def _memory(self, figures: Figures) -> None:
        """Resident and proportional memory of the hub in MiB, and its peak since the run began."""
        if self.hub.alive:
            used = usage(self.hub.pid)
            self._peak = max(self._peak, used.peak)
            figures |= {"rss_mib": round(used.rss, 1), "pss_mib": pss(self.hub.pid), "peak_mib": round(self._peak, 1)}
            figures["descriptors"] = len(list(Path(f"/proc/{self.hub.pid}/fd").iterdir()))

    async def _all_followed(self) -> bool:
        answers = await self.fleet.order(take=True)
        watches: int = sum(each["watches"] for each in answers)
        return watches >= self.fleet.row.clusters

    async def _until_asked(self, condition: Callable[[], Any], seconds: float) -> bool:
        end = time.perf_counter() + seconds
        while not await condition():
            if time.perf_counter() > end or not self.hub.alive:
                return False
            await asyncio.sleep(0.2)
        return True

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for what the watch shows; False after ``seconds``, or when the hub has ended."""
        end = time.perf_counter() + seconds
        while not condition():
            self.ledger.changed.clear()
            if time.perf_counter() > end or not self.hub.alive:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.ledger.changed.wait()
            await asyncio.sleep(0.05)  # looking costs more than waiting
        return True


def stalls(file: Path, begin: float, end: float) -> Figures:
    """What the pulse noted between two times: see :mod:`benchmarks.scale.pulse`."""
    loop, busy, collector = [0.0], [0.0], [0.0]
    if file.exists():
        for line in file.read_text().splitlines():
            at, seconds, cpu, generation = json.loads(line)
            if begin <= at <= end + seconds:
                (loop if generation < 0 else collector).append(seconds)
                busy.append(cpu)
    return {
        "stall_ms": round(max(loop) * 1e3, 1),
        "stall_cpu_ms": round(max(busy) * 1e3, 1),
        "stalls": sum(each > STALL for each in loop),
        "gc_ms": round(max(collector) * 1e3, 1),
    }


def pss(pid: int) -> float:
    """Proportional set size in MiB: what is shared with other processes counts in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return round(sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024, 1)


def _signal(remotes: Remotes, *, stop: bool) -> None:
    os.kill(remotes.pid, signal.SIGSTOP if stop else signal.SIGCONT)
