"""Calls a NodeProvider for the nodes of one cluster, and keeps its resolutions.

Callers report nodes synchronously and read ``resolutions``. :meth:`Resolver.run` makes one call at a time: for the
nodes that changed in a field that the type reads, or for all nodes on a poll. A failed call is repeated with backoff;
until then the known resolutions stay.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hub.model import Node, Resolution
from hub.observe.providers.calls import Calls, OpenManager
from hub.observe.providers.host import CLOSE_DEADLINE, Prepared, ProviderHost
from hub.observe.providers.memory import Memory
from hub.observe.providers.status import RETRY_CAP, Health, ProviderStatus
from hub.plugin.answers import read_answer
from hub.plugin.spec import NodeProvider, NodeProviderType, ReadOnlyCluster, TerminalProviderError
from hub.registry.spec import ProviderRef
from hub.runtime.clock import Clock

RESOLVE_DEADLINE: Final = 30.0
"""Seconds for one call of ``resolve``."""

MIN_CONFIRM: Final = 2.0
"""Minimum seconds between the two answers that confirm "absent"."""

POLL_JITTER: Final = 0.1
"""Maximum share by which a poll interval is longer or shorter, at random, so that clusters do not poll together."""

MIN_CHANGED: Final = 1.0
"""Minimum seconds between two calls that a provider requests with ``changed()``; it may do so in every ``resolve``."""


class Resolver:
    """Resolves the nodes of one cluster with one provider.

    Run :meth:`run` under :func:`hub.runtime.supervise.supervise`. :meth:`settled` waits; all other methods are
    synchronous. All may be called before ``run`` starts.

    Args:
        on_change: called synchronously after ``resolutions`` or ``status`` changed.
        api: read access to the cluster for the provider.

    Attributes:
        calls: number of calls of ``resolve``.
        answers: successful answers about all nodes; for a type that does not poll, all successful answers.
        ignored: number of names in answers that the call had not asked for.
        version: grows with every change of ``resolutions``.
    """

    def __init__(
        self,
        cluster: str,
        ref: ProviderRef,
        host: ProviderHost,
        on_change: Callable[[], None],
        *,
        api: ReadOnlyCluster | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.cluster = cluster
        self.ref = ref
        self.calls = 0
        self.answers = 0
        self.ignored = 0
        self.version = 0
        self._host = host
        self._clock: Clock = host.clock
        self._on_change = on_change
        self._api = api
        self._rng = rng or random.Random()
        self._health = Health(f"cluster {cluster}, provider {ref.name}", self._clock, self._rng)
        self._calls = Calls(f"provider {ref.name} of {cluster}:")
        self._nodes: dict[str, Node] = {}
        self._memory = Memory(MIN_CONFIRM)
        self._pending: set[str] = set()
        self._asking = False
        self._poll_at: float | None = None
        self._changed_at: float | None = None
        self._last_changed = float("-inf")
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._prepared: Prepared | None = None
        self._held: OpenManager[Any] | None = None
        self._provider: NodeProvider | None = None
        self._opened_at = 0.0
        self._reads: tuple[str, ...] | None = None

    @property
    def resolutions(self) -> Mapping[str, Resolution]:
        """Node name -> resolution, for every node reported; a live view."""
        return self._memory.resolutions

    @property
    def status(self) -> ProviderStatus:
        """The provider's state."""
        return self._health.status

    @property
    def scope(self) -> str:
        """The ``scope`` of the configuration, see :class:`ProviderType`; "" if it has none, or is not loaded yet."""
        return self._prepared.scope if self._prepared is not None else ""

    @property
    def failures(self) -> int:
        """Number of failed calls."""
        return self._health.failures

    def must_resolve(self, old: Node | None, new: Node) -> bool:
        """Whether the node must be resolved again because ``old`` became ``new``."""
        if old is None or old.created != new.created or self._reads is None:
            return old is not new
        return any(getattr(old, name) != getattr(new, name) for name in self._reads)

    def update(self, changed: Iterable[Node] = (), removed: Iterable[str] = ()) -> bool:
        """Report new and changed nodes, and names of deleted nodes.

        Returns:
            Whether views may change before the provider has answered. New nodes alone change nothing: without an
            address nothing is published for them, and ``on_change`` is called after the answer or failure.
        """
        news = self.status.state == "degraded"  # the next call may be a minute away
        for name in removed:
            self._pending.discard(name)
            self._nodes.pop(name, None)
            news = True
            if self._memory.forget(name):
                self.version += 1
        for node in changed:
            old = self._nodes.get(node.name)
            self._nodes[node.name] = node
            news |= old is not None
            if old is None or old.created != node.created:  # another node of the same name
                self._memory.add(node.name)
                self.version += 1
            if self.must_resolve(old, node):
                self._pending.add(node.name)
        if self._pending:
            self._settled.clear()
            self._wake.set()
        elif not self._asking:
            self._settled.set()
        return news

    def replace(self, nodes: Iterable[Node]) -> None:
        """Report a complete list of the cluster's nodes."""
        listed = {node.name: node for node in nodes}
        self.update(listed.values(), [name for name in self._nodes if name not in listed])

    def changed(self) -> None:
        """Handle the provider's ``ClusterContext.changed()``: resolve all nodes again soon."""
        if self._changed_at is None:
            self._changed_at = max(self._clock.now(), self._last_changed + MIN_CHANGED)
        self._health.unblock()
        self._wake.set()

    async def settled(self) -> None:
        """Wait until ``resolve`` was called for every node reported so far, successfully or not."""
        await self._settled.wait()

    async def run(self) -> None:
        """Call the provider when necessary until cancelled, then close it."""
        try:
            while True:
                self._wake.clear()  # before the check, so that no later change is missed
                wait = self._wait_for()
                if wait <= 0:
                    await self._ask()
                else:
                    await self._health.wait(wait, self._wake, partial(self._host.credentials_changed, self.ref.name))
        finally:
            await self._close()

    # --- when to ask -------------------------------------------------------------------------------

    def _due(self) -> float:
        """Time of the next call, ignoring failures; -inf = now, inf = no call is necessary."""
        if not self._nodes:
            return float("inf")
        if self._pending:
            return float("-inf")
        times = (self._poll_at, self._changed_at, self._memory.confirm_at())
        return min((time for time in times if time is not None), default=float("inf"))

    def _wait_for(self) -> float:
        if self._held is not None and not self._held.alive and self._health.status.state != "degraded":
            return 0.0  # the provider died while idle: report its error, and open it again
        return max(self._due(), self._health.blocked_until) - self._clock.now()

    def _batch(self, now: float) -> tuple[list[Node], bool]:
        """The nodes to resolve, sorted by name, and whether these are all nodes."""
        poll = self._prepared.poll if self._prepared else None
        confirm = [name for name, at in self._memory.unconfirmed().items() if at <= now]
        everything = (
            (self._poll_at is not None and self._poll_at <= now)
            or (self._changed_at is not None and self._changed_at <= now)
            or (poll is not None and bool(confirm))  # saves a call: the confirmation serves as the next poll
        )
        names = self._nodes.keys() if everything else self._pending.union(confirm) & self._nodes.keys()
        return [self._nodes[name] for name in sorted(names)], len(names) == len(self._nodes)

    # --- asking ------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        now = self._clock.now()
        batch, everything = self._batch(now)
        self._pending.difference_update(node.name for node in batch)
        if everything and self._changed_at is not None:  # before the call: the answer may lack later changes
            self._changed_at, self._last_changed = None, now
        self._asking = True
        self._health.begin_call(self._host.renewals(self.ref.name))
        try:
            prepared, provider = await self._open()
            if not batch:
                return
            self.calls += 1
            stats, started = self._host.calls_of(self.ref.name), self._clock.now()
            try:
                found, ignored = await self._calls.call(
                    prepared.loop, "resolve", partial(self._resolve, provider, tuple(batch)), RESOLVE_DEADLINE
                )
            finally:
                stats.seconds.note(self._clock.now() - started)
        except Exception as error:  # noqa: BLE001 - plugin code; the resolutions stay
            self._failed(batch, error)
        else:
            self._answered(batch, found, ignored, everything)
        finally:
            self._asking = False
            if not self._pending or self._health.status.state == "degraded":
                self._settled.set()

    @staticmethod
    async def _resolve(provider: NodeProvider, batch: tuple[Node, ...]) -> tuple[dict[str, Resolution], int]:
        """Call ``resolve`` and read its answer; runs in the provider's loop, since both are code of the plugin."""
        return read_answer([node.name for node in batch], await provider.resolve(batch))

    def _answered(self, batch: Sequence[Node], found: Mapping[str, Resolution], ignored: int, everything: bool) -> None:
        now = self._clock.now()
        poll = self._prepared.poll if self._prepared else None
        changed = False
        for node in batch:
            current = self._nodes.get(node.name)
            if current is None or self.must_resolve(node, current):
                continue  # the node is gone, or has changed and is resolved again next
            changed |= self._memory.apply(node.name, found.get(node.name), now)
        if everything and poll is not None:
            self._poll_at = now + poll * self._rng.uniform(1 - POLL_JITTER, 1 + POLL_JITTER)
        if everything or poll is None:
            self.answers += 1
        self.ignored += ignored
        self.version += changed
        self._host.calls_of(self.ref.name).answered()
        lasting = now - self._opened_at >= RETRY_CAP  # else keep the backoff: a provider may die after each answer
        if self._health.succeeded(forget=lasting) or changed:
            self._on_change()

    def _failed(self, batch: Sequence[Node], error: Exception) -> None:
        before = self._health.status
        self._host.calls_of(self.ref.name).failed(error)
        text = self._health.failed(error)
        names = [node.name for node in batch if node.name in self._nodes]
        self._pending.update(names)
        changed = self._memory.failed(names, text)
        self.version += changed
        if changed or self._health.status != before:
            self._on_change()

    # --- opening and closing -----------------------------------------------------------------------

    async def _open(self) -> tuple[Prepared, NodeProvider]:
        if self._held is not None and not self._held.alive:
            held, self._held, self._provider = self._held, None, None
            self._changed_at = self._clock.now()  # a new provider must resolve all nodes
            raise held.failure()
        if self._provider is None:
            prepared = self._prepared
            if prepared is None or prepared.loop.abandoned is not None:
                prepared = await self._host.prepare(self.ref, self.cluster, self.changed, self._api)
            if not isinstance(prepared.type, NodeProviderType):
                raise TerminalProviderError(f"provider {self.ref.name!r} brings endpoints and resolves no nodes")
            self._prepared = prepared
            self._reads = tuple(sorted(prepared.type.reads))
            self._memory.window = max(MIN_CONFIRM, prepared.poll or 0.0)
            held, provider = await self._host.open(prepared, self._calls)
            self._held, self._provider = held, provider
            self._opened_at = self._clock.now()
            assert held.running is not None  # noqa: S101 - open() made it
            held.running.ended.add_done_callback(lambda _: self._wake.set())
            if prepared.poll is not None and self._poll_at is None:
                self._poll_at = self._clock.now() + prepared.poll * self._rng.uniform(1 - POLL_JITTER, 1 + POLL_JITTER)
        assert self._prepared is not None  # noqa: S101 - set before _held
        assert self._provider is not None  # noqa: S101 - set together with _held
        return self._prepared, self._provider

    async def _close(self) -> None:
        held, self._held, self._provider = self._held, None, None
        if held is not None:
            await held.close(CLOSE_DEADLINE)
