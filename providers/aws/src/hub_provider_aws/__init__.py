"""Attaches Elastic IPs of one AWS account and region to the instances behind nodes.

Importing this module loads neither botocore nor aiohttp: they come with the first account.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hub.plugin import ProviderType, hookimpl
from hub.plugin.addresses import AccountContext, AddressType
from hub_provider_aws.config import AwsConfig

if TYPE_CHECKING:
    from hub_provider_aws.provider import ElasticIps

__all__ = ["AwsConfig", "hub_register_providers", "open_account"]


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    yield ProviderType("aws", addresses=AddressType(open_account, AwsConfig, cuts=frozenset({"source"})))


@asynccontextmanager
async def open_account(account: AccountContext, config: AwsConfig, _shared: None) -> AsyncGenerator[ElasticIps, None]:
    """Opens an account (``AddressType.open``). No request is sent yet.

    Raises:
        TerminalProviderError: The endpoint's host, or a reference to a credential, is not allowed.
    """
    make = await account.hub.run_sync(_load)
    yield make(account, config)


def _load() -> type[ElasticIps]:
    from hub_provider_aws.provider import ElasticIps

    return ElasticIps
