"""The simulated world that the machine acts on: a hub cluster, remote clusters, clouds, and hubs that run and die."""

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

import hub_provider_service_copy  # noqa: F401 - here, so that no history is the one that imports it
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Hub, Options, assemble
from hub.errors import ClusterUnreachable, HubError
from hub.model import TargetKey
from hub.observe.local.approvals import config_map
from hub.registry import isolated, load
from hub.registry.file import Loaded, read
from hub.runtime.clock import rfc3339
from tests.model import cloud
from tests.model.judge import UNREACHABLE_AFTER, WRITER, Judge
from tests.model.loop import PROCESS, VirtualClock, VirtualLoop
from tests.support.loops import SameLoop

NAMES = ("a", "b", "c")
LOCAL = "local"
SERVICES: Mapping[str, tuple[str, ...]] = {"one": ("a", "b"), "two": ("b", "c"), "three": ("c",), "copy": (LOCAL,)}
"""With the sources each may have; ``local`` is a copy of Service inner/pods of the hub cluster."""
FAMILIES: Mapping[str, tuple[str, ...]] = {"three": ("IPv4", "IPv6")}
"""Of Services that have others than IPv4."""
GRACE = 20.0
"""--removal-grace of the hubs here."""
SHARED = "10.50.0.{}"
"""Addresses that every cluster may give to its machines: rightly only one of them has it."""
FAILOVER = {"strategy": "failover", "failover": {"after": "10s", "failbackAfter": "40s"}}
STEP = 1000
"""By so much resourceVersions grow with a change, as those of a busy cluster: one that is restored from a backup is
far behind, and not soon where it was."""
PODS = {
    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    "kubernetes.io/service-name": "pods",
}
FOREIGN = {"endpointslice.kubernetes.io/managed-by": "somebody", "kubernetes.io/service-name": "one"}


def _checked(content: bytes, path: Any) -> Loaded:
    """What the process for the check does, in this one: a process has no place in virtual time."""
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
    """What the registry says of one cluster beside its name."""

    present: bool = True
    state: str = "active"
    unreachable: str = "keep"
    excluded: set[str] = field(default_factory=set)

    @property
    def frozen(self) -> bool:
        """Nothing of it is touched."""
        return self.present and self.state == "frozen"


class World:
    """Everything, from one seed; :meth:`close` when done.

    Attributes:
        judge: looks at each write in the hub cluster, at once.
        processes: hubs that run.
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
        """Clusters that make no statement now -> how."""
        self.entries = {name: Entry() for name in NAMES}
        self.sources = {name: list(each) for name, each in SERVICES.items()}
        """What the registry says; a service that is not in it is not in the registry."""
        self.failover: set[str] = set()
        """Services with strategy failover."""
        self.pods: dict[str, bool] = {"10.60.0.1": True, "10.60.0.2": True}
        """Addresses of Service inner/pods -> ready."""
        self.troubled = 0.0
        """When something last happened that may keep a hub from writing."""
        self.readable = True
        """Whether the registry's file can be used."""
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
        """Let the judge know whose request it is that changes something."""
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
        """Run until a coroutine is done."""
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(what)

    def close(self) -> None:
        """End everything."""
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
        while left := asyncio.all_tasks() - {asyncio.current_task()}:  # what is cancelled may start others to clean up
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # --- time and hubs ------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time go by; the judge looks every few seconds at what is true meanwhile."""
        left = seconds
        self.judge.breathe()
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
            for each in ("model-cloud", "service-copy"):
                hub.catalog.load(each)
            process.hub = hub
            await hub.run(process.stop)

    def crash(self, name: str) -> None:
        """Kill it with -9: nothing that has not left it arrives any more."""
        self.trouble()
        self.loop.kill(name)
        process = self.processes.pop(name)
        process.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, *(() if process.hub is not None else (HubError,))):
            self.do(process.task)

    def stop(self, name: str) -> None:
        """SIGTERM; kill -9 where that is late."""
        process = self.processes[name]
        process.stop.set()
        self.do(asyncio.wait({process.task}, timeout=5.0))
        if process.task.done() or process.hub is not None:
            assert process.task.done(), f"{name} does not stop within 5 s"
        self.crash(name)

    def crash_at(self, write: int) -> None:
        """Kill whoever makes the n-th write of a slice from now, right when it is committed."""
        self._crash = (write, "")

    def written(self) -> None:
        """A hub has written a slice (the judge says so, while the write is being committed)."""
        if self._crash is None:
            return
        count, _ = self._crash
        self._crash = (count - 1, "") if count > 1 else None
        if count == 1:
            for name, process in self.processes.items():
                if process.hub is not None and process.hub.writing:
                    self.loop.kill(name)

    def collect(self) -> None:
        """Bury hubs that were killed, and start one where none is left; a hub that ended by itself is a defect."""
        for name, process in list(self.processes.items()):
            if name in self.loop.dead:
                self.crash(name)
                self.start()
            elif process.task.done():
                self.crash(name)  # raises why
                assert process.hub is None, f"{name} ended by itself"
                self.start()  # it could not begin: neither the file nor the hub cluster was of use; it is tried again

    # --- the hub cluster ----------------------------------------------------------------------------

    def set_wall_clock(self, seconds: float) -> None:
        """So far from the truth, of the hub's machine and of the API servers'."""
        self.clock.jump = seconds
        self._ahead = max(self._ahead, seconds)

    def write_registry(self) -> None:
        """What ``entries`` and ``sources`` say, as a file."""
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
                "sources": [_source(each) for each in sources if each == LOCAL or self.entries[each].present],
                **(FAILOVER if name in self.failover else {}),
                "ports": [{"port": 30443}],
                "endpointsPerSlice": 3,
            }
            for name, sources in self.sources.items()
        ]
        services = [each for each in services if each["sources"]]
        new = self.folder / ".new"
        new.write_text(json.dumps({"version": 1, "clusters": clusters, "services": services}))
        new.rename(self.folder / "clusters.yaml")
        self.readable = True
        self.trouble()
        self.judge.observe()

    def break_registry(self) -> None:
        """Somebody saves half a file."""
        path = self.folder / "clusters.yaml"
        path.write_text(path.read_text()[:-7])
        self.readable = False
        self.trouble()
        self.judge.observe()

    def wanted(self) -> set[tuple[str, str]]:
        """(service, cluster) pairs of the registry's file."""
        return {
            (name, each)
            for name, sources in self.sources.items()
            for each in sources
            if each == LOCAL or self.entries[each].present
        }

    @staticmethod
    def possible() -> list[tuple[str, str]]:
        """All pairs that a registry may name."""
        return [(service, cluster) for service in SERVICES for cluster in SERVICES[service]]

    def put_service(self, name: str) -> None:
        """Create one of the targets."""
        self.hub.put(make_service("edge", name, families=FAMILIES.get(name, ("IPv4",))))

    def put_pods(self) -> None:
        """What Kubernetes' own controller says of Service inner/pods."""
        endpoints = [{"addresses": [each], "conditions": {"ready": ready}} for each, ready in self.pods.items()]
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
        """Something happens that may keep a hub from writing for a while."""
        self.troubled = self.loop.time()

    @property
    def broken(self) -> bool:
        """A fault of the hub cluster is under way."""
        return bool(self.hub._faults._faults)

    def writer(self) -> Process | None:
        """A hub that thinks that it is the one that writes."""
        running = (each for each in self.processes.values() if each.name not in self.loop.dead)
        return next((each for each in running if each.hub is not None and each.hub.writing), None)

    def approve(self) -> bool:
        """An operator approves whatever the hub withholds; whether there was anything."""
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
        """Another controller's slice of Service ``one``."""
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "one-foreign", "namespace": "edge", "labels": dict(FOREIGN)},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"port": 30443}],
        }

    def tamper(self, number: int, what: str) -> None:
        """Somebody else changes one of the hub's slices."""
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
        """Somebody else holds the Lease from now on, and does not renew it."""

        def steal(obj: dict[str, Any]) -> None:
            obj["spec"]["holderIdentity"] = "somebody"

        self.trouble()
        for each in self.hub.leases.list(namespace="default"):
            self.hub.leases.update(each["metadata"]["name"], steal, namespace="default")

    def cut_off_lease(self) -> None:
        """The one that writes cannot reach its Lease, and nothing else is wrong, until it has lost it."""
        process = self.writer()
        if process is None or process.hub is None:
            return
        self.trouble()
        elector = process.hub.elector
        store, elector._store = elector._store, _OutOfReach()  # type: ignore[assignment]
        self.advance(20.0)
        elector._store = store

    def heal(self) -> None:
        """Everything answers again, every Service is there, the file can be read; one hub is left at least."""
        self._crash = None
        # Not back: a node that became not Ready in the future has its grace from then on.
        self.clock.jump = self._ahead
        self.hub.heal()
        for name in list(self.down):
            self.heal_cluster(name)
        for known in self.clouds.values():
            known.mode = "ok"
        with self.judge.world():
            for each in self.hub.slices.list(namespace="edge"):
                labels = each["metadata"]["labels"]
                if labels["endpointslice.kubernetes.io/managed-by"] != "somebody" and (
                    "endpointslice-hub/owner" not in labels
                ):
                    self.hub.slices.delete(each["metadata"]["name"], namespace="edge")
            there = {each["metadata"]["name"] for each in self.hub.services.list(namespace="edge")}
            for name in sorted(SERVICES.keys() - there):
                self.put_service(name)
        self.write_registry()
        self.judge.observe()
        if not self.processes:
            self.start()

    # --- remote clusters ----------------------------------------------------------------------------

    def set_node(self, cluster: str, name: str, *, ready: bool = True) -> None:
        """Create a node, or say whether it is ready."""
        sim = self.remotes[cluster]
        known = {each["metadata"]["name"] for each in sim.nodes.list()}
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
        """Its kubelet says that all is as before."""
        self._grow(cluster)
        self.remotes[cluster].nodes.heartbeat(name)

    def _grow(self, cluster: str) -> None:
        if self._noticed(cluster):
            self.remotes[cluster]._store.version += STEP

    def _noticed(self, cluster: str) -> bool:
        """Whether every hub knows that the cluster's past was taken back, if it was."""
        units = [each.hub.fleet.clusters.get(cluster) for each in self.processes.values() if each.hub is not None]
        known = [each._reflector.resource_version for each in units if each is not None and each._reflector is not None]
        return all(int(each or "0") <= self.remotes[cluster].version for each in known)

    def _moved(self, cluster: str) -> None:
        if self._noticed(cluster):
            self._marks[cluster].append(self.remotes[cluster].version)
        self.judge.observe()

    def nodes(self, cluster: str) -> dict[str, bool]:
        """Name -> ready, as the API server has it."""
        found: dict[str, bool] = {}
        for each in self.remotes[cluster].nodes.list():
            status = next(c["status"] for c in each["status"]["conditions"] if c["type"] == "Ready")
            found[each["metadata"]["name"]] = status == "True"
        return found

    def turn_back(self, cluster: str) -> None:
        """As when etcd is restored from a backup, which nobody does twice at a time."""
        marks = self._marks[cluster]
        if len(marks) > 1 and self._noticed(cluster):
            self.remotes[cluster].restore(marks[len(marks) // 2])
            del marks[len(marks) // 2 :]
        self.judge.observe()

    def forgotten(self, cluster: str) -> None:
        """Its past is: there is nothing to turn back to."""
        self._marks[cluster] = [self.remotes[cluster].version]

    def break_cluster(self, cluster: str, how: str) -> None:
        """From now on it makes no statement."""
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
        """It answers again."""
        sim = self.remotes[cluster]
        self.do(sim.start())
        sim.heal()
        self.down.pop(cluster, None)
        self.judge.observe()


class _OutOfReach:
    """A Lease that no request arrives at."""

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
    """Everything random in the hub and in the API servers comes from the seed."""
    plain = random.Random

    class Seeded(plain):  # type: ignore[valid-type,misc]
        def __init__(self, seed: Any = None) -> None:
            super().__init__(rng.getrandbits(64) if seed is None else seed)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    with mock.patch.object(random, "Random", Seeded), mock.patch.object(uuid, "uuid4", uuid4):
        yield
