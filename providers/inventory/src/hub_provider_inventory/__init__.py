"""Endpoints from an inventory: a list in the registry, a JSON file, or a program's output.

This provider is for endpoints outside Kubernetes, and for clusters whose API the hub cannot reach. A record with a
mistake is rejected as a whole. A document that is not valid JSON to its end is an error. Neither removes an endpoint.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from hub.plugin import ClusterContext, EndpointProviderType, ProviderType, Snapshot, TransientProviderError, hookimpl
from hub_provider_inventory.config import InventoryConfig
from hub_provider_inventory.records import InventoryError, parse, snapshot

__all__ = ["Inventory", "InventoryConfig", "InventoryError", "hub_register_providers", "parse", "snapshot"]

MAX_BYTES: Final = 4 << 20
"""The largest document that is read: about 20,000 records, as 5,000 take about 1 MB."""

JITTER: Final = 0.1
"""The fraction of the interval by which each pause varies, so that many inventories are not polled at the same time."""


class Inventory:
    """Polls one inventory: reads it once per ``config.interval``."""

    def __init__(self, cluster: ClusterContext, config: InventoryConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._rng = random.Random()

    async def watch(self, /) -> AsyncIterator[Snapshot]:
        """Yields a snapshot per poll, also an unchanged one, because the hub counts answers in a row.

        Raises:
            TransientProviderError: This poll failed; the next one is due after the interval.
            TerminalProviderError: The file or program is not allowed.
        """
        while True:
            try:
                yield await self.read()
            except InventoryError as error:
                raise TransientProviderError(str(error), retry_after=self._config.interval) from error
            except TransientProviderError as error:
                raise TransientProviderError(str(error), retry_after=self._config.interval) from error
            await self._cluster.hub.clock.sleep(self._config.interval * self._rng.uniform(1 - JITTER, 1 + JITTER))

    async def read(self) -> Snapshot:
        """Reads the inventory once.

        Raises:
            InventoryError: The inventory as a whole cannot be used; the message names it.
            TransientProviderError: The file cannot be read, or the program cannot be run to its end.
            TerminalProviderError: The file or program is not allowed.
        """
        if self._config.static is not None:
            return snapshot("static", self._config.static)
        name, document = await self._document()
        records = await self._cluster.hub.run_sync(parse, name, document)
        return snapshot(name, records)

    async def _document(self) -> tuple[str, bytes]:
        if self._config.file is not None:
            return self._config.file, await self._cluster.read_file(self._config.file, limit=MAX_BYTES)
        command = self._config.command
        assert command is not None  # noqa: S101 - the configuration has exactly one source
        name = f"command {command[0]}"
        names = self._config.environment
        done = await self._cluster.hub.run_program(
            command,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"} | {key: os.environ[key] for key in names if key in os.environ},
            timeout=self._config.timeout,
            stdout_limit=MAX_BYTES,
        )
        if done.exit_code != 0:
            said = self._cluster.hub.redact(done.stderr.decode("utf-8", "replace"))
            raise InventoryError(f"{name} ended with {done.exit_code}" + (f": {said}" if said else ""))
        if not done.stdout.strip():
            raise InventoryError(f"{name} printed nothing (an empty inventory is [])")
        return name, done.stdout


@asynccontextmanager
async def open_provider(
    cluster: ClusterContext, config: InventoryConfig, _shared: None, /
) -> AsyncGenerator[Inventory, None]:
    """Opens the provider for one cluster.

    Raises:
        TerminalProviderError: The hub is not allowed to run ``config.command``.
    """
    if config.command is not None:
        cluster.hub.check_program(config.command[0])
    yield Inventory(cluster, config)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    yield EndpointProviderType(name="inventory", open=open_provider, config=InventoryConfig, poll_interval=_interval)


def _interval(config: InventoryConfig) -> float:
    return config.interval
