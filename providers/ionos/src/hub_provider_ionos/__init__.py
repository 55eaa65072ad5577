"""IONOS Cloud: which server of a data center a node is, and the server's address on a LAN.

The API is asked once per data center, account and interval, whatever number of clusters is in it; see
:mod:`hub_provider_ionos.cloud`. ``hub_testkit.ionos`` has an API to test against.
"""

from __future__ import annotations

from collections.abc import Iterable

from hub.plugin import NodeProviderType, ProviderType, hookimpl
from hub_provider_ionos.cloud import Cloud, open_cloud
from hub_provider_ionos.config import IonosConfig
from hub_provider_ionos.listing import FeedStats
from hub_provider_ionos.provider import Ionos, open_provider

__all__ = ["Cloud", "FeedStats", "Ionos", "IonosConfig", "hub_register_providers", "open_cloud", "open_provider"]


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declare the type."""
    yield NodeProviderType(
        name="ionos",
        open=open_provider,
        config=IonosConfig,
        shared=open_cloud,
        poll_interval=_refresh,
        reads=frozenset({"addresses", "provider_id", "system_uuid"}),
        scope=_datacenters,
    )


def _refresh(config: IonosConfig) -> float:
    return config.refresh


def _datacenters(config: IonosConfig) -> str:
    """The first ones; a scope has 128 characters."""
    return ",".join(sorted(config.datacenters)[:3])
