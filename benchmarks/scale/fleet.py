"""The processes of a scale run: remote clusters, a real hub cluster and the hub. They are pinned to cores."""

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
CLUSTERS_PER_VICTIM = 10
"""One in ten clusters is a victim: it is in the process that is frozen, or refuses connections, during a run."""
ANSWER_LIMIT = 256 << 20
STOP_GRACE = 15.0


@dataclass(frozen=True, slots=True)
class Cores:
    """The core of the hub, and the cores of all other processes. ``hub`` is None if processes are not pinned."""

    hub: int | None
    others: frozenset[int]

    def __str__(self) -> str:
        if self.hub is None:
            return "not pinned: one core"
        return f"the hub alone on one core, everything else on the other {len(self.others)}"


def cores() -> Cores:
    """Divide the cores that this process may use."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2 or shutil.which("taskset") is None:
        return Cores(None, frozenset(mine))
    return Cores(mine[-1], frozenset(mine[:-1]))


class Remotes:
    """A process of :mod:`benchmarks.scale.remotes`, which simulates ``count`` clusters."""

    def __init__(self, folder: Path, first: int, count: int, nodes: int) -> None:
        self.first, self.count = first, count
        self.names = frozenset(f"c{number}" for number in range(first, first + count))
        self._argv = [sys.executable, "-m", "benchmarks.scale.remotes", *map(str, (folder, first, count, nodes))]
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Start the process, and wait until it serves."""
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

    async def command(self, **command: Any) -> Any:
        """Send a command and return the answer."""
        async with self._lock:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            return await self._line()

    async def stop(self) -> None:
        """Kill the process, even if it is frozen."""
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
    """All processes except the hub.

    Attributes:
        remotes: the processes of remote clusters, the victims first.
        flags: further flags of ``hub run``.
        services: names of the Services that publish the nodes of each remote cluster.
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
    """Ports of Services with another port than ``PORT``."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further keys of the registry."""

    @property
    def victims(self) -> Remotes:
        """The process that is frozen or refuses connections during a run."""
        return self.remotes[0]

    @property
    def others(self) -> list[Remotes]:
        return self.remotes[1:] or self.remotes

    async def command(self, among: Iterable[Remotes] | None = None, **command: Any) -> list[Any]:
        """Send a command to all processes of remote clusters, or to those in ``among``. Returns their answers."""
        targets = self.remotes if among is None else among
        return await asyncio.gather(*(remotes.command(**command) for remotes in targets))

    async def addresses(self) -> dict[str, set[str]]:
        """Return the addresses that each Service must publish."""
        found: dict[str, set[str]] = {}
        for answer in await self.command(addresses=True):
            for cluster, addresses in answer.items():
                found |= {name: set(addresses) for name in self.services[cluster]}
        return found

    def write_registry(self) -> None:
        """Replace clusters.yaml atomically. All settings have their defaults."""
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
                    "name": service,
                    "namespace": NAMESPACE,
                    "sources": [{"cluster": cluster}],
                    "ports": [{"name": "https", "port": self.ports.get(service, PORT), "protocol": "TCP"}],
                }
                for cluster, names in self.services.items()
                for service in names
            ],
        }
        new = self.folder / "clusters.new"
        new.write_text(yaml.safe_dump(content, sort_keys=False))
        new.rename(self.folder / "clusters.yaml")

    def hub(self) -> Process:
        """Return the process of ``hub run``, which records its stalls; not started."""
        pin = ["taskset", "--cpu-list", str(self.cores.hub)] if self.cores.hub is not None else []
        argv = [sys.executable, "-m", "benchmarks.scale.loop_stalls", str(self.stalls), "run"]
        access = ["--registry", str(self.folder / "clusters.yaml"), "--kubeconfig", str(kubeconfig(self.folder, "hub"))]
        listen = ["--health-probe-bind-address", "0", "--listen", "0"]
        return Process("hub", [*pin, *argv, *access, *listen, *self.flags], self.folder / "hub.log")

    @property
    def stalls(self) -> Path:
        """The file in which the hub's process records its stalls."""
        return self.folder / "stalls.jsonl"

    def used(self) -> dict[str, Usage]:
        """Return what all processes except the hub have used so far."""
        return {
            "remotes": _sum(usage(remotes.pid) for remotes in self.remotes),
            "kube-apiserver": usage(self.server.process.pid),
            "etcd": usage(self.server.etcd.pid),
            "harness": _own(),
        }


def _sum(usages: Iterable[Usage]) -> Usage:
    several = list(usages)
    return Usage(
        sum(usage_.rss for usage_ in several),
        sum(usage_.peak for usage_ in several),
        sum(usage_.cpu for usage_ in several),
    )


def _own() -> Usage:
    """Return the CPU of this process without its children."""
    times = os.times()
    return Usage(0.0, 0.0, times.user + times.system)


@asynccontextmanager
async def fleet(row: Row, folder: Path, flags: Sequence[str] = ()) -> AsyncIterator[Fleet]:
    """Start and fill everything except the hub. Stops all processes at the end.

    Raises:
        KitUnavailable: the API server is missing and cannot be built.
    """
    binaries.ensure("etcd", "kube-apiserver")
    pinned, before = cores(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, pinned.others)  # child processes inherit this
    server = ApiServer("hub", folder / "hub", flags=["--audit-log-path="])
    victims = row.clusters // CLUSTERS_PER_VICTIM
    shares = [(0, victims), (victims, row.clusters - victims)] if victims else [(0, row.clusters)]
    remotes = [Remotes(folder, first, count, row.nodes) for first, count in shares]
    try:
        await asyncio.to_thread(server.start)
        server.kubeconfig(kubeconfig(folder, "hub"))
        await asyncio.gather(*(process.start() for process in remotes))
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(Api(server))
            filled = Fleet(row, folder, pinned, server, api, remotes, flags)
            filled.services = {
                f"c{cluster}": [f"svc-{cluster}-{number}" for number in range(row.services)]
                for cluster in range(row.clusters)
            }
            await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            path = f"/api/v1/namespaces/{NAMESPACE}/services"
            names = [name for services in filled.services.values() for name in services]
            await bounded((partial(api.call, "POST", path, service(name)) for name in names), 16)
            filled.write_registry()
            yield filled
    finally:
        for process in remotes:
            await process.stop()
        server.stop()
        os.sched_setaffinity(0, before)
