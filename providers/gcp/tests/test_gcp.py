"""The provider on the fake: the exact requests of steps, and what the kit's rules do not say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hub_provider_gcp import GcpConfig, hub_register_providers, open_account
from hub_provider_gcp.testing import PROJECT, GcpFake
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin import Node, ProviderError, TerminalProviderError, TransientProviderError, Unknown
from hub.plugin.addresses import (
    AddressConflict,
    AddressProvider,
    Done,
    Elsewhere,
    Free,
    Gone,
    Held,
    NotReserved,
    Order,
    Pending,
    Present,
    QuotaExceeded,
    Step,
    UnsupportedInstance,
)

N1, N2 = "zones/us-west1-a/instances/n1", "zones/us-west1-a/instances/n2"
API = f"/compute/v1/projects/{PROJECT}"
LIST = f"GET {API}/regions/us-west1/addresses?filter=addressType%3DEXTERNAL&maxResults=500"
FREE = Free("us-west1")
BEFORE = "PREMIUM/external-nat"


@dataclass
class Scene:
    """A provider and its fake."""

    fake: GcpFake
    provider: AddressProvider

    def log(self) -> list[str]:
        """The requests since the last call; operations have numbers that differ, so they are cut off."""
        texts = [served.text.partition("operation-")[0] for served in self.fake.log if served.kind != "login"]
        self.fake.log.clear()
        return texts

    async def step(self, call: Any, order: Order) -> Step:
        """Calls a step as the hub does, until it is Done."""
        async with asyncio.timeout(10.0):
            while isinstance(step := await call(order), Pending):
                await self.finish(step)
        return step

    async def finish(self, step: Step) -> None:
        """Follows an operation to its end."""
        async with asyncio.timeout(10.0):
            while isinstance(step, Pending):
                step = await self.provider.follow(step.operation)


@asynccontextmanager
async def scene(**more: Any) -> AsyncGenerator[Scene, None]:
    """Opens a provider with regions [us-west1]."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(GcpFake())
        hub = LocalHub(secrets={"KEY": fake.key_file()}, allow_api_hosts=frozenset((fake.host,)))
        await stack.enter_async_context(hub)
        settings = {"regions": ["us-west1"], "credentials": {"env": "KEY"}, "endpoint": fake.url, **more}
        config = GcpConfig.model_validate({"project": PROJECT, **settings})
        account = LocalAccount(hub, name="gcp-prod")
        yield Scene(fake, await stack.enter_async_context(open_account(account, config)))


async def test_attach_removes_the_ephemeral_address_first() -> None:
    """An attach to an instance with an ephemeral address makes two writes, each after a fresh read, and no others."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1", ephemeral="external-nat")
        address = it.fake.cloud.reserve()
        step = await it.step(it.provider.attach, Order(address, N1, FREE, BEFORE, "t1"))
        assert step == Done(BEFORE)
        assert it.fake.cloud.users(address) == [N1]
        assert it.log() == [
            f"GET {API}/{N1}",
            LIST,
            f"POST {API}/{N1}/deleteAccessConfig?accessConfig=external-nat&networkInterface=nic0",
            f"GET {API}/zones/us-west1-a/operations/",
            f"GET {API}/{N1}",
            LIST,
            f"POST {API}/{N1}/addAccessConfig?networkInterface=nic0",
            f"GET {API}/zones/us-west1-a/operations/",
            f"GET {API}/{N1}",
        ]


async def test_move_makes_the_requests_of_its_steps() -> None:
    """Detach, attach and restore of a move make the documented requests and no others."""
    async with scene() as it:
        cloud = it.fake.cloud
        cloud.add_vm("n1")
        cloud.add_vm("n2")
        address = cloud.reserve()
        cloud.hold(address, "n1")
        await it.step(it.provider.detach, Order(address, N1, Held(N1, region="us-west1"), token="t1"))
        assert it.log() == [
            f"GET {API}/{N1}",
            f"POST {API}/{N1}/deleteAccessConfig?accessConfig=External+NAT&networkInterface=nic0",
            f"GET {API}/zones/us-west1-a/operations/",
            f"GET {API}/{N1}",
            LIST,
        ]
        await it.step(it.provider.attach, Order(address, N2, FREE, token="t2"))
        assert it.log() == [
            f"GET {API}/{N2}",
            LIST,
            f"POST {API}/{N2}/addAccessConfig?networkInterface=nic0",
            f"GET {API}/zones/us-west1-a/operations/",
            f"GET {API}/{N2}",
        ]
        await it.step(it.provider.restore, Order(address, N1, FREE, "STANDARD/old name", "t3"))
        assert it.log() == [
            f"GET {API}/{N1}",
            f"POST {API}/{N1}/addAccessConfig?networkInterface=nic0",
            f"GET {API}/zones/us-west1-a/operations/",
            f"GET {API}/{N1}",
        ]
        assert cloud.users(address) == [N2]
        restored = cloud.vms["n1"].access
        assert restored is not None
        assert (restored["name"], restored["networkTier"]) == ("old name", "STANDARD")


async def test_restore_takes_no_reserved_address() -> None:
    """Restoring gives an ephemeral address, so that free reserved addresses stay free."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve()
        await it.step(it.provider.restore, Order(address, N1, FREE, BEFORE, "t1"))
        assert await it.provider.describe([address]) == {address: FREE}
        assert isinstance(await it.step(it.provider.restore, Order(address, N1, FREE, "", "t2")), Done)


@pytest.mark.parametrize("name", ["external-nat", "External NAT"])
@pytest.mark.parametrize("tier", ["PREMIUM", "STANDARD"])
async def test_attach_keeps_the_name_and_uses_the_tier_of_the_address(name: str, tier: str) -> None:
    """The new access config has the name of the ephemeral one and the network tier of the reserved address."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1", ephemeral=name, tier="PREMIUM")
        address = it.fake.cloud.reserve(tier=tier)
        await it.step(it.provider.attach, Order(address, N1, FREE, f"PREMIUM/{name}", "t1"))
        access = it.fake.cloud.vms["n1"].access
        assert access is not None
        assert (access["name"], access["natIP"], access["networkTier"]) == (name, address, tier)


async def test_attach_refuses_an_instance_that_changed() -> None:
    """An ephemeral address that the order does not name stays, because it could not be given back."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1", ephemeral="other")
        address = it.fake.cloud.reserve()
        for before in ("", "PREMIUM/external-nat"):
            with pytest.raises(AddressConflict, match="expected"):
                await it.provider.attach(Order(address, N1, FREE, before, "t1"))
        assert it.fake.cloud.changes == 0


async def test_attach_refuses_another_region() -> None:
    """An address of another region raises UnsupportedInstance before any request for it."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve("europe-west4")
        with pytest.raises(UnsupportedInstance, match="us-west1"):
            await it.provider.attach(Order(address, N1, Free("europe-west4"), token="t1"))
        assert it.fake.cloud.changes == 0


async def test_attach_loses_a_race_to_another_hub() -> None:
    """If another instance gets the address while the operation runs, following it raises AddressConflict."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        it.fake.cloud.add_vm("n2")
        address = it.fake.cloud.reserve()
        it.fake.cloud.seconds = 0.05
        step = await it.provider.attach(Order(address, N1, FREE, token="t1"))
        assert isinstance(step, Pending)
        it.fake.cloud.hold(address, "n2")
        with pytest.raises(AddressConflict, match="IP_IN_USE_BY_ANOTHER_RESOURCE"):
            await it.finish(step)
        assert it.fake.cloud.users(address) == [N2]


async def test_repeated_write_is_one_change() -> None:
    """A write that is repeated with the same token is one change; with another token it is another one."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve()
        it.fake.cloud.seconds = float("inf")
        order = Order(address, N1, FREE, token="t1")
        first, second = await it.provider.attach(order), await it.provider.attach(order)
        assert first == second
        assert it.fake.cloud.changes == 1
        assert await it.provider.attach(Order(address, N1, FREE, token="t2")) != first
        assert it.fake.cloud.changes == 2


async def test_address_on_another_interface_is_not_touched() -> None:
    """An address on nic1 raises AddressConflict that says so, for a detach and for an attach."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1", nics=2)
        address = it.fake.cloud.reserve()
        it.fake.cloud.hold(address, "n1", nic=1)
        state = (await it.provider.describe([address]))[address]
        for call in (it.provider.detach, it.provider.attach):
            with pytest.raises(AddressConflict, match="another interface"):
                await call(Order(address, N1, state, token="t1"))
        assert it.fake.cloud.changes == 0


async def test_list_that_lags_behind_is_transient() -> None:
    """While the list still shows a holder that has lost the address, a detach is neither Done nor a conflict."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve()
        it.fake.cloud.hold_elsewhere(address, N1)
        with pytest.raises(TransientProviderError, match="still listed"):
            await it.provider.detach(Order(address, N1, Held(N1, region="us-west1"), token="t1"))


async def test_detach_refuses_an_order_that_expects_something_else() -> None:
    """A detach whose expected state is not this holder changes nothing."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve()
        it.fake.cloud.hold(address, "n1")
        for expected in (FREE, Held(N2, region="us-west1")):
            with pytest.raises(AddressConflict):
                await it.provider.detach(Order(address, N1, expected, token="t1"))
        assert it.fake.cloud.users(address) == [N1]


async def test_missing_instance_is_a_conflict_for_an_attach_and_done_for_a_detach() -> None:
    """Steps with an instance that was deleted end without a write."""
    async with scene() as it:
        address = it.fake.cloud.reserve()
        with pytest.raises(AddressConflict, match="does not exist"):
            await it.provider.attach(Order(address, N1, FREE, token="t1"))
        assert await it.provider.detach(Order(address, N1, Held(N1), token="t1")) == Done()
        assert await it.provider.restore(Order(address, N1, FREE, BEFORE, "t1")) == Done()


@pytest.mark.parametrize("instance", ["", "n1", "zones/../instances/n1", f"{N1}/../n2", f"{N1}?x=1", "x" * 10_000])
async def test_invalid_instance_makes_no_request(instance: str) -> None:
    """An instance id that is not canonical never becomes part of a URL."""
    async with scene() as it:
        order = Order("203.0.113.1", instance, FREE, BEFORE, "t1")
        for call in (it.provider.attach, it.provider.detach, it.provider.restore):
            with pytest.raises(UnsupportedInstance):
                await call(order)
        assert isinstance((await it.provider.inspect([instance]))[instance], Unknown)
        assert it.fake.log == []


async def test_describe_tells_strangers_apart() -> None:
    """Forwarding rules, instances of other projects, several users and global addresses are not Free and not Held."""
    async with scene(regions=[]) as it:
        cloud = it.fake.cloud
        rule, foreign, both, everywhere, internal = (cloud.reserve() for _ in range(5))
        cloud.hold_elsewhere(rule)
        cloud.hold_elsewhere(foreign, "regions/us-west1/routers/nat")
        cloud.hold_elsewhere(both)
        cloud.addresses[both].foreign.append("regions/us-west1/forwardingRules/api")
        cloud.addresses[everywhere].region = ""
        found = await it.provider.describe([rule, foreign, both, everywhere, internal])
        assert found[rule] == Elsewhere("forwardingRules/web")
        assert found[foreign] == Elsewhere("routers/nat")
        assert found[both] == Elsewhere("forwardingRules/api, forwardingRules/web")
        assert isinstance(found[everywhere], NotReserved)
        assert found[internal] == FREE
        assert it.log() == [f"GET {API}/aggregated/addresses?filter=addressType%3DEXTERNAL&maxResults=500"]


async def test_describe_asks_each_region_and_all_pages() -> None:
    """With regions each of them is listed, page by page; an address outside them is NotReserved."""
    async with scene(regions=["us-west1", "europe-west4"]) as it:
        near = [it.fake.cloud.reserve() for _ in range(5)]
        far, outside = it.fake.cloud.reserve("europe-west4"), it.fake.cloud.reserve("asia-east1")
        it.fake.page = 2
        found = await it.provider.describe([*near, far, outside])
        assert [found[address] for address in near] == [FREE] * 5
        assert found[far] == Free("europe-west4")
        assert isinstance(found[outside], NotReserved)
        assert len(it.log()) == 4


async def test_inspect_tells_ephemeral_from_reserved_addresses() -> None:
    """Room, before and why follow from the access config and from the list of reserved addresses."""
    async with scene() as it:
        cloud = it.fake.cloud
        for name in ("plain", "static", "pointer", "stopped"):
            cloud.add_vm(name, ephemeral="" if name == "plain" else "external-nat")
        address = cloud.reserve()
        cloud.hold(address, "static")
        pointer = cloud.vms["pointer"].access
        assert pointer is not None
        pointer["setPublicPtr"] = True
        stopped = cloud.vms["stopped"]
        stopped.status = "TERMINATED"
        assert stopped.access is not None
        del stopped.access["natIP"]
        cloud.add_vm("odd").status = "DREAMING"
        names = ("plain", "static", "pointer", "stopped", "odd", "gone")
        ids = [f"zones/us-west1-a/instances/{name}" for name in names]
        found = list((await it.provider.inspect(ids)).values())
        place: dict[str, Any] = {"region": "us-west1", "zone": "us-west1-a"}
        assert found[0] == Present(running=True, **place)
        assert found[1] == Present(running=True, **place, room=False, why=f"nic0 has the reserved address {address}")
        assert isinstance(found[2], Present)
        assert "DNS PTR" in found[2].why
        assert found[3] == Present(running=False, **place, before=BEFORE)
        assert isinstance(found[4], Unknown)
        assert isinstance(found[5], Gone)
        assert it.log().count(LIST) == 1


async def test_404_of_something_else_is_not_gone() -> None:
    """Only the API's own 404 about the instance means Gone: one of a proxy or about the project does not."""
    async with scene() as it:
        it.fake.fail("not-found-html")
        assert isinstance((await it.provider.inspect([N1]))[N1], Unknown)
        it.fake.cloud.project = "another-project"
        assert isinstance((await it.provider.inspect([N1]))[N1], Unknown)
        with pytest.raises(TerminalProviderError, match="correct project or regions"):
            await it.provider.describe(["203.0.113.1"])


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("error", TransientProviderError, "503 backendError"),
        ("html", TransientProviderError, "500"),
        ("list", TransientProviderError, "200"),
        ("redirect", TransientProviderError, "302; not an answer of the Compute Engine API, check endpoint"),
        ("cut", TransientProviderError, "no complete answer"),
        ("throttled", QuotaExceeded, "429"),
        ("throttled-without-time", QuotaExceeded, "429"),
        ("quota", QuotaExceeded, "403 quotaExceeded"),
        ("forbidden", TerminalProviderError, "grant the permission compute.instances.addAccessConfig"),
        ("unauthorized", TerminalProviderError, "replace the credential from env KEY"),
        ("conflict", AddressConflict, "409 conflict"),
        ("not-ready", TransientProviderError, "400 resourceNotReady"),
        ("policy", UnsupportedInstance, "412 conditionNotMet"),
    ],
)
async def test_refused_write_raises(fault: str, error: type[ProviderError], words: str) -> None:
    """Each way to refuse a write has its error, which names account, request and what to do."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve()
        it.fake.fail(fault, times=None, on="write")
        with pytest.raises(error, match=words) as caught:
            await it.provider.attach(Order(address, N1, FREE, token="t1"))
        assert type(caught.value) is error
        assert str(caught.value).startswith(f"account gcp-prod: POST {N1}/addAccessConfig: ")


async def test_tier_mismatch_is_unsupported() -> None:
    """If the API refuses the network tier, the instance is not a target for the address."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve(tier="STANDARD")
        provider: Any = it.provider
        with pytest.raises(UnsupportedInstance, match="tier"):
            await provider._api.add_access_config(
                Order(address, N1, FREE), {"natIP": address, "networkTier": "PREMIUM"}
            )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("QUOTA_EXCEEDED", QuotaExceeded),
        ("RESOURCE_NOT_READY", TransientProviderError),
        ("PERMISSIONS_ERROR", TerminalProviderError),
        ("UNSUPPORTED_OPERATION", UnsupportedInstance),
        ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", AddressConflict),
    ],
)
async def test_failed_operation_raises(code: str, error: type[ProviderError]) -> None:
    """An operation that ended ill raises the error of its code."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        address = it.fake.cloud.reserve()
        it.fake.cloud.seconds, it.fake.cloud.code = 0.02, code
        with pytest.raises(error, match=code) as caught:
            await it.step(it.provider.attach, Order(address, N1, FREE, token="t1"))
        assert type(caught.value) is error


@pytest.mark.parametrize("operation", ["zones/us-west1-a/operations/operation-9", "zones/../x", "https://a.b/c", ""])
async def test_unknown_operation_is_done(operation: str) -> None:
    """An operation that the cloud does not know, or that cannot be one, has ended."""
    async with scene() as it:
        assert await it.provider.follow(operation) == Done()


async def test_operation_that_never_ends_stays_pending() -> None:
    """Following an operation looks once, and leaves the waiting to the hub."""
    async with scene() as it:
        it.fake.cloud.add_vm("n1")
        it.fake.cloud.seconds = float("inf")
        step = await it.provider.attach(Order(it.fake.cloud.reserve(), N1, FREE, token="t1"))
        assert isinstance(step, Pending)
        assert await it.provider.follow(step.operation) == step


async def test_too_large_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer above the limit is not read to its end."""
    monkeypatch.setattr("hub_provider_gcp.http.MAX_BODY", 100)
    async with scene() as it:
        it.fake.cloud.reserve()
        with pytest.raises(TransientProviderError, match="100 bytes"):
            await it.provider.describe([])


async def test_slow_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not end is given up after the total time."""
    async with scene() as it:
        await it.provider.describe([])
        monkeypatch.setattr("hub_provider_gcp.http.TOTAL", 0.1)
        it.fake.fail("slow")
        with pytest.raises(TransientProviderError, match="no answer within"):
            await it.provider.describe([])


async def test_endless_pages_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list with too many pages ends with an error, not with a part of it."""
    monkeypatch.setattr("hub_provider_gcp.api.MAX_PAGES", 2)
    async with scene() as it:
        addresses = [it.fake.cloud.reserve() for _ in range(5)]
        it.fake.page = 2
        with pytest.raises(TransientProviderError, match="more than 2 pages"):
            await it.provider.describe(addresses)


async def test_endpoint_must_be_allowed() -> None:
    """An endpoint that --allow-api-host does not name is refused when the account is opened."""
    config = GcpConfig(project=PROJECT, endpoint="https://evil.example")
    async with LocalHub() as hub:
        with pytest.raises(TerminalProviderError, match="--allow-api-host evil"):
            async with open_account(LocalAccount(hub), config):
                pass


def test_type_declares_both_cuts() -> None:
    """The type has addresses only, and says that a move cuts both nodes off."""
    (type_,) = hub_register_providers()
    assert (type_.name, type_.open) == ("gcp", None)
    assert type_.addresses is not None
    assert type_.addresses.cuts == {"source", "target"}


async def test_instance_of_reads_the_provider_id() -> None:
    """The canonical id is the path below the project."""
    async with scene() as it:
        assert it.provider.instance_of(Node("any", provider_id=f"gce://{PROJECT}/us-west1-a/n1")) == N1
