"""Tests of describe, inspect and the steps on moto's EC2: what they return, and exactly which requests they send."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest
from hub_provider_aws import AwsConfig, open_account
from hub_provider_aws.provider import ElasticIps
from hub_provider_aws.testing import FakeAws
from hub_testkit.contexts import LocalAccount, LocalHub
from werkzeug.wrappers import Request, Response

from hub.plugin import Node, TransientProviderError
from hub.plugin.addresses import (
    AddressConflict,
    AddressState,
    Done,
    Elsewhere,
    Free,
    Gone,
    Held,
    InstanceState,
    NotReserved,
    Order,
    Present,
    Unknown,
    Unsupported,
    UnsupportedInstance,
)

ABSENT = "i-0123456789abcdef0"


async def _state(provider: ElasticIps, address: str) -> AddressState:
    return (await provider.describe([address]))[address]


async def _seen(provider: ElasticIps, instance: str) -> InstanceState:
    return (await provider.inspect([instance]))[instance]


def _id(provider: ElasticIps, node: Node) -> str:
    found = provider.instance_of(node)
    assert found is not None
    return found


def _order(address: str, instance: str, expected: AddressState) -> Order:
    return Order(address=address, instance=instance, expected=expected, token=str(uuid.uuid4()))


def _actions(aws: FakeAws, since: int = 0) -> list[str]:
    return [served.text.split()[0] for served in aws.requests[since:]]


# --- describe --------------------------------------------------------------------------------------------


async def test_describe_tells_free_held_elsewhere_and_not_reserved_apart(aws: FakeAws, provider: ElasticIps) -> None:
    """Describe says of each address whether it is free, held, elsewhere or not reserved."""
    free, held, stranger, second = (aws.reserve() for _ in range(4))
    instance = _id(provider, aws.add_instance("n1"))
    aws.hold(held, "n1")
    aws.hold_elsewhere(stranger)
    aws.hold_secondary(second, "n1")

    states = await provider.describe([free, held, stranger, second, "203.0.113.99"])

    assert states[free] == Free("eu-west-1")
    match states[held], states[second]:
        case Held(instance=holder, handle=handle), Elsewhere(what=what):
            assert holder == instance
            assert handle.startswith("eipassoc-")
            assert instance in what
        case others:
            pytest.fail(f"described as {others}")
    assert isinstance(states[stranger], Elsewhere)
    assert isinstance(states["203.0.113.99"], NotReserved)


async def test_describe_sends_one_request_while_nothing_changes(aws: FakeAws, provider: ElasticIps) -> None:
    """Describe asks for the holders of new associations once, and then sends a single request for all addresses."""
    addresses = [aws.reserve() for _ in range(3)]
    aws.add_instance("n1")
    aws.hold(addresses[0], "n1")

    first = await provider.describe(addresses)
    second = await provider.describe(addresses)

    assert first == second
    assert _actions(aws) == ["DescribeAddresses", "DescribeInstances", "DescribeAddresses"]


async def test_describe_asks_for_at_most_200_addresses_at_a_time(aws: FakeAws, provider: ElasticIps) -> None:
    """More than 200 addresses are described with several requests, each with at most 200 values of the filter."""
    names = [f"203.0.{third}.{fourth}" for third in range(113, 118) for fourth in range(90)]
    reserved = aws.reserve()

    states = await provider.describe([*names, reserved])

    assert states.keys() == {*names, reserved}
    assert states[reserved] == Free("eu-west-1")
    assert [served.text.count("Filter.1.Value.") for served in aws.requests] == [200, 200, 51]


async def test_describe_sees_a_holder_that_was_changed_by_hand(aws: FakeAws, provider: ElasticIps) -> None:
    """After an address was moved by hand, describe shows the new holder and another handle."""
    address = aws.reserve()
    aws.add_instance("n1")
    second = _id(provider, aws.add_instance("n2"))
    aws.hold(address, "n1")
    before = await _state(provider, address)

    aws.release(address)
    aws.hold(address, "n2")
    after = await _state(provider, address)

    assert isinstance(before, Held)
    assert isinstance(after, Held)
    assert after.instance == second
    assert after.handle != before.handle


async def test_describe_does_not_guess_a_holder_that_is_not_shown(aws: FakeAws, provider: ElasticIps) -> None:
    """If DescribeInstances does not show an address's holder, the address is unknown, and is asked about again."""
    address = aws.reserve()
    aws.add_instance("n1")
    aws.hold(address, "n1")
    aws.answer(
        200, "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>", action="DescribeInstances"
    )

    assert isinstance(await _state(provider, address), Unknown)
    assert isinstance(await _state(provider, address), Held)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("<allocationId>eipalloc-1</allocationId>", Free("eu-west-1")),
        (
            "<allocationId>eipalloc-1</allocationId><networkBorderGroup>us-west-2-lax-1</networkBorderGroup>",
            Free("us-west-2-lax-1"),
        ),
        ("<domain>standard</domain>", Unknown("DescribeAddresses shows no allocationId")),
        (
            "<allocationId>eipalloc-1</allocationId><instanceId>i-12345678</instanceId>",
            Unknown("DescribeAddresses shows a holder without an associationId"),
        ),
    ],
)
async def test_describe_reads_unusual_records(
    record: str, expected: AddressState, aws: FakeAws, provider: ElasticIps
) -> None:
    """The region of an address is its network border group, and half a record is unknown."""
    item = f"<item><publicIp>203.0.113.1</publicIp>{record}</item>"
    empty = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"
    aws.answer(200, f"<DescribeAddressesResponse><addressesSet>{item}</addressesSet></DescribeAddressesResponse>")
    aws.answer(200, empty, action="DescribeInstances")

    assert await _state(provider, "203.0.113.1") == expected


# --- inspect ---------------------------------------------------------------------------------------------


async def test_inspect_tells_room_occupied_stopped_and_gone_apart(aws: FakeAws, provider: ElasticIps) -> None:
    """Inspect says of each instance whether it runs and has room; an auto-assigned address does not take the room."""
    free, auto, taken, stopped = (
        _id(provider, node)
        for node in (
            aws.add_instance("n1"),
            aws.add_instance("n2", ephemeral=True),
            aws.add_instance("n3"),
            aws.add_instance("n4", running=False),
        )
    )
    other = aws.occupy("n3")

    states = await provider.inspect([free, auto, taken, stopped, ABSENT])

    room = Present(running=True, region="eu-west-1", zone="eu-west-1a")
    assert states[free] == room
    assert states[auto] == room
    assert states[taken] == msgspec.structs.replace(room, room=False, why=f"it has the Elastic IP {other}")
    assert states[stopped] == msgspec.structs.replace(room, running=False, room=False, why="it is stopped")
    assert isinstance(states[ABSENT], Gone)
    assert _actions(aws) == ["DescribeInstances"]


async def test_inspect_shows_a_terminated_instance_as_not_running(aws: FakeAws, provider: ElasticIps) -> None:
    """A terminated instance, which EC2 shows for an hour, does not run and has no room."""
    instance = _id(provider, aws.add_instance("n1"))
    aws.terminate("n1")

    state = await _seen(provider, instance)

    assert isinstance(state, Present)
    assert (state.running, state.room) == (False, False)


async def test_inspect_reads_all_pages(aws: FakeAws, provider: ElasticIps) -> None:
    """Instances on later pages are present, not gone."""
    instances = [_id(provider, aws.add_instance(f"n{number}")) for number in range(12)]
    aws.page = 5

    states = await provider.inspect(instances)

    assert {type(state) for state in states.values()} == {Present}
    assert len(aws.requests) == 3


@pytest.mark.parametrize("fault", ["error", "garbage", "no-key", "lost-answer"])
async def test_inspect_without_its_last_page_is_an_error(fault: str, aws: FakeAws, provider: ElasticIps) -> None:
    """If a later page is lost, inspect fails instead of calling its instances gone."""
    instances = [_id(provider, aws.add_instance(f"n{number}")) for number in range(12)]
    aws.page = 5

    def after_two(_request: Request, _action: str) -> Response:
        aws.fail(fault)
        return aws.forward(_request)

    aws.fail_with(after_two, times=1)

    with pytest.raises(TransientProviderError):
        await provider.inspect(instances)


async def test_inspect_ends_pages_that_never_end(aws: FakeAws, provider: ElasticIps) -> None:
    """An API that always names a next page is an error after 100 pages."""
    body = "<DescribeInstancesResponse><reservationSet/><nextToken>more</nextToken></DescribeInstancesResponse>"
    aws.answer(200, body, times=None)

    with pytest.raises(TransientProviderError, match="more than 100 pages"):
        await provider.inspect([ABSENT])


def _instance(interfaces: str, state: str = "running", zone: str = "eu-west-1a") -> str:
    return (
        f"<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>{ABSENT}</instanceId>"
        f"<instanceState><name>{state}</name></instanceState><placement><availabilityZone>{zone}</availabilityZone>"
        f"</placement>{interfaces}</item></instancesSet></item></reservationSet></DescribeInstancesResponse>"
    )


def _interface(name: str, index: str, addresses: str, card: str = "") -> str:
    place = f"<attachment><deviceIndex>{index}</deviceIndex>{card}</attachment>"
    return (
        f"<item><networkInterfaceId>{name}</networkInterfaceId>{place}"
        f"<privateIpAddressesSet>{addresses}</privateIpAddressesSet></item>"
    )


PRIMARY = "<item><primary>true</primary><privateIpAddress>10.0.0.4</privateIpAddress></item>"
CARD = "<networkCardIndex>1</networkCardIndex>"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (_instance("<networkInterfaceSet/>"), Unsupported("it has no network interface with device index 0")),
        (
            _instance(f"<networkInterfaceSet>{_interface('eni-1', '0', '')}</networkInterfaceSet>"),
            Unsupported("its primary network interface eni-1 has no private IPv4 address"),
        ),
        (
            _instance(f"<networkInterfaceSet>{_interface('eni-1', '0', PRIMARY, CARD)}</networkInterfaceSet>"),
            Unsupported("it has no network interface with device index 0"),
        ),
        (
            _instance(f"<networkInterfaceSet>{_interface('eni-1', '0', PRIMARY)}</networkInterfaceSet>", "pending"),
            Present(running=True, region="eu-west-1", zone="eu-west-1a", room=False, why="it is still starting"),
        ),
        (
            _instance(
                f"<networkInterfaceSet>{_interface('eni-1', '0', PRIMARY)}</networkInterfaceSet>",
                zone="us-west-2-lax-1a",
            ),
            Present(running=True, region="us-west-2-lax-1", zone="us-west-2-lax-1a"),
        ),
        (
            _instance("", "terminated", zone=""),
            Present(running=False, region="eu-west-1", room=False, why="it is terminated"),
        ),
    ],
)
async def test_inspect_reads_unusual_instances(
    answer: str, expected: InstanceState, aws: FakeAws, provider: ElasticIps
) -> None:
    """Only device index 0 of the first network card is primary; a local zone is a region of its own."""
    aws.answer(200, answer)

    assert await _seen(provider, ABSENT) == expected


# --- steps -----------------------------------------------------------------------------------------------


async def test_attach_sends_three_requests(aws: FakeAws, provider: ElasticIps) -> None:
    """Attach reads the address and the instance, then associates the primary address, and never reassociates."""
    address = aws.reserve()
    node = aws.add_instance("n1", ephemeral=True)
    instance = _id(provider, node)

    step = await provider.attach(_order(address, instance, Free("eu-west-1")))

    assert step == Done()
    assert aws.holder_of(address) == "n1"
    assert _actions(aws) == ["DescribeAddresses", "DescribeInstances", "AssociateAddress"]
    written = dict(part.split("=", 1) for part in aws.requests[-1].text.split()[1:])
    assert written.keys() == {"AllocationId", "NetworkInterfaceId", "PrivateIpAddress", "AllowReassociation"}
    assert written["AllowReassociation"] == "false"


async def test_a_move_sends_seven_requests(aws: FakeAws, provider: ElasticIps) -> None:
    """A move with its describes sends seven requests, and leaves everything else on both instances as it was."""
    address = aws.reserve()
    first, second = (_id(provider, aws.add_instance(name)) for name in ("n1", "n2"))
    aws.hold(address, "n1")
    held = await _state(provider, address)
    extras = [aws.extras_of("n1"), aws.extras_of("n2")]
    since = len(aws.requests)

    await provider.detach(_order(address, first, held))
    free = await _state(provider, address)
    await provider.attach(_order(address, second, free))
    after = await _state(provider, address)

    assert free == Free("eu-west-1")
    assert isinstance(after, Held)
    assert after.instance == second
    assert [aws.extras_of("n1"), aws.extras_of("n2")] == extras
    assert _actions(aws, since) == [
        *("DescribeAddresses", "DisassociateAddress"),
        "DescribeAddresses",
        *("DescribeAddresses", "DescribeInstances", "AssociateAddress"),
        "DescribeAddresses",
    ]


async def test_repeated_steps_write_nothing(aws: FakeAws, provider: ElasticIps) -> None:
    """The same attach and the same detach, sent twice, change the association once each."""
    address = aws.reserve()
    instance = _id(provider, aws.add_instance("n1"))
    attach = _order(address, instance, Free("eu-west-1"))

    assert await provider.attach(attach) == await provider.attach(attach) == Done()
    assert aws.changes == 1
    detach = _order(address, instance, await _state(provider, address))
    assert await provider.detach(detach) == await provider.detach(detach) == Done()
    assert aws.changes == 2


async def test_a_step_whose_answer_is_lost_has_one_effect(aws: FakeAws, provider: ElasticIps) -> None:
    """An attach whose answer is lost raises a transient error; the same order then finds its effect."""
    address = aws.reserve()
    order = _order(address, _id(provider, aws.add_instance("n1")), Free("eu-west-1"))
    aws.fail("lost-answer", on="write")

    with pytest.raises(TransientProviderError):
        await provider.attach(order)
    assert await provider.attach(order) == Done()

    assert aws.holder_of(address) == "n1"
    assert aws.changes == 1


async def test_detach_takes_only_the_association_that_the_order_names(aws: FakeAws, provider: ElasticIps) -> None:
    """An address that was detached and attached again by hand has another association, so a detach changes nothing."""
    address = aws.reserve()
    instance = _id(provider, aws.add_instance("n1"))
    aws.hold(address, "n1")
    order = _order(address, instance, await _state(provider, address))
    aws.release(address)
    aws.hold(address, "n1")

    with pytest.raises(AddressConflict, match=r"aws-prod: 198\.51\.100\.1 is not as expected"):
        await provider.detach(order)

    assert aws.holder_of(address) == "n1"
    assert aws.changes == 0


@pytest.mark.parametrize("holder", ["n2", "elsewhere", "secondary", "released"])
async def test_steps_refuse_an_address_that_something_else_has(holder: str, aws: FakeAws, provider: ElasticIps) -> None:
    """Neither attach nor detach touches an address that another instance, another interface or nothing has reserved."""
    address = aws.reserve() if holder != "released" else "203.0.113.99"
    instance = _id(provider, aws.add_instance("n1"))
    aws.add_instance("n2")
    if holder == "elsewhere":
        aws.hold_elsewhere(address)
    elif holder == "secondary":
        aws.hold_secondary(address, "n1")
    elif holder == "n2":
        aws.hold(address, "n2")

    with pytest.raises(AddressConflict, match=address):
        await provider.attach(_order(address, instance, Free("eu-west-1")))
    with pytest.raises(AddressConflict, match=address):
        await provider.detach(_order(address, instance, Held(instance, "eipassoc-1", "eu-west-1")))

    assert aws.changes == 0


async def test_attach_refuses_an_instance_with_another_elastic_ip(aws: FakeAws, provider: ElasticIps) -> None:
    """Attach does not replace the Elastic IP that an instance has, which EC2 would do silently."""
    address = aws.reserve()
    instance = _id(provider, aws.add_instance("n1"))
    other = aws.occupy("n1")

    with pytest.raises(AddressConflict, match=f"it has the Elastic IP {other}"):
        await provider.attach(_order(address, instance, Free("eu-west-1")))

    assert aws.holder_of(other) == "n1"
    assert aws.changes == 0


@pytest.mark.parametrize(("name", "error"), [("stopped", "it is stopped"), ("absent", "does not show the instance")])
async def test_attach_refuses_an_instance_that_does_not_run(
    name: str, error: str, aws: FakeAws, provider: ElasticIps
) -> None:
    """Attach writes nothing if the instance is stopped or does not exist."""
    address = aws.reserve()
    stopped = _id(provider, aws.add_instance("n1", running=False))

    with pytest.raises(AddressConflict, match=error):
        await provider.attach(_order(address, stopped if name == "stopped" else ABSENT, Free("eu-west-1")))

    assert aws.changes == 0


async def test_attach_refuses_an_instance_that_can_never_take_an_address(aws: FakeAws, provider: ElasticIps) -> None:
    """Attach to an instance without a private IPv4 address is refused for ever."""
    address = aws.reserve()
    aws.answer(200, _instance("<networkInterfaceSet/>"), action="DescribeInstances")

    with pytest.raises(UnsupportedInstance, match="choose another node"):
        await provider.attach(_order(address, ABSENT, Free("eu-west-1")))


async def test_attach_writes_only_in_the_expected_state(aws: FakeAws, provider: ElasticIps) -> None:
    """Attach of a free address is refused if the order expects that something holds it."""
    address = aws.reserve()
    instance = _id(provider, aws.add_instance("n1"))

    with pytest.raises(AddressConflict, match="it is free"):
        await provider.attach(_order(address, instance, Held(ABSENT, "eipassoc-1", "eu-west-1")))

    assert aws.changes == 0


async def test_two_attaches_of_one_address_have_one_winner(
    aws: FakeAws, provider: ElasticIps, hub: LocalHub, config: AwsConfig
) -> None:
    """If another hub attaches the address between reading and writing, EC2 refuses the second association."""
    address = aws.reserve()
    first, second = (_id(provider, aws.add_instance(name)) for name in ("n1", "n2"))

    def overtaken(request: Request, _action: str) -> Response:
        aws.hold(address, "n1")
        return aws.forward(request)

    aws.fail_with(overtaken, action="AssociateAddress")

    with pytest.raises(AddressConflict, match=r"Resource\.AlreadyAssociated"):
        await provider.attach(_order(address, second, Free("eu-west-1")))

    assert aws.holder_of(address) == "n1"
    async with open_account(LocalAccount(hub), config, None) as other:
        assert await other.attach(_order(address, first, Free("eu-west-1"))) == Done()


async def test_detach_of_an_association_that_has_just_ended_is_a_conflict(aws: FakeAws, provider: ElasticIps) -> None:
    """If the association ends between reading and writing, detach raises a conflict, then finds the address free."""
    address = aws.reserve()
    instance = _id(provider, aws.add_instance("n1"))
    aws.hold(address, "n1")
    order = _order(address, instance, await _state(provider, address))

    def overtaken(request: Request, _action: str) -> Response:
        aws.release(address)
        return aws.forward(request)

    aws.fail_with(overtaken, action="DisassociateAddress")

    with pytest.raises(AddressConflict, match=r"InvalidAssociationID\.NotFound"):
        await provider.detach(order)
    assert await provider.detach(order) == Done()


async def test_restore_and_follow_send_nothing(aws: FakeAws, provider: ElasticIps) -> None:
    """There is nothing to restore and no operation to follow on EC2."""
    order = _order("198.51.100.1", ABSENT, Free("eu-west-1"))

    assert await provider.restore(order) == Done()
    assert await provider.follow("anything") == Done()
    assert aws.requests == []


async def test_a_cancelled_write_is_given_up_at_once(aws: FakeAws, provider: ElasticIps) -> None:
    """A step that is cancelled while EC2 does not answer ends within a second."""
    address = aws.reserve()
    order = _order(address, _id(provider, aws.add_instance("n1")), Free("eu-west-1"))
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    aws.fail("silent", on="write")
    aws.arrived = lambda action: loop.call_soon_threadsafe(asked.set) if action == "AssociateAddress" else None
    task: asyncio.Task[Any] = asyncio.create_task(provider.attach(order))
    await asyncio.wait_for(asked.wait(), 10)

    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1)

    assert done == {task}
    assert task.cancelled()
