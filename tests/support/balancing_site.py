"""One cluster with the load balancer part, on a real API server, and a cloud in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hub.cloud.balancers import Balancer, Done, Record, Step
from hub.cloud.instances import CloudNode, InstanceAnswer
from hub.controlling.balancers import BalancerPart
from hub.controlling.cluster import PACE
from hub.controlling.pace import Pace
from hub.controlling.site import Observation, Outlook, Subject
from hub.controlling.told import Told
from hub.errors import HubError, NotLeader
from hub.kube.client import Client
from hub.model import Finding, Node, ObjectKey
from hub.plugin.clouds import CloudType
from hub.registry.spec import CloudBalancersSpec, CloudSpec, ProviderRef
from tests.support.api import Api, Object
from tests.support.balancing import TOY, ToyBalancers, ToyCloud
from tests.support.clocks import AheadClock

SERVICES = "/api/v1/namespaces/edge/services"
KEY = ObjectKey("edge", "web")


class ToyAccount:
    """Implements :class:`hub.controlling.site.Account`."""

    def __init__(self, cloud: ToyCloud, clock: AheadClock) -> None:
        self.wanted: Mapping[str, Balancer] = {}
        self.error: HubError | None = None
        self._balancers = ToyBalancers(cloud)
        self._clock = clock
        self._seen: Observation | None = None

    @property
    def type(self) -> CloudType | None:
        """The cloud's declaration."""
        return TOY

    async def opened(self) -> CloudType:
        """The cloud's declaration."""
        return TOY

    async def instances(self, nodes: Sequence[CloudNode]) -> Mapping[str, InstanceAnswer]:
        """There is no node part."""
        raise NotImplementedError

    def want(self, cluster: str, wanted: Mapping[str, Balancer]) -> None:
        """Note the wanted balancers."""
        del cluster
        self.wanted = wanted

    async def observe(self, begun_after: float) -> Observation:
        """The last observation, or a new one."""
        if self.error is not None:
            raise self.error
        if self._seen is None or self._seen.begun < begun_after:
            begun = self._clock.now()
            self._seen = Observation(await self._balancers.observe(tuple(self.wanted.values())), begun)
        return self._seen

    async def names(self, seen: Any) -> Mapping[str, tuple[str, ...]]:
        """The objects by name."""
        return self._balancers.names(seen)

    async def plan(
        self, want: Balancer | None, seen: Any, record: Record, made: Sequence[tuple[Step, Done]] = ()
    ) -> Outlook:
        """The plan after the steps in ``made``."""
        for step, done in made:
            seen = self._balancers.after(seen, step, done)
        ingress = self._balancers.ingress(want, seen, record) if want is not None else ()
        planned = tuple(self._balancers.plan(want, seen, record))
        return Outlook(planned, ingress, self._balancers.found(seen, record))

    async def perform(self, step: Step, seconds: float, admit: Callable[[], object]) -> Done:
        """Make one write."""
        assert seconds > 0
        admit()
        return await self._balancers.perform(step)


@dataclass
class Diary:
    """A reporter that remembers what it was told."""

    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def found(self, subject: Subject, findings: Sequence[Finding]) -> None:
        """All present findings."""
        self.findings[subject.name] = tuple(findings)

    def happened(self, subject: Subject, reason: str, message: str) -> None:
        """An occurrence."""
        del subject, message
        self.events.append(reason)

    def ended(self, subject: Subject) -> None:
        """The object is gone."""
        self.findings.pop(subject.name, None)


class ToySite:
    """Implements :class:`hub.controlling.site.Site`; tests change its attributes.

    Attributes:
        leads: whether this process may write.
    """

    def __init__(self, client: Client, **balancers: Any) -> None:
        self.name = "eu"
        self.uid = "c1"
        self.grants = "an administrator grants it"
        self.spec = CloudSpec(ProviderRef("toy"), "eu", balancers=CloudBalancersSpec(**balancers))
        self.clock = AheadClock()
        self.pace = Pace(self.clock, *PACE)
        self.cloud = ToyCloud(self.clock)
        self.account = ToyAccount(self.cloud, self.clock)
        self.nodes: dict[str, Node] = {}
        self.problem = ""
        self.suspect = False
        self.halted: tuple[str, str] | None = None
        self.creates_after = float("-inf")
        self.reporter = Diary()
        self.leads = True
        self.approvals: set[str] = set()
        self.fenced = 0
        self._client = client
        self.set_nodes("n1", "n2")

    def set_nodes(self, *names: str) -> None:
        """These are the Nodes now."""
        self.nodes = {name: Node(name, ready="True", provider_id=f"toy://{name}") for name in names}

    def fence(self) -> float:
        """Seconds for a request."""
        self.fenced += 1
        if not self.leads:
            raise NotLeader("another process writes")
        return 10.0

    def approved(self, digest: str) -> bool:
        """Whether a test approved it."""
        return digest in self.approvals

    async def client(self) -> Client:
        """The cluster's API."""
        return self._client


@dataclass
class Scene:
    """A running load balancer part, and the API server that people use."""

    site: ToySite
    api: Api
    part: BalancerPart

    @property
    def cloud(self) -> ToyCloud:
        """The cloud."""
        return self.site.cloud

    @property
    def told(self) -> Told | None:
        """What is known about the Service."""
        return self.part.told.get(KEY)

    def add(self, **spec: Any) -> Object:
        """Create the Service."""
        meta = {"name": KEY.name, **spec.pop("metadata", {})}
        ports = [{"name": "http", "port": 80}]
        return self.api.post(SERVICES, {"metadata": meta, "spec": {"type": "LoadBalancer", "ports": ports, **spec}})

    def service(self) -> Object | None:
        """The Service."""
        return self.api.find(f"{SERVICES}/{KEY.name}")

    def delete(self) -> None:
        """Delete the Service."""
        self.api.delete(f"{SERVICES}/{KEY.name}")

    def patch(self, body: Object, part: str = "") -> None:
        """Change the Service as a person."""
        self.api.patch(f"{SERVICES}/{KEY.name}{part}", body)

    def nodes(self, *names: str) -> None:
        """Change the Nodes."""
        gone = self.site.nodes.keys() - set(names)
        self.site.set_nodes(*names)
        self.part.nodes_changed(self.site.nodes.values(), gone)

    def ahead(self, seconds: float) -> None:
        """Let time pass, and the Services be looked at."""
        self.site.clock.ahead += seconds
        self.part.state_changed()

    async def state(self, state: str) -> Told:
        """Wait until the Service has this state."""
        await self.until(lambda: self.told is not None and self.told.state == state)
        told = self.told
        assert told is not None
        return told

    async def until(self, check: Callable[[], Any], seconds: float = 15.0) -> Any:
        """Wait until ``check`` returns something true; it may ask the API server."""
        async with asyncio.timeout(seconds):
            while not (found := await asyncio.to_thread(check)):  # noqa: ASYNC110 - the API server raises no event
                await asyncio.sleep(0.02)
        return found


@asynccontextmanager
async def running(site: ToySite, api: Api) -> AsyncIterator[Scene]:
    """Run the part until the end."""
    part = BalancerPart(site)
    task = asyncio.create_task(part.run())
    try:
        yield Scene(site, api, part)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def kinds(things: Iterable[Any]) -> list[str]:
    """The kinds of objects, sorted."""
    return sorted(thing.kind for thing in things)
