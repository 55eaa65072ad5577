"""A cluster and its cloud, as the node part of the cloud controller sees them, and as a test writes them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from hub.cloud.instances import Absent, CloudNode, Instance, InstanceAnswer, NodeAddress
from hub.controlling.cluster import PACE
from hub.controlling.nodes import NodePart
from hub.controlling.pace import Pace
from hub.controlling.site import Subject
from hub.errors import ApiError, HubError, Invalid, NotFound, NotLeader
from hub.kube.wire import controlled_node
from hub.model import Finding, Node
from hub.plugin.clouds import CloudType
from hub.registry.spec import CloudNodesSpec, CloudSpec, ProviderRef
from hub.runtime.clock import Clock
from tests.support.json_patch import TestFailed, patched

TYPE = CloudType(open=lambda *_: None, provider_id=re.compile(r"c://(?P<id>[0-9a-z]+)"))  # type: ignore[arg-type]
UNINITIALIZED = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
OLD = "2020-01-01T00:00:00Z"


def machine(name: str, **more: Any) -> Instance:
    """The machine of a Node."""
    addresses = (NodeAddress("Hostname", name), NodeAddress("ExternalIP", "198.51.100.7"))
    return Instance(f"c://{name}", **{"addresses": addresses, "zone": "z-a", "region": "z", **more})


class ScriptedAccount:
    """A cloud that answers what a test says.

    Attributes:
        machines: by the name of their Node.
        questions: the names in each question.
        error: raised instead of an answer.
        seconds: that an answer takes.
    """

    def __init__(self) -> None:
        self.machines: dict[str, Instance] = {}
        self.questions: list[list[str]] = []
        self.error: HubError | None = None
        self.seconds = 0.0
        self.type: CloudType | None = None

    async def opened(self) -> CloudType:
        """Open the cloud."""
        if self.type is None:
            await asyncio.sleep(0.01)
        self.type = TYPE
        return TYPE

    async def instances(self, nodes: Sequence[CloudNode]) -> Mapping[str, InstanceAnswer]:
        """Answer a question."""
        self.questions.append([node.name for node in nodes])
        machines = dict(self.machines)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return {node.name: machines.get(node.name, Absent("no server")) for node in nodes}


class Notes:
    """A reporter that keeps everything.

    Attributes:
        events: (reason, name of the Node).
        findings: name of the Node -> reasons of its present findings.
        began: (reason, name of the Node) of each finding, whenever it began.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.findings: dict[str, list[str]] = {}
        self.began: list[tuple[str, str]] = []

    def found(self, subject: Subject, findings: Sequence[Finding]) -> None:
        """See Reporter."""
        reasons = [finding.reason for finding in findings]
        self.began += [
            (reason, subject.name) for reason in reasons if reason not in self.findings.get(subject.name, ())
        ]
        self.findings[subject.name] = reasons

    def happened(self, subject: Subject, reason: str, message: str) -> None:
        """See Reporter."""
        assert message
        self.events.append((reason, subject.name))

    def ended(self, subject: Subject) -> None:
        """See Reporter."""
        self.findings.pop(subject.name, None)


class ScriptedSite:
    """A cluster whose Nodes and right to write a test sets; see :class:`hub.controlling.site.Site`."""

    name = "eu"
    uid = "uid-of-eu"
    grants = "an administrator grants it"
    creates_after = float("-inf")

    def __init__(self, clock: Clock, connect: Callable[[], Awaitable[Any]], **spec: Any) -> None:
        self.spec = CloudSpec(ProviderRef("scripted"), "eu", nodes=CloudNodesSpec(**spec))
        self.account: Any = ScriptedAccount()
        self.reporter = Notes()
        self.nodes: dict[str, Node] = {}
        self.clock = clock
        self.pace = Pace(clock, *PACE)
        self.problem = ""
        self.suspects_itself = False
        self.judged = 0
        self.halted: tuple[str, str] | None = None
        self.approvals: set[str] = set()
        self.fences = 0
        self.expired = False
        self._connect = connect
        self.part = NodePart(self)

    @property
    def suspect(self) -> bool:
        """Whether the hub's own network is the likelier cause; ``judged`` counts how often deletions are decided."""
        self.judged += 1
        return self.suspects_itself

    def fence(self) -> float:
        """Seconds that a write may take."""
        self.fences += 1
        if self.halted is not None or self.expired:
            raise NotLeader("not now")
        return 20.0

    def approved(self, digest: str) -> bool:
        """Whether an operator approved a hash."""
        return digest in self.approvals

    async def client(self) -> Any:
        """The cluster's API."""
        return await self._connect()

    def take(self, nodes: Mapping[str, Node], changed: Iterable[Node], gone: Iterable[str]) -> None:
        """The watch has brought something."""
        self.nodes = dict(nodes)
        self.part.nodes_changed(changed, gone)


class NodesApi:
    """The Nodes of an API server in memory, with a watch that lags.

    Attributes:
        documents: the Nodes.
        log: (method, path) of each request.
        errors: name of a Node -> raised instead of an answer to a write.
        lag: seconds until the watch brings a change.
        seconds: that a write takes.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.log: list[tuple[str, str]] = []
        self.errors: dict[str, HubError] = {}
        self.lag = 0.05
        self.seconds = 0.01
        self.in_flight = self.most_in_flight = 0
        self.site: ScriptedSite
        self._known: dict[str, Node] = {}
        self._delivered: dict[str, int] = {}
        self._version = 0

    def node(self, name: str, *, ready: str = "True", new: bool = False, **meta: Any) -> None:
        """Register a Node, as a kubelet does."""
        self._version += 1
        metadata = {"name": name, "uid": f"{name}-{self._version}", "creationTimestamp": OLD, "labels": {"a": "b"}}
        spec = {"taints": [dict(UNINITIALIZED)]} if new else {"providerID": f"c://{name}", "taints": []}
        addresses = [{"type": "Hostname", "address": name}]
        if not new:
            addresses.append({"type": "ExternalIP", "address": "198.51.100.7"})
        self.documents[name] = {"metadata": {**metadata, **meta}, "spec": spec, "status": {"addresses": addresses}}
        self.ready(name, ready)

    def ready(self, name: str, status: str) -> None:
        """Set a Node's condition Ready."""
        self.documents[name]["status"]["conditions"] = [{"type": "Ready", "status": status}]
        self.changed(name)

    def changed(self, name: str) -> None:
        """The Node has changed; the watch says so after a while."""
        self._version += 1
        if name in self.documents:
            self.documents[name]["metadata"]["resourceVersion"] = str(self._version)
        body = json.dumps(self.documents[name]).encode() if name in self.documents else None
        asyncio.get_running_loop().call_later(self.lag, self._deliver, name, body, self._version)

    def _deliver(self, name: str, body: bytes | None, version: int) -> None:
        if version < self._delivered.get(name, 0):
            return  # the loop keeps no order among timers of one time
        self._delivered[name] = version
        before = self._known.pop(name, None)
        if body is None:
            self.site.take(self._known, (), [name] if before is not None else [])
            return
        node, _ = controlled_node(body)
        self._known[name] = before if before is not None and before == node else node
        self.site.take(self._known, [] if before == node else [node], ())

    def writes(self, name: str = "") -> list[tuple[str, str]]:
        """The writes, to one Node or to all."""
        return [each for each in self.log if each[0] != "GET" and (not name or name in each[1].split("/"))]

    async def connect(self) -> Any:
        """The client."""
        return self

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        timeout: float = 0.0,  # noqa: ASYNC109 - a Client
        content_type: str = "",
        admit: Callable[[], object] | None = None,
    ) -> bytes:
        """Answer a request after a while."""
        assert timeout > 0
        if admit is not None:
            admit()
        self.log.append((method, path))
        name = path.split("/")[4]
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        if method != "GET" and name in self.errors:
            raise self.errors[name]
        if name not in self.documents:
            raise NotFound(404)
        if method == "PATCH":
            assert content_type == "application/json-patch+json"
            self._patch(name, json.loads(body))
        elif method == "DELETE":
            self._delete(name, json.loads(body)["preconditions"])
        return json.dumps(self.documents.get(name, {})).encode()

    def _patch(self, name: str, patch: Any) -> None:
        try:
            self.documents[name] = patched(self.documents[name], patch)
        except TestFailed as error:
            raise Invalid(422, "Invalid", str(error)) from error
        self.changed(name)

    def _delete(self, name: str, preconditions: Mapping[str, str]) -> None:
        meta = self.documents[name]["metadata"]
        if preconditions != {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}:
            raise ApiError(409, "Conflict")
        del self.documents[name]
        self.changed(name)
