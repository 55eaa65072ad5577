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
    """``ClusterContext.changed()``; at most one call waits in the hub's loop, however often a provider calls it."""

    def __init__(self, loop: PluginLoop, changed: Callable[[], None]) -> None:
        self._loop = loop
        self._changed = changed
        self._waiting = False

    def __call__(self) -> None:
        """Ask for a new pass; in the provider's loop."""
        if not self._waiting:
            self._waiting = True
            self._loop.tell(self._pass_on)

    def _pass_on(self) -> None:
        self._waiting = False  # before the call, so that a change during the call is passed on, too
        self._changed()


class BridgedCluster:
    """``ClusterContext.api``: objects are followed in the hub's loop; the provider's loop gets the newest state."""

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
        stop = self._loop.serve(f"{what} for provider {self._loop.name}", partial(self._pump, states, feed))
        try:
            while True:
                yield await feed.next()
        finally:
            stop()

    async def _pump(self, states: Callable[[], AsyncIterator[T]], feed: _Feed[T]) -> None:
        """In the hub's loop: pass on each state."""
        stream = states()
        try:
            async for state in stream:
                self._loop.post(feed.put, state)
            raise TransientProviderError("the API is no longer followed")  # noqa: TRY301 - handled as any other error
        except Exception as error:  # noqa: BLE001 - raised where the states are read
            self._loop.post(feed.fail, self._loop.clean(error))
        finally:
            close: Any = getattr(stream, "aclose", None)
            if close is not None:
                await close()


class _Feed(Generic[T]):
    """The newest state, in the provider's loop."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._states: list[T] = []
        self._error: Exception | None = None

    async def next(self) -> T:
        """Wait for a state that was not read yet; states in between are skipped.

        Raises:
            Exception: following the object failed.
        """
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error
        return self._states.pop()

    def put(self, state: T) -> None:
        """A newer state."""
        self._states[:] = [state]
        self._news.set()

    def fail(self, error: Exception) -> None:
        """No state follows: following the object failed."""
        self._error = error
        self._news.set()
