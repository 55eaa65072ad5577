"""Turns the hub's state into Events: findings of each pass, and the state of clusters, sources and the registry.

Each pass over a target hands over its findings without waiting. Clusters and the registry are checked every few
seconds, so that a state that lasts only a moment makes no Event. Only the process that leads reports findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from hub.decide.decision import Decision
from hub.errors import RegistryError
from hub.events import catalog as reasons
from hub.events.catalog import REASONS, Reason
from hub.events.recorder import Recorder
from hub.events.series import EventFinding, Regarding
from hub.events.timeline import slices_after
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.model import LOCAL, Finding, Slice, TargetKey
from hub.observe.local.approvals import Approvals
from hub.observe.local.cluster import LocalCluster
from hub.observe.remote.fleet import Fleet
from hub.observe.remote.status import State
from hub.onboarding.renewal import Renewal
from hub.registry.spec import RegistryHeld
from hub.runtime.clock import Clock, rfc3339

INTERVAL: Final = 2.0
"""Seconds between checks of the clusters and the registry."""
HUB: Final = "hub"
"""The subject for findings of the hub itself; the other subjects are targets."""
STATES: Final[Mapping[State, Reason]] = {
    State.UNREACHABLE: reasons.UNREACHABLE,
    State.DEGRADED: reasons.DEGRADED,
    State.WRONG_CLUSTER: reasons.WRONG_CLUSTER,
}


class Rights(Protocol):
    """Whether this process reports about the hub itself (``holds_shard_0``) and about a cluster (``acts_for``)."""

    @property
    def holds_shard_0(self) -> bool: ...  # noqa: D102
    def acts_for(self, cluster: str) -> bool: ...  # noqa: D102


class Watched(Protocol):
    """The part of the hub that Events need."""

    @property
    def clock(self) -> Clock: ...  # noqa: D102
    @property
    def client(self) -> Client: ...  # noqa: D102
    @property
    def fleet(self) -> Fleet: ...  # noqa: D102
    @property
    def local(self) -> LocalCluster: ...  # noqa: D102
    @property
    def renewal(self) -> Renewal: ...  # noqa: D102
    @property
    def rejected(self) -> RegistryError | None: ...  # noqa: D102
    @property
    def writing(self) -> bool: ...  # noqa: D102
    @property
    def leading(self) -> Rights: ...  # noqa: D102
    @property
    def approvals(self) -> Approvals: ...  # noqa: D102
    def withheld(self) -> RegistryHeld | None: ...  # noqa: D102


class EventWatch:
    """Reports the hub's state to a :class:`Recorder`.

    Args:
        hub: the running hub.
        recorder: sends the Events.
        itself: the object of Events about the hub, see :func:`~hub.events.recorder.hub_object`.
    """

    def __init__(self, hub: Watched, recorder: Recorder, itself: Regarding) -> None:
        self._hub = hub
        self._recorder = recorder
        self._itself = itself
        self._troubled: set[str] = set()
        """Clusters with an Event about a problem, until they are Ready again."""
        self._withheld: RegistryHeld | None = None

    async def run(self) -> None:
        """Check the clusters and the registry until cancelled."""
        while True:
            if self._hub.writing and self._recorder.enabled:
                self.report_hub()
            else:
                self._troubled.clear()
                self._withheld = None
            await self._hub.clock.sleep(INTERVAL)

    # --- targets ------------------------------------------------------------------------------------------

    def decided(self, result: Decision) -> None:
        """Report the findings of a pass over a target."""
        if not result.findings and not self._recorder.has_findings(result.target):
            return
        current: list[EventFinding] = []
        for finding in result.findings:
            reason = REASONS.get(finding.reason)
            if reason is None:
                continue
            regarding = self._itself if reason.on == "hub" else self._service(result.target)
            if reason.momentary:
                self._recorder.record_occurrence(reason, regarding, finding.message)
            else:
                current.append(EventFinding(reason, regarding, _scope(reason, finding), finding.message))
        self._recorder.set_findings(result.target, current)

    def published(self, result: Decision, done: Sequence[tuple[str, Slice]]) -> None:
        """Report the slices that a pass over a target wrote."""
        if result.plan is None or not self._recorder.enabled:
            return
        operations = Counter(operation for operation, _ in done)
        endpoints: Counter[str] = Counter()
        for slice_ in slices_after(result.observed, done):
            endpoints[slice_.cluster] += len(slice_.endpoints)
        of = ", ".join(f"{number} of {cluster}" for cluster, number in sorted(endpoints.items()))
        writes = ", ".join(f"{number} {operation}d" for operation, number in sorted(operations.items()))
        message = f"endpoints: {of or 'none'}; slices: {writes}"
        self._recorder.record_occurrence(reasons.PUBLISHED, self._service(result.target), message)

    def _service(self, key: TargetKey) -> Regarding:
        service = self._hub.local.services.get(key)
        return Regarding("v1", "Service", key.namespace, key.name, service.uid if service is not None else "")

    # --- clusters, sources and the registry --------------------------------------------------------------------

    def report_hub(self) -> None:
        """Report the current findings of the hub itself."""
        found = [*self._clusters(), *self._sources(), *self._credentials(), *self._registry()]
        self._recorder.set_findings(HUB, found)

    def _clusters(self) -> Iterable[EventFinding]:
        clusters = self._hub.fleet.clusters
        self._troubled &= clusters.keys()
        for name, cluster in clusters.items():
            if not self._hub.leading.acts_for(name):
                continue
            status = cluster.status
            reason = STATES.get(status.state)
            if reason is not None:
                self._troubled.add(name)
                yield EventFinding(reason, self._itself, name, f"{name}: {status.error}")
            elif status.state is State.READY and name in self._troubled:
                self._troubled.discard(name)
                self._recorder.record_occurrence(
                    reasons.RECOVERED, self._itself, f"{name}: its nodes are followed again"
                )

    def _sources(self) -> Iterable[EventFinding]:
        fleet = self._hub.fleet
        for key, source in fleet.sources.items():
            remote = fleet.clusters.get(key.cluster)
            if remote is not None and remote.status.state is not State.READY:
                continue  # the cluster's own Event says so already
            if (problem := source.problem) and self._hub.leading.acts_for(key.cluster):
                text = f"{key.cluster}: provider {key.provider.name}: {problem}"
                yield EventFinding(reasons.PROVIDER, self._itself, f"{key.cluster} {key.provider.name}", text)

    def _credentials(self) -> Iterable[EventFinding]:
        clients = {name: cluster.client for name, cluster in self._hub.fleet.clusters.items()}
        for name, client in (*clients.items(), (LOCAL, self._hub.client)):
            if not (self._hub.leading.holds_shard_0 if name == LOCAL else self._hub.leading.acts_for(name)):
                continue
            access = client.access if client is not None else None
            problem = self._hub.renewal.problems.get(name, "")
            if not isinstance(access, Credentials):
                continue
            if (ends := access.expires_at() if problem else access.expiring()) is not None:
                date = rfc3339(ends)
                text = f"{name}: the credential of {access.access.origin} ends at {date}"
                text += f" and is not renewed: {problem}" if problem else ""
                yield EventFinding(reasons.CREDENTIAL, self._itself, name, text)

    def _registry(self) -> Iterable[EventFinding]:
        if not self._hub.leading.holds_shard_0:
            self._withheld = None
            return
        if (rejected := self._hub.rejected) is not None:
            rest = len(rejected.problems) - 1
            more = f" (and {rest} more)" if rest > 0 else ""
            text = f"{rejected.problems[0] if rejected.problems else rejected}{more}"
            yield EventFinding(reasons.REJECTED, self._itself, "", text)
        before, self._withheld = self._withheld, self._hub.withheld()
        if self._withheld is not None:
            yield EventFinding(reasons.REMOVAL, self._itself, "", self._withheld.message)
        if before not in (None, self._withheld) and before.hash in self._hub.approvals.valid():
            text = (
                f"registry: the removal of {len(before.entries)} entries with {before.endpoints} endpoints is approved"
            )
            self._recorder.record_occurrence(reasons.APPROVED, self._itself, text)


def _scope(reason: Reason, finding: Finding) -> str:
    """The source cluster of a finding, if its reason makes one Event for each cluster; else ""."""
    if not reason.by_source:
        return ""
    cluster, colon, _ = finding.message.partition(":")
    return cluster if colon else "".join(finding.objects[:1])
