"""A cloud controller of one cluster without a hub: the composition behind ``hub cloud-controller``."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hub.controlling.cluster import PACE, Rights
from hub.controlling.run import Controlling
from hub.controlling.site import Reporter, Subject
from hub.election.elector import Timing
from hub.events.cloud import reporter_of
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess
from hub.kube.hub_access import load_hub_access
from hub.kube.resolver import LookupPool
from hub.model import Finding
from hub.observe.providers.catalog import Catalog
from hub.observe.providers.context import Limits
from hub.observe.providers.host import ProviderHost
from hub.observe.remote.access import Connector
from hub.observe.remote.fleet import Fleet
from hub.registry.spec import CloudSpec, ClusterSpec, KubeconfigInCluster, Registry
from hub.runtime.clock import Clock, SystemClock

BEAT: Final = 1.0
"""Seconds between two heartbeats."""
APPROVES: Final = "; hub approve cloud/"
"""How the end of a message begins that names an approval."""
WITHOUT_INGRESS: Final = (
    "kubectl patch service {name} -n {namespace} "
    '--subresource=status --type=merge -p \'{{"status":{{"loadBalancer":null}}}}\''
)
INSTEAD: Final = {
    "NodeDeletionWithheld": "; if its machine is gone for good, delete the Node: kubectl delete node {name}",
    "WrongAccount": " If it is, delete the Node: kubectl delete node {name}",
    "ForeignLoadBalancer": "; if no other controller has one and --cluster-name is right, this permits a new one: "
    + WITHOUT_INGRESS,
    "LoadBalancerVanished": "; if they were deleted, this permits new ones: " + WITHOUT_INGRESS,
}
"""Reason of a finding -> what to do where no approval is possible; other reasons end by themselves."""


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """The options of a cloud controller of one cluster.

    Attributes:
        name: the cluster's name in messages.
        cloud: what it does.
        kubeconfig: a file; "" = in-cluster, or as kubectl.
        server: overrides the API server's address; "" = does not.
        allow_api_hosts: hosts that the cloud's configuration may name.
        folder: relative paths of the configuration start here.
        leader_elect: whether the Lease is held.
        lease: namespace and name of the Lease.
        timing: times of the Lease.
        events: whether Events are written.
        pace: most writes to Nodes and Services per second, and in a row.
    """

    name: str
    cloud: CloudSpec
    kubeconfig: str = ""
    server: str = ""
    allow_api_hosts: frozenset[str] = frozenset()
    folder: str = "/"
    leader_elect: bool = True
    lease: tuple[str, str] = ("kube-system", "cloud-controller-manager")
    timing: Timing = field(default_factory=Timing)
    events: bool = True
    pace: tuple[float, float] = PACE


@dataclass(frozen=True, slots=True)
class OwnAccess(Connector):
    """The access of the cluster that the process is started for: the user's own kubeconfig, as kubectl reads it.

    Attributes:
        load: reads it.
    """

    load: Callable[[], ClusterAccess] = load_hub_access

    async def access(self, spec: ClusterSpec) -> ClusterAccess:
        """See :class:`Connector`."""
        del spec
        return await asyncio.to_thread(self.load)

    async def stamp(self, spec: ClusterSpec) -> object:
        """See :class:`Connector`."""
        del spec
        return None


@dataclass(frozen=True, slots=True)
class WithoutApprovals(Reporter):
    """Says what to do instead of an approval.

    Approvals are a ConfigMap of the hub, which a cloud controller's account has no right to read.

    Attributes:
        reporter: receives what is said.
    """

    reporter: Reporter

    def found(self, subject: Subject, findings: Sequence[Finding]) -> None:
        """See :class:`hub.controlling.site.Reporter`."""
        self.reporter.found(subject, [_without_approval(subject, finding) for finding in findings])

    def happened(self, subject: Subject, reason: str, message: str) -> None:
        """See :class:`hub.controlling.site.Reporter`."""
        self.reporter.happened(subject, reason, message)

    def ended(self, subject: Subject) -> None:
        """See :class:`hub.controlling.site.Reporter`."""
        self.reporter.ended(subject)


def _without_approval(subject: Subject, finding: Finding) -> Finding:
    text, found, _ = finding.message.partition(APPROVES)
    if not found:
        return finding
    instead = INSTEAD.get(finding.reason, "").format(name=subject.name, namespace=subject.namespace)
    return Finding(finding.reason, text + instead, finding.objects)


class CloudController:
    """The running controller; see :func:`assemble_controller`.

    Attributes:
        clock: where time comes from.
        controlling: the cluster.
        health: for the probes.
    """

    def __init__(self, options: ControllerOptions, clock: Clock, pool: LookupPool) -> None:
        self.options = options
        self.clock = clock
        self.beat = clock.now()
        self.catalog = Catalog()
        self.host = ProviderHost(
            self.catalog,
            clock=clock,
            folder=options.folder,
            limits=Limits(allow_api_hosts=options.allow_api_hosts, credentials_dir=options.folder),
        )
        self.fleet = Fleet(OwnAccess(clock, pool, load=self.access), self.host, clock, self._cluster_changed)
        self._identity = identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"
        rights = Rights(
            identity,
            lambda _: True,
            lambda _: 30.0,
            lambda _: False,
            elects=options.leader_elect,
            lease=options.lease,
            timing=options.timing,
            shared=False,
            pace=options.pace,
            grants="hub cloud-controller --print-rbac prints the rules that grant it",
        )
        self.controlling = Controlling(
            self.fleet,
            self.host,
            clock,
            rights,
            self.reporting,
        )
        self.fleet.on_nodes = self.controlling.nodes_changed

    def reporting(
        self, _: str, client: Callable[[], Awaitable[Client]], acts: Callable[[], bool]
    ) -> tuple[Reporter, Callable[[], Coroutine[Any, Any, None]]]:
        """The cluster's reporter, and what sends its Events; see :func:`hub.events.cloud.reporter_of`."""
        reporter, run = reporter_of(self.clock, self._identity, client, acts, enabled=self.options.events)
        return WithoutApprovals(reporter), run

    def access(self) -> ClusterAccess:
        """How to reach the cluster.

        Raises:
            KubeconfigError: there is no access to it.
        """
        found = load_hub_access(self.options.kubeconfig or None)
        return replace(found, server=self.options.server.rstrip("/")) if self.options.server else found

    def _cluster_changed(self, name: str) -> None:
        self.controlling.cluster_changed(name)

    async def run(self, stop: asyncio.Event) -> None:
        """Control the cluster until ``stop`` is set."""
        spec = ClusterSpec(self.options.name, None, KubeconfigInCluster(), cloud=self.options.cloud)
        registry = Registry("default", {spec.name: spec}, {})
        self.fleet.update(registry)
        self.controlling.update(registry.clusters)
        watch = asyncio.create_task(self.host.loops.watch(), name="event loops of clouds")
        try:
            while not stop.is_set():
                self.beat = self.clock.now()
                try:
                    await asyncio.wait_for(stop.wait(), BEAT)
                except TimeoutError:
                    continue
        finally:
            await self.controlling.close()
            watch.cancel()
            await self.fleet.close()
            await self.host.close()


@asynccontextmanager
async def assemble_controller(options: ControllerOptions, clock: Clock | None = None) -> AsyncIterator[CloudController]:
    """Build a cloud controller of one cluster.

    Raises:
        KubeconfigError: there is no access to the cluster.
    """
    clock, pool = clock or SystemClock(), LookupPool()
    try:
        made = CloudController(options, clock, pool)
        await asyncio.to_thread(made.access)
        yield made
    finally:
        pool.close()
