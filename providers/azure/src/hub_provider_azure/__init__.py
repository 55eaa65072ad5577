"""Reserved addresses of Azure on nodes: attaches public IP addresses to the network interfaces of virtual machines.

``hub_provider_azure.testing`` has a fake of Azure for tests; the provider does not import it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from hub.plugin import ProviderType, hookimpl
from hub.plugin.addresses import AccountContext, AddressProvider, AddressType
from hub_provider_azure.config import AzureConfig

__all__ = ["AzureConfig", "hub_register_providers", "open_account"]


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    yield ProviderType("azure", addresses=AddressType(open=open_account, config=AzureConfig))


@asynccontextmanager
async def open_account(
    context: AccountContext, config: AzureConfig, _: object = None
) -> AsyncGenerator[AddressProvider, None]:
    """Opens an account; imports the login library in a thread, because that takes 0.1 s and 33 MiB.

    Raises:
        TerminalProviderError: ``--allow-api-host`` does not name the configured endpoint or authority.
    """
    from hub_provider_azure.provider import open_provider

    yield await open_provider(context, config)
