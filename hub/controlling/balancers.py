"""The load balancer part of the cloud controller of one cluster: carries out what :mod:`hub.controller.course` says."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from hub.approval import approval_hash
from hub.cloud.balancers import Balancer, BalancerNode, Notice, Record, Step, Wait
from hub.controller import course, record
from hub.controller.course import Act, Hold, Made, Memory, Observe, Perform, Publish, Release, Rest, Scene
from hub.controller.services import FINALIZER, BalancedService, Guard, Names, Wanted, balanced, names, role, wanted
from hub.controlling.rights import explained
from hub.controlling.services import Services, decode
from hub.controlling.site import Observation, Outlook, Site, Subject
from hub.errors import ApiError, Conflict, HubError, NotFound, NotLeader
from hub.kube.client import MERGE_PATCH
from hub.model import Finding, Node, ObjectKey
from hub.plugin.clouds import CloudConflict, CloudRefusal, CloudType, QuotaExceeded, Uncertain
from hub.plugin.spec import TransientProviderError
from hub.registry.spec import CloudBalancersSpec
from hub.runtime.queue import KeyedQueue
from hub.runtime.supervise import supervise

log = logging.getLogger(__name__)

ROUNDS: Final = 60
"""Most acts for one Service in one pass."""
RETRY_FIRST: Final = 5.0
RETRY_LAST: Final = 300.0
"""Seconds until a failed pass is made again: first, and at most; Kubernetes' own service controller has these."""
JITTER: Final = 0.2
RECONNECT: Final = 2.0
"""Seconds until the Services are followed again after a failure."""
State = Literal["ready", "working", "waiting", "failing", "withheld", "foreign"]


class Told(msgspec.Struct, frozen=True):
    """What is known about one Service's balancer.

    Attributes:
        state: see :data:`State`.
        since: Unix time since which it has this state.
        message: why it is not ready.
        ids: kind -> id of its objects.
        steps: the next steps, for an operator.
        findings: what an operator should know.
    """

    state: str
    since: float
    message: str = ""
    ids: Mapping[str, str] = {}
    steps: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class BalancerPart:
    """Makes, keeps and removes the load balancers of one cluster's Services.

    Attributes:
        services: the Services.
        told: Service -> what is known about its balancer.
        steps: (kind of a step, result) -> number.
        problem: why nothing can be done now; "" if something can.
    """

    def __init__(self, site: Site) -> None:
        self.told: dict[ObjectKey, Told] = {}
        self.steps: dict[tuple[str, str], int] = {}
        self.problem = ""
        self.leftovers: tuple[str, ...] = ()
        self._site = site
        self._queue: KeyedQueue[ObjectKey] = KeyedQueue(site.clock)
        self.services = Services(site.name, site.client, site.clock, self._service_changed, self._all_again)
        self._memories: dict[ObjectKey, Memory] = {}
        self._failures: dict[ObjectKey, int] = {}
        self._guard = Guard()
        self._nodes: dict[str, BalancerNode] = {}
        self._nodes_at = float("-inf")
        """When the nodes that balancers have were last looked at."""
        self._first_change: float | None = None
        self._last_change = 0.0
        self._changed = asyncio.Event()
        self._observe_after = float("-inf")
        """Observations that began earlier do not count."""
        self._wanted: dict[str, Balancer] = {}

    # --- what wakes it ----------------------------------------------------------------------------------

    def nodes_changed(self, changed: Iterable[Node], gone: Iterable[str]) -> None:  # noqa: ARG002 - all are looked at
        """Nodes have changed: after a while without changes, all balancers get the nodes that are there then."""
        self._last_change = self._site.clock.now()
        if self._first_change is None:
            self._first_change = self._last_change
        self._changed.set()

    def state_changed(self) -> None:
        """The cluster, the duty, the account or the section has changed."""
        self._all_again()

    def _service_changed(self, key: ObjectKey) -> None:
        self._failures.pop(key, None)
        self._queue.add(key)

    def _all_again(self) -> None:
        for key in self.services.objects:
            self._queue.add(key)

    # --- running ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow and serve until cancelled."""
        clock, spec = self._site.clock, self._site.spec.balancers
        concurrent = spec.concurrent if spec is not None else 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(), name=f"Services of {self._site.name}")
            group.create_task(supervise(f"nodes of balancers of {self._site.name}", self._settle, clock))
            group.create_task(supervise(f"resync of {self._site.name}", self._resync, clock))
            for _ in range(concurrent):
                group.create_task(self._work())

    async def _follow(self) -> None:
        while True:
            try:
                await self.services.run()
            except HubError as error:
                self.services.failed(error)
            await self._site.clock.sleep(RECONNECT)

    async def _settle(self) -> None:
        """Wait until nodes have not changed for a while, and look at them then."""
        clock = self._site.clock
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._first_change is not None:
                quiet, longest = await self._times()
                due = min(self._last_change + quiet, self._first_change + longest)
                if (wait := due - clock.now()) > 0:
                    await clock.sleep(wait)
                    continue
                self._first_change = None
                if self._look_at_nodes(await self._site.account.opened()):
                    self._observe_after = clock.now()
                    self._all_again()

    async def _times(self) -> tuple[float, float]:
        spec, type_ = self._site.spec.balancers or CloudBalancersSpec(), await self._site.account.opened()
        quiet, longest = type_.settle
        return spec.settle if spec.settle is not None else quiet, spec.settle_max or longest

    def _look_at_nodes(self, type_: CloudType) -> bool:
        """Take over the nodes that are there now; returns whether the set has changed."""
        if self._site.problem:
            return False
        now = self._site.clock.now()
        before, there = self._nodes, balanced(self._site.nodes.values(), type_.provider_id)
        self._nodes, self._nodes_at = self._guard.accept(there, now), now
        if self._guard.held:
            self._last_change, self._first_change = now, now
        return self._nodes != before

    async def _resync(self) -> None:
        """Observe from time to time although nothing has changed; look for objects without a Service."""
        while True:
            spec = self._site.spec.balancers or CloudBalancersSpec()
            await self._site.clock.sleep(spec.resync)
            self._observe_after = self._site.clock.now()
            self._all_again()
            await self._look_for_leftovers()

    async def _look_for_leftovers(self) -> None:
        site = self._site
        if site.problem or self.services.problem:
            return
        seen = await site.account.observe(self._observe_after)
        suffix = f".{site.spec.cluster_name}"
        used = {self._names(service).name for service in self.services.objects.values()}
        self.leftovers = tuple(
            f"{name}: {', '.join(ids)}"
            for name, ids in sorted((await site.account.names(seen.value)).items())
            if name.endswith(suffix) and name not in used
        )
        for text in self.leftovers:
            log.warning(
                "cluster %s: %s has no Service (CloudObjectLeft); hub purge --cloud %s", site.name, text, site.name
            )

    async def _work(self) -> None:
        clock = self._site.clock
        while True:
            key = await self._queue.get()
            try:
                again = await self._pass(key)
                self._failures.pop(key, None)
                if again is not None:
                    self._queue.add_after(key, again)
            except NotLeader as error:
                log.debug("cluster %s: %s: not written: %s", self._site.name, key, error)
            except (Conflict, NotFound) as error:
                log.debug("cluster %s: Service %s has changed: %s", self._site.name, key, error)
                self._queue.add_after(key, 1.0)
            except Exception as error:  # noqa: BLE001 - one Service must not stop the others
                self._queue.add_after(key, self._retry(key, error))
            finally:
                self._queue.done(key)
            await clock.sleep(0)

    def _retry(self, key: ObjectKey, error: Exception) -> float:
        """Note a failed pass; returns the seconds until the next one."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        after = error.retry_after or 0.0 if isinstance(error, TransientProviderError | ApiError) else 0.0
        if isinstance(error, QuotaExceeded):
            after = max(after, RETRY_LAST)
        wait = min(RETRY_LAST, RETRY_FIRST * 2 ** min(failures - 1, 8)) * random.uniform(1 - JITTER, 1 + JITTER)
        service = self.services.objects.get(key)
        if isinstance(error, HubError):
            text = f"Service {key} of cluster {self._site.name}: {error}"
            log.warning("%s", text)
        else:
            text = f"Service {key} of cluster {self._site.name}: {type(error).__name__}"
            log.error("%s", text, exc_info=error)
        if service is not None:
            leaving = service.deleting or service.kind != "LoadBalancer"
            reason = "DeleteLoadBalancerFailed" if leaving else "SyncLoadBalancerFailed"
            self._tell(service, "failing", text, findings=(Finding(reason, text),))
        return float(max(after, wait))

    # --- one Service ------------------------------------------------------------------------------------

    def _names(self, service: BalancedService) -> Names:
        spec = self._site.spec
        return names(service, spec.cluster_name, spec.former_names, self._site.uid)

    async def _pass(self, key: ObjectKey) -> float | None:
        """Make all acts for one Service that can be made now; returns when it is to be looked at again."""
        site = self._site
        self.problem = site.problem or self.services.problem
        service = self.services.objects.get(key)
        if service is None:
            self._forget(key)
            return None
        if self.problem or not site.uid:
            self._tell(service, "waiting", self.problem or f"the identity of cluster {site.name} is not known")
            return None
        type_ = await site.account.opened()
        if self._nodes_at == float("-inf"):
            self._look_at_nodes(type_)
        for _ in range(ROUNDS):
            service = self.services.objects.get(key)
            if service is None:
                self._forget(key)
                return None
            act, told = await self._next(service, type_)
            if isinstance(act, Rest):
                return act.after
            if site.halted is not None:
                self._tell(service, "waiting", site.halted[1], told)
                return None
            self._tell(service, "working", "", told)
            await self._carry_out(key, service, act)
        return 1.0

    async def _next(self, service: BalancedService, type_: CloudType) -> tuple[Act, Outlook]:
        """The next act for a Service, and what the cloud has for it."""
        site, key = self._site, ObjectKey(service.namespace, service.name)
        spec, provider = site.spec.balancers or CloudBalancersSpec(), site.spec.provider.name
        named = self._names(service)
        kept, ignored = record.read(service.record, named, provider)
        remembered = bool(service.record) and not ignored
        what = role(service, spec, remembered=remembered)
        findings = (
            (Finding("RecordIgnored", f"the record of Service {key} does not count: {ignored}"),) if ignored else ()
        )
        if what in ("none", "foreign") or service.paused:
            state = "foreign" if what != "ensure" and what != "delete" else "waiting"
            message = "its annotation endpointslice-hub/paused is true" if service.paused else ""
            if what == "none":
                self._forget(key)
            else:
                self._tell(service, state, message, findings=findings)
            return Rest(state), Outlook(())
        want = (
            wanted(service, named, self._nodes.values(), type_.annotations, type_.prefix) if what == "ensure" else None
        )
        self._want(named.name, want.balancer if want is not None else None)
        memory = self._memories.setdefault(key, Memory(made=[], uncertain={}))
        after = max(self._observe_after, site.clock.now() - spec.resync)
        while True:
            seen = await site.account.observe(after)
            scene, told = await self._scene(service, want, kept, seen, memory, remembered=remembered)
            act = course.ensure(scene, memory) if want is not None else course.remove(scene, memory)
            if not isinstance(act, Observe):
                break
            after = act.after + 1e-6
        if isinstance(act, Rest):
            found = [*findings, *(want.findings if want is not None else ())]
            found += [Finding(item.reason, item.message) for item in told.planned if isinstance(item, Notice)]
            found += [act.finding] if act.finding is not None else []
            if want is not None and not self._nodes:
                found.append(Finding("UnAvailableLoadBalancer", f"no node of cluster {site.name} can take traffic"))
            self._tell(service, act.state, act.message, told, tuple(found))
        return act, told

    async def _scene(
        self,
        service: BalancedService,
        want: Wanted | None,
        kept: Record,
        seen: Observation,
        memory: Memory,
        *,
        remembered: bool,
    ) -> tuple[Scene, Outlook]:
        site = self._site
        now = site.clock.now()
        ids = {**kept.ids}
        for made in memory.made:
            ids.update(made.done.ids)
        full = msgspec.structs.replace(kept, ids=ids)
        balancer = want.balancer if want is not None else None
        outlook = await site.account.plan(balancer, seen.value, full, memory.recent(now, seen.begun))
        digest = approval_hash("cloud", site.name, service.namespace, service.name, service.uid)
        scene = Scene(
            site.name,
            service,
            kept,
            remembered,
            outlook.planned,
            outlook.ingress,
            outlook.found,
            seen.begun,
            site.creates_after,
            tuple(sorted(balancer.settings)) if balancer is not None else (),
            want.refused if want is not None else None,
            now,
            site.clock.wall(),
            frozenset((digest,)) if site.approved(digest) else frozenset(),
        )
        return scene, outlook

    def _want(self, name: str, balancer: Balancer | None) -> None:
        if balancer is None:
            self._wanted.pop(name, None)
        else:
            self._wanted[name] = balancer
        self._site.account.want(self._site.name, dict(self._wanted))

    # --- acts -------------------------------------------------------------------------------------------

    async def _carry_out(self, key: ObjectKey, service: BalancedService, act: Act) -> None:
        memory = self._memories[key]
        subject, now = _subject(service), self._site.clock.now
        if isinstance(act, Hold):
            self._site.reporter.happened(subject, "EnsuringLoadBalancer", "Ensuring load balancer")
            await self._patch(service, (*service.finalizers, FINALIZER), act.record)
            memory.held_at, memory.intends = now(), True
        elif isinstance(act, Publish):
            ingress = msgspec.to_builtins(act.ingress)
            finalizers = service.finalizers if service.held else (*service.finalizers, FINALIZER)
            await self._patch(service, finalizers, act.record, ingress)
            memory.intends = False
            self._site.reporter.happened(subject, "EnsuredLoadBalancer", "Ensured load balancer")
        elif isinstance(act, Release):
            finalizers = tuple(name for name in service.finalizers if name != FINALIZER)
            await self._patch(service, finalizers, None, [])
            self._memories.pop(key, None)
            self._site.reporter.happened(subject, "DeletedLoadBalancer", "Deleted load balancer")
        elif isinstance(act, Perform):
            if act.step.destroys and not memory.made:
                self._site.reporter.happened(subject, "DeletingLoadBalancer", "Deleting load balancer")
            await self._perform(key, act.step, memory)

    async def _perform(self, key: ObjectKey, step: Step, memory: Memory) -> None:
        site, result = self._site, ""
        clock = site.clock
        try:
            done = await site.account.perform(step, site.fence(), site.fence)
        except Uncertain as error:
            result = type(error).__name__
            memory.written_at = clock.now()
            if step.creates:
                memory.uncertain[step.creates] = clock.now() + course.LAG
            self._observe_after = clock.now()
            raise
        except (CloudConflict, CloudRefusal) as error:
            result = type(error).__name__
            self._observe_after = clock.now()
            raise
        except HubError as error:
            result = type(error).__name__
            raise
        finally:
            count = (step.kind, result)
            self.steps[count] = self.steps.get(count, 0) + 1
        memory.written_at = clock.now()
        memory.made = [*memory.made, Made(clock.now(), step, done)]
        memory.uncertain.pop(step.creates, None)
        log.info("cluster %s: Service %s: %s", site.name, key, step.summary)

    async def _patch(
        self, service: BalancedService, finalizers: Iterable[str], kept: Record | None, ingress: Any = None
    ) -> None:
        """Write finalizers and record, and with ``ingress`` the status; nothing if the Service has changed."""
        site = self._site
        text = record.write(kept, site.spec.cluster_name, site.spec.provider.name) if kept is not None else None
        meta = {
            "uid": service.uid,
            "resourceVersion": service.resource_version,
            "finalizers": list(dict.fromkeys(finalizers)),
            "annotations": {record.ANNOTATION: text},
        }
        body: dict[str, Any] = {"metadata": meta}
        if ingress is not None:
            body["status"] = {"loadBalancer": {"ingress": ingress} if ingress else None}
        path = f"/api/v1/namespaces/{service.namespace}/services/{service.name}/status"
        client = await site.client()
        try:
            answer = await client.request(
                "PATCH",
                path,
                body=msgspec.json.encode(body),
                timeout=site.fence(),
                content_type=MERGE_PATCH,
                admit=site.fence,
            )
        except HubError as error:
            if (found := explained(error, "services/status: patch", site.name)) is error:
                raise
            raise found from error
        self.services.wrote(decode(answer))

    # --- what is told -----------------------------------------------------------------------------------

    def _tell(
        self,
        service: BalancedService,
        state: str,
        message: str = "",
        outlook: Outlook | None = None,
        findings: tuple[Finding, ...] = (),
    ) -> None:
        key = ObjectKey(service.namespace, service.name)
        before = self.told.get(key)
        same = before is not None and before.state == state
        since = before.since if before is not None and same else self._site.clock.wall()
        ids = dict(outlook.found) if outlook is not None else (before.ids if before is not None else {})
        planned = outlook.planned if outlook is not None else ()
        steps = tuple(item.summary for item in planned if isinstance(item, Step))
        waits = tuple(item.message for item in planned if isinstance(item, Wait))
        self.told[key] = Told(state, since, message, ids, (*steps, *waits), findings)
        if state != "working":
            self._site.reporter.found(_subject(service), findings)

    def _forget(self, key: ObjectKey) -> None:
        if self.told.pop(key, None) is not None:
            self._site.reporter.ended(Subject("Service", key.namespace, key.name, ""))
        self._memories.pop(key, None)
        self._failures.pop(key, None)
        self._want(f"{key.name}.{key.namespace}.{self._site.spec.cluster_name}", None)


def _subject(service: BalancedService) -> Subject:
    return Subject("Service", service.namespace, service.name, service.uid)
