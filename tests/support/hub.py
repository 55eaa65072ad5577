"""The real hub with real API servers: in a thread of this process, or as a process.

Tests are plain blocking code. They observe the hub from outside: the API servers, their audit logs, and, read only,
the state of a hub in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from hub.app.hub import Hub, Options, assemble
from hub.cli.options import BindAddress
from hub.model import Finding, TargetKey
from hub.observe.remote.cluster import RemoteCluster
from hub.report.server import Listen, listening
from tests.support.api import Object
from tests.support.apiserver.audit import Mark, Request
from tests.support.apiserver.server import ApiServer
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
OURS = "endpointslice.kubernetes.io/managed-by=endpointslice-hub"
HUB_RULES: tuple[Object, ...] = (
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"],
    },
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "watch", "create", "update"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create", "update"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
)
"""All rules that the hub needs in the hub cluster."""
NODE_RULES: tuple[Object, ...] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]},
)
"""All rules that the hub needs in a remote cluster."""
REVIEW_RULES: tuple[Object, ...] = (
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
)
"""The rules that the hub needs to authenticate and authorize callers."""
SECRET_RULES: tuple[Object, ...] = ({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},)
READY_SINCE = "2026-01-01T00:00:00Z"


def node(name: str, *addresses: str, ready: bool = True, zone: str = "", **meta: Any) -> Object:
    """A Node with InternalIPs."""
    labels = {**meta.pop("labels", {}), **({"topology.kubernetes.io/zone": zone} if zone else {})}
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": READY_SINCE}
    return {
        "metadata": {"name": name, "labels": labels, **meta},
        "status": {
            "conditions": [condition],
            "addresses": [{"type": "InternalIP", "address": address} for address in addresses],
        },
    }


def add_node(server: ApiServer, name: str, *addresses: str, **more: Any) -> None:
    """Create a Node with its status."""
    body = node(name, *addresses, **more)
    server.api.post("/api/v1/nodes", {"metadata": body["metadata"]})
    server.api.patch(f"/api/v1/nodes/{name}/status", {"status": body["status"]})


def heartbeat(server: ApiServer, name: str, stamp: str) -> None:
    """Update a Node's heartbeat time and nothing else, as a kubelet does every few minutes."""
    condition = {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": stamp}
    kind = "application/strategic-merge-patch+json"
    server.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, kind)


@dataclass(slots=True)
class World:
    """A hub cluster, remote clusters, and a folder with the registry and the kubeconfigs.

    Attributes:
        remotes: remote clusters by their names in the registry.
        registry: the registry that was last written.
    """

    folder: Path
    hub_cluster: ApiServer
    remotes: Mapping[str, ApiServer]
    registry: Object = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of the registry."""
        return self.folder / "clusters.yaml"

    @property
    def kubeconfig(self) -> Path:
        """The path of the hub's own kubeconfig."""
        return self.folder / "hub.kubeconfig"

    def prepare(self) -> Self:
        """Create accounts that have only the rights that the hub needs, and their kubeconfigs."""
        self.hub_cluster.grant("hub", *HUB_RULES)
        self.hub_cluster.kubeconfig(self.kubeconfig, "hub")
        for name, server in self.remotes.items():
            server.grant("hub", *NODE_RULES)
            server.kubeconfig(self.folder / name, "hub")
        return self

    # --- the registry ---------------------------------------------------------------------------------

    def cluster(self, name: str, **more: Any) -> Object:
        """A registry entry for a cluster."""
        entry = {
            "name": name,
            "kubeconfig": {"path": name},
            "allowedCIDRs": ["10.0.0.0/8", "fd00::/8"],
            "provider": {"name": "node-addresses"},
            **more,
        }
        return {key: value for key, value in entry.items() if value is not None}

    @staticmethod
    def service(name: str = "payments", *clusters: str, **more: Any) -> Object:
        """A registry entry for a Service."""
        entry = {
            "name": name,
            "namespace": "edge",
            "sources": [{"cluster": cluster} for cluster in clusters or ("eu",)],
        }
        return {**entry, **more}

    def write(self, clusters: Sequence[Object] = (), services: Sequence[Object] = (), **more: Any) -> Object:
        """Write the registry. By default it has all remotes, and the Service ``payments`` with cluster eu."""
        self.registry = {
            "version": 1,
            "clusters": list(clusters) or [self.cluster(name) for name in self.remotes],
            "services": list(services) or [self.service()],
            **more,
        }
        self.write_text(yaml.safe_dump(self.registry, sort_keys=False))
        return self.registry

    def write_text(self, text: str) -> None:
        """Replace the registry file in one step, as an editor does."""
        new = self.folder / ".clusters.new"
        new.write_text(text)
        new.rename(self.path)

    # --- the hub cluster --------------------------------------------------------------------------------

    def add_service(self, name: str = "payments", namespace: str = "edge", **spec: Any) -> Object:
        """Create a Service in the hub cluster, without a selector by default."""
        meta = {"name": name, **spec.pop("metadata", {})}
        ports = [{"name": "https", "port": 443, "targetPort": 30443}]
        body = {"metadata": meta, "spec": {"ports": ports, **spec}}
        return self.hub_cluster.api.post(f"/api/v1/namespaces/{namespace}/services", body)

    def slices(self, service: str = "payments", namespace: str = "edge", selector: str = OURS) -> list[Object]:
        """The slices of a Service, sorted by name; by default only those that a hub manages."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        found = self.hub_cluster.api.list(path, labelSelector=f"kubernetes.io/service-name={service},{selector}")
        return sorted(found, key=lambda slice_: str(slice_["metadata"]["name"]))

    def published(self, service: str = "payments", namespace: str = "edge") -> list[str]:
        """The published addresses of a Service, sorted; an address in two slices is in the list twice."""
        return sorted(
            address
            for slice_ in self.slices(service, namespace)
            for endpoint in slice_["endpoints"] or ()
            for address in endpoint["addresses"]
        )

    def versions(self, service: str = "payments") -> dict[str, str]:
        """The resourceVersion of each slice of a Service, by name."""
        return {slice_["metadata"]["name"]: slice_["metadata"]["resourceVersion"] for slice_ in self.slices(service)}

    def slice_path(self, name: str, namespace: str = "edge") -> str:
        """The path of a slice."""
        return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}"

    def writes(self, mark: Mark, settle: float = 0.3) -> list[Request]:
        """The hub's writes of slices since a mark, after ``settle`` seconds in which the log becomes complete."""
        time.sleep(settle)
        return [
            request
            for request in self.hub_cluster.requests(mark, "hub")
            if request.writes and request.resource == "endpointslices"
        ]

    def awaits(self, *addresses: str, service: str = "payments", timeout: float = 10.0) -> None:
        """Wait until exactly these addresses are published."""
        wanted = sorted(addresses)

        def check() -> bool:
            found = self.published(service)
            assert found == wanted, f"{found}, not {wanted}, is published"
            return True

        eventually(check, timeout)


def eu_and_us(folder: Path, hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer]) -> World:
    """The clusters eu and us with one node each, both published for the Service ``payments``."""
    made = World(folder, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()
    add_node(made.remotes["eu"], "n1", "10.1.0.1")
    add_node(made.remotes["us"], "m1", "10.2.0.1")
    made.add_service()
    made.write(services=[made.service("payments", "eu", "us")])
    return made


class RunningHub:
    """A hub in a thread of this process; a context manager that stops it at the end.

    Args:
        port: where it serves the page and the API on loopback; 0 = nowhere.
    """

    def __init__(self, world: World, *, port: int = 0, **options: Any) -> None:
        self._listen = Listen(BindAddress("127.0.0.1", port) if port else None)
        options.setdefault("removal_grace", 0.5)
        self._options = Options(registry=str(world.path), kubeconfig=str(world.kubeconfig), **options)
        self._thread = threading.Thread(target=self._main, name="hub")
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._hub: Hub | None = None

    @property
    def hub(self) -> Hub:
        """The hub. Tests only read it."""
        assert self._hub is not None
        return self._hub

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(20)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the hub as SIGTERM does, and wait for its end."""
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive(), "the hub does not stop"
        if self._error is not None:
            raise self._error

    def cluster(self, name: str) -> RemoteCluster:
        """The hub's unit for a remote cluster."""
        return self.hub.fleet.clusters[name]

    def state(self, name: str) -> str:
        """The state and error of a remote cluster, such as ``Ready: ``; "" before the hub follows it."""
        cluster = self.hub.fleet.clusters.get(name)
        return f"{cluster.status.state}: {cluster.status.error}" if cluster is not None else ""

    def findings(self, service: str = "payments", namespace: str = "edge") -> dict[str, Finding]:
        """The findings of the last pass over a target, by reason."""
        last = self.hub.reconciler.last(TargetKey(namespace, service))
        return {finding.reason: finding for finding in last.findings} if last is not None else {}

    def problem(self, cluster: str) -> str:
        """The problems of a cluster's sources."""
        return " ".join(source.problem for key, source in self.hub.fleet.sources.items() if key.cluster == cluster)

    def status(self, service: str = "payments", namespace: str = "edge") -> str:
        """Why there is no decision about a target, or why the last write failed."""
        key = TargetKey(namespace, service)
        last = self.hub.reconciler.last(key)
        return (last.status if last is not None else "") or self.hub.reconciler.problem(key)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits for it
            self._error = error
        finally:
            self._started.set()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with assemble(self._options) as self._hub, listening(self._listen, self._hub):
            self._started.set()
            await self._hub.run(self._stop)


class HubProcess:
    """``hub run`` as a process; a context manager that kills it at the end.

    Args:
        python: the interpreter whose environment has the hub and its plugins.
        path: folders to import from in addition.
    """

    def __init__(
        self, world: World, *arguments: str, python: str = sys.executable, path: Sequence[Path] = (ROOT,)
    ) -> None:
        self._argv = [python, "-m", "hub", "run", "--registry", str(world.path)]
        self._argv += ["--kubeconfig", str(world.kubeconfig), "--removal-grace", "1s"]
        self._argv += ["--health-probe-bind-address", "0", "--listen", "0", *arguments]
        self._folder = world.folder
        self._path = os.pathsep.join(map(str, path))
        self.log = world.folder / f"hub-{time.monotonic_ns()}.log"
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                self._argv,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": self._path},
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(10)

    def terminate(self) -> tuple[int, float]:
        """Send SIGTERM; returns the exit code, and the seconds until the end."""
        assert self._child is not None
        started = time.monotonic()
        self._child.send_signal(signal.SIGTERM)
        return self._child.wait(15), time.monotonic() - started


@contextlib.contextmanager
def frozen(server: ApiServer) -> Iterator[None]:
    """Pause an API server while the block runs: it accepts connections and answers nothing."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
