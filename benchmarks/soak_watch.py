"""Observes the hub during a soak: a recorder of its slices, which shares no code with it, and samples of its process.

The recorder reads every change of every slice from the hub cluster's API, across restarts of the API server. It
compares each endpoint that is removed or marked not ready with the real state.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.slices import Meta, Slice, decode_event, decode_list
from benchmarks.soak_script import Truth
from benchmarks.world import SLICES, Api

OURS = "endpointslice-hub"
RETRY = 0.1
"""Seconds between two attempts to watch while the API server is down."""


class Recorder:
    """Records the published endpoints, and those that were removed without a reason.

    Args:
        truth: the real state of the clusters.
        now: returns seconds after the start.

    Attributes:
        lost: endpoints that were removed without a reason, as texts.
        seen: number of changes of slices so far.
        lists: number of lists. A change that is undone between a watch and a list is not seen.
    """

    def __init__(self, truth: Truth, now: Callable[[], float]) -> None:
        self.lost: list[str] = []
        self.seen = 0
        self.lists = 0
        self._truth = truth
        self._now = now
        self._slices: dict[str, tuple[str, dict[str, bool]]] = {}
        self._published: dict[str, Counter[str]] = {}
        self._ready: dict[str, Counter[str]] = {}

    async def follow(self, api: Api) -> None:
        """Record all changes, until cancelled."""
        version = ""
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                if not version:
                    version = await self._list(api)
                version = await self._watch(api, version)
            await asyncio.sleep(RETRY)

    async def _list(self, api: Api) -> str:
        async with api.session.get(SLICES) as answer:
            if answer.status != 200:
                return ""
            found = decode_list(await answer.read())
        self.lists += 1
        names = {slice_.metadata.name for slice_ in found.items}
        for slice_ in found.items:
            self.record("ADDED", slice_)
        for name in self._slices.keys() - names:
            self.record("DELETED", Slice(Meta(name)))
        return found.metadata.resource_version

    async def _watch(self, api: Api, version: str) -> str:
        """Watch until the stream ends. Returns the version to continue from, or "" if a list is needed."""
        if not version:
            return ""
        params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "7200"}
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with api.session.get(SLICES, params=params) as answer:
                if answer.status != 200:
                    return "" if answer.status == 410 else version
                async for line in answer.content:
                    event = decode_event(line)
                    if event.type == "ERROR":
                        return ""
                    version = event.object.metadata.resource_version
                    if event.type != "BOOKMARK":
                        self.record(event.type, event.object)
        return version

    def record(self, kind: str, slice_: Slice) -> None:
        """Record a change of a slice."""
        self.seen += 1
        name = slice_.metadata.name
        service, before = self._slices.pop(name, ("", {}))
        after: dict[str, bool] = {}
        if kind != "DELETED" and slice_.metadata.labels.get("endpointslice.kubernetes.io/managed-by") == OURS:
            service = slice_.metadata.service
            after = {
                address: endpoint.conditions.ready is not False
                for endpoint in slice_.endpoints or ()
                for address in endpoint.addresses
            }
            self._slices[name] = (service, after)
        if not service:
            return
        published, ready = self._published.setdefault(service, Counter()), self._ready.setdefault(service, Counter())
        published.update(after.keys())
        ready.update(address for address, is_ready in after.items() if is_ready)
        published.subtract(before.keys())
        ready.subtract(address for address, was_ready in before.items() if was_ready)
        for address, was_ready in before.items():
            if published[address] <= 0:
                self._judge(service, address, "left")
            elif was_ready and ready[address] <= 0:
                self._judge(service, address, "is shown as not ready")
            for counter in (published, ready):
                if counter[address] <= 0:
                    del counter[address]

    def _judge(self, service: str, address: str, what: str) -> None:
        now = self._now()
        if not self._truth.may_leave(service, address, now):
            self.lost.append(f"{now:.1f} s: {address} {what} in {service}")

    def wrong(self) -> list[str]:
        """Return the Services that do not publish exactly the right addresses now, as texts."""
        now, found = self._now(), []
        for service in sorted(self._truth.sources.keys() | self._published.keys()):
            wanted = self._truth.wanted(service, now)
            published = self._published.get(service, Counter())
            missing, more = sorted(wanted - published.keys()), sorted(published.keys() - wanted)
            twice = sorted(address for address, times in published.items() if times > 1)
            unready = sorted(published.keys() - self._ready.get(service, Counter()).keys())
            if missing or more or twice or unready:
                parts = {"missing": missing, "too much": more, "twice": twice, "not ready": unready}
                text = "; ".join(f"{len(ips)} {name}: {ips[0]}" for name, ips in parts.items() if ips)
                found.append(f"{service}: {text}")
        return found


# --- the process ---------------------------------------------------------------------------------


class ProcessSampler:
    """Takes samples of a process, from /proc and its metrics.

    Args:
        metrics: URL of its metrics.
        temporary: its folder for temporary files.
        log: its log, with one JSON object per line.
    """

    def __init__(self, pid: int, metrics: str, temporary: Path, log: Path) -> None:
        self._proc = Path(f"/proc/{pid}")
        self._metrics = metrics
        self._temporary = temporary
        self._log = log
        self._read = 0
        self._severe = 0
        self._cpu: tuple[float, float] | None = None
        self._queued: int | None = None

    async def sample(self, session: aiohttp.ClientSession, at: float) -> dict[str, float]:
        """Return all figures of this moment.

        Raises:
            OSError: the process has ended.
        """
        status = dict(line.split(":", 1) for line in (self._proc / "status").read_text().splitlines())
        pss = next(
            line.split()[1]
            for line in (self._proc / "smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        )
        descriptors = len(os.listdir(self._proc / "fd"))
        metrics = await self._scrape(session)
        return {
            "at": round(at, 2),
            "rss": int(status["VmRSS"].split()[0]) / 1024,
            "pss": int(pss) / 1024,
            "fds": descriptors,
            "threads": int(status["Threads"]),
            "tasks": metrics["tasks"],
            "files": sum(1 for _ in self._temporary.rglob("*")),
            "cpu": self._cpu_percent(at),
            "waited": self._seconds_without_core(),
            "severe": self._count_severe(),
            "stalls": metrics["loop_stall_seconds_total"],
            "writes": metrics["writes_total"],
        }

    def _cpu_percent(self, at: float) -> float:
        """Return the CPU since the last sample in percent of a core; 0 for the first."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        before, self._cpu = self._cpu, (at, seconds)
        return 0.0 if before is None else round((seconds - before[1]) / (at - before[0]) * 100, 2)

    def _seconds_without_core(self) -> float:
        """Return the seconds since the last sample in which its main thread waited for a core; 0 for the first."""
        nanoseconds = int((self._proc / "schedstat").read_text().split()[1])  # time spent waiting on a run queue
        before, self._queued = self._queued, nanoseconds
        return 0.0 if before is None else round((nanoseconds - before) / 1e9, 3)

    async def _scrape(self, session: aiohttp.ClientSession) -> Counter[str]:
        try:
            text = await _text(session, self._metrics)
        except aiohttp.ServerDisconnectedError:  # a kept connection that the hub closed just then
            text = await _text(session, self._metrics)
        found = Counter[str]()
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("endpointslice_hub_"):
                found[name.removeprefix("endpointslice_hub_").partition("{")[0]] += float(value)  # type: ignore[assignment]
        return found

    def _count_severe(self) -> int:
        """Return the number of warnings and errors in the log so far."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        self._severe += sum(_level(line) not in ("debug", "info") for line in whole.splitlines())
        return self._severe


def _level(line: bytes) -> Any:
    try:
        return json.loads(line)["level"]
    except (ValueError, KeyError, TypeError):
        return "critical"


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        answer.raise_for_status()
        return await answer.text()
