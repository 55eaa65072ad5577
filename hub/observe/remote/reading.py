"""Read access to a cluster's API for providers: single Services, and the EndpointSlices of single Services.

Every iterator has its own list and watch, which end with it. Both are limited to one namespace and to a selector, so
that a Role is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

from hub.errors import ApiError, HubError
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import SERVICES, SLICES, Resource
from hub.model import LABEL_SERVICE_NAME, Service, Slice
from hub.observe.remote.status import in_words
from hub.plugin.spec import TransientProviderError
from hub.runtime.clock import Clock

T = TypeVar("T")

SLICES_RULE: Final = "endpointslices.discovery.k8s.io: get, list, watch"
"""The RBAC rule for reading slices. Slices are written in the hub cluster only."""


class ClusterReader:
    """Read access to one cluster.

    Args:
        cluster: name of the cluster in the registry.
        client: waits for the cluster's client and returns it.
    """

    def __init__(self, cluster: str, client: Callable[[], Awaitable[Client]], clock: Clock) -> None:
        self._cluster = cluster
        self._client = client
        self._clock = clock

    async def services(self, namespace: str, name: str) -> AsyncGenerator[Service | None, None]:
        """Follow one Service: its state now, then each change; None while it does not exist.

        Raises:
            TransientProviderError: the API failed; the last state may be outdated.
        """
        params = {"fieldSelector": f"metadata.name={name}"}
        async with aclosing(self._follow(SERVICES, SERVICES.rule, namespace, name, params)) as states:
            async for found in states:
                yield found[0] if found else None

    async def slices(self, namespace: str, service: str) -> AsyncGenerator[tuple[Slice, ...], None]:
        """Follow the slices of one Service: all of them now, then after each change, sorted by name.

        Raises:
            TransientProviderError: the API failed; the last state may be outdated.
        """
        params = {"labelSelector": f"{LABEL_SERVICE_NAME}={service}"}
        async with aclosing(self._follow(SLICES, SLICES_RULE, namespace, service, params)) as states:
            async for found in states:
                yield found

    async def _follow(
        self, resource: Resource[T], rule: str, namespace: str, name: str, params: Mapping[str, str]
    ) -> AsyncGenerator[tuple[T, ...], None]:
        what = f"{resource.name} of {namespace}/{name} in {self._cluster}"
        feed: _Feed[T] = _Feed()
        plain = resource._replace(peek=None)  # peek serves slices that this process writes
        reflector = Reflector(
            what, await self._client(), plain, feed, feed, self._clock, params=params, namespace=namespace
        )
        task = asyncio.create_task(reflector.run(), name=what)
        task.add_done_callback(feed.ended)
        try:
            while True:
                await feed.news.wait()
                feed.news.clear()
                if task.done():
                    task.result()
                if feed.error is not None:
                    error = feed.error
                    after = error.retry_after if isinstance(error, ApiError) else None
                    raise TransientProviderError(f"{what}: {in_words(error, self._cluster, rule)}", after) from error
                if feed.lists:
                    yield feed.content()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class _Feed(Generic[T]):
    """Store and observer of one reflector, for one reader."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.error: HubError | None = None
        self.lists = 0
        self._objects: dict[Any, T] = {}

    def content(self) -> tuple[T, ...]:
        """All objects, sorted by key."""
        return tuple(self._objects[key] for key in sorted(self._objects))

    def ended(self, _: object) -> None:
        """Wake the reader: the reflector ended, which happens only after an unexpected error."""
        self.news.set()

    # --- the store -----------------------------------------------------------------------------------

    def replace(self, objects: dict[Any, T], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a complete list."""
        self.lists += 1
        self._objects = objects
        self.news.set()

    def upsert(self, key: Any, value: T, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: an object is new or changed."""
        self._objects[key] = value
        self.news.set()

    def delete(self, key: Any, value: T, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Apply a watch event: an object was deleted."""
        self._objects.pop(key, None)
        self.news.set()

    # --- the observer --------------------------------------------------------------------------------

    def listing(self) -> None:
        """A new list has begun; the known objects stay until it is complete."""

    def answered(self) -> None:
        """The objects are complete and current."""

    def failed(self, error: HubError) -> None:
        """An attempt failed: the reader raises the error."""
        self.error = error
        self.news.set()
