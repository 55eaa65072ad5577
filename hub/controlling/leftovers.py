"""Objects under a cluster's name that no Service needs: reported, and deleted if the registry says so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from hub.approval import approval_hash
from hub.cloud.balancers import Marker, Notice, Planned, Record, Step
from hub.controller.course import Memory
from hub.controller.services import role
from hub.controlling.carry import Carrier
from hub.controlling.services import Services
from hub.controlling.site import Site
from hub.controlling.told import standby_of
from hub.model import ObjectKey
from hub.registry.spec import CloudBalancersSpec

log = logging.getLogger(__name__)

APART: Final = 600.0
"""Seconds between the first and the last observation of an object that is deleted."""
STEPS: Final = 20
"""Most steps for one name in one round."""


class Leftover(NamedTuple):
    """Objects of one name without a Service.

    Attributes:
        name: their name.
        objects: each as ``kind id``.
        since: Unix time of the first observation.
        withheld: why they are not deleted although the registry says so; "" if nothing withholds that.
    """

    name: str
    objects: tuple[str, ...]
    since: float
    withheld: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.objects)}{self.withheld and f' ({self.withheld})'}"


class Leftovers:
    """Looks for leftovers of one cluster.

    Args:
        site: the cluster.
        services: its Services.
        carrier: makes the steps.
        memory: returns the memory of a Service's steps, so that a Service that is created again knows them.

    Attributes:
        found: the leftovers, by name.
    """

    def __init__(
        self, site: Site, services: Services, carrier: Carrier, memory: Callable[[ObjectKey, str], Memory]
    ) -> None:
        self.found: tuple[Leftover, ...] = ()
        self._site = site
        self._services = services
        self._carrier = carrier
        self._memory = memory
        self._first: dict[str, tuple[float, float]] = {}
        """Name -> (time, Unix time) of the first observation."""

    async def look(self) -> None:
        """Observe, and delete what may go.

        Raises:
            HubError: the cloud cannot be observed, or a step failed.
        """
        site = self._site
        if site.problem or self._services.problem or not site.uid or standby_of(site):
            return
        clock, spec = site.clock, site.spec.balancers or CloudBalancersSpec()
        seen = await site.account.observe(clock.now())
        named = {
            name: objects
            for name, objects in (await site.account.names(seen.value)).items()
            if (key := self._key(name)) is not None and (not spec.namespaces or key.namespace in spec.namespaces)
        }
        # The Services are current: a Service that came after the observation is among them.
        alone = {name: objects for name, objects in sorted(named.items()) if not self._served(self._key(name))}
        for name in alone.keys() - self._first.keys():
            self._first[name] = clock.now(), clock.wall()
            text = f"no Service wants {name} (CloudObjectLeft): {', '.join(alone[name])}"
            log.warning("cluster %s: %s; hub purge --cloud %s", site.name, text, site.name)
        self._first = {name: self._first[name] for name in alone}
        ripe = [name for name in alone if clock.now() - self._first[name][0] >= APART]
        delete = spec.orphans == "delete" and site.halted is None
        withheld = self._withheld(alone, len(named)) if delete and ripe else ""
        self.found = tuple(Leftover(name, alone[name], self._first[name][1], withheld) for name in alone)
        if delete and not withheld:
            for name in ripe:
                await self.delete(name)

    def _key(self, name: str) -> ObjectKey | None:
        """The Service of an object's name; None if it is not of this cluster. Neither part contains a dot."""
        service, _, rest = name.partition(".")
        namespace, _, cluster = rest.partition(".")
        return (
            ObjectKey(namespace, service) if service and namespace and cluster == self._site.spec.cluster_name else None
        )

    def _served(self, key: ObjectKey | None) -> bool:
        """Whether a Service of the name needs a balancer, or a finalizer says that a controller will remove it."""
        service = self._services.objects.get(key) if key is not None else None
        if service is None:
            return False
        return service.held or role(service, self._site.spec.balancers or CloudBalancersSpec()) != "none"

    def _withheld(self, alone: Mapping[str, object], named: int) -> str:
        """Why so many are not deleted: a list of Services may be wrong."""
        if len(alone) < 2 or len(alone) <= named / 2:
            return ""
        digest = approval_hash("cloud-leftovers", self._site.name, sorted(alone))
        if self._site.approved(digest):
            return ""
        text = (
            f"not deleted: {len(alone)} of {named} names have no Service, and the list of Services may be wrong; "
            f"hub approve cloud/{self._site.name} {digest} deletes them"
        )
        log.warning("cluster %s: %s", self._site.name, text)
        return text

    async def delete(self, name: str) -> Planned | None:
        """Delete the objects of a name, as far as possible now, unless a Service of it is there.

        Returns:
            What must be waited for, or why they stay; None if nothing more is to be done.

        Raises:
            HubError: the cloud cannot be observed, or a step failed.
        """
        site, key = self._site, self._key(name)
        assert key is not None  # noqa: S101 - it was found by its name
        memory = self._memory(key, "")
        record = Record(name, Marker(site.uid, ""))
        for _ in range(STEPS):
            seen = await site.account.observe(memory.stale)
            outlook = await site.account.plan(None, seen.value, record, memory.recent(seen.begun))
            first = next((item for item in outlook.planned if not isinstance(item, Notice)), None)
            served = self._services.problem or self._served(key)
            if not isinstance(first, Step) or served or memory.pending(first, site.clock.now()):
                return None if served else first
            await self._carrier.perform(f"leftover {name}", first, memory)
        return None
