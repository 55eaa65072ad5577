"""The servers behind Nodes, on the fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hub_provider_ionos import open_cloud
from hub_provider_ionos.config import ControllerConfig
from hub_provider_ionos.controller import open_controller
from hub_provider_ionos.instances import PROVIDER_ID, IonosInstances
from hub_provider_ionos.testing import DATACENTER, PUBLIC, TOKEN, IonosFake
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin import TransientProviderError
from hub.plugin.clouds import Absent, CloudNode, Instance, NodeAddress, Unknown


class Context(LocalAccount):
    """A CloudContext."""

    async def lookup(self, host: str, /) -> tuple[str, ...]:
        raise AssertionError(host)


@asynccontextmanager
async def scene() -> AsyncGenerator[tuple[IonosFake, IonosInstances], None]:
    """An open cloud on the fake."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(IonosFake())
        hub = LocalHub(secrets={"TOKEN": TOKEN}, allow_api_hosts=frozenset((fake.host,)))
        await stack.enter_async_context(hub)
        shared = await stack.enter_async_context(open_cloud(hub))
        settings = {"datacenters": [DATACENTER], "token": {"env": "TOKEN"}, "apiUrl": fake.url}
        opened = open_controller(Context(hub), ControllerConfig.model_validate(settings), shared)
        yield fake, (await stack.enter_async_context(opened)).instances


async def test_a_server_is_found_with_its_addresses_zone_and_region() -> None:
    """By provider ID or, for a new Node, by its name; private addresses are internal, public ones external."""
    async with scene() as (fake, instances):
        id_ = fake.cloud.add_server("n1")
        fake.cloud.server("n1")["properties"] |= {"cores": 4, "ram": 8192}
        answers = await instances.instances([CloudNode("n1"), CloudNode("x", f"ionos://{id_}")])
        found = answers["n1"]
        assert isinstance(found, Instance)
        assert found == answers["x"]
        assert PROVIDER_ID.fullmatch(found.provider_id)
        assert (found.status, found.zone, found.region, found.instance_type) == (
            "running",
            "ZONE_1",
            "de-fra",
            "enterprise-4-8192",
        )
        assert [entry.type for entry in found.addresses] == ["InternalIP"] * 2 + ["ExternalIP"] * 2
        assert found.addresses[0] == NodeAddress("InternalIP", "10.7.0.1")


@pytest.mark.parametrize(("state", "status"), [("SHUTOFF", "stopped"), ("PAUSED", "stopped"), ("BLOCKED", "running")])
async def test_a_stopped_server_exists(state: str, status: str) -> None:
    """The states of a virtual machine that is shut down are stopped; it still exists."""
    async with scene() as (fake, instances):
        fake.cloud.add_server("n1")
        fake.cloud.server("n1")["properties"]["vmState"] = state
        found = (await instances.instances([CloudNode("n1")]))["n1"]
        assert isinstance(found, Instance)
        assert found.status == status


async def test_absent_needs_complete_lists_and_ambiguous_is_unknown() -> None:
    """A server in no list is Absent; two of one name are Unknown; a failing list raises."""
    async with scene() as (fake, instances):
        fake.cloud.add_server("n1")
        fake.cloud.add_server("n1", lans=(PUBLIC,))
        answers = await instances.instances([CloudNode("n1"), CloudNode("n9")])
        assert isinstance(answers["n1"], Unknown)
        assert isinstance(answers["n9"], Absent)
        fake.fail("error", times=None)
        with pytest.raises(TransientProviderError):
            await instances.instances([CloudNode("n9")])
