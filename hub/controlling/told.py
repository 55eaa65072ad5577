"""What is known about the load balancers of one cluster, for the report, and as Events."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hub.cloud.balancers import Ingress
from hub.controller.course import Act, summaries
from hub.controller.services import BalancedService
from hub.controlling.site import Outlook, Site, Subject
from hub.model import Finding, ObjectKey


class Told(msgspec.Struct, frozen=True):
    """What is known about one Service's balancer.

    Attributes:
        state: ready, working, waiting, failing, withheld or foreign.
        since: Unix time since which it has this state.
        message: why it is not ready.
        ids: kind -> id of its objects.
        ingress: where the Service's status says that it can be reached.
        steps: what comes next, for an operator.
        findings: what an operator should know.
    """

    state: str
    since: float
    message: str = ""
    ids: Mapping[str, str] = {}
    ingress: tuple[Ingress, ...] = ()
    steps: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class Board:
    """What is known about each Service.

    Attributes:
        told: by Service.
    """

    def __init__(self, site: Site) -> None:
        self.told: dict[ObjectKey, Told] = {}
        self._site = site

    def tell(
        self,
        service: BalancedService,
        state: str,
        message: str = "",
        outlook: Outlook | None = None,
        findings: tuple[Finding, ...] = (),
        act: Act | None = None,
    ) -> None:
        """Note the state of a Service; without an outlook its objects are those that were known before.

        Args:
            service: the Service.
            state: see :class:`Told`.
            message: see :class:`Told`.
            outlook: what the cloud has for it.
            findings: what an operator should know.
            act: what comes next; None = nothing now.
        """
        key = ObjectKey(service.namespace, service.name)
        before = self.told.get(key)
        since = before.since if before is not None and before.state == state else self._site.clock.wall()
        ids: Mapping[str, str] = before.ids if before is not None else {}
        if outlook is not None:
            ids = outlook.found
        removing = service.deleting or service.kind != "LoadBalancer"
        steps = summaries(act, outlook.planned, removing=removing) if outlook is not None else ()
        self.told[key] = Told(state, since, message, dict(ids), service.ingress, steps, findings)
        if state != "working":
            self._site.reporter.found(subject(service), findings)

    def forget(self, key: ObjectKey) -> None:
        """The Service is gone, or has no balancer any more."""
        if self.told.pop(key, None) is not None:
            self._site.reporter.ended(Subject("Service", key.namespace, key.name, ""))


def subject(service: BalancedService) -> Subject:
    """The Service, for an Event."""
    return Subject("Service", service.namespace, service.name, service.uid)


def standby_of(site: Site) -> str:
    """Why another replica asks the cloud, and this one need not; "" if this one does."""
    halted = site.halted
    return halted[1] if halted is not None and halted[0] == "Standby" else ""
