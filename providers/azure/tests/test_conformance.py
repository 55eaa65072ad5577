"""The rules of the capability ``addresses``, on the fake of Azure."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import hub_provider_azure
from hub_provider_azure.testing import FakeAzure
from hub_testkit.addresses.conformance import AddressProviderConformance
from hub_testkit.addresses.fake import AddressFake, World
from hub_testkit.contexts import LocalHub

SUBSCRIPTION = "10000000-0000-4000-8000-000000000001"
GROUP = "resourceGroups/g/providers"


class TestAzure(AddressProviderConformance):
    """Every rule on a fake of its own."""

    plugin = hub_provider_azure
    name = "azure"
    foreign_ids = (
        f"azure:///subscriptions/99999999-0000-4000-8000-000000000001/{GROUP}/Microsoft.Compute/virtualMachines/n1",
        f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/../providers/Microsoft.Compute/virtualMachines/n1",
        f"azure:///subscriptions/{SUBSCRIPTION}/{GROUP}/Microsoft.Network/networkInterfaces/n1",
        "aws:///eu-west-1a/i-0123456789abcdef0",
        "gce://project/zone/n1",
    )

    @asynccontextmanager
    async def world(self) -> AsyncGenerator[World, None]:
        """Serves a fake; its tokens are secrets too."""
        async with FakeAzure() as azure:
            hub = LocalHub(
                secrets={"AZURE_CLIENT_SECRET": azure.client_secret}, allow_api_hosts=frozenset({azure.host})
            )
            azure.cannot["changing"] = "a public IP address shows its interface once the interface is updated"
            azure.tokens.append(azure.client_secret)
            yield World(cast("AddressFake", azure), cast("Any", azure.config), hub, azure.tokens)
