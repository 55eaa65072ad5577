"""A fake of Azure on loopback: stateful, with operations that take time, and failing on demand.

    async with FakeAzure() as azure:
        address = azure.reserve()
        node = azure.add_instance("n1")
        ...                                    # azure.config, azure.secrets
        azure.fail("throttled")

It answers for one subscription: tokens, lists of public IP addresses, virtual machines, network interfaces, operations.
``python -m hub_provider_azure.testing`` serves it to try a clusters.yaml. The provider does not import it.
"""

from __future__ import annotations

from hub_provider_azure.testing.cloud import Request
from hub_provider_azure.testing.server import FakeAzure

__all__ = ["FakeAzure", "Request"]
