"""Stores the statuses of allocations, and tells operators about them with Events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from hub.allocating.execute import FAILED, Executor, Failure, Fence, put_status
from hub.allocating.follow import AllocationStore, decode
from hub.allocating.pods import PodWatch
from hub.allocating.rights import MissingRight
from hub.allocating.tallies import Tallies
from hub.allocations.spec import Allocation, NetIPAllocation, Status
from hub.allocations.status import with_stalled
from hub.allocations.view import NodeKey, Outcome
from hub.errors import HubError, Invalid, NotFound
from hub.kube.client import Client
from hub.model import Finding

log = logging.getLogger(__name__)

FROZEN: Final = ("Stalled", "True", "CloudFailed")
"""Type, status and reason of the condition of an allocation whose account had a terminal error."""
OUTDATED_CRD: Final = "the NetIPAllocation CRD has no status: hub allocations crd | kubectl apply -f -"


class Reporter(Protocol):
    """Receives what an operator should know (hub.app connects it with the Events)."""

    def found(self, allocation: NetIPAllocation, findings: Sequence[Finding]) -> None:
        """All present findings of an allocation."""
        ...

    def happened(self, allocation: NetIPAllocation, reason: str, message: str) -> None:
        """An occurrence."""
        ...

    def ended(self, name: str) -> None:
        """The allocation is gone."""
        ...


class Records:
    """The statuses that a leader wants, and whether they could be stored.

    Args:
        client: of the hub cluster.
        store: the allocations as the API server has them.
        executor: knows which acts failed.
        pods: knows whose Pods are unknown.
        fence: see :class:`hub.allocating.run.Allocating`.
        now: the time in the planner's clock.
        reporter: receives findings and occurrences.
        tallies: counts for the metrics.
        on_recovery: called when statuses can be stored again.

    Attributes:
        statuses: allocation -> the status that the last pass of the leader wanted, whether or not it could be stored.
        failing: allocation -> whether that status needs a person: a terminal error of the cloud, or an address that is
            Invalid, Conflict or Elsewhere.
        problem: why no status can be stored, as reason and message; None if it can.
    """

    def __init__(
        self,
        client: Client,
        store: AllocationStore,
        executor: Executor,
        pods: PodWatch,
        fence: Fence,
        now: Callable[[], float],
        reporter: Reporter,
        tallies: Tallies,
        on_recovery: Callable[[], None],
    ) -> None:
        self.statuses: dict[str, Status] = {}
        self.failing: dict[str, bool] = {}
        self.problem: tuple[str, str] | None = None
        self._client = client
        self._store = store
        self._executor = executor
        self._pods = pods
        self._fence = fence
        self._now = now
        self._reporter = reporter
        self._tallies = tallies
        self._on_recovery = on_recovery

    def clear(self) -> None:
        """Forget the wanted statuses: another process may lead."""
        self.statuses.clear()
        self.failing.clear()

    def end(self, name: str) -> None:
        """An allocation is gone."""
        self._reporter.ended(name)
        self._tallies.forget(name)
        self.statuses.pop(name, None)
        self.failing.pop(name, None)

    async def store(self, allocation: Allocation, status: Status) -> None:
        """Store a status if it differs; a conflict ends the pass, and the next one plans again.

        Raises:
            HubError: it is not stored, so nothing that depends on it may begin.
        """
        if missing := self._missing_rights(allocation):
            status = with_stalled(allocation, status, "Forbidden", "; ".join(missing), self._now())
        self.statuses[allocation.name] = status
        self.failing[allocation.name] = is_failing(status, self._executor.outcomes.get(status.account, {}))
        if status == allocation.status and self.problem is None:
            return
        before = self._store.objects.get(allocation.name)
        try:
            body = await put_status(self._client, allocation.name, allocation.resource_version, status, self._fence)
        except MissingRight as error:
            self._cannot_store("Forbidden", str(error))
            return
        except NotFound:
            if allocation.name in self._store.objects and not allocation.deleting:
                self._cannot_store("SchemaOutdated", OUTDATED_CRD)
            return
        except Invalid as error:
            self._cannot_store("SchemaOutdated", f"{OUTDATED_CRD} ({error})")
            raise
        found = decode(body)
        if found.status is None or found.status.writer != status.writer:
            self._cannot_store("SchemaOutdated", OUTDATED_CRD)
            return
        if self.problem is not None:
            self.problem = None
            self._on_recovery()
        self._store.wrote(found)
        self._tallies.stored(allocation, status.addresses, self._now())
        if before is not None:
            self._occurrences(before, allocation, status)

    def _cannot_store(self, reason: str, problem: str) -> None:
        """No status can be stored, so no act may begin."""
        if self.problem is None or self.problem[1] != problem:
            log.warning("allocations: %s; nothing is changed", problem)
        self.problem = reason, problem

    def _occurrences(self, object_: NetIPAllocation, allocation: Allocation, status: Status) -> None:
        old = allocation.entries
        for entry in status.addresses:
            before = old.get(entry.address)
            # On a node that is drained meanwhile, an address is Leaving as soon as it is attached.
            if entry.state not in ("Attached", "Leaving") or not entry.node:
                continue
            if before is not None and before.node == entry.node:
                continue
            if before is not None and before.state == "RollingBack":
                self._reporter.happened(object_, "AddressRestored", f"{entry.address} is back on node {entry.node}")
            elif before is not None and (before.node or (before.move is not None and before.move.from_)):
                cause = before.move.cause if before.move is not None else "by hand"
                source = before.move.from_ if before.move is not None else before.node
                text = f"{entry.address} moved from node {source} to {entry.node} ({cause})"
                self._reporter.happened(object_, "AddressMoved", text)
            else:
                text = f"{entry.address} is attached to node {entry.node}"
                self._reporter.happened(object_, "AddressAttached", text)

    def report(self, allocation: Allocation, planned: Iterable[Finding]) -> None:
        """Tell all present findings about an allocation: those of its plan, missing rights, and acts that failed."""
        object_ = self._store.objects.get(allocation.name)
        if object_ is None:
            return
        findings = [*planned, *(Finding("Forbidden", text) for text in self._missing_rights(allocation))]
        for key, failure in self._failures(allocation):
            reason = "EvictionBlocked" if key == str(allocation.workload) else "MoveFailed"
            if not isinstance(failure.error, MissingRight):
                findings.append(Finding(reason, failure.message, (str(key),)))
        outcomes = self._executor.outcomes.get(allocation.status.account, {})
        for address in allocation.addresses:
            outcome = outcomes.get(address)
            if outcome is not None and outcome.error and outcome.error != "quota":
                findings.append(Finding("MoveFailed", f"{outcome.step} of {address}: {outcome.message}", (address,)))
        self._reporter.found(object_, findings)

    def _failures(self, allocation: Allocation) -> list[tuple[NodeKey | str, Failure]]:
        """Acts about an allocation that failed: labels of its nodes, evictions of its workload, its finalizer."""
        entries = allocation.status.addresses
        nodes = {name for entry in entries for name in (entry.node, entry.last_node)}
        since, workload = self._now() - FAILED, str(allocation.workload)
        return [
            (key, failure)
            for key, failure in self._executor.failures.items()
            if failure.at > since
            and (
                (key.cluster == allocation.cluster and key.name in nodes)
                if isinstance(key, NodeKey)
                else key in (workload, allocation.name)
            )
        ]

    def _missing_rights(self, allocation: Allocation) -> list[str]:
        """The rules that are missing for an allocation, each once."""
        errors: list[HubError] = [failure.error for _, failure in self._failures(allocation)]
        errors += [
            error
            for (node, workload), error in self._pods.problems.items()
            if (node.cluster, workload) == (allocation.cluster, allocation.workload)
        ]
        return sorted({str(error) for error in errors if isinstance(error, MissingRight)})


def is_failing(status: Status, outcomes: Mapping[str, Outcome]) -> bool:
    """Whether a person must act: terminal error of the cloud, or an address that is Invalid, Conflict or Elsewhere."""
    if any((found.type, found.status, found.reason) == FROZEN for found in status.conditions):
        return True
    for entry in status.addresses:
        outcome = outcomes.get(entry.address) if entry.state != "Attached" else None
        if entry.state in ("Invalid", "Conflict", "Elsewhere") or (outcome is not None and outcome.error == "terminal"):
            return True
    return False
