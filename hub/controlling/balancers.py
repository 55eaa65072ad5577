"""The load balancer part of the cloud controller of one cluster: carries out what :mod:`hub.controller.course` says."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from msgspec.structs import replace

from hub.cloud.balancers import Balancer, Notice
from hub.controller import course, record
from hub.controller.course import Act, Memory, Observe, Perform, Publish, Release, Rest, Scene
from hub.controller.record import Kept
from hub.controller.services import BalancedService, Wanted, names, role, wanted
from hub.controlling.carry import FAILED, HOST_BOUNDS, Carrier
from hub.controlling.leftovers import Leftovers
from hub.controlling.rounds import Rounds
from hub.controlling.services import UNREAD, Services
from hub.controlling.site import Observation, Outlook, Site
from hub.controlling.told import Board, Told, standby_of
from hub.errors import ApiError, Conflict, HubError, NotFound, NotLeader
from hub.model import Finding, Node, ObjectKey
from hub.plugin.clouds import CloudRefusal, CloudType, QuotaExceeded
from hub.plugin.spec import TransientProviderError
from hub.registry.spec import CloudBalancersSpec
from hub.runtime.queue import KeyedQueue
from hub.runtime.supervise import spawn
from hub.runtime.tally import Tally

log = logging.getLogger(__name__)

WORKERS: Final = 16
"""Services that are worked on at once; ``concurrent`` of them change the cloud."""
ROUNDS: Final = 60
"""Most acts for one Service in one pass."""
RETRY_FIRST: Final = 5.0
RETRY_LAST: Final = 300.0
"""Seconds until a failed pass is made again: first, and at most; Kubernetes' own service controller has these."""
JITTER: Final = 0.2
RECONNECT: Final = 2.0
"""Seconds until the Services are followed again after a failure."""
READ_AGAIN: Final = 1.0
"""Seconds until a pass is made again that another writer's change has ended: the watch brings that change."""


class Look(NamedTuple):
    """What one look at a Service says.

    Attributes:
        act: what comes next.
        outlook: what the cloud has for it.
        want: what it wants; None = no balancer.
        findings: what an operator should know.
        memory: what this process remembers.
    """

    act: Act
    outlook: Outlook
    want: Balancer | None
    findings: tuple[Finding, ...]
    memory: Memory


class Backoff(NamedTuple):
    """A failed pass.

    Attributes:
        service: the Service when it failed; a change of it is looked at at once.
        number: of failures in a row.
        due: when the next pass may begin.
    """

    service: BalancedService
    number: int
    due: float


class BalancerPart:
    """Makes, keeps and removes the load balancers of one cluster's Services.

    Attributes:
        services: the Services.
        problem: why nothing can be done now; "" if something can.
        syncs: number of passes.
        failures: number of failed passes.
        node_failures: of these, those that followed a change of the nodes.
        node_rounds: seconds from a change of the nodes until every Service had a pass after it.
    """

    def __init__(self, site: Site) -> None:
        self.problem = ""
        self.syncs = 0
        self.failures = 0
        self.node_failures = 0
        self.node_rounds = Tally(HOST_BOUNDS)
        self._site = site
        self._queue: KeyedQueue[ObjectKey] = KeyedQueue(site.clock)
        self.services = Services(site.name, site.client, site.clock, self._queue.add, self.state_changed)
        self.carrier = Carrier(site, self.services)
        self._board = Board(site)
        self._leftovers = Leftovers(site, self.services, self.carrier, self._memory)
        self._memories: dict[ObjectKey, Memory] = {}
        self._backoffs: dict[ObjectKey, Backoff] = {}
        self._rounds = Rounds(site, self._round_begins)
        self._round: tuple[float, set[ObjectKey]] = (0.0, set())
        """When the nodes last changed, and the Services that have had no pass since."""
        self._observe_after = course.NEVER
        """Observations that began earlier do not count."""
        self._wants: dict[ObjectKey, Balancer] = {}
        self._turns = asyncio.Semaphore(self._spec.concurrent)
        """Bounds the Services that change the cloud at once. One that waits for an observation does not count."""
        self._wanted_at: dict[ObjectKey, float] = {}
        """When a Service began to want what it wants, its nodes aside: a plugin observes details for that."""

    @property
    def told(self) -> Mapping[ObjectKey, Told]:
        """Service -> what is known about its balancer."""
        return self._board.told

    @property
    def steps(self) -> Mapping[tuple[str, str], int]:
        """(kind of a step, name of the error's class or "") -> number."""
        return self.carrier.steps

    def nodes_of(self, key: ObjectKey) -> list[str]:
        """The Nodes that a Service's balancer sends traffic to, sorted."""
        want = self._wants.get(key)
        return [node.name for node in want.nodes] if want is not None else []

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Objects without a Service, by name, for an operator."""
        return tuple(str(left) for left in self._leftovers.found)

    @property
    def settled(self) -> bool:
        """Whether all Services have been decided about, or cannot be read."""
        return self.services.problem != UNREAD and not len(self._queue) and not self._queue.working

    # --- what wakes it ----------------------------------------------------------------------------------

    def nodes_changed(self, changed: Iterable[Node], gone: Iterable[str]) -> None:  # noqa: ARG002 - all are looked at
        """Nodes have changed: balancers follow once they have settled."""
        self._rounds.note()

    def state_changed(self) -> None:
        """The cluster, the duty, the account or the section has changed."""
        if self._site.halted is not None:
            self._memories.clear()  # another process may write meanwhile
        if self._rounds.nodes is not None:
            self._rounds.note()
        self._all_again()

    def _round_begins(self) -> None:
        self._observe_after = self._site.clock.now()
        self._round = self._observe_after, set(self.services.objects)
        self._all_again()

    def _all_again(self) -> None:
        self._backoffs = {key: backoff._replace(due=course.NEVER) for key, backoff in self._backoffs.items()}
        for key in self.services.objects:
            self._queue.add(key)

    # --- running ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow and serve until cancelled."""
        site = self._site
        async with asyncio.TaskGroup() as group:
            spawn(group, f"Services of {site.name}", self._follow, site.clock)
            spawn(group, f"nodes of balancers of {site.name}", self._rounds.run, site.clock)
            spawn(group, f"resync of {site.name}", self._resync, site.clock)
            for number in range(WORKERS):
                spawn(group, f"load balancers of {site.name}: worker {number}", self._work, site.clock)

    @property
    def _spec(self) -> CloudBalancersSpec:
        return self._site.spec.balancers or CloudBalancersSpec()

    async def _follow(self) -> None:
        while True:
            try:
                await self.services.run()
            except HubError as error:
                self.services.failed(error)
            await self._site.clock.sleep(RECONNECT)

    async def _resync(self) -> None:
        """Observe from time to time although nothing has changed; look for objects without a Service."""
        clock = self._site.clock
        while True:
            await clock.sleep(self._spec.resync)
            self._observe_after, now = clock.now(), clock.now()
            self._memories = {
                key: memory
                for key, memory in self._memories.items()
                if key in self.services.objects or now < memory.written_at + course.LAG
            }
            self._all_again()
            await self._leftovers.look()

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                again = self._resting(key)
                if again is None:
                    self.syncs += 1
                    again = await self._pass(key)
                    self._backoffs.pop(key, None)
                    self._passed(key)
            except (Conflict, NotFound) as error:
                log.debug("cluster %s: Service %s has changed: %s", self._site.name, key, error)
                again = READ_AGAIN
            except NotLeader as error:
                log.debug("cluster %s: Service %s: not written: %s", self._site.name, key, error)
                again = RETRY_FIRST
            except Exception as error:  # noqa: BLE001 - one Service must not stop the others
                again = self._failed(key, error)
            finally:
                self._queue.done(key)
            if again is not None and again != float("inf"):
                self._queue.add_after(key, again)
            await asyncio.sleep(0)

    def _resting(self, key: ObjectKey) -> float | None:
        """Seconds until a pass that has failed is made again; None if it may begin: the Service has changed since."""
        backoff, now = self._backoffs.get(key), self._site.clock.now()
        if backoff is None or now >= backoff.due or self.services.objects.get(key) != backoff.service:
            return None
        return backoff.due - now

    def _passed(self, key: ObjectKey) -> bool:
        """Note the end of a pass; returns whether it was the first one after a change of the nodes."""
        begun, waiting = self._round
        if key not in waiting:
            return False
        waiting.discard(key)
        if not waiting:
            self.node_rounds.note(self._site.clock.now() - begun)
        return True

    def _failed(self, key: ObjectKey, error: Exception) -> float:
        """Note a failed pass; returns the seconds until the next one."""
        self.failures += 1
        self.node_failures += self._passed(key)
        text = f"Service {key} of cluster {self._site.name}: "
        if isinstance(error, HubError):
            text += str(error)
            log.warning("%s", text)
        else:
            text += f"{type(error).__name__}, a defect; see the log"
            log.error("%s", text, exc_info=error)
        service = self.services.objects.get(key)
        if service is None:
            return RETRY_FIRST
        reason = FAILED[self.carrier.work(service)]
        self._board.tell(service, "failing", text, findings=(Finding(reason, text),))
        before = self._backoffs.get(key)
        number = before.number + 1 if before is not None and before.service.asked == service.asked else 1
        wait: float = min(RETRY_LAST, RETRY_FIRST * 2 ** min(number - 1, 8)) * random.uniform(1 - JITTER, 1 + JITTER)
        if isinstance(error, TransientProviderError | ApiError):
            wait = max(wait, error.retry_after or 0.0)
        if isinstance(error, QuotaExceeded):
            wait = max(wait, RETRY_LAST)
        elif isinstance(error, CloudRefusal):
            wait = float("inf")
        self._backoffs[key] = Backoff(service, number, self._site.clock.now() + wait)
        return wait

    # --- one Service ------------------------------------------------------------------------------------

    async def _pass(self, key: ObjectKey) -> float | None:
        """Make all acts for one Service that can be made now; returns when it is to be looked at again."""
        async with AsyncExitStack() as turn:
            return await self._acts(key, turn)

    async def _acts(self, key: ObjectKey, turn: AsyncExitStack) -> float | None:
        """See :meth:`_pass`; ``turn`` ends with the pass, and lets another Service change the cloud then."""
        self.problem = self._site.problem or self.services.problem
        if not self.problem and not self._site.uid:
            self.problem = f"the identity of cluster {self._site.name} is not known yet"
        waited = False
        if key in self._memories:
            self._memories[key].stale = min(self._memories[key].stale, self._site.clock.now())
        for _ in range(ROUNDS):
            service = self.services.objects.get(key)
            what = role(service, self._spec) if service is not None else "none"
            if service is None or what == "none":
                self._forget(key)
                return None
            if (idle := self._idle(service, foreign=what == "foreign")) is not None:
                self._board.tell(service, *idle)
                return None
            look = await self._look(key, service, await self._wanted(service) if what == "ensure" else None)
            if isinstance(look.act, Rest):
                return self._rest(key, service, look, look.act)
            if (halted := self._site.halted) is not None:
                self._board.tell(service, "waiting", halted[1], look.outlook, look.findings, look.act)
                return None
            if isinstance(look.act, Perform) and not waited:
                waited = True
                await turn.enter_async_context(self._turns)
            elif self.services.objects.get(key) is service:
                await self._carry(key, service, look)
        return READ_AGAIN

    def _idle(self, service: BalancedService, *, foreign: bool) -> tuple[str, str] | None:
        """State and message of a Service for which the cloud need not be asked."""
        if foreign:
            return "foreign", f"its class is {service.class_!r}, and the hub serves {self._spec.class_!r}"
        if service.paused:
            return "waiting", "its annotation endpointslice-hub/paused is true"
        if self.problem:
            return "waiting", self.problem
        return ("waiting", standby) if (standby := standby_of(self._site)) else None

    async def _carry(self, key: ObjectKey, service: BalancedService, look: Look) -> None:
        self._board.tell(service, "working", "", look.outlook, act=look.act)
        assert not isinstance(look.act, Observe | Rest)  # noqa: S101 - see _pass and _look
        await self.carrier.carry(service, look.want, look.act, look.memory)
        if isinstance(look.act, Publish) and look.want is not None:
            self.carrier.ready(key, service, look.want)
        elif isinstance(look.act, Release):
            self._forget(key)

    def _rest(self, key: ObjectKey, service: BalancedService, look: Look, act: Rest) -> float | None:
        if act.state == "ready" and look.want is not None:
            self.carrier.ready(key, service, look.want)
        if act.after is not None:
            # Services that wait for the same time may share an observation.
            look.memory.stale = self._site.clock.now() + act.after / 2
        halted = self._site.halted
        message = halted[1] if halted is not None and act.state == "waiting" else act.message
        self._board.tell(service, act.state, message, look.outlook, look.findings)
        return act.after if halted is None else None

    async def _look(self, key: ObjectKey, service: BalancedService, want: Wanted | None) -> Look:
        """What comes next for a Service."""
        site, clock = self._site, self._site.clock
        named = names(service, site.spec.cluster_name, site.spec.former_names, site.uid)
        kept = record.read(service.record, named, site.spec.provider.name)
        memory = self._memory(key, service.uid)
        balancer = want.balancer if want is not None else None
        if balancer is None and memory.want is not None:
            memory.stale = max(memory.stale, clock.now())  # a deletion begins with a look at what is there
        memory.wants(balancer)
        after = max(self._observe_after, clock.now() - self._spec.resync, memory.stale, self._wanted_at.get(key, 0.0))
        while True:
            seen = await site.account.observe(after)
            scene, outlook = await self._scene(service, want, kept, seen, memory)
            act = course.ensure(scene, memory) if want is not None else course.remove(scene, memory)
            if not isinstance(act, Observe):
                break
            after = act.after
        findings = [*want.findings] if want is not None else []
        if kept.ignored:
            findings.append(Finding("RecordIgnored", f"the record of Service {key} does not count: {kept.ignored}"))
        findings += [Finding(item.reason, item.message) for item in outlook.planned if isinstance(item, Notice)]
        findings += [act.finding] if isinstance(act, Rest) and act.finding is not None else []
        if want is not None and (held := self._rounds.finding) is not None:
            findings.append(held)
        return Look(act, outlook, balancer, tuple(findings), memory)

    async def _scene(
        self, service: BalancedService, want: Wanted | None, kept: Kept, seen: Observation, memory: Memory
    ) -> tuple[Scene, Outlook]:
        site, spec = self._site, self._site.spec
        recent = memory.recent(seen.begun)
        balancer = want.balancer if want is not None else None
        outlook = await site.account.plan(balancer, seen.value, kept.full(recent), recent)
        scene = Scene(
            site.name,
            spec.cluster_name,
            spec.former_names,
            service,
            kept,
            outlook.planned,
            outlook.ingress,
            outlook.found,
            seen.begun,
            site.creates_after,
            tuple(sorted(balancer.settings)) if balancer is not None else (),
            want.refused if want is not None else None,
            self._spec.class_,
            site.clock.now(),
            site.clock.wall(),
            site.approved,
        )
        return scene, outlook

    def _memory(self, key: ObjectKey, uid: str) -> Memory:
        """What this process remembers; while it may not write, nothing."""
        now = self._site.clock.now()
        found = self._memories.get(key)
        memory = found.of(uid, now) if found is not None else Memory(uid, now)
        if self._site.halted is None:
            self._memories[key] = memory
        return memory

    async def _wanted(self, service: BalancedService) -> Wanted:
        type_ = await self._site.account.opened()
        if self._rounds.nodes is None:
            self._rounds.look(type_)
            for other in self.services.objects.values():
                if role(other, self._spec) == "ensure":
                    self._want(other, type_)  # so that one observation has the details of all
        return self._want(service, type_)

    def _want(self, service: BalancedService, type_: CloudType) -> Wanted:
        """What a Service wants, which the account gets to know, too."""
        site, key = self._site, ObjectKey(service.namespace, service.name)
        named = names(service, site.spec.cluster_name, site.spec.former_names, site.uid)
        want = wanted(service, named, (self._rounds.nodes or {}).values(), type_.annotations, type_.prefix)
        before = self._wants.get(key)
        if before is None or replace(before, nodes=()) != replace(want.balancer, nodes=()):
            self._wanted_at[key] = site.clock.now()
        if before != want.balancer:
            self._wants[key] = want.balancer
            site.account.want(site.name, {balancer.name: balancer for balancer in self._wants.values()})
        return want

    def _forget(self, key: ObjectKey) -> None:
        """The Service has no balancer any more; the memory of its last steps stays for the next Service of its name."""
        self._board.forget(key)
        self.carrier.forget(key)
        self._backoffs.pop(key, None)
        self._wanted_at.pop(key, None)
        if self._wants.pop(key, None) is not None:
            wants = {balancer.name: balancer for balancer in self._wants.values()}
            self._site.account.want(self._site.name, wants)
