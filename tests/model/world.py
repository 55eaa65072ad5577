"""The simulated world of the machine: a hub cluster, remote clusters, clouds, and hubs that start and die."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import random
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import hub_provider_service_copy  # noqa: F401 - imported here, so that no history depends on the first import
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Hub, Options, assemble
from hub.errors import ClusterUnreachable, HubError
from hub.model import TargetKey
from hub.observe.local.approvals import config_map
from hub.registry import isolated, load
from hub.registry.file import Loaded, read
from hub.runtime.clock import rfc3339
from tests.model import cloud
from tests.model.judge import DRAINING, UNREACHABLE_AFTER, WRITER, Judge
from tests.model.loop import PROCESS, VirtualClock, VirtualLoop
from tests.support.loops import SameLoop

NAMES = ("a", "b", "c")
LOCAL = "local"
SERVICES: Mapping[str, tuple[str, ...]] = {"one": ("a", "b"), "two": ("b", "c"), "three": ("c",), "copy": (LOCAL,)}
"""Services with their possible sources; ``local`` is a copy of Service inner/pods in the hub cluster."""
FAMILIES: Mapping[str, tuple[str, ...]] = {"three": ("IPv4", "IPv6")}
"""The families of Services that have others than IPv4."""
GRACE = 20.0
"""The hubs' --removal-grace."""
SHARED = "10.50.0.{}"
"""Addresses that every cluster may give to its machines, although only one cluster rightly has them."""
DRAIN = "10s"
FAILOVER = {"strategy": "failover", "failover": {"after": "10s", "failbackAfter": "40s"}}
STEP = 1000
"""resourceVersions grow by this number per change, as in a busy cluster, so that a cluster restored from a backup stays
behind for long."""
PODS = {
    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    "kubernetes.io/service-name": "pods",
}
FOREIGN = {"endpointslice.kubernetes.io/managed-by": "somebody", "kubernetes.io/service-name": "one"}


def _checked(content: bytes, path: Any) -> Loaded:
    """Check a registry in this process; the hub's own child process for that has no place in virtual time."""
    return replace(load.loads(content, path), content=content)


class _Check:
    def __init__(self, path: str) -> None:
        self._path = path

    def outcome(self) -> Loaded:
        return _checked(read(self._path), self._path)


@dataclass(slots=True)
class Process:
    """A hub that was started."""

    name: str
    stop: asyncio.Event
    started: float
    hub: Hub | None = None
    task: asyncio.Task[None] = field(init=False)


@dataclass(slots=True)
class Entry:
    """A cluster's registry entry without its name."""

    present: bool = True
    state: str = "active"
    unreachable: str = "keep"
    excluded: set[str] = field(default_factory=set)

    @property
    def frozen(self) -> bool:
        """Whether its slices must not be touched."""
        return self.present and self.state == "frozen"


class World:
    """All simulated parts, from one seed. Call :meth:`close` at the end.

    Attributes:
        judge: judges each write in the hub cluster at once.
        processes: running hubs.
    """

    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop(seed)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(_seeded(self.loop.rng))
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hub-model-")))
        self._install()
        self.clock = VirtualClock(self.loop)
        self.hub = SimulatedCluster("hub", controllers=True, clock=self.clock)
        self._tell_writers()
        self.remotes = {name: SimulatedCluster(name, clock=self.clock) for name in NAMES}
        self.clouds = {name: cloud.Cloud() for name in NAMES}
        cloud.CLOUDS.clear()
        cloud.CLOUDS.update(self.clouds)
        self.down: dict[str, str] = {}
        """Clusters that give no certain answer now -> why."""
        self.entries = {name: Entry() for name in NAMES}
        self.sources = {name: list(clusters) for name, clusters in SERVICES.items()}
        """The registry's Services with their sources; other Services are not in the registry."""
        self.failover: set[str] = set()
        """Services with strategy failover."""
        self.pods: dict[str, bool] = {"10.60.0.1": True, "10.60.0.2": True}
        """Addresses of Service inner/pods -> ready."""
        self.troubled = 0.0
        """The last time at which something happened that may keep a hub from writing."""
        self.readable = True
        """Whether the registry file is usable."""
        self.processes: dict[str, Process] = {}
        self.started = 0
        self._marks: dict[str, list[int]] = {name: [] for name in NAMES}
        self._ahead = 0.0
        self._crash: tuple[int, str] | None = None
        self.judge = Judge(self)
        self.judge.attach(self.hub)
        self.do(self._begin())

    def _install(self) -> None:
        info = self.folder / "hub_model_cloud-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hub-model-cloud\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[hub.providers]\nmodel-cloud = tests.model.cloud\n")
        sys.path.insert(0, str(self.folder))
        self._stack.callback(sys.path.remove, str(self.folder))
        self._stack.enter_context(mock.patch.object(isolated, "loads", _checked))

    def _tell_writers(self) -> None:
        """Tell the judge which process sends each request to the hub cluster."""
        handle = self.hub._http.handle

        async def told(request: Any) -> Any:
            WRITER.set(request.transport.peer.process if request.transport is not None else "")
            return await handle(request)

        self._stack.enter_context(mock.patch.object(self.hub._http, "handle", told))

    async def _begin(self) -> None:
        for sim in (self.hub, *self.remotes.values()):
            await sim.start()
            sim.write_kubeconfig(self.folder / sim.name)
        with self.judge.world():
            for name in SERVICES:
                self.put_service(name)
            self.hub.slices.add(self.foreign_slice("10.66.0.1"))
            self.hub.put(make_service("inner", "pods"))
        self.put_pods()
        self.write_registry()

    def do(self, what: Any) -> Any:
        """Run the loop until a coroutine is done."""
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(what)

    def close(self) -> None:
        """Stop all parts."""
        for name in list(self.processes):
            self.crash(name)
        self.do(self._end())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)
        self._stack.close()

    async def _end(self) -> None:
        for sim in (self.hub, *self.remotes.values()):
            await sim.stop()
        while left := asyncio.all_tasks() - {asyncio.current_task()}:  # cancelled tasks may start others to clean up
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # --- time and hubs ------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass; the judge observes the world every few seconds."""
        left = seconds
        self.judge.start_quiet_time()
        while left > 0:
            part = min(left, 5.0)
            self.judge.observe()
            self.do(asyncio.sleep(part))
            left -= part
            self.collect()
        self.judge.observe()
        self.judge.verdict()

    def start(self) -> str:
        """Start another hub; returns its name."""
        self.started += 1
        name = f"hub-{self.started}"
        context = contextvars.copy_context()
        context.run(PROCESS.set, name)
        stop = asyncio.Event()
        process = self.processes[name] = Process(name, stop, self.loop.time())
        self.trouble()
        process.task = self.loop.create_task(self._run(process), name=name, context=context)
        return name

    async def _run(self, process: Process) -> None:
        path = str(self.folder / "clusters.yaml")
        options = Options(path, str(self.folder / "hub"), namespace="default", removal_grace=GRACE, fall_back=True)
        async with assemble(options, self.clock, _Check(path), SameLoop) as hub:  # type: ignore[arg-type]  # quacks like one
            for provider in ("model-cloud", "service-copy"):
                hub.catalog.load(provider)
            process.hub = hub
            await hub.run(process.stop)

    def crash(self, name: str) -> None:
        """Kill a hub (SIGKILL): data that has not left it never arrives."""
        self.trouble()
        self.loop.kill(name)
        process = self.processes.pop(name)
        process.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, *(() if process.hub is not None else (HubError,))):
            self.do(process.task)

    def stop(self, name: str) -> None:
        """Stop a hub (SIGTERM); kill it if that takes too long."""
        process = self.processes[name]
        process.stop.set()
        self.do(asyncio.wait({process.task}, timeout=5.0))
        if process.task.done() or process.hub is not None:
            assert process.task.done(), f"{name} does not stop within 5 s"
        self.crash(name)

    def crash_at(self, write: int) -> None:
        """Kill the hub that makes the n-th write of a slice from now, when the write is committed."""
        self._crash = (write, "")

    def written(self) -> None:
        """Called by the judge while a hub's write of a slice is committed."""
        if self._crash is None:
            return
        count, _ = self._crash
        self._crash = (count - 1, "") if count > 1 else None
        if count == 1:
            for name, process in self.processes.items():
                if process.hub is not None and process.hub.writing:
                    self.loop.kill(name)

    def collect(self) -> None:
        """Remove killed hubs, and start one if none is left. A hub that ended by itself is a defect."""
        for name, process in list(self.processes.items()):
            if name in self.loop.dead:
                self.crash(name)
                self.start()
            elif process.task.done():
                self.crash(name)  # raises the error that ended it
                assert process.hub is None, f"{name} ended by itself"
                self.start()  # it could not start, as neither the file nor the hub cluster was usable; try again

    # --- the hub cluster ----------------------------------------------------------------------------

    def set_wall_clock(self, seconds: float) -> None:
        """Set the difference to the true time, for the hub's machine and the API servers."""
        self.clock.jump = seconds
        self._ahead = max(self._ahead, seconds)

    def write_registry(self) -> None:
        """Write ``entries`` and ``sources`` as the registry file."""
        clusters = [
            {
                "name": name,
                "kubeconfig": {"path": name},
                "allowedCIDRs": ["10.0.0.0/8", "fd10::/16"],
                "provider": {"name": "model-cloud", "config": {"account": name}},
                "state": entry.state,
                "unreachable": {"after": f"{UNREACHABLE_AFTER:g}s", "policy": entry.unreachable},
                "nodes": {"notReadyGrace": "30s", "exclude": {"addresses": sorted(entry.excluded)}},
            }
            for name, entry in self.entries.items()
            if entry.present
        ]
        services = [
            {
                "name": name,
                "namespace": "edge",
                "sources": [_source(source) for source in sources if source == LOCAL or self.entries[source].present],
                **(FAILOVER if name in self.failover else {}),
                "ports": [{"port": 30443}],
                "endpointsPerSlice": 3,
                **({"drain": DRAIN} if name in DRAINING else {}),
            }
            for name, sources in self.sources.items()
        ]
        services = [service for service in services if service["sources"]]
        new = self.folder / ".new"
        new.write_text(json.dumps({"version": 1, "clusters": clusters, "services": services}))
        new.rename(self.folder / "clusters.yaml")
        self.readable = True
        self.trouble()
        self.judge.observe()

    def break_registry(self) -> None:
        """Write half a registry file."""
        path = self.folder / "clusters.yaml"
        path.write_text(path.read_text()[:-7])
        self.readable = False
        self.trouble()
        self.judge.observe()

    def wanted(self) -> set[tuple[str, str]]:
        """(service, cluster) pairs in the registry file."""
        return {
            (name, source)
            for name, sources in self.sources.items()
            for source in sources
            if source == LOCAL or self.entries[source].present
        }

    @staticmethod
    def possible() -> list[tuple[str, str]]:
        """All pairs that a registry may have."""
        return [(service, cluster) for service in SERVICES for cluster in SERVICES[service]]

    def put_service(self, name: str) -> None:
        """Create one of the target Services."""
        self.hub.put(make_service("edge", name, families=FAMILIES.get(name, ("IPv4",))))

    def put_pods(self) -> None:
        """Write the slice of Service inner/pods, as Kubernetes' own controller does."""
        endpoints = [{"addresses": [address], "conditions": {"ready": ready}} for address, ready in self.pods.items()]
        with self.judge.world():
            self.hub.slices.put(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {"name": "pods-1", "namespace": "inner", "labels": dict(PODS)},
                    "addressType": "IPv4",
                    "endpoints": endpoints,
                    "ports": [{"port": 8443}],
                }
            )
        self.judge.observe()

    def trouble(self) -> None:
        """Record that something happened that may keep a hub from writing for a while."""
        self.troubled = self.loop.time()

    @property
    def broken(self) -> bool:
        """Whether the hub cluster has a fault."""
        return bool(self.hub._faults._faults)

    def writer(self) -> Process | None:
        """A hub that believes it is the leader; None if there is none."""
        running = (process for process in self.processes.values() if process.name not in self.loop.dead)
        return next((process for process in running if process.hub is not None and process.hub.writing), None)

    def approve(self) -> bool:
        """Approve all withheld removals; returns whether there were any."""
        process = self.writer()
        if process is None or process.hub is None:
            return False
        hashes: dict[str, tuple[str, str]] = {}
        for name in SERVICES:
            last = process.hub.reconciler.last(TargetKey("edge", name))
            for key, held in (last.withheld if last is not None else {}).items():
                hashes[held.hash] = ("service", f"edge/{name}")
                self.judge.approved((name, key.cluster, key.family), held.addresses)
        if (dropped := process.hub.reconciler.withheld()) is not None:
            hashes[dropped.hash] = ("registry", "")
        expires = rfc3339(self.clock.wall() + 3600.0)
        if hashes:
            entries = {
                digest: json.dumps({"kind": kind, "target": target, "by": "somebody", "expires": expires})
                for digest, (kind, target) in hashes.items()
            }
            meta = {"name": config_map("default"), "namespace": "default"}
            self.hub.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": entries})
        return bool(hashes)

    def foreign_slice(self, address: str) -> dict[str, Any]:
        """A slice of Service ``one`` that another controller wrote."""
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "one-foreign", "namespace": "edge", "labels": dict(FOREIGN)},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"port": 30443}],
        }

    def tamper(self, number: int, what: str) -> None:
        """Change one of the hub's slices, as someone else."""
        ours = sorted(self.judge.slices)
        if not ours:
            return
        name = ours[number % len(ours)].rpartition("/")[2]

        def edit(obj: dict[str, Any]) -> None:
            endpoints = obj.get("endpoints") or []
            if what == "empty":
                obj["endpoints"] = []
            elif what == "less":
                obj["endpoints"] = endpoints[1:]
            elif what == "more":
                address = f"10.66.1.{number}" if obj["addressType"] == "IPv4" else f"fd10::66:1:{number}"
                extra = {"addresses": [address], "conditions": {"ready": True}}
                obj["endpoints"] = [*endpoints, extra]
            elif what == "port":
                obj["ports"] = [{"port": 1}]
            else:
                del obj["metadata"]["labels"]["endpointslice-hub/owner"]

        self.trouble()
        with self.judge.world():
            if what == "delete":
                self.hub.slices.delete(name, namespace="edge")
            else:
                self.hub.slices.update(name, edit, namespace="edge")

    def steal_lease(self) -> None:
        """Let another holder take the Lease, which never renews it."""

        def steal(obj: dict[str, Any]) -> None:
            obj["spec"]["holderIdentity"] = "somebody"

        self.trouble()
        for lease in self.hub.leases.list(namespace="default"):
            self.hub.leases.update(lease["metadata"]["name"], steal, namespace="default")

    def cut_off_lease(self) -> None:
        """Keep the leader from its Lease, and from nothing else, until it has lost it."""
        process = self.writer()
        if process is None or process.hub is None:
            return
        self.trouble()
        elector = process.hub.elector
        store, elector._store = elector._store, _OutOfReach()  # type: ignore[assignment]
        self.advance(20.0)
        elector._store = store

    def heal(self) -> None:
        """End all faults, restore the Services and the file, and keep at least one hub running."""
        self._crash = None
        # The clock does not go back, since a node that became not Ready in the future has its grace from then on.
        self.clock.jump = self._ahead
        self.hub.heal()
        for name in list(self.down):
            self.heal_cluster(name)
        for known in self.clouds.values():
            known.mode = "ok"
        with self.judge.world():
            for slice_ in self.hub.slices.list(namespace="edge"):
                labels = slice_["metadata"]["labels"]
                if labels["endpointslice.kubernetes.io/managed-by"] != "somebody" and (
                    "endpointslice-hub/owner" not in labels
                ):
                    self.hub.slices.delete(slice_["metadata"]["name"], namespace="edge")
            there = {service["metadata"]["name"] for service in self.hub.services.list(namespace="edge")}
            for name in sorted(SERVICES.keys() - there):
                self.put_service(name)
        self.write_registry()
        self.judge.observe()
        if not self.processes:
            self.start()

    # --- remote clusters ----------------------------------------------------------------------------

    def set_node(self, cluster: str, name: str, *, ready: bool = True) -> None:
        """Create a node, or change its readiness."""
        sim = self.remotes[cluster]
        known = {node["metadata"]["name"] for node in sim.nodes.list()}
        self._grow(cluster)
        if name in known:
            sim.nodes.set_ready(name, ready)
        else:
            sim.nodes.add(make_node(name, "172.16.0.1", ready=ready))
        self._moved(cluster)

    def drop_node(self, cluster: str, name: str) -> None:
        """Delete a node."""
        self._grow(cluster)
        self.remotes[cluster].nodes.delete(name)
        self._moved(cluster)

    def report(self, cluster: str, name: str) -> None:
        """Send a node's heartbeat."""
        self._grow(cluster)
        self.remotes[cluster].nodes.heartbeat(name)

    def _grow(self, cluster: str) -> None:
        if self._noticed(cluster):
            self.remotes[cluster]._store.version += STEP

    def _noticed(self, cluster: str) -> bool:
        """Whether every hub has noticed that the cluster was restored from a backup, if it was."""
        units = [
            process.hub.fleet.clusters.get(cluster) for process in self.processes.values() if process.hub is not None
        ]
        known = [unit._reflector.resource_version for unit in units if unit is not None and unit._reflector is not None]
        return all(int(version or "0") <= self.remotes[cluster].version for version in known)

    def _moved(self, cluster: str) -> None:
        if self._noticed(cluster):
            self._marks[cluster].append(self.remotes[cluster].version)
        self.judge.observe()

    def nodes(self, cluster: str) -> dict[str, bool]:
        """Name -> ready, on the API server."""
        found: dict[str, bool] = {}
        for node in self.remotes[cluster].nodes.list():
            status = next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready")
            found[node["metadata"]["name"]] = status == "True"
        return found

    def turn_back(self, cluster: str) -> None:
        """Restore the cluster's etcd from a backup, unless hubs have not noticed an earlier restore."""
        marks = self._marks[cluster]
        if len(marks) > 1 and self._noticed(cluster):
            self.remotes[cluster].restore(marks[len(marks) // 2])
            del marks[len(marks) // 2 :]
        self.judge.observe()

    def forgotten(self, cluster: str) -> None:
        """Record that the cluster lost its history, so that it has no backup to restore."""
        self._marks[cluster] = [self.remotes[cluster].version]

    def break_cluster(self, cluster: str, how: str) -> None:
        """Break a cluster: it gives no certain answer from now on."""
        self.heal_cluster(cluster)
        sim = self.remotes[cluster]
        self.down[cluster] = how
        if how == "dead":
            self.do(sim.stop())
        elif how == "hang":
            sim.hang()
        elif how == "garbage":
            sim.garbage(None)
            sim.cut_stream(how="half-line")
        else:
            sim.refuse(int(how), retry_after=2.0)
            sim.cut_stream()
        self.judge.observe()

    def heal_cluster(self, cluster: str) -> None:
        """Let a cluster answer again."""
        sim = self.remotes[cluster]
        self.do(sim.start())
        sim.heal()
        self.down.pop(cluster, None)
        self.judge.observe()


class _OutOfReach:
    """A Lease API that no request reaches."""

    def __getattr__(self, _: str) -> Callable[..., Awaitable[Any]]:
        async def refused(*_: object) -> Any:
            raise ClusterUnreachable("connection refused", "refused")

        return refused


def _source(cluster: str) -> dict[str, Any]:
    if cluster != LOCAL:
        return {"cluster": cluster}
    return {"cluster": LOCAL, "provider": {"name": "service-copy", "config": {"namespace": "inner", "name": "pods"}}}


@contextlib.contextmanager
def _seeded(rng: random.Random) -> Iterator[None]:
    """Derive all random numbers in the hub and in the API servers from the seed."""
    plain = random.Random

    class Seeded(plain):  # type: ignore[valid-type,misc]
        def __init__(self, seed: Any = None) -> None:
            super().__init__(rng.getrandbits(64) if seed is None else seed)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    with mock.patch.object(random, "Random", Seeded), mock.patch.object(uuid, "uuid4", uuid4):
        yield
