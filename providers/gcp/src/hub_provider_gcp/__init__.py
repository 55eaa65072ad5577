"""Reserved addresses of Google Cloud on nodes: attaches external IPv4 addresses to virtual machines.

``hub_provider_gcp.testing`` has a fake of Google Cloud for tests; the provider does not import it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Literal

from hub.plugin import ProviderType, hookimpl
from hub.plugin.addresses import AccountContext, AddressProvider, AddressType
from hub_provider_gcp.config import GcpConfig

__all__ = ["GcpConfig", "hub_register_providers", "open_account"]


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declares the provider type."""
    # An interface has one external address: attaching removes the ephemeral address of the new holder, and the old
    # holder has none until the hub restores one.
    cuts: frozenset[Literal["source", "target"]] = frozenset(("source", "target"))
    yield ProviderType("gcp", addresses=AddressType(open=open_account, config=GcpConfig, cuts=cuts))


@asynccontextmanager
async def open_account(
    account: AccountContext, config: GcpConfig, _: object = None, /
) -> AsyncGenerator[AddressProvider, None]:
    """Opens an account. The first request for it imports google-auth, in a thread.

    Raises:
        TerminalProviderError: ``--allow-api-host`` does not name the host of ``endpoint``, or neither the configuration
            nor the credential names a project.
        TransientProviderError: the metadata server does not answer.
    """
    from hub_provider_gcp.api import Api
    from hub_provider_gcp.login import Login
    from hub_provider_gcp.provider import Gcp

    if config.project is None:
        project = await Login(account, config.credentials).project()
        config = config.model_copy(update={"project": project})
    yield Gcp(Api(account, config), config)
