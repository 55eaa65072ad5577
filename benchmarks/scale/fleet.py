"""The processes of a scale run: the remote clusters, a real hub cluster, and the hub; pinned, and watched by /proc."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import Usage, usage
from benchmarks.world import NAMESPACE, PORT, Api, Row, bounded, kubeconfig, service
from tests.support.apiserver import binaries
from tests.support.apiserver.process import Process
from tests.support.apiserver.server import ApiServer

ROOT = Path(__file__).resolve().parents[2]
VICTIMS = 10
"""One cluster in so many lives in the process that dies."""
ANSWER_LIMIT = 256 << 20
STOP_GRACE = 15.0


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where: the hub on a core of its own, everything else on the others; None = nobody is pinned."""

    hub: int | None
    others: frozenset[int]

    def __str__(self) -> str:
        if self.hub is None:
            return "nobody pinned: one core"
        return f"the hub alone on one core, everything else on the other {len(self.others)}"


def cores() -> Cores:
    """From what this process may use."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2 or shutil.which("taskset") is None:
        return Cores(None, frozenset(mine))
    return Cores(mine[-1], frozenset(mine[:-1]))


class Remotes:
    """A process of :mod:`benchmarks.scale.remotes`."""

    def __init__(self, folder: Path, first: int, count: int, nodes: int) -> None:
        self.first, self.count = first, count
        self.names = frozenset(f"c{number}" for number in range(first, first + count))
        self._argv = [sys.executable, "-m", "benchmarks.scale.remotes", *map(str, (folder, first, count, nodes))]
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            limit=ANSWER_LIMIT,
        )
        await self._line()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def order(self, **order: Any) -> Any:
        """One order, its answer."""
        async with self._lock:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            return await self._line()

    async def stop(self) -> None:
        """Kill it, stopped or not."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _line(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the remote clusters has ended")
        return json.loads(line)


@dataclass(slots=True)
class Fleet:
    """Everything but the hub.

    Attributes:
        row: ``services`` are per cluster, each publishes all nodes of it.
        services: of the hub cluster, by cluster.
        victims: the remote clusters that may die together.
        remotes: all of them, the victims first.
        flags: further flags of ``hub run``.
    """

    row: Row
    folder: Path
    cores: Cores
    server: ApiServer
    api: Api
    remotes: list[Remotes]
    flags: Sequence[str] = ()
    services: dict[str, list[str]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    """Of Services with another port than the others'."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further keys of the registry."""

    @property
    def victims(self) -> Remotes:
        return self.remotes[0]

    @property
    def others(self) -> list[Remotes]:
        return self.remotes[1:] or self.remotes

    async def order(self, among: Iterable[Remotes] | None = None, **order: Any) -> list[Any]:
        """The same order to all processes of remote clusters, or to some."""
        return await asyncio.gather(*(each.order(**order) for each in (self.remotes if among is None else among)))

    async def addresses(self) -> dict[str, set[str]]:
        """What each Service should publish."""
        found: dict[str, set[str]] = {}
        for answer in await self.order(addresses=True):
            for cluster, addresses in answer.items():
                found |= {service: set(addresses) for service in self.services[cluster]}
        return found

    def write_registry(self) -> None:
        """clusters.yaml, replaced at once; every setting is the product's default."""
        content = {
            "version": 1,
            **self.extra,
            "clusters": [
                {
                    "name": name,
                    "kubeconfig": {"path": f"{name}.kubeconfig"},
                    "allowedCIDRs": ["10.0.0.0/8"],
                    "provider": {"name": "node-addresses"},
                }
                for name in self.services
            ],
            "services": [
                {
                    "name": each,
                    "namespace": NAMESPACE,
                    "sources": [{"cluster": cluster}],
                    "ports": [{"name": "https", "port": self.ports.get(each, PORT), "protocol": "TCP"}],
                }
                for cluster, names in self.services.items()
                for each in names
            ],
        }
        new = self.folder / "clusters.new"
        new.write_text(yaml.safe_dump(content, sort_keys=False))
        new.rename(self.folder / "clusters.yaml")

    def hub(self) -> Process:
        """``hub run``, with a pulse; not started."""
        pin = ["taskset", "--cpu-list", str(self.cores.hub)] if self.cores.hub is not None else []
        argv = [sys.executable, "-m", "benchmarks.scale.pulse", str(self.pulse), "run"]
        access = ["--registry", str(self.folder / "clusters.yaml"), "--kubeconfig", str(kubeconfig(self.folder, "hub"))]
        listen = ["--health-probe-bind-address", "0", "--listen", "0"]
        return Process("hub", [*pin, *argv, *access, *listen, *self.flags], self.folder / "hub.log")

    @property
    def pulse(self) -> Path:
        """Where the hub's process notes its stalls."""
        return self.folder / "pulse.jsonl"

    def used(self) -> dict[str, Usage]:
        """What everybody has used so far, but for the hub."""
        return {
            "remotes": _sum(usage(each.pid) for each in self.remotes),
            "kube-apiserver": usage(self.server.process.pid),
            "etcd": usage(self.server.etcd.pid),
            "harness": _own(),
        }


def _sum(all_: Iterable[Usage]) -> Usage:
    several = list(all_)
    return Usage(
        sum(each.rss for each in several), sum(each.peak for each in several), sum(each.cpu for each in several)
    )


def _own() -> Usage:
    """This process without its children."""
    times = os.times()
    return Usage(0.0, 0.0, times.user + times.system)


@asynccontextmanager
async def fleet(row: Row, folder: Path, flags: Sequence[str] = ()) -> AsyncIterator[Fleet]:
    """Start and fill everything but the hub; nothing is left when it ends.

    Raises:
        KitUnavailable: there are no API servers, and none can be built.
    """
    binaries.ensure("etcd", "kube-apiserver")
    pinned, before = cores(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, pinned.others)  # and all that is started from here
    server = ApiServer("hub", folder / "hub", flags=["--audit-log-path="])
    dead = row.clusters // VICTIMS
    shares = [(0, dead), (dead, row.clusters - dead)] if dead else [(0, row.clusters)]
    remotes = [Remotes(folder, first, count, row.nodes) for first, count in shares]
    try:
        await asyncio.to_thread(server.start)
        server.kubeconfig(kubeconfig(folder, "hub"))
        await asyncio.gather(*(each.start() for each in remotes))
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(Api(server))
            made = Fleet(row, folder, pinned, server, api, remotes, flags)
            made.services = {
                f"c{cluster}": [f"svc-{cluster}-{number}" for number in range(row.services)]
                for cluster in range(row.clusters)
            }
            await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            path = f"/api/v1/namespaces/{NAMESPACE}/services"
            names = [each for several in made.services.values() for each in several]
            await bounded((partial(api.call, "POST", path, service(each)) for each in names), 16)
            made.write_registry()
            yield made
    finally:
        for each in remotes:
            await each.stop()
        server.stop()
        os.sched_setaffinity(0, before)
