"""The environment of the fault table: API servers, hubs as processes, proxies between them, and one recorder.

A :class:`Lane` is one hub with its own registry. Every lane also publishes the control cluster, whose nodes change all
the time: the delay of these changes shows how far a fault affects others. A :class:`Site` is where one row is played:
a cluster of a lane, with its Service and its nodes.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.api import Api, Object
from tests.support.apiserver.cleaning import clean
from tests.support.apiserver.pki import Authority
from tests.support.apiserver.server import ApiServer
from tests.support.faults.judge import Set, Truth
from tests.support.faults.proxy import Proxy, ProxyThread
from tests.support.faults.recorder import Recording
from tests.support.hub import HUB_RULES, NODE_RULES, ROOT, node
from tests.support.ports import free_port

HUB, NEAR, CONTROL, VICTIM = "faults-hub", "faults-near", "faults-control", "faults-victim"
NODES = 4
"""The number of nodes of each row's cluster."""
CONTROL_NODES = 6
CHURN = 1.5
"""Seconds between changes of the control cluster."""
ROLLING = 3
"""The number of changes after which a node that was added is removed."""
LOOK = 0.2
"""Seconds between two requests for a hub's status."""
START = 180.0
"""Seconds for a hub to publish everything; one is enough on an idle machine."""


class Servers:
    """The API servers, each started when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._starting: dict[str, threading.Lock] = {}
        self._servers: dict[str, ApiServer] = {}

    def get(self, name: str) -> ApiServer:
        """A server that is ready and has the account ``hub`` with the hub's rights."""
        with self._lock:
            starting = self._starting.setdefault(name, threading.Lock())
        with starting:
            if name not in self._servers:
                flags = ("--storage-media-type=application/json",) if name == HUB else ()
                server = ApiServer(name, self._folder / name, flags=flags)
                self._servers[name] = server
                server.start()
                clean(server.api)
                server.grant("hub", *(HUB_RULES if name == HUB else NODE_RULES))
            return self._servers[name]

    def stop(self) -> None:
        """Stop all servers."""
        for server in self._servers.values():
            server.stop()


class Stage:
    """The environment that all rows share; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.truth = Truth()
        self.servers = Servers(folder / "servers")
        self._numbers = itertools.count(1)
        self._stack = contextlib.ExitStack()
        self._lock = threading.RLock()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.control_sets: list[Set] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.servers.stop)
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(self.servers.get, (HUB, NEAR, CONTROL)))
            self.hub_server = self.servers.get(HUB)
            self.mark = self.hub_server.audit_mark()
            self.proxies = stack.enter_context(ProxyThread())
            self.recording = stack.enter_context(Recording(self.hub_server._etcd_port, self.folder / "recording.jsonl"))
            self.recording.sync(self._mark)
            self.churn = stack.enter_context(Churn(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def next_number(self) -> int:
        """A new number at each call."""
        with self._lock:
            return next(self._numbers)

    def finish(self) -> None:
        """Stop the churn, and check that the recorder has seen everything."""
        self.churn.stop()
        self.recording.sync(self._mark)

    def api(self, server: ApiServer) -> Api:
        """A client as the admin with its own connection."""
        return server.api_as("admin")

    def add_control(self, one: Set) -> None:
        """Judge another Set, which must have the control cluster's endpoints."""
        with self._lock:
            self.churn.publish(one)
            self.control_sets.append(one)

    def usual_certificate(self, authority: Authority) -> ssl.SSLContext:
        """A serving certificate of an authority. It is cached, as creating one takes half a second."""
        with self._lock:
            if authority.pem not in self._contexts:
                self._contexts[authority.pem] = self.certificate(authority)
            return self._contexts[authority.pem]

    def certificate(self, authority: Authority) -> ssl.SSLContext:
        """A new serving certificate of an authority."""
        made = authority.server("127.0.0.1", "localhost")
        file = self.folder / f"serving-{self.next_number()}.pem"
        file.write_text(made.pem + made.key_pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def proxy(self, server: ApiServer) -> Proxy:
        """A proxy for a server."""
        client = ssl.create_default_context(cadata=server.ca_pem)
        return self.proxies.proxy(server.port, client, self.usual_certificate(server.authority))

    def _mark(self) -> str:
        """Create a slice that belongs to no Service of a row, as a mark in the history."""
        name = f"mark-{self.next_number()}"
        body = {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": []}
        self.api(self.hub_server).post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body)
        return f"default/{name}"


class Churn:
    """Adds nodes to the control cluster and removes older ones, in a thread; a context manager.

    Attributes:
        added_at: when each address was visible to everyone, in order.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._server = stage.servers.get(CONTROL)
        self._api = stage.api(self._server)
        self._sets: list[Set] = []
        self._present: dict[str, float] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self.added_at: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._run, name="churn")

    def __enter__(self) -> Self:
        for number in range(CONTROL_NODES):
            self._add(f"base-{number}", f"10.200.0.{number + 1}")
        self.added_at.clear()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the changes."""
        self._end.set()
        self._thread.join(30)

    def publish(self, one: Set) -> None:
        """Record that a Set publishes this cluster from now on."""
        with self._lock:
            self._sets.append(one)
            for address, since in self._present.items():
                self._stage.truth.node_added(since, address, one)

    def delays(self, one: Set, begin: float, end: float) -> list[float]:
        """The delay until each change between two times was published; infinite if it never was."""
        seen: dict[str, float] = {}
        for commit in self._stage.recording.commits:
            if commit.slice is not None and commit.slice.set == one:
                for address in commit.slice.addresses:
                    seen.setdefault(address, commit.at)
        order = [(at, seen.get(address, float("inf"))) for at, address in self.added_at]
        # While nothing can be written, a change may be published only with a later one; then it counts at that time.
        later = list(itertools.accumulate(reversed([when for _, when in order]), min))[::-1]
        return [max(0.0, when - at) for (at, _), when in zip(order, later, strict=True) if begin <= at <= end]

    def _run(self) -> None:
        for number in itertools.count(1):
            if self._end.wait(CHURN):
                return
            self._add(f"n{number}", f"10.200.{1 + number // 250}.{1 + number % 250}")
            if number > ROLLING:
                old = number - ROLLING
                self._remove(f"n{old}", f"10.200.{1 + old // 250}.{1 + old % 250}")

    def _add(self, name: str, address: str) -> None:
        with self._lock:
            at = time.monotonic()
            self._present[address] = at
            self._stage.truth.node_added(at, address, *self._sets)
        create_node(self._api, name, address)
        self.added_at.append((time.monotonic(), address))

    def _remove(self, name: str, address: str) -> None:
        with self._lock:
            self._present.pop(address)
            self._stage.truth.node_removed(time.monotonic(), address, *self._sets)
        self._api.delete(f"/api/v1/nodes/{name}")


def create_node(api: Api, name: str, address: str, **labels: str) -> None:
    """Create a Node that is Ready."""
    body = node(name, address, labels=labels)
    api.post("/api/v1/nodes", {"metadata": body["metadata"]})
    api.patch(f"/api/v1/nodes/{name}/status", {"status": body["status"]})


class Lane:
    """One hub, as a process of ``hub run``, with its own registry.

    Attributes:
        proxy: the proxy between the hub and its own API server; None = none.
    """

    def __init__(self, stage: Stage, name: str, *arguments: str, proxied: bool = False) -> None:
        self.stage = stage
        self.name = name
        self.folder = stage.folder / name
        self.folder.mkdir()
        self.proxy = stage.proxy(stage.hub_server) if proxied else None
        self.clusters: list[Object] = []
        self.services: list[Object] = []
        self.listen = free_port()
        self.arguments = [*arguments]
        self.sites: list[Site] = []
        self._looking = threading.Lock()
        self._looked = 0.0
        self._status: Object = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig(stage.hub_server, "hub.kubeconfig", self.proxy)
        self.kubeconfig(stage.servers.get(CONTROL), "control")
        self.control = self.add("control", f"control-{name}", {"kubeconfig": {"path": "control"}})
        stage.add_control(self.control)

    def kubeconfig(self, server: ApiServer, name: str, proxy: Proxy | None = None) -> Path:
        """Write a kubeconfig for a server, or for its proxy."""
        path = server.kubeconfig(self.folder / name, "hub")
        if proxy is not None:
            content = yaml.safe_load(path.read_text())
            content["clusters"][0]["cluster"]["server"] = proxy.url
            path.write_text(yaml.safe_dump(content))
        return path

    def add(self, cluster: str, service: str, more: Object) -> Set:
        """Add a cluster and its Service, before the hub starts."""
        entry = {"name": cluster, "allowedCIDRs": ["10.0.0.0/8"], "provider": {"name": "node-addresses"}, **more}
        self.clusters.append(entry)
        self.services.append({"name": service, "namespace": "edge", "sources": [{"cluster": cluster}]})
        ports = [{"name": "https", "port": 443, "targetPort": 30443}]
        path = "/api/v1/namespaces/edge/services"
        self.stage.api(self.stage.hub_server).post(path, {"metadata": {"name": service}, "spec": {"ports": ports}})
        return Set(f"edge/{service}", cluster)

    # --- processes --------------------------------------------------------------------------------------

    def start(self, replica: str = "a") -> None:
        """Start the hub, or another replica of it. Only replica a has a status page."""
        registry = {"version": 1, "owner": self.name, "clusters": self.clusters, "services": self.services}
        new = self.folder / "new"
        new.write_text(yaml.safe_dump(registry, sort_keys=False))
        new.rename(self.folder / "clusters.yaml")
        argv = [sys.executable, "-m", "hub", "run", "--registry", str(self.folder / "clusters.yaml")]
        argv += ["--kubeconfig", str(self.folder / "hub.kubeconfig"), "--health-probe-bind-address", "0", "--listen"]
        argv += [f"127.0.0.1:{self.listen}" if replica == "a" else "0", "-v", *self.arguments]
        with self.log(replica).open("ab") as log:
            env = {**os.environ, "PYTHONPATH": str(ROOT), "POD_NAME": f"{self.name}-{replica}"}
            child = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder, env=env)
        self._children[replica] = child

    def begin(self) -> None:
        """Start replica a, and wait until it leads and has published everything.

        Raises:
            AssertionError: it does not in time.
        """
        self.start()
        if watch_for(self.leads, START) is None:
            raise AssertionError(f"{self.name} does not lead: {self.log().read_text()[-3000:]}")
        for site in self.sites:
            site.await_published(START)
        recording, truth = self.stage.recording, self.stage.truth
        recording.wait(lambda: recording.addresses(self.control.service) >= set(_base(truth, self.control)), START)

    def stands_by(self, replica: str) -> None:
        """Wait until a replica knows that another one leads."""
        if watch_for(lambda: " stands by" in self.log(replica).read_text(), START) is None:
            raise AssertionError(f"{replica} does not stand by: {self.log(replica).read_text()[-3000:]}")

    def log(self, replica: str = "a") -> Path:
        """The path of a replica's log."""
        return self.folder / f"{replica}.log"

    def signal(self, number: int, replica: str = "a") -> None:
        """Send a signal to a replica."""
        self._children[replica].send_signal(number)

    def kill(self, replica: str = "a") -> None:
        """Send SIGKILL; does nothing if the replica has ended."""
        child = self._children.get(replica)
        if child is not None:
            child.kill()
            child.wait(20)

    def end(self, replica: str = "a") -> int:
        """Send SIGTERM and return the exit code."""
        child = self._children[replica]
        child.terminate()
        return child.wait(20)

    def close(self) -> None:
        """Kill all replicas."""
        for replica in list(self._children):
            self.kill(replica)

    @property
    def alive(self) -> bool:
        """Whether all started replicas still run."""
        return all(child.poll() is None for child in self._children.values())

    # status

    def status(self) -> Object:
        """``GET /api/v1/status``, cached for ``LOOK`` seconds; {} if the hub does not answer."""
        with self._looking:  # many rows ask at the same time
            if time.monotonic() - self._looked > LOOK:
                self._status = self._asked()
                self._looked = time.monotonic()
            return self._status

    def _asked(self) -> Object:
        connection = http.client.HTTPConnection("127.0.0.1", self.listen, timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/api/v1/status")
                found: Object = json.loads(connection.getresponse().read())
            except (OSError, http.client.HTTPException, ValueError):
                return {}
        return found

    def leads(self) -> bool:
        """Whether replica a leads."""
        return bool(self.status().get("hub", {}).get("role") == "leader")

    def others(self, begin: float, end: float) -> float:
        """The longest delay of a change of the control cluster between two times, in seconds."""
        return max(self.stage.churn.delays(self.control, begin, end), default=0.0)


class Site:
    """The cluster of a lane on which a row is played, with four nodes and a Service.

    Args:
        server: the server that has its Nodes. Several sites share a server; a label separates their Nodes.
        proxied: whether its kubeconfig points to a proxy.
        more: additional keys of the registry entry.

    Attributes:
        broken: the API server whose processes the row may kill.
    """

    def __init__(self, lane: Lane, name: str, server: ApiServer, *, proxied: bool, **more: Any) -> None:
        self.lane = lane
        self.name = name
        self.server = self.broken = server
        self.stage = lane.stage
        self.proxy: Proxy | None = None
        self.nodes: dict[str, str] = {}
        self._api: Api | None = None
        self._net = self.stage.next_number()
        self._hosts = itertools.count(1)
        lane.sites.append(self)
        self.set = lane.add(name, name, {**self.entry(proxied=proxied), **more})
        with self.stage.api(server) as self._api:
            for _ in range(NODES):
                self.add_node()
        self._api = None

    def entry(self, *, proxied: bool) -> Object:
        """Its registry entry."""
        self.proxy = self.stage.proxy(self.server) if proxied else None
        self.kubeconfig = self.lane.kubeconfig(self.server, self.name, self.proxy)
        return {"kubeconfig": {"path": self.name}, "nodes": {"selector": f"site={self.name}"}}

    def add_node(self) -> str:
        """Add a node; returns its address."""
        host = next(self._hosts)
        name, address = f"{self.name}-{host}", f"10.{self._net // 200 + 1}.{self._net % 200}.{host}"
        self.stage.truth.node_added(time.monotonic(), address, self.set)
        self._create(name, address)
        self.nodes[name] = address
        return address

    def remove_oldest_node(self) -> str:
        """Remove the oldest node; returns its address."""
        name, address = next(iter(self.nodes.items()))
        del self.nodes[name]
        self.stage.truth.node_removed(time.monotonic(), address, self.set)
        self._delete(name)
        return address

    def set_ready(self, name: str, ready: str) -> None:
        """Set a node's Ready condition to "True" or "False"."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
        kind = "application/strategic-merge-patch+json"
        with self.stage.api(self.server) as api:
            api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}, kind)

    @contextlib.contextmanager
    def _calls(self) -> Iterator[Api]:
        """Yield clients: first the usual one, then one with a new connection, since the kept one may be broken."""
        if self._api is not None:
            yield self._api
            return
        with self.stage.api(self.server) as api:
            yield api

    def _create(self, name: str, address: str) -> None:
        with self._calls() as api:
            create_node(api, name, address, site=self.name)

    def _delete(self, name: str) -> None:
        with self.stage.api(self.server) as api:
            api.delete(f"/api/v1/nodes/{name}")

    def published(self) -> bool:
        """Whether exactly the existing nodes are published."""
        return self.stage.recording.addresses(self.set.service) == self.stage.truth.wanted(self.set)

    def await_published(self, timeout: float) -> None:
        """Wait until :meth:`published`.

        Raises:
            AssertionError: it is not in time.
        """
        if not self.stage.recording.wait(self.published, timeout):
            found = sorted(self.stage.recording.addresses(self.set.service))
            wanted = sorted(self.stage.truth.wanted(self.set))
            tail = "\n".join(self.lane.log().read_text(errors="replace").splitlines()[-25:])
            raise AssertionError(f"not within {timeout:g} s: {found}, not {wanted}, is published; the hub said\n{tail}")

    def trouble(self) -> str:
        """The problem that the hub reports for this cluster, its Service or the hub cluster; "" = none or no answer."""
        status = self.lane.status()
        if not status:
            return ""
        said = [status["hub"]["error"], "" if status["hub"]["role"] == "leader" else status["hub"]["role"]]
        for cluster in status["clusters"]:
            if cluster["name"] == self.name:
                said += [cluster["error"], cluster["state"] if cluster["state"] not in ("", "Ready") else ""]
        for service in status["services"]:
            if service["name"] == self.set.service:
                said += [
                    service["problem"],
                    service["status"],
                    *(source["unknown"] or "" for source in service["sources"]),
                ]
        return "; ".join(filter(None, said))


def watch_for(check: Callable[[], bool], timeout: float, every: float = 0.1) -> float | None:
    """The seconds until a check is true; None if it is not in time."""
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > timeout:
            return None
        time.sleep(every)
    return time.monotonic() - began


def _base(truth: Truth, one: Set) -> list[str]:
    return [address for address in truth.wanted(one) if address.startswith("10.200.0.")]
