"""Forwards a provider's calls from its own event loop to the hub's: ``changed()`` and reads of the cluster's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from hub.model import Service, Slice
from hub.observe.providers.loops import PluginLoop
from hub.plugin.spec import ReadOnlyCluster, TransientProviderError

T = TypeVar("T")


class ChangedCall:
    """``ClusterContext.changed()``. At most one call waits in the hub's loop, however often a provider calls it."""

    def __init__(self, loop: PluginLoop, changed: Callable[[], None]) -> None:
        self._loop = loop
        self._changed = changed
        self._waiting = False

    def __call__(self) -> None:
        """Request a new pass; called in the provider's loop."""
        if not self._waiting:
            self._waiting = True
            self._loop.post_to_hub(self._pass_on)

    def _pass_on(self) -> None:
        self._waiting = False  # before the call, so that a change during the call is also passed on
        self._changed()


class BridgedCluster:
    """``ClusterContext.api``: follows objects in the hub's loop, and passes the newest state to the provider's loop."""

    def __init__(self, loop: PluginLoop, api: ReadOnlyCluster) -> None:
        self._loop = loop
        self._api = api

    def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        """See :class:`hub.plugin.ReadOnlyCluster`."""
        return self._follow(f"Service {namespace}/{name}", partial(self._api.services, namespace, name))

    def slices(self, namespace: str, service: str) -> AsyncIterator[tuple[Slice, ...]]:
        """See :class:`hub.plugin.ReadOnlyCluster`."""
        return self._follow(f"slices of {namespace}/{service}", partial(self._api.slices, namespace, service))

    async def _follow(self, what: str, states: Callable[[], AsyncIterator[T]]) -> AsyncGenerator[T, None]:
        feed: _Feed[T] = _Feed()
        stop = self._loop.start_in_hub(f"{what} for provider {self._loop.name}", partial(self._pump, states, feed))
        try:
            while True:
                yield await feed.next()
        finally:
            stop()

    async def _pump(self, states: Callable[[], AsyncIterator[T]], feed: _Feed[T]) -> None:
        """Pass on every state; runs in the hub's loop."""
        stream = states()
        try:
            async for state in stream:
                self._loop.post(feed.put, state)
            raise TransientProviderError("the API is no longer followed")  # noqa: TRY301 - passed on as any other error
        except Exception as error:  # noqa: BLE001 - raised where the states are read
            self._loop.post(feed.fail, self._loop.clean(error))
        finally:
            close: Any = getattr(stream, "aclose", None)
            if close is not None:
                await close()


class _Feed(Generic[T]):
    """The newest state of an object, kept in the provider's loop."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._states: list[T] = []
        self._error: Exception | None = None

    async def next(self) -> T:
        """Wait for a state that was not read yet, and return it; only the newest one is kept.

        Raises:
            Exception: the object can no longer be followed.
        """
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error
        return self._states.pop()

    def put(self, state: T) -> None:
        """Replace the state with a newer one."""
        self._states[:] = [state]
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Make :meth:`next` raise an error: the object can no longer be followed."""
        self._error = error
        self._news.set()
