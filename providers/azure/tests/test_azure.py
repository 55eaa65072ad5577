"""The provider, opened as the hub opens it, on the fake of Azure: states, steps with their requests, errors, logins."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hub_provider_azure import AzureConfig, open_account
from hub_provider_azure.failures import Problem, error_for
from hub_provider_azure.testing import FakeAzure, Request
from hub_provider_azure.testing.__main__ import serve
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin import CredentialError, Node, ProviderError, TerminalProviderError, TransientProviderError
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
    Unknown,
    Unsupported,
    UnsupportedInstance,
)

SUBSCRIPTION = "10000000-0000-4000-8000-000000000001"


class Scene:
    """A running fake and a provider of its account."""

    def __init__(self, azure: FakeAzure, stack: AsyncExitStack) -> None:
        self.azure = azure
        self._stack = stack
        self.hub = LocalHub(
            secrets={"AZURE_CLIENT_SECRET": azure.client_secret}, allow_api_hosts=frozenset({azure.host})
        )
        self.provider: AddressProvider

    async def open(self, **changes: Any) -> AddressProvider:
        """Opens a provider, with other values in the account's configuration."""
        config = AzureConfig.model_validate(self.azure.config | changes)
        self.provider = await self._stack.enter_async_context(open_account(LocalAccount(self.hub, name="prod"), config))
        return self.provider

    def id(self, node: Node) -> str:
        """The id of a Node's machine."""
        found = self.provider.instance_of(node)
        assert found is not None
        return found

    async def state(self, address: str) -> AddressState:
        """Describes one address."""
        return (await self.provider.describe([address]))[address]

    async def order(self, address: str, node: Node, before: str = "") -> Order:
        """An order that expects the present state."""
        return Order(address, self.id(node), await self.state(address), before)

    async def end(self, step: Step) -> Step:
        """Follows a step to its end."""
        while isinstance(step, Pending):
            step = await self.provider.follow(step.operation)
        return step

    async def attach(self, address: str, node: Node) -> None:
        """Attaches a free address."""
        assert await self.end(await self.provider.attach(await self.order(address, node))) == Done()

    def made(self, start: int = 0) -> list[str]:
        """The requests since ``start`` without logins, ids shortened to their last two parts."""
        return [_short(request) for request in self.azure.requests[start:] if request.kind != "login"]


def _short(request: Request) -> str:
    method, path = request.text.split(" ", 1)
    return f"{method} {'/'.join(path.split('/')[-2:])}"


@pytest.fixture
async def scene() -> AsyncGenerator[Scene, None]:
    """A scene with an open provider."""
    async with AsyncExitStack() as stack:
        azure = await stack.enter_async_context(FakeAzure())
        scene = Scene(azure, stack)
        await stack.enter_async_context(scene.hub)
        await scene.open()
        yield scene


# --- the requests of a step -----------------------------------------------------------------------------


async def test_describe_is_one_request_when_idle(scene: Scene) -> None:
    """A second look at held and free addresses is one list of the resource group, and nothing else."""
    node, held, free = scene.azure.add_instance("n1"), scene.azure.reserve(), scene.azure.reserve()
    scene.azure.hold(held, "n1")
    first = await scene.provider.describe([held, free])
    assert scene.made() == ["GET microsoft.network/publicipaddresses", "GET networkinterfaces/n1-nic"]
    start = len(scene.azure.requests)
    assert await scene.provider.describe([held, free]) == first
    assert scene.made(start) == ["GET microsoft.network/publicipaddresses"]
    state = first[held]
    assert isinstance(state, Held)
    assert state.instance == scene.id(node)
    assert first[free] == Free("westeurope")


async def test_attach_makes_the_requests_of_its_contract(scene: Scene) -> None:
    """Attaching reads address, machine and interface, writes the interface once, and looks at the operation."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    order = await scene.order(address, node)
    start = len(scene.azure.requests)
    step = await scene.provider.attach(order)
    assert isinstance(step, Pending)
    assert await scene.end(step) == Done()
    assert scene.made(start) == [
        "GET publicipaddresses/ip-1",
        "GET virtualmachines/n1",
        "GET networkinterfaces/n1-nic",
        "PUT networkinterfaces/n1-nic",
        "GET operations/30000000-0000-4000-8000-000000000001",
    ]
    assert scene.azure.holder_of(address) == "n1"


async def test_move_makes_the_requests_of_its_contract(scene: Scene) -> None:
    """A move is a detach and an attach, each with one write and its operation, and 9 requests in all."""
    old, new, address = scene.azure.add_instance("old"), scene.azure.add_instance("new"), scene.azure.reserve()
    scene.azure.hold(address, "old")
    leave = await scene.order(address, old)
    start = len(scene.azure.requests)
    assert await scene.end(await scene.provider.detach(leave)) == Done()
    enter = Order(address, scene.id(new), Free("westeurope"))
    assert await scene.end(await scene.provider.attach(enter)) == Done()
    assert [text for text in scene.made(start) if not text.startswith("GET operations/")] == [
        "GET publicipaddresses/ip-1",
        "GET networkinterfaces/old-nic",
        "PUT networkinterfaces/old-nic",
        "GET publicipaddresses/ip-1",
        "GET virtualmachines/new",
        "GET networkinterfaces/new-nic",
        "PUT networkinterfaces/new-nic",
    ]
    assert len(scene.made(start)) == 9
    assert scene.azure.holder_of(address) == "new"


async def test_second_page_is_part_of_the_answer(scene: Scene) -> None:
    """Addresses on later pages are described too."""
    scene.azure.page = 2
    addresses = [scene.azure.reserve() for _ in range(5)]
    answer = await scene.provider.describe(addresses)
    assert set(answer.values()) == {Free("westeurope")}
    assert len(scene.made()) == 3


async def test_next_page_on_another_host_is_an_error(scene: Scene) -> None:
    """A nextLink to another host is not followed, and no address counts as missing."""
    scene.azure.page, scene.azure.foreign_next = 1, True
    addresses = [scene.azure.reserve() for _ in range(2)]
    with pytest.raises(TransientProviderError, match="the next page is not on"):
        await scene.provider.describe(addresses)
    assert len(scene.made()) == 1


async def test_operation_is_followed_on_the_endpoint_only(scene: Scene) -> None:
    """The fake names operations on another host; the provider keeps the path alone."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    step = await scene.provider.attach(await scene.order(address, node))
    assert isinstance(step, Pending)
    assert step.operation.startswith(f"/subscriptions/{SUBSCRIPTION}/providers/microsoft.network/locations/")
    assert "?" not in step.operation


async def test_write_without_operation_is_followed_at_the_interface(scene: Scene) -> None:
    """If the answer to a PUT names no operation, the interface's provisioningState is looked at."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    scene.azure.named = False
    step = await scene.provider.attach(await scene.order(address, node))
    assert isinstance(step, Pending)
    assert step.operation.endswith("/networkinterfaces/n1-nic")
    assert await scene.provider.follow(step.operation) == Done()


async def test_polling_keeps_the_pace_that_azure_asks_for(scene: Scene) -> None:
    """Retry-After of a write and of its operation is the time until the next look."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    scene.azure.operations(math.inf)
    scene.azure.polling = "7"
    step = await scene.provider.attach(await scene.order(address, node))
    assert isinstance(step, Pending)
    assert step.after == 7.0
    assert await scene.provider.follow(step.operation) == step


@pytest.mark.parametrize(
    "operation",
    [
        "",
        "../../etc/passwd",
        "https://example.invalid/subscriptions",
        f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Network/locations/x/operations/../../secrets",
        f"/subscriptions/99999999{SUBSCRIPTION[8:]}/providers/Microsoft.Network/locations/x/operations/1",
    ],
)
async def test_forged_operation_is_done_without_a_request(scene: Scene, operation: str) -> None:
    """The text of an operation may be forged in a status: one of another form leads to no request."""
    assert await scene.provider.follow(operation) == Done()
    assert scene.made() == []


async def test_interface_that_azure_changes_is_not_written(scene: Scene) -> None:
    """The same order again, while its operation runs, is Pending and makes no second write."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    scene.azure.operations(math.inf)
    order = await scene.order(address, node)
    await scene.provider.attach(order)
    step = await scene.provider.attach(order)
    assert isinstance(step, Pending)
    assert step.operation.endswith("/networkinterfaces/n1-nic")
    assert scene.azure.changes == 1


# --- writes ---------------------------------------------------------------------------------------------


async def test_write_changes_one_property_only(scene: Scene) -> None:
    """The interface that Azure gets is the one it gave, with unknown properties, but for publicIPAddress."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    before = copy.deepcopy(next(doc for key, doc in scene.azure.interfaces.items() if key.endswith("/n1-nic")))
    await scene.attach(address, node)
    sent = scene.azure.pending["30000000-0000-4000-8000-000000000001"].document
    for document in (before, sent):
        del document["etag"]
        for part in document["properties"]["ipConfigurations"]:
            del part["etag"]
    reference = sent["properties"]["ipConfigurations"][1]["properties"].pop("publicIPAddress")
    assert reference == {"id": scene.azure.find(address)["id"].lower()}
    assert sent == before


async def test_write_expects_the_version_that_was_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """If something changes the interface between read and write, the order is in conflict and nothing happens."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    order = await scene.order(address, node)
    accept = scene.azure.put

    def changed_before(key: str, sent: dict[str, Any], etag: str | None) -> tuple[str, dict[str, Any]]:
        scene.azure.interfaces[key]["etag"] = 'W/"other"'
        return accept(key, sent, etag)

    monkeypatch.setattr(scene.azure, "put", changed_before)
    with pytest.raises(AddressConflict, match="412 PreconditionFailed"):
        await scene.provider.attach(order)
    assert scene.azure.changes == 0


async def test_dynamic_address_is_replaced_and_restored(scene: Scene) -> None:
    """A machine's dynamic address gives way to the reserved one, and restore brings it back."""
    node, address = scene.azure.add_instance("n1", ephemeral=True), scene.azure.reserve()
    present = (await scene.provider.inspect([scene.id(node)]))[scene.id(node)]
    assert isinstance(present, Present)
    order = await scene.order(address, node, present.before)
    assert await scene.end(await scene.provider.attach(order)) == Done()
    assert await scene.provider.attach(order) == Done(present.before)
    assert await scene.end(await scene.provider.detach(await scene.order(address, node))) == Done()
    assert await scene.end(await scene.provider.restore(order)) == Done()
    assert (await scene.provider.inspect([scene.id(node)]))[scene.id(node)] == present


@pytest.mark.parametrize("what", ["taken", "deleted", "static", "forged", "machine", "occupied"])
async def test_restore_without_anything_to_give_is_done(scene: Scene, what: str) -> None:
    """Restoring writes nothing if the former address is taken, gone, static or forged, or the machine is not free."""
    node, other = scene.azure.add_instance("n1"), scene.azure.add_instance("n2")
    former = scene.azure.reserve(method="Static" if what == "static" else "Dynamic")
    before, instance = scene.azure.find(former)["id"].lower(), scene.id(node)
    if what == "taken":
        scene.azure.hold(former, "n2")
    elif what == "deleted":
        del scene.azure.addresses[before]
    elif what == "forged":
        before = "/subscriptions/../.."
    elif what == "machine":
        scene.azure.remove_instance("n1")
    elif what == "occupied":
        scene.azure.hold(scene.azure.reserve(), "n1")
    order = Order("20.50.0.99", instance, Free(), before)
    assert await scene.provider.restore(order) == Done()
    assert scene.azure.changes == 0
    assert scene.id(other)


async def test_address_leaves_the_interface_of_a_deleted_machine(scene: Scene) -> None:
    """An interface that a deleted machine left behind gives up the address while the order expects it there."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    scene.azure.hold(address, "n1")
    order = await scene.order(address, node)
    scene.azure.remove_instance("n1", keep_interface=True)
    assert isinstance((await scene.provider.inspect([order.instance]))[order.instance], Gone)
    assert await scene.end(await scene.provider.detach(order)) == Done()
    assert await scene.state(address) == Free("westeurope")


@pytest.mark.parametrize("step", ["attach", "detach"])
async def test_order_that_expects_another_state_is_refused(scene: Scene, step: str) -> None:
    """An order is carried out only in the state that it expects."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    if step == "detach":
        scene.azure.hold(address, "n1")
    held = Held(scene.id(node), "another-handle", "westeurope")
    for expected in (held, Changing(), Unknown("")):
        with pytest.raises(AddressConflict, match=f"azure account prod: address {address}: .*nothing was changed"):
            await getattr(scene.provider, step)(Order(address, scene.id(node), expected))
    assert scene.azure.changes == 0


async def test_address_that_became_another_is_refused(scene: Scene) -> None:
    """If the resource has another address by now, or is gone, the order is in conflict."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    order = await scene.order(address, node)
    document = scene.azure.find(address)
    document["properties"]["ipAddress"] = "20.50.0.99"
    with pytest.raises(AddressConflict, match=r"ip-1 is 20\.50\.0\.99 now"):
        await scene.provider.attach(order)
    scene.azure.addresses.clear()
    with pytest.raises(AddressConflict, match="does not exist any more"):
        await scene.provider.attach(order)


def _forbid(action: str) -> Callable[[FakeAzure], object]:
    return lambda azure: azure.forbidden.add(action)


REFUSALS: list[tuple[Callable[[FakeAzure], object], type[ProviderError], str]] = [
    (_forbid("Microsoft.Network/networkInterfaces/write"), TerminalProviderError, "networkInterfaces/write"),
    (_forbid("Microsoft.Network/publicIPAddresses/join/action"), TerminalProviderError, "IPAddresses/join/action"),
    (lambda azure: azure.remove_instance("n1"), AddressConflict, "n1 or its network interface does not exist"),
    (lambda azure: azure.hold_elsewhere("20.50.0.2"), AddressConflict, "loadbalancers kubernetes has it"),
    (lambda azure: azure.hold_elsewhere("20.50.0.2", "natGateways/out"), AddressConflict, "natgateways out has it"),
    (lambda azure: azure.find("20.50.0.2").update(zones=["3"]), UnsupportedInstance, "ZoneConstraint"),
    (lambda azure: azure.find("20.50.0.2").update(location="East US"), UnsupportedInstance, "eastus, not in west"),
    (lambda azure: azure.fail("error", on="write"), TransientProviderError, "500"),
    (lambda azure: azure.fail("throttled", on="write"), QuotaExceeded, "TooManyRequests"),
    (lambda azure: azure.fail("no-key", on="write"), TransientProviderError, "has no state"),
]


@pytest.mark.parametrize(("set_up", "error", "text"), REFUSALS)
async def test_attach_error_names_its_cause(
    scene: Scene, set_up: Callable[[FakeAzure], object], error: type[ProviderError], text: str
) -> None:
    """Each refusal is the error that the hub acts on, with account and cause."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    order = await scene.order(address, node)
    set_up(scene.azure)
    with pytest.raises(error, match=text) as caught:
        await scene.provider.attach(order)
    assert str(caught.value).startswith("azure account prod: ")
    assert type(caught.value) is error


async def test_write_without_an_answer_is_not_repeated(scene: Scene) -> None:
    """If the connection breaks after a PUT, the provider sends it once and knows nothing."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    order = await scene.order(address, node)
    scene.azure.fail("lost-answer", on="write")
    with pytest.raises(TransientProviderError, match="the connection broke"):
        await scene.provider.attach(order)
    assert [request.kind for request in scene.azure.requests].count("write") == 1
    assert await scene.end(await scene.provider.attach(order)) == Done()
    assert scene.azure.changes == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("RetryableError", ProviderError),
        ("PublicIPAddressInUse", AddressConflict),
        ("PublicIPReferencedByMultipleIPConfigs", AddressConflict),
        ("VMNetworkInterfaceAndPublicIPSkuMismatch", UnsupportedInstance),
        ("SomethingElse", ProviderError),
    ],
)
async def test_operation_that_ends_ill_is_an_error(scene: Scene, code: str, error: type[ProviderError]) -> None:
    """The error of an operation is told apart by its code."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    scene.azure.ill = code
    step = await scene.provider.attach(await scene.order(address, node))
    with pytest.raises(error, match=code) as caught:
        await scene.end(step)
    assert type(caught.value) is error
    assert await scene.state(address) == Free("westeurope")


@pytest.mark.parametrize(
    ("status", "write", "error"),
    [
        (302, False, TerminalProviderError),
        (403, False, TerminalProviderError),
        (408, True, TransientProviderError),
        (409, True, TransientProviderError),
        (412, True, AddressConflict),
        (429, True, QuotaExceeded),
        (503, False, TransientProviderError),
        (400, True, ProviderError),
        (405, False, TerminalProviderError),
    ],
)
def test_status_without_a_known_code_is_an_error(status: int, write: bool, error: type[ProviderError]) -> None:
    """An answer with an unknown body still is the right error."""
    found = error_for(status, Problem(), "azure account prod: PUT", str, 3.0, write=write)
    assert type(found) is error
    assert str(status) in str(found)
    assert getattr(found, "retry_after", 3.0) == 3.0


# --- states ---------------------------------------------------------------------------------------------


def _orphan(azure: FakeAzure, address: str) -> None:
    azure.hold(address, "n1")
    azure.remove_instance("n1", keep_interface=True)


HELD: list[tuple[Callable[[FakeAzure, str], object], AddressState]] = [
    (lambda azure, a: azure.hold_elsewhere(a), Elsewhere("loadbalancers kubernetes")),
    (lambda azure, a: azure.hold_elsewhere(a, "natGateways/out"), Elsewhere("natgateways out")),
    (
        lambda azure, a: azure.hold(a, "n1", configuration="internal"),
        Elsewhere("networkinterfaces n1-nic, on another than the primary IP configuration of the machine"),
    ),
    (
        lambda azure, a: azure.hold(a, "n1", interface="nic-2"),
        Elsewhere("networkinterfaces n1-nic-2, on another than the primary IP configuration of the machine"),
    ),
    (
        _orphan,
        Elsewhere("networkinterfaces n1-nic, an interface without a virtual machine"),
    ),
    (lambda azure, a: azure.find(a)["properties"].update(provisioningState="Updating"), Changing()),
    (
        lambda azure, a: azure.find(a)["properties"].update(publicIPAllocationMethod="Dynamic"),
        NotReserved("public IP address 20.50.0.2: its allocation is dynamic; make it static"),
    ),
    (
        lambda azure, a: azure.find(a)["sku"].update(tier="Global"),
        NotReserved("public IP address 20.50.0.2: its tier is Global, which is for load balancers only"),
    ),
    (
        lambda azure, a: azure.addresses.clear(),
        NotReserved("azure account prod has no public IP address 20.50.0.2"),
    ),
]


@pytest.mark.parametrize(("hold", "state"), HELD)
async def test_address_that_no_instance_can_lose_is_not_held(
    scene: Scene, hold: Callable[[FakeAzure, str], object], state: AddressState
) -> None:
    """What has an address, if not the primary interface of a machine, is named; nothing else is Held or Free."""
    scene.azure.add_instance("n1")
    address = scene.azure.reserve()
    hold(scene.azure, address)
    assert await scene.state(address) == state


async def test_address_outside_the_resource_groups_is_not_reserved(scene: Scene) -> None:
    """With resourceGroups, an address in another group is not of the account; without, it is."""
    address = scene.azure.reserve(group="Others")
    assert isinstance(await scene.state(address), NotReserved)
    await scene.open(resourceGroups=[])
    assert await scene.state(address) == Free("westeurope")


async def test_resource_group_that_does_not_exist_freezes_the_account(scene: Scene) -> None:
    """A list of a group that does not exist is not an empty list."""
    await scene.open(resourceGroups=["nothing"])
    with pytest.raises(TerminalProviderError, match=r"ResourceGroupNotFound.*correct subscription and resourceGroups"):
        await scene.provider.describe(["20.50.0.1"])


async def test_instance_of_a_uniform_scale_set_is_unsupported(scene: Scene) -> None:
    """A node of a uniform scale set has an id, so that the reason can be shown, and is inspected without a request."""
    set_ = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/MC/providers/Microsoft.Compute/virtualMachineScaleSets/pool"
    node = Node("n1", provider_id=f"azure://{set_}/virtualMachines/0")
    instance = scene.id(node)
    assert isinstance((await scene.provider.inspect([instance]))[instance], Unsupported)
    assert scene.made() == []
    address = scene.azure.reserve()
    with pytest.raises(UnsupportedInstance, match="virtualmachinescalesets pool has no interface of its own"):
        await scene.provider.attach(Order(address, instance, Free()))


@pytest.mark.parametrize(
    ("power", "running"), [("running", True), ("starting", True), ("stopped", False), ("deallocating", False)]
)
async def test_machine_runs_by_its_power_state(scene: Scene, power: str, running: bool) -> None:
    """The power state says whether a machine runs."""
    instance = scene.id(scene.azure.add_instance("n1"))
    scene.azure.set_power("n1", power)
    present = (await scene.provider.inspect([instance]))[instance]
    assert present == Present(running=running, region="westeurope", zone="1")


async def test_machine_without_power_state_is_unknown(scene: Scene) -> None:
    """A machine whose power state Azure does not say is neither running nor stopped."""
    instance = scene.id(scene.azure.add_instance("n1"))
    scene.azure.set_power("n1", "")
    assert isinstance((await scene.provider.inspect([instance]))[instance], Unknown)


async def test_machine_that_returns_under_its_name_is_read_again(scene: Scene) -> None:
    """Deleting a machine frees its address; a machine of the same name has none."""
    node, address = scene.azure.add_instance("n1"), scene.azure.reserve()
    scene.azure.hold(address, "n1")
    assert isinstance(await scene.state(address), Held)
    scene.azure.remove_instance("n1")
    assert isinstance((await scene.provider.inspect([scene.id(node)]))[scene.id(node)], Gone)
    scene.azure.add_instance("n1")
    assert await scene.state(address) == Free("westeurope")


@pytest.mark.parametrize("fault", ["error", "garbage", "no-key", "no-list", "cut"])
async def test_broken_list_is_an_error(scene: Scene, fault: Any) -> None:
    """A list that is broken in any way says nothing about any address."""
    address = scene.azure.reserve()
    scene.azure.fail(fault)
    with pytest.raises(TransientProviderError, match="azure account prod: GET "):
        await scene.state(address)
    assert await scene.state(address) == Free("westeurope")


async def test_slow_answer_is_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for an answer includes its body."""
    monkeypatch.setattr("hub_provider_azure.http.TOTAL", 0.2)
    scene.azure.fail("slow")
    with pytest.raises(TransientProviderError, match="no answer within"):
        await scene.state(scene.azure.reserve())


@pytest.mark.parametrize("missing", ["id", "location", "properties"])
async def test_incomplete_address_is_an_error(scene: Scene, missing: str) -> None:
    """An address in a list without a needed part makes the whole list an error."""
    address, other = scene.azure.reserve(), scene.azure.reserve()
    del scene.azure.find(other)[missing]
    with pytest.raises(TransientProviderError, match=missing):
        await scene.state(address)


def _always(response: web.Response) -> Callable[[object, object], web.Response]:
    return lambda _request, _body: response


async def test_redirect_is_not_followed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect is an error that says so, and the credential goes nowhere else."""
    target = web.Response(status=302, headers={"Location": f"http://{scene.azure.host}/other"})
    monkeypatch.setattr(scene.azure, "_route", _always(target))
    with pytest.raises(TerminalProviderError, match="redirects are not followed"):
        await scene.state("20.50.0.1")
    assert len(scene.made()) == 1


async def test_huge_answer_is_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of more than 16 MiB is not read to its end."""
    monkeypatch.setattr(scene.azure, "_route", _always(web.Response(body=b" " * (17 << 20))))
    with pytest.raises(TransientProviderError, match="more than 16777216 bytes"):
        await scene.state("20.50.0.1")


# --- logins ---------------------------------------------------------------------------------------------


async def test_token_is_used_until_it_expires(scene: Scene) -> None:
    """Several requests make one login; a token that ends within five minutes is replaced."""
    address = scene.azure.reserve()
    for _ in range(2):
        await scene.state(address)
    assert len(scene.azure.tokens) == 1
    scene.azure.token_seconds = 200
    await scene.open()
    for _ in range(2):
        await scene.state(address)
    assert len(scene.azure.tokens) == 3


async def test_expired_token_is_replaced(scene: Scene) -> None:
    """After a 401 there is a new login, and the request is repeated once."""
    address = scene.azure.reserve()
    await scene.state(address)
    scene.azure.valid.clear()
    assert await scene.state(address) == Free("westeurope")
    assert [request.status for request in scene.azure.requests if request.kind == "read"] == [200, 401, 200]


async def test_rotated_client_secret_is_read_again(scene: Scene) -> None:
    """A login with a new secret works without a restart."""
    address = scene.azure.reserve()
    await scene.state(address)
    scene.azure.client_secret = scene.hub.secrets["AZURE_CLIENT_SECRET"] = "another~secret"
    scene.azure.valid.clear()
    assert await scene.state(address) == Free("westeurope")


async def test_refused_login_freezes_the_account(scene: Scene) -> None:
    """A wrong secret is tried twice, and the error has the code of the login service but not its text."""
    scene.azure.client_secret = "another~secret"
    with pytest.raises(TerminalProviderError) as caught:
        await scene.state("20.50.0.1")
    assert str(caught.value) == (
        "azure account prod: login with the client secret from AZURE_CLIENT_SECRET is refused (AADSTS7000215); "
        "renew or assign it"
    )
    assert len(scene.azure.requests) == 2


async def test_missing_client_secret_is_a_credential_error(scene: Scene) -> None:
    """A reference that leads nowhere makes no request."""
    scene.hub.secrets.clear()
    with pytest.raises(CredentialError):
        await scene.state("20.50.0.1")
    assert scene.azure.requests == []


async def test_managed_identity_asks_the_metadata_service(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A managed identity gets its token from the metadata service, through the hub's session."""
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://{scene.azure.host}")
    await scene.open(credentials={"managedIdentity": {"clientId": SUBSCRIPTION}})
    address = scene.azure.reserve()
    assert await scene.state(address) == Free("westeurope")
    assert scene.azure.requests[0].text == "GET /metadata/identity/oauth2/token"


async def test_absent_metadata_service_is_transient(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of the metadata service is no reason to freeze the account."""
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:1")
    await scene.open(credentials={"managedIdentity": {}})
    with pytest.raises(TransientProviderError, match="login with the managed identity: cannot connect"):
        await scene.state("20.50.0.1")


async def test_workload_identity_uses_the_environment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The webhook's variables name tenant, client and token file; without them the account is frozen."""
    await scene.open(credentials={"workloadIdentity": True})
    with pytest.raises(TerminalProviderError, match="no workload identity in the environment"):
        await scene.state("20.50.0.1")
    monkeypatch.setenv("AZURE_TENANT_ID", SUBSCRIPTION)
    monkeypatch.setenv("AZURE_CLIENT_ID", SUBSCRIPTION)
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(TransientProviderError, match="cannot read the token file: No such file"):
        await scene.state("20.50.0.1")
    (tmp_path / "token").write_text("assertion")
    assert await scene.state(scene.azure.reserve()) == Free("westeurope")


async def test_throttled_account_without_a_time_may_ask_again(scene: Scene) -> None:
    """A 429 without Retry-After raises QuotaExceeded without a time, and blocks nothing by itself."""
    address = scene.azure.reserve()
    scene.azure.retry_after = ""
    scene.azure.fail("throttled")
    with pytest.raises(QuotaExceeded) as caught:
        await scene.state(address)
    assert caught.value.retry_after is None
    assert await scene.state(address) == Free("westeurope")


@pytest.mark.parametrize("key", ["endpoint", "authority"])
async def test_host_must_be_allowed(scene: Scene, key: str) -> None:
    """A host that --allow-api-host does not name is refused before anything is sent to it."""
    with pytest.raises(TerminalProviderError, match=r"--allow-api-host other\.example"):
        await scene.open(**{key: "https://other.example"})


async def test_fake_prints_what_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m hub_provider_azure.testing`` prints an account that the provider accepts."""
    task = asyncio.create_task(serve(0, 1, 1, 0.0))
    while not (out := capsys.readouterr().out):  # noqa: ASYNC110 - the fake says so by printing
        await asyncio.sleep(0)
    config = AzureConfig.model_validate(json.loads(out.rpartition("config: ")[2]))
    assert config.resource_groups == ("ADDRESSES",)
    async with aiohttp.request("GET", f"{config.endpoint}/x") as response:
        assert response.status == 401
    assert capsys.readouterr().out == "401 GET /x\n"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
