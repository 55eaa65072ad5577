"""The allocations of a hub in virtual time: an API server in memory, a simulated cloud, and what is reported."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from ipaddress import IPv4Network
from typing import Any, Final, Self, cast

import pytest
from hub_testkit.addresses.cloud import CREDENTIAL, EPHEMERAL, SimulatedCloud
from hub_testkit.addresses.simulated import NAME, SimulatedPlugin, SimulatedProvider

from hub.allocating.run import Allocating
from hub.allocations.spec import NetIPAllocation, stamp
from hub.allocations.view import NodeKey
from hub.errors import Conflict, NotFound
from hub.events.allocations import EventReporter
from hub.events.recorder import Recorder
from hub.kube.client import Client
from hub.model import LOCAL, Finding
from hub.observe.providers.host import ProviderHost
from hub.observe.remote.fleet import Fleet
from hub.registry.spec import AccountSpec, AllocationLimits, AllocationsSpec, ProviderRef
from tests.support.allocations import KIND, allocation
from tests.support.api import Object
from tests.support.hub import node
from tests.support.loops import SameLoop
from tests.support.virtual import LoopClock
from tests.unit.observe.providers.plugins import catalog_of
from tests.unit.observe.remote.test_fleet import NoAccess

ONE, TWO = "198.18.0.1", "198.18.0.2"
BLOCK: Final = IPv4Network("198.18.0.0/24")
NODES: Final = "/api/v1/nodes"
EVENTS: Final = "/apis/events.k8s.io/v1/events"
LISTS: Final = {"nodes": "NodeList", "pods": "PodList", "netipallocations": "NetIPAllocationList"}


class _Stream:
    """A watch that ends with the test."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def follow(self, take: Callable[[bytes], None]) -> None:
        while True:
            take(await self.lines.get())


class FakeApi:
    """An API server in memory; pass it as a :class:`hub.kube.client.Client` with :attr:`client`.

    Attributes:
        objects: the objects by path.
        log: method, path and body of each request that changes something, also of a refused one.
        refusals: method and end of a path -> the error of such requests.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.log: list[tuple[str, str, Object]] = []
        self.refusals: dict[tuple[str, str], Exception] = {}
        self._watches: list[tuple[str, Mapping[str, str], _Stream]] = []
        self._version = 1

    @property
    def client(self) -> Client:
        """Itself."""
        return cast("Client", self)

    def put(self, path: str, object_: Object) -> None:
        """Create or replace an object, and tell the watches."""
        self._version += 1
        meta = {"name": path.rpartition("/")[2], **object_["metadata"], "resourceVersion": str(self._version)}
        meta.setdefault("uid", f"uid-{meta['name']}")
        if found := re.search("/namespaces/([^/]+)/", path):
            meta["namespace"] = found[1]
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self.objects[path] = {**object_, "metadata": meta}
        self._tell(path, kind, self.objects[path])

    def remove(self, path: str) -> None:
        """Delete an object, and tell the watches."""
        self._tell(path, "DELETED", self.objects.pop(path))

    def edit(self, path: str, **parts: Object) -> None:
        """Merge into the parts of an object."""
        object_ = self.objects[path]
        self.put(path, {**object_, **{part: {**object_.get(part, {}), **more} for part, more in parts.items()}})

    def _tell(self, path: str, kind: str, object_: Object) -> None:
        line = json.dumps({"type": kind, "object": object_}).encode()
        for collection, params, stream in self._watches:
            if _in(collection, path) and _selected(object_, params):
                stream.lines.put_nowait(line)

    async def reach(self) -> None:
        """Does nothing."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        admit: Callable[[], object] | None = None,
        **_: Any,
    ) -> bytes:
        """See :meth:`hub.kube.client.Client.request`."""
        await asyncio.sleep(0.01)
        if admit is not None:
            admit()
        sent = json.loads(body) if body else {}
        if method != "GET":
            self.log.append((method, path, sent))
        for (verb, end), error in self.refusals.items():
            if verb == method and path.endswith(end):
                raise error
        return json.dumps(self._answer(method, path, params or {}, sent)).encode()

    def _answer(self, method: str, path: str, params: Mapping[str, str], sent: Object) -> Object:
        match method:
            case "GET" if (kind := LISTS.get(path.rpartition("/")[2])) is not None:
                found = [one for name, one in self.objects.items() if _in(path, name) and _selected(one, params)]
                return {"kind": kind, "metadata": {"resourceVersion": str(self._version)}, "items": found}
            case "POST" if path.endswith("/events"):
                path = f"{path}/{sent['metadata']['name']}"
                self.put(path, sent)
            case "POST" if path.endswith("/eviction"):
                self.remove(self._existing(path.removesuffix("/eviction")))
                return {}
            case "DELETE":
                self.remove(self._existing(path))
                return {}
            case "PUT":
                object_ = self.objects[self._existing(path.removesuffix("/status"))]
                if sent["metadata"]["resourceVersion"] != object_["metadata"]["resourceVersion"]:
                    raise Conflict(HTTPStatus.CONFLICT, "Conflict")
                part = "status" if path.endswith("/status") else "metadata"
                path = path.removesuffix("/status")
                self.put(path, {**object_, part: sent[part]})
            case "PATCH":
                labels = {**self.objects[path]["metadata"].get("labels", {}), **sent["metadata"]["labels"]}
                self.edit(path, metadata={"labels": {key: text for key, text in labels.items() if text is not None}})
        return self.objects[self._existing(path)]

    def _existing(self, path: str) -> str:
        if path not in self.objects:
            raise NotFound(HTTPStatus.NOT_FOUND, "NotFound")
        return path

    @asynccontextmanager
    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[_Stream]:
        """See :meth:`hub.kube.client.Client.watch`."""
        made = path, params, _Stream()
        self._watches.append(made)
        try:
            yield made[2]
        finally:
            self._watches.remove(made)


def _in(collection: str, path: str) -> bool:
    parent = path.rpartition("/")[0]
    return collection in (parent, re.sub("/namespaces/[^/]+", "", parent))


def _selected(object_: Object, params: Mapping[str, str]) -> bool:
    node_name = params.get("fieldSelector", "").partition("spec.nodeName=")[2]
    return not node_name or object_.get("spec", {}).get("nodeName") == node_name


class Reported(EventReporter):
    """Sends Events, and keeps the present findings about each allocation."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.findings: dict[str, list[Finding]] = {}

    def found(self, allocation: NetIPAllocation, findings: Sequence[Finding]) -> None:
        """Keep the findings."""
        self.findings[allocation.metadata.name] = list(findings)
        super().found(allocation, findings)


class Scene:
    """ONE at n1 and TWO at n2 since long ago; n3 is free. Use it as a context, in which the hub leads.

    Attributes:
        clouds: the clouds by name; the first one is ``main``.
        asked: the addresses that the cloud was asked about.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *, own: str = "", cuts: Iterable[Any] = ()) -> None:
        patch.setenv("CREDENTIAL", CREDENTIAL)
        self.clock = LoopClock()
        self.api = FakeApi()
        self.cloud = SimulatedCloud(self.clock)
        self.cloud.latency = 0.05  # an answer must be newer than what happened before it
        self.asked: set[str] = set()
        self._recorder = Recorder(self.api.client, self.clock, lambda: True, "hub-0")
        self.reported = Reported(self._recorder)
        asked = self.asked

        class Noting(SimulatedProvider):
            async def describe(self, addresses: Sequence[str], /) -> Mapping[str, Any]:
                asked.update(addresses)
                return await super().describe(addresses)

        self.clouds = {"main": self.cloud}
        [type_] = SimulatedPlugin(self.clouds, cuts, Noting).hub_register_providers()
        catalog = catalog_of(type_)
        catalog.load(NAME)  # in a thread, while the virtual time must stand still
        self._host = ProviderHost(catalog, clock=self.clock, folder="/nowhere", start_loop=SameLoop)
        self.fleet = Fleet(NoAccess(self.clock, cast("Any", None)), self._host, self.clock, lambda _: None)
        key = NodeKey(LOCAL, own) if own else None
        self.hub = Allocating(
            self.api.client, self.fleet, self._host, self.clock, lambda: 10.0, "hub-0", self.reported, lambda: (), key
        )
        self.fleet.on_nodes = self.hub.nodes_changed
        self.account = account("main")
        self.spec = AllocationsSpec({"main": self.account}, enforce=True, limits=AllocationLimits(moves=1.0))
        ids = {name: self.add_node(name) for name in ("n1", "n2", "n3")}
        entries = []
        for address, name in ((ONE, "n1"), (TWO, "n2")):
            self.cloud.reserve(address)
            self.cloud.hold(address, name)
            self.cloud.instance(name).ephemeral = ""
            self.api.edit(f"{NODES}/{name}", metadata={"labels": {"ip.ready": "true"}})
            entry = {"address": address, "state": "Attached", "node": name, "instance": ids[name]}
            entries.append({**entry, "before": EPHEMERAL, "since": stamp(self.clock.wall() - 86_400)})
        self.allocate("web", [ONE, TWO], {"cluster": "local", "addresses": entries})

    def add_node(self, name: str) -> str:
        """Add a node with an instance, and return the id of the instance."""
        made = self.cloud.add_instance(name, ephemeral=True)
        self.api.put(f"{NODES}/{name}", {**node(name), "spec": {"providerID": made.provider_id}})
        return self.cloud.instance(name).id

    def allocate(self, name: str, addresses: Sequence[str], status: Object | None = None, **spec: Any) -> str:
        """Create an allocation, and return its path."""
        made = allocation(name, reservedIPs=list(addresses), **spec)
        made["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{len(self.api.objects):02}Z"
        path = f"{KIND}/{name}"
        self.api.put(path, made | ({"status": status} if status else {}))
        return path

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Cordon a node, or uncordon it."""
        self.api.edit(f"{NODES}/{name}", spec={"unschedulable": on})

    def ready(self, name: str, *, on: bool) -> None:
        """Make a node Ready or not."""
        self.api.edit(f"{NODES}/{name}", status=node(name, ready=on)["status"])

    def status(self, name: str = "web") -> Object:
        """The status of an allocation."""
        return dict(self.api.objects[f"{KIND}/{name}"].get("status") or {})

    def entry(self, address: str = ONE, name: str = "web") -> Object:
        """The status of an address."""
        return next((one for one in self.status(name).get("addresses", ()) if one["address"] == address), {})

    def condition(self, type_: str, name: str = "web") -> Object:
        """A condition of an allocation."""
        return next((one for one in self.status(name).get("conditions", ()) if one["type"] == type_), {})

    def labelled(self) -> list[str]:
        """The nodes with the label."""
        nodes = [found for path, found in self.api.objects.items() if _in(NODES, path)]
        return sorted(one["metadata"]["name"] for one in nodes if "ip.ready" in one["metadata"].get("labels", {}))

    def reasons(self, name: str = "web") -> list[str]:
        """The reasons of the present findings about an allocation."""
        return [finding.reason for finding in self.reported.findings.get(name, ())]

    def events(self, name: str = "web") -> dict[str, str]:
        """The reasons of the Events on an allocation, each with the last note."""
        found = [one for path, one in self.api.objects.items() if _in(EVENTS, path)]
        return {event["reason"]: event["note"] for event in found if event["regarding"]["name"] == name}

    def written(self) -> list[tuple[str, str]]:
        """Method and path of the changes that the API server was asked for, without statuses and Events."""
        return [(method, path) for method, path, _ in self.api.log if not path.endswith(("/status", "/events"))]

    async def __aenter__(self) -> Self:
        self._sending = asyncio.create_task(self._recorder.run())
        self.hub.update(self.spec)
        self.hub.set_leading(leading=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        await self.hub.close()
        await self.fleet.close()
        await self._host.close()


def account(name: str, cloud: str = "main", **more: Any) -> AccountSpec:
    """An account of a simulated cloud."""
    config = json.dumps({"cloud": cloud, "credential": {"env": "CREDENTIAL"}})
    return AccountSpec(name, ProviderRef(NAME, config), (BLOCK,), interval=10.0, **more)
