"""The interlock: while another controller renews its Lease, the hub changes no address."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from hub.allocating.rights import INTERLOCK, explained
from hub.election.lease import KubeLease
from hub.errors import HubError, NotFound
from hub.kube.client import Client
from hub.model import ObjectKey
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

LOOK: Final = 1.0
"""Seconds between two looks: an act stops within 2 s of the other controller's first renewal."""
MARGIN: Final = 5.0
"""Seconds beyond the Lease's duration without a change, after which nobody holds it."""
DURATION: Final = 60.0
"""The duration of a Lease that names none."""


class Interlock:
    """Watches another controller's Lease.

    Attributes:
        holder: who renews it; "" = nobody. Until the Lease was looked at long enough, its holder counts.
        problem: why the Lease cannot be read; None if it can. Its holder then counts, too.
    """

    def __init__(self, client: Client, lease: ObjectKey, clock: Clock, on_change: Callable[[], None]) -> None:
        self.holder = "an unknown holder"
        self.problem: HubError | None = None
        self._lease = lease
        self._store = KubeLease(client, lease.namespace, lease.name)
        self._clock = clock
        self._on_change = on_change

    async def run(self) -> None:
        """Look until cancelled."""
        seen: object = None
        since = self._clock.now()
        while True:
            try:
                record = await self._store.get()
            except NotFound:
                self._set("")
            except HubError as error:
                problem = explained(error, INTERLOCK, namespace=self._lease.namespace)
                if str(problem) != str(self.problem):
                    log.warning("interlock: %s; nothing is changed until the Lease can be read", problem)
                self._set("an unknown holder", problem)
            else:
                mark = (record.holder, record.renewed)
                if mark != seen:
                    seen, since = mark, self._clock.now()
                free = self._clock.now() - since > (record.duration or DURATION) + MARGIN
                self._set("" if free or not record.holder else record.holder)
            await self._clock.sleep(LOOK)

    def _set(self, holder: str, problem: HubError | None = None) -> None:
        changed = (holder, str(problem)) != (self.holder, str(self.problem))
        self.holder, self.problem = holder, problem
        if changed:
            self._on_change()
