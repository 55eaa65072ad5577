"""Tests of the simulated cloud: operations in the clock's time, compare-and-set, and the log."""

from __future__ import annotations

from typing import Any

import pytest
from hub_testkit.addresses.cloud import CREDENTIAL, Answer, SimulatedCloud
from hub_testkit.addresses.simulated import NAME, SimulatedPlugin, SimulatedProvider
from hub_testkit.contexts import LocalAccount, LocalHub

from hub.plugin.addresses import AddressType, Done, Free, Held, Order, UnsupportedInstance
from hub.plugin.config import validate
from tests.support.clocks import ManualClock


async def call(cloud: SimulatedCloud, action: Any, **arguments: Any) -> Answer:
    """Calls the cloud with its credential."""
    return await cloud.call(action, credential=CREDENTIAL, **arguments)


async def test_operation_takes_effect_at_its_end() -> None:
    """A write has its effect when the clock passes the end of its operation, also if nobody looks."""
    clock = ManualClock()
    cloud = SimulatedCloud(clock)
    cloud.add_instance("n1")
    address = cloud.reserve()
    cloud.operations(10)
    started = clock.now()
    await call(cloud, "attach", address=address, instance="z1/n1")
    clock.advance(9.9)
    assert (cloud.holder_of(address), cloud.running) == ("", 1)
    clock.advance(5)
    assert (cloud.holder_of(address), cloud.running) == ("n1", 0)
    assert [effect.time for effect in cloud.effects] == [started + 10]


async def test_operation_that_is_overtaken_ends_ill() -> None:
    """An operation whose address was taken by hand meanwhile fails at its end and takes nothing."""
    clock = ManualClock()
    cloud = SimulatedCloud(clock)
    cloud.add_instance("n1")
    address = cloud.reserve()
    cloud.operations(10)
    await call(cloud, "attach", address=address, instance="z1/n1")
    cloud.hold_elsewhere(address)
    clock.advance(10)
    answer = await call(cloud, "operation", instance="operation-1")
    assert answer.body == {"running": False, "error": "the address or the instance is taken"}
    assert (cloud.holder_of(address), cloud.effects) == ("elsewhere", [])


async def test_busy_address_refuses_another_write() -> None:
    """While an operation runs, the cloud refuses another write to its address with 423."""
    cloud = SimulatedCloud(ManualClock())
    cloud.add_instance("n1")
    cloud.add_instance("n2")
    address = cloud.reserve()
    cloud.operations(10)
    await call(cloud, "attach", address=address, instance="z1/n1")
    assert (await call(cloud, "attach", address=address, instance="z1/n2")).status == 423


async def test_repeated_token_gets_the_earlier_answer() -> None:
    """A write with the token of an earlier one gets the same answer and has no second effect."""
    cloud = SimulatedCloud(ManualClock())
    cloud.add_instance("n1")
    address = cloud.reserve()
    answers = [await call(cloud, "attach", address=address, instance="z1/n1", token="t") for _ in range(2)]
    assert answers[0] == answers[1]
    assert cloud.changes == 1


async def test_instance_with_an_address_takes_no_other() -> None:
    """Attaching to an instance that has an address answers 409 and changes nothing."""
    cloud = SimulatedCloud(ManualClock())
    cloud.add_instance("n1")
    address = cloud.reserve()
    foreign = cloud.occupy("n1")
    assert (await call(cloud, "attach", address=address, instance="z1/n1")).status == 409
    assert cloud.addresses_of("n1") == [foreign]


async def test_removed_instance_loses_its_addresses() -> None:
    """The addresses of a deleted instance are free, and a new one of the same name has none."""
    cloud = SimulatedCloud(ManualClock())
    cloud.add_instance("n1")
    address = cloud.reserve()
    cloud.hold(address, "n1")
    cloud.add_instance("n1")
    assert cloud.holder_of(address) == ""


async def test_log_has_time_action_address_instance_and_status() -> None:
    """Every call is in the log, in order and in the clock's time; latency passes before the answer."""
    clock = ManualClock(100.0)
    cloud = SimulatedCloud(clock)
    cloud.latency = 0.5
    cloud.add_instance("n1")
    address = cloud.reserve()
    await call(cloud, "attach", address=address, instance="z1/n1")
    await cloud.call("list", credential="wrong")
    log = [(entry.time, entry.kind, entry.action, entry.address, entry.instance, entry.status) for entry in cloud.log]
    assert log == [
        (100.0, "write", "attach", address, "z1/n1", 200),
        (100.5, "read", "list", "", "", 401),
    ]


async def test_lost_answer_follows_the_effect() -> None:
    """With a lost answer the caller gets a broken connection although the write took effect."""
    cloud = SimulatedCloud(ManualClock())
    cloud.add_instance("n1")
    address = cloud.reserve()
    cloud.fail("lost-answer", on="write")
    with pytest.raises(ConnectionResetError):
        await call(cloud, "attach", address=address, instance="z1/n1")
    assert cloud.holder_of(address) == "n1"


def addresses_type(plugin: SimulatedPlugin) -> AddressType:
    """The capability that a plugin declares."""
    (type_,) = plugin.hub_register_providers()
    assert type_.name == NAME
    assert type_.addresses is not None
    return type_.addresses


async def test_provider_refuses_an_instance_of_another_region() -> None:
    """An address of one region can't be attached to an instance of another: UnsupportedInstance."""
    cloud = SimulatedCloud(ManualClock())
    node = cloud.add_instance("n1", region="r2")
    address = cloud.reserve(region="r1")
    hub = LocalHub(secrets={"TOKEN": CREDENTIAL})
    kind = addresses_type(SimulatedPlugin({"main": cloud}))
    config = validate(kind.config, {"cloud": "main", "credential": {"env": "TOKEN"}})
    async with kind.open(LocalAccount(hub), config, None) as provider:
        assert isinstance(provider, SimulatedProvider)
        assert await provider.describe([address]) == {address: Free("r1")}
        instance = provider.instance_of(node)
        assert instance == "z1/n1"
        with pytest.raises(UnsupportedInstance, match=rf"{address} is of region r1, instance z1/n1 of r2"):
            await provider.attach(Order(address, instance, Free("r1")))
        cloud.instance("n1").region = "r1"
        assert await provider.attach(Order(address, instance, Free("r1"))) == Done()
        assert await provider.describe([address]) == {address: Held("z1/n1", "handle-1", "r1")}


def test_cuts_are_declared_as_given() -> None:
    """A test chooses where a move of the simulated cloud interrupts traffic."""
    assert addresses_type(SimulatedPlugin({}, cuts=("source", "target"))).cuts == {"source", "target"}
    assert addresses_type(SimulatedPlugin({})).cuts == frozenset()
