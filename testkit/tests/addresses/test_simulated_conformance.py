"""The simulated cloud's provider passes all rules of the capability ``addresses``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from hub_testkit.addresses.conformance import AddressProviderConformance
from hub_testkit.addresses.fake import World
from hub_testkit.addresses.simulated import NAME, SimulatedCloud, SimulatedPlugin
from hub_testkit.contexts import LocalHub

CLOUDS: dict[str, SimulatedCloud] = {}


class TestSimulatedAddresses(AddressProviderConformance):
    """All rules, on the simulated cloud."""

    plugin = SimulatedPlugin(CLOUDS)
    name = NAME
    foreign_ids = ("simulated://other/z1/n1", "gce://main/z1/n1")

    @asynccontextmanager
    async def world(self) -> AsyncGenerator[World, None]:
        """A new cloud."""
        cloud = CLOUDS["main"] = SimulatedCloud()
        hub = LocalHub(secrets={"TOKEN": cloud.credential})
        yield World(cloud, {"cloud": "main", "credential": {"env": "TOKEN"}}, hub, (cloud.credential,))
