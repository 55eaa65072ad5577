"""Follows the Nodes of one remote cluster, independently of all other clusters.

Loads the kubeconfig, checks the cluster's identity, watches the Nodes and keeps a state with the last error. The Nodes
are kept through every failure, but they are current only while the state is Ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from hub.errors import ApiError, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.kube.cluster_access import ClusterAccess
from hub.kube.reflector import Reflector, RelistSlots
from hub.kube.wire import CONTROLLED_NODES, NODES
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
"""Seconds between checks of the kubeconfig: a replaced file is in use within this time, without a restart."""
SECRET_CHECK = 30.0
"""Seconds between reads of a kubeconfig's Secret that is not watched, while the cluster is Ready."""
LONGEST_PAUSE = 60.0
"""Maximum seconds between two requested lists while no list arrives."""
REFUSALS = 3
"""403s in a row, while the Nodes cannot be listed either, after which the RBAC rule counts as missing. An API server
that has just started answers 403 to everything for some seconds."""
ACCESS_RETRY = 5.0
"""Maximum seconds between attempts to read an unusable kubeconfig. An operator is probably fixing it, and reading is
cheap."""


class RemoteCluster:
    """Follows the Nodes of one cluster.

    Args:
        spec: the cluster's registry entry; ``kubeconfig`` must be set.
        on_nodes: called with (changed nodes, names of deleted nodes).
        on_state: called when ``status`` changed.
        check_identity: (name, UID) -> ``mismatch``, see :meth:`.identity.Identities.check`.

    Attributes:
        answered_at: Clock.now() of the last complete answer; None before the first.
        started_at: Clock.now() at which this object was made.
        client: None while there is no connection.
        uid: UID of the kube-system Namespace, as last read; "" if it cannot be read.
        mismatch: why this is not the cluster that had this name before; "" if it is, None while that is not known.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        connector: Connector,
        clock: Clock,
        slots: RelistSlots,
        on_nodes: Callable[[Iterable[Node], Iterable[str]], None],
        on_state: Callable[[], None],
        check_identity: Callable[[str, str], str | None] = lambda *_: "",
    ) -> None:
        self.spec = spec
        self.status = ClusterStatus(State.PENDING, clock.wall())
        self.answered_at: float | None = None
        self.started_at = clock.now()
        self.client: Client | None = None
        self._reflector: Reflector[Node] | None = None
        self._current_as_of = self.started_at
        """``current_as_of`` of the previous reflector: a new kubeconfig does not make the Nodes current."""
        self._requested_at = clock.now()
        self._failed_requests = 0
        self._lists_at_request = 0
        self._connector = connector
        self._clock = clock
        self._slots = slots
        self._store = NodeStore(on_nodes, clock.wall)
        self._on_state = on_state
        self._settled = asyncio.Event()
        self._connected = asyncio.Event()
        self.uid = ""
        self.mismatch: str | None = ""
        self._check_identity = check_identity
        self._identified = True
        """Whether the UID was read after the last new connection, failure or new list."""
        self._round = 0
        """Number of times that the UID became outdated; a UID read in an earlier round is ignored."""
        self._identify = asyncio.Event()
        self._unreadable_logged = False
        """Whether the log says that the UID cannot be read."""
        self._refused_early = False
        """Whether the UID was refused or missing before the Nodes were listed; it is read again after the list."""
        self._current = False
        """Whether the Nodes are complete and current."""
        self._unusable = ""
        """Why the changed kubeconfig cannot be used; "" if it can. The previous one stays in use meanwhile."""

    @property
    def nodes(self) -> dict[str, Node]:
        """All Nodes by name, as the last answer had them; do not modify."""
        return self._store.nodes

    @property
    def synced(self) -> bool:
        """Whether the Nodes have been listed completely at least once."""
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
    def current_as_of(self) -> float:
        """``Clock.now()`` at which ``nodes`` were last known to be current, see :class:`Reflector`."""
        told = self._reflector.current_as_of if self._reflector is not None else None
        return self._current_as_of if told is None else told

    def unreachable_for(self) -> float | None:
        """Seconds since the last complete answer (or since the start) if the state is Unreachable; else None."""
        if self.status.state is not State.UNREACHABLE:
            return None
        return self._clock.now() - (self.started_at if self.answered_at is None else self.answered_at)

    async def settled(self) -> None:
        """Wait until the first attempt has succeeded or failed."""
        await self._settled.wait()

    async def connection(self) -> Client:
        """The cluster's client; waits until there is one and the cluster's identity is confirmed."""
        while (client := self.client) is None or self.mismatch != "":
            await self._connected.wait()
        return client

    def list_again(self, every: float) -> None:
        """Request a complete list although the watch works, at most once in ``every`` seconds.

        The pause doubles while no list arrives: every request ends the present watch, and lists may be what fails.
        """
        if self.lists != self._lists_at_request:
            self._lists_at_request, self._failed_requests = self.lists, 0
        now, pause = self._clock.now(), min(every * 2**self._failed_requests, max(every, LONGEST_PAUSE))
        if self._reflector is not None and now - self._requested_at >= pause:
            self._requested_at = now
            self._failed_requests = min(self._failed_requests + 1, 8)  # keeps the power small
            self._reflector.list_again()

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        backoff = Backoff(cap=ACCESS_RETRY, jitter=0.2)
        while True:
            try:
                stamp = await self._connector.stamp(self.spec)  # before reading, so that no change is missed
                access = await self._connector.access(self.spec)
            except HubError as error:
                self.failed(error)
                await self._clock.sleep(backoff.next(self._clock.now()))
                continue
            backoff.reset()
            await self._follow(access, stamp)

    async def _follow(self, access: ClusterAccess, stamp: object) -> None:
        """Run the reflector until the kubeconfig changes."""
        client = self._connector.client(access)
        self.client = client
        self._unusable = ""
        self._forget_identity()
        name = f"nodes of {self.spec.name}"
        nodes = NODES if self.spec.cloud is None else CONTROLLED_NODES
        reflector = Reflector(name, client, nodes, self._store, self, self._clock, slots=self._slots)
        self._reflector = reflector
        follow = asyncio.create_task(reflector.run(), name=name)
        replaced = asyncio.create_task(self._replaced(access, stamp), name=f"kubeconfig of {self.spec.name}")
        identity = asyncio.create_task(self._identifying(client), name=f"identity of {self.spec.name}")
        tasks = (follow, replaced, identity)
        try:
            await until_one_ends(tasks)
            log.info("cluster %s: kubeconfig changed, connecting again", self.spec.name)
        finally:
            self._current_as_of = self.current_as_of
            self.client = self._reflector = None
            self._connected.clear()
            await client.close()

    async def _replaced(self, access: ClusterAccess, stamp: object) -> None:
        """Return when the kubeconfig has another server or credential; log an unusable kubeconfig and continue."""
        read_at = self._clock.now()
        while True:
            await self._clock.sleep(ACCESS_CHECK)
            try:
                new_stamp = await self._connector.stamp(self.spec)
                if new_stamp is None:  # a Secret that is not watched: only reading it shows a change
                    if self.status.state is State.READY and self._clock.now() - read_at < SECRET_CHECK:
                        continue
                elif new_stamp == stamp:
                    continue
                read_at = self._clock.now()
                if await self._connector.access(self.spec) != access:
                    return
                stamp, self._unusable = new_stamp, ""
            except HubError as error:
                if str(error) != self._unusable:
                    self._unusable = str(error)
                    log.warning("cluster %s: keeps the previous kubeconfig: %s", self.spec.name, error)

    # --- the cluster's identity --------------------------------------------------------------------

    def _forget_identity(self) -> None:
        """Ignore answers until the UID has been read again, since another cluster may answer from now on."""
        if self.client is not None:
            self._identified, self.mismatch = False, None
            self._connected.clear()
            self._current = False
            self._round += 1

    async def _identifying(self, client: Client) -> None:
        """Read the UID whenever ``_identify`` is set, until cancelled."""
        backoff = Backoff(cap=ACCESS_RETRY)
        refusals = 0
        while True:
            await self._identify.wait()
            self._identify.clear()
            if self._identified:
                continue
            round_ = self._round
            try:
                uid = await read_uid(client)
            except (Forbidden, NotFound) as error:
                # An API server that has just started answers 403 to everything. Once it has listed the Nodes, a 403
                # means that the RBAC rule is missing.
                refusals += 1
                if isinstance(error, Forbidden) and not self._current and refusals < REFUSALS:
                    await self._identify_later(round_, backoff)
                    continue
                if not self._unreadable_logged:
                    log.info("cluster %s: its identity cannot be checked: %s", self.spec.name, error)
                self._unreadable_logged, uid = True, ""
                self._refused_early = not self._current
            except HubError as error:
                if self._current:
                    self._set(State.DEGRADED, f"its identity: {in_words(error, self.spec.name, RULE)}")
                    self._settled.set()
                await self._identify_later(round_, backoff)
                continue
            backoff.reset()
            refusals = 0
            if round_ == self._round:
                self.uid, self._identified = uid, True
                self.check_identity()

    async def _identify_later(self, round_: int, backoff: Backoff) -> None:
        """Request another read of the UID after a pause, unless the Nodes failed meanwhile and are not listed again."""
        await self._clock.sleep(backoff.next(self._clock.now()))
        if round_ == self._round or self._current:
            self._identify.set()

    def check_identity(self) -> None:
        """Check the UID again, and update the state; called when approvals or slices have changed."""
        if not self._identified:
            return
        before = (self.status.state, self.mismatch)
        self.mismatch = self._check_identity(self.spec.name, self.uid) if self.uid else ""
        if self.mismatch == "" and self.client is not None:
            self._connected.set()
        else:
            self._connected.clear()
        if self.mismatch:
            self._set(State.WRONG_CLUSTER, self.mismatch)
            self._settled.set()
        elif self.mismatch is not None and self._current:
            self.answered_at = self._clock.now()
            self._set(State.READY, "")
            self._settled.set()
        elif self.status.state is State.WRONG_CLUSTER:
            self._set(State.SYNCING, "")
        if self.mismatch != before[1] and self.status.state is before[0]:
            self._on_state()

    # --- the reflector's observer --------------------------------------------------------------

    def listing(self) -> None:
        """A new list has begun; until it is complete, the Nodes are not current."""
        self._extend_answered_at()
        if self._current:
            self._forget_identity()
        if self.status.state in (State.PENDING, State.READY):
            self._set(State.SYNCING, "")

    def answered(self) -> None:
        """The Nodes are complete and current."""
        if not self.synced:
            return
        if self._identified and self._refused_early:
            self._forget_identity()
        self._refused_early = False
        self._current = True
        if self._identified:
            self.check_identity()
        else:
            self._identify.set()

    def failed(self, error: HubError) -> None:
        """An attempt failed."""
        self._extend_answered_at()
        self._current = False
        if not isinstance(error, Forbidden):
            self._forget_identity()
        if not self._identified and isinstance(error, ApiError):
            self._identify.set()  # the API server answers, but not with Nodes: the UID may be readable
        if not self.mismatch:
            why = in_words(error, self.spec.name, NODES.rule)
            self._set(
                state_after(error),
                f"{why} (a newer kubeconfig is not in use: {self._unusable})" if self._unusable else why,
            )
        self._settled.set()

    def _extend_answered_at(self) -> None:
        """Update ``answered_at`` at the end of a working watch: the Nodes were complete until now."""
        if self.status.state is State.READY:
            self.answered_at = self._clock.now()

    def _set(self, state: State, error: str) -> None:
        old = self.status
        if old.state is state and old.error == error:
            return
        self.status = ClusterStatus(state, old.since if old.state is state else self._clock.wall(), error)
        if old.state is state:
            return
        normal = state in (State.PENDING, State.SYNCING, State.READY)
        level = logging.INFO if normal else logging.WARNING
        log.log(level, "cluster %s: %s%s", self.spec.name, state, f": {error}" if error else "")
        self._on_state()
