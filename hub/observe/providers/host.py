"""Opens providers: from a name and a configuration in the registry to an open provider.

A type's ``shared`` is opened once per event loop of the type, and a provider once per (cluster, configuration). Each
has a deadline and its own task in the type's loop.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hub.errors import HubError
from hub.observe.providers.bridge import BridgedCluster, ChangedCall
from hub.observe.providers.calls import Calls, OpenManager
from hub.observe.providers.catalog import Catalog, cloud_type
from hub.observe.providers.config import parse_config
from hub.observe.providers.context import MAX_SCOPE, CloudAccount, Limits, ProviderCluster, ProviderHub, label
from hub.observe.providers.faults import ProviderStalled
from hub.observe.providers.loop_pool import LoopPool, StartLoop
from hub.observe.providers.loops import LoopThread, PluginLoop
from hub.observe.providers.secrets import ReadSecret
from hub.observe.providers.stats import CallStats
from hub.plugin.spec import ProviderType, ReadOnlyCluster, TerminalProviderError
from hub.registry.spec import ProviderRef
from hub.runtime.clock import Clock

if TYPE_CHECKING:
    from hub.plugin.clouds import CloudType

OPEN_DEADLINE: Final = 30.0
"""Seconds for ``shared``, and for ``open``; the same as for an answer (RESOLVE_DEADLINE)."""

CLOSE_DEADLINE: Final = 2.0
"""Seconds for closing; SIGTERM must end the whole hub within 5 s."""

MEASURE_DEADLINE: Final = 1.0
"""Seconds that a scrape waits for the measures of providers."""

CREDENTIALS_DEADLINE: Final = 10.0
"""Seconds to check whether a provider's credentials have changed: a file has 5 s, a Secret takes one request."""

MIN_POLL: Final = 1.0
"""Minimum seconds between polls; shorter intervals are raised to it."""


class Prepared(msgspec.Struct, frozen=True):
    """Everything needed to open a provider.

    Attributes:
        config: the validated configuration.
        poll: seconds between polls; None = the type does not poll.
        loop: the event loop to open the provider in.
        cluster: the provider's ClusterContext, or its AccountContext.
        enter: the type's ``open``, or that of its addresses.
        scope: the ``scope`` of the configuration, see :class:`ProviderType`.
        cloud: the capability that is prepared; None if it is another one.
    """

    type: ProviderType
    config: Any
    poll: float | None
    loop: PluginLoop
    cluster: ProviderCluster
    enter: Callable[[Any, Any, Any], AbstractAsyncContextManager[Any]]
    scope: str = ""
    cloud: CloudType | None = None


class ProviderHost:
    """The providers of one hub. Created and used in the hub's loop.

    Args:
        folder: the registry's folder, absolute.
        read_secret: reads a Secret of ``--secrets-namespace``; None = Secrets cannot be read. Called in the hub's loop.
        secret_version: returns the version of a watched Secret. Called in the hub's loop.
        start_loop: starts the event loop of a provider type.

    Attributes:
        loops: the event loops of the provider types.
        stats: name of a provider type -> statistics of its calls since the start.
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
        self._shared: dict[str, tuple[OpenManager[Any], Any]] = {}
        self._shared_calls: dict[str, Calls] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._stalled: dict[str, tuple[float, str]] = {}
        """Provider type -> when its ``shared`` last exceeded the deadline, and the error's text."""
        self._measures: tuple[tuple[str, str, str, float], ...] = ()
        self.loops = LoopPool(clock, self._context, catalog.owners, start_loop)

    def measures(self) -> tuple[tuple[str, str, str, float], ...]:
        """The measures of all providers at the last :meth:`measure`: (provider, name, scope, number)."""
        return self._measures

    async def measure(self) -> None:
        """Read the measures of every provider, without those of a provider that fails or takes more than a second."""

        async def measured(context: ProviderHub) -> list[tuple[str, str, float]]:
            return list(context.measures())

        calls = [(loop.name, loop.start(loop.name, "measures", partial(measured, loop.context))) for loop in self.loops]
        if calls:
            await asyncio.wait({running.ended for _, running in calls}, timeout=MEASURE_DEADLINE)
        found: list[tuple[str, str, str, float]] = []
        for provider, running in calls:
            if not running.ended.done():
                running.cancel()
            elif running.ended.exception() is None:
                found += [(provider, *measure) for measure in running.ended.result()]
        self._measures = tuple(found)

    def calls_of(self, name: str) -> CallStats:
        """The statistics of the calls into a provider type."""
        return self.stats.setdefault(name, CallStats())

    def renewals(self, name: str) -> int:
        """Number of changes of a provider type's credentials, see :meth:`credentials_changed`."""
        loop = self.loops.get(name)
        return loop.context.renewals if loop is not None else 0

    async def credentials_changed(self, name: str, renewals: int) -> bool:
        """Whether a credential of a provider type has changed since :meth:`renewals` returned this number."""
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
        if (enter := type_.open) is None:
            raise TerminalProviderError(f"provider {ref.name!r} resolves no nodes; hub providers shows what it is for")
        loop = self.loops.of(ref.name)
        context = ProviderCluster(
            loop.context,
            cluster,
            self._folder,
            ChangedCall(loop, changed),
            BridgedCluster(loop, api) if api is not None else None,
            self._limits.credentials_dir,
        )

        async def configure() -> Prepared:  # in the provider's loop, since validators are plugin code
            config = parse_config(type_, json.loads(ref.config))
            return Prepared(type_, config, poll_interval(type_, config), loop, context, enter, scope_of(type_, config))

        return await Calls(f"provider {ref.name} of {cluster}:").call(loop, "configuration", configure, OPEN_DEADLINE)

    async def prepare_account(self, ref: ProviderRef, account: str, changed: Callable[[], None]) -> Prepared:
        """As :meth:`prepare`, for the capability ``addresses`` and an account of ``allocations.clouds``.

        Raises:
            ProviderUnavailable: the type cannot be used.
            ProviderSuspended: it blocked its event loop.
            TerminalProviderError: the type does not have the capability, or the configuration is wrong.
        """
        type_ = await self.catalog.load_async(ref.name)
        if (addresses := type_.addresses) is None:
            raise TerminalProviderError(
                f"provider {ref.name!r} attaches no addresses; hub providers lists those with the capability"
            )
        loop = self.loops.of(ref.name)
        changed_call = ChangedCall(loop, changed)
        context = ProviderCluster(loop.context, account, self._folder, changed_call, None, self._limits.credentials_dir)

        async def configure() -> Prepared:  # in the provider's loop, since validators are plugin code
            path = f"allocations.clouds.{account}.config"
            config = parse_config(type_, json.loads(ref.config), path, addresses.config)
            return Prepared(type_, config, None, loop, context, addresses.open)

        return await Calls(f"account {account}:").call(loop, "configuration", configure, OPEN_DEADLINE)

    async def prepare_cloud(self, ref: ProviderRef, name: str, changed: Callable[[], None]) -> Prepared:
        """As :meth:`prepare`, for the cloud controller; ``name`` names the clusters, for messages.

        Raises:
            ProviderUnavailable: the type cannot be used.
            ProviderSuspended: it blocked its event loop.
            TerminalProviderError: the type does not have the capability, or the configuration is wrong.
        """
        type_ = await self.catalog.load_async(ref.name)
        loop = self.loops.of(ref.name)
        context = CloudAccount(
            loop.context, name, self._folder, ChangedCall(loop, changed), None, self._limits.credentials_dir
        )

        async def configure() -> Prepared:  # in the provider's loop, since this is plugin code
            cloud = cloud_type(type_)
            config = parse_config(type_, json.loads(ref.config), "cloud.provider.config", cloud.config)
            return Prepared(type_, config, None, loop, context, cloud.open, cloud=cloud)

        return await Calls(f"cloud {ref.name} of {name}:").call(loop, "configuration", configure, OPEN_DEADLINE)

    async def open(self, prepared: Prepared, calls: Calls | None = None) -> tuple[OpenManager[Any], Any]:
        """Open the type's ``shared``, then the provider; close it with ``OpenManager.close``.

        Args:
            prepared: the result of :meth:`prepare`.
            calls: the other calls for this cluster; the provider is not opened while an abandoned call still runs.

        Raises:
            ProviderStalled: ``shared`` or ``open`` took longer than its deadline, or an earlier call still runs
                although it was cancelled.
            HubError: the plugin's own error.
        """
        manager = await self.manager(prepared)
        calls = calls or Calls(f"provider {prepared.type.name} of {prepared.cluster.name}:")
        held: OpenManager[Any] = OpenManager(calls, prepared.loop, manager)
        return held, await held.open(OPEN_DEADLINE)

    async def manager(self, prepared: Prepared) -> Callable[[], AbstractAsyncContextManager[Any]]:
        """Open the type's ``shared``, and return a function that makes the provider's context manager in its loop.

        Raises:
            HubError: the error of ``shared``.
        """
        shared = await self._open_shared(prepared.type, prepared.loop)
        return lambda: prepared.enter(prepared.cluster, prepared.config, shared)

    async def close(self) -> None:
        """Close all ``shared`` and end the loops; resolvers and watches must have ended.

        A loop whose provider does not close in time is abandoned: its thread ends with the process.
        """
        async with asyncio.TaskGroup() as group:
            for loop in self.loops:
                group.create_task(self._close(loop))
        self._shared.clear()
        self.loops.abandon_all()

    async def _close(self, loop: PluginLoop) -> None:
        held, _ = self._shared.get(loop.name, (None, None))
        if held is not None and held.alive and loop.busy == 1:  # only the call that keeps ``shared`` open still runs
            await held.close(CLOSE_DEADLINE)
        if not loop.busy:
            with suppress(HubError):
                await Calls(f"provider {loop.name}:").call(loop, "close", loop.context.close, CLOSE_DEADLINE)

    async def _open_shared(self, type_: ProviderType, loop: PluginLoop) -> Any:
        shared, name = type_.shared, type_.name
        if shared is None:
            return None
        began = self.clock.now()
        async with self._locks.setdefault(name, asyncio.Lock()):
            held, value = self._shared.get(name, (None, None))
            if held is None or not held.alive:
                failed_at, why = self._stalled.get(name, (began, ""))
                # An attempt stalled while this call waited for the lock: fail too. With an attempt for each waiting
                # cluster, the last of a hundred would wait for almost an hour.
                if failed_at > began:
                    raise ProviderStalled(why)
                calls = self._shared_calls.setdefault(name, Calls(f"provider {name} (shared):"))
                held = OpenManager(calls, loop, partial(shared, loop.context))
                try:
                    value = await held.open(OPEN_DEADLINE)
                except ProviderStalled as error:
                    self._stalled[name] = self.clock.now(), str(error)
                    raise
                self._shared[name] = held, value
            return value

    def _context(self, loop: PluginLoop) -> ProviderHub:
        """The HubContext of a loop; Secrets are read in the hub's loop."""
        read, version = self._read_secret, self._secret_version

        async def read_secret(name: str, key: str) -> str | bytes:
            assert read is not None  # noqa: S101 - the function is used only if it is set

            async def ask() -> str | bytes:
                return await read(name, key)

            return await loop.run_in_hub(ask)

        async def secret_version(name: str) -> str | None:
            async def ask() -> str | None:
                return version(name) if version is not None else None

            return await loop.run_in_hub(ask)

        return ProviderHub(
            loop.name,
            clock=self.clock,
            limits=self._limits,
            read_secret=read_secret if read is not None else None,
            secret_version=secret_version,
        )


def poll_interval(type_: ProviderType, config: Any) -> float | None:
    """Seconds between polls, at least :data:`MIN_POLL`; None if the type does not poll.

    Raises:
        TerminalProviderError: the type's interval is not a positive number.
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
    """The ``scope`` of a configuration as a metric label; "" if the type has none.

    Raises:
        TerminalProviderError: the type's scope is not a short text.
    """
    scope: Any = type_.scope(config) if type_.scope is not None else ""
    if not isinstance(scope, str) or len(scope) > MAX_SCOPE:
        raise TerminalProviderError(
            f"provider {type_.name!r} has a scope that is not a text of at most {MAX_SCOPE} characters"
        )
    return label(scope)
