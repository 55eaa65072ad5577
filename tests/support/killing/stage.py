"""The stage: a move of one address, two hub processes behind proxies, and traps at exact requests.

Three nodes and two addresses: n1 has the address that moves, n2 another one, n3 takes the first one. Each process has
its own account and its own proxies to the API server and to the cloud, so that all it does is told apart.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

import yaml

from tests.support import remote_cloud
from tests.support.allocations import KIND, allocation, define
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.faults.proxy import Proxy, ProxyThread, Request, Trap
from tests.support.hub import HUB_RULES, ROOT, add_node
from tests.support.killing.clouds import CLOUDS, Act, Cloud, Kind
from tests.support.replicas import DURATION, LEASES, SHORT, Replica
from tests.support.waiting import eventually

NAMES: Final = ("kill-a", "kill-b")
RULES: tuple[Object, ...] = (
    {"apiGroups": ["netinfra.darkbrains.com"], "resources": ["netipallocations"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["netinfra.darkbrains.com"], "resources": ["netipallocations/status"], "verbs": ["update"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
)
"""The rights that allocations need in addition to HUB_RULES."""
When = Literal["before", "after", "late", "pending"]
Match = Callable[[str, str, Object], bool]
LONG_AGO: Final = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Written:
    """A write that a process sent to the cloud, when it arrived at the proxy in Unix time."""

    at: float
    replica: str
    act: Act


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of a move at which the leader is killed.

    Attributes:
        api: whether a request to the API server is such a moment; it gets path, verb and decoded body.
        cloud: whether a request to the cloud is.
        when: see :class:`Trap`.
    """

    name: str
    when: Literal["before", "after", "late"] = "before"
    api: Match | None = None
    cloud: Callable[[Act], bool] | None = None
    late: float = 0.0

    @property
    def step(self) -> str:
        """The name without what the kill cuts off."""
        return self.name.partition(",")[0]


@dataclass
class Armed:
    """A point whose trap is set; ``killed`` is the replica that sprang it."""

    point: Point
    act: Callable[[Process], None]
    killed: Process | None = None


def serving_certificate(server: ApiServer, folder: Path) -> ssl.SSLContext:
    """A certificate with which a proxy stands for an API server."""
    made = server.authority.server("127.0.0.1", "localhost")
    file = folder / "serving.pem"
    file.write_text(made.pem + made.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


class Process(Replica):
    """A hub process behind its own proxies; ``user`` is its account at the API server."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.user = f"system:serviceaccount:default:{name}"
        self.paused = False
        folder = stage.folder / name
        folder.mkdir()
        self.log = folder / "log"
        self._stage = stage
        server = stage.server
        token = server.service_account_token("default", name)
        server.grant(self.user, *HUB_RULES, *RULES)
        self.api = stage.proxy(server.port, ssl.create_default_context(cadata=server.ca_pem), stage.certificate)
        self.cloud = stage.proxy(stage.cloud.port, None, None)
        self.api.hook, self.cloud.hook = self._api_request, self._cloud_request
        kubeconfig = server.kubeconfig(folder / "kubeconfig", token=token)
        content = yaml.safe_load(kubeconfig.read_text())
        content["clusters"][0]["cluster"]["server"] = self.api.url
        kubeconfig.write_text(yaml.safe_dump(content))
        registry = stage.registry(f"http://127.0.0.1:{self.cloud.port}", folder)
        (folder / "clusters.yaml").write_text(yaml.safe_dump(registry))
        self._argv = [sys.executable, "-m", "hub", "run", "--registry", str(folder / "clusters.yaml")]
        self._argv += ["--kubeconfig", str(kubeconfig), "--health-probe-bind-address", "0", "--listen", "0"]
        self._argv += ["--allow-api-host", "127.0.0.1", "--credentials-dir", str(folder), *SHORT]
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        self._said = 0

    def start(self) -> Self:
        """Start it, with its name as the name of its Pod."""
        path = os.pathsep.join(filter(None, (str(ROOT), str(self._stage.folder), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, **self._stage.cloud.environment, "PYTHONPATH": path, "POD_NAME": self.name}
        with self.log.open("ab") as log:
            self._said = log.tell()
            self._child = subprocess.Popen(self._argv, stdout=log, stderr=log, cwd=self._folder, env=env)
        return self

    def ready(self) -> bool:
        """Whether it takes part in the election since its last start."""
        said = self.log.read_bytes()[self._said :]
        return b" leads" in said

    # --- in the thread of the proxies ----------------------------------------------------------------

    def _api_request(self, request: Request, body: bytes) -> Trap | None:
        if request.verb not in ("update", "patch") or not body.startswith(b"{"):
            return None
        armed, said = self._stage.armed, json.loads(body)
        if armed is None or armed.point.api is None or not armed.point.api(request.path, request.verb, said):
            return None
        if armed.point.when == "late":
            self._stage.late.add((self.user, "nodes" if request.verb == "patch" else "netipallocations/status"))
        return self._spring(armed)

    def _cloud_request(self, request: Request, body: bytes) -> Trap | None:
        act, armed = self._stage.cloud.act(request, body), self._stage.armed
        self._stage.asked.append((request, body))
        if act.writes:
            self._stage.written.append(Written(time.time(), self.name, act))
        if armed is None or armed.point.cloud is None or not armed.point.cloud(act):
            return None
        return self._spring(armed)

    def _spring(self, armed: Armed) -> Trap:
        self._stage.armed = None

        def act() -> None:
            armed.act(self)
            self._stage.sprung.append(time.time())
            armed.killed = self

        return Trap(armed.point.when, act, armed.point.late)


@dataclass
class Stage:
    """See the module; a context manager.

    Attributes:
        kind: a key of CLOUDS.
        armed: the trap that is set.
        asked: all requests that arrived at the cloud's proxies, with their bodies.
        written: all writes among them.
        late: (user, resource) of writes to the API server that arrive late.
        sprung: when each trap sprang, in Unix time.
    """

    server: ApiServer
    folder: Path
    kind: str
    armed: Armed | None = None
    asked: list[tuple[Request, bytes]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    late: set[tuple[str, str]] = field(default_factory=set)
    sprung: list[float] = field(default_factory=list)
    limits: Object = field(default_factory=lambda: {"moves": "100%"})

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._proxies = stack.enter_context(ProxyThread())
            self.certificate = serving_certificate(self.server, self.folder)
            self.cloud: Cloud = CLOUDS[self.kind](self._proxies.call)
            stack.callback(self.cloud.close)
            self.mark = self.server.audit_mark()
            define(self.server.api)
            remote_cloud.install(self.folder)
            self._scene()
            self.processes = {name: Process(self, name) for name in NAMES}
            for process in self.processes.values():
                stack.callback(process.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def proxy(self, port: int, client: ssl.SSLContext | None, server: ssl.SSLContext | None) -> Proxy:
        """A new proxy to a port."""
        return self._proxies.proxy(port, client, server)

    def registry(self, url: str, folder: Path) -> Object:
        """The registry of a process whose cloud is at ``url``."""
        account = {
            "name": "main",
            "provider": self.cloud.provider,
            "config": self.cloud.config(url, folder),
            "addresses": [self.cloud.network],
            "interval": "10s",
        }
        return {"version": 1, "allocations": {"mode": "enforce", "limits": self.limits, "clouds": [account]}}

    def _scene(self) -> None:
        """Addresses at n1 and n2, whose status says so since long ago; a reserved address at a stranger."""
        cloud, api = self.cloud, self.server.api
        self.moving, self.staying, self.foreign = cloud.reserve(), cloud.reserve(), cloud.reserve()
        entries = []
        for name in ("n1", "n2", "n3", "stranger"):
            provider_id, instance = cloud.add(name)
            if name != "stranger":
                add_node(self.server, name)
                api.patch(f"/api/v1/nodes/{name}", {"spec": {"providerID": provider_id}})
            if name in ("n1", "n2"):
                api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"ip.ready": "true"}}})
                entries.append({"node": name, "instance": instance, "state": "Attached", "since": LONG_AGO})
        pairs = ((self.moving, "n1"), (self.staying, "n2"), (self.foreign, "stranger"))
        for address, name in pairs:
            cloud.hold(address, name)
        addresses = [self.moving, self.staying]
        made = api.post(KIND, allocation("web", reservedIPs=addresses, cloud={"provider": cloud.provider}))
        before = {"before": cloud.before} if cloud.before else {}
        status = [{"address": address, **entry, **before} for address, entry in zip(addresses, entries, strict=True)]
        api.put(f"{KIND}/web/status", {**made, "status": {"cluster": "local", "addresses": status}})
        self.changes = cloud.changes()

    # --- what a test does ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start both processes; the first one leads."""
        first, second = self.processes.values()
        first.start()
        eventually(lambda: self.leader() is first and self.status().get("attached") == 2, 30)
        second.start()
        eventually(second.ready, 20)

    def leader(self) -> Process | None:
        """The process that holds the Lease."""
        path = f"{LEASES}/endpointslice-hub-default"
        if not self.server.api.exists(path):
            return None
        holder = str(self.server.api.get(path)["spec"].get("holderIdentity") or "")
        return self.processes.get(holder.rpartition("_")[0])

    def drain(self) -> None:
        """Make the address leave n1."""
        self.cordon("n1")

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Cordon a node, or uncordon it."""
        self.server.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": on}})

    def unready(self, name: str) -> None:
        """Make a node not Ready."""
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": LONG_AGO}
        self.server.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})

    def settled_at(self, name: str) -> bool:
        """Whether the address is at a node, and no record is left."""
        entry = self.status()["addresses"][0]
        assert self.cloud.holder_of(self.moving) == name, (entry, self.written)
        assert "move" not in entry, (entry, self.written)
        return bool(entry["state"] == "Attached")

    def status(self) -> Object:
        """The status of the allocation."""
        return dict(self.server.api.get(f"{KIND}/web").get("status", {}))

    def spring(self, point: Point, act: Callable[[Process], None] = Replica.kill, timeout: float = 40.0) -> Process:
        """Set a trap and wait until it has sprung; returns the process."""
        armed = self.armed = Armed(point, act)
        try:
            eventually(lambda: armed.killed, timeout)
        except AssertionError as error:
            error.add_note(f"point {point.name}: {self.status()}\n{self.written}\n{self.state()}\n{self.logs()}")
            raise
        assert armed.killed is not None
        return armed.killed

    def logs(self) -> str:
        """The ends of the processes' logs."""
        return "\n".join(f"--- {name}\n{one.log.read_text()[-3000:]}" for name, one in self.processes.items())

    def state(self) -> Object:
        """The truth and the status, without what differs between two equal runs."""
        nodes = {node["metadata"]["name"]: node for node in self.server.api.list("/api/v1/nodes")}
        fields = ("address", "state", "reason", "node", "lastNode", "before", "move")
        status = self.status()
        return {
            "holders": {name: self.cloud.holder_of(name) for name in (self.moving, self.staying, self.foreign)},
            "ephemeral": {name: self.cloud.ephemeral(name) for name in ("n1", "n2", "n3")},
            "labels": sorted(name for name, node in nodes.items() if "ip.ready" in node["metadata"].get("labels", {})),
            "attached": status.get("attached"),
            "addresses": [{key: entry.get(key) for key in fields} for entry in status["addresses"]],
        }

    def end(self, timeout: float) -> Object:
        """Wait until the address is at n3 and nothing is under way; returns the state."""

        def check() -> bool:
            state = self.state()
            assert state["holders"][self.moving] == "n3", state
            assert [entry["state"] for entry in state["addresses"]] == ["Attached", "Attached"], state
            assert not any(entry["move"] for entry in state["addresses"]), state
            assert state["labels"] == ["n2", "n3"], state
            return True

        try:
            eventually(check, timeout)
        except AssertionError as error:
            error.add_note(self.logs())
            raise
        return self.state()


def expected(stage: Stage) -> Object:
    """The state after an undisturbed move."""
    given = bool(stage.cloud.before)
    entries = [
        {"address": stage.moving, "node": "n3", "lastNode": "n1", "before": stage.cloud.before or None},
        {"address": stage.staying, "node": "n2", "lastNode": None, "before": stage.cloud.before or None},
    ]
    return {
        "holders": {stage.moving: "n3", stage.staying: "n2", stage.foreign: "stranger"},
        "ephemeral": {"n1": given, "n2": False, "n3": False},
        "labels": ["n2", "n3"],
        "attached": 2,
        "addresses": [{**entry, "state": "Attached", "reason": None, "move": None} for entry in entries],
    }


# --- points -------------------------------------------------------------------------------------------


def record(phase: str, *, operation: bool = False) -> Match:
    """The status PUT that stores a record in this phase, with its operation or without."""

    def matches(path: str, verb: str, body: Object) -> bool:
        moves = _moves(path, verb, body)
        return any(move["phase"] == phase and bool(move.get("operation")) == operation for move in moves)

    return matches


def end_of_record(path: str, verb: str, body: Object) -> bool:
    """The status PUT that ends the record."""
    if _moves(path, verb, body) or not path.endswith("/netipallocations/web/status"):
        return False
    return any(entry.get("lastNode") == "n1" and entry.get("node") == "n3" for entry in body["status"]["addresses"])


def label(node: str) -> Match:
    """The PATCH of a node's labels."""

    def matches(path: str, verb: str, body: Object) -> bool:
        return verb == "patch" and path.endswith(f"/nodes/{node}") and "ip.ready" in body["metadata"]["labels"]

    return matches


def asks(kind: Kind) -> Callable[[Act], bool]:
    """A request of this kind to the cloud."""
    return lambda act: act.kind == kind


def _moves(path: str, verb: str, body: Object) -> list[Object]:
    if verb != "update" or not path.endswith("/netipallocations/web/status"):
        return []
    return [entry["move"] for entry in body["status"]["addresses"] if entry.get("move")]


def points(cloud: Cloud | type[Cloud], when: When, *, slow: bool) -> list[Point]:
    """The moments of law 7 at which one process after the other can be killed, in order.

    Args:
        cloud: the cloud.
        when: what the kill cuts off; see :class:`Trap`. ``pending``: only the process, while an operation runs.
        slow: whether operations take time.
    """
    slow = slow and cloud.operations
    steps: list[tuple[str, Match | None, Kind | None]] = [
        ("record Detaching", record("Detaching"), None),
        ("label off", label("n1"), None),
        ("detach", None, "detach"),
        ("operation of the detach", record("Detaching", operation=True), None),
        ("detach pending", None, "follow"),
        ("record Attaching", record("Attaching"), None),
        ("make room", None, "make room"),
        ("attach", None, "attach"),
        ("operation of the attach", record("Attaching", operation=True), None),
        ("attach pending", None, "follow"),
        ("label on", label("n3"), None),
        ("record Restoring", record("Restoring"), None),
        ("restore", None, "restore"),
        ("restore pending", None, "follow"),
        ("end of record", end_of_record, None),
    ]
    found = []
    for name, api, kind in steps:
        waiting = name.endswith("pending") or name.startswith("operation")
        if (waiting and not slow) or (waiting != (when == "pending")):
            continue
        if (kind == "make room" and cloud.provider != "gcp") or ("estor" in name and not cloud.before):
            continue
        moment = "before" if when == "pending" and kind else "after" if when == "pending" else when
        found.append(Point(f"{name}, {when}", moment, api, asks(kind) if kind else None, DURATION + 2.0))
    return found
