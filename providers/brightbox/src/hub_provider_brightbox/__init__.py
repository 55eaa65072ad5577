"""EndpointSlice Hub provider ``brightbox``: the cloud controller's part of Brightbox.

Machines behind Nodes, and load balancers of Services. No SDK: a thin client on the hub's own HTTP session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hub.plugin import ProviderType, hookimpl

if TYPE_CHECKING:
    from hub.plugin.clouds import CloudType


def cloud_type() -> CloudType:
    """The capability of a cloud controller; imported when a cluster first uses it."""
    from hub_provider_brightbox.cloud import TYPE

    return TYPE


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Registers the provider type."""
    return [ProviderType("brightbox", cloud=cloud_type)]
