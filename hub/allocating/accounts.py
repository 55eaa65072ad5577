"""The accounts: open providers, and what they answered.

Each account has a task that describes addresses and inspects instances when the plan asks for it, one call at a time.
Steps of moves are calls of their own. Answers stay through failures; the plan ignores those that are too old.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from hub.allocating.metrics_catalog import LATENCIES
from hub.allocations.view import Answer, Inspection, NodeKey
from hub.cloud.addresses import (
    AddressState,
    Changing,
    Done,
    Elsewhere,
    Free,
    Gone,
    Held,
    InstanceState,
    NotReserved,
    Order,
    Pending,
    Present,
    Step,
    Unknown,
    Unsupported,
)
from hub.model import Node
from hub.observe.providers.calls import Calls, OpenManager
from hub.observe.providers.faults import ProviderStalled
from hub.observe.providers.host import CLOSE_DEADLINE, Prepared, ProviderHost
from hub.observe.providers.status import Health, ProviderStatus
from hub.plugin.addresses import AddressProvider
from hub.registry.spec import AccountSpec
from hub.runtime.tally import Tally

T = TypeVar("T")

ASK_DEADLINE: Final = 25.0
"""Seconds for one call of ``describe`` or ``inspect``; it may take several requests."""
TEXT: Final = 1024
"""Most characters of ``before`` and ``operation``."""


class Account:
    """One account of ``allocations.clouds``.

    Run :meth:`run` under :func:`hub.runtime.supervise.supervise`.

    Args:
        spec: the account's entry.
        host: opens providers.
        time: returns the time in the planner's clock.
        on_change: called after an answer, a failure, or newly recognised nodes.

    Attributes:
        answers: address -> last answer.
        inspections: instance -> last answer.
        instances: node -> id of its instance; None if the provider does not recognise the node.
        calls: (operation, name of the error's class or "") -> number of calls.
        durations: operation -> durations of its calls in seconds.
    """

    def __init__(
        self, spec: AccountSpec, host: ProviderHost, time: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        self.spec = spec
        self.answers: dict[str, Answer] = {}
        self.inspections: dict[str, Inspection] = {}
        self.instances: dict[NodeKey, str | None] = {}
        self.calls: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Tally] = {}
        self._host = host
        self._time = time
        self._on_change = on_change
        self._health = Health(f"account {spec.name}, provider {spec.provider.name}", host.clock)
        self._calls = Calls(f"account {spec.name}:")
        self._wake = asyncio.Event()
        self._forgotten = 0.0
        """Answers to questions that were asked before this time do not count."""
        self._describe: tuple[str, ...] = ()
        self._inspect: set[str] = set()
        self._nodes: dict[NodeKey, Node] = {}
        self._unrecognised: set[NodeKey] = set()
        """Nodes whose instance is to be found."""
        self._prepared: Prepared | None = None
        self._held: OpenManager[Any] | None = None
        self._provider: AddressProvider | None = None

    # --- what the plan reads --------------------------------------------------------------------------

    @property
    def status(self) -> ProviderStatus:
        """The state of the provider."""
        return self._health.status

    @property
    def problem(self) -> str:
        """Why nothing can be asked; "" if the provider is open, or was never asked."""
        return self.status.error if self._provider is None and self.status.state == "degraded" else ""

    @property
    def frozen(self) -> str:
        """Why nothing is asked until the configuration or a credential changes; "" if that is not so."""
        return self.status.error if self.status.terminal else ""

    @property
    def cuts(self) -> frozenset[str]:
        """See :class:`hub.plugin.addresses.AddressType`."""
        type_ = self._prepared.type if self._prepared is not None else None
        return frozenset(type_.addresses.cuts) if type_ is not None and type_.addresses is not None else frozenset()

    @property
    def interval(self) -> float:
        """Seconds between descriptions: those of the registry, but at least the provider's own."""
        type_ = self._prepared.type if self._prepared is not None else None
        floor = type_.addresses.poll_floor if type_ is not None and type_.addresses is not None else 0.0
        return max(self.spec.interval, floor)

    # --- what the plan asks -----------------------------------------------------------------------------

    def ask(self, addresses: Iterable[str], instances: Iterable[str]) -> None:
        """Describe these addresses and inspect these instances soon; () = none."""
        self._describe = tuple(sorted(set(addresses))) or self._describe
        self._inspect.update(instances)
        if self._describe or self._inspect:
            self._wake.set()

    def forget(self) -> None:
        """Forget all answers, also those under way: another process may have changed what they say."""
        self._forgotten = self._time()
        self.answers, self.inspections = {}, {}

    @property
    def unanswered(self) -> bool:
        """Whether there is no answer about addresses yet, and no failure."""
        return not self.answers and self.status.state != "degraded"

    def note_nodes(self, cluster: str, changed: Iterable[Node], gone: Iterable[str]) -> None:
        """Note new, changed and deleted nodes of a cluster; the provider recognises their instances."""
        for name in gone:
            key = NodeKey(cluster, name)
            self._nodes.pop(key, None)
            self.instances.pop(key, None)
            self._unrecognised.discard(key)
        for node in changed:
            key = NodeKey(cluster, node.name)
            old = self._nodes.get(key)
            self._nodes[key] = node
            same = old is not None and (old.provider_id, old.system_uuid) == (node.provider_id, node.system_uuid)
            if not same or key not in self.instances:
                self._unrecognised.add(key)
        if self._unrecognised:
            self._wake.set()

    def recognised(self, cluster: str) -> bool:
        """Whether the instances of all nodes of a cluster are known, as far as the provider knows them."""
        return not any(key.cluster == cluster for key in self._unrecognised)

    def changed(self) -> None:
        """Handle the provider's ``AccountContext.changed()``."""
        self._health.unblock()
        self._wake.set()
        self._on_change()

    # --- the task ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask when asked to until cancelled, then close the provider."""
        try:
            while True:
                self._wake.clear()
                wait = self._health.blocked_until - self._host.clock.now()
                if wait <= 0 and (self._describe or self._inspect or self._unrecognised):
                    await self._ask()
                else:
                    idle = wait if wait > 0 else 86_400.0
                    await self._health.wait(
                        idle, self._wake, partial(self._host.credentials_changed, self.spec.provider.name)
                    )
        finally:
            held, self._held, self._provider = self._held, None, None
            if held is not None:
                await held.close(CLOSE_DEADLINE)

    async def _ask(self) -> None:
        self._health.begin_call(self._host.renewals(self.spec.provider.name))
        try:
            await self._recognise()
            if instances := sorted(self._inspect):
                at = self._time()
                found = await self._call("inspect", _read(instances, "inspect", _INSTANCES), ASK_DEADLINE)
                if at < self._forgotten:
                    return
                self._inspect.difference_update(instances)
                self.inspections.update({name: Inspection(state, at) for name, state in found.items()})
            elif addresses := self._describe:
                at = self._time()
                states = await self._call("describe", _read(addresses, "describe", _ADDRESSES), ASK_DEADLINE)
                if at < self._forgotten:
                    return
                self._describe = ()
                self.answers = {name: Answer(state, at) for name, state in states.items()}
        except Exception as error:  # noqa: BLE001 - plugin code; the answers stay
            self._health.failed(error)
            self._on_change()
        else:
            self._health.succeeded()
            self._on_change()

    async def _recognise(self) -> None:
        keys = sorted(self._unrecognised)
        if not keys:
            return
        nodes = [self._nodes[key] for key in keys]

        async def work(provider: AddressProvider) -> list[str | None]:
            return [_id(provider.instance_of(node)) for node in nodes]

        found = await self._call("recognise", work, ASK_DEADLINE)
        for key, node, instance in zip(keys, nodes, found, strict=True):
            if self._nodes.get(key) is node or key in self._nodes:
                self.instances[key] = instance
        self._unrecognised.difference_update(keys)

    # --- calls ---------------------------------------------------------------------------------------

    async def step(self, operation: str, order: Order | str, seconds: float) -> Step:
        """Make one step of a move; ``order`` is the operation's name for ``follow``.

        The ``seconds`` include the time in which the provider is opened, since the Lease runs out meanwhile.

        Raises:
            HubError: the provider's error.
        """
        ends = self._host.clock.now() + seconds

        async def work(provider: AddressProvider) -> Step:
            left = ends - self._host.clock.now()
            timed = msgspec.structs.replace(order, timeout=left) if isinstance(order, Order) else order
            step = await getattr(provider, operation)(timed)
            if isinstance(step, Done) and _short(step.before):
                return step
            if isinstance(step, Pending) and _short(step.operation) and step.operation:
                return step
            raise TypeError(f"{operation}() did not return a Done or Pending with short texts")

        return await self._call(operation, work, seconds, ends)

    async def _call(
        self,
        operation: str,
        work: Callable[[AddressProvider], Coroutine[Any, Any, T]],
        seconds: float,
        ends: float = math.inf,
    ) -> T:
        """Call the provider, for at most ``seconds`` from when it is open, and not after ``ends``."""
        started = self._host.clock.now()
        kind = ""
        try:
            prepared, provider = await self._open()
            left = self._left(operation, seconds, ends)
            return await self._calls.call(prepared.loop, operation, partial(work, provider), left)
        except Exception as error:
            kind = type(error).__name__
            raise
        finally:
            if operation != "recognise":
                self.calls[operation, kind] = self.calls.get((operation, kind), 0) + 1
                tally = self.durations.setdefault(operation, Tally(LATENCIES))
                tally.note(self._host.clock.now() - started)

    def _left(self, operation: str, seconds: float, ends: float) -> float:
        left = ends - self._host.clock.now()
        if left <= 0:
            raise ProviderStalled(f"{operation} was not called: its {seconds:g} s were over")
        return min(seconds, left)

    async def _open(self) -> tuple[Prepared, AddressProvider]:
        if self._held is not None and not self._held.alive:
            held, self._held, self._provider = self._held, None, None
            raise held.failure()
        if self._provider is None:
            prepared = self._prepared
            if prepared is None or prepared.loop.abandoned is not None:
                ref = self.spec.provider
                prepared = self._prepared = await self._host.prepare_account(ref, self.spec.name, self.changed)
            self._held, self._provider = await self._host.open(prepared, self._calls)
        assert self._prepared is not None  # noqa: S101 - set before _provider
        return self._prepared, self._provider


_ADDRESSES: Final[tuple[type, ...]] = (Free, Held, Elsewhere, Changing, NotReserved, Unknown)
_INSTANCES: Final[tuple[type, ...]] = (Present, Gone, Unsupported, Unknown)


def _read(
    names: Sequence[str], method: str, known: tuple[type, ...]
) -> Callable[[AddressProvider], Coroutine[Any, Any, dict[str, Any]]]:
    """A call of ``describe`` or ``inspect`` that checks the answer; what is left out is Unknown."""

    async def work(provider: AddressProvider) -> dict[str, Any]:
        answer: Mapping[str, AddressState | InstanceState] = await getattr(provider, method)(tuple(names))
        if not isinstance(answer, Mapping):
            raise TypeError(f"{method}() returned {type(answer).__name__}, not a mapping")
        found: dict[str, Any] = {}
        for name in names:
            state = answer.get(name, Unknown("the answer leaves it out"))
            if not isinstance(state, known):
                raise TypeError(f"{method}() answered {type(state).__name__} for {name}")
            if isinstance(state, Present) and not _short(state.before):
                raise TypeError(f"{method}() answered a before for {name} that is not {TEXT} printable characters")
            found[name] = state
        return found

    return work


def _short(text: object) -> bool:
    return isinstance(text, str) and len(text) <= TEXT and (not text or text.isprintable())


def _id(instance: object) -> str | None:
    if instance is not None and not (isinstance(instance, str) and instance and _short(instance)):
        raise TypeError("instance_of() did not return a short text or None")
    return instance
