"""One remote cluster: a supervised unit that nobody else waits for.

It loads the kubeconfig, follows the Nodes and keeps a state with a since-when and the last error. What it
knows survives every failure; what it makes of it (views) is unknown unless the state is Ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from hub.aio.backoff import Backoff
from hub.aio.clock import Clock
from hub.errors import HubError
from hub.kube.client import Client
from hub.kube.kubeconfig import ClusterAccess
from hub.kube.reflector import Reflector, RelistSlots
from hub.kube.wire import NODES
from hub.model import Node
from hub.registry.spec import ClusterSpec
from hub.remote.access import Connector
from hub.remote.nodes import NodeStore
from hub.remote.status import ClusterStatus, State, in_words, state_after

log = logging.getLogger(__name__)

ACCESS_CHECK = 10.0
"""Seconds between looks at the kubeconfig: a replaced one is in use within this time, without a restart."""


class RemoteCluster:
    """Follows the Nodes of one cluster.

    Args:
        spec: its registry entry; ``kubeconfig`` must be set.
        on_nodes: called with (changed nodes, names gone) when the complete picture changed.
        on_state: called when ``status`` changed.

    Attributes:
        answered_at: Clock.now() of the last complete answer; None before the first.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        connector: Connector,
        clock: Clock,
        slots: RelistSlots,
        on_nodes: Callable[[Iterable[Node], Iterable[str]], None],
        on_state: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.status = ClusterStatus(State.PENDING, clock.wall())
        self.answered_at: float | None = None
        self.started_at = clock.now()
        self.client: Client | None = None
        self._connector = connector
        self._clock = clock
        self._slots = slots
        self._store = NodeStore(on_nodes)
        self._on_state = on_state
        self._settled = asyncio.Event()

    @property
    def nodes(self) -> dict[str, Node]:
        """All Nodes by name, as of the last answer. Read only."""
        return self._store.nodes

    @property
    def synced(self) -> bool:
        """There was a complete list at some time."""
        return self._store.lists > 0

    @property
    def version(self) -> int:
        """Grows with every change of ``nodes``."""
        return self._store.version

    @property
    def lists(self) -> int:
        """Complete lists so far."""
        return self._store.lists

    def unreachable_for(self) -> float | None:
        """Seconds since the last complete answer (or since the start), while Unreachable; else None."""
        if self.status.state is not State.UNREACHABLE:
            return None
        return self._clock.now() - (self.started_at if self.answered_at is None else self.answered_at)

    async def settled(self) -> None:
        """Wait until the first attempt has ended, one way or the other."""
        await self._settled.wait()

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff()
        while True:
            try:
                access = await self._connector.access(self.spec)
            except HubError as error:
                self.failed(error)
                await self._clock.sleep(backoff.next(self._clock.now()))
                continue
            await self._follow(access)

    async def _follow(self, access: ClusterAccess) -> None:
        """Run the reflector until the kubeconfig says something else."""
        client = self._connector.client(access)
        self.client = client
        name = self.spec.name
        reflector = Reflector(
            f"nodes of {name}", client, NODES, self._store, self, self._clock, slots=self._slots
        )
        task = asyncio.create_task(reflector.run(), name=f"nodes of {name}")
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=ACCESS_CHECK)
                with suppress(HubError):  # unreadable for the moment: the old one goes on
                    if await self._connector.access(self.spec) != access:
                        log.info("cluster %s: kubeconfig changed, connecting anew", name)
                        return
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self.client = None
            await client.close()

    # --- the reflector's observer --------------------------------------------------------------

    def listing(self) -> None:
        """A list is needed: until it is there, nothing is said."""
        if self.status.state in (State.PENDING, State.READY):
            self._set(State.SYNCING, "")

    def answered(self) -> None:
        """The picture is complete and current."""
        self.answered_at = self._clock.now()
        if self.synced:
            self._set(State.READY, "")
            self._settled.set()

    def failed(self, error: HubError) -> None:
        """An attempt failed."""
        self._set(state_after(error), in_words(error, self.spec.name, NODES.rule))
        self._settled.set()

    def _set(self, state: State, error: str) -> None:
        old = self.status
        if old.state is state and old.error == error:
            return
        self.status = ClusterStatus(state, old.since if old.state is state else self._clock.wall(), error)
        if old.state is state:
            return
        level = logging.WARNING if state in (State.DEGRADED, State.UNREACHABLE) else logging.INFO
        log.log(level, "cluster %s: %s%s", self.spec.name, state, f": {error}" if error else "")
        self._on_state()
