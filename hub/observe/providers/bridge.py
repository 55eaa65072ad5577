"""What a provider asks of the hub from its own loop: the cluster's API, Secrets, and a new pass."""

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
    """``ClusterContext.changed()``: however often a provider calls it, the hub's loop has one call waiting at most."""

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
        self._waiting = False  # before the call: what is asked for from here on is asked anew
        self._changed()


class BridgedCluster:
    """``ClusterContext.api``: followed in the hub's loop, read in the provider's; the newest state counts."""

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
            raise TransientProviderError("the API is no longer followed")  # noqa: TRY301 - as any other end
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
        """The newest state that was not read yet.

        Raises:
            Exception: following it failed.
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
        """There will be no more."""
        self._error = error
        self._news.set()
