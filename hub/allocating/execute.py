"""Carries out acts: each as a task of its own, at most one for an address and one for a node.

Every write is fenced: it starts only while this process holds the Lease, and may take no longer than the Lease lasts.
What a call returned is kept as an :class:`Outcome`; whether it had an effect is decided by the next description.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from hub.allocating.accounts import Account
from hub.allocating.follow import PATH, Sites
from hub.allocating.rights import DELETE, EVICT, LABEL, STATUS, MissingRight, explained
from hub.allocating.rights import FINALIZER as FINALIZER_RIGHT
from hub.allocations.outcomes import Call, outcome
from hub.allocations.spec import FINALIZER
from hub.allocations.view import Act, Attach, Detach, Evict, Finalize, Follow, Label, NodeKey, Outcome, Restore
from hub.cloud.addresses import Order, Pending, Step
from hub.errors import Conflict, CredentialError, HubError, NotFound, NotLeader, TooManyRequests
from hub.kube.client import JSON, MERGE_PATCH, Client
from hub.observe.providers.faults import ProviderStalled
from hub.plugin.spec import (
    AddressConflict,
    QuotaExceeded,
    TerminalProviderError,
    TransientProviderError,
    UnsupportedInstance,
)
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

CALL: Final = 15.0
"""Most seconds of a call of a cloud."""
REQUEST: Final = 10.0
"""Most seconds of a request to an API server."""
FOLLOW: Final = 600.0
"""Seconds after which an operation that does not end is given up."""
FIRST_LOOK, NEXT_LOOK, LAST_LOOK = 0.2, 1.5, 2.0
"""Seconds before an operation is looked at again: the first, the factor of growth, the longest."""
QUOTA_FIRST, QUOTA_LAST = 5.0, 300.0
"""Seconds that an account rests after QuotaExceeded without a time, doubling."""
EVICT_FIRST, EVICT_LAST = 10.0, 300.0
"""Seconds between attempts to evict a Pod that a PodDisruptionBudget protects, doubling."""
EVICT_PACE: Final = 12.0
"""Seconds between two evictions in a cluster: five a minute."""
SEEN: Final = 2.0
"""Seconds that a changed label may take to arrive through the watch of the nodes."""

FAILED: Final = 600.0
"""Seconds for which a failed label or eviction counts without a new attempt: the longest wait is half of that."""

Fence = Callable[[], float]


WHERE: Final = {"attach": "to", "detach": "from", "restore": "on"}
"""Step -> the word between its address and its instance, for the log."""


class Failure(NamedTuple):
    """Why the last label, eviction or change of a finalizer failed, and when."""

    error: HubError
    message: str
    at: float


class Executor:
    """Carries out acts.

    Args:
        client: of the hub cluster.
        sites: the clusters.
        fence: seconds that a write may take if it starts now; raises NotLeader if this process may not write.
        clock: where time comes from.
        now: returns the time in the planner's clock.
        on_end: called with the account's name when an act has ended.

    Attributes:
        running: (account, address, node or workload) of each act under way.
        outcomes: account -> address -> how its last call ended.
        quota_until: account -> no act before this time.
        evict_after: workload or cluster -> no eviction before this time.
        failures: node, workload or name of an allocation -> how its last label, eviction or finalizer failed.
        counts: (account, act, "succeeded" or "failed") -> number of acts.
    """

    def __init__(
        self,
        client: Client,
        sites: Sites,
        fence: Fence,
        clock: Clock,
        now: Callable[[], float],
        on_end: Callable[[str], None],
    ) -> None:
        self.running: dict[tuple[str, str | NodeKey], asyncio.Task[None]] = {}
        self.outcomes: dict[str, dict[str, Outcome]] = {}
        self.quota_until: dict[str, float] = {}
        self.evict_after: dict[str, float] = {}
        self.failures: dict[NodeKey | str, Failure] = {}
        self.counts: dict[tuple[str, str, str], int] = {}
        self._client = client
        self._sites = sites
        self._fence = fence
        self._clock = clock
        self._now = now
        self._on_end = on_end
        self._quota_waits: dict[str, float] = {}
        self._evict_waits: dict[str, float] = {}

    def under_way(self, account: str) -> frozenset[str | NodeKey]:
        """The addresses of an account, and all nodes, that have an act under way."""
        return frozenset(key for name, key in self.running if name == account or isinstance(key, NodeKey))

    def start(self, account: Account, act: Act) -> None:
        """Start an act, unless one for the same address, node or workload is under way."""
        name = account.spec.name
        key: str | NodeKey
        work: Awaitable[None]
        match act:
            case Detach(address, order) | Attach(address, order) | Restore(address, order):
                key, work = address, self._step(account, type(act).__name__.lower(), address, order)
            case Follow(address, operation):
                key, work = address, self._follow(account, address, operation)
            case Label(node):
                key, work = node, self._label(name, act)
            case Evict(node, workload):
                now = self._now()
                if self.evict_after.get(node.cluster, 0.0) > now:
                    return  # another account has evicted a Pod there since the plan was made
                self.evict_after[node.cluster] = now + EVICT_PACE
                key, work = str(workload), self._evict(name, act)
            case Finalize(allocation):
                key, work = f"finalizer of {allocation}", self._finalize(name, act)
        if (name, key) in self.running or (isinstance(key, NodeKey) and key in self.under_way("")):
            asyncio.ensure_future(work).cancel()
            return
        task = asyncio.ensure_future(work)
        self.running[name, key] = task
        task.add_done_callback(lambda ended: self._ended(name, key, ended))

    def _ended(self, account: str, key: str | NodeKey, task: asyncio.Future[None]) -> None:
        self.running.pop((account, key), None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an act for %s failed", key, exc_info=error)
        self._on_end(account)

    async def close(self) -> None:
        """Cancel all acts: their records stay, and the next leader continues them."""
        tasks = list(self.running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _count(self, account: str, act: str, error: object) -> None:
        key = (account, act, "failed" if error else "succeeded")
        self.counts[key] = self.counts.get(key, 0) + 1

    # --- calls of the cloud ----------------------------------------------------------------------------

    async def _step(self, account: Account, step: str, address: str, order: Order) -> None:
        try:
            seconds = min(CALL, self._fence())
        except NotLeader as error:
            log.info("%s %s: not started: %s", step, address, error)
            await self._clock.sleep(1.0)
            return
        began = self._now()
        order = msgspec.structs.replace(order, timeout=seconds)
        found: Step | None = None
        failure: Exception | None = None
        try:
            found = await account.step(step, order, seconds)
        except Exception as error:  # noqa: BLE001 - plugin code
            failure = error
        self._note(account, address, step, order.token, began, found, failure)
        if found is not None:
            self._tell(account, f"{step} {address} {WHERE[step]} {order.instance}", found)

    async def _follow(self, account: Account, address: str, operation: str) -> None:
        began, wait = self._now(), FIRST_LOOK
        found: Step | None = None
        failure: Exception | None = None
        while failure is None:
            after = wait
            try:
                found = await account.step("follow", operation, CALL)
                if not isinstance(found, Pending):
                    break
                after = max(found.after, wait)
            except (TransientProviderError, ProviderStalled, CredentialError) as error:  # not known: look again
                log.info("operation of %s: %s", address, error)
                after = max(getattr(error, "retry_after", None) or 0.0, LAST_LOOK)
            except Exception as error:  # noqa: BLE001 - plugin code; the operation ended ill
                failure = error
            else:
                wait = min(wait * NEXT_LOOK, LAST_LOOK)
            if failure is None and self._now() - began > FOLLOW:
                failure = ProviderStalled(f"the operation has not ended within {FOLLOW:g} s")
            if failure is None:
                await self._clock.sleep(after)
        self._note(account, address, "follow", operation, began, None if failure else found, failure)
        if failure is None and found is not None:
            self._tell(account, f"change of {address}", found)

    def _note(
        self,
        account: Account,
        address: str,
        step: str,
        token: str,
        began: float,
        found: Step | None,
        failure: Exception | None,
    ) -> None:
        name = account.spec.name
        outcomes = self.outcomes.setdefault(name, {})
        message = str(failure) if failure is not None else ""
        call = Call(step, token, began)
        outcomes[address] = outcome(outcomes.get(address), call, self._now(), found, _kind(failure), message)
        if failure is not None:
            log.warning("%s of %s: %s", step, address, failure)
        if isinstance(failure, QuotaExceeded):
            wait = min(self._quota_waits.get(name, QUOTA_FIRST / 2) * 2, QUOTA_LAST)
            self._quota_waits[name] = wait
            self.quota_until[name] = self._now() + (failure.retry_after or wait)
        elif failure is None:
            self._quota_waits.pop(name, None)
        self._count(name, step, failure)

    @staticmethod
    def _tell(account: Account, what: str, found: Step) -> None:
        log.info("account %s: %s: %s", account.spec.name, what, "begun" if isinstance(found, Pending) else "done")

    # --- the API servers -------------------------------------------------------------------------------

    async def _label(self, account: str, act: Label) -> None:
        body = msgspec.json.encode({"metadata": {"labels": dict(act.changes)}})
        try:
            client = await self._sites.client(act.node.cluster, self._client)
            path = f"/api/v1/nodes/{act.node.name}"
            await self._request(client, "PATCH", path, body, MERGE_PATCH)
        except HubError as error:
            error = explained(error, LABEL, act.node.cluster)
            self._failed(act.node, error, f"labels of node {act.node}")
            self._count(account, "label", error)
            await self._clock.sleep(1.0)
            return
        self.failures.pop(act.node, None)
        self._count(account, "label", None)
        ends = self._clock.now() + SEEN
        while self._clock.now() < ends:
            node = self._sites.nodes(act.node.cluster).get(act.node.name)
            if node is None or all(node.labels.get(key) == value for key, value in act.changes):
                return
            await self._clock.sleep(0.02)

    async def _evict(self, account: str, act: Evict) -> None:
        pod, workload = act.pod, str(act.workload)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        preconditions: dict[str, str] = {"uid": pod.uid}
        try:
            client = await self._sites.client(act.node.cluster, self._client)
            if act.force:
                options = {
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "gracePeriodSeconds": 0,
                    "preconditions": {**preconditions, "resourceVersion": pod.resource_version},
                }
                await self._request(client, "DELETE", path, msgspec.json.encode(options))
            else:
                eviction = {
                    "apiVersion": "policy/v1",
                    "kind": "Eviction",
                    "metadata": {"name": pod.name, "namespace": pod.namespace},
                    "deleteOptions": {"preconditions": preconditions},
                }
                await self._request(client, "POST", f"{path}/eviction", msgspec.json.encode(eviction))
        except (NotFound, Conflict):
            log.info("Pod %s/%s is gone or another one", pod.namespace, pod.name)
        except HubError as error:
            wait = min(self._evict_waits.get(workload, EVICT_FIRST / 2) * 2, EVICT_LAST)
            self._evict_waits[workload] = wait
            asked = error.retry_after if isinstance(error, TooManyRequests) else None
            self.evict_after[workload] = self._now() + (asked or wait)
            self.evict_after.pop(act.node.cluster, None)
            error = explained(error, DELETE if act.force else EVICT, act.node.cluster, pod.namespace)
            self._failed(workload, error, f"Pod {pod.namespace}/{pod.name} of {workload} stays on node {act.node}")
            self._count(account, "evict", error)
            return
        self._evict_waits.pop(workload, None)
        self.failures.pop(workload, None)
        self.evict_after[act.node.cluster] = self._now() + EVICT_PACE
        self._count(account, "evict", None)

    async def _finalize(self, account: str, act: Finalize) -> None:
        path = f"{PATH}/{act.allocation}"
        try:
            found: dict[str, Any] = msgspec.json.decode(await self._client.request("GET", path, timeout=REQUEST))
            meta = found["metadata"]
            others = [name for name in meta.get("finalizers") or [] if name != FINALIZER]
            meta["finalizers"] = [*others, FINALIZER] if act.present else others
            await self._request(self._client, "PUT", path, msgspec.json.encode(found))
        except NotFound:
            return
        except HubError as error:
            error = explained(error, FINALIZER_RIGHT)
            self._failed(act.allocation, error, f"finalizer of allocation {act.allocation}")
            self._count(account, "finalize", error)
            await self._clock.sleep(1.0)
        else:
            self.failures.pop(act.allocation, None)

    async def _request(self, client: Client, method: str, path: str, body: bytes, content_type: str = JSON) -> bytes:
        seconds = min(REQUEST, self._fence())
        return await client.request(
            method, path, body=body, timeout=seconds, content_type=content_type, admit=self._fence
        )

    def _failed(self, what: NodeKey | str, error: HubError, doing: str) -> None:
        message = f"{doing}: {error}"
        known = self.failures.get(what)
        named = isinstance(error, MissingRight) and any(
            str(found.error) == str(error) for found in self.failures.values()
        )  # a missing rule is named once, not for each node
        if not named and (known is None or known.message != message):
            log.warning("allocations: %s", message)
        self.failures[what] = Failure(error, message, self._now())


def _kind(failure: Exception | None) -> Any:
    """The kind of a failure for :class:`Outcome`."""
    match failure:
        case None:
            return ""
        case AddressConflict():
            return "conflict"
        case UnsupportedInstance():
            return "unsupported"
        case QuotaExceeded():
            return "quota"
        case TerminalProviderError():
            return "terminal"
        case ProviderStalled():
            return "timeout"
        case _:
            return "transient"


async def put_status(client: Client, name: str, resource_version: str, status: object, fence: Fence) -> bytes:
    """Store the status of an allocation; returns the object as stored.

    Raises:
        Conflict: somebody else has changed the object.
        MissingRight: this account may not store it.
        ApiError: the API server refuses it.
        HubError: there was no answer.
    """
    seconds = min(REQUEST, fence())
    body = {
        "apiVersion": "netinfra.darkbrains.com/v1alpha1",
        "kind": "NetIPAllocation",
        "metadata": {"name": name, "resourceVersion": resource_version},
        "spec": {"reservedIPs": [], "cloud": {}},  # ignored: the API server keeps the stored one
        "status": status,
    }
    path = f"{PATH}/{name}/status"
    try:
        return await client.request("PUT", path, body=msgspec.json.encode(body), timeout=seconds, admit=fence)
    except HubError as error:
        raise explained(error, STATUS) from error
