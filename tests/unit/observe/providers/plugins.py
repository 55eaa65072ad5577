"""Builders of distributions with entry points on disk, and of catalogs of provider types in memory."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from hub.errors import ProviderError
from hub.model import Found, Node, NodeAddress, Resolution
from hub.observe.providers.catalog import Catalog
from hub.observe.providers.loops import PluginLoop
from hub.plugin import EndpointProviderType, NoConfig, NodeProviderType, ProviderType, Snapshot, hookimpl

GOOD = """
from contextlib import asynccontextmanager
from hub.plugin import Found, NoConfig, NodeProviderType, hookimpl

class Provider:
    async def resolve(self, nodes, /):
        return {node.name: Found(("10.0.0.1",)) for node in nodes}

@asynccontextmanager
async def open_provider(cluster, config, shared):
    yield Provider()

@hookimpl
def hub_register_providers():
    return [NodeProviderType(name=NAME, open=open_provider, config=NoConfig)]
"""


def distribution(folder: Path, name: str, source: str, *, dist: str | None = None, module: str | None = None) -> None:
    """Install ``source`` in ``folder`` as the provider ``name`` of a distribution."""
    dist = dist or f"hub-{name}"
    module = module or f"plugin_{dist.replace('-', '_')}"
    (folder / f"{module}.py").write_text(f"NAME = {name!r}\n{source}")
    info = folder / f"{dist.replace('-', '_')}-1.2.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.2\n")
    with (info / "entry_points.txt").open("a") as points:
        points.write(f"[hub.providers]\n{name} = {module}\n")


Install = Callable[..., None]
"""The fixture ``install``: ``install(name, source)``."""


def catalog_of(*types: ProviderType) -> Catalog:
    """A catalog of types in memory, which uses real entry points and the real hook."""
    points = []
    for type_ in types:
        module = ModuleType(f"in_memory_{type_.name.replace('-', '_')}")
        module.hub_register_providers = _hook(type_)  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        points.append(EntryPoint(type_.name, module.__name__, "hub.providers"))
    return Catalog(lambda: points)


def _hook(type_: ProviderType) -> Callable[[], Iterable[ProviderType]]:
    @hookimpl
    def hub_register_providers() -> Iterable[ProviderType]:
        return [type_]

    return hub_register_providers


def node(name: str, address: str = "10.0.0.1", **fields: Any) -> Node:
    """A Node with one InternalIP."""
    return Node(name, addresses=(NodeAddress("InternalIP", address),), **fields)


Answer = Callable[[Sequence[Node]], Awaitable[Mapping[str, Resolution]]]


def found(nodes: Sequence[Node]) -> dict[str, Resolution]:
    """Every node with the addresses that it reports."""
    return {item.name: Found(tuple(entry.address for entry in item.addresses)) for item in nodes}


class Scripted:
    """A NodeProvider that answers by script and remembers its calls.

    Attributes:
        script: one entry per call: a mapping, an exception, or a (possibly async) function of the nodes; after the
            last one, ``found``.
        asked: (loop time, names) of every call.
    """

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.asked: list[tuple[float, tuple[str, ...]]] = []
        self.opened = 0
        self.closed = 0

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        import asyncio

        self.asked.append((asyncio.get_running_loop().time(), tuple(item.name for item in nodes)))
        step = self.script.pop(0) if self.script else found
        if isinstance(step, BaseException):
            raise step
        result: Any = step(nodes) if callable(step) else step
        if isinstance(result, Awaitable):
            result = await result
        return result  # type: ignore[no-any-return]

    def type(
        self, name: str = "scripted", *, kind: Callable[..., ProviderType] = NodeProviderType, **fields: Any
    ) -> ProviderType:
        """A provider type that opens this provider."""

        @asynccontextmanager
        async def open_provider(_cluster: Any, _config: Any, _shared: Any) -> AsyncIterator[Any]:
            self.opened += 1
            try:
                yield self
            finally:
                self.closed += 1

        return kind(name, open_provider, **({"config": NoConfig} | fields))


class Streamed(Scripted):
    """An EndpointProvider: each call of ``watch`` takes one list of snapshots, exceptions and delays (floats)."""

    async def watch(self, /) -> AsyncIterator[Snapshot]:
        import asyncio

        for step in self.script.pop(0) if self.script else [1e9]:  # type: ignore[attr-defined]
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, BaseException):
                raise step
            else:
                yield step

    def type(
        self, name: str = "streamed", *, kind: Callable[..., ProviderType] = EndpointProviderType, **fields: Any
    ) -> ProviderType:
        return super().type(name, kind=kind, **fields)


async def left(loop: PluginLoop) -> None:
    """Abandon a plugin's loop, and wait until its thread has ended."""
    import asyncio

    loop.abandon(partial(ProviderError, "the test is over"))
    async with asyncio.timeout(5):
        while loop.runner.alive:  # noqa: ASYNC110 - states
            await asyncio.sleep(0.01)
