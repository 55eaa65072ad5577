"""Carries out the acts of :mod:`hub.controller.course`: writes to Services, and steps in the cloud."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from hub.cloud.balancers import Balancer, Record, Step
from hub.controller import record
from hub.controller.course import Hold, Memory, Perform, Publish, Release
from hub.controller.services import BalancedService
from hub.controlling.rights import explained
from hub.controlling.services import Services, decode
from hub.controlling.site import Site
from hub.controlling.told import subject
from hub.errors import HubError
from hub.kube.client import MERGE_PATCH
from hub.model import ObjectKey
from hub.plugin.clouds import Uncertain
from hub.runtime.tally import WRITE_BOUNDS, Tally

log = logging.getLogger(__name__)

Work = Literal["ensure", "update", "delete"]
FAILED: Final = {
    "ensure": "SyncLoadBalancerFailed",
    "update": "UpdateLoadBalancerFailed",
    "delete": "DeleteLoadBalancerFailed",
}

HOST_BOUNDS: Final = tuple(2.0**power for power in range(15))
"""Upper bounds in seconds of the histograms of Kubernetes' service controller (k8s.io/cloud-provider 0.35)."""


class Carrier:
    """Makes the writes for the Services of one cluster, and tells of their beginning and end.

    Attributes:
        steps: (kind of a step, name of the error's class or "") -> number.
        ensured: seconds from the first write for a balancer until it is as wanted.
        updated: the same, where only the nodes had changed; its bounds are those of Kubernetes' service controller.
    """

    def __init__(self, site: Site, services: Services) -> None:
        self.steps: dict[tuple[str, str], int] = {}
        self.ensured = Tally(WRITE_BOUNDS)
        self.updated = Tally(HOST_BOUNDS)
        self._site = site
        self._services = services
        self._ready: dict[ObjectKey, Balancer] = {}
        """What a balancer that was ready had, without its nodes."""
        self._begun: dict[ObjectKey, tuple[Work, float]] = {}

    # --- what a Service is in the middle of --------------------------------------------------------------

    def work(self, service: BalancedService) -> Work:
        """What is done for a Service."""
        if service.deleting or service.kind != "LoadBalancer":
            return "delete"
        begun = self._begun.get(ObjectKey(service.namespace, service.name))
        return begun[0] if begun is not None else "ensure"

    def _begin(self, key: ObjectKey, service: BalancedService, want: Balancer | None) -> None:
        if (key in self._begun) and (self._begun[key][0] == "delete") == (want is None):
            return
        work: Work = "ensure"
        if want is None:
            work = "delete"
            self._site.reporter.happened(subject(service), "DeletingLoadBalancer", "Deleting load balancer")
        elif self._ready.get(key) == msgspec.structs.replace(want, nodes=()):
            work = "update"
        else:
            self._site.reporter.happened(subject(service), "EnsuringLoadBalancer", "Ensuring load balancer")
        self._begun[key] = work, self._site.clock.now()

    def ready(self, key: ObjectKey, service: BalancedService, want: Balancer) -> None:
        """A balancer is as wanted."""
        self._ready[key] = msgspec.structs.replace(want, nodes=())
        work, begun = self._begun.pop(key, ("", 0.0))
        seconds = self._site.clock.now() - begun
        if work == "update":
            self.updated.note(seconds)
            text = "Updated load balancer with new hosts"
            self._site.reporter.happened(subject(service), "UpdatedLoadBalancer", text)
        elif work:
            self.ensured.note(seconds)
            self._site.reporter.happened(subject(service), "EnsuredLoadBalancer", "Ensured load balancer")

    def forget(self, key: ObjectKey) -> None:
        """The Service is gone, or has no balancer any more."""
        self._ready.pop(key, None)
        self._begun.pop(key, None)

    # --- acts -------------------------------------------------------------------------------------------

    async def carry(
        self,
        service: BalancedService,
        want: Balancer | None,
        act: Hold | Perform | Publish | Release,
        memory: Memory,
    ) -> None:
        """Make the write of one act."""
        key, now = ObjectKey(service.namespace, service.name), self._site.clock.now
        held = (*service.finalizers, service.finalizer)
        if isinstance(act, Hold | Perform):
            self._begin(key, service, want)
        if isinstance(act, Hold):
            await self._patch(service, held, act.record)
            memory.held(act, now())
        elif isinstance(act, Publish):
            await self._patch(service, held, act.record, msgspec.to_builtins(act.ingress))
            memory.published(act, now())
        elif isinstance(act, Release):
            await self._patch(service, (name for name in service.finalizers if name != service.finalizer), None, [])
            self._site.reporter.happened(subject(service), "DeletedLoadBalancer", "Deleted load balancer")
            self.forget(key)
        else:
            await self.perform(f"Service {key}", act.step, memory)

    async def perform(self, whose: str, step: Step, memory: Memory) -> None:
        """Make one step in the cloud."""
        site, result = self._site, ""
        try:
            done = await site.account.perform(step, site.fence(), site.fence)
        except BaseException as error:
            result = type(error).__name__
            # Cancelled in the middle, or a defect: it may have been made, too.
            unsure = isinstance(error, Uncertain) or not isinstance(error, HubError)
            memory.failed(step, site.clock.now(), uncertain=unsure)
            raise
        finally:
            self.steps[step.kind, result] = self.steps.get((step.kind, result), 0) + 1
        memory.performed(step, done, site.clock.now())
        made = "".join(f": {id_}" for id_ in done.ids.values())
        log.info("cluster %s: %s: %s%s", site.name, whose, step.summary, made)

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
        await site.pace.take()
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
            if (found := explained(error, "services/status: patch", site.name, site.grants)) is error:
                raise
            raise found from error
        self._services.wrote(decode(answer))
