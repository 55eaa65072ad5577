"""Copies the endpoints of another Service, in the hub cluster or a remote cluster.

The provider watches the source's EndpointSlices; the copy says what they say. While the watch is broken, the provider
gives no answer, so the hub keeps the last one.
"""

from __future__ import annotations

import re
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

LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""A DNS label; names of namespaces and Services are DNS labels."""

Label = Annotated[str, msgspec.Meta(min_length=1, max_length=63, extra_json_schema={"pattern": f"^{LABEL}$"})]


class ServiceCopyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``provider.config`` of the provider ``service-copy``: the Service to copy.

    Attributes:
        namespace: Its namespace, in the source cluster.
        name: Its name.
    """

    namespace: Label
    name: Label

    def __post_init__(self) -> None:
        """Refuses what cannot be a name.

        Raises:
            ValueError: A value is not a DNS label.
        """
        for key, value in (("namespace", self.namespace), ("name", self.name)):
            if not re.fullmatch(LABEL, value):
                raise ValueError(f"{key} must consist of a-z, 0-9, and - inside, as names in Kubernetes do")


class ServiceCopy:
    """Watches the EndpointSlices of one Service."""

    def __init__(self, cluster: ClusterContext, config: ServiceCopyConfig) -> None:
        self._cluster = cluster
        self._config = config

    async def watch(self, /) -> AsyncIterator[Snapshot]:
        """Yields a snapshot of the source now and after each of its changes.

        Raises:
            TransientProviderError: The cluster's API failed.
            TerminalProviderError: The cluster has no API to read.
        """
        copier = Copier()
        # The hub's streams are generators: closing this one here also ends the watch behind it.
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
    """Opens the provider for one cluster."""
    yield ServiceCopy(cluster, config)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type.

    Its guard accepts one complete empty answer and the removal of any number of endpoints at once: an answer comes from
    a synced watch, and the addresses of deleted Pods are soon assigned to other Pods.
    """
    yield EndpointProviderType(
        name="service-copy",
        open=open_provider,
        config=ServiceCopyConfig,
        guard=GuardDefaults(empty_results=1, max_removal="off"),
    )
