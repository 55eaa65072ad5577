"""Follows one Service of a source cluster, for targets that take port numbers from it.

While the Service cannot be read, its last known state counts. While it does not exist, or before it was read, its ports
are unknown, and targets keep the last known numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from hub.decide.ports import NOT_READ, PortReading
from hub.errors import Forbidden, HubError
from hub.model import LOCAL, Service, TargetKey
from hub.observe.remote.reading import ClusterReader
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)


class RemoteService:
    """Follows one Service of a source cluster.

    Args:
        on_change: called when the ports or ``problem`` may have changed.

    Attributes:
        service: the Service as last read; None if it does not exist, or was not read yet.
        problem: why ``service`` is None or not current; "" if it is current.
    """

    def __init__(
        self, cluster: str, key: TargetKey, reader: ClusterReader, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.service: Service | None = None
        self.problem = NOT_READ.problem
        self._cluster = cluster
        self._what = f"cluster {cluster}: Service {key}"
        self._key = key
        self._reader = reader
        self._clock = clock
        self._on_change = on_change
        self._answered = asyncio.Event()
        self._checked_at: int | None = None
        """The last known healthCheckNodePort."""

    async def run(self) -> None:
        """Follow the Service until cancelled."""
        backoff = Backoff(base=1.0)
        while True:
            try:
                async with aclosing(self._reader.services(*self._key)) as states:
                    # The backoff is not reset here: the list may succeed while every watch fails.
                    async for service in states:
                        self._set(
                            service, "" if service is not None else f"it does not exist in cluster {self._cluster}"
                        )
            except HubError as error:
                hint = self._hint() if isinstance(error.__cause__, Forbidden) else ""
                self._set(self.service, f"{error}{hint}")
            await self._clock.sleep(backoff.next(self._clock.now()))

    async def settled(self) -> None:
        """Wait until the first read has succeeded or failed."""
        await self._answered.wait()

    def node_port(self, port: int | str) -> PortReading:
        """The nodePort of one of the Service's ports, given by name or number."""
        if self.service is None:
            return PortReading(None, self.problem)
        for found in self.service.ports:
            if port in (found.name, found.port):
                if found.node_port:
                    return PortReading(found.node_port)
                return PortReading(None, f"it has no nodePort (the Service is of type {self.service.kind})")
        known = ", ".join(found.name or str(found.port) for found in self.service.ports)
        return PortReading(None, f"the Service has no such port; its ports: {known or 'none'}")

    def health_check_node_port(self) -> PortReading:
        """The healthCheckNodePort; the last known one while the Service cannot be read or does not exist."""
        if self.service is None:
            return PortReading(self._checked_at, self.problem)
        if self.service.health_check_node_port:
            return PortReading(self.service.health_check_node_port)
        return PortReading(None, "it has no healthCheckNodePort (externalTrafficPolicy: Local gives it one)")

    def _hint(self) -> str:
        """How to let the hub read the Service; "" for the hub cluster, which the hub's own account reads."""
        if self._cluster == LOCAL:
            return ""
        return f"; to allow it: hub cluster add {self._cluster} --allow-services {self._key.namespace}"

    def _set(self, service: Service | None, problem: str) -> None:
        self._answered.set()
        if service == self.service and problem == self.problem:
            return
        if problem and problem != self.problem:
            log.warning("%s: %s; ports read from it are kept", self._what, problem)
        self.service, self.problem = service, problem
        if service is not None:
            self._checked_at = service.health_check_node_port or None
        self._on_change()
