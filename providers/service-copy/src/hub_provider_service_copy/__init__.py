"""Copies the endpoints of another Service, of the hub cluster or of a remote one, by watch.

Nothing is polled and nothing is guessed: the source's EndpointSlices are followed, and whatever they say is
what the copy says. A watch that breaks makes no statement until it stands again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Final, cast

import msgspec

from hub.plugin import (
    ClusterContext,
    EndpointProviderType,
    GuardDefaults,
    ProviderType,
    Slice,
    Snapshot,
    TransientProviderError,
    hookimpl,
)
from hub_provider_service_copy.copying import Copier

__all__ = ["Copier", "ServiceCopy", "ServiceCopyConfig", "hub_register_providers"]

LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""A DNS label, as names of namespaces and Services are."""

Label = Annotated[str, msgspec.Meta(pattern=LABEL, min_length=1, max_length=63)]


class ServiceCopyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``provider.config``: the Service to copy.

    Attributes:
        namespace: its namespace, in the source cluster.
        name: its name.
    """

    namespace: Label
    name: Label


class ServiceCopy:
    """Follows the EndpointSlices of one Service."""

    def __init__(self, cluster: ClusterContext, config: ServiceCopyConfig) -> None:
        self._cluster = cluster
        self._config = config

    async def watch(self, /) -> AsyncIterator[Snapshot]:
        """A snapshot of the source now, and after each change of it.

        Raises:
            TransientProviderError: the cluster's API failed.
            TerminalProviderError: the cluster has no API to read.
        """
        copier = Copier()
        # A generator, as every stream of the hub is: it is closed with us, and its watch with it.
        stream = cast(
            "AsyncGenerator[tuple[Slice, ...], None]",
            self._cluster.api.slices(self._config.namespace, self._config.name),
        )
        async with aclosing(stream) as states:
            async for slices in states:
                yield copier.snapshot(slices)
        raise TransientProviderError(f"the watch of {self._config.namespace}/{self._config.name} ended")


@asynccontextmanager
async def open_provider(
    cluster: ClusterContext, config: ServiceCopyConfig, _shared: None, /
) -> AsyncGenerator[ServiceCopy, None]:
    """Open for one cluster."""
    yield ServiceCopy(cluster, config)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declare the type.

    The answer comes from a synced watch, so one complete empty answer is enough, and any number of endpoints
    may leave at once: addresses of Pods that are gone are given to others.
    """
    yield EndpointProviderType(
        name="service-copy",
        open=open_provider,
        config=ServiceCopyConfig,
        guard=GuardDefaults(empty_results=1, max_removal="off"),
    )
