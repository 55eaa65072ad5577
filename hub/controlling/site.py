"""One cluster with a cloud controller, as its two parts see it: the node part and the load balancer part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hub.cloud.balancers import Balancer, Done, Ingress, Planned, Record, Step
from hub.cloud.instances import CloudNode, InstanceAnswer
from hub.controlling.pace import Pace
from hub.kube.client import Client
from hub.model import Finding, Node
from hub.plugin.clouds import CloudType
from hub.registry.spec import CloudSpec
from hub.runtime.clock import Clock


class Observation(NamedTuple):
    """What a cloud has.

    Attributes:
        value: the plugin's own value, for the methods of :class:`hub.plugin.clouds.Balancers`.
        begun: ``Clock.now()`` at which the observation began.
    """

    value: Any
    begun: float


class Outlook(NamedTuple):
    """What a plugin makes of an observation.

    Attributes:
        planned: see :meth:`hub.plugin.clouds.Balancers.plan`.
        ingress: where the balancer can be reached; () if nothing is wanted.
        found: kind -> id of the objects that belong to the balancer.
    """

    planned: tuple[Planned, ...]
    ingress: tuple[Ingress, ...] = ()
    found: Mapping[str, str] = {}


class Account(Protocol):
    """An open cloud, shared by all clusters with the same configuration. All methods raise HubError.

    Calls run in the plugin's event loop with a deadline; a plugin that raises or hangs only fails the call.
    """

    @property
    def type(self) -> CloudType | None:
        """The cloud's declaration; None until it was loaded for the first time."""
        ...

    async def opened(self) -> CloudType:
        """Open the cloud if necessary, and return its declaration."""
        ...

    async def instances(self, nodes: Sequence[CloudNode]) -> Mapping[str, InstanceAnswer]:
        """See :class:`hub.plugin.clouds.Instances`; the answer has every Node. Clusters that ask at once may share."""
        ...

    def want(self, cluster: str, wanted: Mapping[str, Balancer]) -> None:
        """Note the balancers that a cluster's Services want, by name, for the next observation."""
        ...

    async def observe(self, begun_after: float) -> Observation:
        """The last observation that began at or after this time; makes one if there is none, shared by all who wait."""
        ...

    async def names(self, seen: Any) -> Mapping[str, tuple[str, ...]]:
        """See :class:`hub.plugin.clouds.Balancers`."""
        ...

    async def plan(
        self, want: Balancer | None, seen: Any, record: Record, made: Sequence[tuple[Step, Done]] = ()
    ) -> Outlook:
        """The plan, the ingress and the objects, for ``seen`` after the steps in ``made``."""
        ...

    async def perform(self, step: Step, seconds: float, admit: Callable[[], object]) -> Done:
        """Make one write; ``admit`` is called right before it, in the hub's loop, and its error ends the call.

        A limited number of writes of one account are in flight; the time in the queue does not count.
        """
        ...


class Subject(NamedTuple):
    """The object that an Event is about: ``kind`` is Node or Service; a Node has no namespace."""

    kind: str
    namespace: str
    name: str
    uid: str


class Reporter(Protocol):
    """Turns findings and occurrences into Events in the object's own cluster."""

    def found(self, subject: Subject, findings: Sequence[Finding]) -> None:
        """All present findings about an object; those that are missing have ended."""
        ...

    def happened(self, subject: Subject, reason: str, message: str) -> None:
        """An occurrence."""
        ...

    def ended(self, subject: Subject) -> None:
        """The object is gone."""
        ...


class Site(Protocol):
    """One cluster. Its nodes and its right to write may change at any time."""

    @property
    def name(self) -> str:
        """The cluster's name in the registry."""
        ...

    @property
    def uid(self) -> str:
        """UID of the cluster's kube-system Namespace; "" while it is not known: nothing may then be created."""
        ...

    @property
    def spec(self) -> CloudSpec:
        """The cluster's ``cloud`` section."""
        ...

    @property
    def account(self) -> Account:
        """The cluster's cloud."""
        ...

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All Nodes as last known, with ``uid`` and ``provided_ips``."""
        ...

    @property
    def problem(self) -> str:
        """Why the Nodes are not current; "" if they are."""
        ...

    @property
    def suspect(self) -> bool:
        """Whether so many clusters are unreachable that the hub's own network is the likelier cause."""
        ...

    @property
    def halted(self) -> tuple[str, str] | None:
        """(reason, message) why nothing may be written now, such as Observe, Standby or OtherCloudController."""
        ...

    @property
    def creates_after(self) -> float:
        """``Clock.now()`` before which no object may be created in the cloud, and no observation counts for that.

        After a takeover from a writer that had not released its Lease, its last creations may not be visible yet.
        """
        ...

    @property
    def grants(self) -> str:
        """What gives the hub's account the rights that it needs in the cluster, as the end of a sentence."""
        ...

    @property
    def pace(self) -> Pace:
        """Bounds the writes to Nodes and Services of the cluster."""
        ...

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        ...

    @property
    def reporter(self) -> Reporter:
        """Receives findings and occurrences."""
        ...

    def fence(self) -> float:
        """Seconds that a request may take if it starts now; call it right before every write.

        Raises:
            NotLeader: nothing may be written now.
        """
        ...

    def approved(self, digest: str) -> bool:
        """Whether an operator approved this hash with ``hub approve cloud/CLUSTER HASH``."""
        ...

    async def client(self) -> Client:
        """The cluster's API.

        Raises:
            HubError: the cluster cannot be contacted.
        """
        ...
