"""The bench: API servers, nodes that answer requests, and one consumer and one controller for each arm.

An *arm* is one way to keep the slices: static, the client-go reference, the hub. Each has its own Service, and its own
consumer host with its own kube-proxy. All arms share the nodes and the faults, so their figures can be compared.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import yaml

from benchmarks.subjects import GOREF
from benchmarks.traffic.consumers import (
    NAMESPACE,
    NODE_PORT,
    BenchBroken,
    Client,
    Consumer,
    Contour,
    Envoy,
    KubeProxy,
    tail,
)
from benchmarks.traffic.figures import RATE, Arm, ConsumerName, Request, Story
from benchmarks.traffic.net import GATEWAY, Network
from tests.support.api import STRATEGIC_PATCH, ApiRefused, Object
from tests.support.apiserver import binaries
from tests.support.apiserver.process import Process, as_flags
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, NODE_RULES, add_node
from tests.support.ports import free_port
from tests.support.waiting import eventually

SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
NODES = 8
STANDBY_NODES = 4
NETWORK = "10.7.0.0/16"
START = 120.0
"""Seconds for everything to be published; three are enough on an idle machine."""
SETTLE = 60.0
"""Seconds for the arms to recover after a row: the hub looks again for an unreachable cluster after at most 30 s."""
ARRIVED = 2.0
"""Seconds until kube-proxy has applied what is published: it applies changes at most once per second."""


class Machine:
    """A node: its host, its backend, and its Node object in a cluster."""

    def __init__(self, stage: Stage, cluster: str, number: int) -> None:
        self.name = f"{cluster}-{number}"
        self.address = f"10.7.{1 + number // 200}.{1 + number % 200}"
        self.zone = f"{cluster}-{number % 2}"
        self._stage = stage
        stage.addresses[self.name] = self.address
        self.path = f"/api/v1/nodes/{self.name}"
        self.server = stage.servers[cluster]
        self.host = stage.network.host(self.address)
        self.serve()

    def serve(self) -> None:
        """Let the backend listen."""
        self._stage.backends({"up": self.name, "netns": self.host.path, "port": NODE_PORT})

    def refuse(self) -> None:
        """Close the backend's port: the machine answers RST."""
        self._stage.backends({"down": self.name})

    def register(self) -> None:
        """Create the Node object, Ready."""
        add_node(self.server, self.name, self.address, zone=self.zone)

    def set_ready(self, status: str) -> None:
        """Set the Ready condition: ``True``, ``False`` or ``Unknown``."""
        condition = {"type": "Ready", "status": status, "lastTransitionTime": _now()}
        self.server.api.patch(f"{self.path}/status", {"status": {"conditions": [condition]}}, STRATEGIC_PATCH)

    def cordon(self) -> None:
        """Set ``spec.unschedulable``."""
        self.server.api.patch(self.path, {"spec": {"unschedulable": True}})

    def delete(self) -> None:
        """Delete the Node object. The machine still runs."""
        self._stage.removed[self.address] = time.monotonic()
        self.server.api.delete(self.path)

    def power_off(self) -> None:
        """Remove the machine."""
        self.refuse()
        self.host.close()


class Stage:
    """Everything of a benchmark; a context manager.

    Attributes:
        machines: the nodes that exist, oldest first.
        removed: when the Node of each address was deleted.
        booted: when the Node of each new machine was created, by name.
        addresses: the address of each machine, by name, also after its end.
        parts: processes that must live all the time.
        old: the source of an older hub, which ``control`` can start; None = there is none.
    """

    def __init__(
        self,
        folder: Path,
        consumer: ConsumerName,
        arms: Sequence[Arm],
        clusters: Sequence[str],
        old: Path | None = None,
    ) -> None:
        self._consumer = consumer
        self.folder = folder
        self.arms = tuple(arms)
        self._clusters = tuple(clusters)
        self.old = old
        self.servers: dict[str, ApiServer] = {}
        self.machines: list[Machine] = []
        self.removed: dict[str, float] = {}
        self.booted: dict[str, float] = {}
        self.controllers: dict[Arm, Process] = {}
        self.consumers: dict[Arm, Consumer] = {}
        self.addresses: dict[str, str] = {}
        self.parts: list[Process] = []
        self.begin = 0.0
        self._sent = 0
        self.fault_at: float | None = None
        self._numbers = itertools.count(0)
        self._stack = contextlib.ExitStack()
        self._undo = contextlib.ExitStack()

    @property
    def hub(self) -> ApiServer:
        """The API server of the hub cluster."""
        return self.servers["hub"]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.network = Network()
            stack.callback(self.network.close)
            # Without a default route, an API server finds no address. Consumers reach the hub's over the bridge.
            flags = ["--audit-log-path=", f"--advertise-address={GATEWAY}", "--bind-address=0.0.0.0"]
            for name in ("hub", *self._clusters):
                server = self.servers[name] = ApiServer(name, self.folder / name, flags=flags)
                stack.callback(server.stop)
            with ThreadPoolExecutor() as pool:
                list(pool.map(ApiServer.start, self.servers.values()))
            self.hub.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            for name, server in self.servers.items():
                server.grant("hub", *(HUB_RULES if server is self.hub else NODE_RULES))
                server.kubeconfig(self.folder / f"{name}.kubeconfig", "hub")
            self._backends = stack.enter_context(_backends_process())
            for _ in range(NODES):
                self.boot()
            for cluster in self._clusters[1:]:
                for _ in range(STANDBY_NODES):
                    Machine(self, cluster, next(self._numbers)).register()
            stack.callback(self.kill_controllers)
            self._start_consumers(stack)
            for arm in self.arms:
                self.control(arm)
            self.settle(START)
            self._stack = stack.pop_all()
        return self

    def _start_consumers(self, stack: contextlib.ExitStack) -> None:
        kubeconfig = self._outside_kubeconfig()
        contour: Contour | None = None
        if self._consumer == "envoy":
            contour = Contour(self.hub, self.folder, kubeconfig)
            self.parts.append(contour.process)
            stack.callback(contour.process.kill)
        for number, arm in enumerate(self.arms):
            host = self.network.host(f"10.7.240.{1 + number}")
            body = {"metadata": {"name": arm}, "spec": {"ports": [{"port": 80, "targetPort": NODE_PORT}]}}
            made = self.hub.api.post(f"/api/v1/namespaces/{NAMESPACE}/services", body)
            self.consumers[arm] = consumer = (
                Envoy(arm, host, self.hub, contour)
                if contour
                else KubeProxy(arm, host, str(made["spec"]["clusterIP"]), self.hub, kubeconfig)
            )
            self.parts.append(consumer.process)
            stack.callback(consumer.process.kill)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what rows do ---------------------------------------------------------------------------------

    def at(self, seconds: float) -> None:
        """Wait until this many seconds of the row have passed."""
        time.sleep(max(0.0, self.begin + seconds - time.monotonic()))

    def fault(self) -> None:
        """Note that the fault happens now."""
        self.fault_at = time.monotonic()

    def afterwards(self, action: Callable[[], object]) -> None:
        """Do this when the row has ended, the latest first."""
        self._undo.callback(action)

    def boot(self) -> None:
        """Start a machine that answers, then create its Node."""
        machine = Machine(self, "eu", next(self._numbers))
        self.booted[machine.name] = time.monotonic()
        machine.register()
        self.machines.append(machine)

    def kill_controllers(self) -> None:
        """Send SIGKILL to every controller."""
        for process in self.controllers.values():
            process.kill()

    def restart_controllers(self) -> None:
        """Start every controller, after a SIGKILL if it runs."""
        self.kill_controllers()
        for process in self.controllers.values():
            process.start()

    def backends(self, command: Object) -> None:
        """Send a command to the backends, and wait until it is carried out.

        Raises:
            BenchBroken: it failed.
        """
        assert self._backends.stdin is not None
        assert self._backends.stdout is not None
        self._backends.stdin.write(json.dumps(command) + "\n")
        self._backends.stdin.flush()
        if (answer := self._backends.stdout.readline().strip()) != "ok":
            raise BenchBroken(f"the backends cannot carry out {command}: {answer or 'their process ended'}")

    # --- one row --------------------------------------------------------------------------------------

    def play(self, seconds: float, script: Callable[[Stage], None]) -> dict[Arm, Story]:
        """Let the script run while every consumer sends requests, then undo what the row did.

        Raises:
            BenchBroken: a part of the bench failed.
        """
        self.removed.clear()
        self.booted.clear()
        self.fault_at = None
        self.begin = time.monotonic() + 1.0
        clock = time.time() - time.monotonic()
        clients = {arm: Client(consumer, self.begin, seconds, self._sent) for arm, consumer in self.consumers.items()}
        self._sent += round(RATE * seconds)
        try:
            script(self)
            requests = {arm: client.result() for arm, client in clients.items()}
            self.check_parts()
            stories = {arm: self._story(found, clock) for arm, found in requests.items()}
        finally:
            for client in clients.values():
                client.kill()
            self._undo.close()
        return stories

    def _story(self, requests: Sequence[Request], clock: float) -> Story:
        return Story(
            [
                request._replace(
                    at=request.at - self.begin, address=request.address or self.addresses.get(request.node, "")
                )
                for request in requests
            ],
            (self.fault_at or self.begin) - self.begin,
            {address: at - self.begin for address, at in self.removed.items()},
            {name: at - self.begin for name, at in self.booted.items()},
            time.time() - time.monotonic() - clock,
        )

    def settle(self, timeout: float) -> None:
        """Wait until every arm publishes exactly the machines, and its consumer uses them.

        Raises:
            BenchBroken: an arm does not, for this many seconds.
        """
        wanted = {machine.address for machine in self.machines}
        for arm, consumer in self.consumers.items():

            def settled(arm: Arm = arm, consumer: Consumer = consumer) -> bool:
                if arm == "static" and self.ready(arm) != wanted:
                    self._write_static()
                assert self.ready(arm) == wanted, f"{sorted(self.ready(arm))} is ready, not {sorted(wanted)}"
                used = consumer.uses()
                unused = [address for address in sorted(wanted) if f"{address}:{NODE_PORT}" not in used]
                assert not unused, f"{consumer.process.name} does not use {unused}"
                return True

            try:
                eventually(settled, timeout, every=0.2)
            except AssertionError as error:
                self.check_parts()
                raise BenchBroken(f"{arm} does not settle: {error}\n{self._log_tail(arm)}") from error
        time.sleep(ARRIVED)

    def ready(self, arm: Arm) -> set[str]:
        """The addresses that an arm publishes as ready."""
        found = self.hub.api.list(SLICES, labelSelector=f"kubernetes.io/service-name={arm}")
        return {
            address
            for slice_ in found
            for endpoint in slice_["endpoints"] or ()
            if endpoint["conditions"].get("ready", True)
            for address in endpoint["addresses"]
        }

    def check_parts(self) -> None:
        """Look whether all processes are alive.

        Raises:
            BenchBroken: one is not.
        """
        for process in (*self.parts, *self.controllers.values()):
            if not process.alive:
                raise BenchBroken(f"{process.name} has ended\n{tail(process)}")

    def _log_tail(self, arm: Arm) -> str:
        return "\n".join(
            tail(process) for process in (self.controllers.get(arm), self.consumers[arm].process) if process
        )

    # --- the arms ---------------------------------------------------------------------------------------

    def control(self, arm: Arm, *, old: bool = False) -> None:
        """Write the slices of an arm, or start its controller; one that already runs is the caller's to stop."""
        if arm == "static":
            self._write_static()
            return
        command = self._reference() if arm == "reference" else self._hub(arm, old=old)
        self.controllers[arm] = Process(f"controller of {arm}", command, self.folder / f"{arm}.log")
        self.controllers[arm].start()

    def _write_static(self) -> None:
        """Write the slice of the static arm: what an administrator would do by hand."""
        endpoints = [{"addresses": [machine.address], "conditions": {"ready": True}} for machine in self.machines]
        labels = {"kubernetes.io/service-name": "static", "endpointslice.kubernetes.io/managed-by": "nobody"}
        body = {
            "metadata": {"name": "static", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": NODE_PORT, "protocol": "TCP"}],
            "endpoints": endpoints,
        }
        try:
            self.hub.api.patch(f"{SLICES}/static", {"endpoints": endpoints})
        except ApiRefused as refused:
            if refused.status != 404:
                raise
            self.hub.api.post(SLICES, body)

    def _reference(self) -> list[str]:
        access = {name: str(server.kubeconfig(self.folder / f"{name}-admin")) for name, server in self.servers.items()}
        content = {
            "hub": access.pop("hub"),
            "clusters": access,
            "services": [{"cluster": "eu", "namespace": NAMESPACE, "service": "reference", "port": NODE_PORT}],
        }
        file = self.folder / "reference.json"
        file.write_text(json.dumps(content))
        return [str(binaries.ensure_go_program(GOREF)), "-config", str(file)]

    def registry(self, arm: Arm, cluster: Object | None = None, **more: Any) -> Object:
        """The clusters.yaml of an arm of the hub: all defaults except those that the arm is about.

        Args:
            cluster: further keys of the clusters.
            more: further keys of the Service.
        """
        service: Object = {
            "name": arm,
            "namespace": NAMESPACE,
            "sources": [{"cluster": "eu"}],
            "ports": [{"port": NODE_PORT}],
        }
        if arm in ("health", "drain"):
            service["health"] = {"mode": "http", "path": "/"}
        if arm == "drain":
            service["drain"] = "30s"
        clusters = [
            {
                "name": name,
                "kubeconfig": {"path": str(self.folder / f"{name}.kubeconfig")},
                "allowedCIDRs": [NETWORK],
                "provider": {"name": "node-addresses"},
                **(cluster or {}),
            }
            for name in self._clusters
        ]
        return {"version": 1, "owner": arm, "clusters": clusters, "services": [{**service, **more}]}

    def write_registry(self, arm: Arm, content: Mapping[str, Any]) -> Path:
        """Replace an arm's clusters.yaml in one step, as an editor does."""
        file = self.folder / arm / "clusters.yaml"
        file.parent.mkdir(exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(yaml.safe_dump(dict(content), sort_keys=False))
        return new.rename(file)

    def _hub(self, arm: Arm, *, old: bool) -> list[str]:
        file = self.write_registry(arm, self.registry(arm))
        options = {
            "registry": file,
            "kubeconfig": self.folder / "hub.kubeconfig",
            "credentials-dir": self.folder,
            "health-probe-bind-address": "0",
            "listen": f"127.0.0.1:{free_port()}",
        }
        version: list[str] = []
        if old and self.old is not None:
            sources = (self.old, *sorted(self.old.glob("providers/*/src")))
            version = ["/usr/bin/env", f"PYTHONPATH={':'.join(map(str, sources))}"]
        return [*version, sys.executable, "-m", "hub", "run", *as_flags(options)]

    def _outside_kubeconfig(self) -> Path:
        """A kubeconfig for hosts on the bridge."""
        file = self.hub.kubeconfig(self.folder / "outside.kubeconfig")
        content = yaml.safe_load(file.read_text())
        content["clusters"][0]["cluster"] |= {
            "server": f"https://{GATEWAY}:{self.hub.port}",
            "tls-server-name": "localhost",
        }
        file.write_text(yaml.safe_dump(content))
        return file


@contextlib.contextmanager
def _backends_process() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "benchmarks.traffic.backends"]
    # In a session of its own, so that Ctrl-C does not end it before the rest. It ends with its standard input.
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
