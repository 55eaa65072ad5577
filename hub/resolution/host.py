"""Where providers live: from a name and a configuration in the registry to an open provider.

Opens what a type shares once per hub, its provider once per (cluster, configuration), each behind a
deadline and in a task of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec

from hub.aio.clock import Clock
from hub.plugin.http import SharedHttp
from hub.plugin.spec import ProviderType, ReadOnlyCluster, TerminalProviderError
from hub.registry.spec import ProviderRef
from hub.resolution.calls import Calls, Held, ProviderStalled, contain_tasks
from hub.resolution.catalog import Catalog
from hub.resolution.config import parse_config
from hub.resolution.context import MAX_SCOPE, Limits, ProviderCluster, ProviderHub, label
from hub.resolution.secrets import ReadSecret, SecretVersion, untold
from hub.resolution.stalls import Stalls
from hub.resolution.stats import CallStats

OPEN_DEADLINE: Final = 30.0
"""Seconds ``shared`` and ``open`` may take, each; the same as for an answer."""

CLOSE_DEADLINE: Final = 2.0
"""Seconds closing may take: SIGTERM ends the hub within 5."""

MIN_POLL: Final = 1.0
"""Seconds; a configuration that asks for more polls gets this many."""


class Prepared(msgspec.Struct, frozen=True):
    """Everything needed to open a provider.

    Attributes:
        config: the validated configuration; None where the type has none.
        poll: seconds between polls; None = none.
        scope: what the configuration depends on, see :class:`ProviderType`.
    """

    type: ProviderType
    config: Any
    poll: float | None
    hub: ProviderHub
    cluster: ProviderCluster
    scope: str = ""


class ProviderHost:
    """The providers of one hub.

    Args:
        folder: the registry's folder, absolute.
        read_secret: reads a Secret of ``--secrets-namespace``; None = there are none.
        secret_version: of a Secret, where it is watched.

    Attributes:
        stalls: which providers block the event loop, and which are suspended for it.
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
        secret_version: SecretVersion = untold,
    ) -> None:
        self.catalog = catalog
        self.clock = clock
        self._folder = folder
        self._limits = limits or Limits(credentials_dir=folder)
        self._read_secret = read_secret
        self._secret_version = secret_version
        self._http = SharedHttp()
        self.stats: dict[str, CallStats] = {}
        self._hubs: dict[str, ProviderHub] = {}
        self._shared: dict[str, tuple[Held[Any], Any]] = {}
        self._shared_calls: dict[str, Calls] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._stalled: dict[str, tuple[float, str]] = {}
        """When opening what a type shares last took too long, and what was said of it."""
        self._inside: dict[str, set[asyncio.Task[Any]]] = {}
        """Tasks that hold something of a provider type open."""
        self.stalls = Stalls(catalog.owners, clock, self._suspend)

    def hub(self, name: str) -> ProviderHub:
        """The HubContext of a provider type, by its name."""
        if name not in self._hubs:
            self._hubs[name] = ProviderHub(
                name,
                clock=self.clock,
                limits=self._limits,
                http=self._http,
                read_secret=self._read_secret,
                secret_version=self._secret_version,
            )
        return self._hubs[name]

    def measures(self) -> Iterator[tuple[str, str, str, float]]:
        """What the providers count: (provider, name, scope, number), as of now."""
        for provider, hub in self._hubs.items():
            for name, scope, number in hub.measures():
                yield provider, name, scope, number

    def calls_of(self, name: str) -> CallStats:
        """What became of the calls into a provider type."""
        return self.stats.setdefault(name, CallStats())

    async def prepare(
        self, ref: ProviderRef, cluster: str, changed: Callable[[], None], api: ReadOnlyCluster | None = None
    ) -> Prepared:
        """Load the type and check the configuration.

        Raises:
            ProviderUnavailable: the type cannot be used.
            ProviderSuspended: it blocked the event loop.
            ConfigInvalid: the configuration is wrong.
        """
        type_ = await self.catalog.load_async(ref.name)
        hub = self.hub(ref.name)
        context = ProviderCluster(hub, cluster, self._folder, changed, api, self._limits.credentials_dir)
        contain_tasks(asyncio.get_running_loop())

        async def configure() -> Prepared:  # validators are foreign code, too
            self.stalls.check(ref.name)
            config = parse_config(type_, json.loads(ref.config))
            return Prepared(type_, config, poll_interval(type_, config), hub, context, scope_of(type_, config))

        return await Calls(f"provider {ref.name} of {cluster}:").call("configuration", configure, OPEN_DEADLINE)

    async def open(self, prepared: Prepared, calls: Calls | None = None) -> tuple[Held[Any], Any]:
        """Open what is shared, then the provider; close it with ``Held.close``.

        Args:
            prepared: what to open.
            calls: the other calls for this cluster; it is not opened while one that was left behind still runs.

        Raises:
            ProviderStalled: one of both took longer than its deadline, or still runs although cancelled.
            Exception: whatever the plugin raised.
        """
        manager = await self.manager(prepared)
        held: Held[Any] = Held(calls or Calls(f"provider {prepared.type.name} of {prepared.cluster.name}:"), manager)
        return held, await held.open(OPEN_DEADLINE)

    async def manager(self, prepared: Prepared) -> Callable[[], AbstractAsyncContextManager[Any]]:
        """What to enter for the provider, once what it shares is open.

        Raises:
            ProviderSuspended: it blocked the event loop.
            Exception: whatever ``shared`` raised.
        """
        name = prepared.type.name
        self.stalls.check(name)
        shared = await self._open_shared(prepared.type, prepared.hub)
        return lambda: self._entered(name, lambda: prepared.type.open(prepared.cluster, prepared.config, shared))

    async def close(self) -> None:
        """Close what is shared and the HTTP session; resolvers and watches must have ended."""
        async with asyncio.TaskGroup() as group:
            for held, _ in self._shared.values():
                group.create_task(held.close(CLOSE_DEADLINE))
        self._shared.clear()
        await self._http.close()

    async def _open_shared(self, type_: ProviderType, hub: ProviderHub) -> Any:
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
                held = Held(calls, partial(self._entered, name, partial(shared, hub)))
                try:
                    value = await held.open(OPEN_DEADLINE)
                except ProviderStalled as error:
                    self._stalled[name] = self.clock.now(), str(error)
                    raise
                self._shared[name] = held, value
            return value

    @asynccontextmanager
    async def _entered(
        self, name: str, enter: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> AsyncGenerator[Any, None]:
        """``enter()``, in a task that ends when the provider type is suspended.

        Raises:
            ProviderSuspended: it is already.
        """
        self.stalls.check(name)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - Held and EndpointWatch have tasks of their own for it
        tasks = self._inside.setdefault(name, set())
        tasks.add(task)
        try:
            async with enter() as value:
                yield value
        finally:
            tasks.discard(task)

    def _suspend(self, name: str) -> None:
        for task in tuple(self._inside.get(name, ())):
            task.cancel()


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
