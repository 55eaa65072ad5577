"""One remote cluster: a supervised unit that nobody else waits for.

It loads the kubeconfig, follows the Nodes and keeps a state with a since-when and the last error. What it
knows survives every failure; what it makes of it (views) is unknown unless the state is Ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from hub.errors import ApiError, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess
from hub.kube.reflector import Reflector, RelistSlots
from hub.kube.wire import NODES
from hub.model import Node
from hub.observe.remote.access import Connector
from hub.observe.remote.identity import RULE, read_uid
from hub.observe.remote.nodes import NodeStore
from hub.observe.remote.status import ClusterStatus, State, in_words, state_after
from hub.registry.spec import ClusterSpec
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock
from hub.runtime.supervise import until_one_ends

log = logging.getLogger(__name__)

ACCESS_CHECK = 5.0
"""Seconds between looks at the kubeconfig: a replaced file is in use within this time, without a restart."""
SECRET_CHECK = 30.0
"""Seconds between reads of a kubeconfig's Secret while all is well; else as often as a file is looked at."""
ASKED_OFTEN = 60.0
"""Seconds between lists that are asked for while they fail, at most."""
REFUSALS = 3
"""Times in a row that a 403 is not believed to be about a missing rule while the Nodes are not there either."""
ACCESS_RETRY = 5.0
"""Seconds between attempts to read an unusable kubeconfig, at most: reading costs little, and somebody is at it."""


class RemoteCluster:
    """Follows the Nodes of one cluster.

    Args:
        spec: its registry entry; ``kubeconfig`` must be set.
        on_nodes: called with (changed nodes, names gone) when the complete picture changed.
        on_state: called when ``status`` changed.
        doubt: (name, UID) -> why this is not the cluster it was, "" where it is, None while that is not known.

    Attributes:
        answered_at: Clock.now() of the last complete answer; None before the first.
        uid: of the kube-system Namespace, as last read; "" where it cannot be read.
        doubts: why this is not the cluster it was; "" where it is, None while that is not known.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        connector: Connector,
        clock: Clock,
        slots: RelistSlots,
        on_nodes: Callable[[Iterable[Node], Iterable[str]], None],
        on_state: Callable[[], None],
        doubt: Callable[[str, str], str | None] = lambda *_: "",
    ) -> None:
        self.spec = spec
        self.status = ClusterStatus(State.PENDING, clock.wall())
        self.answered_at: float | None = None
        self.started_at = clock.now()
        self.client: Client | None = None
        self._reflector: Reflector[Node] | None = None
        self._told_at = self.started_at
        """As the reflectors before this one left it: what a kubeconfig leads to, or whom, changes nothing in it."""
        self._asked_at = clock.now()
        self._asked_in_vain = 0
        self._lists_then = 0
        self._connector = connector
        self._clock = clock
        self._slots = slots
        self._store = NodeStore(on_nodes, clock.wall)
        self._on_state = on_state
        self._settled = asyncio.Event()
        self._connected = asyncio.Event()
        self.uid = ""
        self.doubts: str | None = ""
        self._doubt = doubt
        self._identified = True
        """The UID was read since whatever made us doubt last: a new connection, a failure, a new list."""
        self._round = 0
        """Grows with each such doubt."""
        self._identify = asyncio.Event()
        self._unreadable = False
        """It was said that the UID cannot be read."""
        self._refused_early = False
        """The UID was refused while the Nodes were not there either: once they are, it is asked for again."""
        self._current = False
        """The Nodes are complete and current."""
        self._unusable = ""
        """What is wrong with the kubeconfig that came after the one in use."""

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

    @property
    def told_at(self) -> float:
        """``Clock.now()`` of the last moment that ``nodes`` are known to show, see :class:`Reflector`."""
        told = self._reflector.told_at if self._reflector is not None else None
        return self._told_at if told is None else told

    def unreachable_for(self) -> float | None:
        """Seconds since the last complete answer (or since the start), while Unreachable; else None."""
        if self.status.state is not State.UNREACHABLE:
            return None
        return self._clock.now() - (self.started_at if self.answered_at is None else self.answered_at)

    async def settled(self) -> None:
        """Wait until the first attempt has ended, one way or the other."""
        await self._settled.wait()

    async def connection(self) -> Client:
        """The client to read more of this cluster with; waits for a usable kubeconfig, and for the right cluster."""
        while (client := self.client) is None or self.doubts != "":
            await self._connected.wait()
        return client

    def list_again(self, every: float) -> None:
        """Ask for a complete list although the watch is fine.

        At most one in ``every`` seconds, and ever fewer while none comes: each costs a watch that may be all there is.
        """
        if self.lists != self._lists_then:
            self._lists_then, self._asked_in_vain = self.lists, 0
        now, pause = self._clock.now(), min(every * 2**self._asked_in_vain, max(every, ASKED_OFTEN))
        if self._reflector is not None and now - self._asked_at >= pause:
            self._asked_at = now
            self._asked_in_vain = min(self._asked_in_vain + 1, 8)
            self._reflector.list_again()

    async def run(self) -> None:
        """Follow until cancelled."""
        backoff = Backoff(cap=ACCESS_RETRY, jitter=0.2)
        while True:
            try:
                stamp = await self._connector.stamp(self.spec)  # before reading: a change meanwhile is seen later
                access = await self._connector.access(self.spec)
            except HubError as error:
                self.failed(error)
                await self._clock.sleep(backoff.next(self._clock.now()))
                continue
            backoff.reset()
            await self._follow(access, stamp)

    async def _follow(self, access: ClusterAccess, stamp: object) -> None:
        """Run the reflector until the kubeconfig says something else."""
        client = self._connector.client(access)
        self.client = client
        self._unusable = ""
        self._in_doubt()
        name = f"nodes of {self.spec.name}"
        reflector = Reflector(name, client, NODES, self._store, self, self._clock, slots=self._slots)
        self._reflector = reflector
        follow = asyncio.create_task(reflector.run(), name=name)
        replaced = asyncio.create_task(self._replaced(access, stamp), name=f"kubeconfig of {self.spec.name}")
        identity = asyncio.create_task(self._identifying(client), name=f"identity of {self.spec.name}")
        tasks = (follow, replaced, identity)
        try:
            await until_one_ends(tasks)
            log.info("cluster %s: kubeconfig changed, connecting anew", self.spec.name)
        finally:
            self._told_at = self.told_at
            self.client = self._reflector = None
            self._connected.clear()
            await client.close()

    async def _replaced(self, access: ClusterAccess, stamp: object) -> None:
        """Return once the kubeconfig leads elsewhere, or as somebody else; an unusable one is said."""
        read_at = self._clock.now()
        while True:
            await self._clock.sleep(ACCESS_CHECK)
            try:
                now = await self._connector.stamp(self.spec)
                if now is None:
                    if self.status.state is State.READY and self._clock.now() - read_at < SECRET_CHECK:
                        continue
                elif now == stamp:
                    continue
                read_at = self._clock.now()
                if await self._connector.access(self.spec) != access:
                    return
                stamp, self._unusable = now, ""
            except HubError as error:
                if str(error) != self._unusable:
                    self._unusable = str(error)
                    log.warning("cluster %s: goes on with the kubeconfig it had: %s", self.spec.name, error)

    # --- whose answers these are -----------------------------------------------------------------

    def _in_doubt(self) -> None:
        """From here on another cluster may answer: what it says counts once it is identified."""
        if self.client is not None:
            self._identified, self.doubts = False, None
            self._connected.clear()
            self._current = False
            self._round += 1

    async def _identifying(self, client: Client) -> None:
        """Read the UID whenever it is asked for, until cancelled."""
        backoff = Backoff(cap=ACCESS_RETRY)
        refusals = 0
        while True:
            await self._identify.wait()
            self._identify.clear()
            if self._identified:
                continue
            asked = self._round
            try:
                uid = await read_uid(client)
            except (Forbidden, NotFound) as error:
                # An API server that has just started refuses everything: with a list of Nodes it means it.
                refusals += 1
                if isinstance(error, Forbidden) and not self._current and refusals < REFUSALS:
                    await self._again(asked, backoff)
                    continue
                if not self._unreadable:
                    log.info("cluster %s: not checked whether it is the same as before: %s", self.spec.name, error)
                self._unreadable, uid = True, ""
                self._refused_early = not self._current
            except HubError as error:
                if self._current:
                    self._set(State.DEGRADED, f"its identity: {in_words(error, self.spec.name, RULE)}")
                    self._settled.set()
                await self._again(asked, backoff)
                continue
            backoff.reset()
            refusals = 0
            if asked == self._round:
                self.uid, self._identified = uid, True
                self.reconsider()

    async def _again(self, asked: int, backoff: Backoff) -> None:
        """Ask once more after a while; after a failure of the Nodes only once these are there again."""
        await self._clock.sleep(backoff.next(self._clock.now()))
        if asked == self._round or self._current:
            self._identify.set()

    def reconsider(self) -> None:
        """Say what follows from what is known: an approval, or other slices, may make another cluster of it."""
        if not self._identified:
            return
        before = (self.status.state, self.doubts)
        self.doubts = self._doubt(self.spec.name, self.uid) if self.uid else ""
        if self.doubts == "" and self.client is not None:
            self._connected.set()
        else:
            self._connected.clear()
        if self.doubts:
            self._set(State.WRONG_CLUSTER, self.doubts)
            self._settled.set()
        elif self.doubts is not None and self._current:
            self.answered_at = self._clock.now()
            self._set(State.READY, "")
            self._settled.set()
        elif self.status.state is State.WRONG_CLUSTER:
            self._set(State.SYNCING, "")
        if self.doubts != before[1] and self.status.state is before[0]:
            self._on_state()

    # --- the reflector's observer --------------------------------------------------------------

    def listing(self) -> None:
        """A list is needed: until it is there, nothing is said."""
        self._until_now()
        if self._current:
            self._in_doubt()
        if self.status.state in (State.PENDING, State.READY):
            self._set(State.SYNCING, "")

    def answered(self) -> None:
        """The picture is complete and current."""
        if not self.synced:
            return
        if self._identified and self._refused_early:
            self._in_doubt()
        self._refused_early = False
        self._current = True
        if self._identified:
            self.reconsider()
        else:
            self._identify.set()

    def failed(self, error: HubError) -> None:
        """An attempt failed."""
        self._until_now()
        self._current = False
        if not isinstance(error, Forbidden):
            self._in_doubt()
        if not self._identified and isinstance(error, ApiError):
            self._identify.set()  # it answers, if not with Nodes
        if not self.doubts:
            why = in_words(error, self.spec.name, NODES.rule)
            self._set(
                state_after(error),
                f"{why} (a newer kubeconfig is not in use: {self._unusable})" if self._unusable else why,
            )
        self._settled.set()

    def _until_now(self) -> None:
        """A watch that stood until now was a complete answer until now."""
        if self.status.state is State.READY:
            self.answered_at = self._clock.now()

    def _set(self, state: State, error: str) -> None:
        old = self.status
        if old.state is state and old.error == error:
            return
        self.status = ClusterStatus(state, old.since if old.state is state else self._clock.wall(), error)
        if old.state is state:
            return
        calm = state in (State.PENDING, State.SYNCING, State.READY)
        level = logging.INFO if calm else logging.WARNING
        log.log(level, "cluster %s: %s%s", self.spec.name, state, f": {error}" if error else "")
        self._on_state()
