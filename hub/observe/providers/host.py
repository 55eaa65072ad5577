"""Where providers live: from a name and a configuration in the registry to an open provider.

Opens what a type shares once per event loop of the type, and its provider once per (cluster, configuration), each
behind a deadline and in a task of its own, in the type's loop.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Final

import msgspec

from hub.errors import HubError
from hub.observe.providers.bridge import BridgedCluster, ChangedCall
from hub.observe.providers.calls import Calls, Held
from hub.observe.providers.catalog import Catalog
from hub.observe.providers.config import parse_config
from hub.observe.providers.context import MAX_SCOPE, Limits, ProviderCluster, ProviderHub, label
from hub.observe.providers.faults import ProviderStalled
from hub.observe.providers.loop_pool import LoopPool, StartLoop
from hub.observe.providers.loops import LoopThread, PluginLoop
from hub.observe.providers.secrets import ReadSecret
from hub.observe.providers.stats import CallStats
from hub.plugin.spec import ProviderType, ReadOnlyCluster, TerminalProviderError
from hub.registry.spec import ProviderRef
from hub.runtime.clock import Clock

OPEN_DEADLINE: Final = 30.0
"""Seconds ``shared`` and ``open`` may take, each; the same as for an answer."""

CLOSE_DEADLINE: Final = 2.0
"""Seconds closing may take: SIGTERM ends the hub within 5."""

MEASURE_DEADLINE: Final = 1.0
"""Seconds a scrape waits for the numbers of providers."""

CREDENTIALS_DEADLINE: Final = 10.0
"""Seconds a look at a provider's credentials may take: a file gets 5, a Secret one request."""

MIN_POLL: Final = 1.0
"""Seconds; a configuration that asks for more polls gets this many."""


class Prepared(msgspec.Struct, frozen=True):
    """Everything needed to open a provider.

    Attributes:
        config: the validated configuration.
        poll: seconds between polls; None = none.
        loop: where it is opened.
        scope: what the configuration depends on, see :class:`ProviderType`.
    """

    type: ProviderType
    config: Any
    poll: float | None
    loop: PluginLoop
    cluster: ProviderCluster
    scope: str = ""


class ProviderHost:
    """The providers of one hub. Made and used in the hub's loop.

    Args:
        folder: the registry's folder, absolute.
        read_secret: reads a Secret of ``--secrets-namespace``; None = there are none. Called in the hub's loop.
        secret_version: of a Secret, where it is watched. Called in the hub's loop.
        start_loop: starts the event loop of a provider type.

    Attributes:
        loops: the event loops of the provider types: which block, and which types are suspended for it.
        stats: calls since the start, by the provider type's name.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        clock: Clock,
        folder: str,
        limits: Limits | None = None,
        read_secret: ReadSecret | None = None,
        secret_version: Callable[[str], str | None] | None = None,
        start_loop: StartLoop = LoopThread,
    ) -> None:
        self.catalog = catalog
        self.clock = clock
        self._folder = folder
        self._limits = limits or Limits(credentials_dir=folder)
        self._read_secret = read_secret
        self._secret_version = secret_version
        self.stats: dict[str, CallStats] = {}
        self._shared: dict[str, tuple[Held[Any], Any]] = {}
        self._shared_calls: dict[str, Calls] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._stalled: dict[str, tuple[float, str]] = {}
        """When opening what a type shares last took too long, and what was said of it."""
        self._measures: tuple[tuple[str, str, str, float], ...] = ()
        self.loops = LoopPool(clock, self._context, catalog.owners, start_loop)

    def measures(self) -> tuple[tuple[str, str, str, float], ...]:
        """What the providers count: (provider, name, scope, number), as of :meth:`measure`."""
        return self._measures

    async def measure(self) -> None:
        """Ask every provider for its numbers; one that does not answer within a second has none."""

        async def measured(context: ProviderHub) -> list[tuple[str, str, float]]:
            return list(context.measures())

        asked = [(loop.name, loop.start(loop.name, "measures", partial(measured, loop.context))) for loop in self.loops]
        if asked:
            await asyncio.wait({running.ended for _, running in asked}, timeout=MEASURE_DEADLINE)
        found: list[tuple[str, str, str, float]] = []
        for provider, running in asked:
            if not running.ended.done():
                running.cancel()
            elif running.ended.exception() is None:
                found += [(provider, *each) for each in running.ended.result()]
        self._measures = tuple(found)

    def calls_of(self, name: str) -> CallStats:
        """What became of the calls into a provider type."""
        return self.stats.setdefault(name, CallStats())

    def renewals(self, name: str) -> int:
        """Times a credential a provider type read was another one than before."""
        loop = self.loops.get(name)
        return loop.context.renewals if loop is not None else 0

    async def credentials_changed(self, name: str, renewals: int) -> bool:
        """Whether a credential of a provider type reads otherwise than after so many renewals."""
        loop = self.loops.get(name)
        if loop is None:
            return renewals != 0
        work = partial(loop.context.credentials_changed, renewals)
        try:
            return await Calls(f"provider {name}:").call(loop, "credentials", work, CREDENTIALS_DEADLINE)
        except HubError:
            return False

    async def prepare(
        self, ref: ProviderRef, cluster: str, changed: Callable[[], None], api: ReadOnlyCluster | None = None
    ) -> Prepared:
        """Load the type and check the configuration.

        Raises:
            ProviderUnavailable: the type cannot be used.
            ProviderSuspended: it blocked its event loop.
            TerminalProviderError: the configuration is wrong.
        """
        type_ = await self.catalog.load_async(ref.name)
        loop = self.loops.of(ref.name)
        context = ProviderCluster(
            loop.context,
            cluster,
            self._folder,
            ChangedCall(loop, changed),
            BridgedCluster(loop, api) if api is not None else None,
            self._limits.credentials_dir,
        )

        async def configure() -> Prepared:  # validators are foreign code, too
            config = parse_config(type_, json.loads(ref.config))
            return Prepared(type_, config, poll_interval(type_, config), loop, context, scope_of(type_, config))

        return await Calls(f"provider {ref.name} of {cluster}:").call(loop, "configuration", configure, OPEN_DEADLINE)

    async def open(self, prepared: Prepared, calls: Calls | None = None) -> tuple[Held[Any], Any]:
        """Open what is shared, then the provider; close it with ``Held.close``.

        Args:
            prepared: what to open.
            calls: the other calls for this cluster; it is not opened while one that was left behind still runs.

        Raises:
            ProviderStalled: one of both took longer than its deadline, or still runs although cancelled.
            HubError: whatever the plugin raised.
        """
        manager = await self.manager(prepared)
        calls = calls or Calls(f"provider {prepared.type.name} of {prepared.cluster.name}:")
        held: Held[Any] = Held(calls, prepared.loop, manager)
        return held, await held.open(OPEN_DEADLINE)

    async def manager(self, prepared: Prepared) -> Callable[[], AbstractAsyncContextManager[Any]]:
        """What to enter for the provider, in its loop, once what it shares is open.

        Raises:
            HubError: whatever ``shared`` raised.
        """
        shared = await self._open_shared(prepared.type, prepared.loop)
        return lambda: prepared.type.open(prepared.cluster, prepared.config, shared)

    async def close(self) -> None:
        """Close what is shared and end the loops; resolvers and watches must have ended.

        A loop in which a provider did not close in time is left as it is: its thread ends with the process.
        """
        async with asyncio.TaskGroup() as group:
            for loop in self.loops:
                group.create_task(self._close(loop))
        self._shared.clear()
        self.loops.leave_all()

    async def _close(self, loop: PluginLoop) -> None:
        held, _ = self._shared.get(loop.name, (None, None))
        if held is not None and held.alive and loop.busy == 1:
            await held.close(CLOSE_DEADLINE)
        if not loop.busy:
            with suppress(HubError):
                await Calls(f"provider {loop.name}:").call(loop, "close", loop.context.close, CLOSE_DEADLINE)

    async def _open_shared(self, type_: ProviderType, loop: PluginLoop) -> Any:
        shared, name = type_.shared, type_.name
        if shared is None:
            return None
        asked = self.clock.now()
        async with self._locks.setdefault(name, asyncio.Lock()):
            held, value = self._shared.get(name, (None, None))
            if held is None or not held.alive:
                since, why = self._stalled.get(name, (asked, ""))
                if since > asked:  # for whoever waited meanwhile, too: the last of many clusters would take an hour
                    raise ProviderStalled(why)
                calls = self._shared_calls.setdefault(name, Calls(f"provider {name} (shared):"))
                held = Held(calls, loop, partial(shared, loop.context))
                try:
                    value = await held.open(OPEN_DEADLINE)
                except ProviderStalled as error:
                    self._stalled[name] = self.clock.now(), str(error)
                    raise
                self._shared[name] = held, value
            return value

    def _context(self, loop: PluginLoop) -> ProviderHub:
        """The HubContext of a loop: what it reads of the hub, it asks the hub's loop for."""
        read, version = self._read_secret, self._secret_version

        async def read_secret(name: str, key: str) -> str | bytes:
            assert read is not None  # noqa: S101 - else nobody is given this function

            async def ask() -> str | bytes:
                return await read(name, key)

            return await loop.ask(ask)

        async def secret_version(name: str) -> str | None:
            async def ask() -> str | None:
                return version(name) if version is not None else None

            return await loop.ask(ask)

        return ProviderHub(
            loop.name,
            clock=self.clock,
            limits=self._limits,
            read_secret=read_secret if read is not None else None,
            secret_version=secret_version,
        )


def poll_interval(type_: ProviderType, config: Any) -> float | None:
    """Seconds between polls, at least one second; None where the type does not poll.

    Raises:
        TerminalProviderError: the type computes nonsense.
    """
    poll: Any = type_.poll_interval
    if callable(poll):
        poll = poll(config)
    if poll is None:
        return None
    if not isinstance(poll, int | float) or not math.isfinite(poll) or poll <= 0:
        raise TerminalProviderError(f"provider {type_.name!r} has a poll interval of {poll!r}, not positive seconds")
    return max(MIN_POLL, float(poll))


def scope_of(type_: ProviderType, config: Any) -> str:
    """What a configuration depends on, fit for a metric's label; "" where the type does not say.

    Raises:
        TerminalProviderError: the type computes nonsense.
    """
    scope: Any = type_.scope(config) if type_.scope is not None else ""
    if not isinstance(scope, str) or len(scope) > MAX_SCOPE:
        raise TerminalProviderError(
            f"provider {type_.name!r} has a scope that is no text of at most {MAX_SCOPE} characters"
        )
    return label(scope)
