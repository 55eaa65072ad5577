"""Finds the IONOS Cloud server of each node and the server's addresses on a LAN, and moves reserved addresses.

Each data center is listed once per account and interval, however many clusters use it; see
:mod:`hub_provider_ionos.cloud`. For tests, ``hub_testkit.ionos`` has a fake API for nodes and
``hub_provider_ionos.testing`` one for reserved addresses; the provider imports neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hub.plugin import NodeProviderType, ProviderType, hookimpl
from hub.plugin.addresses import AddressType
from hub_provider_ionos.addresses import IonosAddresses, open_account
from hub_provider_ionos.cloud import Cloud, open_cloud
from hub_provider_ionos.config import AccountConfig, IonosConfig
from hub_provider_ionos.listing import FeedStats
from hub_provider_ionos.provider import Ionos, open_provider

if TYPE_CHECKING:
    from hub.plugin.clouds import CloudType

__all__ = [
    "AccountConfig",
    "Cloud",
    "FeedStats",
    "Ionos",
    "IonosAddresses",
    "IonosConfig",
    "hub_register_providers",
    "open_account",
    "open_cloud",
    "open_provider",
]


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    yield NodeProviderType(
        name="ionos",
        open=open_provider,
        config=IonosConfig,
        shared=open_cloud,
        poll_interval=_refresh,
        reads=frozenset({"addresses", "provider_id", "system_uuid"}),
        scope=_datacenters,
        addresses=AddressType(open=open_account, config=AccountConfig),
        cloud=_controller,
    )


def _controller() -> CloudType:
    """The capability of a cloud controller; imported when a cluster first uses it."""
    from hub_provider_ionos.controller import TYPE

    return TYPE


def _refresh(config: IonosConfig) -> float:
    return config.refresh


def _datacenters(config: IonosConfig) -> str:
    """Returns the first three data centers: a scope has at most 128 characters, a UUID has 36."""
    return ",".join(sorted(config.datacenters)[:3])
