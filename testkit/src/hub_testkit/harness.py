"""Opens a provider as the hub does, and calls it with the hub's deadlines.

Not public: authors import ``Opened`` and ``DEADLINE`` from :mod:`hub_testkit.conformance`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hub.model import Node, Resolution, Snapshot
from hub.plugin.config import validate
from hub.plugin.spec import EndpointProviderType, HubContext, ProviderType, ReadOnlyCluster
from hub_testkit.contexts import LocalCluster, LocalHub

T = TypeVar("T")

DEADLINE: Final = 30.0
"""Seconds that opening, an answer or a first snapshot may take, as in the hub."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open provider, with its type and its cluster context."""

    type: ProviderType
    provider: Any
    cluster: LocalCluster

    async def use(self, nodes: Sequence[Node]) -> None:
        """Resolves the nodes, or waits for the first snapshot if the type brings endpoints."""
        if isinstance(self.type, EndpointProviderType):
            await self.first()
        else:
            await self.resolve(nodes)

    async def ask(self, nodes: Sequence[Node]) -> Any:
        """Returns the provider's answer for ``nodes``, unchecked."""
        return await _late(self.provider.resolve(tuple(nodes)))

    async def resolve(self, nodes: Sequence[Node]) -> Mapping[str, Resolution]:
        """Returns the answer for ``nodes`` without any other node; the values are unchecked."""
        answer = await self.ask(nodes)
        names = {node.name for node in nodes}
        return {name: value for name, value in dict(answer).items() if name in names}

    def watch(self) -> AsyncIterator[Snapshot]:
        """Starts a watch and returns its snapshots."""
        stream: AsyncIterator[Snapshot] = self.provider.watch()
        return stream

    async def consume(self) -> None:
        """Reads the snapshots of a new watch until it ends."""
        async for _ in self.watch():
            pass

    async def first(self) -> Snapshot:
        """Returns the first snapshot of a new watch.

        Raises:
            AssertionError: The watch ended without a snapshot.
            TimeoutError: There is no snapshot within :data:`DEADLINE`.
        """
        stream = self.watch()
        try:
            async with asyncio.timeout(DEADLINE):
                async for snapshot in stream:
                    return snapshot
        finally:
            await _close(stream)
        raise AssertionError("watch() ended without a snapshot")


async def open_provider(
    type_: ProviderType, local: LocalHub, config: Mapping[str, Any], name: str, api: ReadOnlyCluster | None
) -> tuple[Opened, Callable[[], Awaitable[None]]]:
    """Opens a provider for the cluster ``name``; returns it and the function that closes it."""
    if type_.open is None:
        raise AssertionError(f"type {type_.name!r} has no open: it resolves no nodes")
    stack = AsyncExitStack()
    try:
        hub: HubContext = await stack.enter_async_context(local)
        shared = await _late(stack.enter_async_context(type_.shared(hub))) if type_.shared is not None else None
        parsed = validate(type_.config, config)
        cluster = LocalCluster(hub, name=name, api=api)
        provider = await _late(stack.enter_async_context(type_.open(cluster, parsed, shared)))
    except BaseException:
        await stack.aclose()
        raise
    return Opened(type_, provider, cluster), stack.aclose


async def _late(work: Awaitable[T]) -> T:
    async with asyncio.timeout(DEADLINE):
        return await work


async def _close(stream: AsyncIterator[Snapshot]) -> None:
    if inspect.isasyncgen(stream):
        await stream.aclose()
