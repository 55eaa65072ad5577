"""The plugin API of the cloud controller: instances behind Nodes, and load balancers of Services.

A provider type offers it with ``ProviderType.cloud``, a function that returns a :class:`CloudType`. The type's name is
the cloud's name in ``clusters[].cloud.provider`` and in ``hub cloud-controller --cloud-provider``. The hub opens one
cloud for each configuration, in the type's own event loop; all clusters with the same configuration share it.

A plugin reads, and makes single writes. The hub decides when; it repeats, waits, limits and remembers. So a plugin has
no loop, no retry, no cache of its own, and its ``plan`` is a pure function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hub.cloud.balancers import (
    Annotation,
    Balancer,
    BalancerNode,
    BalancerPort,
    Done,
    Ingress,
    Intent,
    Marker,
    Notice,
    Planned,
    Record,
    Refused,
    Setting,
    Step,
    Wait,
)
from hub.cloud.instances import Absent, CloudNode, Instance, InstanceAnswer, NodeAddress, Unknown
from hub.plugin.spec import CloudConflict, CloudRefusal, HubContext, NoConfig, QuotaExceeded, Uncertain

if TYPE_CHECKING:
    import msgspec
    from pydantic import BaseModel

__all__ = [
    "Absent",
    "Annotation",
    "Balancer",
    "BalancerNode",
    "BalancerPort",
    "Balancers",
    "Cloud",
    "CloudConflict",
    "CloudContext",
    "CloudNode",
    "CloudRefusal",
    "CloudType",
    "Done",
    "Ingress",
    "Instance",
    "InstanceAnswer",
    "Instances",
    "Intent",
    "Marker",
    "NodeAddress",
    "Notice",
    "Planned",
    "QuotaExceeded",
    "Record",
    "Refused",
    "Setting",
    "Step",
    "Uncertain",
    "Unknown",
    "Wait",
]


class CloudContext(Protocol):
    """The hub's services for one cloud."""

    @property
    def hub(self) -> HubContext:
        """The context of the plugin: clock, HTTP session, credentials, threads, metrics."""
        ...

    @property
    def name(self) -> str:
        """The clusters that use the cloud, for messages."""
        ...

    @property
    def folder(self) -> str:
        """The absolute path of the registry's folder, to which relative paths in a configuration refer."""
        ...

    async def read_file(self, path: str, /, *, limit: int) -> bytes:
        """As :meth:`hub.plugin.ClusterContext.read_file`."""
        ...

    async def lookup(self, host: str, /) -> tuple[str, ...]:
        """The IP addresses of a host name by DNS, sorted; () if the name has none.

        Raises:
            TransientProviderError: DNS gave no answer.
        """
        ...

    def changed(self) -> None:
        """Make the hub ask and observe again soon."""
        ...


class Instances(Protocol):
    """Finds the machines behind Nodes."""

    async def instances(self, nodes: Sequence[CloudNode], /) -> Mapping[str, InstanceAnswer]:
        """Node name -> answer, for Nodes of one cluster; one that is left out counts as Unknown.

        Absent means that a complete answer does not have the machine; a broken or partial answer raises, or is Unknown.
        A Node without a providerID is found by what the cloud documents, such as its name. A providerID of another
        form than ``CloudType.provider_id`` never gets here. The hub cancels a call after 30 s.

        Raises:
            TransientProviderError, TerminalProviderError: as for :class:`hub.plugin.NodeProvider`.
        """
        ...


class Balancers(Protocol):
    """Reads, plans and writes the objects of load balancers. ``seen`` is the plugin's own frozen value."""

    async def observe(self, wanted: Collection[Balancer], /) -> Any:
        """Everything that ``plan`` needs, for all Services of all clusters that share the cloud.

        Args:
            wanted: the balancers that Services want, for details that lists lack; other objects must be there too.

        Raises:
            ProviderError: something is missing or broken: an observation is complete, or it is none.
        """
        ...

    def names(self, seen: Any, /) -> Mapping[str, tuple[str, ...]]:
        """Name -> the objects of that name, each as ``kind id``. Pure."""
        ...

    def plan(self, want: Balancer | None, seen: Any, record: Record, /) -> Sequence[Planned]:
        """All steps from ``seen`` to what is wanted, in order. Pure and deterministic.

        The hub makes the first step only, and plans again with what it answered. Later steps are shown to operators;
        where they depend on an id that does not exist yet, their text says so.

        Args:
            want: what the Service wants; None = nothing: delete what is ours, and nothing else.
            seen: the last observation, with the answers to later steps (see :meth:`after`).
            record: what the hub remembers. Ids in it that are not in ``seen`` are objects that are gone.

        Returns:
            () if everything is as wanted.
        """
        ...

    async def perform(self, step: Step, /) -> Done:
        """Make one write: exactly one request that changes something.

        Raises:
            Uncertain: the request was sent and has no complete answer.
            CloudConflict, QuotaExceeded, CloudRefusal, TransientProviderError, TerminalProviderError: nothing was made.
        """
        ...

    def after(self, seen: Any, step: Step, done: Done, /) -> Any:
        """``seen`` as it is once the step is made. Pure; applying a step twice gives the same as once.

        The hub applies the steps of the last 30 s to each new observation, since a cloud's lists may lag behind.
        """
        ...

    def found(self, seen: Any, record: Record, /) -> Mapping[str, str]:
        """Kind -> id of the objects that are the balancer's, by the record's ids, by name and by marker. Pure."""
        ...

    def ingress(self, want: Balancer, seen: Any, record: Record, /) -> tuple[Ingress, ...]:
        """Where the balancer can be reached; () while it cannot. Pure."""
        ...


class Cloud(Protocol):
    """An open cloud."""

    @property
    def instances(self) -> Instances | None:
        """None if the cloud has no node part."""
        ...

    @property
    def balancers(self) -> Balancers | None:
        """None if the cloud has no load balancers."""
        ...


@dataclass(frozen=True, slots=True)
class CloudType:
    """The capability's declaration, which the function ``ProviderType.cloud`` returns.

    Attributes:
        open: called once for each configuration with the context, the validated configuration and the value that the
            type's ``shared`` yielded (None without it); returns an async context manager that yields a :class:`Cloud`.
        provider_id: matches a whole ``spec.providerID`` of this cloud; group ``id`` is the machine's id.
        config: the model of ``clusters[].cloud.provider.config``.
        prefix: what the keys of ``annotations`` begin with; unknown keys with it are reported.
        annotations: what Services may ask for.
        parts: what the cloud has.
        settle: seconds after the last change of nodes until balancers follow, and at most after the first.
    """

    open: Callable[[CloudContext, Any, Any], AbstractAsyncContextManager[Cloud]]
    provider_id: re.Pattern[str]
    config: type[BaseModel | msgspec.Struct] = NoConfig
    prefix: str = ""
    annotations: tuple[Annotation, ...] = ()
    parts: frozenset[Literal["nodes", "load-balancers"]] = field(
        default_factory=lambda: frozenset(("nodes", "load-balancers"))
    )
    settle: tuple[float, float] = (2.0, 10.0)
