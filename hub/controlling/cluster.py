"""One cluster with a cloud controller: what is known of it, whether this process may write, and its two parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

from hub.controller.rights import IDENTITY, NAMESPACE, PART_RULES, Right, lease_rules, needed_parts, rights_of
from hub.controlling.account import OpenAccount
from hub.controlling.balancers import BalancerPart
from hub.controlling.duty import LEASE, LEASE_OF_CLASS, MANY, Duty
from hub.controlling.nodes import NodePart
from hub.controlling.pace import Pace
from hub.controlling.rights import Reviewed, lacks
from hub.controlling.site import Reporter
from hub.election.elector import Timing
from hub.errors import ClusterUnreachable, NotLeader
from hub.kube.client import Client
from hub.model import Node
from hub.observe.remote.fleet import Fleet
from hub.registry.spec import CloudSpec, KubeconfigInCluster
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise

log = logging.getLogger(__name__)

PACE: Final = (20.0, 30.0)
"""Writes to one cluster per second, and in a row: client-go's limits of Kubernetes' cloud controllers."""
CONNECT_SECONDS: Final = 5.0
"""Seconds that a request waits for a connection to its cluster."""


class Rights:
    """What a process may do, independently of any cluster.

    Args:
        identity: the holder of the clusters' Leases.
        acts_for: whether this process acts for a cluster, among the replicas of the hub.
        check: seconds that a write for a cluster may take if it starts now; raises NotLeader.
        approved: whether an operator approved a hash.
        act: False for --dry-run and --once.
        elects: whether the clusters' Leases are held at all.
        lease: (namespace, name) of the Lease; None = the usual one.
        timing: the times of the Leases.
        shared: whether all replicas of the hub use this identity.
        grants: what grants rights in a cluster; "" = that depends on how the hub reaches the cluster.
        pace: most writes to Nodes and Services of a cluster per second, and in a row.
    """

    def __init__(
        self,
        identity: str,
        acts_for: Callable[[str], bool],
        check: Callable[[str], float],
        approved: Callable[[str], bool],
        *,
        act: bool = True,
        elects: bool = True,
        lease: tuple[str, str] | None = None,
        timing: Timing = MANY,
        shared: bool = True,
        grants: str = "",
        pace: tuple[float, float] = PACE,
    ) -> None:
        self.identity = identity
        self.acts_for = acts_for
        self.check = check
        self.approved = approved
        self.act = act
        self.elects = elects
        self.lease = lease
        self.timing = timing
        self.shared = shared
        self.grants = grants
        self.pace = pace


class ControlledCluster:
    """Implements :class:`hub.controlling.site.Site`.

    Args:
        name: the cluster's name in the registry.
        spec: its ``cloud`` section.
        account: its cloud.
        fleet: the remote clusters.
        clock: where time comes from.
        rights: what this process may do.
        reporter: receives findings and occurrences.

    Attributes:
        nodes_part: None if it is off.
        balancers_part: None if it is off.
        duty: the Lease; None without an election.
        reviewed: the rights of the hub's account in the cluster.
    """

    def __init__(
        self,
        name: str,
        spec: CloudSpec,
        account: OpenAccount,
        fleet: Fleet,
        clock: Clock,
        rights: Rights,
        reporter: Reporter,
    ) -> None:
        self._name = name
        self._spec = spec
        self._account = account
        self._fleet = fleet
        self._clock = clock
        self._rights = rights
        self._reporter = reporter
        self._duty_was: str | None = None
        self._since = clock.wall()
        self._tasks: list[asyncio.Task[None]] = []
        class_ = spec.balancers.class_ if spec.balancers is not None else ""
        namespace, lease = self._lease = rights.lease or (NAMESPACE, LEASE_OF_CLASS if class_ else LEASE)
        self.duty = (
            Duty(
                name,
                self.client,
                rights.identity,
                clock,
                self.state_changed,
                name=lease,
                namespace=namespace,
                timing=rights.timing,
                shared=rights.shared,
                grants=lambda: self.grants,
            )
            if rights.elects and rights.act and spec.manage
            else None
        )
        self._pace = Pace(clock, *rights.pace)
        self.reviewed = Reviewed(self.client, self._needs, self._rights_changed)
        self.nodes_part = NodePart(self) if spec.nodes is not None else None
        self.balancers_part = BalancerPart(self) if spec.balancers is not None else None

    # --- what the parts see -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See :class:`hub.controlling.site.Site`."""
        return self._name

    @property
    def uid(self) -> str:
        """See :class:`hub.controlling.site.Site`."""
        unit = self._fleet.clusters.get(self._name)
        return unit.uid if unit is not None else ""

    @property
    def spec(self) -> CloudSpec:
        """See :class:`hub.controlling.site.Site`."""
        return self._spec

    @property
    def account(self) -> OpenAccount:
        """See :class:`hub.controlling.site.Site`."""
        return self._account

    @property
    def nodes(self) -> Mapping[str, Node]:
        """See :class:`hub.controlling.site.Site`."""
        unit = self._fleet.clusters.get(self._name)
        return unit.nodes if unit is not None else {}

    @property
    def problem(self) -> str:
        """See :class:`hub.controlling.site.Site`."""
        return self._fleet.outdated(self._name)

    @property
    def suspect(self) -> bool:
        """See :class:`hub.controlling.site.Site`."""
        return self._fleet.suspended

    @property
    def halted(self) -> tuple[str, str] | None:
        """See :class:`hub.controlling.site.Site`."""
        if not self._rights.act:
            return "Observe", "this process writes nothing"
        if not self._spec.manage:
            return "Observe", "nothing is written in mode observe"
        if not self._rights.acts_for(self._name):
            return "Standby", f"another replica acts for cluster {self._name}"
        if problem := self.problem:
            return "ClusterNotReady", problem
        if self.duty is None or self.duty.held:
            return None
        if problem := self.duty.problem:
            return "LeaseProblem", f"Lease {self.duty.name} of cluster {self._name}: {problem}"
        if holder := self.duty.holder:
            text = f"{holder} holds the Lease {self.duty.name} of cluster {self._name}; stop that cloud controller"
            return "OtherCloudController", text
        return "Standby", f"the Lease {self.duty.name} of cluster {self._name} is not held yet"

    @property
    def since(self) -> float:
        """Unix time since which ``halted`` has its reason."""
        halted = self.halted
        reason = halted[0] if halted is not None else ""
        if reason != self._duty_was:
            self._duty_was, self._since = reason, self._clock.wall()
        return self._since

    @property
    def settled(self) -> bool:
        """Whether everything has been decided that can be decided now."""
        parts = (self.nodes_part, self.balancers_part)
        return bool(self.problem) or all(part is None or part.settled for part in parts)

    @property
    def creates_after(self) -> float:
        """See :class:`hub.controlling.site.Site`."""
        return self.duty.creates_after if self.duty is not None else float("-inf")

    @property
    def grants(self) -> str:
        """See :class:`hub.controlling.site.Site`."""
        if self._rights.grants:
            return self._rights.grants
        unit = self._fleet.clusters.get(self._name)
        if unit is not None and isinstance(unit.spec.kubeconfig, KubeconfigInCluster):
            return "the chart's value cloud.parts grants it"
        return f"hub cluster add {self._name} --cloud={','.join(needed_parts(self._spec))} grants it"

    @property
    def pace(self) -> Pace:
        """See :class:`hub.controlling.site.Site`."""
        return self._pace

    @property
    def clock(self) -> Clock:
        """See :class:`hub.controlling.site.Site`."""
        return self._clock

    @property
    def reporter(self) -> Reporter:
        """See :class:`hub.controlling.site.Site`."""
        return self._reporter

    def fence(self) -> float:
        """See :class:`hub.controlling.site.Site`."""
        if (halted := self.halted) is not None:
            raise NotLeader(halted[1])
        seconds = self._rights.check(self._name)
        return seconds if self.duty is None else min(seconds, self.duty.check())

    def approved(self, digest: str) -> bool:
        """See :class:`hub.controlling.site.Site`."""
        return self._rights.approved(digest)

    async def client(self) -> Client:
        """See :class:`hub.controlling.site.Site`."""
        unit = self._fleet.clusters.get(self._name)
        if unit is None:
            raise ClusterUnreachable(self.problem, "network")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await unit.connection()
        except TimeoutError:
            why = self.problem or f"cluster {self._name} is not connected"
            raise ClusterUnreachable(why, "timeout") from None

    # --- rights -----------------------------------------------------------------------------------------

    @property
    def lacking(self) -> str:
        """The rights that the hub's account lacks, and what grants them; "" if it has all that the section needs."""
        rules = self.reviewed.worded()
        return lacks(rules, self._name, self.grants) if rules else ""

    @property
    def complete(self) -> bool:
        """Whether no part waits for a right; deletions of Nodes may."""
        return not any(self.reviewed.stops(part) for part in ("nodes", "load-balancers", "lease"))

    def _needs(self) -> dict[str, tuple[Right, ...]]:
        """Part -> the rights that it needs; nothing is needed where nothing is written."""
        if not self._spec.manage or not self._rights.act:
            return {}
        needs = {part: rights_of(PART_RULES[part]) for part in needed_parts(self._spec)}
        if "load-balancers" in needs:
            needs["load-balancers"] += (IDENTITY,)
        if self.duty is not None:
            namespace, name = self._lease
            needs["lease"] = rights_of(lease_rules((name,)), namespace)
        return needs

    def _rights_changed(self) -> None:
        if text := self.lacking:
            log.warning("%s", text)

    # --- running ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run both parts until :meth:`close`, each as soon as it has the rights that it needs."""
        self._run(f"rights in {self._name}", self.reviewed.run)
        for name, part in (("nodes", self.nodes_part), ("load-balancers", self.balancers_part)):
            if part is not None:
                self._run(f"{name} of {self._name}", partial(self._start, name, part.run))
        self.state_changed()

    def _run(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(supervise(what, work, self._clock), name=what))

    async def _start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        await self.reviewed.granted(name, "lease")
        await run()

    def update(self, spec: CloudSpec) -> None:
        """Use a changed section whose account, mode, parts and class are the same."""
        self._spec = spec
        self.reviewed.again()
        self.state_changed()

    def state_changed(self) -> None:
        """The cluster, the duty, the account, or this process's rights have changed."""
        _ = self.since  # note when
        if self.duty is not None:
            self.duty.act(wanted=self._rights.acts_for(self._name) and not self.problem)
        if self.nodes_part is not None:
            self.nodes_part.state_changed()
        if self.balancers_part is not None:
            self.balancers_part.state_changed()

    def nodes_changed(self, changed: Iterable[Node], gone: Iterable[str]) -> None:
        """Nodes have changed."""
        changed, gone = tuple(changed), tuple(gone)
        if self.nodes_part is not None:
            self.nodes_part.nodes_changed(changed, gone)
        if self.balancers_part is not None:
            self.balancers_part.nodes_changed(changed, gone)

    async def close(self) -> None:
        """Write nothing more; the Lease is released once no write is under way."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.duty is not None:
            await self.duty.close()
        self._account.forget(self._name)
