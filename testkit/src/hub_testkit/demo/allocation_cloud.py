"""The provider ``demo-cloud`` of ``hub demo --allocations``: reserved addresses of the simulated cloud of the demo.

It is registered like any third-party provider, through an entry point of group ``hub.providers``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from hub.plugin import ProviderType, hookimpl
from hub.plugin.addresses import AccountContext, AddressProvider, AddressType
from hub_testkit.addresses.cloud import SimulatedCloud
from hub_testkit.addresses.simulated import SimulatedConfig, SimulatedPlugin

NAME: Final = "demo-cloud"
CLOUDS: Final[dict[str, SimulatedCloud]] = {}
"""The clouds that a configuration may name; the demo adds its own."""

_simulated = SimulatedPlugin(CLOUDS)


def _open(account: AccountContext, config: Any, shared: Any, /) -> AbstractAsyncContextManager[AddressProvider]:
    return _simulated.open(account, config, shared)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    yield ProviderType(NAME, addresses=AddressType(open=_open, config=SimulatedConfig, poll_floor=1.0))
