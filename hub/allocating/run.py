"""Runs the allocations of a registry: one pass for each account whenever something about it has changed.

A pass reads what is known, plans (:mod:`hub.allocations`), stores the statuses, starts the acts and asks the
questions. It waits for the API server of the hub cluster only, never for a cloud: acts and answers are tasks whose end
requests the next pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Network
from typing import Any, Final

from hub.allocating.accounts import Account
from hub.allocating.execute import Executor, Fence
from hub.allocating.follow import NOT_READ, AllocationStore, Observed, Sites, SteadyTime, follow_allocations
from hub.allocating.follow import RULE as ALLOCATIONS_RULE
from hub.allocating.interlock import Interlock
from hub.allocating.pods import PodWatch
from hub.allocating.records import Records, Reporter
from hub.allocating.rights import MissingRight
from hub.allocating.tallies import Tallies
from hub.allocations import view as values
from hub.allocations.causes import TWICE
from hub.allocations.claims import Claims, account_of, claims
from hub.allocations.observe import allowed
from hub.allocations.plan import plan
from hub.allocations.spec import LABEL_READY, Allocation, Defaults, NetIPAllocation, Status, read
from hub.allocations.status import stalled_status
from hub.allocations.view import Answer, Memories, NodeKey, Plan, Site, Verdict, View
from hub.cloud.addresses import NotReserved, Unknown
from hub.errors import HubError, NotLeader
from hub.kube.client import Client
from hub.model import LOCAL, Finding, Node
from hub.observe.providers.host import ProviderHost
from hub.observe.remote.fleet import Fleet
from hub.registry.spec import AccountSpec, AllocationsSpec
from hub.runtime.clock import Clock
from hub.runtime.queue import KeyedQueue
from hub.runtime.supervise import supervise

log = logging.getLogger(__name__)

UNASSIGNED: Final = ""
"""The queue's key for allocations without an account."""
WORKERS: Final = 2
PROOF: Final = TWICE + 0.5
"""Seconds within which a second answer about a node with a label is asked for."""
HALTING: Final = ("OtherController", "SchemaOutdated", "Forbidden")
"""Reasons why nothing is changed that an operator has to end."""
NEVER_ASKED: Final = (
    "the address is outside of the account's addresses in clusters.yaml, so the cloud is not asked about it"
)


class Allocating:
    """The allocations of a hub.

    Args:
        client: of the hub cluster.
        fleet: the remote clusters.
        host: opens providers.
        clock: where time comes from.
        fence: seconds that a write may take if it starts now; raises NotLeader if this process may not write.
        identity: this process, as it signs statuses.
        reporter: receives findings and occurrences.
        approvals: returns the hashes that are approved.
        own: this process's node; None if it is not known.
        approving: the options that ``hub approve`` needs for this hub.
        act: whether this process may write at all; False for --dry-run and --once.

    Attributes:
        plans: account -> its last plan.
        accounts: the accounts by name.
        verdicts: address -> the decision about it.
        unassigned: allocation without an account -> its status, which says why; only the leader stores it.
        records: the statuses that are stored.
        tallies: counts for the metrics.
    """

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        host: ProviderHost,
        clock: Clock,
        fence: Fence,
        identity: str,
        reporter: Reporter,
        approvals: Callable[[], Iterable[str]],
        own: NodeKey | None = None,
        approving: str = "",
        *,
        act: bool = True,
    ) -> None:
        self.spec = AllocationsSpec({})
        self.plans: dict[str, Plan] = {}
        self.accounts: dict[str, Account] = {}
        self.unassigned: dict[str, Status] = {}
        self.tallies = Tallies()
        self.time = SteadyTime(clock)
        self.leading = False
        self.settled = 0.0
        self.passes = 0
        self._client = client
        self._host = host
        self._clock = clock
        self._fence = fence
        self._identity = identity
        self._approvals = approvals
        self._own = own
        self._approving = approving
        self._act = act
        self._queue: KeyedQueue[str] = KeyedQueue(clock)
        self._store = AllocationStore(self.wake)
        self._observed = Observed(ALLOCATIONS_RULE, self.wake)
        self.sites = Sites(client, fleet, clock, self.time.now, self._cluster_changed, self._nodes_changed)
        self.executor = Executor(client, self.sites, fence, clock, self.time.now, self._queue.add)
        self.pods = PodWatch(lambda name: self.sites.client(name, client), clock, self._pods_changed)
        self.records = Records(
            client, self._store, self.executor, self.pods, fence, self.time.now, reporter, self.tallies, self.wake
        )
        self._asked: dict[str, frozenset[str]] = {}
        """Account -> the addresses that its cloud is asked about."""
        self._asked_pods: dict[str, frozenset[Any]] = {}
        self._interlock: Interlock | None = None
        self._claims = Claims()
        self._memories: dict[str, Memories] = {}
        self._values: dict[str, tuple[NetIPAllocation, Defaults, Allocation]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # --- configuration ---------------------------------------------------------------------------------

    def update(self, spec: AllocationsSpec | None) -> None:
        """Use this part of a registry; unchanged accounts continue undisturbed."""
        old, self.spec = self.spec, spec or AllocationsSpec({})
        if not self._tasks and spec is not None:
            self._start("allocations", follow_allocations(self._client, self._store, self._observed, self._clock).run)
            self._start("nodes of the hub cluster", self.sites.run)
            for number in range(WORKERS):
                self._start(f"allocations worker {number}", self._work)
        for name, account in list(self.accounts.items()):
            if self.spec.accounts.get(name) != account.spec:
                self._tasks.pop(f"account {name}").cancel()
                del self.accounts[name]
                self.plans.pop(name, None)
                self._asked.pop(name, None)
        for name, entry in self.spec.accounts.items():
            if name not in self.accounts:
                self._open(name, entry)
        if old.interlock != self.spec.interlock:
            if (task := self._tasks.pop("interlock", None)) is not None:
                task.cancel()
            self._interlock = None
            if self.spec.interlock is not None:
                self._interlock = Interlock(self._client, self.spec.interlock, self._clock, self.wake)
                self._start("interlock", self._interlock.run)
        self.wake()

    def _open(self, name: str, entry: AccountSpec) -> None:
        account = Account(entry, self._host, self.time.now, lambda: self._queue.add(name))
        self.accounts[name] = account
        for cluster in entry.clusters:
            account.note_nodes(cluster, self.sites.nodes(cluster).values(), ())
        self._start(f"account {name}", account.run)

    def _start(self, name: str, work: Callable[[], Any]) -> None:
        self._tasks[name] = asyncio.create_task(supervise(name, work, self._clock), name=name)

    def set_leading(self, *, leading: bool, settle: float = 0.0) -> None:
        """Note whether this process may act; with ``settle``, its first new move waits so many seconds.

        The accounts forget what they answered before: the records may be newer.
        """
        if leading != self.leading:
            self.leading = leading
            self.records.clear()
            self.settled = self.time.now() + settle if settle else 0.0
            for account in self.accounts.values():
                account.forget()
            self.wake()

    async def settled_once(self, seconds: float) -> None:
        """Wait, at most ``seconds``, until every account has answered or failed and its plan asks for nothing more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._settled_now():  # noqa: ASYNC110 - many states, looked at by commands only
                    await asyncio.sleep(0.05)

    def _settled_now(self) -> bool:
        if self.trouble:
            return self.trouble != NOT_READ
        if not self._queue.idle and len(self._queue):
            return False
        for name, account in self.accounts.items():
            last = self.plans.get(name)
            if account.status.state == "degraded":
                continue
            if last is None or last.questions.describe or last.questions.inspect:
                return False
            if any(verdict.reason == "Confirming" for verdict in last.verdicts.values()):
                return False
            if any(self.time.now() < since + PROOF for since in last.memory.suspects.values()):
                return False
            if last.questions.pods - self.pods.known:
                return False
        return True

    async def close(self) -> None:
        """Start nothing more and stop; records carry on what is under way."""
        self.leading = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await self.executor.close()
        await self.pods.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what requests a pass ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Request a pass for every account."""
        for name in (UNASSIGNED, *self.accounts):
            self._queue.add(name)

    def cluster_changed(self, name: str) -> None:
        """The state of a remote cluster has changed."""
        self.sites.state_changed(name)

    def nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        """Nodes of a remote cluster have changed."""
        self.sites.note(name, changed, gone)

    def _cluster_changed(self, name: str) -> None:
        for account in self.accounts.values():
            if name in account.spec.clusters:
                self._queue.add(account.spec.name)

    def _nodes_changed(self, name: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        for account in self.accounts.values():
            if name in account.spec.clusters:
                account.note_nodes(name, changed, gone)

    def _pods_changed(self, node: NodeKey) -> None:
        self._cluster_changed(node.cluster)

    # --- state -------------------------------------------------------------------------------------------

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The decision about each address."""
        return {address: verdict for found in self.plans.values() for address, verdict in found.verdicts.items()}

    @property
    def objects(self) -> Mapping[str, NetIPAllocation]:
        """The allocations by name."""
        return self._store.objects

    @property
    def known(self) -> list[Allocation]:
        """The allocations as values, as of the last pass."""
        return [value for _, _, value in self._values.values()]

    @property
    def trouble(self) -> str:
        """Why the allocations are not served; "" if they are."""
        if self._observed.problem or self.records.problem is None:
            return self._observed.problem
        return self.records.problem[1]

    def allocations(self) -> list[Allocation]:
        """All allocations as values."""
        defaults = Defaults(self.spec.not_ready_grace, self.spec.cordoned_hold, self.spec.eviction)
        found: dict[str, tuple[NetIPAllocation, Defaults, Allocation]] = {}
        for name, object_ in self._store.objects.items():
            known = self._values.get(name)
            if known is None or known[0] is not object_ or known[1] != defaults:
                known = (object_, defaults, read(object_, defaults))
            found[name] = known
        for name in self._values.keys() - found.keys():
            self.records.end(name)
        self._values = found
        return self.known

    # --- passes ------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._pass(key)
                self._queue.forget(key)
            except NotLeader as error:
                log.info("allocations: not written: %s", error)
                self._queue.add_after(key, 1.0)
            except HubError as error:
                delay = self._queue.retry(key)
                log.warning("allocations of account %s: %s; again in %.0f s", key or "none", error, delay)
            except Exception:
                self._queue.retry(key)
                log.exception("allocations of account %s: a pass failed", key or "none")
            finally:
                self._queue.done(key)
            await asyncio.sleep(0)

    async def _pass(self, key: str) -> None:
        if self._observed.problem or self._store.objects is None:
            return
        self.passes += 1
        allocations, now = self.allocations(), self.time.now()
        self._claims = claims(allocations, self._claims, now)
        if self._claims.wake is not None:
            self._queue.add_after(key, max(0.1, self._claims.wake - now))
        known = {name: self._account(account) for name, account in self.accounts.items()}
        if key == UNASSIGNED:
            await self._unassigned(allocations, known, now)
        elif key in known:
            await self._account_pass(key, allocations, known, now)

    async def _account_pass(
        self, key: str, allocations: Sequence[Allocation], known: Mapping[str, values.Account], now: float
    ) -> None:
        account = self.accounts[key]
        mine = tuple(found for found in allocations if account_of(found, known)[0] == key)
        self.tallies.failed(mine, self.executor.outcomes.get(key, {}))
        unasked = _unasked(mine, known[key].allowed, now)
        wanted = {address for allocation in mine for address in (*allocation.addresses, *allocation.entries)}
        self._asked[key] = frozenset(wanted - unasked.keys())
        found = plan(self._view(account, known[key], mine, allocations, unasked), now)
        self._memories[key] = found.memory
        self.plans[key] = found
        # A new leader changes nothing before the cloud's first answer.
        acts = self.leading and not (found.questions.describe and account.unanswered)
        with self.tallies.passing(mine if acts else (), self._clock, self.records.failing):
            for allocation in mine if acts else ():
                self.tallies.recorded(found.statuses[allocation.name].addresses, found.memory, now)
                await self.records.store(allocation, found.statuses[allocation.name])
                planned = [finding for name, finding in found.findings if name == allocation.name]
                self.records.report(allocation, (*planned, *self._hindrances(account)))
        if acts and self._act and self.records.problem is None:
            for act in found.acts:
                self.executor.start(account, act)
        account.ask(self._asked[key] if found.questions.describe else (), found.questions.inspect)
        self._asked_pods[key] = found.questions.pods
        self.pods.ask(frozenset().union(*(self._asked_pods[name] for name in self._asked_pods)))
        if found.wake is not None:
            self._queue.add_after(key, max(0.0, found.wake - self.time.now()))

    def _view(
        self,
        account: Account,
        value: values.Account,
        mine: tuple[Allocation, ...],
        every: Sequence[Allocation],
        unasked: Mapping[str, Answer],
    ) -> View:
        name = account.spec.name
        sites = {
            cluster: self.sites.site(name, cluster, account.instances, recognised=account.recognised(cluster))
            for cluster in account.spec.clusters
        }
        return View(
            account=value,
            limits=self.spec.limits,
            sites=sites,
            allocations=mine,
            holders=self._claims.holders,
            conflicts=self._claims.conflicts,
            answers={**account.answers, **unasked},
            inspections=account.inspections,
            outcomes=self.executor.outcomes.get(name, {}),
            running=self.executor.under_way(name),
            pods=self.pods.found,
            evict_after=self.executor.evict_after,
            foreign_labels=self._foreign_labels(name, sites),
            label_keys=frozenset((LABEL_READY, *(found.address_label for found in every if found.address_label))),
            own=self._own,
            halted=self._halted(),
            approvals=frozenset(self._approvals()),
            identity=self._identity,
            approving=self._approving,
            settled=self.settled,
            memory=self._memories.get(name, Memories()),
        )

    def _account(self, account: Account) -> values.Account:
        spec = account.spec
        networks = tuple(network for network in spec.addresses if isinstance(network, IPv4Network))
        return values.Account(
            spec.name,
            spec.provider.name,
            spec.clusters,
            networks,
            account.interval,
            account.cuts,
            account.problem,
            account.frozen,
            self.executor.quota_until.get(spec.name, 0.0),
        )

    def _halted(self) -> tuple[str, str] | None:
        if not self.spec.enforce:
            return "Observe", "nothing is changed in mode observe"
        if not self._act:
            return "Observe", "this command only looks; a running hub would act"
        if not self.leading:
            return "Standby", "another replica acts"
        if self._interlock is not None and (problem := self._interlock.problem) is not None:
            reason = "Forbidden" if isinstance(problem, MissingRight) else "OtherController"
            return reason, f"the interlock's Lease {self.spec.interlock} cannot be read: {problem}"
        if self._interlock is not None and (holder := self._interlock.holder):
            return "OtherController", f"{holder} renews the Lease {self.spec.interlock}; stop that controller"
        return self.records.problem

    def _hindrances(self, account: Account) -> Iterator[Finding]:
        """Why nothing is changed for an account, as far as an operator should know."""
        name = account.spec.name
        if account.status.error:
            yield Finding("CloudFailed", f"account {name}: {account.status.error}")
        if self.executor.quota_until.get(name, 0.0) > self.time.now():
            yield Finding("CloudQuota", f"account {name}: its quota is used up; its acts wait")
        halted = self._halted()
        if halted is not None and halted[0] in HALTING:
            yield Finding(*halted)

    def _foreign_labels(self, name: str, sites: Mapping[str, Site]) -> frozenset[NodeKey]:
        """Nodes that another account keeps labelled; all nodes of a cluster whose other account has no answers yet."""
        found: set[NodeKey] = set()
        for other, account in self.accounts.items():
            shared = set(account.spec.clusters) & sites.keys() if other != name else ()
            for cluster in shared:
                last = self.plans.get(other)
                if last is None or (self._asked[other] and not account.answers):
                    found.update(NodeKey(cluster, node) for node in sites[cluster].machines)
                else:
                    found.update(key for key in last.labelled if key.cluster == cluster)
        return frozenset(found)

    # --- statuses ----------------------------------------------------------------------------------------

    async def _unassigned(
        self, allocations: Sequence[Allocation], known: Mapping[str, values.Account], now: float
    ) -> None:
        """Say why nothing is done for allocations without an account; holder and label stay."""
        unassigned = [found for found in allocations if not account_of(found, known)[0]]
        statuses: dict[str, Status] = {}
        for allocation in unassigned:
            _, reason, message = account_of(allocation, known)
            if broken := self.spec.broken.get(allocation.account):
                reason, message = "AccountBroken", f"account {allocation.account} is frozen: {broken}"
            statuses[allocation.name] = stalled_status(allocation, reason, message, self._identity, now)
        self.unassigned = statuses
        if not self.leading:
            return
        with self.tallies.passing(unassigned, self._clock, self.records.failing):
            for allocation in unassigned:
                await self.records.store(allocation, statuses[allocation.name])


def _unasked(allocations: Iterable[Allocation], networks: tuple[IPv4Network, ...], now: float) -> dict[str, Answer]:
    """Answers about the entries that are never sent to a cloud: texts that are no address, and foreign addresses.

    Where a status says that one was attached, before the networks became smaller, it stays as it is.
    """
    found: dict[str, Answer] = {}
    for allocation in allocations:
        entries = allocation.entries
        for address in {*allocation.addresses, *entries}:
            if not _askable(address, networks):
                entry = entries.get(address)
                stays = entry is not None and (entry.node or entry.move is not None)
                if stays or address not in found:
                    found[address] = Answer(Unknown(NEVER_ASKED) if stays else NotReserved(NEVER_ASKED), now)
    return found


def _askable(address: str, networks: tuple[IPv4Network, ...]) -> bool:
    try:
        return allowed(address, networks)
    except ValueError:  # no address: anybody with the right may write any text into a status
        return False


def own_node(environ: Mapping[str, str]) -> NodeKey | None:
    """The node that this process runs on, from NODE_NAME."""
    name = environ.get("NODE_NAME", "")
    return NodeKey(LOCAL, name) if name else None
