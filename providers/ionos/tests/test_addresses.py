"""Reserved addresses on the fake: the exact requests of steps, and what the kit's rules do not say."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml
from hub_provider_ionos import AccountConfig, Cloud, IonosConfig, open_account, open_cloud, open_provider
from hub_provider_ionos.permit import NotSent
from hub_provider_ionos.testing import DATACENTER, PRIVATE, TOKEN, IonosFake
from hub_provider_ionos.transport import Transport
from hub_testkit.contexts import LocalAccount, LocalCluster, LocalHub
from pydantic import ValidationError

from hub.plugin import Found, Node, ProviderError, TerminalProviderError, TransientProviderError, Unknown
from hub.plugin.addresses import (
    AddressConflict,
    AddressProvider,
    AddressState,
    Changing,
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
    Unsupported,
    UnsupportedInstance,
)
from hub.runtime.clock import Clock, SystemClock

FREE = Free("de-fra")
OTHER_DC = "10000000-0000-4000-8000-000000000002"
BLOCKS = "GET /ipblocks?depth=1&offset=0&limit=1000"
LANS = f"GET /datacenters/{DATACENTER}/lans?depth=1&offset=0&limit=1000"
SERVERS = f"GET /datacenters/{DATACENTER}/servers?depth=3&offset=0&limit=1000"
LISTS = [BLOCKS, LANS, SERVERS]
STATUS = "GET /requests/ID/status"


@dataclass
class Scene:
    """A provider and its fake."""

    fake: IonosFake
    hub: LocalHub
    provider: AddressProvider
    shared: Cloud
    config: AccountConfig

    @property
    def log(self) -> list[str]:
        """The requests since the last look, without the ids of changes and the bodies of reads."""
        found = [
            re.sub("(?<=/requests/)[0-9a-f-]{36}", "ID", f"{row.text} {row.body}".strip()) for row in self.fake.log
        ]
        self.fake.log.clear()
        return found

    def add(self, name: str, **more: Any) -> str:
        """Creates a server and returns its id."""
        return self.fake.cloud.add_server(name, **more)

    def path(self, name: str, nic: int = 0) -> str:
        """The path of a server's NIC."""
        server = self.fake.cloud.server(name)["id"]
        return f"/datacenters/{DATACENTER}/servers/{server}/nics/{self.nic(name, nic)}"

    def nic(self, name: str, index: int = 0) -> str:
        """The id of a server's NIC."""
        return str(self.fake.cloud.nics(name)[index]["id"])

    def ips(self, name: str) -> list[str]:
        """The addresses of a server's public NIC."""
        self.fake.cloud.settle()
        found: list[str] = self.fake.cloud.nics(name)[0]["properties"]["ips"]
        return found

    def held(self, name: str) -> tuple[str, Held]:
        """Reserves an address that a server has, and returns it with its state."""
        address = self.fake.cloud.reserve()
        self.fake.cloud.hold(address, name)
        return address, Held(self.fake.cloud.server(name)["id"], self.nic(name), "de-fra")

    async def state(self, address: str) -> AddressState:
        """Describes one address."""
        return (await self.provider.describe([address]))[address]

    async def finish(self, call: Any, order: Order) -> Step:
        """Calls a step as the hub does, until it is Done."""
        async with asyncio.timeout(10.0):
            while isinstance(step := await call(order), Pending):
                await self.end(step)
        return step

    async def end(self, step: Step) -> None:
        """Follows a change to its end."""
        async with asyncio.timeout(10.0):
            while isinstance(step, Pending):
                step = await self.provider.follow(step.operation)


class Ahead(SystemClock):
    """A clock that a test can put forward."""

    ahead = 0.0

    def now(self) -> float:
        """Seconds since boot, and those that it was put forward."""
        return super().now() + self.ahead


@asynccontextmanager
async def scene(*datacenters: str, clock: Clock | None = None) -> AsyncGenerator[Scene, None]:
    """Opens a provider for an account of the fake."""
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(IonosFake())
        for datacenter in datacenters:
            fake.cloud.add_datacenter(datacenter, "us/las")
        hub = LocalHub(secrets={"TOKEN": TOKEN}, allow_api_hosts=frozenset((fake.host,)), clock=clock)
        await stack.enter_async_context(hub)
        shared = await stack.enter_async_context(open_cloud(hub))
        settings = {"datacenters": [DATACENTER, *datacenters], "token": {"env": "TOKEN"}, "apiUrl": fake.url}
        config = AccountConfig.model_validate(settings)
        provider = await stack.enter_async_context(open_account(LocalAccount(hub), config, shared))
        yield Scene(fake, hub, provider, shared, config)


# --- requests ------------------------------------------------------------------------------------------


async def test_attach_makes_the_documented_requests() -> None:
    """An attach lists blocks and servers, reads the NIC, appends to its addresses, and follows the request."""
    async with scene() as it:
        server, address = it.add("n1"), it.fake.cloud.reserve()
        own = it.ips("n1")
        assert await it.finish(it.provider.attach, Order(address, server, FREE)) == Done()
        change = f'PATCH {it.path("n1")} {{"ips": ["{own[0]}", "{address}"]}}'
        assert it.log == [*LISTS, f"GET {it.path('n1')}?depth=1", change, STATUS, *LISTS]
        assert it.ips("n1") == [*own, address]


async def test_move_makes_the_documented_requests() -> None:
    """Detach, attach and restore of a move make two changes, each right after reading the NIC, and no others."""
    async with scene() as it:
        one, two = it.add("n1"), it.add("n2")
        address, held = it.held("n1")
        [own], [other] = it.ips("n1")[:1], it.ips("n2")
        assert await it.finish(it.provider.detach, Order(address, one, held)) == Done()
        left = f'PATCH {it.path("n1")} {{"ips": ["{own}"]}}'
        assert it.log == [*LISTS, f"GET {it.path('n1')}?depth=1", left, STATUS, *LISTS]
        await it.finish(it.provider.attach, Order(address, two, FREE))
        change = f'PATCH {it.path("n2")} {{"ips": ["{other}", "{address}"]}}'
        assert it.log == [*LISTS, f"GET {it.path('n2')}?depth=1", change, STATUS, *LISTS]
        assert await it.provider.restore(Order(address, one, FREE)) == Done()
        assert it.log == []
        assert await it.state(address) == Held(two, it.nic("n2"), "de-fra")


async def test_describe_of_what_has_not_changed_lists_only_the_blocks() -> None:
    """As long as the blocks say the same as the last list of servers, describing 50 addresses is one request."""
    async with scene() as it:
        it.add("n1")
        address, held = it.held("n1")
        free = [it.fake.cloud.reserve() for _ in range(49)]
        await it.provider.describe([address, *free])
        assert it.log == LISTS
        found = await it.provider.describe([address, *free])
        assert found == {address: held, **dict.fromkeys(free, FREE)}
        assert it.log == [BLOCKS]
        it.fake.cloud.release(address)
        assert await it.state(address) == FREE
        assert it.log == LISTS


async def test_blocks_without_consumers_are_compared_with_new_lists_of_servers() -> None:
    """If the blocks do not name consumers, each describe lists the servers, and a NIC that has an address counts."""
    async with scene() as it:
        it.add("n1")
        it.fake.cloud.names_consumers = False
        address, held = it.held("n1")
        await it.state(address)
        it.fake.log.clear()
        assert await it.state(address) == held
        assert it.log == LISTS
        it.fake.cloud.release(address)
        assert await it.state(address) == FREE


async def test_a_list_that_was_requested_before_the_change_does_not_count() -> None:
    """A describe that meets a list in progress waits for the next one."""
    async with scene() as it:
        it.add("n1")
        address = it.fake.cloud.reserve()
        await it.state(address)
        it.fake.latency = 0.1
        feed = asyncio.ensure_future(it.provider.inspect(["x"]))
        async with asyncio.timeout(10.0):
            while not any(row.status == 200 for row in it.fake.log[3:]):  # noqa: ASYNC110 - until the LANs are listed
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.12)  # the list of servers has been read, and is on its way
        it.fake.cloud.hold(address, "n1")
        assert isinstance(await it.state(address), Held)
        await feed


async def test_nodes_and_addresses_share_a_list() -> None:
    """A cluster and an account with the same credential list the servers of a data center once."""
    async with scene() as it:
        server, address = it.add("n1"), it.fake.cloud.reserve()
        config = IonosConfig.model_validate({**it.config.model_dump(by_alias=True), "lan": PRIVATE})
        await it.state(address)
        async with open_provider(LocalCluster(it.hub), config, it.shared) as nodes:
            found = await nodes.resolve([Node("n1", provider_id=f"ionos://{server}")])
        assert isinstance(found["n1"], Found)
        assert it.log == LISTS


# --- states --------------------------------------------------------------------------------------------


async def test_states_of_addresses() -> None:
    """An address is free, held, elsewhere or not reserved, whatever block and location it is in."""
    async with scene(OTHER_DC) as it:
        cloud = it.fake.cloud
        one, two = it.add("n1"), it.add("n2", datacenter=OTHER_DC)
        free, far = cloud.reserve(), cloud.reserve("us/las")
        cloud.hold(far, "n2")
        balancer, stranger, pool, group = (cloud.reserve() for _ in range(4))
        cloud.hold_elsewhere(balancer)
        server = "90000000-0000-4000-8000-000000000009"
        cloud.foreign[stranger] = {"ip": stranger, "serverId": server, "datacenterId": server}
        cloud.foreign[pool] = {"ip": pool, "serverId": one, "datacenterId": DATACENTER, "k8sNodePoolUuid": server}
        cloud.hold(group, "n1")
        cloud.add_failover(group, "n1")
        found = await it.provider.describe([free, far, balancer, stranger, pool, group, "192.0.2.1"])
        nic = cloud.foreign[balancer]["nicId"]
        assert list(found.values()) == [
            FREE,
            Held(two, it.nic("n2"), "us-las"),
            Elsewhere(f"NIC {nic} of data center {DATACENTER}"),
            Elsewhere(f"server {server} of data center {server}"),
            Elsewhere(f"node pool {server} of managed Kubernetes of data center {DATACENTER}"),
            Elsewhere(f"failover group of LAN 1 of data center {DATACENTER}"),
            NotReserved("no reserved block of the account has it"),
        ]


async def test_contradictions_are_unknown() -> None:
    """An address that two NICs have, or that a block and the NICs place differently, is Unknown."""
    async with scene() as it:
        cloud = it.fake.cloud
        one = it.add("n1")
        it.add("n2")
        twice, lagging, both = (cloud.reserve() for _ in range(3))
        for name in ("n1", "n2"):
            cloud.nics(name)[0]["properties"]["ips"].append(twice)
        cloud.foreign[lagging] = {"ip": lagging, "serverId": one, "datacenterId": DATACENTER}
        cloud.hold(both, "n1")
        cloud.foreign[both] = {"ip": both, "serverId": OTHER_DC, "datacenterId": OTHER_DC}
        for address, text in ((twice, "several NICs"), (lagging, "but its NICs do not"), (both, "but the reserved")):
            state = await it.state(address)
            assert isinstance(state, Unknown)
            assert text in state.reason
            with pytest.raises(TransientProviderError, match=text):
                await it.provider.attach(Order(address, one, FREE))
        assert cloud.changes == 0


async def test_an_address_may_be_on_a_server_that_cannot_be_read() -> None:
    """If a server has NICs without addresses, and blocks do not name consumers, no address counts as free."""
    async with scene() as it:
        it.add("n1")
        address = it.fake.cloud.reserve()
        it.fake.cloud.names_consumers = False
        del it.fake.cloud.nics("n1")[0]["properties"]["ips"]
        state = await it.state(address)
        assert isinstance(state, Unknown)
        assert "ips is missing" in state.reason


async def test_states_of_servers() -> None:
    """A server is present, stopped, gone or unsupported, and its NIC has room for one address beside its own."""
    async with scene(OTHER_DC) as it:
        cloud = it.fake.cloud
        names = ("runs", "stopped", "odd", "empty", "full", "broken")
        ids = {name: it.add(name) for name in names}
        ids["far"] = it.add("far", datacenter=OTHER_DC)
        ids["private"] = it.add("private", lans=(PRIVATE,))
        cloud.server("stopped")["properties"]["vmState"] = "SHUTOFF"
        cloud.server("odd")["properties"]["vmState"] = "NOSTATE"
        cloud.nics("empty")[0]["properties"]["ips"] = None
        _, _ = it.held("full")
        del cloud.nics("broken")[0]["properties"]["ips"]
        found = await it.provider.inspect([*ids.values(), OTHER_DC])
        by_name = dict(zip([*ids, "gone"], found.values(), strict=True))
        assert by_name["runs"] == Present(running=True, region="de-fra", zone="ZONE_1")
        assert by_name["stopped"] == Present(running=False, region="de-fra", zone="ZONE_1")
        assert by_name["far"] == Present(running=True, region="us-las", zone="ZONE_1")
        assert by_name["private"] == Unsupported("it has no NIC on a public LAN")
        assert by_name["gone"] == Gone("no data center of the account has this server")
        assert by_name["odd"] == Unknown("its state is NOSTATE")
        assert by_name["broken"] == Unknown("NIC 0: ips is missing")
        for name, why in (("empty", "no address of its own"), ("full", "the addresses 198.51.100.5, 203.0.113.")):
            state = by_name[name]
            assert isinstance(state, Present)
            assert (state.room, why in state.why) == (False, True)


async def test_a_server_that_returns_under_its_name_is_another_instance() -> None:
    """After a server was replaced by one of the same name, the old instance is gone and its address free."""
    async with scene() as it:
        old = it.add("n1")
        address, _ = it.held("n1")
        await it.state(address)
        it.fake.cloud.remove_server("n1")
        new = it.add("n1")
        found = await it.provider.inspect([old, new])
        assert isinstance(found[old], Gone)
        assert isinstance(found[new], Present)
        assert await it.state(address) == FREE
        held = Held(old, OTHER_DC, "de-fra")
        assert await it.provider.detach(Order(address, old, held)) == Done()
        assert it.fake.cloud.changes == 0


async def test_a_node_without_provider_id_is_found_in_the_last_list() -> None:
    """Without providerID the machine's UUID counts, then a name that one server has; with one, nothing else."""
    async with scene() as it:
        server = it.add("n1")
        it.add("twin")
        it.add("twin")
        by_uuid, by_name = Node("x", system_uuid=server.upper()), Node("n1")
        assert it.provider.instance_of(by_uuid) is None
        await it.provider.describe([])
        assert it.provider.instance_of(by_uuid) == server
        assert it.provider.instance_of(by_name) == server
        assert it.provider.instance_of(Node("twin")) is None
        assert it.provider.instance_of(Node("n1", provider_id="aws:///a/i-1", system_uuid=server)) is None


# --- changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [False, True])
async def test_a_change_whose_answer_was_lost_is_found_and_followed(early: bool) -> None:
    """While the NIC is being changed, the same order again follows the request that the API lists for the NIC."""
    async with scene() as it:
        cloud = it.fake.cloud
        server, address = it.add("n1"), cloud.reserve()
        order = Order(address, server, FREE)
        cloud.early, cloud.seconds = early, 0.3
        it.fake.fail("lost-answer", on="write")
        with pytest.raises(TransientProviderError):
            await it.provider.attach(order)
        assert await it.state(address) == (Changing() if early else FREE)
        it.fake.log.clear()
        step = await it.provider.attach(order)
        assert isinstance(step, Pending)
        [request] = cloud.requests
        assert step.operation == request
        search = it.log[-1]
        assert search.startswith("GET /requests?depth=2&")
        assert f"filter.method=PATCH&filter.url={it.path('n1').replace('/', '%2F')}&" in search.replace(
            "/nics/", "/nics/"
        )
        await it.end(step)
        assert await it.provider.attach(order) == Done()
        cloud.seconds = 0.3
        held = Held(server, it.nic("n1"), "de-fra")
        it.fake.fail("lost-answer", on="write")
        with pytest.raises(TransientProviderError):
            await it.provider.detach(Order(address, server, held))
        assert await it.finish(it.provider.detach, Order(address, server, held)) == Done()
        assert cloud.changes == 2
        assert await it.state(address) == FREE


async def test_a_nic_that_is_being_changed_otherwise_is_left_alone() -> None:
    """A NIC that is BUSY without a request for it makes a step fail for now, and nothing is sent."""
    async with scene() as it:
        server, address = it.add("n1"), it.fake.cloud.reserve()
        it.fake.cloud.nics("n1")[0]["metadata"]["state"] = "BUSY"
        with pytest.raises(TransientProviderError, match="is being changed"):
            await it.provider.attach(Order(address, server, FREE))
        assert it.fake.cloud.changes == 0


async def test_the_last_address_of_a_nic_is_never_removed() -> None:
    """Detaching the only address of a NIC is refused, since an empty list makes the API choose an address."""
    async with scene() as it:
        server = it.add("n1")
        address, held = it.held("n1")
        it.fake.cloud.nics("n1")[0]["properties"]["ips"] = [address]
        with pytest.raises(AddressConflict, match="does not remove the last one; add another address"):
            await it.provider.detach(Order(address, server, held))
        assert it.ips("n1") == [address]


async def test_instances_that_cannot_take_an_address() -> None:
    """A server on private LANs is never asked, one without own address or without room is a conflict."""
    async with scene() as it:
        address = it.fake.cloud.reserve()
        private = it.add("private", lans=(PRIVATE,))
        with pytest.raises(UnsupportedInstance, match="no NIC on a public LAN"):
            await it.provider.attach(Order(address, private, FREE))
        empty = it.add("empty")
        it.fake.cloud.nics("empty")[0]["properties"]["ips"] = []
        with pytest.raises(AddressConflict, match="no address of its own"):
            await it.provider.attach(Order(address, empty, FREE))
        with pytest.raises(AddressConflict, match="no data center of the account has server"):
            await it.provider.attach(Order(address, OTHER_DC, FREE))
        assert it.fake.cloud.changes == 0


async def test_a_failover_group_keeps_its_address() -> None:
    """An address that became a failover group after the order was made is not detached."""
    async with scene() as it:
        server = it.add("n1")
        address, held = it.held("n1")
        assert await it.state(address) == held
        it.fake.cloud.add_failover(address, "n1")
        with pytest.raises(AddressConflict, match="failover group of LAN 1"):
            await it.provider.detach(Order(address, server, held))
        assert it.fake.cloud.changes == 0


async def test_an_address_on_another_nic_than_expected_stays() -> None:
    """The NIC is part of the expected state: moved by hand to another NIC of the server, the address stays."""
    async with scene() as it:
        server = it.add("n1")
        address, held = it.held("n1")
        it.fake.cloud.release(address)
        it.fake.cloud.nics("n1")[1]["properties"]["ips"].append(address)
        with pytest.raises(AddressConflict):
            await it.provider.detach(Order(address, server, held))
        assert it.fake.cloud.changes == 0


async def test_two_orders_for_one_nic_do_not_lose_an_address() -> None:
    """Two attaches to one server at once leave one address on it, and refuse the other."""
    async with scene() as it:
        server = it.add("n1")
        orders = [Order(it.fake.cloud.reserve(), server, FREE) for _ in range(2)]
        it.fake.latency = 0.02
        steps = (it.finish(it.provider.attach, order) for order in orders)
        results = await asyncio.gather(*steps, return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["AddressConflict", "Done"]
        assert len(it.ips("n1")) == 2
        assert it.fake.cloud.changes == 1


async def test_a_nic_that_changes_after_the_lists_is_left_alone() -> None:
    """If the NIC does not have what the lists of the same step say, the step fails for now and nothing is sent."""
    async with scene() as it:
        cloud = it.fake.cloud
        server, free = it.add("n1"), cloud.reserve()
        address, held = it.held("n1")

        def after_servers(change: Callable[[], None]) -> None:
            it.fake.shown = lambda served: change() if served.text == SERVERS else None

        after_servers(lambda: cloud.release(address))
        with pytest.raises(TransientProviderError, match="its NIC says something else"):
            await it.provider.detach(Order(address, server, held))
        after_servers(lambda: cloud.hold(free, "n1"))
        with pytest.raises(TransientProviderError, match="its NIC says something else"):
            await it.provider.attach(Order(free, server, FREE))
        it.fake.shown = print
        assert await it.provider.attach(Order(free, server, FREE)) == Done()
        assert cloud.changes == 0


async def test_a_change_that_ended_is_not_remembered() -> None:
    """An address that was being changed at the last list is described from a new list."""
    async with scene() as it:
        server, address = it.add("n1"), it.fake.cloud.reserve()
        it.fake.cloud.early, it.fake.cloud.seconds = True, float("inf")
        await it.provider.attach(Order(address, server, FREE))
        assert await it.state(address) == Changing()
        [change] = it.fake.cloud.requests.values()
        change.ends = 0.0
        assert await it.state(address) == Held(server, it.nic("n1"), "de-fra")


async def test_only_a_request_for_the_nic_that_has_not_ended_is_followed() -> None:
    """Earlier requests for the NIC, and requests for objects below its path, are not the change in progress."""
    async with scene() as it:
        cloud = it.fake.cloud
        server, address = it.add("n1"), cloud.reserve()
        await it.finish(it.provider.attach, Order(address, server, FREE))
        held = Held(server, it.nic("n1"), "de-fra")
        [ended] = cloud.requests.values()
        rule = replace(ended, path=f"{ended.path}/firewallrules/{OTHER_DC}", status="RUNNING", ends=float("inf"))
        cloud.requests[OTHER_DC] = rule
        cloud.seconds = float("inf")
        first = await it.provider.detach(Order(address, server, held))
        assert isinstance(first, Pending)
        assert list(cloud.requests)[2:] == [first.operation]
        assert await it.provider.detach(Order(address, server, held)) == first


@pytest.mark.parametrize("operation", ["", "../../x", "90000000-0000-4000-8000-000000000009"])
async def test_an_unknown_operation_is_over(operation: str) -> None:
    """Following what the API does not know, or what is no id of a request, is Done."""
    async with scene() as it:
        assert await it.provider.follow(operation) == Done()


async def test_a_change_that_fails_or_never_ends() -> None:
    """A failed change raises AddressConflict with the API's message; one that does not end stays pending."""
    async with scene() as it:
        server, address = it.add("n1"), it.fake.cloud.reserve()
        it.fake.cloud.seconds = float("inf")
        step = await it.provider.attach(Order(address, server, FREE))
        assert isinstance(step, Pending)
        assert await it.provider.follow(step.operation) == step
        [change] = it.fake.cloud.requests.values()
        change.ends, change.error = 0.0, "IP is already in use"
        with pytest.raises(AddressConflict, match="failed: IP is already in use"):
            await it.provider.follow(step.operation)


# --- errors --------------------------------------------------------------------------------------------


async def _refused_by(it: Scene, fault: str) -> ProviderError:
    server, address = it.add("n1"), it.fake.cloud.reserve()
    it.fake.fail(fault, on="write")
    with pytest.raises(ProviderError) as caught:
        await it.provider.attach(Order(address, server, FREE))
    return caught.value


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("forbidden", TerminalProviderError, "the right to edit the data center and use the reserved block"),
        ("conflict", AddressConflict, "the resource was changed"),
        ("busy", TransientProviderError, "this NIC is busy"),
        ("used", AddressConflict, "already in use"),
        ("missing", TerminalProviderError, "it does not exist"),
        ("html", TransientProviderError, "answers 502"),
        ("garbage", TransientProviderError, "has status 200 instead of 202"),
        ("redirect", TerminalProviderError, "redirects are not followed"),
        ("throttled", QuotaExceeded, "asking again in 1 s"),
        ("throttled-without-time", QuotaExceeded, "asking again in 60 s"),
        ("cut", TransientProviderError, "was cut short"),
        ("lost-answer", TransientProviderError, "was cut short"),
    ],
)
async def test_errors_of_a_change(fault: str, kind: type[ProviderError], text: str) -> None:
    """Each refusal of a change is the plugin API's error that tells the hub what to do, and says what failed."""
    async with scene() as it:
        error = await _refused_by(it, fault)
        assert isinstance(error, kind)
        assert text in str(error)


@pytest.mark.parametrize("fault", ["garbage", "no-key", "list", "html", "error", "cut"])
@pytest.mark.parametrize("skip", ["ipblocks", "lans", "servers"])
async def test_no_list_that_fails_frees_an_address(fault: str, skip: str) -> None:
    """Whichever list is broken, describing raises an error."""
    async with scene() as it:
        it.add("n1")
        address, _ = it.held("n1")
        it.fake.fail(fault, path=skip)
        with pytest.raises(TransientProviderError):
            await it.state(address)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"properties": {}}, "location or ips is missing"),
        ({"properties": None}, "not an object"),
        ({"properties": {"location": "de/fra", "ips": [], "ipConsumers": {}}}, "ipConsumers is not a list"),
        ({"properties": {"location": "de/fra", "ips": [], "ipConsumers": [1]}}, "not an object"),
    ],
)
async def test_a_block_that_cannot_be_read_is_an_error(body: Any, text: str) -> None:
    """One block that cannot be read makes the whole list an error."""
    async with scene() as it:
        address = it.fake.cloud.reserve()
        it.fake.cloud.show_blocks = lambda: [{"id": OTHER_DC, "type": "ipblock", **body}]  # type: ignore[method-assign]
        with pytest.raises(TransientProviderError, match=text):
            await it.state(address)


async def test_pages_of_blocks() -> None:
    """Blocks on all pages count."""
    async with scene() as it:
        addresses = [it.fake.cloud.reserve() for _ in range(5)]
        it.fake.page = 2
        assert await it.provider.describe(addresses) == dict.fromkeys(addresses, FREE)


# --- configuration and program -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"lan": 2},
        {"token": None},
        {"username": "u"},
        {"token": "secret-text"},
        {"datacenters": ["../x"]},
        {"datacenters": []},
        {"apiUrl": "http://api.example"},
    ],
)
def test_configuration_refuses(wrong: dict[str, Any]) -> None:
    """An account has data centers and one login by reference, and no key of the nodes' configuration."""
    good = {"datacenters": [DATACENTER], "token": {"env": "T"}}
    AccountConfig.model_validate(good)
    with pytest.raises(ValidationError):
        AccountConfig.model_validate({**good, **wrong})


async def test_another_api_host_has_to_be_allowed() -> None:
    """Opening an account whose apiUrl is not allowed fails, before a request."""
    settings = {"datacenters": [DATACENTER], "token": {"env": "T"}, "apiUrl": "https://api.example"}
    config = AccountConfig.model_validate(settings)
    async with LocalHub(secrets={"T": TOKEN}) as hub, open_cloud(hub) as shared:
        with pytest.raises(TerminalProviderError, match=r"api\.example"):
            async with open_account(LocalAccount(hub), config, shared):
                pass


async def test_program_prints_an_account_and_its_requests() -> None:
    """``python -m hub_provider_ionos.testing`` prints an account that works, and each request that it served."""
    command = [sys.executable, "-m", "hub_provider_ionos.testing", "--servers", "1", "--addresses", "1"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30.0):
            head = b"".join([await process.stdout.readline() for _ in range(8)]).decode()
            account = yaml.safe_load(head)
            config = AccountConfig.model_validate(account["config"])
            [(host, token)] = re.findall(r"--allow-api-host (\S+) and IONOS_TOKEN=(\S+)", head)
            hub = LocalHub(secrets={"IONOS_TOKEN": token}, allow_api_hosts=frozenset((host,)))
            async with hub, open_cloud(hub) as shared, open_account(LocalAccount(hub), config, shared) as provider:
                assert list((await provider.describe(account["addresses"])).values()) == [FREE]
            lines = [(await process.stdout.readline()).decode() for _ in range(3)]
        assert lines == [f"200 {text}\n" for text in LISTS]
    finally:
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


# --- changes that are cancelled --------------------------------------------------------------------------


async def until(it: Scene, text: str) -> None:
    """Waits until the fake has received a request whose text begins with this."""
    async with asyncio.timeout(10.0):
        while not any(row.text.startswith(text) for row in it.fake.log):  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0.01)


async def waits_for_its_turn(it: Scene, order: Order) -> None:
    """An attach reads no NIC before the PATCH without an answer, which :meth:`heal` ends, and succeeds then."""
    it.fake.log.clear()
    attach = asyncio.ensure_future(it.finish(it.provider.attach, order))
    await until(it, LANS)
    await asyncio.sleep(0.2)
    assert not any("/nics/" in row.text for row in it.fake.log)
    it.fake.heal()
    assert await attach == Done()


async def test_a_change_that_is_cancelled_before_it_is_sent_is_never_sent() -> None:
    """An attach that is cancelled while its NIC is read sends no PATCH afterwards."""
    async with scene() as it:
        server, address = it.add("n1"), it.fake.cloud.reserve()
        it.fake.latency = 0.2
        attach = asyncio.ensure_future(it.provider.attach(Order(address, server, FREE)))
        await until(it, f"GET {it.path('n1')}")
        attach.cancel()
        await asyncio.wait({attach})
        it.fake.latency = 0.0
        other = it.fake.cloud.reserve()
        assert await it.finish(it.provider.attach, Order(other, server, FREE)) == Done()
        assert it.ips("n1")[1:] == [other]
        assert sum("PATCH" in row.text for row in it.fake.log) == 1


async def test_the_next_change_of_a_nic_waits_for_one_that_was_cancelled_under_way() -> None:
    """A PATCH without an answer ends before the NIC is read for the next change, so that nothing is overwritten."""
    async with scene() as it:
        server, address, other = it.add("n1"), it.fake.cloud.reserve(), it.fake.cloud.reserve()
        it.fake.fail("silent", on="write")
        attach = asyncio.ensure_future(it.provider.attach(Order(address, server, FREE)))
        await until(it, "PATCH")
        attach.cancel()
        await asyncio.wait({attach})
        await waits_for_its_turn(it, Order(other, server, FREE))
        assert other in it.ips("n1")


async def test_a_change_whose_time_is_over_is_never_sent() -> None:
    """An attach that comes to its PATCH after the time that the hub gave it sends none: the Lease may have ended."""
    clock = Ahead()
    async with scene(clock=clock) as it:
        server, address = it.add("n1"), it.fake.cloud.reserve()
        it.fake.latency = 0.2
        attach = asyncio.ensure_future(it.provider.attach(Order(address, server, FREE, timeout=15.0)))
        await until(it, f"GET {it.path('n1')}")
        clock.ahead = 15.0
        with pytest.raises(TransientProviderError, match="was not sent: the hub may send it for 15 s only"):
            await attach
        assert not any("PATCH" in row.text for row in it.fake.log)


async def test_a_change_that_gets_its_turn_after_its_time_reads_nothing() -> None:
    """An attach that waited too long for another change of the NIC fails without a request about the NIC."""
    clock = Ahead()
    async with scene(clock=clock) as it:
        server, address, other = it.add("n1"), it.fake.cloud.reserve(), it.fake.cloud.reserve()
        it.fake.fail("silent", on="write")
        first = asyncio.ensure_future(it.provider.attach(Order(address, server, FREE)))
        await until(it, "PATCH")
        it.fake.log.clear()
        second = asyncio.ensure_future(it.provider.attach(Order(other, server, FREE, timeout=10.0)))
        await until(it, SERVERS)
        clock.ahead = 10.0
        it.fake.heal()
        with pytest.raises(TransientProviderError, match="was not begun"):
            await second
        with pytest.raises(TransientProviderError):
            await first
        assert not any("/nics/" in row.text for row in it.fake.log)


async def test_a_change_waits_for_that_of_an_account_that_was_closed() -> None:
    """A PATCH under way keeps the NIC's turn when its account closes: an account that is opened then waits for it."""
    async with scene() as it:
        server, address, other = it.add("n1"), it.fake.cloud.reserve(), it.fake.cloud.reserve()
        async with open_account(LocalAccount(it.hub), it.config, it.shared) as closed:
            it.fake.fail("silent", on="write")
            attach = asyncio.ensure_future(closed.attach(Order(address, server, FREE)))
            await until(it, "PATCH")
            attach.cancel()
            await asyncio.wait({attach})
        await waits_for_its_turn(it, Order(other, server, FREE))


async def test_a_change_without_an_answer_keeps_its_turn_until_its_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATCH is waited for longer than a read: while its thread may still send it, no other change begins."""
    monkeypatch.setattr("hub_provider_ionos.api.ANSWER", 0.5)
    async with scene() as it:
        server, address, other = it.add("n1"), it.fake.cloud.reserve(), it.fake.cloud.reserve()
        it.fake.fail("silent", on="write")
        attach = asyncio.ensure_future(it.provider.attach(Order(address, server, FREE)))
        await until(it, "PATCH")
        again = asyncio.ensure_future(it.finish(it.provider.attach, Order(other, server, FREE)))
        await asyncio.sleep(0.8)
        assert not attach.done()
        assert sum("/nics/" in row.text for row in it.fake.log) == 2
        it.fake.heal()
        with pytest.raises(TransientProviderError):
            await attach
        assert await again == Done()


def test_transport_asks_after_it_has_connected_and_then_sends_nothing() -> None:
    """A refused request opens a connection, and not one byte arrives on it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5.0)
        accepted: list[socket.socket] = []

        def refuse() -> None:
            accepted.append(server.accept()[0])
            raise NotSent("it was cancelled")

        transport = Transport("", 1).admitting(refuse)
        with pytest.raises(NotSent):
            transport.PATCH(f"http://127.0.0.1:{server.getsockname()[1]}/", body={"ips": []})
        transport.close()
        with accepted[0]:
            accepted[0].settimeout(5.0)
            assert accepted[0].recv(1) == b""
