"""What a soak sees: a recorder of the hub's slices that shares no code with it, and what its process uses.

The recorder takes every change of every slice from the hub cluster's API in order, across restarts of that API
server, and holds each endpoint that leaves, or is shown as not ready, against the world as it is.
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
"""Seconds between two attempts to watch while the API server is away."""


class Recorder:
    """What is published, and what left without a reason.

    Args:
        truth: the world as it is.
        now: seconds after the start.

    Attributes:
        lost: in words, each once.
        seen: changes of slices so far.
        lists: how often all had to be read: a change and its undoing in between are not seen.
    """

    def __init__(self, truth: Truth, now: Callable[[], float]) -> None:
        self.lost: list[str] = []
        self.seen = 0
        self.lists = 0
        self._truth = truth
        self._now = now
        self._slices: dict[str, tuple[str, dict[str, bool]]] = {}
        self._there: dict[str, Counter[str]] = {}
        self._ready: dict[str, Counter[str]] = {}

    async def follow(self, api: Api) -> None:
        """Take in all changes, until cancelled."""
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
        names = {each.metadata.name for each in found.items}
        for each in found.items:
            self.take("ADDED", each)
        for name in self._slices.keys() - names:
            self.take("DELETED", Slice(Meta(name)))
        return found.metadata.resource_version

    async def _watch(self, api: Api, version: str) -> str:
        """Until it ends; the version to go on from, "" where all must be read again."""
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
                        self.take(event.type, event.object)
        return version

    def take(self, kind: str, each: Slice) -> None:
        """One change of one slice."""
        self.seen += 1
        name = each.metadata.name
        service, before = self._slices.pop(name, ("", {}))
        after: dict[str, bool] = {}
        if kind != "DELETED" and each.metadata.labels.get("endpointslice.kubernetes.io/managed-by") == OURS:
            service = each.metadata.service
            after = {
                address: endpoint.conditions.ready is not False
                for endpoint in each.endpoints or ()
                for address in endpoint.addresses
            }
            self._slices[name] = (service, after)
        if not service:
            return
        there, ready = self._there.setdefault(service, Counter()), self._ready.setdefault(service, Counter())
        there.update(after.keys())
        ready.update(address for address, is_ready in after.items() if is_ready)
        there.subtract(before.keys())
        ready.subtract(address for address, was_ready in before.items() if was_ready)
        for address, was_ready in before.items():
            if there[address] <= 0:
                self._judge(service, address, "left")
            elif was_ready and ready[address] <= 0:
                self._judge(service, address, "is shown as not ready")
            for counter in (there, ready):
                if counter[address] <= 0:
                    del counter[address]

    def _judge(self, service: str, address: str, what: str) -> None:
        now = self._now()
        if not self._truth.may_go(service, address, now):
            self.lost.append(f"{now:.1f} s: {address} {what} in {service}")

    def wrong(self) -> list[str]:
        """Services that publish something else than they ought to at this moment, in words."""
        now, found = self._now(), []
        for service in sorted(self._truth.sources.keys() | self._there.keys()):
            wanted = self._truth.wanted(service, now)
            there = self._there.get(service, Counter())
            missing, more = sorted(wanted - there.keys()), sorted(there.keys() - wanted)
            twice = sorted(address for address, times in there.items() if times > 1)
            unready = sorted(there.keys() - self._ready.get(service, Counter()).keys())
            if missing or more or twice or unready:
                parts = {"missing": missing, "too much": more, "twice": twice, "not ready": unready}
                text = "; ".join(f"{len(each)} {name}: {each[0]}" for name, each in parts.items() if each)
                found.append(f"{service}: {text}")
        return found


# --- the process ---------------------------------------------------------------------------------


class Watched:
    """Samples of one process, from /proc and its metrics.

    Args:
        temporary: its folder for temporary files.
        log: its log, one JSON object a line.
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
        """All figures of this moment.

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
            "cpu": self._used(at),
            "waited": self._waited(),
            "severe": self._count_severe(),
            "stalls": metrics["loop_stall_seconds_total"],
            "writes": metrics["writes_total"],
        }

    def _used(self, at: float) -> float:
        """% of a core since the last sample; 0 for the first."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        before, self._cpu = self._cpu, (at, seconds)
        return 0.0 if before is None else round((seconds - before[1]) / (at - before[0]) * 100, 2)

    def _waited(self) -> float:
        """Seconds since the last sample in which its main thread could have run and had no core; 0 for the first."""
        nanoseconds = int((self._proc / "schedstat").read_text().split()[1])  # proc(5): time on the run queue
        before, self._queued = self._queued, nanoseconds
        return 0.0 if before is None else round((nanoseconds - before) / 1e9, 3)

    async def _scrape(self, session: aiohttp.ClientSession) -> Counter[str]:
        try:
            text = await _text(session, self._metrics)
        except aiohttp.ServerDisconnectedError:  # one that the hub was just closing, 10 s after the last scrape
            text = await _text(session, self._metrics)
        found = Counter[str]()
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("endpointslice_hub_"):
                found[name.removeprefix("endpointslice_hub_").partition("{")[0]] += float(value)  # type: ignore[assignment]
        return found

    def _count_severe(self) -> int:
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
