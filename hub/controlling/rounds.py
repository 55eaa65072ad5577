"""The nodes that the balancers of one cluster have. They follow the cluster's nodes in rounds, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hub.cloud.balancers import BalancerNode
from hub.controller.services import Guard, balanced, follow_at
from hub.controlling.site import Site
from hub.model import Finding
from hub.plugin.clouds import CloudType
from hub.registry.spec import CloudBalancersSpec


class Rounds:
    """Takes over the nodes that are there once they have settled.

    Args:
        site: the cluster.
        begin: called when a round begins: the set of nodes has changed.

    Attributes:
        nodes: the nodes that balancers have, by name; None until they were looked at.
    """

    def __init__(self, site: Site, begin: Callable[[], None]) -> None:
        self.nodes: dict[str, BalancerNode] | None = None
        self._site = site
        self._begin = begin
        self._guard = Guard(site.name)
        self._first_change: float | None = None
        self._last_change = 0.0
        self._changed = asyncio.Event()

    @property
    def finding(self) -> Finding | None:
        """Nodes whose removal is held back; None if none is."""
        return self._guard.finding()

    def note(self) -> None:
        """Nodes have changed: after a while without changes, all balancers get the nodes that are there then."""
        self._last_change = self._site.clock.now()
        if self._first_change is None:
            self._first_change = self._last_change
        self._changed.set()

    async def run(self) -> None:
        """Wait until nodes have not changed for a while, and look at them then; until cancelled."""
        site = self._site
        while True:
            if self._first_change is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            type_, spec = await site.account.opened(), site.spec.balancers or CloudBalancersSpec()
            settle = spec.settle or type_.settle[0], spec.settle_max or type_.settle[1]
            changed, now = (self._first_change, self._last_change), site.clock.now()
            if (wait := follow_at(changed, settle, now, self.nodes or {}, self._there(type_)) - now) > 0:
                await site.clock.sleep(wait)
                continue
            self._first_change = None
            if not site.problem and self.look(type_):
                self._begin()

    def look(self, type_: CloudType) -> bool:
        """Take over the nodes that are there now; returns whether the set has changed."""
        before, held = self.nodes, self.finding
        self.nodes = self._guard.accept(self._there(type_), self._site.clock.now(), self._site.approved)
        if self._guard.held:
            self.note()  # look again
        return before != self.nodes or self.finding != held

    def _there(self, type_: CloudType) -> dict[str, BalancerNode]:
        return balanced(self._site.nodes.values(), type_.provider_id, type_.annotations)
