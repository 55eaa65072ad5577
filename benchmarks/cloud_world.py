"""Clusters with a fake Brightbox account each, and the cloud controllers that ``make bench-cloud`` compares on them.

The API servers are real; every answer of the clouds takes :data:`LATENCY`. The fakes run in the process that measures.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec
from hub_provider_brightbox.testing import CLIENT, SECRET, BrightboxFake, Served

from benchmarks.subjects import hub_command
from benchmarks.world import PARALLEL_STARTS, Api, Object, bounded, kubeconfig, node
from hub.registry.spec import CloudBalancersSpec
from tests.support import drop_in
from tests.support.api import ApiRefused
from tests.support.apiserver.cleaning import EDGE, clean
from tests.support.apiserver.process import Process
from tests.support.apiserver.server import ApiServer

LATENCY = 0.1
"""Seconds before each answer of the cloud."""
TAINT = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
SERVICES = f"/api/v1/namespaces/{EDGE}/services"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cloud-controller-manager"
CLEANINGS = 10
"""Times that the deletion of all objects is tried again if the API server does not answer in time."""
QUIET = 3.0
"""Seconds without a request of the cloud after which a controller has finished its work."""
HUB = "hub"


class Cluster:
    """An API server and its cloud; serves and watches inside ``async with``.

    Attributes:
        fake: the cloud.
        answered: time and request of all answers of the cloud.
        published: Service -> when it had an ingress.
        free: Node -> when it was without the taint of new Nodes.
        nodes: the present Nodes.
    """

    def __init__(self, api: Api, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.fake = BrightboxFake()
        self.fake.shown = self._answered
        self.answered: list[tuple[float, Served]] = []
        self.published: dict[str, float] = {}
        self.free: dict[str, float] = {}
        self.nodes: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self._random = random.Random(1)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(emptied, self.api.server)
        await self._stack.enter_async_context(self.fake)
        for path, see in ((SERVICES, self._service), ("/api/v1/nodes", self._node)):
            version = (await self.api.call("GET", f"{path}?limit=1"))["metadata"]["resourceVersion"]
            self._tasks.append(asyncio.create_task(self._watch(path, version, see)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    # --- what happens -------------------------------------------------------------------------------------

    def _answered(self, served: Served) -> None:
        self.answered.append((time.perf_counter(), served))

    async def _watch(self, path: str, version: str, see: Callable[[str, Object], None]) -> None:
        params = {"watch": "true", "timeoutSeconds": "7200", "resourceVersion": version}
        async with self.api.session.get(path, params=params) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                event = msgspec.json.decode(line)
                see(event["type"], event["object"])

    def _service(self, kind: str, service: Object) -> None:
        balancer = service.get("status", {}).get("loadBalancer") or {}
        if kind != "DELETED" and balancer.get("ingress"):
            self.published.setdefault(service["metadata"]["name"], time.perf_counter())

    def _node(self, kind: str, found: Object) -> None:
        name = found["metadata"]["name"]
        if kind == "DELETED":
            self.nodes.discard(name)
            return
        self.nodes.add(name)
        if all(taint["key"] != TAINT["key"] for taint in found["spec"].get("taints", ())):
            self.free.setdefault(name, time.perf_counter())

    # --- what people do -----------------------------------------------------------------------------------

    async def add_nodes(self, count: int, *, new: bool, within: float = 0.0) -> dict[str, float]:
        """Create servers and their Nodes, evenly within so many seconds; returns when each was created.

        Args:
            count: how many.
            new: whether they are as a kubelet registers them; else as a cloud controller leaves them.
            within: seconds; 0 = at once.
        """
        servers = [self.fake.account.add_server() for _ in range(count)]
        begin, made = time.perf_counter(), dict[str, float]()

        async def add(number: int, server: Object) -> None:
            await asyncio.sleep(max(0.0, begin + within * number / count - time.perf_counter()))
            made[server["id"]] = time.perf_counter()
            await self.api.call("POST", "/api/v1/nodes", self._registered(number, server, new=new))

        await bounded((lambda n=n, s=server: add(n, s) for n, server in enumerate(servers)), 16)
        return made

    def _registered(self, number: int, server: Object, *, new: bool) -> Object:
        body, name = node(0, number, self._random), server["id"]
        body["metadata"] = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        body["status"]["addresses"] = [{"type": "Hostname", "address": name}]
        if new:
            body["spec"] = {"taints": [TAINT]}
            return body
        zone, [card] = server["zone"]["handle"], server["interfaces"]
        pairs = {"zone": zone, "region": zone.rpartition("-")[0]}
        labels = {f"{prefix}/{key}": value for key, value in pairs.items() for prefix in ZONES}
        labels |= {f"{prefix}/instance-type": server["server_type"]["handle"] for prefix in TYPES}
        body["metadata"]["labels"] |= labels
        body["spec"] = {"providerID": f"brightbox://{name}"}
        body["status"]["addresses"] += [
            {"type": "ExternalDNS", "address": server["fqdn"]},
            {"type": "ExternalIP", "address": card["ipv4_address"]},
            {"type": "ExternalIP", "address": card["ipv6_address"]},
        ]
        return body

    async def add_services(self, names: Sequence[str]) -> None:
        """Create Services of type LoadBalancer with two ports."""
        ports = [{"name": "web", "port": 80}, {"name": "more", "port": 8080}]
        spec = {"type": "LoadBalancer", "ports": ports}
        bodies = [{"metadata": {"name": name}, "spec": spec} for name in names]
        await bounded((lambda body=body: self.api.call("POST", SERVICES, body) for body in bodies), 4)

    # --- waiting ------------------------------------------------------------------------------------------

    def requests(self, since: int = 0) -> list[Served]:
        """The requests that the cloud answered after the first ``since``."""
        return [served for _, served in self.answered[since:]]

    def last(self, text: str = "", since: int = 0) -> float:
        """When the last request that contains a text was answered; 0 = there was none."""
        return max((at for at, served in self.answered[since:] if text in served.text), default=0.0)

    async def quiet(self, seconds: float) -> bool:
        """Wait until the cloud has been asked nothing for :data:`QUIET`; False after so many seconds."""
        begin = time.perf_counter()
        return await reached(lambda: time.perf_counter() - max(self.last(), begin) > QUIET, seconds)

    def balanced(self, balancers: int) -> bool:
        """Whether so many balancers have all servers of the present Nodes."""
        found = self.fake.account.objects["load_balancers"].values()
        return sum({each["id"] for each in row["nodes"]} == self.nodes for row in found) == balancers

    # --- programs -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self, subject: str) -> AsyncGenerator[Process]:
        """Run a subject until the end of the block: ``hub`` as ``hub run`` works, or ``goccm-N`` with N workers.

        The Lease is deleted before, so that nothing waits for it.
        """
        workers = str(CloudBalancersSpec().concurrent) if subject == HUB else subject.rpartition("-")[2]
        program = drop_in.HUB if subject == HUB else (str(drop_in.goccm()),)
        path = kubeconfig(self.folder, self.api.server.name)
        flags = (f"--concurrent-service-syncs={workers}", "--node-monitor-period=5s")
        made = drop_in.controller(f"{subject}-{self.api.server.name}", program, path, self.fake.url, *flags)
        async with self.api.session.delete(LEASE), started(made):
            yield made


ZONES = ("failure-domain.beta.kubernetes.io", "topology.kubernetes.io")
TYPES = ("beta.kubernetes.io", "node.kubernetes.io")


def emptied(server: ApiServer) -> None:
    """Delete all objects; a busy API server may need several tries for hundreds of Nodes."""
    for _ in range(CLEANINGS):
        try:
            return clean(server.api)
        except ApiRefused as error:
            if error.status:
                raise
    return clean(server.api)


async def reached(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; False after so many seconds."""
    end = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > end:
            return False
        await asyncio.sleep(0.01)
    return True


async def writes(api: Api) -> int:
    """The write requests of Nodes and Services that the API server has served."""
    async with api.session.get("/metrics") as answer:
        text = await answer.text()
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in text.splitlines()
        if line.startswith("apiserver_request_total{")
        and any(f'resource="{kind}"' in line for kind in ("nodes", "services"))
        and any(f'verb="{verb}"' in line for verb in ("POST", "PUT", "PATCH", "APPLY", "DELETE"))
    )


@asynccontextmanager
async def servers(names: Iterable[str], folder: Path) -> AsyncGenerator[list[Api]]:
    """Run API servers, with the kubeconfigs of their admins in the folder.

    Raises:
        KitUnavailable: they are missing and cannot be built.
    """
    made = [ApiServer(name, folder / name, flags=["--audit-log-path="]) for name in names]
    try:
        await bounded((lambda server=server: asyncio.to_thread(server.start) for server in made), PARALLEL_STARTS)
        for server in made:
            server.kubeconfig(kubeconfig(folder, server.name))
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(Api(server)) for server in made]
    finally:
        for server in made:
            await asyncio.to_thread(server.stop)


@asynccontextmanager
async def started(process: Process) -> AsyncGenerator[Process]:
    """Run a process until the end of the block.

    Raises:
        RuntimeError: it ended by itself.
    """
    await asyncio.to_thread(process.start)
    try:
        yield process
        if not process.alive:
            raise RuntimeError(f"{process.name} has ended: {process.log_tail()}")
    finally:
        await asyncio.to_thread(process.stop)


@asynccontextmanager
async def one_hub(hub: Api, clusters: Mapping[str, Cluster], folder: Path) -> AsyncGenerator[Process]:
    """Run one hub that is the cloud controller of all clusters."""
    (folder / "client").write_text(CLIENT)
    (folder / "secret").write_text(SECRET)
    credential = {"client": {"file": "client"}, "secret": {"file": "secret"}}
    entries = [
        {
            "name": name,
            "kubeconfig": {"path": kubeconfig(folder, name).name},
            "cloud": {"provider": {"name": "brightbox", "config": {**credential, "url": cluster.fake.url}}},
        }
        for name, cluster in clusters.items()
    ]
    file = folder / "clusters.yaml"
    file.write_text(json.dumps({"version": 1, "clusters": entries}))
    argv = [*hub_command(), "run", "--registry", str(file), "--kubeconfig", str(kubeconfig(folder, hub.server.name))]
    argv += ["--health-probe-bind-address", "0", "--listen", "0", "--credentials-dir", str(folder)]
    argv += [part for cluster in clusters.values() for part in ("--allow-api-host", cluster.fake.host)]
    async with started(Process("hub of all", argv, folder / "hub.log")) as made:
        yield made
